-- The parts of the tuner that run nothing: the space, the orders of search, the log, tuning files,
-- T4 results, the page.

package.path = "./?.lua;./?/init.lua;" .. package.path
local dkjson <const> = require("dkjson")
local lu <const> = require("luaunit")

local config <const> = require("gen.config")
local fs <const> = require("gen.fs")
local generate <const> = require("gen.generate")
local keys <const> = require("gen.keys")
local log <const> = require("gen.tune.log")
local page <const> = require("gen.tune.page")
local process <const> = require("gen.process")
local search <const> = require("gen.tune.search")
local session <const> = require("gen.tune.session")
local space <const> = require("gen.tune.space")
local support <const> = require("tests.unit.support")
local t4 <const> = require("gen.tune.t4")
local tuned <const> = require("gen.tuned")

local COMPILERS <const> = { compilers = { "gcc", "clang" }, levels = keys.levels }

local function record_of(raw)
    local record <const>, errors = config.validate(raw, "test.lua", "test")
    assert(record, errors and config.format_errors(errors))
    return record
end

-- Spaces are not changed by what uses them: each is built once.
local built_spaces <const> = {}

local function build(raw)
    built_spaces[raw] = built_spaces[raw] or assert(space.build(record_of(raw), COMPILERS))
    return built_spaces[raw]
end

local SHORT <const> = { seq_len = 17, d_model = 16, heads = 2, isa = "avx2" }
local LONG <const> = { seq_len = 128, d_model = 384, heads = 12, mask = "lengths", isa = "avx2" }
local SDPA <const> = { op = "sdpa", seq_len = 5, heads = 1, head_dim = 4, isa = "scalar",
    plan = { scores = { rows = 4, vectors = 2 }, context = { rows = 4, vectors = 2, unroll = 2 } } }

local function dimension(built, name)
    for _, one in ipairs(built.dimensions) do
        if one.name == name then
            return one
        end
    end
end

local function without_comments(text, hash)
    return (text:gsub("/%*.-%*/", ""):gsub(hash, ""))
end

----------------------------------------------------------------------------------------------------

TestSpace = {}

function TestSpace:test_every_declared_field_is_in_it()
    local built <const> = build(LONG)
    for _, stage in ipairs(keys.plan_stages) do
        for _, field in ipairs(stage.fields) do
            lu.assertNotNil(dimension(built, stage.name .. (field.tile and ".tile"
                or "." .. field.name)), stage.name .. "." .. field.name)
        end
    end
end

function TestSpace:test_stages_a_config_lacks_are_not()
    local built <const> = build(SDPA)
    lu.assertNil(dimension(built, "project.tile"))
    lu.assertNil(dimension(built, "output.tile"))
    -- given by the config
    lu.assertNil(dimension(built, "scores.tile"))
    lu.assertNil(dimension(built, "context.unroll"))
end

function TestSpace:test_it_is_a_pure_function()
    local one <const> = build(SHORT)
    local other <const> = assert(space.build(record_of(SHORT), COMPILERS))
    lu.assertEquals(one.size, other.size)
    lu.assertEquals(one.dimensions, other.dimensions)
    lu.assertTrue(one.size > 1000000)
    local target <const> = build({ seq_len = 17, d_model = 16, heads = 2, isa = "avx2",
        target = { fma_latency = 32 } })
    lu.assertNotEquals(dimension(one, "project.tile").values,
        dimension(target, "project.tile").values)
end

function TestSpace:test_the_default_comes_first_and_sets_nothing()
    local built <const> = build(SHORT)
    lu.assertEquals(built.default.key, "compiler=gcc level=-O3")
    lu.assertEquals(built.default.set, {})
    lu.assertEquals(built.default.cycles, 0.0)
    lu.assertEquals(space.signature(space.plan(built, built.default)),
        space.signature(generate.build_plan(record_of(SHORT), "avx2")))
end

