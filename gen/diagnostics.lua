-- Errors of a config as data and as text.
--   input:  error tables {file=, key=, value=, message=, allowed=, nearest=}
--   output: one line each; rendered values; the nearest of a list of names
-- Used by every module that refuses a config. Decides nothing about configs.

local json <const> = require("dkjson")

local M = {}

local MAX_TEXT <const> = 60
local MAX_VALUE_TEXT <const> = 100
local MAX_ITEMS <const> = 6
local MAX_DEPTH <const> = 2

-- Text on one line, without anything a terminal would act on.
local function escape_text(text)
    local unsafe <const> = utf8.len(text) and "[%c\127]" or "[%c\127-\255]"
    return (text:gsub(unsafe, function(char)
        return ("\\x%02X"):format(char:byte())
    end))
end

local function shorten(text, length)
    if #text <= length then
        return text
    end
    -- Not in the middle of a UTF-8 character.
    local cut = length
    while cut > 1 and (text:byte(cut + 1) & 0xC0) == 0x80 do
        cut = cut - 1
    end
    return text:sub(1, cut) .. "…"
end

local function render_number(value)
    if value ~= value then
        return "nan"
    elseif value == math.huge then
        return "inf"
    elseif value == -math.huge then
        return "-inf"
    end
    if math.type(value) == "integer" then
        return ("%d"):format(value)
    end
    local short <const> = ("%.14g"):format(value)
    return tonumber(short) == value and short or ("%.17g"):format(value)
end

local render

local function sorted_keys(list)
    local keys <const> = {}
    for key in next, list do
        keys[#keys + 1] = key
    end
    table.sort(keys, function(a, b)
        if type(a) == type(b) and (type(a) == "number" or type(a) == "string") then
            return a < b
        end
        return type(a) .. tostring(a) < type(b) .. tostring(b)
    end)
    return keys
end
M.sorted_keys = sorted_keys

local function render_table(list, depth)
    if depth > MAX_DEPTH then
        return "{…}"
    end
    local parts <const> = {}
    local length <const> = rawlen(list)
    for _, key in ipairs(sorted_keys(list)) do
        if #parts == MAX_ITEMS then
            parts[#parts + 1] = "…"
            break
        end
        local text <const> = render(rawget(list, key), depth + 1)
        if math.type(key) == "integer" and key >= 1 and key <= length then
            parts[#parts + 1] = text
        elseif type(key) == "string" then
            parts[#parts + 1] = shorten(escape_text(key), MAX_TEXT) .. " = " .. text
        else
            parts[#parts + 1] = "[" .. render(key, depth + 1) .. "] = " .. text
        end
    end
    return "{" .. table.concat(parts, ", ") .. "}"
end

function render(value, depth)
    local kind <const> = type(value)
    if value == json.null then
        return "null"
    elseif kind == "string" then
        return '"' .. shorten(escape_text((value:gsub('["\\]', "\\%0"))), MAX_TEXT) .. '"'
    elseif kind == "number" then
        return render_number(value)
    elseif kind == "table" then
        return render_table(value, depth)
    elseif kind == "boolean" or kind == "nil" then
        return tostring(value)
    end
    return "(" .. kind .. ")"
end

-- Any Lua value on one short line.
function M.render(value)
    return shorten(render(value, 1), MAX_VALUE_TEXT)
end

-- A key of any type as the user would write it: head, [1], [true].
function M.render_key(key)
    return type(key) == "string" and key ~= "" and key or "[" .. render(key, 1) .. "]"
end

-- Edits (insert, delete, replace, swap neighbours) that turn a into b.
local function edit_distance(a, b)
    local before, previous = {}, {}
    for j = 0, #b do
        previous[j] = j
    end
    for i = 1, #a do
        local current <const> = { [0] = i }
        for j = 1, #b do
            local cost <const> = a:byte(i) == b:byte(j) and 0 or 1
            current[j] = math.min(previous[j] + 1, current[j - 1] + 1, previous[j - 1] + cost)
            if i > 1 and j > 1 and a:byte(i) == b:byte(j - 1) and a:byte(i - 1) == b:byte(j) then
                current[j] = math.min(current[j], before[j - 2] + 1)
            end
        end
        before, previous = previous, current
    end
    return previous[#b]
end

local function plain(text)
    return (text:lower():gsub("[-. ]", "_"))
end

-- The name closest to `text`, or nil when none is close. `names` is a list of strings; other
-- entries in it are passed over.
function M.nearest(text, names)
    if type(text) ~= "string" or #text > MAX_TEXT then
        return nil
    end
    local best, best_distance
    for _, name in ipairs(names) do
        if type(name) == "string" then
            local distance <const> = edit_distance(plain(text), plain(name))
            local longest <const> = math.max(#text, #name)
            if distance <= math.max(1, longest * 2 // 5) and distance < longest
                and (not best or distance < best_distance) then
                best, best_distance = name, distance
            end
        end
    end
    return best
end

local MAX_LINE_TEXT <const> = 400

-- FILE: KEY = VALUE: message (allowed: …; did you mean "…"?)
function M.format(problem)
    local line <const> = { escape_text(problem.file or "config"), ": " }
    if problem.key then
        line[#line + 1] = shorten(escape_text(problem.key), MAX_TEXT)
        if problem.value ~= nil then
            line[#line + 1] = " = " .. M.render(problem.value)
        end
        line[#line + 1] = ": "
    end
    line[#line + 1] = shorten(escape_text(problem.message), MAX_LINE_TEXT)
    local hints <const> = {}
    if problem.allowed then
        hints[#hints + 1] = "allowed: " .. problem.allowed
    end
    if problem.nearest then
        hints[#hints + 1] = ('did you mean "%s"?'):format(problem.nearest)
    end
    if #hints > 0 then
        line[#line + 1] = " (" .. table.concat(hints, "; ") .. ")"
    end
    return table.concat(line)
end

-- One line each, without a line break at the end.
function M.format_all(problems)
    local lines <const> = {}
    for index, problem in ipairs(problems) do
        lines[index] = M.format(problem)
    end
    return table.concat(lines, "\n")
end

return M
