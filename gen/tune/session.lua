-- One tuning run: the plans of one config for one ISA, built, measured and compared.
--   input:  a job (see M.run)
--   output: a summary, and on disk: a log, written entry by entry, that a later run goes on from
-- Correctness comes first: what the probe finds wrong has no time. Every candidate is measured in
-- a process of its own while nothing is built; one that crashes, hangs or does not compile is a
-- result like any other. What looks better than the best so far is measured again beside it, in
-- turns, before it wins; at the end so is the winner beside the planner's own choice.
local fs <const> = require("gen.fs")
local lab <const> = require("gen.tune.lab")
local log <const> = require("gen.tune.log")
local process <const> = require("gen.process")
local search <const> = require("gen.tune.search")
local space <const> = require("gen.tune.space")
local tuned <const> = require("gen.tuned")

local M = {}

-- What a candidate must gain to win: less is noise.
local MARGIN <const> = 0.003
local TRIES <const> = 3
local DUEL_ROUNDS <const>, FINAL_ROUNDS <const> = 3, 5

-- A measurement is killed at 3 times what the best candidate's took, or at this many seconds.
local PATIENCE <const>, MIN_LIMIT <const>, FIRST_LIMIT <const> = 3, 2.0, 120.0
local MAX_SAMPLES <const> = 50

-- Share of the remaining budget that one batch may spend on compiling, by prediction.
local BATCH_SHARE <const>, MAX_BATCH <const> = 0.2, 16

local Session <const> = {}
Session.__index = Session

----------------------------------------------------------------------------------------------------
-- Progress
----------------------------------------------------------------------------------------------------

local function seconds_left(self)
    return self.deadline - os.time()
end

