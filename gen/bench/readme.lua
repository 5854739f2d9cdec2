-- The comparison table of the README.
--   input:  benchmark documents, one a CPU
--   output: Markdown

local statistics <const> = require("gen.bench.statistics")
local table_text <const> = require("gen.bench.table")

local M = {}

local function ratio_cell(ours, other)
    local times, slow
    if ours and other and not other.failure then
        times, slow = statistics.ratio(ours, other)
    end
    if not times then
        return "–"
    end
    local core <const> = other.core and " " .. other.core or ""
    return (slow and "(%.2f×)%s" or "%.2f×%s"):format(times, core)
end

local function shape_row(entry, opponents)
    local ours <const> = table_text.fastest(entry)
    if not ours then
        return ("| %s | %s |"):format(entry.id, (" – |"):rep(#opponents + 1) .. " –")
    end
    local is_good <const> = ours.best_us ~= nil
    local percent <const> = is_good and ours.percent_of_limit or ours.slow_percent_of_limit
    local cells <const> = { entry.id,
        (is_good and "%s" or "(%s)"):format(table_text.number(ours.best_us or ours.slow_best_us)),
        (is_good and "%.0f %% %s, %s %s" or "(%.0f %%) %s, %s %s"):format(percent, ours.limit,
            ours.isa, ours.compiler) }
    for _, opponent in ipairs(opponents) do
        cells[#cells + 1] = ratio_cell(ours, table_text.opponent(entry, opponent.key))
    end
    return "| " .. table.concat(cells, " | ") .. " |"
end

local function describe(document, link)
    local opponents <const> = table_text.find_opponents(document)
    local titles <const> = { "shape", "µs", "of the limit" }
    for _, opponent in ipairs(opponents) do
        titles[#titles + 1] = opponent.label
    end
    local peaks <const>, compilers <const> = {}, {}
    for index, rates in ipairs(document.machine.rates) do
        peaks[index] = ("%s %.0f GF/s"):format(rates.isa, rates.peak_gflops)
    end
    for index, compiler in ipairs(document.compilers) do
        compilers[index] = compiler.version
    end
    local lines <const> = {
        ("%s, one core; FMA peak %s; %s. [All figures](%s)"):format(document.machine.cpu,
            table.concat(peaks, ", "), table.concat(compilers, ", "), link),
        "",
        "| " .. table.concat(titles, " | ") .. " |",
        "|" .. ("---|"):rep(#titles),
    }
    for _, entry in ipairs(document.shapes) do
        if not entry.refused then
            lines[#lines + 1] = shape_row(entry, opponents)
        end
    end
    return table.concat(lines, "\n") .. "\n"
end

-- list: {document=, link= to its page} each.
function M.tables(list)
    if #list == 0 then
        return "No machine has been measured with this version yet: `make bench-record`.\n"
    end
    local parts <const> = {}
    for index, one in ipairs(list) do
        parts[index] = describe(one.document, one.link)
    end
    return table.concat(parts, "\n")
end

return M
