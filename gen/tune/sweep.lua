-- `attngen tune`: searches the plans of configs, a run for each config and ISA; keeps what wins.
--   input:  records and what the command line asks for (see execute)
--   output: tuning files for `emit`, a log, a page and T4 results for each run; rows for the table
-- The search itself is gen.tune.session's.
local build <const> = require("gen.bench.build")
local fs <const> = require("gen.fs")
local host <const> = require("gen.host")
local keys <const> = require("gen.keys")
local page <const> = require("gen.tune.page")
local search <const> = require("gen.tune.search")
local session <const> = require("gen.tune.session")
local space <const> = require("gen.tune.space")
local t4 <const> = require("gen.tune.t4")
local toolchain <const> = require("gen.toolchain")
local tuned <const> = require("gen.tuned")

local M = {}

local FIRST_PLANS <const> = 10

-- Seconds of samples a candidate; short budgets take fewer.
local SAMPLE_SECONDS <const>, SHORT_SAMPLE_SECONDS <const>, SHORT_BUDGET <const> = 0.2, 0.05, 30

----------------------------------------------------------------------------------------------------
-- What there is to do
----------------------------------------------------------------------------------------------------

local function with_isa(record, isa_name)
    local copy <const> = {}
    for key, value in pairs(record) do
        copy[key] = value
    end
    copy.isa, copy.tuning = { isa_name }, nil
    return copy
end

-- {record=, path=, isa=} of every config and ISA.
local function list_runs(variants)
    local runs <const> = {}
    for _, variant in ipairs(variants) do
        for _, isa_name in ipairs(variant.record.isa) do
            runs[#runs + 1] = { record = with_isa(variant.record, isa_name), path = variant.path,
                isa = isa_name }
        end
    end
    return runs
end

