-- Runs config files as data: nothing reachable but pure math, bounded work, bounded memory.
--   input:  the text of a Lua config
--   output: true and the value, or false and a one-line message
-- The hook runs before every VM instruction, so one instruction is all that can go unchecked; with
-- the collector stopped, memory is counted as everything ever allocated, the same on every run.
-- Does not know what a config means.

local M = {}

M.limits = {
    instructions = 250000,
    bytes = 32 << 20, -- allocated by one evaluation, garbage included
    -- Allocated by one instruction. Keeps `s = s .. s` from ever getting far, and, since it bounds
    -- every string and the stack, the time one instruction can take.
    step_bytes = 128 << 10,
    source_bytes = 256 << 10,
}

local CHUNK_NAME <const> = "config"

local PURE_MATH <const> = {
    "abs", "acos", "asin", "atan", "ceil", "cos", "deg", "exp", "floor", "fmod", "huge", "log",
    "max", "maxinteger", "min", "mininteger", "modf", "pi", "rad", "sin", "sqrt", "tan",
    "tointeger", "type", "ult",
}

local function new_environment()
    local pure <const> = {}
    for _, name in ipairs(PURE_MATH) do
        pure[name] = math[name]
    end
    return { math = pure }
end

-- A count hook that raises once a limit is passed. It disarms itself first: the error must not be
-- followed by a second one outside the pcall that catches it.
local function make_hook(limits)
    local sethook <const>, memory <const> = debug.sethook, collectgarbage
    local max_instructions <const> = limits.instructions
    local max_kib <const>, max_step_kib <const> = limits.bytes / 1024, limits.step_bytes / 1024
    local first_kib <const> = memory("count")
    local instructions, last_kib = 0, first_kib
    local function stop(message)
        sethook()
        error(message, 0)
    end
    return function()
        instructions = instructions + 1
        local kib <const> = memory("count")
        if instructions > max_instructions then
            stop("stopped: runs more than " .. max_instructions .. " instructions")
        elseif kib - last_kib > max_step_kib then
            stop("stopped: one operation needs more than " .. limits.step_bytes .. " bytes")
        elseif kib - first_kib > max_kib then
            stop("stopped: needs more than " .. limits.bytes .. " bytes")
        end
        last_kib = kib
    end
end

-- Calls fn under the limits. The string metatable (global state of Lua) is away meanwhile, so that
-- neither ("x"):rep nor string arithmetic exists; everything is put back whatever happens.
local function call_guarded(limits, fn)
    local string_meta <const> = debug.getmetatable("")
    local old_hook <const>, old_mask <const>, old_count <const> = debug.gethook()
    local collects <const> = collectgarbage("isrunning")
    collectgarbage("stop")
    local hook <const> = make_hook(limits)
    debug.setmetatable("", nil)
    local finished, ok, value = pcall(function()
        debug.sethook(hook, "", 1)
        local inner_ok <const>, inner_value <const> = pcall(fn)
        hook() -- a last instruction may have allocated
        debug.sethook()
        return inner_ok, inner_value
    end)
    debug.setmetatable("", string_meta)
    debug.sethook(old_hook, old_mask, old_count)
    if collects then
        collectgarbage("restart")
    end
    if not finished then -- a limit tripped after fn had returned
        ok, value = false, ok
    end
    if not ok then
        collectgarbage() -- whatever was piled up
    end
    return ok, value
end

-- "config:3: message" -> "line 3: message", on one line.
local function tidy_message(message)
    local text <const> = tostring(message):gsub("^" .. CHUNK_NAME .. ":(%d+): ", "line %1: ")
    return (text:gsub("%s+", " "))
end

-- Runs the text of a config; the value is what it returns first. `limits` is for tests.
function M.evaluate(text, limits)
    limits = limits or M.limits
    if #text > limits.source_bytes then
        return false, ("longer than %d bytes"):format(limits.source_bytes)
    end
    -- Inside a pcall, so that no message handler of the program adds a traceback.
    local _, chunk <const>, message = pcall(load, text, "=" .. CHUNK_NAME, "t", new_environment())
    if type(chunk) ~= "function" then
        message = message or chunk
        local is_deep <const> = message:find("C stack overflow") or message:find("C levels")
        return false, is_deep and "nested too deeply" or tidy_message(message)
    end
    local ok <const>, value = call_guarded(limits, chunk)
    if not ok then
        return false, tidy_message(value)
    end
    return true, value
end

return M
