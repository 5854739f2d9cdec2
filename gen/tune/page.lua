-- A tuning run as one HTML page with SVG charts and no scripts.
--   input:  the summary of a run (gen.tune.session)
--   output: HTML text
-- The winner beside the planner's default and OpenBLAS; the landscape: every candidate in the order
-- it was tried; failures; the space. Decides nothing.
local M = {}

local WIDTH <const>, HEIGHT <const> = 880, 300
local LEFT <const>, RIGHT <const>, TOP <const>, BOTTOM <const> = 70, 20, 20, 40

-- Room for what bars are called, and for their numbers.
local BAR_LEFT <const>, BAR_RIGHT <const> = 240, 170

local STYLE <const> = [[
body { font: 15px/1.5 system-ui, sans-serif; max-width: 960px; margin: 2em auto; padding: 0 1em;
       color: #1c1e21; background: #fff; }
h1 { font-size: 1.5em; } h2 { font-size: 1.15em; margin-top: 2em; }
table { border-collapse: collapse; } td, th { padding: .2em .8em; text-align: left;
       border-bottom: 1px solid #ddd; } td.n, th.n { text-align: right;
       font-variant-numeric: tabular-nums; }
svg { max-width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: #444; }
code { font-size: .9em; } .dim { color: #667; }
]]

local function escape(text)
    return (tostring(text):gsub("[&<>\"]", { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;",
        ['"'] = "&quot;" }))
end

local function microseconds(value)
    return value and (value < 100 and "%.2f" or "%.0f"):format(value) or "–"
end

----------------------------------------------------------------------------------------------------
-- Charts
----------------------------------------------------------------------------------------------------

-- Round steps for an axis from low to high: about `count` of them.
local function ticks(low, high, count)
    local raw <const> = (high - low) / count
    local power <const> = 10.0 ^ math.floor(math.log(raw, 10))
    local step = 10 * power
    for _, factor in ipairs({ 1, 2, 5 }) do
        if factor * power >= raw then
            step = factor * power
            break
        end
    end
    local list <const> = {}
    for index = math.ceil(low / step), math.floor(high / step) do
        list[#list + 1] = index * step
    end
    return list
end

-- An empty chart with a vertical axis from low to high microseconds.
local function new_chart(low, high)
    local chart <const> = { parts = {} }
    function chart.y(value)
        local share <const> = (math.min(value, high) - low) / (high - low)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
    end
    function chart.put(format, ...)
        chart.parts[#chart.parts + 1] = format:format(...)
    end
    function chart.level(value, color, label)
        chart.put('<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="%s" stroke-dasharray="5 4"/>',
            LEFT, WIDTH - RIGHT, chart.y(value), chart.y(value), color)
        chart.put('<text x="%d" y="%.1f" text-anchor="end" style="fill:%s">%s</text>',
            WIDTH - RIGHT, chart.y(value) - 4, color, escape(label))
    end
    function chart.text(label)
        return ('<svg viewBox="0 0 %d %d" role="img" aria-label="%s">\n%s\n</svg>'):format(WIDTH,
            HEIGHT, escape(label), table.concat(chart.parts, "\n"))
    end
    for _, tick in ipairs(ticks(low, high, 5)) do
        chart.put('<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="#e4e6ea"/>', LEFT,
            WIDTH - RIGHT, chart.y(tick), chart.y(tick))
        chart.put('<text x="%d" y="%.1f" text-anchor="end">%.6g</text>', LEFT - 8,
            chart.y(tick) + 4, tick)
    end
    chart.put('<text x="12" y="%d" transform="rotate(-90 12 %d)" text-anchor="middle">µs</text>',
        HEIGHT // 2, HEIGHT // 2)
    return chart
end

local function measured(entries)
    local list <const>, number = {}, 0
    for _, entry in ipairs(entries) do
        if entry.type == "result" then
            number = number + 1
            if entry.status == "ok" then
                list[#list + 1] = { number = number, us = entry.best_us, entry = entry }
            end
        end
    end
    return list, number
end

local function quantile(points, share)
    local sorted <const> = {}
    for index, point in ipairs(points) do
        sorted[index] = point.us
    end
    table.sort(sorted)
    return sorted[math.max(1, math.ceil(share * #sorted))]
end

-- Every candidate where it was tried; slow ones end at the upper edge, so that the good ones can be
-- told apart.
local function landscape(summary)
    local points <const>, count = measured(summary.entries)
    local low = math.min(points[1].us, summary.best_us)
    local high = math.max(quantile(points, 0.95), summary.default_us or 0.0)
    for _, point in ipairs(points) do
        low = math.min(low, point.us)
    end
    high = high + 0.08 * (high - low) + 1e-3 * high
    low = math.max(0.0, low - 0.08 * (high - low))
    local chart <const> = new_chart(low, high)
    local span <const> = WIDTH - LEFT - RIGHT
    local best = math.huge
    local line <const> = {}
    for _, point in ipairs(points) do
        local x <const> = LEFT + span * (point.number - 0.5) / count
        chart.put('<circle cx="%.1f" cy="%.1f" r="4" fill="%s" fill-opacity=".65"><title>%s: %s µs'
            .. '</title></circle>', x, chart.y(point.us),
            point.entry.compiler == "clang" and "#c2570c" or "#1d66b8",
            escape(point.entry.key), microseconds(point.us))
        if point.us < best then
            if #line > 0 then
                line[#line + 1] = ("%.1f,%.1f"):format(x, chart.y(best))
            end
            best = point.us
        end
        line[#line + 1] = ("%.1f,%.1f"):format(x, chart.y(best))
    end
    chart.put('<polyline points="%s" fill="none" stroke="#444" stroke-width="1.5"/>',
        table.concat(line, " "))
    if summary.default_us then
        chart.level(summary.default_us, "#2a7d2a", "planner's default")
    end
    if summary.openblas_us and summary.openblas_us < high then
        chart.level(summary.openblas_us, "#9333a8", "OpenBLAS")
    end
    chart.put('<text x="%d" y="%d" text-anchor="middle">candidates in the order they were tried '
        .. '(blue: gcc, orange: clang; line: best so far)</text>', (LEFT + WIDTH) // 2, HEIGHT - 8)
    return chart.text("Time of every candidate")
end

local function bars(summary)
    local rows <const> = { { "winner", summary.best_us, "#1d66b8" } }
    if summary.default_us then
        rows[2] = { "planner's default", summary.default_us, "#2a7d2a" }
    end
    if summary.openblas_us then
        rows[#rows + 1] = { summary.openblas or "OpenBLAS", summary.openblas_us, "#9333a8" }
    end
    local most = 0.0
    for _, row in ipairs(rows) do
        most = math.max(most, row[2])
    end
    local parts <const> = {}
    for index, row in ipairs(rows) do
        local y <const> = (index - 1) * 34
        local length <const> = (WIDTH - BAR_LEFT - BAR_RIGHT) * row[2] / most
        parts[#parts + 1] = ('<text x="%d" y="%d" text-anchor="end">%s</text>'):format(
            BAR_LEFT - 10, y + 20, escape(row[1]))
        parts[#parts + 1] = ('<rect x="%d" y="%d" width="%.1f" height="22" fill="%s"/>'):format(
            BAR_LEFT, y + 5, length, row[3])
        parts[#parts + 1] = ('<text x="%.1f" y="%d">%s µs (%.2f×)</text>'):format(
            BAR_LEFT + 8 + length, y + 20, microseconds(row[2]), row[2] / summary.best_us)
    end
    return ('<svg viewBox="0 0 %d %d" role="img" aria-label="Comparison">\n%s\n</svg>'):format(
        WIDTH, #rows * 34 + 4, table.concat(parts, "\n"))
end

----------------------------------------------------------------------------------------------------
-- Tables
----------------------------------------------------------------------------------------------------

local function top_table(summary)
    local points <const> = measured(summary.entries)
    table.sort(points, function(a, b)
        return a.us < b.us or a.us == b.us and a.number < b.number
    end)
    local rows <const> = {}
    for index = 1, math.min(10, #points) do
        local point <const> = points[index]
        rows[index] = ('<tr><td class="n">%d</td><td class="n">%s</td><td class="n">%s</td>'
            .. '<td><code>%s</code></td></tr>'):format(point.number, microseconds(point.us),
            microseconds(point.entry.median_us), escape(point.entry.key))
    end
    return '<table><tr><th class="n">#</th><th class="n">best µs</th><th class="n">median µs</th>'
        .. "<th>candidate</th></tr>\n" .. table.concat(rows, "\n") .. "</table>"
end

local function failure_table(summary)
    if #summary.failures == 0 then
        return "<p>None.</p>"
    end
    local rows <const> = {}
    for index, failure in ipairs(summary.failures) do
        rows[index] = ('<tr><td class="n">%d</td><td>%s</td><td><code>%s</code></td></tr>'):format(
            failure.count, escape(failure.status), escape(failure.message))
    end
    return '<table><tr><th class="n">count</th><th>what</th><th>first message</th></tr>\n'
        .. table.concat(rows, "\n") .. "</table>"
end

local function dimension_table(summary)
    local rows <const> = {}
    for index, dimension in ipairs(summary.dimensions) do
        rows[index] = ('<tr><td>%s</td><td class="n">%d</td><td class="n">%d</td><td class="n">%d'
            .. '</td><td class="n">%d</td><td>%s</td></tr>'):format(escape(dimension.name),
            dimension.values, dimension.illegal, dimension.same, dimension.hopeless,
            escape(dimension.winner))
    end
    return '<table><tr><th>dimension</th><th class="n">values</th><th class="n">illegal</th>'
        .. '<th class="n">same code</th><th class="n">hopeless</th><th>winner</th></tr>\n'
        .. table.concat(rows, "\n") .. "</table>"
end

-- summary: see gen.tune.session.
function M.html(summary)
    local default = "the planner's default did not run"
    if summary.default_us then
        default = ("the planner's default takes %s µs (%.3f×)"):format(
            microseconds(summary.default_us), summary.default_us / summary.best_us)
    end
    local parts <const> = {
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">",
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">",
        ("<title>Tuning %s for %s</title><style>\n%s</style></head><body>"):format(
            escape(summary.name), escape(summary.isa), STYLE),
        ("<h1>%s on %s</h1>"):format(escape(summary.name), escape(summary.isa)),
        ("<p>%s, %s; strategy %s, %d of %s candidates tried, ended because %s.</p>"):format(
            escape(summary.cpu), escape(summary.generator), escape(summary.strategy),
            summary.tried, escape(summary.size), escape(summary.reason)),
        ("<p>Winner: <code>%s</code>, %s µs; %s.</p>"):format(escape(summary.winner),
            microseconds(summary.best_us), default),
        "<h2>Winner, default, OpenBLAS</h2>", bars(summary),
        "<h2>Landscape</h2>", landscape(summary),
        "<h2>Best candidates</h2>", top_table(summary),
        "<h2>Failures</h2>", failure_table(summary),
        "<h2>Space</h2>", dimension_table(summary),
        "</body></html>\n",
    }
    return table.concat(parts, "\n")
end

return M