-- Names and versions of the compilers that build for an ISA, those of `wanted` in its order.
local function find_compilers(isa_name, wanted)
    local order <const>, versions <const>, reasons <const> = {}, {}, {}
    for _, name in ipairs(wanted or keys.compilers) do
        local compiler <const>, message = build.find_compiler(name, toolchain.arch_of(isa_name))
        if compiler then
            order[#order + 1] = name
            versions[name] = compiler.version
        elseif wanted then
            return nil, message
        else
            reasons[#reasons + 1] = message
        end
    end
    if #order == 0 then
        return nil, table.concat(reasons, "; ")
    end
    return order, versions
end

-- Nil, or why the kernels of an ISA cannot be measured here.
local function why_not(isa_name, runner)
    if runner then
        return nil
    end
    local how <const>, message = toolchain.how_to_run(isa_name)
    if how == "native" then
        return nil
    end
    return ("%s: %s; --runner names a command that runs it"):format(isa_name,
        message or "runs here under an emulator only, whose times mean nothing")
end

----------------------------------------------------------------------------------------------------
-- Dry run
----------------------------------------------------------------------------------------------------

-- An integer with thin groups: 346 104 000; a float as it is.
local function count_text(number)
    if math.type(number) ~= "integer" then
        return ("%.3g"):format(number)
    end
    local text, changed = ("%d"):format(number), 1
    while changed > 0 do
        text, changed = text:gsub("^(%d+)(%d%d%d)", "%1 %2")
    end
    return text
end

local function value_labels(dimension)
    local labels <const> = {}
    for index, value in ipairs(dimension.values) do
        labels[index] = value.label
    end
    return table.concat(labels, ", ")
end

-- First reason of every kind for which values were pruned.
local function pruned_lines(built)
    local lines <const> = {}
    for _, dimension in ipairs(built.dimensions) do
        local counts <const>, firsts <const> = {}, {}
        for _, value in ipairs(dimension.pruned) do
            counts[value.kind] = (counts[value.kind] or 0) + 1
            firsts[value.kind] = firsts[value.kind] or value
        end
        for _, kind in ipairs({ "illegal", "same", "hopeless" }) do
            if counts[kind] then
                lines[#lines + 1] = ("  %s: %d %s, such as %s: %s"):format(dimension.name,
                    counts[kind], kind, firsts[kind].label, firsts[kind].reason)
            end
        end
    end
    return lines
end

-- The size of a space and its first plans, as text.
function M.describe_space(built, strategy, seed)
    local lines <const> = { ("%s on %s: %s candidates"):format(built.record.name, built.isa,
        count_text(built.size)) }
    for _, dimension in ipairs(built.dimensions) do
        lines[#lines + 1] = ("  %s: %s"):format(dimension.name, value_labels(dimension))
    end
    lines[#lines + 1] = "pruned:"
    local pruned <const> = pruned_lines(built)
    table.move(pruned, 1, #pruned, #lines + 1, lines)
    lines[#lines + 1] = ("first plans (%s):"):format(strategy)
    local order <const> = search.new(strategy, built, seed or 1)
    local shown = 0
    while shown < FIRST_PLANS do
        local batch <const> = order:next(FIRST_PLANS - shown)
        if #batch == 0 then
            break
        end
        for _, candidate in ipairs(batch) do
            lines[#lines + 1] = "  " .. candidate.key
            order:tell(candidate, false)
        end
        shown = shown + #batch
    end
    return table.concat(lines, "\n") .. "\n"
end

----------------------------------------------------------------------------------------------------
-- One run
----------------------------------------------------------------------------------------------------

local function parameter_names(built)
    local seen <const>, names <const> = {}, {}
    for _, dimension in ipairs(built.dimensions) do
        for _, value in ipairs(dimension.values) do
            for name in pairs(value.set) do
                seen[name] = true
            end
        end
    end
    for name in pairs(seen) do
        names[#names + 1] = name
    end
    table.sort(names)
    return names
end

local function as_object(value)
    return next(value) and value or setmetatable({}, { __jsontype = "object" })
end

local function tuning_text(run, summary)
    return tuned.encode(run.record, run.isa, {
        plan = as_object(summary.plan), unroll = summary.set.unroll, level = summary.level,
        compiler = summary.compiler, compiler_version = summary.compiler_version,
        cpu = summary.cpu, best_us = summary.best_us, default_us = summary.default_us,
        openblas_us = summary.openblas_us, candidates = summary.tried,
    })
end

-- Where a run's log, page and T4 results go.
local function run_directory(run, options)
    return fs.join(options.work, ("%s-%s"):format(run.record.name, run.isa))
end

local function report_paths(run, options)
    local dir <const> = run_directory(run, options)
    return fs.join(dir, "report.html"), fs.join(dir, "t4.json")
end

local function tuning_path(run, options)
    return fs.join(options.tuned_dir(run.path), tuned.file_name(run.record, run.isa))
end

-- Writes everything a run leaves behind, the reports whatever becomes of the tuning file; true, or
-- nil and a message.
local function keep(run, options, summary)
    local page_path <const>, t4_path <const> = report_paths(run, options)
    local reported <const>, report_message = fs.write_all({
        { path = page_path, text = page.html(summary) },
        { path = t4_path, text = t4.encode(summary.entries, summary.parameters) },
    })
    summary.file, summary.page = tuning_path(run, options), page_path
    local ok <const>, message = fs.write_all({
        { path = summary.file, text = tuning_text(run, summary) } })
    if not ok then
        return nil, message .. "; --resume takes the results from the log"
    end
    return reported and true, report_message
end

local function tune_one(run, options, watcher)
    local order, versions = find_compilers(run.isa, options.compilers)
    if not order then
        return nil, versions
    end
    local summary, message, interrupted, bad_usage = session.run({
        record = run.record, root = options.root, dir = run_directory(run, options),
        build_dir = fs.join(options.work, "build"), watcher = watcher,
        compilers = versions, compiler_order = order, levels = keys.levels,
        cpu = options.cpu or options.runner and "the machine behind the runner"
            or host.current().cpu,
        host_isa = host.native_isa(), strategy = options.strategy, seed = options.seed,
        budget = options.budget, resume = options.resume, jobs = options.jobs,
        sample_seconds = options.budget < SHORT_BUDGET and SHORT_SAMPLE_SECONDS
            or SAMPLE_SECONDS,
        runner = options.runner, push = options.push,
        show = function(state) options.show(run, state) end,
    })
    if not summary then
        return nil, message, interrupted, bad_usage
    end
    summary.parameters = parameter_names(summary.space)
    local ok
    ok, message = keep(run, options, summary)
    if not ok then
        return nil, message, summary.interrupted
    end
    return summary, nil, summary.interrupted
end

-- Nil, or why what a run finds could not be written: nobody wants to learn that after the budget.
local function check_outputs(runs, options)
    local inputs <const> = {}
    for index, run in ipairs(runs) do
        inputs[index] = run.path
    end
    for _, run in ipairs(runs) do
        local problem <const> = fs.refuse_outputs({ tuning_path(run, options),
            report_paths(run, options) }, inputs)
        if problem then
            return problem
        end
    end
end

-- Nil, or what is wrong with a list of runs.
local function check_runs(runs, options)
    local seen <const> = {}
    for _, run in ipairs(runs) do
        local name <const> = run.record.name .. "-" .. run.isa
        if seen[name] then
            return ("two of the configs are called %s; give one of them another name"):format(
                run.record.name)
        end
        seen[name] = true
        local reason <const> = not options.dry_run and why_not(run.isa, options.runner)
        if reason then
            return reason
        end
    end
    return nil
end

local function describe_runs(runs, options)
    for _, run in ipairs(runs) do
        local order <const>, versions = find_compilers(run.isa, options.compilers)
        if not order then
            return nil, versions
        end
        local built <const>, refusal = space.build(run.record, { compilers = order,
            levels = keys.levels })
        options.print(built and M.describe_space(built, options.strategy, options.seed)
            or ("%s on %s: %s\n"):format(run.record.name, run.isa, refusal))
    end
    return {}
end

-- options:
--   variants           list of {record=, path=}
--   root               attngen's own files     work   directory of logs and builds
--   tuned_dir(path)    where the tuning files of a config go
--   budget, strategy, seed, resume, compilers (nil: all), runner, push, jobs
--   cpu                name of the CPU, where a runner hides it
--   dry_run            only describe the spaces
--   show(run, state)   progress             print(text)   data for the user
--   done(run, summary, message)             after each run
-- Returns a list of {run=, summary=, message=, bad_usage=}, and true when an interrupt cut it
-- short; or nil and a message for bad usage.
function M.execute(options)
    local runs <const> = list_runs(options.variants)
    local problem = check_runs(runs, options)
    if problem then
        return nil, problem
    elseif options.dry_run then
        return describe_runs(runs, options)
    end
    local locked
    locked, problem = fs.lock_directory(options.work)
    if not locked then
        return nil, problem
    end
    problem = check_outputs(runs, options)
    if problem then
        return nil, problem
    end
    local watcher
    watcher, problem = toolchain.find_watcher(options.root)
    if not watcher then
        return nil, problem
    end
    local results <const> = {}
    for _, run in ipairs(runs) do
        local summary <const>, message, interrupted, bad_usage = tune_one(run, options, watcher)
        results[#results + 1] = { run = run, summary = summary, message = message,
            bad_usage = bad_usage }
        options.done(run, summary, message)
        if interrupted then
            return results, true
        end
    end
    return results
end

----------------------------------------------------------------------------------------------------
-- The table
----------------------------------------------------------------------------------------------------

local function microseconds(value)
    return value and ("%.2f"):format(value) or "-"
end

-- One line a run.
function M.table_text(results)
    local rows <const> = { { "config", "ISA", "default us", "best us", "gain", "tried", "failed",
        "winner" } }
    for _, result in ipairs(results) do
        local run <const>, summary = result.run, result.summary
        if summary then
            rows[#rows + 1] = { run.record.name, run.isa, microseconds(summary.default_us),
                microseconds(summary.best_us), summary.default_us and ("%.3f"):format(
                    summary.default_us / summary.best_us) or "-", tostring(summary.tried),
                tostring(summary.failed), summary.is_default and "planner's default"
                    or summary.winner }
        else
            rows[#rows + 1] = { run.record.name, run.isa, "-", "-", "-", "-", "-",
                result.message }
        end
    end
    local widths <const> = {}
    for _, row in ipairs(rows) do
        for column, text in ipairs(row) do
            widths[column] = math.max(widths[column] or 0, #text)
        end
    end
    local lines <const> = {}
    for index, row in ipairs(rows) do
        local cells <const> = {}
        for column, text in ipairs(row) do
            local left <const> = column <= 2 or column == #row
            cells[column] = column == #row and text
                or ("%" .. (left and "-" or "") .. widths[column] .. "s"):format(text)
        end
        lines[index] = table.concat(cells, "  ")
    end
    return table.concat(lines, "\n") .. "\n"
end

return M
