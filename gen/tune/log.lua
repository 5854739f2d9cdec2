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

-- Beyond it no time, size or rate that was measured lies.
local MAX_NUMBER <const> = 1e9

----------------------------------------------------------------------------------------------------
-- What entries hold
----------------------------------------------------------------------------------------------------

local function is_text(value)
    return type(value) == "string"
end

local function is_number(value)
    return type(value) == "number" and value >= 0 and value <= MAX_NUMBER
end

local function is_list_of(is_item, value)
    if type(value) ~= "table" then
        return false
    end
    for index in next, value do
        if math.type(index) ~= "integer" or not is_item(value[index]) then return false end
    end
    return true
end

local function is_turn(value)
    return type(value) == "table" and is_number(value.us) and is_text(value.state)
end

local SCALARS <const> = { string = true, number = true, boolean = true }

-- What a field may be: how to tell, and in words.
local TEXT <const> = { is_text, "a text" }
local NUMBER <const> = { is_number, ("a number from 0 to %g"):format(MAX_NUMBER) }
local TIME <const> = { function(value) return is_number(value) and value > 0 end,
    ("a number above 0, up to %g"):format(MAX_NUMBER) }
local ERROR <const> = { function(value)
    return type(value) == "number" and value >= 0 and value < math.huge
end, "a number from 0" }
local COUNT <const> = { function(value)
    return math.type(value) == "integer" and value >= 0 and value <= 1 << 53
end, "a whole number from 0" }
local TIMES <const> = { function(value) return is_list_of(is_number, value) end,
    "a list of numbers" }
local TURNS <const> = { function(value) return is_list_of(is_turn, value) end,
    "a list of {us, state}" }
local CHOICES <const> = { function(value)
    if type(value) ~= "table" then
        return false
    end
    for key in next, value do
        if not is_text(key) or not SCALARS[type(value[key])] then return false end
    end
    return true
end, "an object of texts, numbers, true and false" }

local HEADER <const> = { needs = {}, may = { { "seed", COUNT } } }

-- Fields of an entry by its type; of a result, by its status as well.
local ENTRIES <const> = {
    result = { needs = { { "key", TEXT }, { "status", TEXT }, { "set", CHOICES },
        { "compiler", TEXT }, { "level", TEXT } },
        may = { { "time", TEXT }, { "code", TEXT }, { "build_seconds", NUMBER },
            { "code_bytes", NUMBER }, { "run_seconds", NUMBER }, { "max_error", ERROR },
            { "peak_gflops", NUMBER } } },
    duel = { needs = { { "first", TEXT }, { "second", TEXT }, { "rounds", COUNT },
        { "first_times", TURNS }, { "second_times", TURNS } },
        may = { { "failed", TEXT }, { "time", TEXT } } },
    ["end"] = { needs = {}, may = {} },
}

local FAILED <const> = { needs = { { "message", TEXT } }, may = {} }
local STATUSES <const> = {
    ok = { needs = { { "best_us", TIME }, { "median_us", TIME }, { "samples", TIMES },
        { "state", TEXT }, { "run_seconds", NUMBER } }, may = {} },
    same = { needs = { { "as", TEXT }, { "code", TEXT } }, may = {} },
    refused = FAILED, compile = FAILED, crash = FAILED, hang = FAILED, wrong = FAILED,
}

-- Nil, or what is wrong with the fields of an entry.
local function check_fields(entry, fields)
    for _, list in ipairs({ fields.needs, fields.may }) do
        for _, field in ipairs(list) do
            local name <const>, kind <const> = field[1], field[2]
            local value <const> = entry[name]
            if not (value == nil and list == fields.may) and not kind[1](value) then
                return ("its %s is %s (allowed: %s)"):format(name,
                    value == nil and "missing" or diagnostics.render(value), kind[2])
            end
        end
    end
end

local function check_choice(entry, name, allowed, names)
    if not allowed[entry[name]] then
        return ("its %s is %s (allowed: %s)"):format(name, entry[name] == nil and "missing"
            or diagnostics.render(entry[name]), names)
    end
end

local function check_entry(entry)
    local problem = check_choice(entry, "type", ENTRIES, "result, duel, end")
        or check_fields(entry, ENTRIES[entry.type])
    if not problem and entry.type == "result" then
        problem = check_choice(entry, "status", STATUSES,
            "ok, same, refused, compile, crash, hang, wrong")
            or check_fields(entry, STATUSES[entry.status])
    end
    return problem
end

----------------------------------------------------------------------------------------------------
-- The log
----------------------------------------------------------------------------------------------------

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
    for number, entry in ipairs(entries) do
        local problem <const> = number == 1 and check_fields(entry, HEADER)
            or number > 1 and check_entry(entry)
        if problem then
            return nil, ("%s: line %d is damaged: %s; remove it, or tune without --resume"):format(
                path, number, problem)
        end
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
