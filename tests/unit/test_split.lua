-- Long functions are cut into pieces whose frames stay small without optimisation.

package.path = "./?.lua;./?/init.lua;" .. package.path
local lu <const> = require("luaunit")

local config <const> = require("gen.config")
local emit <const> = require("gen.emit")
local fs <const> = require("gen.fs")
local generate <const> = require("gen.generate")
local ir <const> = require("gen.ir")
local isa <const> = require("gen.isa")
local process <const> = require("gen.process")
local split <const> = require("gen.split")
local toolchain <const> = require("gen.toolchain")

local DIR <const> = "build/tests/split"

-- sum += x[i] * x[i], written out `count` times, as one phase.
local function make_phase(count)
    local fn <const> = ir.func("squares", { "Sum of squares." },
        { { "input", "x" }, { "output", "y" } }, function(block)
            block:declare("vec", "sum", "zero")
            block:each("i", count, true, function(body, i)
                body:let("vec", "a", "load", ir.mem("x", i * 8))
                body:set("sum", "fma", "a", "a", "sum")
            end)
            block:run("store", ir.mem("y"), "sum")
        end)
    return { name = "all", title = "All", functions = { fn } }
end

local function print_phase(phase)
    local printer <const> = emit.printer(isa.get("avx2"))
    for _, fn in ipairs(phase.functions) do printer:func(fn) end
    return printer:text()
end

TestSplit = {}

function TestSplit:test_short_functions_stay_as_they_are()
    local phase <const> = make_phase(3)
    local before <const> = print_phase(phase)
    split.apply({ phase }, 32)
    lu.assertEquals(print_phase(phase), before)
end

function TestSplit:test_assigned_variables_travel_by_address()
    local phase <const> = make_phase(500)
    local whole <const> = split.frame_bytes(phase.functions[1], 32)
    split.apply({ phase }, 32)
    local pieces <const> = #phase.functions - 1
    lu.assertTrue(pieces > 1 and pieces <= whole // split.FRAME_BYTES + 1, pieces .. " pieces")
    for _, fn in ipairs(phase.functions) do
        lu.assertTrue(split.frame_bytes(fn, 32) <= split.FRAME_BYTES, fn.name)
    end
    local text <const> = print_phase(phase)
    lu.assertStrContains(text, "PIECE void squares_piece1(const float *restrict x, "
        .. "__m256 *sum_at)\n{\n    __m256 sum = *sum_at;\n")
    lu.assertStrContains(text, "    *sum_at = sum;\n}\n")
    lu.assertStrContains(text, "    __m256 sum = _mm256_setzero_ps();\n"
        .. "    squares_piece1(x, &sum);\n")
    local _, steps = text:gsub("sum = _mm256_fmadd_ps%(a, a, sum%)", "")
    lu.assertEquals(steps, 500)
end

-- Straight-line kernels of every ISA, as both compilers see them: bug case BC-87 for any shape.
local CONFIGS <const> = {
    { op = "sdpa", batch = 2, seq_len = 24, kv_len = 15, heads = 1, head_dim = 3, v_head_dim = 4,
        isa = "avx512" },
    { op = "sdpa", seq_len = 32, kv_len = 24, heads = 1, head_dim = 8,
        mask = { "padding", "lengths" }, isa = "avx2" },
    { seq_len = 15, d_model = 2, heads = 1, head_dim = 7, v_head_dim = 9, isa = "neon",
        mask = { "padding", "lengths", "causal", "additive" } },
}

function TestSplit:test_frames_without_optimisation()
    local files <const>, edges <const>, objects <const> = {},
        { "builddir = " .. DIR .. "\nrule run\n  command = $command\n" }, {}
    for i, raw in ipairs(CONFIGS) do
        local record <const> = assert(config.validate(raw, "test", "frame" .. i))
        local bundle <const> = generate.bundle(record)
        local variant <const> = bundle.manifest.variants[1]
        local source <const> = DIR .. "/" .. variant.kernel
        for _, file in ipairs(bundle.files) do
            files[#files + 1] = { path = DIR .. "/" .. file.path, text = file.text }
        end
        for _, family in ipairs({ "gcc", "clang" }) do
            local command = family
            if variant.isa == "neon" then
                command = family == "gcc" and "aarch64-linux-gnu-gcc"
                    or "clang --target=aarch64-linux-gnu"
            end
            if toolchain.find_program((command:match("%S+")))
                and (variant.isa ~= "neon" or toolchain.find_program("aarch64-linux-gnu-gcc")) then
                local object <const> = ("%s-%s.o"):format(source, family)
                objects[#objects + 1] = object
                edges[#edges + 1] = ("build %s: run %s\n  command = %s %s -O0 -Werror "
                    .. "-Wframe-larger-than=65536 -c %s -o %s\n"):format(object, source, command,
                    table.concat(variant.flags[family], " "), source, object)
            end
        end
    end
    files[#files + 1] = { path = DIR .. "/build.ninja", text = table.concat(edges, "\n") }
    assert(fs.write_all(files))
    local status <const>, log <const> = process.capture({ "ninja", "-f", DIR .. "/build.ninja",
        "-k", 0, "-j", 2 }, { merge = true })
    lu.assertEquals(status, 0, log)
    lu.assertTrue(#objects > 0, "no compiler found")
end

os.exit(lu.LuaUnit.run())
