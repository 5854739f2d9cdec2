-- JSON without leniency: dkjson builds the value, this checks the text first.
--   input:  JSON text
--   output: the value (null is json.null), or nil and a message with line and column
-- dkjson accepts comments, missing commas, repeated keys and trailing text; a config must not.

local json <const> = require("dkjson")

local M = {}

local MAX_DEPTH <const> = 32

M.null = json.null

local function fail(text, position, message)
    local before <const> = text:sub(1, position - 1)
    local _, breaks <const> = before:gsub("\n", "")
    local column <const> = position - (before:match(".*()\n") or 0)
    error({ message = ("line %d, column %d: %s"):format(breaks + 1, column, message) }, 0)
end

local function skip_space(text, position)
    return text:match("^[ \t\r\n]*()", position)
end

-- Position after the string that starts at `position`.
local function check_string(text, position)
    local at = position + 1
    while true do
        at = text:match('^[^"\\%c]*()', at)
        local char <const> = text:sub(at, at)
        if char == '"' then
            return at + 1
        elseif char == "" then
            fail(text, position, "string without end")
        elseif char ~= "\\" then
            -- %c includes DEL, which JSON allows.
            if char ~= "\127" then
                fail(text, at, "control character in a string")
            end
            at = at + 1
        else
            at = text:match('^\\["\\/bfnrt]()', at) or text:match("^\\u%x%x%x%x()", at)
                or fail(text, at, "unknown escape in a string")
        end
    end
end

local function check_number(text, position)
    local at = text:match("^-?0()", position) or text:match("^-?[1-9]%d*()", position)
    if not at then
        return nil
    end
    at = text:match("^%.%d+()", at) or at
    at = text:match("^[eE][+-]?%d+()", at) or at
    if text:find("^[%w.]", at) then
        return nil
    end
    return at
end

local check_value

local function check_array(text, position, depth)
    local at = skip_space(text, position + 1)
    if text:sub(at, at) == "]" then
        return at + 1
    end
    while true do
        at = skip_space(text, check_value(text, at, depth + 1))
        local char <const> = text:sub(at, at)
        if char == "]" then
            return at + 1
        elseif char ~= "," then
            fail(text, at, 'expected "," or "]"')
        end
        at = skip_space(text, at + 1)
    end
end

local function check_key(text, at, seen)
    if text:sub(at, at) ~= '"' then
        fail(text, at, "expected a key in double quotes")
    end
    local after <const> = check_string(text, at)
    local key <const> = json.decode(text:sub(at, after - 1))
    if seen[key] then
        fail(text, at, ("key %s appears twice"):format(text:sub(at, after - 1)))
    end
    seen[key] = true
    return skip_space(text, after)
end

local function check_object(text, position, depth)
    local seen <const> = {}
    local at = skip_space(text, position + 1)
    if text:sub(at, at) == "}" then
        return at + 1
    end
    while true do
        at = check_key(text, at, seen)
        if text:sub(at, at) ~= ":" then
            fail(text, at, 'expected ":"')
        end
        at = skip_space(text, check_value(text, skip_space(text, at + 1), depth + 1))
        local char <const> = text:sub(at, at)
        if char == "}" then
            return at + 1
        elseif char ~= "," then
            fail(text, at, 'expected "," or "}"')
        end
        at = skip_space(text, at + 1)
    end
end

function check_value(text, position, depth)
    if depth > MAX_DEPTH then
        fail(text, position, ("nested more than %d deep"):format(MAX_DEPTH))
    end
    local char <const> = text:sub(position, position)
    if char == "{" then
        return check_object(text, position, depth)
    elseif char == "[" then
        return check_array(text, position, depth)
    elseif char == '"' then
        return check_string(text, position)
    elseif char == "" then
        fail(text, position, "value expected, but the text ends")
    end
    local word <const>, after_word = text:match("^(%a+)()", position)
    if word == "true" or word == "false" or word == "null" then
        return after_word
    end
    return check_number(text, position)
        or fail(text, position, "not a JSON value")
end

-- Decodes a whole text.
function M.decode(text)
    local ok <const>, problem = pcall(function()
        local at <const> = skip_space(text, check_value(text, skip_space(text, 1), 1))
        if at <= #text then
            fail(text, at, "text after the end of the value")
        end
    end)
    if not ok then
        if type(problem) ~= "table" then
            error(problem, 0)
        end
        return nil, problem.message
    end
    local value <const> = json.decode(text, 1, json.null, nil)
    return value
end

return M
