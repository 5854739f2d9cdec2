-- Where candidates become numbers: emits, builds and runs them, each in a process of its own.
--   input:  candidates of a space; how long each may take
--   output: built items; what the probe measured, or a status and a message
-- Remembers nothing but what is built; which candidates are worth it, gen.tune.session knows.
local build <const> = require("gen.bench.build")
local fs <const> = require("gen.fs")
local isa <const> = require("gen.isa")
local manifest <const> = require("gen.manifest")
local measure <const> = require("gen.bench.measure")
local process <const> = require("gen.process")
local space <const> = require("gen.tune.space")

local M = {}

-- A compiler is stopped at this many times the predicted seconds, or at the other number.
local COMPILE_PATIENCE <const>, MIN_COMPILE_LIMIT <const> = 20, 60

local BLAS <const>, BLAS_LIMIT <const> = "libopenblas.so.0", 20.0

-- A process that ends without numbers, whatever became of it, has crashed.
local STATUS <const> = { wrong = "wrong", crash = "crash", hang = "hang", failed = "crash" }

local Lab <const> = {}
Lab.__index = Lab

-- As process.capture, but a hang ends after options.timeout (status 124), an interrupt at once,
-- and `beat` is called all the while.
local function new_capture(job, beat)
    local file <const> = fs.join(job.dir, "output.txt")
    return function(words, options)
        local ended <const> = process.watch(job.watcher, words, { output = file, beat = beat,
            seconds = options and options.timeout })
        local status = ended.code
        if ended.kind == "timeout" then
            status = 124
        elseif ended.kind == "signal" then
            status = 128 + ended.code
        end
        return status, fs.read(file) or "", ended.seconds
    end
end

-- job: see gen.tune.session; `number` makes the names of builds differ from those of earlier runs.
function M.new(job, built_space, number, beat)
    local predicted <const> = space.plan(built_space, built_space.default).compile_seconds
    return setmetatable({ job = job, space = built_space, number = number, builds = 0,
        items = {}, refused = {}, capture = new_capture(job, beat),
        predicted_compile = predicted,
        compile_limit = math.max(MIN_COMPILE_LIMIT, COMPILE_PATIENCE * predicted) // 1 }, Lab)
end

-- Equal for equal code: the texts without comments and without the hash of the config.
local function code_hash(item)
    local parts <const> = {}
    for _, file in ipairs(item.files) do
        if file.path:find("%.[ch]$") then
            parts[#parts + 1] = file.text:gsub("/%*.-%*/", "")
                :gsub(item.manifest.config_hash, ""):gsub("%s+", " ")
        end
    end
    item.files = nil
    return manifest.hash(table.concat(parts))
end

local function new_builder(self)
    local job <const> = self.job
    return build.new({ root = job.root, dir = job.build_dir, jobs = job.jobs,
        capture = self.capture,
        compile_timeout = self.compile_limit,
        limiter = function(seconds) return { job.watcher, "-t", seconds, "--" } end })
end

-- The probe, and the reference in double precision: computed once, so that its seconds are no
-- candidate's. Raises {message=}.
function Lab:prepare()
    local builder <const> = new_builder(self)
    local probe <const>, message = builder:add_probe(self.job.host_isa)
    if not probe then
        error({ message = message }, 0)
    end
    self.probe, self.case = probe, builder:add_case(self.job.record)
    if not self.job.runner then
        builder:add_probe(self.space.isa)
    end
    local ok, problem = builder:run()
    if ok then
        ok, problem = measure.prepare_truth(probe, self.case, { capture = self.capture })
    end
    if not ok then
        error({ message = problem }, 0)
    end
end

-- Emits and builds candidates: items[key] is what there is to measure, refused[key] why not. Raises
-- {message=} when the tools themselves fail.
function Lab:build(candidates)
    local builder <const> = new_builder(self)
    local flags <const> = isa.get(self.space.isa).flags
    for _, candidate in ipairs(candidates) do
        local record <const>, refusal = space.record(self.space, candidate)
        local item, message
        if record then
            self.builds = self.builds + 1
            item, message = builder:add({
                key = ("%s-%s/%d-%d"):format(self.space.record.name, self.space.isa,
                    self.number, self.builds),
                record = record, isa = self.space.isa, compiler = candidate.compiler,
                flags = manifest.flags(flags, candidate.level)[candidate.compiler],
                linked = self.job.runner ~= nil })
        end
        if item then
            item.code = ("%s %s%s"):format(code_hash(item), candidate.compiler, candidate.level)
            self.items[candidate.key] = item
        else
            self.refused[candidate.key] = refusal or message
        end
    end
    local ok <const>, message = builder:run()
    if not ok then
        error({ message = message }, 0)
    end
end

-- The built item of a candidate measured in an earlier run. Raises {message=} when that run's log
-- says so of one that there cannot be.
function Lab:item_of(candidate)
    if not self.items[candidate.key] then
        self:build({ candidate })
    end
    local item <const> = self.items[candidate.key]
    if not item then
        error({ message = ("%s: measured, says the log, but cannot be built: %s"):format(
            candidate.key, self.refused[candidate.key]) }, 0)
    end
    return item
end

-- Runs a built item for at most `limit` seconds: the probe's numbers; or nil, status, message. The
-- seconds it took come fourth, or as run_seconds. Raises {message=} when what the runner does with
-- the planner's default is neither a measurement nor a crash: it would do so with every other.
function Lab:time(item, limit, is_default)
    local seconds
    local function capture(words, options)
        local status, text
        status, text, seconds = self.capture(words, options)
        return status, text
    end
    local job <const> = self.job
    local numbers, problem = measure.run(item, { seconds = job.sample_seconds, timeout = limit,
        runner = job.runner, push = job.push, capture = capture })
    if not numbers and problem.kind == "failed" and job.runner and is_default then
        error({ message = ("the planner's default does not run behind the runner %s: %s"):format(
            table.concat(job.runner, " "), problem.message) }, 0)
    elseif not numbers then
        return nil, STATUS[problem.kind], problem.message, seconds
    end
    -- A machine that is slow throughout has slow samples only.
    local good <const> = numbers.best_us ~= nil
    return {
        best_us = good and numbers.best_us or numbers.slow_best_us,
        median_us = good and numbers.median_us or numbers.slow_median_us,
        samples = good and numbers.samples_us or numbers.slow_samples_us,
        state = good and "good" or "slow", max_error = numbers.max_error,
        peak_gflops = numbers.peak_gflops, run_seconds = seconds,
    }
end

-- The same layer on OpenBLAS as installed, where there is one: microseconds and what it is called.
function Lab:time_openblas()
    local numbers <const> = measure.run_blas(self.probe, self.case, { file = BLAS },
        { seconds = self.job.sample_seconds, timeout = BLAS_LIMIT, capture = self.capture })
    if numbers then
        return numbers.best_us or numbers.slow_best_us, ("%s, core %s"):format(
            numbers.blas_library:match("^%S+ [%d.]+") or numbers.blas_library, numbers.core)
    end
end

return M
