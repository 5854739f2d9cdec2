-- Attention with lanes along heads: when the planner chooses it, what it plans, what is refused.

package.path = "./?.lua;./?/init.lua;" .. package.path
local lu <const> = require("luaunit")

local generate <const> = require("gen.generate")
local isa <const> = require("gen.isa")
local planned <const> = require("tests.unit.planned")
local tiles <const> = require("gen.plan.tiles")

local record <const>, build_plan <const> = planned.record, planned.build_plan

local function layer(more)
    local fields <const> = { batch = 2, seq_len = 4, d_model = 64, heads = 8 }
    for key, value in pairs(more or {}) do fields[key] = value end
    return fields
end

local function along_heads(more)
    local fields <const> = layer(more)
    fields.plan = { scores = { orientation = "heads" } }
    return fields
end

local function chosen(fields, isa_name)
    return build_plan(fields, isa_name).attention.orientation
end

TestChoice = {}

function TestChoice:test_short_sequences_of_narrow_heads()
    for _, name in ipairs({ "avx2", "avx512" }) do
        lu.assertEquals(chosen(layer(), name), "heads", name)
        lu.assertEquals(chosen(layer({ d_model = 16, heads = 2 }), name), "heads", name)
        lu.assertEquals(chosen(layer({ seq_len = 16, d_model = 16 }), name), "heads", name)
        lu.assertEquals(chosen(layer({ seq_len = 128, d_model = 384, heads = 12 }), name),
            "queries", name)
    end
end

function TestChoice:test_a_wish_is_followed()
    lu.assertEquals(chosen(layer({ plan = { scores = { orientation = "queries" } } })), "queries")
    lu.assertEquals(chosen(layer({ plan = { scores = { rows = 2 } } })), "queries")
    lu.assertEquals(chosen(along_heads({ seq_len = 100 })), "heads")
end

function TestChoice:test_the_reason_is_told()
    local text <const> = generate.describe(generate.plan(record(layer())))
    lu.assertStrContains(text, "K projected, V projected, heads interleaved (")
    lu.assertStrMatches(text:match("attention: lanes [^\n]*"),
        "attention: lanes along heads: %d+ cycles predicted")
    lu.assertStrContains(generate.describe(generate.plan(record(along_heads()))),
        "attention: lanes along heads: as the plan says")
end

TestHeadsPlan = {}

local SHAPES <const> = {
    along_heads(), along_heads({ seq_len = 13, heads = 2, d_model = 6 }),
    along_heads({ heads = 32, d_model = 96, seq_len = 5 }),
    along_heads({ seq_len = 1, kv_len = 40, cross = true }),
}

local function for_plans(check)
    for _, name in ipairs(isa.names) do
        for i, fields in ipairs(SHAPES) do
            if fields.heads % isa.get(name).lanes == 0 or isa.get(name).lanes % fields.heads == 0
            then
                check(build_plan(fields, name), ("%s %d"):format(name, i))
            end
        end
    end
end

function TestHeadsPlan:test_queries_and_heads_are_covered_once()
    for_plans(function(built, label)
        local attention <const>, first = built.attention, 0
        for _, block in ipairs(attention.blocks) do
            lu.assertEquals(block.first, first, label)
            lu.assertTrue(block.queries <= block.vectors * attention.queries_each, label)
            first = first + block.count * block.queries
        end
        lu.assertEquals(first, built.problem.seq_len, label)
        lu.assertTrue(attention.items == 1 or first == attention.queries_each, label)
        lu.assertEquals(attention.group * attention.head_vectors,
            attention.items * built.problem.heads, label)
        lu.assertEquals(attention.group * attention.queries_each, built.machine.lanes, label)
    end)
end