-- What the planner says of its choice is no difference.
function TestSpace:test_a_choice_by_hand_is_the_same_code_as_the_planners_own()
    local function signature(plan)
        return space.signature(generate.build_plan(record_of({ op = "sdpa", seq_len = 128,
            heads = 2, head_dim = 32, isa = "avx2", plan = plan }), "avx2"))
    end
    lu.assertEquals(signature({ context = { orientation = "dims" } }), signature())
    lu.assertNotEquals(signature({ context = { orientation = "queries" } }), signature())
end

function TestSpace:test_pruned_values_have_reasons()
    local kinds <const> = {}
    for _, one in ipairs(build(LONG).dimensions) do
        for _, value in ipairs(one.pruned) do
            kinds[value.kind] = true
            lu.assertTrue(#value.reason > 10, value.label)
        end
    end
    lu.assertEquals(kinds, { illegal = true, same = true, hopeless = true })
end

-- What is pruned as the same code really is; every value that stays is legal alone.
function TestSpace:test_same_means_the_same_code()
    for _, raw in ipairs({ SHORT, LONG }) do
        local record <const> = record_of(raw)
        local built <const> = build(raw)
        local seen <const> = {}
        for index = 1, 6 do
            local value <const> = dimension(built, "scores.tile").values[index]
            local bundle <const> = generate.bundle(space.with_values(record, value.set))
            local text <const> = without_comments(bundle.files[1].text,
                bundle.manifest.config_hash)
            lu.assertNil(seen[text], value.label .. " and " .. tostring(seen[text]))
            seen[text] = value.label
        end
        local checked = 0
        for _, value in ipairs(dimension(built, "scores.tile").pruned) do
            local twin <const> = value.kind == "same" and value.reason:match("(%d+x%d+)$")
            if twin and checked < 2 then
                checked = checked + 1
                local texts <const> = {}
                for index, label in ipairs({ value.label, twin }) do
                    local rows <const>, vectors <const> = label:match("(%d+)x(%d+)")
                    local bundle <const> = generate.bundle(space.with_values(record, {
                        ["scores.rows"] = math.tointeger(rows),
                        ["scores.vectors"] = math.tointeger(vectors) }))
                    texts[index] = without_comments(bundle.files[1].text,
                        bundle.manifest.config_hash)
                end
                lu.assertEquals(texts[1], texts[2], value.label)
            end
        end
        lu.assertTrue(checked > 0)
    end
end

function TestSpace:test_refusals_of_the_planner()
    local built <const>, message = space.build(record_of({ seq_len = 128, d_model = 384,
        heads = 12, isa = "avx2", unroll = "full" }), COMPILERS)
    lu.assertNil(built)
    lu.assertStrContains(message, "code_budget")
end

----------------------------------------------------------------------------------------------------

TestSearch = {}

-- Runs a search on times that `time` makes up; the keys in the order they were handed out.
local function run_search(strategy, raw, seed, most, time, batch)
    local order <const> = search.new(strategy, build(raw), seed)
    local tried <const>, best = {}, math.huge
    while #tried < most do
        local candidates <const> = order:next(batch or 4)
        if #candidates == 0 then
            break
        end
        for _, candidate in ipairs(candidates) do
            tried[#tried + 1] = candidate.key
            local seconds <const> = time(candidate)
            order:tell(candidate, seconds < best)
            best = math.min(best, seconds)
        end
    end
    return tried, order
end

-- A made-up truth in which clang, -O2 and one context tile are best.
local function made_up(candidate)
    return 100 - (candidate.compiler == "clang" and 10 or 0)
        - (candidate.level == "-O2" and 5 or 0)
        - (candidate.set["context.unroll"] == 2 and 7 or 0)
end

local function assert_no_repeats(tried)
    local seen <const> = {}
    for _, key in ipairs(tried) do
        lu.assertNil(seen[key], key)
        seen[key] = true
    end
end

function TestSearch:test_default_first_and_nothing_twice()
    for _, strategy in ipairs(search.STRATEGIES) do
        local tried <const> = run_search(strategy, SHORT, 3, 300, made_up)
        lu.assertEquals(tried[1], "compiler=gcc level=-O3")
        assert_no_repeats(tried)
    end
end

function TestSearch:test_greedy_finds_what_single_changes_find()
    local tried <const>, order = run_search("greedy", SHORT, 1, 1000, made_up)
    lu.assertStrContains(order.best.key, "compiler=clang")
    lu.assertStrContains(order.best.key, "level=-O2")
    lu.assertStrContains(order.best.key, "context.unroll=2")
    lu.assertTrue(#tried < 300)
end

-- Compiler and unroll have one other value each: both go into one batch when two are wanted.
function TestSearch:test_greedy_keeps_compilers_busy()
    for least = 1, 4 do
        local order <const> = search.new("greedy", build(SHORT), 1)
        order:tell(order:next(16, least)[1], true)
        lu.assertTrue(#order:next(16, least) >= least)
    end
    -- When nothing gets better, exactly the single changes have been tried.
    local order <const> = search.new("greedy", build(SDPA), 1)
    local total, singles = 0, 1
    for _, one in ipairs(build(SDPA).dimensions) do
        singles = singles + #one.values - 1
    end
    while true do
        local batch <const> = order:next(16, 8)
        for _, candidate in ipairs(batch) do
            order:tell(candidate, false)
        end
        total = total + #batch
        if #batch == 0 then
            break
        end
    end
    lu.assertEquals(total, singles)
end

function TestSearch:test_exhaustive_tries_everything_the_likeliest_first()
    local built <const> = build(SDPA)
    local tried <const> = run_search("exhaustive", SDPA, 1, 10000, made_up)
    lu.assertEquals(#tried, built.size)
    local long <const> = build(LONG)
    local order <const> = search.new("exhaustive", long, 1)
    local last = 0.0
    for _ = 1, 50 do
        for _, candidate in ipairs(order:next(4)) do
            lu.assertTrue(candidate.cycles >= last - 1e-6)
            last = math.max(last, candidate.cycles)
            order:tell(candidate, false)
        end
    end
end

function TestSearch:test_random_follows_its_seed()
    local one <const> = run_search("random", LONG, 7, 40, made_up)
    lu.assertEquals(run_search("random", LONG, 7, 40, made_up, 5), one)
    lu.assertNotEquals(run_search("random", LONG, 8, 40, made_up), one)
    lu.assertEquals(#run_search("random", SDPA, 1, 10000, made_up), build(SDPA).size)
end

----------------------------------------------------------------------------------------------------

TestLog = {}

-- A whole entry, with what differs.
local function result_entry(changes)
    local entry <const> = { type = "result", key = "a", status = "ok", set = { rows = 3 },
        compiler = "gcc", level = "-O3", best_us = 0.1, median_us = 0.2, samples = { 1.5, 2 },
        state = "good", run_seconds = 0.5 }
    for key, value in pairs(changes) do
        entry[key] = value
    end
    return entry
end

function TestLog:setUp()
    self.scratch = support.new_scratch()
    self.path = self.scratch:path("log.jsonl")
    self.header = { cpu = "A CPU", generator = "attngen 1", isa = "avx2", key = "00",
        compilers = { gcc = "12" }, seed = 1 }
end

function TestLog:tearDown()
    self.scratch:remove()
end

function TestLog:test_entries_come_back_and_a_torn_line_goes()
    local one <const> = assert(log.create(self.path, self.header))
    one:append(result_entry({}))
    one:append(result_entry({ key = "b" }))
    fs.append(self.path, '{"type": "result", "key": "to')
    local other <const> = assert(log.open(self.path, self.header))
    lu.assertEquals(#other.entries, 2)
    lu.assertEquals(other.entries[1].best_us, 0.1)
    lu.assertEquals(other.entries[2].samples, { 1.5, 2 })
    other:append(result_entry({ key = "c" }))
    lu.assertEquals(#assert(log.open(self.path, self.header)).entries, 3)
end

-- Every field that a run relies on, missing and of another type.
function TestLog:test_damaged_entries_are_refused_by_line_and_field()
    local duel <const> = { type = "duel", first = "a", second = "b", rounds = 3,
        first_times = { { us = 1.5, state = "good" } }, second_times = {} }
    local same <const> = { type = "result", key = "a", status = "same", as = "b", code = "0",
        set = {}, compiler = "gcc", level = "-O3" }
    local crash <const> = { type = "result", key = "a", status = "crash", message = "SIGSEGV",
        set = {}, compiler = "gcc", level = "-O3" }
    local function try(text)
        self.scratch:write("log.jsonl", dkjson.encode(self.header) .. "\n" .. text .. "\n")
        return log.open(self.path, self.header)
    end
    self.header.type, self.header.format = "header", log.FORMAT
    for _, whole in ipairs({ result_entry({}), duel, same, crash }) do
        lu.assertNotNil(try(dkjson.encode(whole)))
        for field in pairs(whole) do
            for _, bad in ipairs({ "nil", { 1, {} }, -1 }) do
                local entry <const> = {}
                for key, old in pairs(whole) do
                    entry[key] = old
                end
                entry[field] = bad ~= "nil" and bad or nil
                local opened <const>, message = try(dkjson.encode(entry))
                lu.assertNil(opened, field)
                lu.assertStrContains(message, "log.jsonl: line 2 is damaged: its " .. field)
            end
        end
    end
    for _, text in ipairs({ '{"type":"result"}', '{"type":"duel"}', '{"type":null}', "{}", "[]",
        '{"type":"result","key":"default","status":"ok","set":{}}',
        dkjson.encode(duel):gsub('"rounds":3', '"rounds":1e300'),
        dkjson.encode(duel):gsub('"us":1.5', '"us":1e999'),
        dkjson.encode(result_entry({})):gsub('"samples":%[', '"samples":[null,'),
        (dkjson.encode(result_entry({})):gsub('"best_us":', '"best_us":0,"x":')) }) do
        local opened <const>, message = try(text)
        lu.assertNil(opened, text)
        lu.assertStrContains(message, "log.jsonl: line 2 is damaged: its ")
    end
    self.header.seed = "x"
    local _, message = try('{"type":"end"}')
    lu.assertStrContains(message, "line 1 is damaged: its seed is \"x\"")
end

function TestLog:test_every_append_is_on_disk()
    local one <const> = assert(log.create(self.path, self.header))
    for number = 1, 3 do
        one:append({ type = "result", key = tostring(number) })
        local _, lines = fs.read(self.path):gsub("\n", "")
        lu.assertEquals(lines, number + 1)
    end
end

function TestLog:test_another_machine_or_version_is_refused_with_both_named()
    assert(log.create(self.path, self.header))
    for _, case in ipairs({ { "cpu", "B CPU" }, { "generator", "attngen 2" },
        { "isa", "scalar" }, { "key", "11" }, { "compilers", { gcc = "13" } } }) do
        local now <const> = {}
        for key, value in pairs(self.header) do
            now[key] = value
        end
        now[case[1]] = case[2]
        local opened <const>, message = log.open(self.path, now)
        lu.assertNil(opened)
        lu.assertStrContains(message, "cannot be resumed")
        if type(case[2]) == "string" then
            lu.assertStrContains(message, self.header[case[1]])
            lu.assertStrContains(message, case[2])
        end
    end
end

function TestLog:test_no_log_and_no_log_of_ours()
    local opened <const>, message = log.open(self.path, self.header)
    lu.assertNil(opened)
    lu.assertNil(message)
    for _, text in ipairs({ "", "{}\n", "not json\n" }) do
        self.scratch:write("log.jsonl", text)
        local _, problem = log.open(self.path, self.header)
        lu.assertStrContains(problem, "log.jsonl")
    end
end

----------------------------------------------------------------------------------------------------

TestTuned = {}

function TestTuned:setUp()
    self.scratch = support.new_scratch()
    self.record = record_of(SHORT)
    self.name = "tuned/" .. tuned.file_name(self.record, "avx2")
end

function TestTuned:tearDown()
    self.scratch:remove()
end

local RESULT <const> = { plan = { scores = { rows = 3, vectors = 2 } }, unroll = "tiles",
    level = "-O2", compiler = "clang", cpu = "A CPU", best_us = 1.5, default_us = 2.0,
    candidates = 3 }

function TestTuned:write(result, edit)
    local text = tuned.encode(self.record, "avx2", result)
    if edit then
        text = text:gsub(edit[1], edit[2])
    end
    self.scratch:write(self.name, text)
    return text
end

function TestTuned:apply(record)
    return tuned.apply(self.scratch:path("tuned"), record or self.record)
end

function TestTuned:test_the_plan_and_the_level_reach_the_kernel()
    self:write(RESULT)
    local record <const> = self:apply()
    local plan <const> = generate.build_plan(record, "avx2")
    lu.assertEquals(plan.attention.scores_vectors, 2)
    lu.assertFalse(plan.straight)
    local bundle <const> = generate.bundle(record)
    local variant <const> = bundle.manifest.variants[1]
    lu.assertEquals(variant.flags.clang[2], "-O2")
    lu.assertEquals(bundle.manifest.plain_flags.clang[2], "-O3")
    lu.assertEquals(variant.tuned.compiler, "clang")
    lu.assertEquals(variant.tuned.file, self.name)
    lu.assertStrContains(bundle.files[1].text:gsub("%s*\n %*%s*", " "), "tuned on A CPU with "
        .. "clang -O2 (" .. self.name .. ", fnv1a64 " .. variant.tuned.fnv1a64)
    lu.assertStrContains(generate.describe(generate.plan(record)), "plan: tuned on A CPU")
end

-- The banner's own config, wherever its tuning file is, gives the same files.
function TestTuned:test_the_resolved_config_is_enough()
    self:write(RESULT)
    local bundle <const> = generate.bundle((self:apply()))
    local again <const> = config.validate(dkjson.decode(dkjson.encode(bundle.manifest.config)),
        "banner", "test")
    lu.assertEquals(generate.bundle(again).files, bundle.files)
end

function TestTuned:test_only_the_same_config_finds_it()
    self:write(RESULT)
    for _, change in ipairs({ { seq_len = 18 }, { mask = "causal" }, { target = { l2 = 1 } },
        { code_budget = 9999 } }) do
        local raw <const> = {}
        for _, source in ipairs({ SHORT, change }) do
            for key, value in pairs(source) do
                raw[key] = value
            end
        end
        local record <const> = record_of(raw)
        lu.assertIs(self:apply(record), record)
    end
    local renamed <const> = record_of({ seq_len = 17, d_model = 16, heads = 2, isa = "avx2",
        name = "other" })
    lu.assertNotNil(self:apply(renamed).tuning)
    local off <const> = record_of({ seq_len = 17, d_model = 16, heads = 2, isa = "avx2",
        tuning = false })
    lu.assertFalse(self:apply(off).tuning)
    lu.assertStrContains(generate.describe(generate.plan(off)), "plan: planner's default")
end

function TestTuned:test_another_version_does_not_count_and_says_so()
    self:write(RESULT, { "attngen %d+%.%d+%.%d+", "attngen 99.0.0" })
    local record <const>, errors, notes = self:apply()
    lu.assertIs(record, self.record)
    lu.assertNil(errors)
    lu.assertStrContains(notes[1], "attngen 99.0.0")
    lu.assertStrContains(notes[1], tuned.GENERATOR)
end

function TestTuned:test_damaged_files_are_refused_by_name()
    for _, edit in ipairs({ { '"rows":3', '"rows":99' }, { '"level":"%-O2"', '"level":"-Ofast"' },
        { '"format":1', '"format":2' }, { "^{", "" }, { '"A CPU"', '"\\n*/"' } }) do
        self:write(RESULT, edit)
        local record <const>, errors = self:apply()
        lu.assertNil(record, edit[2])
        lu.assertStrContains(config.format_errors(errors), self.name)
    end
end

-- Moved, or edited: a file that is not of the config and the ISA it is found for.
function TestTuned:test_files_of_something_else_are_refused_by_name()
    for _, case in ipairs({ { '"isa":"avx2"', '"isa":"scalar"', "isa" },
        { '"seq_len":17', '"seq_len":18', "config.seq_len" },
        { '"seq_len":17,', "", "config.seq_len" },
        { '"seq_len":17', '"seq_len":1e999', "config.seq_len" },
        { '"seq_len":17', '"seq_len":17,"other":1', "config: has keys" },
        { '"config":{.-},%s*"cpu"', '"config":null,"cpu"', "config" },
        { '"config":{.-},%s*"cpu"', '"config":[1],"cpu"', "config.batch" },
        { '"compiler":"clang",', "", "compiler" }, { '"cpu":"A CPU",', "", "cpu" },
        { '"level":"%-O2",', "", "level" }, { '"generator":"[^"]*"', '"generator":7', "generator" },
        { '"generator":"[^"]*",', "", "generator" } }) do
        local whole <const> = self:write(RESULT)
        lu.assertNotEquals(self:write(RESULT, case), whole, case[1])
        local record <const>, errors = self:apply()
        lu.assertNil(record, case[2])
        local text <const> = config.format_errors(errors)
        lu.assertStrContains(text, self.name)
        lu.assertStrContains(text, ".json: " .. case[3])
    end
    self.scratch:write(self.name, ('{"format":1,"generator":"%s"}'):format(tuned.GENERATOR))
    local _, errors = self:apply()
    lu.assertStrContains(config.format_errors(errors), "plan: is missing")
end

function TestTuned:test_an_unreadable_file_is_named_once()
    process.run({ "mkdir", "-p", self.scratch:path(self.name) })
    local _, errors = self:apply()
    local _, count = config.format_errors(errors):gsub(".json", "")
    lu.assertEquals(count, 1)
end

function TestTuned:test_a_default_that_won_is_said()
    self:write({ plan = {}, level = "-O3", compiler = "gcc", cpu = "A CPU" })
    lu.assertStrContains(generate.describe(generate.plan((self:apply()))),
        "which the planner's default won")
end

function TestTuned:test_a_tuned_plan_keeps_what_the_config_fixes()
    local record <const> = record_of({ seq_len = 17, d_model = 16, heads = 2, isa = "avx2",
        plan = { context = { rows = 2 } } })
    local _, errors = config.validate_tuning(record, { avx2 = { plan = {} } }, "f.json")
    lu.assertStrContains(config.format_errors(errors), "tuning.avx2.plan.context.rows")
    lu.assertNotNil(config.validate_tuning(record, { avx2 = { plan = {
        context = { rows = 2 } } } }, "f.json"))
end

----------------------------------------------------------------------------------------------------

TestReports = {}

local ENTRIES <const> = {
    { type = "result", key = "compiler=gcc level=-O3", set = {}, compiler = "gcc", level = "-O3",
        status = "ok", best_us = 2.0, median_us = 2.5, samples = { 2.0, 2.5 },
        build_seconds = 0.5, run_seconds = 0.1, max_error = 1e-7, code_bytes = 100,
        time = "2026-01-01T00:00:00Z" },
    { type = "result", key = "b", set = { ["scores.rows"] = 3 }, compiler = "clang",
        level = "-O2", status = "ok", best_us = 1.5, median_us = 1.6, samples = { 1.5 } },
    { type = "result", key = "c", set = {}, compiler = "gcc", level = "-O2", status = "crash",
        message = "SIGSEGV" },
    { type = "result", key = "d", set = {}, compiler = "gcc", level = "-O2", status = "same" },
    { type = "duel", first = "a", second = "b" },
}

-- The required fields and the types of results-schema.json 1.0.0.
function TestReports:test_t4()
    local text <const> = t4.encode(ENTRIES, { "compiler", "level", "scores.rows" })
    local data <const> = dkjson.decode(text)
    lu.assertEquals(data.schema_version, "1.0.0")
    lu.assertEquals(#data.results, 3)
    local words <const> = {}
    for index, result in ipairs(data.results) do
        words[index] = result.invalidity
        lu.assertIsTable(result.configuration)
        lu.assertIsNumber(result.times.compilation_time)
        lu.assertIsTable(result.times.runtimes)
        lu.assertEquals(result.objectives, { "time" })
        lu.assertIsNumber(result.correctness)
        lu.assertIsTable(result.measurements)
    end
    lu.assertEquals(words, { "correct", "correct", "runtime" })
    lu.assertEquals(data.results[1].configuration,
        { compiler = "gcc", level = "-O3", ["scores.rows"] = "default" })
    lu.assertEquals(data.results[2].configuration["scores.rows"], 3)
    lu.assertEquals(data.results[1].times.runtimes, { 0.002, 0.0025 })
    lu.assertEquals(data.results[3].correctness, 0)
    lu.assertNil(text:find('"runtimes":{', 1, true))
end

function TestReports:test_page_is_well_formed_and_says_it_all()
    local text <const> = page.html({ name = "a<b", isa = "avx2", cpu = "A & B", generator = "g",
        strategy = "greedy", tried = 4, size = 10, reason = "everything was tried",
        winner = "b", best_us = 1.5, default_us = 2.0, openblas_us = 5.0, openblas = "OpenBLAS",
        entries = ENTRIES, failures = { { status = "crash", count = 1, message = "SIGSEGV" } },
        dimensions = { { name = "scores.tile", values = 2, illegal = 1, same = 0, hopeless = 3,
            winner = "3x2" } } })
    for _, word in ipairs({ "a&lt;b", "A &amp; B", "1.50 µs", "2.00 µs", "OpenBLAS", "SIGSEGV",
        "3x2", "1.333×" }) do
        lu.assertStrContains(text, word)
    end
    lu.assertNil(text:find("<script", 1, true))
    lu.assertNil(text:find("nan", 1, true))
    local open <const> = {}
    for close, tag, rest in text:gsub("<!doctype[^>]*>", ""):gsub("<style>.-</style>", "")
        :gmatch("<(/?)(%a[%w]*)([^>]*)>") do
        if close == "/" then
            lu.assertEquals(table.remove(open), tag)
        elseif not rest:find("/$") and tag ~= "meta" then
            open[#open + 1] = tag
        end
    end
    lu.assertEquals(open, {})
end

-- The planner's own choice may be what does not run.
function TestReports:test_page_without_a_default()
    lu.assertStrContains(page.html({ name = "a", isa = "avx2", cpu = "c", generator = "g",
        strategy = "greedy", tried = 2, size = 10, reason = "everything was tried", winner = "b",
        best_us = 1.5, entries = { ENTRIES[2], ENTRIES[3] }, failures = {}, dimensions = {} }),
        "did not run")
end

if arg and arg[0] and arg[0]:find("test_tune_space%.lua$") then
    TestDuel = {}

-- {good, slow, good, …} as times of those states.
local function times(list)
    local made <const> = {}
    for i, pair in ipairs(list) do made[i] = { state = pair[1], us = pair[2] } end
    return made
end

function TestDuel:test_times_of_two_states_are_not_compared()
    local function best(first, second)
        return { session.best_of_same_state(times(first), times(second)) }
    end
    local good <const>, slow <const> = "good", "slow"
    lu.assertEquals(best({ { slow, 9 }, { good, 5 } }, { { good, 4 }, { slow, 3 } }), { 5, 4 })
    lu.assertEquals(best({ { slow, 9 }, { slow, 8 } }, { { good, 4 }, { slow, 10 } }), { 8, 10 })
    lu.assertEquals(best({ { slow, 9 } }, { { good, 4 } }), {})
end

os.exit(lu.LuaUnit.run())
end
