-- The instructions that tests/emulate/avx512.h stands in for give the bits of the real ones. Builds
-- tests/emulate/ops.c both ways under build/tests/emulate; needs a CPU that has them.

package.path = "./?.lua;./?/init.lua;" .. package.path
local lu <const> = require("luaunit")

local fs <const> = require("gen.fs")
local isa <const> = require("gen.isa")
local process <const> = require("gen.process")
local toolset <const> = require("tests.harness.toolset")

local DIR <const> = "build/tests/emulate"
local BUILDS <const> = { native = isa.get("avx512").flags,
    emulated = { "-mno-avx512f", "-mavx2", "-mfma", "-include", "tests/emulate/avx512.h" } }

-- What the program of one build prints.
local function run_build(compiler, level, name)
    local path <const> = ("%s/%s-%s"):format(DIR, compiler, name)
    local words <const> = { compiler, "-std=c11", level, "-ffp-contract=off", "-Wno-psabi" }
    table.move(BUILDS[name], 1, #BUILDS[name], #words + 1, words)
    table.move({ "tests/emulate/ops.c", "-o", path }, 1, 3, #words + 1, words)
    local status <const>, log = process.capture(words, { merge = true })
    lu.assertEquals(status, 0, log)
    local ended <const>, text = process.capture({ path }, {})
    lu.assertEquals(ended, 0)
    return text
end

TestEmulation = {}

function TestEmulation:test_same_bits()
    local plan <const> = toolset.find().isas.avx512
    if plan.runs ~= "native" then
        print("skipped: AVX-512 beside its emulation: " .. (plan.reason or "not run natively"))
        return
    end
    assert(fs.make_directories(DIR))
    -- the levels at which the tests emulate
    for _, build in ipairs({ { "gcc", "-O1" }, { "clang", "-O0" } }) do
        local compiler <const>, level <const> = build[1], build[2]
        if plan.compilers[compiler] then
            local real <const> = run_build(compiler, level, "native")
            lu.assertStrContains(real, "reduce down")
            lu.assertEquals(run_build(compiler, level, "emulated"), real)
        end
    end
end

os.exit(lu.LuaUnit.run())
