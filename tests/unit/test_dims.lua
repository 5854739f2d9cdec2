-- Attention with lanes along the head: when the planner chooses it, what it plans, what is refused.

package.path = "./?.lua;./?/init.lua;" .. package.path
local lu <const> = require("luaunit")

local dims <const> = require("gen.plan.dims")
local generate <const> = require("gen.generate")
local isa <const> = require("gen.isa")
local planned <const> = require("tests.unit.planned")
local tiles <const> = require("gen.plan.tiles")

local record <const>, build_plan <const> = planned.record, planned.build_plan

local function decode(more)
    local fields <const> = { seq_len = 1, kv_len = 512, d_model = 576, heads = 9, kv_heads = 3,
        bias = false, kv_cache = "append" }
    for key, value in pairs(more or {}) do fields[key] = value end
    return fields
end

local function core(seq_len, kv_len, more)
    local fields <const> = { op = "sdpa", seq_len = seq_len, kv_len = kv_len, heads = 4,
        head_dim = 64 }
    for key, value in pairs(more or {}) do fields[key] = value end
    return fields
end

local function total(groups)
    local sum = 0
    for _, group in ipairs(groups) do sum = sum + group.count * group.size end
    return sum
end

TestChoice = {}

local function chosen(fields, isa_name)
    return build_plan(fields, isa_name).attention.orientation
end

function TestChoice:test_few_queries_go_along_the_head()
    for _, name in ipairs({ "neon", "avx2", "avx512" }) do
        if name ~= "neon" then -- three stacked rows all but fill its vector
            lu.assertEquals(chosen(decode(), name), "dims", name)
        end
        lu.assertEquals(chosen(core(1, 1500), name), "dims", name)
        lu.assertEquals(chosen(core(128, 128), name), "queries", name)
        lu.assertEquals(chosen(core(2 * isa.get(name).lanes, 512), name), "queries", name)
    end
end

-- One more query costs lanes along the head the same again; lanes along queries nothing, as long as
-- it fits into the last vector, or into the part of its lanes that 1, 2, 4, … queries share.
function TestChoice:test_the_fuller_vector_wins()
    for _, name in ipairs({ "neon", "avx2", "avx512" }) do
        local lanes <const>, last = isa.get(name).lanes, nil
        for queries = 1, 4 * lanes do
            local now <const> = chosen(core(queries, 256), name)
            local before <const> = (queries - 1) % lanes
            local is_full <const> = before & (before - 1) == 0
            lu.assertFalse(now == "dims" and last == "queries" and not is_full, name)
            last = now
        end
        lu.assertEquals(last, "queries", name)
    end
end

function TestChoice:test_the_reason_is_told()
    local text <const> = generate.describe(generate.plan(record(decode())))
    lu.assertStrMatches(text:match("attention: lanes [^\n]*"),
        "attention: lanes along the head: %d+ cycles predicted with lanes along queries, "
            .. "%d+ along the head")
    lu.assertStrContains(text, "1 block of 3 query rows, the heads of a kv head stacked")
    lu.assertStrContains(text, "scores: 3 rows x 8 keys a tile, summed across lanes")
    lu.assertStrContains(generate.describe(generate.plan(record(
        decode({ plan = { scores = { orientation = "queries" } } })))),
        "attention: lanes along queries: as the plan says")
end

function TestChoice:test_a_wish_is_followed()
    lu.assertEquals(chosen(core(64, 64, { plan = { scores = { orientation = "dims" } } })), "dims")
    lu.assertEquals(chosen(decode({ plan = { scores = { orientation = "queries" } } })), "queries")
    -- a tile's numbers belong to lanes along queries unless the plan says otherwise
    lu.assertEquals(chosen(decode({ plan = { scores = { rows = 6 } } })), "queries")
    local tall <const> = build_plan(decode({ plan = { scores = { orientation = "dims", rows = 2 } }
    }), "neon").attention
    lu.assertEquals(tall.tile_rows, 2)
end

TestDimsPlan = {}

