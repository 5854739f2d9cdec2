-- Charts as SVG text: a drawing that grows by shapes, and logarithmic axes.
--   input:  numbers and words
--   output: text for an HTML page; colours come from the page's own style

local M = {}

local Drawing <const> = {}
Drawing.__index = Drawing

-- Text between tags or in attributes.
function M.escape(text)
    return (tostring(text):gsub("[&<>\"]", { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;",
        ['"'] = "&quot;" }))
end

function M.new(width, height, title)
    return setmetatable({ parts = { ('<svg viewBox="0 0 %d %d" role="img" aria-label="%s">\n')
        :format(width, height, M.escape(title)) } }, Drawing)
end

function Drawing:add(format, ...)
    self.parts[#self.parts + 1] = format:format(...) .. "\n"
end

function Drawing:line(x1, y1, x2, y2, class)
    self:add('<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" class="%s"/>', x1, y1, x2, y2, class)
end

-- anchor: start, middle or end.
function Drawing:text(x, y, text, anchor, class)
    self:add('<text x="%.1f" y="%.1f" text-anchor="%s" class="%s">%s</text>', x, y,
        anchor or "start", class or "", M.escape(text))
end

-- `tip` shows when the pointer rests on it.
function Drawing:circle(x, y, radius, class, tip)
    self:add('<circle cx="%.1f" cy="%.1f" r="%.1f" class="%s"><title>%s</title></circle>', x, y,
        radius, class, M.escape(tip))
end

function Drawing:rect(x, y, width, height, class, tip)
    self:add('<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" class="%s"><title>%s</title>'
        .. "</rect>", x, y, width, height, class, M.escape(tip))
end

function Drawing:finish()
    return table.concat(self.parts) .. "</svg>\n"
end

-- A scale from values to coordinates, both logarithmic: at(value), and ticks at powers of `base`.
function M.log_scale(low, high, from, to, base)
    local span <const> = math.log(high / low)
    local scale <const> = {}
    function scale.at(value)
        return from + (to - from) * math.log(value / low) / span
    end
    function scale.ticks()
        local values <const> = {}
        local power = math.ceil(math.log(low, base) - 1e-9)
        while base ^ power <= high * (1 + 1e-9) do
            values[#values + 1] = base ^ power
            power = power + 1
        end
        return values
    end
    return scale
end

return M
