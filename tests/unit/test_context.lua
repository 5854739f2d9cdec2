-- Which way the lanes of the context lie: along queries where heads would waste lanes, along the
-- head where nothing is won or something stands against it, and what the plan then holds.

package.path = "./?.lua;./?/init.lua;" .. package.path
local lu <const> = require("luaunit")

local cases <const> = require("tests.cases.list")
local generate <const> = require("gen.generate")
local planned <const> = require("tests.unit.planned")
local report <const> = require("gen.report")
local tiles <const> = require("gen.plan.tiles")

local build_plan <const> = planned.build_plan

-- One head after the other, of `dim` elements.
local function core(seq_len, dim, more)
    local fields <const> = { op = "sdpa", batch = 1, heads = 2, seq_len = seq_len, head_dim = dim }
    for key, value in pairs(more or {}) do fields[key] = value end
    return fields
end

-- "queries", "dims" or, where blocks differ, both.
local function chosen(fields, isa_name)
    local seen <const> = {}
    for _, block in ipairs(build_plan(fields, isa_name).attention.blocks) do
        local one <const> = block.dim_groups and "queries" or "dims"
        if seen[#seen] ~= one then seen[#seen + 1] = one end
    end
    return table.concat(seen, " ")
end

local function reason_of(fields, isa_name)
    return build_plan(fields, isa_name).attention.blocks[1].context_reason
end

TestContext = {}

function TestContext:test_lanes_lie_along_queries_where_heads_waste_them()
    local tinybert <const> = { op = "mha", batch = 1, seq_len = 128, d_model = 312, heads = 12,
        mask = "lengths" }
    for _, name in ipairs({ "avx512", "avx2" }) do
        lu.assertEquals(chosen(tinybert, name), "queries", name)
        lu.assertEquals(chosen(core(128, 20), name), "queries", name)
        for _, dim in ipairs({ 16, 32, 64, 128 }) do
            lu.assertEquals(chosen(core(128, dim), name), "dims", name)
        end
    end
    -- 40 is whole vectors of 8, not of 16; but five of them make poor tiles
    lu.assertEquals(chosen(core(128, 40), "avx512"), "queries")
    lu.assertEquals(chosen(core(256, 40), "avx2"), "queries")
    -- few keys do not pay for the transpose
    lu.assertEquals(chosen(core(32, 26, { kv_len = 3 }), "avx512"), "dims")
    lu.assertEquals(chosen(core(128, 26), "scalar"), "dims")
end

function TestContext:test_what_it_does_not_take_is_said()
    lu.assertEquals(reason_of(core(128, 20), "scalar"), "one lane wastes none")
    lu.assertStrContains(reason_of(core(128, 20)), "cycles predicted with lanes along queries")
    lu.assertEquals(reason_of(core(128, 20, { plan = { context = { rows = 4 } } })),
        "a tile is given")
    lu.assertEquals(reason_of(core(128, 20, { plan = { context = { orientation = "dims" } } })),
        "as the plan says")
    -- long rows add up block by block of keys; one that is masked may be repaired there
    lu.assertEquals(chosen(core(600, 20)), "queries")
    lu.assertEquals(reason_of(core(600, 20, { mask = "causal" })), "blocks of keys repair rows")
    -- the last three queries share lanes
    lu.assertEquals(chosen(core(51, 20), "avx512"), "queries dims")
end

function TestContext:test_the_override_is_followed()
    local fields <const> = core(40, 32, { plan = { context = { orientation = "queries", rows = 3,
        vectors = 1, unroll = 2 } } })
    local block <const> = build_plan(fields).attention.blocks[1]
    lu.assertEquals(block.dim_groups, { { count = 10, size = 3 }, { count = 1, size = 2 } })
    lu.assertEquals(block.vector_groups[1].size, 1)
    lu.assertEquals(block.context_unroll, 2)
    fields.plan.context.orientation = "dims"
    lu.assertEquals(chosen(fields), "dims")
end

-- The context has a choice only where the scores lie along queries: given, it takes them there.
function TestContext:test_the_scores_lie_along_queries_with_it()
    local function of(context, scores)
        return { op = "mha", batch = 2, seq_len = 4, d_model = 64, heads = 8,
            plan = { context = { orientation = context }, scores = scores } }
    end
    lu.assertEquals(build_plan(of()).attention.orientation, "heads")
    for _, name in ipairs({ "queries", "dims" }) do
        lu.assertEquals(build_plan(of(name), "avx2").attention.orientation, "queries")
        for _, scores in ipairs({ "heads", "dims" }) do
            local ok <const>, refusal = pcall(build_plan, of(name, { orientation = scores }))
            lu.assertFalse(ok)
            lu.assertEquals(refusal.errors[1].key, "plan.context.orientation")
            lu.assertStrContains(refusal.errors[1].message, ('along "%s"'):format(scores))
        end
    end
end

-- The pairs whose bits are compared do differ in their lanes.
function TestContext:test_twins_are_of_both_orientations()
    for _, twin in ipairs(cases.twins) do
        for _, given in ipairs(twin.plans) do
            local fields <const> = { plan = given }
            for key, value in pairs(twin.config) do fields[key] = value end
            if given.context then
                lu.assertEquals(chosen(fields, twin.isa), given.context.orientation)
            end
        end
    end
end

function TestContext:test_tiles_cover_the_block_and_fit_the_registers()
    for _, name in ipairs({ "neon", "avx2", "avx512" }) do
        for dim = 1, 50, 7 do
            local built <const> = build_plan(core(70, dim,
                { plan = { context = { orientation = "queries" } } }), name)
            for _, block in ipairs(built.attention.blocks) do
                local dims, vectors = 0, 0
                for _, rows in ipairs(block.dim_groups or {}) do
                    dims = dims + rows.count * rows.size
                    for _, columns in ipairs(block.vector_groups) do
                        lu.assertTrue(tiles.tile_registers(rows.size, columns.size)
                            <= built.machine.registers)
                    end
                end
                for _, columns in ipairs(block.vector_groups or {}) do
                    vectors = vectors + columns.count * columns.size
                end
                if block.split then
                    lu.assertNil(block.dim_groups)
                else
                    lu.assertEquals({ dims, vectors }, { dim, block.vectors })
                end
            end
        end
    end
end

-- Values are read one by one.
function TestContext:test_given_values_need_no_padding()
    lu.assertNil(build_plan(core(64, 20)).pad_values)
    lu.assertNil(build_plan(core(64, 20, { mask = "padding" })).pad_values)
    lu.assertNotNil(build_plan(core(64, 20, { plan = { context = { orientation = "dims" } } }))
        .pad_values)
end

function TestContext:test_the_plan_says_so()
    local record <const> = planned.record(core(64, 20))
    local text <const> = report.describe(report.build(generate.build_plan(record, "avx2")))
    lu.assertStrContains(text, "context dim tiles 4x5, vectors")
    lu.assertStrContains(text, "context: lanes along queries: ")
end

os.exit(lu.LuaUnit.run())