function TestHeadsPlan:test_tiles_fit_the_registers()
    for_plans(function(built, label)
        local attention <const>, registers <const> = built.attention, built.machine.registers
        for _, block in ipairs(attention.blocks) do
            for _, keys in ipairs(attention.key_groups) do
                lu.assertTrue(tiles.tile_registers(keys.size, block.vectors) <= registers, label)
            end
            for _, dims in ipairs(attention.dim_groups) do
                lu.assertTrue(tiles.tile_registers(dims.size, block.vectors) <= registers, label)
            end
        end
    end)
end

function TestHeadsPlan:test_rows_are_interleaved()
    for_plans(function(built, label)
        for _, layout in ipairs({ built.q, built.k, built.v, built.out }) do
            lu.assertEquals({ layout.head, layout.dim }, { 1, built.problem.heads }, label)
        end
        for _, product in ipairs(built.products) do lu.assertTrue(product.interleaved, label) end
    end)
end

-- Their sums then take no time of their own; straight-line code tries nothing.
function TestHeadsPlan:test_tried_weights_are_used_at_once_where_registers_are_many()
    local fields <const> = along_heads({ seq_len = 16, d_model = 16, unroll = "tiles" })
    for name, used in pairs({ avx512 = true, avx2 = false, neon = false }) do
        local built <const> = build_plan(fields, name)
        lu.assertEquals(built.attention.uses_tried, used, name)
        local has_inverse = false
        for _, buffer in ipairs(built.part_buffers) do
            has_inverse = has_inverse or buffer.name == "inverse_sums"
        end
        lu.assertEquals(has_inverse, not used, name)
    end
    lu.assertStrContains(generate.describe(generate.plan(record(fields, "avx512"))),
        "softmax: tried weights are used before their sums are looked at")
    lu.assertFalse(build_plan(layer({ d_model = 16, heads = 2 }), "avx512").attention.uses_tried)
end

function TestHeadsPlan:test_two_items_share_vectors_that_one_fills_by_half()
    local half <const> = { d_model = 16, heads = 2 }
    lu.assertEquals(build_plan(layer(half), "avx512").attention.items, 2)
    lu.assertEquals(build_plan(layer(half), "avx2").attention.items, 1)
    half.batch = 3
    lu.assertEquals(build_plan(layer(half), "avx512").attention.items, 1)
end

function TestHeadsPlan:test_outputs_stay_where_they_are_computed()
    local function output(more, isa_name)
        local fields <const> = along_heads(more)
        fields.plan.output = more.output
        fields.output = nil
        return build_plan(fields, isa_name).output
    end
    local narrow <const> = { d_model = 16, heads = 2 }
    lu.assertEquals(output(narrow, "avx512").input_blocks, { rows = 8, heads = 2, items = 2 })
    lu.assertEquals(output(narrow, "avx2").input_blocks, { rows = 4, heads = 2, items = 1 })
    -- tiles of whole blocks, and turns of whole groups of heads
    for batch = 1, 40, 13 do
        local loops <const> = output({ d_model = 36, heads = 4, head_dim = 9, batch = batch,
            seq_len = 12 }, "avx512")
        lu.assertEquals(loops.input_blocks, { rows = 4, heads = 4, items = 1 })
        lu.assertEquals(loops.unroll % 4, 0)
        local rows = 0
        for _, group in ipairs(loops.row_groups) do
            lu.assertEquals(group.size % 4, 0)
            rows = rows + group.count * group.size
        end
        lu.assertEquals(rows, 12 * batch)
    end
    lu.assertNil(output({ d_model = 16, heads = 2, output = { rows = 3 } }, "avx512").input_blocks)
    lu.assertNil(output({ d_model = 16, heads = 2, seq_len = 5 }, "avx512").input_blocks)
end

TestHeadsText = {}

-- The kernel of `fields`, and the body of the function in it that attends for `queries`.
local function kernel_text(fields, isa_name, queries)
    local bundle <const> = generate.bundle(record(fields, isa_name))
    for _, file in ipairs(bundle.files) do
        if file.path == bundle.manifest.variants[1].kernel then
            return file.text,
                file.text:match(("void attend_%d%%b()\n(%%b{})"):format(queries or 4))
        end
    end