local SHAPES <const> = {
    decode(), decode({ batch = 3, seq_len = 5, mask = "padding" }),
    core(1, 1500), core(3, 7, { kv_heads = 1, v_head_dim = 20, mask = "lengths" }),
    core(5, 40, { mask = { "bool", "additive" }, mask_shape = { 1, 4, 5, 40 } }),
    core(40, 3000, { kv_heads = 2 }),
}

local function for_plans(check)
    for _, name in ipairs(isa.names) do
        for i, fields in ipairs(SHAPES) do
            fields.plan = { scores = { orientation = "dims" } }
            check(build_plan(fields, name), ("%s %d"):format(name, i))
        end
    end
end

function TestDimsPlan:test_rows_are_covered_once()
    for_plans(function(built, label)
        local attention <const>, given <const> = built.attention, built.problem
        local first, index = 0, 0
        for _, block in ipairs(attention.blocks) do
            lu.assertEquals({ block.first, block.first_index }, { first, index }, label)
            lu.assertEquals(total(block.score_groups), block.rows, label)
            lu.assertEquals(total(block.row_groups), block.rows, label)
            first, index = first + block.count * block.rows, index + block.count
        end
        lu.assertEquals(first, given.seq_len * given.group, label)
        lu.assertEquals(index, attention.block_count, label)
        lu.assertEquals(total(attention.column_groups) * built.machine.lanes
            - given.v_head_dim < built.machine.lanes, true, label)
    end)
end

function TestDimsPlan:test_tiles_fit_the_registers()
    for_plans(function(built, label)
        local lanes <const>, registers <const> = built.machine.lanes, built.machine.registers
        for _, block in ipairs(built.attention.blocks) do
            local per_row <const> = dims.row_registers(lanes, built.attention.keys_at_once)
            for _, group in ipairs(block.score_groups) do
                lu.assertTrue(group.size * per_row + 1 <= registers, label)
            end
            for _, rows in ipairs(block.row_groups) do
                for _, columns in ipairs(built.attention.column_groups) do
                    lu.assertTrue(tiles.tile_registers(rows.size, columns.size) <= registers, label)
                end
            end
        end
    end)
end

-- The scores of a block stay in half of L2, and everything has room.
function TestDimsPlan:test_buffers()
    for_plans(function(built, label)
        local attention <const>, given <const> = built.attention, built.problem
        local floats <const> = { queries = attention.widest * given.head_dim,
            scores = attention.widest * given.kv_len, inverse_sums = attention.widest,
            mask_rows = attention.mask_rows * given.kv_len }
        for _, buffer in ipairs(built.part_buffers) do
            lu.assertTrue(buffer.floats >= floats[buffer.name], label .. " " .. buffer.name)
            floats[buffer.name] = nil
        end
        if attention.mask_rows == 0 then floats.mask_rows = nil end
        lu.assertNil(next(floats), label)
        lu.assertTrue(attention.widest == 1
            or attention.widest * attention.row_floats * 4 <= built.machine.target.l2 // 2, label)
    end)
    lu.assertTrue(build_plan(SHAPES[#SHAPES]).attention.block_count > 1)
end

-- Values in a tensor of the caller are read in place, whatever their width.
function TestDimsPlan:test_values_are_not_copied()
    local fields <const> = core(1, 100, { v_head_dim = 20 })
    lu.assertNil(build_plan(fields).pad_values)
    fields.plan = { scores = { orientation = "queries" } }
    lu.assertEquals(build_plan(fields).pad_values.to, 24)
end

TestDimsRefusals = {}

local function refusal(scores)
    scores.orientation = "dims"
    local ok <const>, problem_found = pcall(build_plan, core(3, 40, { plan = { scores = scores } }))
    lu.assertFalse(ok)
    return problem_found.errors[1]
end

function TestDimsRefusals:test_tiles_that_do_not_fit()
    local one <const> = refusal({ rows = 4 })
    lu.assertEquals({ one.key, one.value, one.message, one.allowed }, { "plan.scores.rows", 4,
        'orientation "dims" needs 21 vector registers', "rows * 5 + 1 <= 16 on avx2" })
    local two <const> = refusal({ vectors = 2 })
    lu.assertEquals({ two.key, two.value, two.allowed }, { "plan.scores.vectors", 2,
        "1, or not given" })
end

os.exit(lu.LuaUnit.run())
