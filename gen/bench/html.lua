-- A benchmark document as one HTML page with SVG charts, nothing to load beside it.
--   input:  document (gen.bench.session, or peers' columns in the same form), the page's skeleton
--   output: text

local statistics <const> = require("gen.bench.statistics")
local svg <const> = require("gen.bench.svg")
local table_text <const> = require("gen.bench.table")
local template <const> = require("gen.template")

local M = {}

local escape <const> = svg.escape

local COLORS <const> = 8 -- classes c1 to c8 of the skeleton

local function flops_of(entry)
    return entry.flops.projections + entry.flops.core
end

-- Best time, of the good state where there is one.
local function best_time(result)
    return result.best_us or result.slow_best_us
end

----------------------------------------------------------------------------------------------------
-- Ratios
----------------------------------------------------------------------------------------------------

local ROW <const>, GAP <const>, LEFT <const>, WIDTH <const> = 13, 10, 90, 980

local function collect_ratios(document)
    local opponents <const>, groups <const>, largest = table_text.find_opponents(document), {}, 2
    for _, entry in ipairs(document.shapes) do
        local ours <const> = table_text.fastest(entry)
        local bars <const> = {}
        for index, opponent in ipairs(opponents) do
            local other <const> = table_text.opponent(entry, opponent.key)
            local times, slow
            if ours and other and not other.failure then
                times, slow = statistics.ratio(ours, other)
            end
            if times then
                bars[#bars + 1] = { times = times, slow = slow, color = (index - 1) % COLORS + 1,
                    label = opponent.label }
                largest = math.max(largest, times)
            end
        end
        if #bars > 0 then
            groups[#groups + 1] = { id = entry.id, bars = bars }
        end
    end
    return groups, opponents, largest
end

local function draw_legend(drawing, opponents)
    local x, y = LEFT, 12
    for index, opponent in ipairs(opponents) do
        local width <const> = 34 + 6.6 * #opponent.label
        if x + width > WIDTH then
            x, y = LEFT, y + 16
        end
        drawing:rect(x, y - 9, 10, 10, "c" .. (index - 1) % COLORS + 1, opponent.label)
        drawing:text(x + 14, y, opponent.label)
        x = x + width
    end
    return y + 14
end

function M.ratio_chart(document)
    local groups <const>, opponents <const>, largest = collect_ratios(document)
    if #groups == 0 then
        return "<p>No comparison: no library was measured.</p>\n"
    end
    local height = 60 + 16 * (#opponents // 4)
    for _, group in ipairs(groups) do
        height = height + ROW * #group.bars + GAP
    end
    local drawing <const> = svg.new(WIDTH, height, "Speed against each library")
    local top <const> = draw_legend(drawing, opponents)
    local scale <const> = svg.log_scale(0.5, largest * 1.15, LEFT, WIDTH - 60, 2)
    for _, tick in ipairs(scale.ticks()) do
        drawing:line(scale.at(tick), top, scale.at(tick), height - 18, tick == 1 and "axis"
            or "grid")
        drawing:text(scale.at(tick), height - 4, ("%gx"):format(tick), "middle", "soft")
    end
    local y = top + 6
    for _, group in ipairs(groups) do
        drawing:text(LEFT - 8, y + ROW * #group.bars / 2 + 3, group.id, "end")
        for _, bar in ipairs(group.bars) do
            local one <const>, x = scale.at(1), scale.at(math.max(bar.times, 0.5))
            local label <const> = (bar.slow and "(%.2f)" or "%.2f"):format(bar.times)
            drawing:rect(math.min(one, x), y, math.max(math.abs(x - one), 1), ROW - 3,
                "c" .. bar.color, ("%s, %s: %s"):format(group.id, bar.label, label))
            drawing:text(math.max(one, x) + 4, y + ROW - 4, label, "start", "soft")
            y = y + ROW
        end
        y = y + GAP
    end
    return drawing:finish()
end

----------------------------------------------------------------------------------------------------
-- Roofline
----------------------------------------------------------------------------------------------------

local function collect_points(document)
    local points <const> = {}
    for _, entry in ipairs(document.shapes) do
        local function add(result, class, label)
            local time <const> = result and not result.failure and best_time(result)
            if time and result.traffic_bytes then
                points[#points + 1] = { class = class, id = label,
                    tip = ("%s, %s: %.1f GF/s"):format(entry.id, result.isa or result.core or
                        result.subject, flops_of(entry) / time * 1e-3),
                    x = flops_of(entry) / result.traffic_bytes,
                    y = flops_of(entry) / time * 1e-3 }
            end
        end
        add(table_text.fastest(entry), "ours", entry.id)
        add(table_text.opponent(entry, "openblas fastest"), "theirs", nil)
    end
    return points
end

-- Load bandwidths worth a line: out of the first level, and out of the largest buffer.
local function pick_loads(rates)
    return { rates.load[1], rates.load[#rates.load // 2 + 1], rates.load[#rates.load] }
end

local function size_text(bytes)
    return bytes < 1048576 and ("%d KiB"):format(bytes // 1024)
        or ("%d MiB"):format(bytes // 1048576)
end

-- Labels of near points would cover each other: the next one moves down.
local function place_labels(drawing, labels)
    table.sort(labels, function(a, b)
        return a.y < b.y or (a.y == b.y and a.text < b.text)
    end)
    local placed <const> = {}
    for _, label in ipairs(labels) do
        local y = label.y
        for _, other in ipairs(placed) do
            if math.abs(other.x - label.x) < 55 and math.abs(other.y - y) < 11 then
                y = other.y + 11
            end
        end
        placed[#placed + 1] = { x = label.x, y = y }
        drawing:text(label.x, y, label.text)
    end
end

function M.roofline(document)
    local points <const>, rates = collect_points(document), document.machine.rates
    if #points == 0 or #rates == 0 then
        return "<p>Nothing was measured.</p>\n"
    end
    rates = rates[#rates]
    local low_x, high_x, low_y = math.huge, 1, math.huge
    for _, point in ipairs(points) do
        low_x, high_x = math.min(low_x, point.x), math.max(high_x, point.x)
        low_y = math.min(low_y, point.y)
    end
    local height <const>, bottom <const> = 460, 420
    local peak <const> = rates.peak_gflops
    local x <const> = svg.log_scale(low_x / 2, high_x * 3, 60, WIDTH - 20, 2)
    local y <const> = svg.log_scale(math.min(low_y / 1.5, peak / 4), peak * 1.6, bottom, 20, 2)
    local drawing <const> = svg.new(WIDTH, height, "Roofline")
    for _, tick in ipairs(x.ticks()) do
        drawing:line(x.at(tick), 20, x.at(tick), bottom, "grid")
        drawing:text(x.at(tick), bottom + 16, ("%g"):format(tick), "middle", "soft")
    end
    for _, tick in ipairs(y.ticks()) do
        drawing:line(60, y.at(tick), WIDTH - 20, y.at(tick), "grid")
        drawing:text(54, y.at(tick) + 4, ("%g"):format(tick), "end", "soft")
    end
    drawing:text(WIDTH - 20, height - 8, "flops for each byte read", "end", "soft")
    drawing:text(60, 14, "GF/s", "start", "soft")
    local lowest <const> = math.min(low_y / 1.5, peak / 4)
    for _, load in ipairs(pick_loads(rates)) do
        local gbytes <const> = load.gbytes_per_s
        local from <const> = math.max(low_x / 2, lowest / gbytes)
        local to <const> = math.min(peak / gbytes, high_x * 3)
        if from < to then -- else all shapes lie right of where it meets the peak
            drawing:line(x.at(from), y.at(from * gbytes), x.at(to), y.at(to * gbytes), "roof")
            drawing:text(x.at(from) + 14, y.at(from * gbytes) + 4, ("%.0f GB/s (%s)"):format(
                gbytes, size_text(load.bytes)), "start", "soft")
        end
    end
    drawing:line(60, y.at(peak), WIDTH - 20, y.at(peak), "roof")
    drawing:text(WIDTH - 24, y.at(peak) - 6, ("FMA peak %.1f GF/s (%s)"):format(peak, rates.isa),
        "end", "soft")
    local labels <const> = {}
    for _, point in ipairs(points) do
        drawing:circle(x.at(point.x), y.at(point.y), 4, point.class, point.tip)
        if point.id then
            labels[#labels + 1] = { x = x.at(point.x) + 7, y = y.at(point.y) + 4,
                text = point.id }
        end
    end
    place_labels(drawing, labels)
    return drawing:finish()
end

----------------------------------------------------------------------------------------------------
-- Page
----------------------------------------------------------------------------------------------------

local function rows_to_html(rows)
    local lines <const> = { "<table>" }
    for index, row in ipairs(rows) do
        local tag <const>, cells = index == 1 and "th" or "td", {}
        for column, cell in ipairs(row) do
            cells[column] = ("<%s>%s</%s>"):format(tag, escape(cell), tag)
        end
        lines[#lines + 1] = "<tr>" .. table.concat(cells) .. "</tr>"
    end
    lines[#lines + 1] = "</table>"
    return table.concat(lines, "\n")
end

local function list_html(lines)
    local items <const> = {}
    for index, line in ipairs(lines) do
        items[index] = "<li>" .. escape(line) .. "</li>"
    end
    return #items > 0 and "<ul>\n" .. table.concat(items, "\n") .. "\n</ul>" or ""
end

-- `skeleton` is the text of templates/bench.html.in.
function M.render(document, skeleton)
    local rows <const>, notes <const> = table_text.rows(document)
    return template.fill("bench.html.in", skeleton, {
        title = escape("attngen on " .. document.machine.cpu),
        machine = list_html(table_text.machine_lines(document)),
        ratios = M.ratio_chart(document),
        roofline = M.roofline(document),
        table = rows_to_html(rows),
        notes = list_html(notes),
    })
end

return M
