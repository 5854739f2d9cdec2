-- A benchmark document as text for a terminal: one line a kernel, one a library.
--   input:  document (gen.bench.session)
--   output: text

local blas <const> = require("gen.bench.blas")
local statistics <const> = require("gen.bench.statistics")

local M = {}

-- 1234567.8 -> "1234568", 0.15123 -> "0.151": four digits that count, no exponent.
function M.number(value)
    if not value then
        return "-"
    elseif value >= 1000 then
        return ("%.0f"):format(value)
    end
    local digits <const> = value >= 100 and 1 or value >= 10 and 2 or 3
    return ("%." .. digits .. "f"):format(value)
end

local function bytes(value)
    if not value then
        return "-"
    elseif value < 10000 then
        return ("%d B"):format(math.tointeger(value) or value // 1)
    elseif value < 1e7 then
        return ("%.0f KiB"):format(value / 1024)
    end
    return ("%.1f MiB"):format(value / 1048576)
end

-- "94.1 peak", "80.2 bandwidth"; of the slow state in parentheses.
local function share(result)
    if result.percent_of_limit then
        return ("%.1f %s"):format(result.percent_of_limit, result.limit)
    elseif result.slow_percent_of_limit then
        return ("(%.1f) %s"):format(result.slow_percent_of_limit, result.limit)
    end
    return "-"
end

local function has_setting(result, wanted)
    for _, setting in ipairs(result.settings or {}) do
        if setting == wanted then
            return true
        end
    end
    return false
end

local OPENBLAS <const> = { packaged = "OpenBLAS as packaged", fastest = "OpenBLAS, fastest core" }

-- The results of other implementations that a kernel of this document is compared with: label and
-- result, in the order of the document.
function M.find_opponents(document)
    local labels <const>, seen <const> = {}, {}
    local function add(label, key)
        if not seen[key] then
            seen[key] = true
            labels[#labels + 1] = { label = label, key = key }
        end
    end
    for _, entry in ipairs(document.shapes) do
        for _, result in ipairs(entry.results) do
            if result.subject == "openblas" then
                for _, setting in ipairs(result.settings or {}) do
                    if OPENBLAS[setting] then
                        add(OPENBLAS[setting], "openblas " .. setting)
                    end
                end
            elseif result.subject ~= "attngen" then
                add(result.label or result.subject, result.subject)
            end
        end
    end
    return labels
end

-- The result of an opponent for one shape, or nil.
function M.opponent(entry, key)
    for _, result in ipairs(entry.results) do
        if result.subject == key or (result.subject == "openblas"
            and has_setting(result, key:match("^openblas (%a+)$"))) then
            return result
        end
    end
end

-- The fastest kernel of a shape, in the good state if any was measured there; or nil.
function M.fastest(entry)
    local best
    for _, key in ipairs({ "best_us", "slow_best_us" }) do
        for _, result in ipairs(entry.results) do
            if result.subject == "attngen" and not result.failure and result[key]
                and (not best or (best[key] and result[key] < best[key])) then
                best = result
            end
        end
        if best then
            return best
        end
    end
end

local function ratio_text(result, other)
    if not other or other.failure then
        return "-"
    end
    local times <const>, slow <const> = statistics.ratio(result, other)
    return times and (slow and "(%.2fx)" or "%.2fx"):format(times) or "-"
end

local function time_text(result, key)
    if result[key] then
        return M.number(result[key])
    elseif result["slow_" .. key] then
        return "(" .. M.number(result["slow_" .. key]) .. ")"
    end
    return "-"
end

local function who(result)
    if result.subject == "attngen" then
        return ("%s %s"):format(result.isa, result.compiler)
    elseif result.subject == "openblas" then
        local core <const> = result.core and " " .. result.core or ""
        return ("OpenBLAS%s (%s)"):format(core, table.concat(result.settings or {}, ", "))
    end
    return result.label or result.subject
end

local function cells(entry, result)
    local is_ours <const> = result.subject == "attngen"
    local packaged <const> = is_ours and M.opponent(entry, "openblas packaged")
    local fastest <const> = is_ours and M.opponent(entry, "openblas fastest")
    return { entry.id, who(result), time_text(result, "best_us"), time_text(result, "median_us"),
        share(result), is_ours and ratio_text(result, packaged) or "",
        is_ours and ratio_text(result, fastest) or "",
        result.max_error and ("%.1e"):format(result.max_error) or "-",
        is_ours and bytes(result.packed_bytes) or "",
        is_ours and bytes(result.workspace_bytes) or "",
        is_ours and bytes(result.code_bytes) or "",
        is_ours and M.number(result.compile_seconds) or "", M.number(result.first_call_us),
        M.number(result.cold_best_us), ("%d/%d/%d"):format(result.good_samples or 0,
            result.slow_samples or 0, result.disturbed_samples or 0) }
end

local HEADER <const> = { "shape", "what", "best us", "median", "% of", "x packaged", "x fastest",
    "max error", "packed", "workspace", "code", "compile s", "first us", "cold us",
    "good/slow/disturbed" }
local LEFT <const> = { true, true }

local function render(rows)
    local widths <const> = {}
    for _, row in ipairs(rows) do
        for column, cell in ipairs(row) do
            widths[column] = math.max(widths[column] or 0, utf8.len(cell) or #cell)
        end
    end
    local lines <const> = {}
    for index, row in ipairs(rows) do
        local padded <const> = {}
        for column, cell in ipairs(row) do
            local fill <const> = (" "):rep(widths[column] - (utf8.len(cell) or #cell))
            padded[column] = LEFT[column] and cell .. fill or fill .. cell
        end
        lines[index] = (table.concat(padded, "  "):gsub("%s+$", ""))
    end
    return table.concat(lines, "\n") .. "\n"
end

-- What was measured on and with, one line each.
function M.machine_lines(document)
    local lines <const> = { "CPU: " .. document.machine.cpu }
    for _, rates in ipairs(document.machine.rates) do
        lines[#lines + 1] = ("%s: FMA peak %.1f GF/s, L1-hot product %.1f GF/s"):format(rates.isa,
            rates.peak_gflops, rates.product_gflops)
    end
    for _, compiler in ipairs(document.compilers) do
        lines[#lines + 1] = ("%s: %s"):format(compiler.name, compiler.version)
    end
    local seen <const> = {}
    for _, entry in ipairs(document.shapes) do
        for _, result in ipairs(entry.results) do
            if result.blas_library and not seen[result.blas_library] then
                seen[result.blas_library] = true
                lines[#lines + 1] = ("%s: %s"):format(blas.short_name(result.blas_library),
                    result.blas_library)
            end
        end
    end
    return lines
end

local function core_lines(document)
    local lines <const>, seen <const> = {}, {}
    for _, entry in ipairs(document.shapes) do
        for _, rejected in ipairs(entry.rejected_cores or {}) do
            local line <const> = ("OpenBLAS core %s not used: %s"):format(rejected.core,
                rejected.reason)
            if not seen[line] then
                seen[line] = true
                lines[#lines + 1] = line
            end
        end
    end
    return lines
end

-- The table as rows of cells, its header first, and the lines that belong below it.
function M.rows(document)
    local rows <const>, notes <const>, has_slow, has_none = { HEADER }, {}, false, false
    for _, entry in ipairs(document.shapes) do
        if entry.refused then
            notes[#notes + 1] = ("%s: refused: %s"):format(entry.id, entry.refused)
        end
        for _, result in ipairs(entry.results) do
            if result.failure then
                notes[#notes + 1] = ("%s, %s: %s: %s"):format(entry.id, who(result),
                    result.failure.kind, result.failure.message)
            else
                has_slow = has_slow or (not result.best_us and result.slow_best_us)
                has_none = has_none or not (result.best_us or result.slow_best_us)
                rows[#rows + 1] = cells(entry, result)
            end
        end
    end
    if has_slow then
        notes[#notes + 1] = "(…): the machine was never in its good state, this is the slow one "
            .. "(docs/benchmarking.md)"
    end
    if has_none then
        notes[#notes + 1] = "-: another program had the core, fewer than five samples are good"
    end
    table.move(core_lines(document), 1, 1 << 10, #notes + 1, notes)
    return rows, notes
end

function M.describe(document)
    local rows <const>, notes <const> = M.rows(document)
    local parts <const> = { table.concat(M.machine_lines(document), "\n") .. "\n", render(rows) }
    if #notes > 0 then
        parts[#parts + 1] = table.concat(notes, "\n") .. "\n"
    end
    return table.concat(parts, "\n")
end

return M
