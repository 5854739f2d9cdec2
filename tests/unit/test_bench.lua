-- attngen bench: what it counts, how samples become figures, the table, the page, the command.

package.path = "./?.lua;./?/init.lua;" .. package.path
local dkjson <const> = require("dkjson")
local lu <const> = require("luaunit")

local blas <const> = require("gen.bench.blas")
local config <const> = require("gen.config")
local flops <const> = require("gen.bench.flops")
local fs <const> = require("gen.fs")
local host <const> = require("gen.host")
local html <const> = require("gen.bench.html")
local process <const> = require("gen.process")
local readme <const> = require("gen.bench.readme")
local session <const> = require("gen.bench.session")
local statistics <const> = require("gen.bench.statistics")
local support <const> = require("tests.unit.support")
local svg <const> = require("gen.bench.svg")
local table_text <const> = require("gen.bench.table")
local toolchain <const> = require("gen.toolchain")

local function record_of(raw)
    raw.isa = "scalar"
    return assert(config.validate(raw, "test", "test"))
end

TestBenchFlops = {}

-- MFLOP of projections and core as performance people count them, rounded to what is published.
function TestBenchFlops:test_known_shapes()
    local expected <const> = {
        ["seed-a"] = { 0.016, 0.002 }, ["seed-b"] = { 0.262, 0.008 },
        ["tiny-ov"] = { 0.524, 0.262 }, kwt1 = { 3.24, 2.51 }, kwt3 = { 29.2, 7.53 },
        ["swin-t"] = { 231, 59.0 }, tinybert = { 99.7, 20.4 }, minilm = { 151, 25.2 },
        bert = { 604, 50.3 }, ["vit-ti"] = { 58.1, 29.8 }, ["vit-b"] = { 930, 119 },
        ["clip-txt"] = { 161, 6.15 }, stories = { 170, 37.9 }, gpt2 = { 4832, 1612 },
        ["whisper-e"] = { 1769, 3456 },
    }
    local seen = 0
    for _, name in ipairs(assert(fs.list("bench/shapes"))) do
        local id <const> = name:gsub("%.lua$", "")
        local records <const> = config.load("bench/shapes/" .. name, {})
        if records and expected[id] then
            seen = seen + 1
            local count <const> = flops.count(records[1])
            for index, value in ipairs({ count.projections, count.core }) do
                lu.assertAlmostEquals(value * 1e-6 / expected[id][index], 1.0, 0.03, id)
            end
        end
    end
    lu.assertEquals(seen, 15)
    lu.assertEquals(#fs.list("bench/shapes"), 17)
end

function TestBenchFlops:test_a_cache_is_not_projected_again()
    local record <const> = { seq_len = 1, kv_len = 512, batch = 1, d_model = 576, kv_dim = 576,
        heads = 9, kv_heads = 3, head_dim = 64, v_head_dim = 64, output_projection = true,
        mask = { causal = true, lengths = true }, causal_align = "lengths", op = "mha",
        kv_cache = "append" }
    lu.assertEquals(flops.count(record), { projections = 2 * (576 * 576 * 2 + 576 * 384),
        core = 2 * 512 * 2 * 576 })
    record.kv_cache = "static"
    lu.assertEquals(flops.count(record).projections, 2 * 576 * 576 * 2)
end

function TestBenchFlops:test_causal_alignments()
    local function core(raw)
        raw.op, raw.heads, raw.head_dim, raw.mask = "sdpa", 1, 1, "causal"
        return flops.count(record_of(raw)).core // 4
    end
    lu.assertEquals(core({ seq_len = 3, kv_len = 5, causal_align = "top_left" }), 1 + 2 + 3)
    lu.assertEquals(core({ seq_len = 3, kv_len = 5, causal_align = "bottom_right" }), 3 + 4 + 5)
    lu.assertEquals(core({ seq_len = 3, kv_len = 5, causal_align = -2 }), 0 + 0 + 1)
    lu.assertEquals(core({ seq_len = 3, kv_len = 5, causal_align = 9 }), 15)
end

TestBenchStatistics = {}

local function round_of(good, slow, extra)
    local round <const> = { samples_us = good, slow_samples_us = slow, peak_gflops = 100.0,
        load_gbytes_per_s = 50.0, traffic_bytes = 1000, max_error = 1e-6, first_call_us = 9.0 }
    for key, value in pairs(extra or {}) do
        round[key] = value
    end
    return round
end

function TestBenchStatistics:test_rounds_are_merged_but_states_are_not()
    local merged <const> = statistics.merge({
        round_of({ 4.0, 3.0 }, { 1.0 }, { peak_gflops = 90.0, first_call_us = 20.0 }),
        round_of({ 5.0, 4.5, 3.5 }, { 8.0, 6.0 }),
    })
    lu.assertEquals(merged.best_us, 3.0)
    lu.assertEquals(merged.median_us, 4.0)
    lu.assertEquals(merged.slow_best_us, 1.0)
    lu.assertEquals(merged.slow_median_us, 6.0)
    lu.assertEquals({ merged.good_samples, merged.slow_samples, merged.rounds }, { 5, 3, 2 })
    lu.assertEquals(merged.peak_gflops, 100.0)
    lu.assertEquals(merged.first_call_us, 20.0) -- the process that ran first
    lu.assertEquals(#merged.deciles_us, 11)
    lu.assertEquals({ merged.deciles_us[1], merged.deciles_us[11] }, { 3.0, 5.0 })
    local shared <const> = statistics.merge({ round_of({}, { 2.0 }, { disturbed_samples = 1,
        all_disturbed = true }), round_of({}, { 3.0 }, { disturbed_samples = 2 }) })
    lu.assertEquals(shared.slow_best_us, 3.0)
    lu.assertEquals(shared.disturbed_samples, 3)
    local few <const> = statistics.merge({ round_of({ 1.0, 1.0, 1.0, 1.0 }, { 2.0 }) })
    lu.assertNil(few.best_us)
    lu.assertEquals(few.slow_best_us, 2.0)
    lu.assertEquals(few.good_samples, 4)
end

function TestBenchStatistics:test_the_limit_is_whichever_takes_longer()
    local five <const> = { 20.0, 20.0, 20.0, 20.0, 20.0 }
    local compute <const> = statistics.merge({ round_of(five, {}) })
    statistics.add_limit(compute, 1000000)
    lu.assertEquals(compute.limit, "peak")
    lu.assertAlmostEquals(compute.bound_us, 10.0, 1e-9)
    lu.assertAlmostEquals(compute.percent_of_limit, 50.0, 1e-9)
    local load <const> = statistics.merge({ round_of(five, {},
        { traffic_bytes = 800000 }) })
    statistics.add_limit(load, 1000)
    lu.assertEquals(load.limit, "bandwidth")
    lu.assertAlmostEquals(load.bound_us, 16.0, 1e-9)
    lu.assertAlmostEquals(load.percent_of_limit, 80.0, 1e-9)
end

function TestBenchStatistics:test_ratios_stay_within_one_state()
    local both <const> = { best_us = 2.0, slow_best_us = 3.0 }
    lu.assertEquals({ statistics.ratio(both, { best_us = 4.0, slow_best_us = 9.0 }) },
        { 2.0, false })
    lu.assertEquals({ statistics.ratio(both, { slow_best_us = 9.0 }) }, { 3.0, true })
    lu.assertNil((statistics.ratio({ best_us = 1.0 }, { slow_best_us = 9.0 })))
end

TestBenchBlas = {}

function TestBenchBlas:test_only_cores_this_cpu_runs()
    local function machine(...)
        local flags <const> = {}
        for _, name in ipairs({ ... }) do
            flags[name] = true
        end
        return { arch = "x86_64", flags = flags }
    end
    lu.assertEquals(blas.candidates(machine("sse4_2", "avx", "avx2", "fma")), { "Haswell", "Zen" })
    lu.assertEquals(blas.candidates(machine("sse4_2")), { "Nehalem" })
    lu.assertItemsEquals(blas.candidates(machine("sse4_2", "avx", "avx2", "fma", "avx512f",
        "avx512bw", "avx512dq", "avx512vl")), { "Haswell", "Zen", "SkylakeX" })
    lu.assertEquals(blas.candidates({ arch = "riscv64", flags = {} }), {})
end

function TestBenchBlas.test_short_names_of_libraries()
    lu.assertEquals(blas.short_name("OpenBLAS 0.3.21 NO_LAPACKE Zen"), "OpenBLAS 0.3.21")
    lu.assertEquals(blas.short_name("Intel(R) oneAPI Math Kernel Library Version 2026.2-Product "
        .. "Build 20260915"), "MKL 2026.2")
    lu.assertEquals(blas.short_name("something, else"), "something")
end

function TestBenchBlas:test_the_fastest_core_that_is_right()
    local trials <const> = {
        { core = "Haswell", result = { core = "Haswell", best_us = 5.0 } },
        { core = "Zen", problem = { kind = "wrong", message = "wrong by up to 1" } },
        { core = "SkylakeX", result = { core = "Prescott", best_us = 1.0 } },
        { core = "Cooperlake", result = { core = "cooperlake", slow_best_us = 4.0 } },
    }
    lu.assertEquals(blas.choose(trials).core, "Cooperlake")
    lu.assertEquals(trials[2].reason, "wrong by up to 1")
    lu.assertStrContains(trials[3].reason, "Prescott")
    lu.assertNil(trials[1].reason)
    lu.assertNil(blas.choose({ trials[2] }))
end

function TestBenchBlas:test_the_full_measurement_settles_which_core_is_fastest()
    local function entry(packaged, fastest)
        local results <const> = { { subject = "attngen" },
            { subject = "openblas", settings = { "packaged" }, best_us = packaged },
            { subject = "openblas", settings = { "fastest" }, best_us = fastest } }
        session.settle_fastest({ results = results })
        return { results[2].settings, results[3].settings }
    end
    lu.assertEquals(entry(2.0, 1.0), { { "packaged" }, { "fastest" } })
    lu.assertEquals(entry(1.0, 2.0), { { "packaged", "fastest" }, { "tried" } })
    lu.assertEquals(entry(1.0, nil), { { "packaged" }, { "fastest" } })
end

TestBenchReport = {}

local function result_of(extra)
    local result <const> = statistics.merge({
        round_of({ 20.0, 20.0, 20.5, 21.0, 21.0 }, { 30.0 }) })
    statistics.add_limit(result, 1000000)
    for key, value in pairs(extra) do
        result[key] = value
    end
    return result
end

local function document()
    return { format = 1, generator = "0", isas = { "avx2" },
        compilers = { { name = "gcc", version = "gcc 12" } },
        machine = { cpu = "Test <CPU>", arch = "x86_64", rates = { { isa = "avx2",
            peak_gflops = 100.0, product_gflops = 99.0, load = { { bytes = 16384,
                gbytes_per_s = 200.0 }, { bytes = 1 << 27, gbytes_per_s = 10.0 } } } } },
        shapes = {
            { id = "one", name = "one", flops = { projections = 900000, core = 100000 },
                rejected_cores = { { core = "Zen", reason = "SIGILL" } },
                results = {
                    result_of({ subject = "attngen", isa = "avx2", compiler = "gcc",
                        code_bytes = 20000, compile_seconds = 1.5 }),
                    result_of({ subject = "attngen", isa = "avx2", compiler = "clang",
                        best_us = 19.0 }),
                    result_of({ subject = "openblas", settings = { "packaged", "fastest" },
                        core = "Haswell", blas_library = "OpenBLAS 0.3.21 X", best_us = 38.0 }),
                    result_of({ subject = "torch", label = "PyTorch 2.13", best_us = 57.0 }),
                    { subject = "attngen", isa = "avx512", compiler = "gcc",
                        failure = { kind = "crash", message = "SIGILL" } },
                } },
            { id = "two", refused = "kv_cache: not supported yet", results = {} },
        } }
end

function TestBenchReport:test_table()
    local text <const> = table_text.describe(document())
    lu.assertStrContains(text, "CPU: Test <CPU>")
    lu.assertStrMatches(text, ".*one +avx2 gcc +20%.00 +20%.50 +50%.0 peak +1%.90x +1%.90x .*")
    lu.assertStrMatches(text, ".*one +OpenBLAS Haswell %(packaged, fastest%) +38%.00.*")
    lu.assertStrContains(text, "one, avx512 gcc: crash: SIGILL")
    lu.assertStrContains(text, "two: refused: kv_cache: not supported yet")
    lu.assertStrContains(text, "OpenBLAS core Zen not used: SIGILL")
    lu.assertNotStrContains(text, "never in its good state")
end

function TestBenchReport:test_slow_figures_are_marked()
    local doc <const> = document()
    doc.shapes[1].results[1].best_us = nil
    doc.shapes[1].results[1].median_us = nil
    doc.shapes[1].results[1].percent_of_limit = nil
    local text <const> = table_text.describe(doc)
    lu.assertStrMatches(text, ".*one +avx2 gcc +%(30%.00%) +%(30%.00%) +%(33%.3%) peak.*")
    lu.assertStrContains(text, "never in its good state")
end

function TestBenchReport:test_the_fastest_kernel_speaks_for_a_shape()
    lu.assertEquals(table_text.fastest(document().shapes[1]).compiler, "clang")
    lu.assertNil(table_text.fastest(document().shapes[2]))
end

function TestBenchReport:test_page()
    local skeleton <const> = assert(fs.read("templates/bench.html.in"))
    local page <const> = html.render(document(), skeleton)
    lu.assertStrContains(page, "attngen on Test &lt;CPU&gt;")
    lu.assertStrContains(page, "one, PyTorch 2.13: 3.00")
    lu.assertStrContains(page, "one, OpenBLAS, fastest core: 2.00")
    lu.assertEquals(select(2, page:gsub("<svg ", "")), select(2, page:gsub("</svg>", "")))
    lu.assertEquals(select(2, page:gsub("<svg ", "")), 2)
    lu.assertNotStrContains(page, "nan")
    lu.assertNotStrContains(page, "http")
    local empty <const> = document()
    empty.shapes = { empty.shapes[2] }
    lu.assertStrContains(html.render(empty, skeleton), "Nothing was measured")
end

function TestBenchReport:test_readme_table()
    local text <const> = readme.tables({ { document = document(), link = "docs/x.html" } })
    lu.assertStrContains(text, "Test <CPU>, one core; FMA peak avx2 100 GF/s; gcc 12. "
        .. "[All figures](docs/x.html)")
    lu.assertStrContains(text, "| shape | µs | of the limit | OpenBLAS as packaged | "
        .. "OpenBLAS, fastest core | PyTorch 2.13 |\n|---|---|---|---|---|---|\n")
    lu.assertStrContains(text, "| one | 19.00 | 50 % peak, avx2 clang | 2.00× Haswell | "
        .. "2.00× Haswell | 3.00× |")
    lu.assertNotStrContains(text, "two")
    lu.assertStrContains(readme.tables({}), "make bench-record")
end

function TestBenchReport:test_log_scale()
    local scale <const> = svg.log_scale(1, 16, 0, 100, 2)
    lu.assertAlmostEquals(scale.at(4), 50.0, 1e-9)
    lu.assertEquals(scale.ticks(), { 1, 2, 4, 8, 16 })
end

TestBenchCommand = {}

function TestBenchCommand:setUp()
    self.scratch = support.new_scratch()
end

function TestBenchCommand:tearDown()
    self.scratch:remove()
end

function TestBenchCommand:test_a_short_run()
    self.scratch:write("tiny.lua", "return { seq_len = 3, d_model = 8, heads = 2 }")
    -- Not build/bench, which a measurement may have taken.
    local result <const> = self.scratch:attngen(("-q bench tiny.lua --isa scalar --cc gcc --short "
        .. "--json out.json --html out.html --work '%s/build/tests/short'"):format(support.root))
    lu.assertEquals(result.code, 0, result.err)
    lu.assertStrContains(result.out, "scalar gcc")
    local doc <const> = dkjson.decode(self.scratch:read("out.json"))
    lu.assertEquals(doc.format, 1)
    lu.assertTrue(doc.settings.short)
    local entry <const> = doc.shapes[1]
    lu.assertEquals(entry.id, "tiny")
    local ours <const>, openblas <const> = entry.results[1], entry.results[2]
    lu.assertTrue(ours.right)
    lu.assertTrue(ours.tolerance_share < 1.0)
    lu.assertEquals(ours.good_samples + ours.slow_samples + ours.disturbed_samples, 5)
    lu.assertTrue(ours.cold_best_us > 0.0)
    lu.assertTrue(ours.code_bytes > 0)
    lu.assertEquals(openblas.subject, "openblas")
    lu.assertNil(openblas.failure)
    lu.assertStrContains(self.scratch:read("out.html"), "</html>")
end

function TestBenchCommand:test_usage_errors_measure_nothing()
    self.scratch:write("bad.lua", "return { seq_len = 0 }")
    self.scratch:write("tiny.lua", "return { seq_len = 3, d_model = 8, heads = 2 }")
    local cases <const> = {
        { "no-such.lua", "no-such.lua" }, { "bad.lua", "seq_len" },
        { "--isa avx3", "avx3" }, { "--cc tcc", "tcc" }, { "--rounds 0", "--rounds" },
        { "--seconds much", "--seconds" }, { "--push 'cp {} x'", "--runner" },
        { "--set heads=2", "CONFIG" }, { "--cc gcc,gcc", "'gcc' is there twice" },
        { "--isa scalar,scalar", "'scalar' is there twice" }, { "--cc ''", "--cc" },
        { "--isa scalar,", "--isa" }, { "--runner ''", "--runner takes a command" },
        { "--runner sh --push '  '", "--push takes a command" },
        { "--runner no-such-program", "--runner: there is no program 'no-such-program'" },
        { "--cpu 1023", "--cpu 1023: this machine has no such core" }, { "--cpu x", "--cpu" },
        { "--work ''", "--work takes a path" },
        { "tiny.lua --set isa=scalar,neon", "--set isa=scalar,neon: bench takes" },
    }
    if not host.can_run("neon") then
        cases[#cases + 1] = { "--isa neon", "--runner" }
    end
    for _, case in ipairs(cases) do
        local result <const> = self.scratch:attngen("bench " .. case[1])
        lu.assertEquals(result.code, 2, case[1])
        lu.assertStrContains(result.err, case[2])
        lu.assertEquals(result.out, "")
    end
end

-- What cannot be written in the end is refused before anything is measured, and nothing is lost.
function TestBenchCommand:test_outputs_are_checked_first()
    local TINY <const> = '{"seq_len": 3, "d_model": 8, "heads": 2}'
    self.scratch:write("tiny.json", TINY)
    process.run({ "ln", self.scratch:path("tiny.json"), self.scratch:path("hard.json") })
    process.run({ "mkdir", self.scratch:path("sub") })
    local shape <const> = support.root .. "/bench/shapes/bert.lua"
    for _, case in ipairs({ { "tiny.json --json tiny.json", "overwrite tiny.json" },
        { "tiny.json --html ./hard.json", "overwrite tiny.json" },
        { "--html " .. shape, "bert.lua: this output would overwrite " },
        { "tiny.json --json ./x --html x", "./x and x: two outputs" },
        { "tiny.json --json new/x --html sub/../new/x", "two outputs" },
        { "tiny.json --json x --html x", "two outputs" },
        { "tiny.json --json /proc/x", "/proc: the directory is read-only" },
        { "tiny.json --json /proc/none/x", "/proc/none" },
        { "tiny.json --html tiny.json/x", "tiny.json" }, { "tiny.json --html ''", "no file" },
        { "tiny.json --json new/", "no file" }, { "tiny.json --html sub", "is a directory" } }) do
        local result <const> = self.scratch:attngen("bench --short --work w " .. case[1])
        lu.assertEquals(result.code, 2, case[1])
        lu.assertStrContains(result.err, case[2])
        lu.assertEquals(result.out, "")
        lu.assertEquals(self.scratch:list(), { "hard.json", "sub", "tiny.json" })
        lu.assertEquals(self.scratch:read("tiny.json"), TINY)
    end
end

-- The shell has "true" and "exec" of its own: one is a program as well.
function TestBenchCommand:test_programs_are_told_from_words_of_the_shell()
    lu.assertStrMatches(toolchain.find_program("true"), "/.*/true")
    lu.assertNil(toolchain.find_program("exec"))
    lu.assertNil(toolchain.find_program("/bin"))
    lu.assertNil(toolchain.find_program(""))
    lu.assertEquals(toolchain.find_program("./attngen"), "./attngen")
end

-- Two runs in one directory would measure each other's kernels.
function TestBenchCommand:test_a_directory_in_use_is_refused_at_once()
    self.scratch:write("tiny.lua", "return { seq_len = 3, d_model = 8, heads = 2, isa = 'scalar' }")
    local work <const> = self.scratch:path("work")
    assert(fs.lock_directory(work))
    for _, verb in ipairs({ "bench tiny.lua --short --no-blas", "tune tiny.lua --budget 1" }) do
        local result <const> = self.scratch:attngen(("%s --work '%s'"):format(verb, work))
        lu.assertEquals(result.code, 2)
        lu.assertStrContains(result.err, work .. ": another attngen is at work")
        lu.assertStrContains(result.err, "--work")
    end
    lu.assertEquals(self.scratch:list("work"), { "lock" })
end

if arg and arg[0] and arg[0]:find("test_bench%.lua$") then
    os.exit(lu.LuaUnit.run())
end
