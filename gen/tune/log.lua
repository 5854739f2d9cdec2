-- The log of a tuning run: JSON lines, a header and then a line for everything that was learned, on
-- disk before the next thing starts.
--   input:  a path; entries {type = "result" | "duel" | "end", …}
--   output: a log to append to, and what an earlier run had written
-- A last line that a kill cut short is dropped. Knows no plans.
local diagnostics <const> = require("gen.diagnostics")
local fs <const> = require("gen.fs")
local manifest <const> = require("gen.manifest")
local strict_json <const> = require("gen.strict_json")

local M = {}

M.FORMAT = 1

-- What must agree for results to belong together, and how a message calls it.
local IDENTITY <const> = {
    { key = "cpu", name = "CPU" },
    { key = "generator", name = "generator" },
    { key = "isa", name = "ISA" },
    { key = "key", name = "config hash" },
    { key = "compilers", name = "compilers" },
    { key = "runner", name = "runner" },
}

local Log <const> = {}
Log.__index = Log

local function encode(entry)
    return manifest.encode_line(entry) .. "\n"
end

-- A new log at `path` with `header`, in place of what is there.
function M.create(path, header)
    header.type, header.format = "header", M.FORMAT
    local ok, message = fs.write_all({ { path = path, text = encode(header) } })
    if not ok then
        return nil, message
    end
    return setmetatable({ path = path, header = header, entries = {} }, Log)
end

local function show(value)
    return type(value) == "table" and diagnostics.render(value) or tostring(value)
end

-- nil when a log with header `old` may go on under `new`, else what differs.
function M.difference(old, new)
    if old.format ~= M.FORMAT then
        return ("its format is %s, this version writes %d"):format(show(old.format), M.FORMAT)
    end
    for _, field in ipairs(IDENTITY) do
        local a <const>, b <const> = show(old[field.key]), show(new[field.key])
        if a ~= b then
            return ("its %s is %s, this one is %s"):format(field.name, a, b)
        end
    end
    return nil
end

-- Complete lines of the text, decoded; nil and the number of a line that is not JSON.
local function decode_lines(text)
    local entries <const> = {}
    local whole <const> = text:match("^(.*\n)") or ""
    local number = 0
    for line in whole:gmatch("([^\n]*)\n") do
        number = number + 1
        local entry <const> = strict_json.decode(line)
        if type(entry) ~= "table" or entry == strict_json.null then
            return nil, number
        end
        entries[#entries + 1] = entry
    end
    return entries, whole
end

-- The log at `path`, to go on with; nil and why not. nil, nil when there is none.
function M.open(path, header)
    if fs.kind(path) == nil then
        return nil
    end
    local text, message = fs.read(path)
    if not text then
        return nil, message
    end
    local entries, whole = decode_lines(text)
    if not entries then
        return nil, ("%s: line %d is not JSON"):format(path, whole)
    elseif #entries == 0 or entries[1].type ~= "header" then
        return nil, path .. ": is not a tuning log"
    end
    local difference <const> = M.difference(entries[1], header)
    if difference then
        return nil, ("%s: cannot be resumed: %s"):format(path, difference)
    end
    if whole ~= text then
        local ok
        ok, message = fs.write_all({ { path = path, text = whole } })
        if not ok then
            return nil, message
        end
    end
    return setmetatable({ path = path, header = table.remove(entries, 1), entries = entries }, Log)
end

-- Writes one entry through to the disk; raises {message=} when it cannot.
function Log:append(entry)
    self.entries[#self.entries + 1] = entry
    local ok <const>, message = fs.append(self.path, encode(entry))
    if not ok then
        error({ message = message }, 0)
    end
end

return M
