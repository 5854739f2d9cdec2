-- Fills file skeletons: `$(field)` is replaced by a text field. A line that is nothing but a field
-- takes the field's lines as they are, and disappears when the field is empty. Errors name the
-- template's line. Templates hold no numbers and no logic.
local template <const> = {}

-- Returns `text` with its fields replaced; `name` is for messages.
function template.fill(name, text, fields)
    local out <const>, number = {}, 0
    local function lookup(field)
        local value <const> = fields[field]
        if value == nil then error(("%s:%d: no field '%s'"):format(name, number, field), 0) end
        return tostring(value)
    end
    for line in (text:gsub("\n$", "") .. "\n"):gmatch("(.-)\n") do
        number = number + 1
        local only <const> = line:match("^%s*%$%(([%w_]+)%)$")
        if only then
            local value <const> = lookup(only)
            if value ~= "" then out[#out + 1] = (value:gsub("\n+$", "")) end
        else
            out[#out + 1] = (line:gsub("%$%(([%w_]+)%)", lookup))
        end
    end
    return table.concat(out, "\n") .. "\n"
end

return template
