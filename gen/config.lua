-- From a config file to validated records.
--   input:  the path of a .lua or .json config, overrides of the command line; or a raw table
--   output: records with every field resolved, or nil and a list of error tables
-- A record is a plain table (fields: see docs/config.md); an error is {file=, key=, value=,
-- message=, allowed=, nearest=}. The rules themselves are in gen/config/rules.lua.

local diagnostics <const> = require("gen.diagnostics")
local fs <const> = require("gen.fs")
local overrides <const> = require("gen.config.overrides")
local rules <const> = require("gen.config.rules")
local sandbox <const> = require("gen.sandbox")
local strict_json <const> = require("gen.strict_json")
local target_rules <const> = require("gen.config.target_rules")

local M = {}

local MAX_BYTES <const> = sandbox.limits.source_bytes
local BYTE_ORDER_MARK <const> = "\xEF\xBB\xBF"
local A_TEXT_FILE <const> = "a text file ending in .lua or .json that holds one table"

M.format_errors = diagnostics.format_all

----------------------------------------------------------------------------------------------------
-- Files
----------------------------------------------------------------------------------------------------

-- The text of a config without its byte order mark; nil and what is wrong.
local function read_text(path)
    local text, message = fs.read(path, MAX_BYTES + 1)
    if not text then
        return nil, "cannot be read: " .. fs.strip_path(message, path)
    elseif #text > MAX_BYTES then
        return nil, ("longer than %d bytes"):format(MAX_BYTES)
    end
    if text:sub(1, #BYTE_ORDER_MARK) == BYTE_ORDER_MARK then
        text = text:sub(#BYTE_ORDER_MARK + 1)
    end
    if text:find("^%s*$") then
        return nil, "is empty"
    elseif text:find("\0", 1, true) or text:find("^\27") then
        return nil, "is a binary file"
    end
    return text
end

-- What the file of the given format says, of any type; nil and what is wrong.
local function decode(text, format)
    if format == "json" then
        local value <const>, message = strict_json.decode(text)
        return value, message and "is not valid JSON: " .. message
    end
    local ok <const>, value = sandbox.evaluate(text)
    if not ok then
        return nil, "is not a valid Lua config: " .. value
    end
    return value
end

-- The table in the file; nil and what is wrong.
local function read_table(path)
    local format <const> = path:match("%.(lua)$") or path:match("%.(json)$")
    if not format then
        return nil, "neither a .lua nor a .json file"
    end
    local text, message = read_text(path)
    if not text then
        return nil, message
    end
    local value
    value, message = decode(text, format)
    if message then
        return nil, message
    elseif type(value) ~= "table" or value == strict_json.null then
        return nil, ("must %s a table, not %s"):format(format == "lua" and "return" or "hold",
            value == nil and "nothing" or diagnostics.render(value))
    end
    return value
end

local function default_name(path)
    return (path:match("([^/]*)$"):gsub("%.%w+$", ""))
end

----------------------------------------------------------------------------------------------------
-- Records
----------------------------------------------------------------------------------------------------

-- Which ISA this machine has; only asked when a config says "native".
local function ask_host()
    local token <const> = require("gen.host").native_isa()
    return token, token == nil and "no ISA runs on this machine" or nil
end

-- One raw table -> its record, or nil and errors. Pure: "native" is resolved by options.native, a
-- function that returns an ISA token or nil and why not; without it "native" is refused.
function M.validate(raw, file, name_default, options)
    local record <const>, errors = rules.check(raw, file, name_default, options and options.native)
    if #errors > 0 then
        return nil, errors
    end
    return record
end

-- A table of tuned plans from `file`, for a valid record: what record.tuning holds, or nil and
-- errors.
function M.validate_tuning(record, raw, file)
    local tuning <const>, errors = target_rules.check_tuning(record, raw, file)
    if #errors > 0 then
        return nil, errors
    end
    return tuning
end

-- Adds what is new: variants of one config share most of their errors.
local function merge_errors(all, seen, errors)
    for _, problem in ipairs(errors) do
        local text <const> = diagnostics.format(problem)
        if not seen[text] then
            seen[text] = true
            all[#all + 1] = problem
        end
    end
end

-- One config file and the --set overrides -> a list of records, or nil and all errors.
function M.load(path, override_list, options)
    local raw <const>, message = read_table(path)
    if not raw then
        return nil, { { file = path, message = message, allowed = A_TEXT_FILE } }
    end
    local name_default <const> = default_name(path)
    local tables <const>, problems = overrides.expand(raw, override_list, path, name_default)
    if not tables then
        return nil, problems
    end
    local records <const>, all_errors <const>, seen <const> = {}, {}, {}
    for index, variant in ipairs(tables) do
        local record <const>, errors = M.validate(variant, path, name_default,
            options or { native = ask_host })
        records[index] = record
        merge_errors(all_errors, seen, errors or {})
    end
    if #all_errors > 0 then
        return nil, all_errors
    end
    return records
end

return M
