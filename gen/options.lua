-- Converters for the options of several verbs.
--   input:  the text a user gave
--   output: a number, a list of names, the words of a command; or nil and what is wrong with it
-- Knows what every option of a kind may be, not what it is for.

local host <const> = require("gen.host")
local toolchain <const> = require("gen.toolchain")

local M = {}

local function contains(list, value)
    for _, one in ipairs(list) do
        if one == value then
            return true
        end
    end
    return false
end

-- A list out of `allowed`, with commas, each name once.
function M.list_of(option, allowed)
    return function(text)
        local names <const> = {}
        for name in (text .. ","):gmatch("([^,]*),") do
            if not contains(allowed, name) then
                return nil, ("%s: there is no '%s' (allowed: %s, or several with commas)"):format(
                    option, name, table.concat(allowed, ", "))
            elseif contains(names, name) then
                return nil, ("%s: '%s' is there twice"):format(option, name)
            end
            names[#names + 1] = name
        end
        return names
    end
end

function M.number(option, low, high)
    return function(text)
        local number <const> = tonumber(text)
        if not number or not (number >= low and number <= high) then
            return nil, ("%s takes a number from %g to %g, got '%s'"):format(option, low, high,
                text)
        end
        return number
    end
end

function M.whole_number(option, low, high)
    return function(text)
        local number <const> = math.tointeger(tonumber(text))
        if not number or number < low or number > high then
            return nil, ("%s takes a whole number from %d to %d, got '%s'"):format(option, low,
                high, text)
        end
        return number
    end
end

-- An empty path would be the current directory, most likely an unset variable.
function M.path(option)
    return function(text)
        if text == "" then
            return nil, option .. " takes a path, got ''"
        end
        return text
    end
end

-- A command whose program is here, as words.
function M.command(option)
    return function(text)
        local words <const> = toolchain.split_words(text)
        if #words == 0 then
            return nil, ("%s takes a command, got '%s'"):format(option, text)
        elseif not toolchain.find_program(words[1]) then
            return nil, ("%s: there is no program '%s'"):format(option, words[1])
        end
        return words
    end
end

-- Nil, or what is wrong about where programs are to run: {runner=, push=, cpu= (a core)}.
function M.refuse_place(options)
    if options.push and not options.runner then
        return "--push needs a --runner that runs what was copied"
    end
    local cores <const> = host.current().cores
    local core <const> = not options.runner and math.type(options.cpu) == "integer"
        and options.cpu or nil
    if core and #cores > 0 and not contains(cores, core) then
        return ("--cpu %d: this machine has no such core (allowed: %s)"):format(core,
            table.concat(cores, ", "))
    end
end

return M
