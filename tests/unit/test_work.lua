-- How much work the generator does, in Lua instructions: unlike time they are the same on every
-- machine and under any load.

package.path = "./?.lua;./?/init.lua;" .. package.path
local lu <const> = require("luaunit")

local config <const> = require("gen.config")
local fs <const> = require("gen.fs")
local generate <const> = require("gen.generate")
local isa <const> = require("gen.isa")
local manifest <const> = require("gen.manifest")
local planned <const> = require("tests.unit.planned")

local SHAPES <const> = "bench/shapes"
-- About 0.1 s here; the worst shape takes nineteen twentieths of it.
local MOST_INSTRUCTIONS <const> = 8e6
local STEP <const> = 1000

-- Lua instructions that work() takes, to within STEP.
local function count_instructions(work)
    local steps = 0
    debug.sethook(function() steps = steps + 1 end, "", STEP)
    work()
    debug.sethook()
    return steps * STEP
end

TestWork = {}

function TestWork:test_every_benchmark_shape_is_generated_at_once()
    local counted = 0
    for _, file in ipairs(assert(fs.list(SHAPES))) do
        for _, name in ipairs(isa.names) do
            local records <const> = assert(config.load(SHAPES .. "/" .. file,
                { { "isa", { name } } }))
            for _, record in ipairs(records) do
                lu.assertEquals(record.isa, { name })
                local work <const> = count_instructions(function() generate.bundle(record) end)
                lu.assertTrue(work <= MOST_INSTRUCTIONS,
                    ("%s for %s: %.1f M instructions"):format(file, name, work / 1e6))
                counted = counted + 1
            end
        end
    end
    lu.assertTrue(counted >= 17 * #isa.names, counted .. " kernels")
end

-- Planning takes as long for many items as for one, and for many queries.
function TestWork:test_large_shapes_are_planned_at_once()
    for _, shape in ipairs({ { 1, 15, 4096 }, { 65535, 15, 4096 }, { 65536, 15, 4096 },
        { 1, 1, 1 << 24 } }) do
        local record <const> = planned.record({ op = "sdpa", batch = shape[1], heads = shape[2],
            seq_len = shape[3], head_dim = 64 })
        local work <const> = count_instructions(function() generate.build_plan(record, "avx2") end)
        lu.assertTrue(work <= MOST_INSTRUCTIONS, ("batch %d, seq_len %d: %.1f M instructions")
            :format(shape[1], shape[3], work / 1e6))
    end
end

function TestWork:test_hashes_of_any_length_are_fnv1a()
    -- written from its definition
    local function hash(text)
        local sum = 0xcbf29ce484222325
        for i = 1, #text do sum = (sum ~ text:byte(i)) * 0x100000001b3 end
        return ("%016x"):format(sum)
    end
    lu.assertEquals(manifest.hash("foobar"), "85944171f73967e8")
    local text <const> = ("attention "):rep(4)
    for length = 0, #text do
        lu.assertEquals(manifest.hash(text:sub(1, length)), hash(text:sub(1, length)))
    end
end

os.exit(lu.LuaUnit.run())