end

local function order_of(text, names)
    local found <const> = {}
    for i, name in ipairs(names) do
        local at <const> = text:find(name .. "(", 1, true)
        lu.assertNotNil(at, name)
        found[i] = { name = name, at = at }
    end
    table.sort(found, function(a, b) return a.at < b.at end)
    for i, one in ipairs(found) do found[i] = one.name end
    return found
end

-- Straight-line code puts values together before the weights, whose latencies hide it.
function TestHeadsText:test_rows_of_two_items_are_put_together_and_read_from_memory()
    local narrow <const> = { d_model = 16, heads = 2 }
    local _, straight <const> = kernel_text(layer(narrow), "avx512")
    local order <const> = { "pair_key_rows", "pair_query_rows", "gather_queries_4",
        "pair_value_rows", "scores_4keys_4", "context_8dims_4" }
    lu.assertEquals(order_of(straight, order), order)
    for _, name in ipairs({ "key", "value" }) do
        lu.assertStrContains(straight, ("%s_pairs = from_memory(%s_pairs);"):format(name, name))
    end
    lu.assertNotStrContains(straight, "from_memory(query_pairs)")
    narrow.d_model = 32
    local tried <const> = { "pair_value_rows", "pair_key_rows", "try_scores_4keys_4" }
    local _, looped = kernel_text(layer(narrow), "avx512")
    lu.assertEquals(order_of(looped, tried), tried)
    narrow.seq_len, narrow.d_model = 2, 64
    _, looped = kernel_text(layer(narrow), "avx2", 2)
    local late <const> = { "pair_key_rows", "scores_2keys_2", "pair_value_rows" }
    lu.assertEquals(order_of(looped, late), late)
end

-- Nothing is put together where a vector holds one item.
function TestHeadsText:test_rows_of_one_item_stay_in_place()
    local text <const> = kernel_text(layer({ d_model = 16, heads = 2 }), "avx2")
    lu.assertNotStrContains(text, "from_memory")
end

function TestHeadsText:test_the_only_tile_of_straight_line_code_is_inlined()
    local text = kernel_text(layer({ d_model = 16, heads = 2 }), "avx2")
    lu.assertStrContains(text, "\nPIECE void scores_4keys_4(")
    text = kernel_text(layer({ d_model = 16, heads = 2, unroll = "tiles" }), "avx2")
    lu.assertStrContains(text, " void scores_4keys_4(")
    lu.assertNotStrContains(text, "PIECE void scores_4keys_4(")
end

TestHeadsRefusals = {}

local function refusal(fields, isa_name)
    local ok <const>, found = pcall(build_plan, fields, isa_name)
    lu.assertFalse(ok)
    return found.errors[1]
end

function TestHeadsRefusals:test_what_cannot_be()
    for _, case in ipairs({
        { { mask = "causal" }, "masks" }, { { return_weights = "mean" }, "weights" },
        { { kv_heads = 2 }, "kv heads" }, { { heads = 6, d_model = 48 }, "lanes" },
        { { output_projection = false }, "projections" }, { { seq_len = 200 }, "128 keys" },
        { { kv_cache = "append", kv_len = 8 }, "cache" },
    }) do
        local one <const> = refusal(along_heads(case[1]))
        lu.assertEquals(one.key, "plan.scores.orientation")
        lu.assertStrContains(one.message, case[2])
    end
    local folded <const> = along_heads()
    folded.plan.fold = { vo = true }
    lu.assertStrContains(refusal(folded).message, "projected keys and values")
end

function TestHeadsRefusals:test_context_tiles()
    local wide <const> = along_heads()
    wide.plan.context = { vectors = 5 }
    lu.assertEquals(refusal(wide).key, "plan.context.vectors")
    local tall <const> = along_heads()
    tall.plan.context = { rows = 32 }
    lu.assertEquals(refusal(tall).key, "plan.context.rows")
end

os.exit(lu.LuaUnit.run())
