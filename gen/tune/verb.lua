-- The command line of `attngen tune`: its options, its progress line, its table.
--   input:  parsed options, and what every verb shares (see M.run)
--   output: text on stdout and stderr; nil, or {code=, message=} to end with
local host <const> = require("gen.host")
local keys <const> = require("gen.keys")
local option <const> = require("gen.options")
local search <const> = require("gen.tune.search")
local sweep <const> = require("gen.tune.sweep")

local M = {}

local FAILURE <const>, BAD_USAGE <const>, INTERRUPTED <const> = 1, 2, 130

----------------------------------------------------------------------------------------------------
-- Options
----------------------------------------------------------------------------------------------------

-- A name that ends up in comments of the emitted files.
local function plain_label(text)
    if text == "" or #text > 200 or text:find("[^\32-\126]") then
        return nil, "--cpu takes a name in printable ASCII"
    end
    return text
end

-- Defines the options on an argparse command.
function M.define(verb)
    verb:argument("CONFIG", "Config file (.lua or .json)."):target("configs"):args("+")
    verb:option("--budget", "Seconds for each config and ISA."):argname("SECONDS"):default("180")
        :convert(option.whole_number("--budget", 1, 1000000))
    verb:option("--strategy", "Which plans are tried, in which order.")
        :choices(search.STRATEGIES):default("greedy")
    verb:option("--seed", "Seed of the random strategy."):argname("N")
        :convert(option.whole_number("--seed", 0, 1 << 53))
    verb:option("--cc", "Compilers to try (default: those installed)."):argname("LIST")
        :convert(option.list_of("--cc", keys.compilers))
    verb:option("--jobs", "Compilers at a time (default: one a processor)."):argname("N")
        :convert(option.whole_number("--jobs", 1, 1024))
    verb:flag("--resume", "Go on with the log of an earlier run.")
    verb:flag("--dry-run", "Say how many plans there are, why others are not tried, and which come "
        .. "first.")
    verb:option("--work", "Directory of logs, builds and reports."):argname("DIR")
        :default("build/tune"):convert(option.path("--work"))
    verb:option("--runner", "Command in front of the measuring program: an emulator, or ssh to a "
        .. "board."):argname("CMD"):convert(option.command("--runner"))
    verb:option("--push", "Command that copies a file to where the runner finds it as ./FILE; {} "
        .. "stands for the file."):argname("CMD"):convert(option.command("--push"))
    verb:option("--cpu", "What the CPU behind the runner is called."):argname("NAME")
        :convert(plain_label)
end

----------------------------------------------------------------------------------------------------
-- The verb
----------------------------------------------------------------------------------------------------

-- "bert on avx2: best 49.31 us, median 61.02 us, 34 tried, 2 failed, 1:23 left: building"
local function progress_text(run, state)
    local best = "nothing measured yet"
    if state.best_us then
        best = ("best %.2f us, median %.2f us"):format(state.best_us, state.median_us)
    end
    local left <const> = state.left // 1
    return ("%s on %s: %s, %d tried, %d failed, %d:%02d left: %s"):format(run.record.name, run.isa,
        best, state.tried, state.failed, left // 60, left % 60, state.what)
end

local function report(shared, run, summary, message)
    if not summary then
        shared.say("%s on %s: %s", run.record.name, run.isa, message)
        return
    end
    for _, failure in ipairs(summary.failures) do
        shared.say("%d of %d candidates: %s: %s", failure.count, summary.tried, failure.status,
            failure.message)
    end
    shared.say("ended because %s; %s and %s written", summary.reason, summary.file, summary.page)
end

-- shared: variants, bar (gen.progress), say(format, …), put(data …), tuned_dir(path).
function M.run(options, shared)
    local problem <const> = option.refuse_place(options)
    if problem then
        return { code = BAD_USAGE, message = problem }
    end
    local bar <const> = shared.bar
    local results, interrupted = sweep.execute({
        variants = shared.variants, root = options.root, work = options.work,
        budget = options.budget, strategy = options.strategy, seed = options.seed,
        resume = options.resume, dry_run = options.dry_run, compilers = options.cc,
        runner = options.runner, push = options.push, cpu = options.cpu,
        jobs = options.jobs or host.processors(), tuned_dir = shared.tuned_dir,
        print = shared.put,
        show = function(run, state)
            bar:status(1 - state.left / state.budget, state.what .. state.tried,
                progress_text(run, state))
        end,
        done = function(run, summary, message)
            bar:finish()
            report(shared, run, summary, message)
        end,
    })
    if not results then
        return { code = BAD_USAGE, message = interrupted }
    elseif #results > 0 then
        shared.put(sweep.table_text(results))
    end
    if interrupted then
        return { code = INTERRUPTED, message = "interrupted; --resume goes on" }
    end
    local failure
    for _, result in ipairs(results) do
        if not result.summary and (not failure or result.bad_usage) then
            failure = { code = result.bad_usage and BAD_USAGE or FAILURE,
                message = "not everything was tuned" }
        end
    end
    return failure
end

return M