-- What the progress line says.
function Session:show(what)
    self.what = what or self.what
    self.job.show({ tried = self.tried, failed = self.failed, what = self.what,
        best_us = self.best and self.best.result.best_us,
        median_us = self.times[(#self.times + 1) // 2],
        left = math.max(0, seconds_left(self)), budget = self.job.budget,
        size = self.space.size })
end

local function insert_sorted(list, value)
    local at = #list + 1
    while at > 1 and list[at - 1] > value do
        at = at - 1
    end
    table.insert(list, at, value)
end

----------------------------------------------------------------------------------------------------
-- Results
----------------------------------------------------------------------------------------------------

local function timestamp()
    return os.date("!%Y-%m-%dT%H:%M:%SZ")
end

local function duel_name(first, second, rounds)
    return ("%s | %s | %d"):format(first, second, rounds)
end

-- What the log says about a candidate, before it is known how it ends.
local function new_result(candidate)
    local set = candidate.set
    if not next(set) then
        set = setmetatable({}, { __jsontype = "object" })
    end
    return { type = "result", key = candidate.key, set = set, compiler = candidate.compiler,
        level = candidate.level, time = timestamp() }
end

function Session:remember(result)
    self.known[result.key] = result
    if result.code and result.status ~= "same" then
        self.codes[result.code] = result.key
    end
end

-- Counts a result; one that is not from the log goes there first.
function Session:learn(result)
    if not self.known[result.key] then
        self.log:append(result)
        self:remember(result)
    end
    self.results[result.key] = result
    self.tried = self.tried + 1
    if result.status == "ok" then
        insert_sorted(self.times, result.best_us)
    elseif result.status ~= "same" then
        self.failed = self.failed + 1
        local known
        for _, failure in ipairs(self.failures) do
            if failure.status == result.status then
                failure.count = failure.count + 1
                known = true
            end
        end
        if not known then
            self.failures[#self.failures + 1] = { status = result.status, count = 1,
                message = result.message }
        end
    end
end

----------------------------------------------------------------------------------------------------
-- Measuring
----------------------------------------------------------------------------------------------------

-- Seconds a measurement may take.
local function limit_of(self)
    return self.best and math.max(MIN_LIMIT, PATIENCE * self.best.result.run_seconds)
        or FIRST_LIMIT
end

-- Times of the machine's slow state say nothing beside those of its good state: another try or two.
function Session:time(item, candidate)
    local numbers, status, message, seconds
    for _ = 1, TRIES do
        numbers, status, message, seconds = self.lab:time(item, limit_of(self),
            candidate.key == self.space.default.key)
        if not numbers or numbers.state == "good" or not self.best
            or self.best.result.state == "slow" then
            break
        end
    end
    return numbers, status, message, seconds
end

-- The result of a candidate that has been built.
function Session:examine(candidate)
    local result <const> = new_result(candidate)
    local item <const> = self.lab.items[candidate.key]
    if not item then
        result.status, result.message = "refused", self.lab.refused[candidate.key]
        return result
    end
    local twin <const> = self.codes[item.code]
    result.code = item.code
    if twin then
        result.status, result.as = "same", twin
        return result
    end
    result.build_seconds, result.code_bytes = item.compile_seconds, item.code_bytes
    if not item.ok then
        result.status, result.message = "compile", item.message
        return result
    end
    local numbers <const>, status, message, seconds = self:time(item, candidate)
    if not numbers then
        result.status, result.message, result.run_seconds = status, message, seconds
        return result
    end
    result.status = "ok"
    for name, value in pairs(numbers) do
        result[name] = value
    end
    result.samples = table.move(numbers.samples, 1, math.min(#numbers.samples, MAX_SAMPLES), 1, {})
    return result
end

-- Times of one side of a duel: {us=, state=} each.
local function best_of(list, state)
    local best
    for _, one in ipairs(list) do
        if one.state == state and (not best or one.us < best) then
            best = one.us
        end
    end
    return best
end

-- Best of either list in the better state of the machine that both have seen; nil where they share
-- none: times of one state say nothing beside those of the other.
function M.best_of_same_state(first, second)
    for _, state in ipairs({ "good", "slow" }) do
        local a <const>, b <const> = best_of(first, state), best_of(second, state)
        if a and b then
            return a, b
        end
    end
end

function Session:fight(first, second, rounds)
    local entry <const> = { type = "duel", first = first.key, second = second.key,
        rounds = rounds, first_times = {}, second_times = {} }
    local sides <const> = { { first, entry.first_times }, { second, entry.second_times } }
    for _ = 1, rounds do
        for _, side in ipairs(sides) do
            local numbers <const>, status, message = self:time(self.lab:item_of(side[1]), side[1])
            if not numbers then
                entry.failed = ("%s: %s: %s"):format(side[1].key, status, message)
                return entry
            end
            side[2][#side[2] + 1] = { us = numbers.best_us, state = numbers.state }
        end
    end
    return entry
end

-- Measures two candidates in turns. Returns whether the second wins, and the best time of each;
-- what was right once and fails now and then does not win.
function Session:duel(first, second, rounds)
    local name <const> = duel_name(first.key, second.key, rounds)
    local entry = self.duels[name]
    if not entry then
        entry = self:fight(first, second, rounds)
        entry.time = timestamp()
        self.log:append(entry)
        self.duels[name] = entry
    end
    if entry.failed then
        return false
    end
    local a, b = M.best_of_same_state(entry.first_times, entry.second_times)
    return a ~= nil and b < a * (1 - MARGIN), a, b
end

-- Whether a result becomes the best.
function Session:consider(candidate, result)
    if result.status ~= "ok" then
        return false
    elseif not self.best then
        self.best = { candidate = candidate, result = result }
        return true
    elseif result.best_us >= self.best.result.best_us * (1 - MARGIN) then
        return false
    end
    self:show("measuring the best two again")
    local wins <const>, a, b = self:duel(self.best.candidate, candidate, DUEL_ROUNDS)
    if a then
        self.best.result.best_us = a
        result.best_us = b
    end
    if wins then
        self.best = { candidate = candidate, result = result }
    end
    return wins
end

----------------------------------------------------------------------------------------------------
-- The run
----------------------------------------------------------------------------------------------------

local function batch_size(self)
    local per_build <const> = math.max(0.2, self.lab.predicted_compile / self.job.jobs)
    local affordable <const> = BATCH_SHARE * seconds_left(self) / per_build
    return math.max(self.job.jobs, math.min(MAX_BATCH, affordable // 1))
end

-- Tries one batch; false when the budget ran out on the way.
function Session:try_batch(batch)
    local unknown <const> = {}
    for _, candidate in ipairs(batch) do
        if not self.known[candidate.key] then
            unknown[#unknown + 1] = candidate
        end
    end
    if #unknown > 0 then
        self:show("building")
        self.lab:build(unknown)
    end
    for _, candidate in ipairs(batch) do
        local result = self.known[candidate.key]
        if not result then
            if self:is_over() then
                return false
            end
            self:show("measuring")
            result = self:examine(candidate)
        end
        self:learn(result)
        self.search:tell(candidate, self:consider(candidate, result))
    end
    return true
end

-- The last measurements, of the winner beside the default, have their share of the budget.
function Session:is_over()
    if not self.best then
        return false
    end
    local last <const> = math.min(0.2 * self.job.budget,
        2 * FINAL_ROUNDS * self.best.result.run_seconds)
    return seconds_left(self) <= last
end

local function explore(self)
    while true do
        if self:is_over() then
            return "the budget was spent"
        end
        local batch <const> = self.search:next(batch_size(self), self.job.jobs)
        if #batch == 0 then
            return self.job.strategy == "greedy" and "no single change makes it faster"
                or "everything was tried"
        elseif not self:try_batch(batch) then
            return "the budget was spent"
        end
    end
end

-- The planner's own choice gets a last chance against the winner.
local function settle(self)
    local default <const> = self.space.default
    local its <const> = self.results[default.key]
    if not self.best or self.best.candidate.key == default.key or not its
        or its.status ~= "ok" then
        return
    end
    self:show("measuring the winner beside the planner's default")
    local wins <const>, a, b = self:duel(default, self.best.candidate, FINAL_ROUNDS)
    if a then
        its.best_us, self.best.result.best_us = a, b
    end
    if not wins then
        self.best = { candidate = default, result = its }
    end
end

local function describe_dimensions(self)
    local list <const> = {}
    for index, dimension in ipairs(self.space.dimensions) do
        local one <const> = { name = dimension.name, values = #dimension.values, illegal = 0,
            same = 0, hopeless = 0 }
        for _, value in ipairs(dimension.pruned) do
            one[value.kind] = one[value.kind] + 1
        end
        one.winner = dimension.values[self.best.candidate.picks[index]].label
        list[index] = one
    end
    return list
end

-- What came of it, for the tuning file, the page and the table.
local function summarise(self, reason)
    local job <const> = self.job
    if not self.best then
        local first <const> = self.failures[1]
        return nil, first and ("no candidate ran: %s"):format(first.message)
            or "no candidate was measured"
    end
    local default <const> = self.results[self.space.default.key]
    local winner <const> = self.best.candidate
    return {
        name = job.record.name, isa = self.space.isa, cpu = job.cpu,
        generator = tuned.GENERATOR, strategy = job.strategy, reason = reason,
        size = self.space.size, tried = self.tried, failed = self.failed,
        failures = self.failures, winner = winner.key, is_default = winner.key
            == self.space.default.key,
        set = winner.set, plan = space.overrides(self.space, winner),
        compiler = winner.compiler, compiler_version = job.compilers[winner.compiler],
        level = winner.level, best_us = self.best.result.best_us,
        default_us = default and default.status == "ok" and default.best_us or nil,
        entries = self.log.entries, dimensions = describe_dimensions(self),
        space = self.space, openblas_us = self.openblas_us, openblas = self.openblas,
    }
end

-- Words for the identity of a run: results of different ones do not mix.
local function new_header(job, built)
    return { cpu = job.cpu, generator = tuned.GENERATOR, isa = built.isa,
        key = tuned.key(job.record, built.isa), config = tuned.config_of(job.record, built.isa),
        compilers = job.compilers, runner = job.runner and table.concat(job.runner, " ") or nil,
        seed = job.seed or 1, strategy = job.strategy, started = timestamp() }
end

local function open_log(job, built)
    local path <const> = fs.join(job.dir, "log.jsonl")
    local header <const> = new_header(job, built)
    if job.resume then
        local opened <const>, message = log.open(path, header)
        if opened or message then
            return opened, message
        end
    end
    return log.create(path, header)
end

-- Runs a job:
--   record         with one ISA            root      attngen's own files
--   dir            of this run's log       watcher   path of attn_watch
--   build_dir      of programs and kernels, shared by runs
--   compilers      {name = version}        compiler_order   their names, the default first
--   levels         optimisation levels     cpu       name of the CPU that measures
--   strategy, seed, budget (seconds), resume, jobs (parallel compilers), sample_seconds
--   runner, push   words, or nil           host_isa  ISA of the probe that computes the reference
--   show(state)    called ten times a second
-- Returns a summary (interrupted = true when that is why it ended); or nil, a message, whether it
-- was interrupted, and whether the user's command is at fault.
function M.run(job)
    local built <const>, refusal = space.build(job.record, { compilers = job.compiler_order,
        levels = job.levels })
    if not built then
        return nil, refusal
    end
    local opened <const>, message = open_log(job, built)
    if not opened then
        return nil, message, false, true
    end
    local self <const> = setmetatable({ job = job, space = built, log = opened, known = {},
        results = {}, duels = {}, codes = {}, times = {}, failures = {}, tried = 0, failed = 0,
        deadline = os.time() + job.budget,
        search = search.new(job.strategy, built, job.seed or opened.header.seed) }, Session)
    self.lab = lab.new(job, built, #opened.entries, function() self:show() end)
    for _, entry in ipairs(opened.entries) do
        if entry.type == "result" then
            self:remember(entry)
        elseif entry.type == "duel" then
            self.duels[duel_name(entry.first, entry.second, entry.rounds)] = entry
        end
    end
    local reason
    local ok <const>, problem = pcall(function()
        self:show("computing the reference")
        self.lab:prepare()
        self.deadline = os.time() + job.budget
        reason = explore(self)
        settle(self)
        if not job.runner then
            self:show("measuring OpenBLAS")
            self.openblas_us, self.openblas = self.lab:time_openblas()
        end
    end)
    if not ok and type(problem) == "table" and problem.message then
        return nil, problem.message
    elseif not ok and not tostring(problem):find(process.INTERRUPTED, 1, true) then
        error(problem, 0)
    end
    local summary <const>, nothing = summarise(self, ok and reason or "it was interrupted")
    if not summary then
        return nil, nothing, not ok
    end
    summary.interrupted = not ok
    self.log:append({ type = "end", winner = summary.winner, best_us = summary.best_us,
        default_us = summary.default_us, reason = summary.reason, time = timestamp() })
    return summary
end

return M
