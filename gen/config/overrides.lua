-- Applies `--set` overrides to a config table; lists of values multiply out.
--   input:  raw config table, ordered overrides {key, {value, …}}, values as text or Lua values
--   output: list of raw tables with suffixed names, or nil and error tables
-- The given tables are never changed. Does not know which keys exist.

local diagnostics <const> = require("gen.diagnostics")
local strict_json <const> = require("gen.strict_json")

local M = {}

local MAX_PRODUCTS <const> = 4096

-- What a text on the command line means: a JSON literal (number, true, "…", […], {…}), else itself.
local function read_value(text)
    if type(text) ~= "string" then
        return text
    end
    local value <const>, message = strict_json.decode(text)
    if value ~= nil then
        return value
    elseif text:find('^%s*[%[{"]') then
        return nil, "not valid JSON: " .. message
    end
    return text
end

-- {"plan", "scores", "rows"} of plan.scores.rows; nil when a part is empty.
local function split_key(key)
    local parts <const> = {}
    for part in (key .. "."):gmatch("([^.]*)%.") do
        if part == "" then
            return nil
        end
        parts[#parts + 1] = part
    end
    return parts
end

-- A copy of `tree` in which the place `parts` names holds `value`; or nil, and the key and value
-- that stand in the way because they are no table.
local function with_value(tree, parts, index, value)
    local copy <const> = {}
    for _, key in ipairs(diagnostics.sorted_keys(tree)) do
        copy[key] = tree[key]
    end
    local name <const> = parts[index]
    if index == #parts then
        copy[name] = value
        return copy
    end
    local inner <const> = copy[name] == nil and {} or copy[name]
    if type(inner) ~= "table" or inner == strict_json.null then
        return nil, table.concat(parts, ".", 1, index), inner
    end
    local changed, problem_key, problem_value = with_value(inner, parts, index + 1, value)
    copy[name] = changed
    return changed and copy, problem_key, problem_value
end

-- Text of a value for a name: lists joined by _, "-" as m, "." as p.
local function name_part(value)
    if type(value) == "table" and value ~= strict_json.null then
        local parts <const> = {}
        for _, key in ipairs(diagnostics.sorted_keys(value)) do
            local text <const> = name_part(value[key])
            parts[#parts + 1] = math.type(key) and text or tostring(key) .. text
        end
        return table.concat(parts, "_")
    end
    local text <const> = type(value) == "string" and value or diagnostics.render(value)
    return (text:gsub("-", "m"):gsub("%.", "p"):gsub("[^%w_]", "_"))
end

local function check_override(override, file, errors)
    local key <const>, texts <const> = override[1], override[2]
    local parts <const> = split_key(key)
    if not parts or #texts == 0 then
        errors[#errors + 1] = {
            file = file, key = "--set " .. key, message = "not a key with a value",
            allowed = "KEY=VALUE, or STAGE.KEY=VALUE with dots for nested keys",
        }
        return nil
    end
    local values <const>, seen <const> = {}, {}
    for index, text in ipairs(texts) do
        local value <const>, message = read_value(text)
        local rendered <const> = message and text or name_part(value)
        if message or seen[rendered] then
            errors[#errors + 1] = {
                file = file, key = key, value = text,
                message = message or "given twice in one --set",
                allowed = "one value or a list of different ones, JSON for lists and tables",
            }
        end
        seen[rendered] = true
        values[index] = value
    end
    return { key = key, parts = parts, values = values }
end

local function count_products(list)
    local count = 1
    for _, item in ipairs(list) do
        count = count * #item.values
        if count > MAX_PRODUCTS then
            return nil
        end
    end
    return count
end

-- Every variant so far times every value of one override. A variant is {raw=, suffix=}.
local function multiply(variants, item, file, errors)
    local result <const> = {}
    for _, variant in ipairs(variants) do
        for _, value in ipairs(item.values) do
            local raw, bad_key, bad_value = with_value(variant.raw, item.parts, 1, value)
            if not raw then
                errors[#errors + 1] = {
                    file = file, key = bad_key, value = bad_value,
                    message = ("not a table, so --set %s has no place"):format(item.key),
                }
                return variants
            end
            local suffix = variant.suffix
            if #item.values > 1 and item.key ~= "name" then
                suffix = suffix .. "_" .. item.key:gsub("[^%w_]", "_") .. name_part(value)
            end
            result[#result + 1] = { raw = raw, suffix = suffix }
        end
    end
    return result
end

-- A later --set of the same key replaces an earlier one.
local function is_replaced(overrides, index)
    for later = index + 1, #overrides do
        if overrides[later][1] == overrides[index][1] then
            return true
        end
    end
    return false
end

-- Applies the overrides; `name_default` is what an absent `name` will become.
function M.expand(raw, overrides, file, name_default)
    local errors <const>, list <const> = {}, {}
    for index, override in ipairs(overrides or {}) do
        if not is_replaced(overrides, index) then
            list[#list + 1] = check_override(override, file, errors)
        end
    end
    if #errors == 0 and not count_products(list) then
        errors[1] = { file = file, key = "--set",
            message = ("the lists multiply out to more than %d variants"):format(MAX_PRODUCTS) }
    end
    local variants = { { raw = raw, suffix = "" } }
    for _, item in ipairs(#errors == 0 and list or {}) do
        variants = multiply(variants, item, file, errors)
    end
    if #errors > 0 then
        return nil, errors
    end
    local tables <const> = {}
    for index, variant in ipairs(variants) do
        tables[index] = variant.raw
        local name <const> = variant.raw.name == nil and name_default or variant.raw.name
        if variant.suffix ~= "" and type(name) == "string" then
            tables[index] = with_value(variant.raw, { "name" }, 1, name .. variant.suffix)
        end
    end
    return tables
end

return M
