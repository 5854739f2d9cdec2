-- What every rule of a config is made of: reading keys, checking single values, reporting.
--   input:  a raw table (untrusted), its label
--   output: a check object: `raw` (known keys only), `refused` (keys already reported), `errors`
-- Knows the key table; knows no rule that joins two keys.

local diagnostics <const> = require("gen.diagnostics")
local keys <const> = require("gen.keys")
local null <const> = require("gen.strict_json").null

local M = {}

local MAX_DEPTH <const> = 16
local MAX_ERRORS <const> = 100

----------------------------------------------------------------------------------------------------
-- Reporting
----------------------------------------------------------------------------------------------------

local function is_full(check)
    return #check.errors >= MAX_ERRORS
end

-- `value` is what the message shows; without it, that of the key.
local function report(check, key, message, allowed, nearest, value)
    if is_full(check) then
        return
    elseif value == nil then
        value = check.raw[key]
    end
    check.errors[#check.errors + 1] = {
        file = check.file, key = key, value = value, message = message, allowed = allowed,
        nearest = nearest,
    }
    if is_full(check) then
        check.errors[MAX_ERRORS + 1] = { file = check.file, message = "too many errors; stopped" }
    end
end

local function describe_type(value)
    if value == null then
        return "null"
    elseif type(value) == "number" then
        return "the number " .. diagnostics.render(value)
    end
    local kind <const> = type(value)
    return kind == "table" and "a table" or kind == "nil" and "nothing" or "a " .. kind
end

local function refuse_type(check, key, wanted, allowed, value, nearest)
    report(check, key, ("must be %s, not %s"):format(wanted, describe_type(value)), allowed,
        nearest, value)
end

----------------------------------------------------------------------------------------------------
-- Single values
----------------------------------------------------------------------------------------------------

-- The integer a number stands for (512.0 is 512), or nil.
local function as_integer(value)
    return math.type(value) and math.tointeger(value) or nil
end

-- Reports, or returns the integer. `key` may be dotted.
local function check_integer(check, key, value, low, high)
    local allowed <const> = ("an integer from %d to %d"):format(low, high)
    local integer <const> = as_integer(value)
    if not integer then
        local is_huge <const> = math.type(value) == "float" and value == math.floor(value)
            and value - value == 0
        if is_huge then
            report(check, key, "out of range", allowed, nil, value)
        else
            refuse_type(check, key, "an integer", allowed, value)
        end
    elseif integer < low or integer > high then
        report(check, key, "out of range", allowed, nil, value)
    else
        return integer
    end
end

local function check_boolean(check, key, value)
    if type(value) == "boolean" then
        return value
    end
    refuse_type(check, key, "a boolean", "true, false", value)
end

local function contains(list, value)
    for _, item in ipairs(list) do
        if item == value then
            return true
        end
    end
    return false
end

local function check_choice(check, entry, value)
    if contains(entry.choices, value) then
        return value
    elseif entry.later and contains(entry.later, value) then
        report(check, entry.name, "not supported yet", entry.allowed)
    elseif type(value) == "string" then
        report(check, entry.name, "unknown value", entry.allowed,
            diagnostics.nearest(value, entry.choices))
    elseif value == true and entry.choices[1] == false then
        report(check, entry.name, "true does not say which", entry.allowed)
    else
        refuse_type(check, entry.name, entry.type == "string" and "a string" or "false or a string",
            entry.allowed, value)
    end
end

local CHECK_KIND <const> = {
    size = function(check, entry, value)
        return check_integer(check, entry.name, value, 1, keys.MAX_SIZE)
    end,
    boolean = function(check, entry, value)
        return check_boolean(check, entry.name, value)
    end,
    choice = check_choice,
}

-- A key of a simple kind: its value, or its default, or (reported) nil.
local function take(check, name, default)
    local entry <const> = keys.by_name[name]
    local value <const> = check.raw[name]
    if value == nil then
        if default == nil then
            default = entry.default
        end
        return default
    end
    return CHECK_KIND[entry.kind](check, entry, value)
