-- gen.bench.build and gen.bench.measure: what a kernel that works, does not compile, is wrong,
-- crashes or never ends gives. Builds one small kernel; times nothing that could fail.

package.path = "./?.lua;./?/init.lua;" .. package.path
local lu <const> = require("luaunit")

local build <const> = require("gen.bench.build")
local config <const> = require("gen.config")
local fs <const> = require("gen.fs")
local host <const> = require("gen.host")
local measure <const> = require("gen.bench.measure")
local process <const> = require("gen.process")
local support <const> = require("tests.unit.support")
local toolchain <const> = require("gen.toolchain")

-- Kept from run to run: ninja builds the probe once.
local DIR <const> = "build/tests/bench"

local QUICK <const> = { seconds = 0.01, samples = 5 }

local function record_of(raw, name)
    raw.isa = "scalar"
    return assert(config.validate(raw, "test", name))
end

local function small(extra)
    local raw <const> = { seq_len = 3, d_model = 4, heads = 2 }
    for key, value in pairs(extra or {}) do
        raw[key] = value
    end
    return record_of(raw, "small")
end

-- A kernel for the same case whose forward is `body`.
local function fake_source(body)
    return ([[
#include <attngen/kernel.h>
static int forward(const void *packed, const attn_args *args, void *workspace)
{
    (void)packed, (void)args, (void)workspace;
    %s
    return 0;
}
const attn_kernel fake_kernel = {.abi = ATTN_KERNEL_ABI, .name = "fake", .isa = "scalar",
    .y_elements = 12, .alignment = 64, .forward = forward};
]]):format(body)
end

TestBenchBuild = {}

function TestBenchBuild:setUp()
    self.scratch = support.new_scratch()
    self.builder = build.new({ root = ".", dir = DIR })
end

function TestBenchBuild:tearDown()
    self.scratch:remove()
end

function TestBenchBuild:fake(item, body)
    local source <const> = self.scratch:write("fake.c", fake_source(body))
    local shared <const> = self.scratch:path("fake.so")
    lu.assertEquals(process.run({ "gcc", "-Iruntime/include", "-fPIC", "-shared", "-o", shared,
        source }), 0)
    return { probe = item.probe, case = item.case, shared = shared, prefix = "fake" }
end

-- On a full disk what the compiler said is lost as well.
function TestBenchBuild:test_a_build_that_fails_without_a_word_is_explained()
    local builder <const> = build.new({ root = ".", dir = self.scratch:path("full"),
        capture = function() return 1, "" end })
    assert(builder:add_probe("scalar"))
    local ok <const>, message = builder:run()
    lu.assertNil(ok)
    lu.assertStrContains(message, self.scratch:path("full"))
    lu.assertStrContains(message, "status 1 and said nothing")
end

-- A core that there is not: the figures would be another one's.
function TestBenchBuild:test_a_core_asked_for_is_the_core_or_nothing_is_measured()
    local item <const> = assert(self.builder:add({ key = "pinned", isa = "scalar", compiler = "gcc",
        record = small({}) }))
    lu.assertTrue(self.builder:run())
    lu.assertTrue(measure.prepare_truth(item.probe, item.case))
    for _, attempt in ipairs({ measure.run, function() return measure.machine(item.probe,
        { cpu = 1023 }) end }) do
        local result <const>, problem = attempt(item, { seconds = 0.01, cpu = 1023 })
        lu.assertNil(result)
        lu.assertEquals(problem.message, "cannot stay on CPU 1023")
    end
end

-- --fill reaches the kernel as lengths, and the answer it is judged by.
function TestBenchBuild:test_items_have_the_share_of_keys_asked_for()
    local item <const> = assert(self.builder:add({ key = "filled", isa = "scalar", compiler = "gcc",
        record = small({ mask = "lengths" }) }))
    lu.assertTrue(self.builder:run())
    local filled <const> = { seconds = 0.01, samples = 5, fill = 0.6 }
    lu.assertTrue(measure.prepare_truth(item.probe, item.case, filled))
    local result <const>, failed = measure.run(item, filled)
    lu.assertNotNil(result, failed and failed.message)
    lu.assertTrue(result.right)
    local fake <const> = self:fake(item, "if (args->kv_lengths[0] != 2) return 5;")
    local _, called = measure.run(fake, filled)
    lu.assertEquals(called.kind, "wrong")
    local _, full = measure.run(fake, QUICK)
    lu.assertEquals(full.kind, "failed")
