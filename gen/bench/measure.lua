-- Runs the measuring program (bench/probe.c) on what gen.bench.build made.
--   input:  an item, or a case and a BLAS; how long, where, through which commands
--   output: what the probe printed, as a table; or nil and how it failed
-- One process a call: a crash or a hang of a kernel is a result. Decides nothing.

local dkjson <const> = require("dkjson")

local fs <const> = require("gen.fs")
local process <const> = require("gen.process")

local M = {}

local WRONG <const>, TIMED_OUT <const>, KILLED <const> = 3, 124, 137

-- Signals by the number that a shell adds to 128.
local SIGNALS <const> = { [132] = "SIGILL", [134] = "SIGABRT", [135] = "SIGBUS", [136] = "SIGFPE",
    [137] = "SIGKILL", [139] = "SIGSEGV" }

local MAX_SIGNAL <const> = 64 -- beyond, as ssh's 255, a status is no signal

-- Environment for a BLAS: what it would choose itself, or the core that is asked for.
local function blas_environment(core)
    local words <const> = { "env", "-u", "OPENBLAS_CORETYPE", "-u", "OPENBLAS_L2_SIZE",
        "OPENBLAS_NUM_THREADS=1", "OMP_NUM_THREADS=1", "MKL_NUM_THREADS=1",
        "MKL_THREADING_LAYER=SEQUENTIAL" }
    if core then
        words[#words + 1] = "OPENBLAS_CORETYPE=" .. core
    end
    return words
end

local function append(words, ...)
    for _, word in ipairs({ ... }) do
        words[#words + 1] = tostring(word)
    end
end

-- The probe's options from ours.
local function add_options(words, options, truth)
    append(words, "--truth", truth)
    for _, name in ipairs({ "seconds", "samples", "cold", "seed", "fill", "logits", "cpu" }) do
        if options[name] then
            append(words, "--" .. name, options[name])
        end
    end
end

local function failure(status, text, seconds)
    local last <const> = text:match("([^\n]*)%s*$")
    if (status == TIMED_OUT or status == KILLED) and seconds then
        return { kind = "hang", message = ("stopped after %g s"):format(seconds) }
    elseif SIGNALS[status] or (status > 128 and status <= 128 + MAX_SIGNAL) then
        return { kind = "crash", message = SIGNALS[status] or "signal " .. status - 128 }
    end
    return { kind = "failed", message = last ~= "" and last:gsub("^probe: ", "")
        or "exit status " .. status }
end

-- Runs words; the probe's JSON as a table with right = true, or nil and {kind=, message=, result=}:
-- "crash", "hang", "wrong" (result has the error), "failed".
local function execute(words, options)
    local all <const> = {}
    local capture <const> = options.capture or process.capture
    if options.timeout and not options.capture then
        append(all, "timeout", "-s", "KILL", options.timeout)
    end
    append(all, table.unpack(options.runner or {}))
    append(all, table.unpack(words))
    -- stderr goes to a file: through a runner it need not come line by line.
    local status <const>, text <const> = capture(all, { merge = true,
        timeout = options.timeout })
    local start <const> = text:find("{\n", 1, true)
    local result <const> = start and dkjson.decode(text, start)
    if status == 0 and result and result.right then
        return result
    elseif status == WRONG and result then
        return nil, { kind = "wrong", result = result,
            message = ("wrong by up to %.3g, %.3g times what rounding allows"):format(
                result.max_error or math.huge, result.tolerance_share or math.huge) }
    end
    return nil, failure(status, text, options.timeout)
end

-- The names the files have where the probe runs: their own, or in the directory a push fills.
local function remote_name(path, options)
    return options.push and "./" .. select(2, fs.split(path)) or path
end

-- Copies files with the command `push`, once for each; {} in it stands for the file.
local function push_files(files, options)
    for _, path in ipairs(files) do
        local words, placed = {}, false
        for index, word in ipairs(options.push) do
            words[index] = word:gsub("{}", (path:gsub("%%", "%%%%")))
            placed = placed or words[index] ~= word
        end
        if not placed then
            append(words, path)
        end
        local status, text = (options.capture or process.capture)(words, { merge = true })
        if status ~= 0 then
            return nil, { kind = "failed", message = ("%s: %s"):format(table.concat(words, " "),
                text:match("([^\n]*)%s*$")) }
        end
    end
    return true
end

-- Where the answer of a case is kept: one file for each options.fill and options.logits.
local function truth_path(case, options)
    local path = case.truth
    for _, name in ipairs({ "fill", "logits" }) do
        if options[name] then
            path = ("%s-%s%g"):format(path, name, options[name])
        end
    end
    return path
end

-- Computes the answer of a case where it is not there yet, natively and untimed, so that the
-- seconds it takes are no candidate's. `probe` is any program of Builder:add_probe.
function M.prepare_truth(probe, case, options)
    options = options or {}
    local truth <const> = truth_path(case, options)
    if fs.is_file(truth) then
        return true
    end
    local words <const> = { probe, "--case", case.path, "--truth-only" }
    add_options(words, { seed = options.seed, fill = options.fill, logits = options.logits }, truth)
    local status, text = (options.capture or process.capture)(words, { merge = true })
    if status ~= 0 then
        return nil, text:match("([^\n]*)%s*$")
    end
    return true
end

-- Measures a built item. options, all optional:
--   seconds, samples   time for samples, and at most how many
--   cold               single calls with emptied caches
--   seed, cpu          of inputs and weights; the core to stay on
--   fill               share of the keys that items with a length have
--   logits             factor on the queries
--   timeout            kill after so many seconds: "hang"
--   capture            what takes the place of process.capture and sees to the timeout itself
--   runner, push       words in front of the program, words that copy a file to where it runs
function M.run(item, options)
    options = options or {}
    local program <const> = item.program or item.probe
    if options.push then
        local ok, problem = push_files({ program, item.case.path, truth_path(item.case, options),
            item.shared },
            options)
        if not ok then
            return nil, problem
        end
    end
    local words <const> = { remote_name(program, options), "--case",
        remote_name(item.case.path, options) }
    if item.shared then
        append(words, "--kernel", remote_name(item.shared, options), "--prefix", item.prefix)
    end
    add_options(words, options, remote_name(truth_path(item.case, options), options))
    return execute(words, options)
end

-- Measures a BLAS on a case. blas: {file=, prefix= of its symbols, core= to force}.
function M.run_blas(probe, case, blas, options)
    local words <const> = blas_environment(blas.core)
    append(words, probe, "--case", case.path, "--blas", blas.file)
    if blas.prefix then
        append(words, "--blas-prefix", blas.prefix)
    end
    add_options(words, options, truth_path(case, options))
    return execute(words, options)
end

-- FMA peak, product and load bandwidth of the machine where `program` runs: a probe, or a program
-- with a kernel inside.
function M.machine(program, options)
    options = options or {}
    if options.push then
        local ok, problem = push_files({ program }, options)
        if not ok then
            return nil, problem
        end
    end
    local all <const> = {}
    append(all, table.unpack(options.runner or {}))
    append(all, remote_name(program, options), "--machine")
    if options.cpu then
        append(all, "--cpu", options.cpu)
    end
    local status <const>, text <const> = (options.capture or process.capture)(all,
        { merge = true })
    local start <const> = text:find("{\n", 1, true)
    local result <const> = status == 0 and start and dkjson.decode(text, start)
    if not result then
        return nil, failure(status, text)
    end
    return result
end

return M