end

local function take_required(check, name, why)
    if check.refused[name] then
        return nil
    elseif check.raw[name] == nil then
        report(check, name, "required" .. (why or "") .. ", but missing",
            keys.by_name[name].allowed)
        return nil
    end
    return take(check, name)
end

----------------------------------------------------------------------------------------------------
-- The table as a whole
----------------------------------------------------------------------------------------------------

-- Why a value is no plain tree of at most MAX_DEPTH, or nil. `heights` remembers tables already
-- measured (false while inside one), so that shared tables are walked once.
local function find_bad_nesting(value, heights, depth)
    if type(value) ~= "table" then
        return nil, 0
    elseif heights[value] == false then
        return "contains itself"
    elseif depth + (heights[value] or 0) > MAX_DEPTH then
        return ("nested more than %d deep"):format(MAX_DEPTH)
    elseif heights[value] then
        return nil, heights[value]
    end
    heights[value] = false
    local height = 0
    for _, key in ipairs(diagnostics.sorted_keys(value)) do
        for _, item in ipairs({ key, value[key] }) do
            local problem <const>, inner <const> = find_bad_nesting(item, heights, depth + 1)
            if problem then
                return problem
            end
            height = math.max(height, inner + 1)
        end
    end
    heights[value] = height
    return nil, height
end

local function find_nearest_key(key)
    local name <const> = type(key) == "string" and key:lower() or ""
    for _, entry in ipairs(keys.list) do
        if entry.also and contains(entry.also, name) then
            return entry.name
        end
    end
    return diagnostics.nearest(name, keys.names("built"))
end

-- Unknown keys, keys still to come, tables that are no trees. What is reported here is not looked
-- at again: check.raw gets the rest.
local function check_keys(check, raw)
    local known <const> = table.concat(keys.names("built"), ", ")
    for _, key in ipairs(diagnostics.sorted_keys(raw)) do
        if is_full(check) then
            break
        end
        local value <const> = raw[key]
        local entry <const> = keys.by_name[key]
        local nesting <const> = find_bad_nesting(value, { [raw] = false }, 1)
        if not entry then
            report(check, diagnostics.render_key(key), "unknown key", known,
                find_nearest_key(key), value)
        elseif entry.status ~= "built" then
            report(check, key, "not supported yet", known, nil, value)
        elseif nesting then
            report(check, key, nesting, entry.allowed, nil, value)
            check.refused[key] = true
        else
            check.raw[key] = value
        end
    end
end

-- The keys of a nested table against the names it may hold; calls visit(name, value) for each.
local function check_fields(check, prefix, value, fields, visit)
    for _, key in ipairs(diagnostics.sorted_keys(value)) do
        local name <const> = type(key) == "string" and prefix .. "." .. key
            or prefix .. diagnostics.render_key(key)
        if contains(fields, key) then
            visit(key, name, value[key])
        else
            report(check, name, "unknown key", table.concat(fields, ", "),
                diagnostics.nearest(key, fields), value[key])
        end
    end
end

local function check_table(check, key, value, allowed)
    if type(value) == "table" and value ~= null then
        return true
    end
    refuse_type(check, key, "a table", allowed, value)
    return false
end

-- A list 1..n without other keys: its length, else nil. Reports nothing.
local function list_length(value)
    if type(value) ~= "table" or value == null then
        return nil
    end
    local count <const> = #diagnostics.sorted_keys(value)
    return count == rawlen(value) and count or nil
end

-- Starts the checking of a raw table.
function M.new(raw, file)
    local check <const> = { file = file, raw = {}, refused = {}, errors = {} }
    check_keys(check, raw)
    return check
end

M.report = report
M.refuse_type = refuse_type
M.integer = check_integer
M.boolean = check_boolean
M.contains = contains
M.take = take
M.take_required = take_required
M.fields = check_fields
M.table = check_table
M.list_length = list_length

return M