end

-- --logits scales the queries, and the answer the kernel is judged by.
function TestBenchBuild:test_queries_are_scaled_as_asked_for()
    local item <const> = assert(self.builder:add({ key = "scaled", isa = "scalar", compiler = "gcc",
        record = small({}) }))
    lu.assertTrue(self.builder:run())
    local scaled <const> = { seconds = 0.01, samples = 5, logits = 400 }
    lu.assertTrue(measure.prepare_truth(item.probe, item.case, scaled))
    local result <const>, failed = measure.run(item, scaled)
    lu.assertNotNil(result, failed and failed.message)
    lu.assertTrue(result.right)
    local plain <const> = assert(measure.run(item, QUICK))
    lu.assertNotEquals(result.max_error, plain.max_error)
end

function TestBenchBuild:test_all_outcomes()
    local item <const> = assert(self.builder:add({ key = "good", record = small(),
        isa = "scalar", compiler = "gcc" }))
    local broken <const> = assert(self.builder:add({ key = "broken", record = small(),
        isa = "scalar", compiler = "gcc", flags = { "-DATTN_OK=" } }))
    lu.assertTrue(self.builder:run())

    lu.assertTrue(item.ok, item.message)
    lu.assertTrue(item.code_bytes > 100 and item.code_bytes < 1000000)
    lu.assertTrue(item.compile_seconds > 0.0 and item.compile_seconds < 60.0)
    lu.assertFalse(broken.ok)
    lu.assertStrContains(broken.message, "error")

    fs.remove(item.case.truth)
    lu.assertTrue(measure.prepare_truth(item.probe, item.case))
    lu.assertTrue(fs.is_file(item.case.truth))
    local result <const>, failed = measure.run(item, QUICK)
    lu.assertNotNil(result, failed and failed.message)
    lu.assertTrue(result.right)
    lu.assertEquals(result.isa, "scalar")
    lu.assertEquals(result.good_samples + result.slow_samples + result.disturbed_samples, 5)
    lu.assertTrue(#result.samples_us + #result.slow_samples_us > 0)
    lu.assertEquals(result.good_samples, #result.samples_us)
    lu.assertTrue(result.tolerance_share < 1.0)
    lu.assertTrue(result.peak_gflops > 0.0 and result.first_call_us > 0.0)

    local outcomes <const> = {
        { "__builtin_trap();", "crash" },
        { "for (volatile int i = 1; i;) { }", "hang" },
        { "for (int i = 0; i < 12; i++) { args->y[i] = 0.0F; }", "wrong" },
        { "return 5;", "failed" },
    }
    for _, outcome in ipairs(outcomes) do
        local none, problem = measure.run(self:fake(item, outcome[1]),
            { seconds = 0.01, samples = 5, timeout = 1 })
        lu.assertNil(none)
        lu.assertEquals(problem.kind, outcome[2], problem.message)
    end
    lu.assertEquals(select(2, measure.run(self:fake(item, "return 5;"), QUICK)).message,
        "forward returned 5")
end

function TestBenchBuild:test_a_linked_program_can_be_pushed()
    local item <const> = assert(self.builder:add({ key = "alone", record = small(),
        isa = "scalar", compiler = "gcc", linked = true }))
    lu.assertTrue(self.builder:run())
    lu.assertTrue(item.ok, item.message)
    fs.remove(item.case.truth)
    local board <const> = self.scratch:path("board")
    assert(fs.make_directories(board))
    local none, problem = measure.run(item, { seconds = 0.01, samples = 5,
        push = { "cp", "{}", board } })
    lu.assertNil(none)
    lu.assertStrContains(problem.message, ".truth") -- not prepared, so it cannot be copied
    local result, failed = measure.run(item, QUICK)
    lu.assertNotNil(result, failed and failed.message)
    result, failed = measure.run(item, { seconds = 0.01, samples = 5,
        push = { "cp", "{}", board },
        runner = { "sh", "-c", ('cd "%s" && exec "$0" "$@"'):format(board) } })
    lu.assertNotNil(result, failed and failed.message)
    lu.assertTrue(result.right)
end

function TestBenchBuild:test_a_refused_plan_is_a_result()
    local record <const> = small({ unroll = "full", code_budget = 1 })
    local none, message = self.builder:add({ key = "refused", record = record, isa = "scalar",
        compiler = "gcc" })
    lu.assertNil(none)
    lu.assertStrContains(message, "code_budget")
end

function TestBenchBuild:test_the_blas_layer_is_right_with_every_mask()
    local library <const> = "libopenblas.so.0"
    local shapes <const> = {
        {}, { mask = "causal" }, { mask = "lengths" }, { bias = false }, { seq_len = 40 },
        { mask = { "padding", "causal" }, seq_len = 37, batch = 2 },
        { mask = "bool", mask_shape = { 1, 2, 3, 3 } },
        { mask = "additive", empty_row = "zero" },
        { kv_heads = 1, cross = true, kv_len = 50, kv_dim = 7, seq_len = 1 },
        { output_projection = false, v_head_dim = 5 },
        { kv_cache = "static", seq_len = 1, kv_len = 21, kv_heads = 1, batch = 2 },
        { kv_cache = "append", seq_len = 1, kv_len = 21, kv_heads = 1, batch = 2 },
        { kv_cache = "append", seq_len = 3, kv_len = 9, batch = 2, bias = false },
        { queries = "first", seq_len = 1, kv_len = 9, batch = 3 },
        { queries = "last", seq_len = 2, kv_len = 9, batch = 2, mask = "causal" },
    }
    local probe <const> = assert(self.builder:add_probe(host.native_isa()))
    local cases <const> = {}
    for index, extra in ipairs(shapes) do
        cases[index] = self.builder:add_case(small(extra))
    end
    cases[#cases + 1] = self.builder:add_case(record_of({ op = "sdpa", seq_len = 5, kv_len = 33,
        heads = 4, kv_heads = 2, head_dim = 6, v_head_dim = 3, batch = 2 }, "given"))
    lu.assertTrue(self.builder:run())
    for index, case in ipairs(cases) do
        local result, problem = measure.run_blas(probe, case, { file = library }, QUICK)
        lu.assertNotNil(result, ("case %d: %s"):format(index, problem and problem.message or ""))
        lu.assertStrContains(result.blas_library, "OpenBLAS")
    end
    local _, problem = measure.run_blas(probe, cases[1], { file = "libno-such-blas.so" }, QUICK)
    lu.assertEquals(problem.kind, "failed")
    lu.assertStrContains(problem.message, "libno-such-blas.so")
end

function TestBenchBuild:test_what_the_tools_print()
    lu.assertAlmostEquals(build.parse_times("0m0.0s 0m0.0s\n1m2.500s 0m0.250s\n"), 62.75, 1e-9)
    lu.assertEquals(build.parse_times(""), 0.0)
    lu.assertEquals(build.parse_size("kernel.o  :\nsection  size  addr\n.text  100  0\n"
        .. ".text.hot  20  0\n.rodata  7  0\nTotal 127\n"), 120)
end

function TestBenchBuild:test_compilers_by_name()
    local compiler <const> = assert(toolchain.named_compiler("gcc", host.current().arch))
    lu.assertEquals(compiler.kind, "gcc")
    local none, message = toolchain.named_compiler("clang", "no-such-cpu")
    lu.assertNil(none)
    lu.assertStrContains(message, "no-such-cpu")
end

if arg and arg[0] and arg[0]:find("test_bench_build%.lua$") then
    os.exit(lu.LuaUnit.run())
end
