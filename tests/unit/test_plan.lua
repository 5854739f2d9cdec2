-- The plan: tiles fit the registers and cover everything once, buffers keep apart, what cannot be
-- is refused with its numbers, the packed layout's hash says when blobs may be shared. Over the
-- benchmark shapes and random configs.

package.path = "./?.lua;./?/init.lua;" .. package.path
local lu <const> = require("luaunit")

local config <const> = require("gen.config")
local fold <const> = require("gen.fold")
local generate <const> = require("gen.generate")
local isa <const> = require("gen.isa")
local config_keys <const> = require("gen.keys")
local packing <const> = require("gen.packing")
local plan <const> = require("gen.plan")
local tiles <const> = require("gen.plan.tiles")
local problem <const> = require("gen.problem")
local report <const> = require("gen.report")

-- The aim is 0.2 s on an idle machine, and the slowest is printed. A shared machine must not fail a
-- commit over it, so the test looks for a different order of growth only.
local SECONDS_A_SHAPE <const> = 1.0

local function make_record(fields)
    local raw <const> = { name = "k", op = "mha", batch = 1, isa = "avx2" }
    for key, value in pairs(fields) do raw[key] = value end
    local record <const>, errors = config.validate(raw, "test", "k")
    lu.assertNotNil(record, errors and config.format_errors(errors))
    return record
end

local function build_plan(fields, isa_name)
    local record <const> = make_record(fields)
    return plan.build(fold.apply(problem.build(record)), isa.get(isa_name or record.isa[1]))
end

-- The one error a plan refuses `fields` with.
local function get_refusal(fields, isa_name)
    local record <const> = make_record(fields)
    local ok <const>, refusal = pcall(plan.build, fold.apply(problem.build(record)),
        isa.get(isa_name or record.isa[1]))
    lu.assertFalse(ok)
    lu.assertIsTable(refusal, tostring(refusal))
    lu.assertEquals(#refusal.errors, 1)
    return refusal.errors[1]
end

-- ---- Shapes --------------------------------------------------------------------------------

local function layer(name, batch, seq_len, d_model, heads, more)
    local fields <const> = { name = name, batch = batch, seq_len = seq_len, d_model = d_model,
        heads = heads }
    for key, value in pairs(more or {}) do fields[key] = value end
    return fields
end

-- Layers of published models, and the two seeds.
local SHAPES <const> = {
    layer("seed_a", 2, 4, 16, 2), layer("seed_a_causal", 2, 4, 16, 2, { mask = "causal" }),
    layer("seed_a_padding", 2, 4, 16, 2, { mask = "padding" }),
    layer("seed_b", 2, 4, 64, 8), layer("seed_b_causal", 2, 4, 64, 8, { mask = "causal" }),
    layer("seed_b_padding", 2, 4, 64, 8, { mask = "padding" }),
    layer("tiny_ov", 16, 16, 16, 8), layer("kwt1", 1, 99, 64, 1), layer("kwt3", 1, 99, 192, 3),
    layer("swin_t", 64, 49, 96, 3, { mask = "additive", mask_shape = { 1, 3, 49, 49 } }),
    layer("tinybert", 1, 128, 312, 12, { mask = "padding" }),
    layer("minilm", 1, 128, 384, 12, { mask = "padding" }),
    layer("bert", 1, 128, 768, 12), layer("vit_ti", 1, 197, 192, 3),
    layer("vit_b", 1, 197, 768, 12), layer("clip_txt", 1, 77, 512, 8, { mask = "causal" }),
    layer("stories", 1, 256, 288, 6, { mask = "causal" }),
    layer("gpt2", 1, 1024, 768, 12, { mask = "causal" }), layer("whisper_e", 1, 1500, 384, 6),
    layer("whisper_x", 1, 1, 384, 6, { cross = true, kv_len = 1500 }),
    layer("smol_dec", 1, 1, 576, 9, { kv_heads = 3, head_dim = 64, cross = true, kv_len = 512,
        mask = "lengths" }),
}

local function pick(list) return list[math.random(#list)] end

local function draw_shape()
    local kv_heads <const> = math.random(1, 3)
    local fields <const> = { op = pick({ "mha", "mha", "sdpa" }), batch = math.random(1, 3),
        seq_len = math.random(1, 70), kv_heads = kv_heads, heads = kv_heads * math.random(1, 3),
        head_dim = pick({ 1, 3, 4, 8, 13, 16, 24, 32, 48, 64 }),
        v_head_dim = pick({ 2, 4, 7, 8, 16, 20, 32, 64 }),
        mask = pick({ "none", "causal", "lengths", "padding", "bool", "additive" }),
        unroll = pick({ "auto", "auto", "tiles" }) }
    fields.kv_len = fields.seq_len
    if fields.op == "mha" then
        fields.d_model = math.random(1, 96)
        fields.output_projection = pick({ true, false })
        if pick({ true, false }) then
            fields.cross, fields.kv_len = true, math.random(1, 70)
        end
    else
        fields.kv_len = math.random(1, 70)
    end
    if fields.mask == "causal" and fields.kv_len ~= fields.seq_len then
        fields.causal_align = pick({ "top_left", "bottom_right", 3, -2 })
    end
    return fields
end

-- {plan, label} of every shape and of random ones on every ISA.
local function collect_plans()
    local list <const> = {}
    for _, name in ipairs(isa.names) do
        for _, shape in ipairs(SHAPES) do
            list[#list + 1] = { build_plan(shape, name), shape.name .. " " .. name }
        end
    end
    math.randomseed(11)
    for i = 1, 80 do
        local fields <const> = draw_shape()
        for _, name in ipairs(isa.names) do
            list[#list + 1] = { build_plan(fields, name), ("random %d %s"):format(i, name) }
        end
    end
    return list
end

local plans

-- Runs check(plan, label) for all of them. Plans are built once: no test changes one.
local function for_plans(check)
    plans = plans or collect_plans()
    for _, entry in ipairs(plans) do check(entry[1], entry[2]) end
end

-- The same for plans with lanes along queries; tests/unit/test_dims.lua has the others.
local function for_query_plans(check)
    for_plans(function(built, label)
        if built.attention.orientation == "queries" then check(built, label) end
    end)
end

local function projections_of(built) return built.products end

local function total(groups)
    local sum = 0
    for _, group in ipairs(groups) do sum = sum + group.count * group.size end
    return sum
end

-- ---- Tiles ---------------------------------------------------------------------------------

TestTiles = {}

local function check_even(groups, wanted, most, label)
    lu.assertEquals(total(groups), wanted, label)
    local smallest, largest = math.huge, 0
    for _, group in ipairs(groups) do
        lu.assertTrue(group.count >= 1 and group.size >= 1, label)
        smallest, largest = math.min(smallest, group.size), math.max(largest, group.size)
    end
    lu.assertTrue(largest - smallest <= 1, label)
    lu.assertTrue(largest <= most, label)
end

function TestTiles:test_row_splits_are_even_and_complete()
    for_plans(function(built, label)
        for _, p in ipairs(projections_of(built)) do
            check_even(p.row_groups, p.item_rows, p.tile_rows, label .. " " .. p.name)
            lu.assertEquals(p.items * p.item_rows, p.rows, label .. " " .. p.name)
        end
    end)
    for_query_plans(function(built, label)
        local attention <const> = built.attention
        for _, block in ipairs(attention.blocks) do
            check_even(block.row_groups, block.queries, attention.context_rows, label)
        end
        if not attention.range_loops then
            check_even(attention.key_groups, built.problem.kv_len, attention.key_rows, label)
        end
    end)
end

-- Loops over a range of keys want whole tiles first, then one with the rest.
function TestTiles:test_keys_are_complete()
    for_query_plans(function(built, label)
        local groups <const> = built.attention.key_groups
        lu.assertEquals(total(groups), built.problem.kv_len, label)
        if built.attention.range_loops then
            for i, group in ipairs(groups) do
                lu.assertTrue(i == #groups or group.size == built.attention.key_rows, label)
            end
        end
    end)
end

function TestTiles:test_every_tile_fits_the_registers()
    local function check(built, rows, columns, key, label)
        for _, r in ipairs(rows) do
            for _, c in ipairs(columns) do
                local needed <const> = tiles.tile_registers(r.size, c[key])
                lu.assertTrue(needed <= built.machine.registers, label)
            end
        end
    end
    for_plans(function(built, label)
        for _, p in ipairs(projections_of(built)) do
            check(built, p.row_groups, p.groups, "vectors", label .. " " .. p.name)
        end
    end)
    for_query_plans(function(built, label)
        local attention <const> = built.attention
        check(built, attention.key_groups, attention.blocks, "vectors", label .. " scores")
        for _, block in ipairs(attention.blocks) do
            check(built, block.row_groups, attention.column_groups, "size", label .. " context")
        end
    end)
end

function TestTiles:test_columns_are_covered_once()
    for_plans(function(built, label)
        local lanes <const> = built.machine.lanes
        for _, p in ipairs(projections_of(built)) do
            local covered <const>, panels, twice, count = {}, 0, 0, 0
            for _, group in ipairs(p.groups) do
                lu.assertEquals(group.first_panel, panels, label)
                -- of each block of columns
                local width <const> = group.count // (p.blocks or 1) * group.vectors * lanes
                for column = group.first_column, group.first_column + width - 1 do
                    twice = twice + (covered[column] and 1 or 0)
                    count = count + (column < p.padded_columns and 1 or 0)
                    covered[column] = true
                end
                panels = panels + group.count
            end
            lu.assertEquals({ panels, twice, count }, { p.panels, 0, p.padded_columns }, label)
            lu.assertNil(covered[p.padded_columns], label)
            lu.assertTrue(p.padded_columns >= p.columns and p.padded_columns < p.columns + lanes)
        end
        if built.attention.column_groups then -- lanes along heads have none
            lu.assertEquals(total(built.attention.column_groups),
                (built.value_dim + lanes - 1) // lanes, label)
        end
    end)
end

-- Keys and values behind a length feed nothing, but an empty row may average all values; padded
-- queries are computed unless they are to be zero; without loops nothing can end early.
function TestTiles:test_projections_end_at_lengths_only_where_nothing_reads_on()
    local function ending(fields)
        local built <const> = build_plan(layer("k", 3, 20, 32, 2, fields))
        local names <const> = {}
        for _, p in ipairs({ built.projections[1], built.projections[2], built.projections[3],
            built.output }) do
            if p.bounded then names[#names + 1] = p.name end
            lu.assertEquals(p.items, p.bounded and 3 or 1, p.name)
        end
        return table.concat(names)
    end
    lu.assertEquals(ending({ unroll = "tiles" }), "")
    lu.assertEquals(ending({ unroll = "tiles", mask = "padding" }), "")
    lu.assertEquals(ending({ unroll = "tiles", mask = "lengths" }), "kv")
    lu.assertEquals(ending({ unroll = "tiles", mask = "lengths", empty_row = "uniform" }), "k")
    lu.assertEquals(ending({ unroll = "tiles", mask = { "causal", "lengths" },
        padded_queries = "zero" }), "qkvo")
    lu.assertEquals(ending({ unroll = "full", code_budget = 100000000, mask = "lengths" }), "")
end

-- A few parts take rows of the output, and of all projections where items of equal cost are theirs;
-- as many as leave each rows enough to hide the weights.
function TestTiles:test_few_parts_take_rows_and_more_take_panels()
    local function row_parts(fields)
        local built <const> = build_plan(fields)
        return built.projections[1].row_parts, built.output.row_parts
    end
    local function check(fields, ...) lu.assertEquals({ row_parts(fields) }, { ... }) end
    check(layer("windows", 12, 49, 96, 3), 36, 36)
    -- whole blocks of items are one part's, and rows that end at a length go by panels
    check(layer("blocks", 64, 49, 96, 3))
    check(layer("ending", 1, 128, 192, 3, { mask = "lengths", padded_queries = "zero" }))
    check(layer("vit", 1, 128, 192, 3), nil, 8)
    check(layer("small", 2, 5, 96, 3))
    check(layer("padded", 12, 49, 96, 3, { mask = "lengths" }), nil, 36)
    -- all rows in one tile are not shared
    local tile <const> = build_plan({ op = "mha", batch = 3, seq_len = 5, kv_len = 1, d_model = 2,
        heads = 1, head_dim = 1, cross = true, unroll = "tiles" }, "scalar").projections[2]
    lu.assertEquals({ tile.rows, tile.tiles }, { 3, 1 })
    lu.assertNil(tile.row_parts)
end

-- Three heads of 197 queries: nine blocks of 64 are five and four for two parts, twelve of 48 even.
function TestTiles:test_ties_go_to_blocks_of_queries_that_two_parts_share_evenly()
    local function blocks(heads)
        local list <const> = {}
        local fields <const> = layer("vit", 1, 197, 64 * heads, heads)
        fields.isa = "avx512"
        for i, block in ipairs(build_plan(fields, "avx512").attention.blocks) do
            list[i] = ("%dx%d"):format(block.count, block.queries)
        end
        return table.concat(list, " ")
    end
    lu.assertEquals(blocks(4), "3x64 1x5")
    lu.assertEquals(blocks(3), "4x48 1x5")
end

-- Rows of up to 384 keys are one block; longer ones are cut evenly, in whole key tiles.
function TestTiles:test_long_rows_are_done_in_blocks_of_keys()
    local function shape(kv_len, more)
        local fields <const> = { op = "sdpa", seq_len = 40, kv_len = kv_len, heads = 2,
            head_dim = 16 }
        for key, value in pairs(more or {}) do fields[key] = value end
        return build_plan(fields).attention
    end
    lu.assertFalse(shape(384).in_blocks)
    lu.assertEquals(shape(384).key_block, 384)
    for _, keys in ipairs({ 385, 1024, 1500, 16384 }) do
        local long <const> = shape(keys)
        lu.assertTrue(long.in_blocks)
        lu.assertEquals(long.key_block % long.key_rows, 0)
        lu.assertTrue(long.key_block < 256 + long.key_rows)
    end
    lu.assertFalse(shape(1024, { return_weights = "per_head" }).in_blocks)
    lu.assertTrue(shape(64, { plan = { scores = { key_block = 20 } } }).in_blocks)
    -- a block is one sum, also when rounded up to whole tiles
    for _, rows in ipairs({ 5, 7, 9, 10 }) do
        local wide <const> = shape(768, { isa = "avx2",
            plan = { scores = { key_block = 384, rows = rows, vectors = 1 } } })
        lu.assertTrue(wide.key_block <= 384)
        lu.assertEquals(wide.key_block % rows, 0)
    end
    lu.assertStrContains(get_refusal({ op = "sdpa", seq_len = 8, kv_len = 1024, heads = 1,
        head_dim = 8, plan = { scores = { key_block = 512 } } }).message, "one sum")
    lu.assertStrContains(get_refusal({ op = "sdpa", seq_len = 8, kv_len = 64, heads = 1,
        head_dim = 8, return_weights = "mean", plan = { scores = { key_block = 16 } } }).message,
        "whole rows")
end

-- References of 0 are tried first where the ISA says how that is judged, and code has loops.
function TestTiles:test_references_of_0_are_tried_in_loops()
    local fields <const> = { op = "sdpa", seq_len = 64, kv_len = 64, heads = 2, head_dim = 64 }
    for _, name in ipairs({ "scalar", "neon", "avx2", "avx512" }) do
        fields.isa = name
        lu.assertEquals(build_plan(fields).attention.trial,
            ({ avx2 = "bits", avx512 = "sums" })[name], name)
    end
    lu.assertNil(build_plan({ op = "sdpa", seq_len = 4, heads = 1, head_dim = 16,
        isa = "avx512" }).attention.trial)
end

-- Wide blocks of queries compute more keys beyond the diagonal.
function TestTiles:test_causal_blocks_of_queries_are_narrower()
    local fields <const> = { op = "sdpa", seq_len = 256, heads = 6, head_dim = 48, isa = "avx512" }
    lu.assertEquals(build_plan(fields).attention.scores_vectors, 4)
    fields.mask = "causal"
    lu.assertEquals(build_plan(fields).attention.scores_vectors, 2)
end

-- The last queries share lanes where they fill at most half a vector and nothing is masked.
function TestTiles:test_last_queries_share_lanes()
    local function split(seq_len, more)
        local fields <const> = { op = "sdpa", seq_len = seq_len, heads = 1, head_dim = 64,
            isa = "avx512" }
        for key, value in pairs(more or {}) do fields[key] = value end
        return build_plan(fields).attention.split or false
    end
    lu.assertEquals({ split(48), split(49), split(50), split(51), split(53), split(56), split(57) },
        { false, 8, 8, 4, 2, 2, false })
    lu.assertFalse(split(51, { mask = "causal" }))
    lu.assertFalse(split(400))
    lu.assertFalse(split(401))
    lu.assertFalse(split(51, { head_dim = 65 }))
end

-- The workspace of a long row does not grow with its keys.
function TestTiles:test_a_long_row_needs_little_workspace()
    local built <const> = build_plan({ op = "sdpa", seq_len = 16384, heads = 1, head_dim = 64 })
    lu.assertTrue(built.workspace_bytes <= 65536)
end

function TestTiles:test_query_blocks_cover_the_sequence()
    for_query_plans(function(built, label)
        local attention <const>, lanes <const> = built.attention, built.machine.lanes
        local next_query, count, units = 0, 0, 0
        for i, block in ipairs(attention.blocks) do
            lu.assertEquals(block.first, next_query, label)
            lu.assertEquals(block.first_unit, units, label)
            lu.assertEquals(block.units, (block.count + block.together - 1) // block.together)
            lu.assertEquals(block.width * (block.split or 1), block.vectors * lanes, label)
            lu.assertTrue(block.queries >= 1 and block.queries <= block.width, label)
            if block.queries < block.width then
                lu.assertTrue(i == #attention.blocks and block.count == 1, label)
            end
            lu.assertTrue(attention.width >= block.width, label)
            next_query = next_query + (block.count - 1) * block.width + block.queries
            count = count + block.count
            units = units + block.units
        end
        lu.assertEquals(next_query, attention.problem.seq_len, label)
        lu.assertEquals({ count, units }, { attention.block_count, attention.unit_count },
            label)
    end)
end

function TestTiles:test_wishes_are_followed()
    local built <const> = build_plan({ seq_len = 40, d_model = 64, heads = 2, plan = {
        project = { rows = 3, vectors = 2, unroll = 5 }, scores = { rows = 2, vectors = 3 },
        context = { rows = 5, vectors = 1, unroll = 2 }, output = { rows = 1, vectors = 4 } } })
    for _, p in ipairs(built.projections) do
        lu.assertEquals({ p.tile_rows, p.tile_vectors, p.unroll }, { 3, 2, 5 })
    end
    lu.assertEquals({ built.output.tile_rows, built.output.tile_vectors }, { 1, 4 })
    local attention <const> = built.attention
    lu.assertEquals({ attention.key_rows, attention.scores_vectors }, { 2, 3 })
    lu.assertEquals({ attention.context_rows, attention.context_vectors,
        attention.context_unroll }, { 5, 1, 2 })
end

local function product_names(fields, isa_name)
    local names <const> = {}
    for i, p in ipairs(build_plan(fields, isa_name).projections) do names[i] = p.name end
    return table.concat(names, " ")
end

function TestTiles:test_products_merge_where_that_saves_vectors_or_narrow_panels()
    -- 2 x 19.5 vectors, 3 x 8 in panels of 3, whole ones; rows up to a length are k's and v's alone
    lu.assertEquals(product_names({ seq_len = 128, d_model = 312, heads = 12, mask = "lengths" },
        "avx512"), "q kv")
    lu.assertEquals(product_names({ seq_len = 128, d_model = 312, heads = 12 }, "avx512"), "qkv")
    lu.assertEquals(product_names({ batch = 2, seq_len = 4, d_model = 64, heads = 8 }), "qkv")
    lu.assertEquals(product_names({ seq_len = 128, d_model = 384, heads = 12 }), "q k v")
    lu.assertEquals(product_names({ seq_len = 128, d_model = 312, heads = 12,
        plan = { project = { merged = false } } }, "avx512"), "q k v")
end

-- Few accumulators hide no late load of weights: 39 and 15 vectors are panels of three in tiles of
-- four rows, neither of two and a rest nor 3x3; 48 are panels of two.
function TestTiles:test_panels_take_enough_accumulators()
    local function tile(columns)
        local output <const> = build_plan({ seq_len = 128, d_model = columns, heads = 12,
            head_dim = 8 }).output
        return ("%dx%d"):format(output.tile_rows, output.tile_vectors)
    end
    lu.assertEquals({ tile(312), tile(120), tile(384) }, { "4x3", "4x3", "6x2" })
end

function TestTiles:test_only_products_of_the_same_rows_merge()
    local function merged(changes)
        local fields <const> = { seq_len = 5, d_model = 24, heads = 2,
            plan = { project = { merged = true }, fold = { qk = false, vo = false } } }
        for key, value in pairs(changes) do fields[key] = value end
        return product_names(fields)
    end
    lu.assertEquals(merged({}), "qkv")
    lu.assertEquals(merged({ cross = true, kv_len = 7 }), "q kv")
    lu.assertEquals(merged({ cross = true, kv_len = 5, kv_dim = 24 }), "q kv")
    lu.assertEquals(merged({ kv_len = 7, queries = "last",
        plan = { project = { merged = true }, fold = { few_queries = false, qk = false,
            vo = false } } }), "q kv")
    lu.assertEquals(merged({ mask = "lengths", unroll = "tiles", padded_queries = "zero" }), "qkv")
    lu.assertEquals(merged({ mask = "lengths", unroll = "tiles", empty_row = "uniform" }), "q k v")
    lu.assertEquals(merged({ plan = { project = { merged = true }, fold = { qk = true } } }),
        "q v")
end

-- Every tensor of a merged row has its columns, none of them another's.
function TestTiles:test_merged_tensors_lie_side_by_side()
    for _, name in ipairs(isa.names) do
        local built <const> = build_plan({ seq_len = 9, d_model = 20, heads = 6, kv_heads = 2,
            head_dim = 7, v_head_dim = 11, plan = { project = { merged = true },
                fold = { qk = false, vo = false, few_queries = false } } }, name)
        local p <const> = built.projections[1]
        lu.assertEquals({ p.name, p.columns }, { "qkv", 42 + 14 + 22 }, name)
        lu.assertEquals({ built.q.offset, built.k.offset, built.v.offset }, { 0, 42, 56 }, name)
        for _, layout in ipairs({ built.q, built.k, built.v }) do
            lu.assertEquals({ layout.buffer, layout.row }, { "qkv", p.layout.row }, name)
            lu.assertTrue(layout.row >= p.padded_columns, name)
        end
    end
end

function TestTiles:test_half_a_wish_leaves_the_rest_to_the_plan()
    local built <const> = build_plan({ seq_len = 40, d_model = 64, heads = 2,
        plan = { project = { vectors = 3 } } })
    lu.assertEquals(built.projections[1].tile_vectors, 3)
    lu.assertTrue(tiles.tile_registers(built.projections[1].tile_rows, 3) <= 16)
end

function TestTiles:test_the_target_reaches_the_plan()
    local fields <const> = { seq_len = 40, d_model = 64, heads = 2 }
    local plain <const> = build_plan(fields)
    fields.target = { fma_pipes = 1, l2 = 12345 }
    local changed <const> = build_plan(fields)
    lu.assertEquals(changed.machine.target.fma_pipes, 1)
    lu.assertEquals(changed.machine.target.l2, 12345)
    lu.assertEquals(changed.machine.target.l1d, plain.machine.target.l1d)
    lu.assertTrue(changed.projections[1].cycles > plain.projections[1].cycles)
    lu.assertEquals(isa.get("avx2").target.fma_pipes, 2)
end

-- What gcc 12 made of these kernels: bytes of text, at -O3.
function TestTiles:test_the_text_of_loops_is_predicted()
    for _, case in ipairs({
        { 31619, { seq_len = 1, kv_len = 197, queries = "first", d_model = 768, heads = 12 } },
        { 35832, { seq_len = 1024, d_model = 768, heads = 12, mask = "causal" } },
        { 27565, { seq_len = 197, d_model = 768, heads = 12 } },
        { 2902, { op = "sdpa", seq_len = 1, kv_len = 64, heads = 1, head_dim = 65536 } },
    }) do
        local bytes <const> = build_plan(case[2]).code_bytes
        lu.assertTrue(bytes > case[1] / 1.5 and bytes < case[1] * 1.5,
            ("%d predicted, not %d"):format(bytes, case[1]))
    end
end

-- Loops over the width of a head take the same text for any.
function TestTiles:test_wide_heads_take_no_more_text_in_loops()
    local function bytes(head_dim)
        return build_plan({ op = "sdpa", seq_len = 1, kv_len = 64, heads = 1,
            head_dim = head_dim }).code_bytes
    end
    lu.assertEquals(bytes(65536), bytes(4096))
end

-- The ends of the ranges, together with shapes at the end of theirs.
function TestTiles:test_extreme_targets_are_planned()
    local shapes <const> = {
        { op = "sdpa", batch = 1 << 21, seq_len = 1 << 18, kv_len = (1 << 18) - 9, heads = 1,
            head_dim = 1 },
        { op = "sdpa", batch = 1 << 20, seq_len = 1, kv_len = 5, heads = 1, head_dim = 1 },
        { batch = 1 << 19, seq_len = 4096, d_model = 4096, heads = 1 },
        { seq_len = 300, d_model = 640, heads = 4 },
    }
    local ends <const> = { {}, {} }
    for _, field in ipairs(config_keys.target_fields) do
        ends[1][field.name], ends[2][field.name] = 1, field.most
    end
    for index = 0, 31 do
        local target <const> = {}
        for bit, name in ipairs(config_keys.target_numbers) do
            target[name] = ends[(index >> bit - 1 & 1) + 1][name]
        end
        for _, shape in ipairs(shapes) do
            shape.target = target
            for _, name in ipairs({ "scalar", "avx2" }) do
                local built <const> = build_plan(shape, name)
                lu.assertEquals(math.type(built.cycles), "integer")
                lu.assertTrue(#report.lines(report.build(built)) > 0)
            end
        end
    end
end

-- ---- Forms of the layer --------------------------------------------------------------------

TestForms = {}

local function form_of(fields, isa_name)
    local built <const> = build_plan(fields, isa_name)
    return built.problem.fold.keys .. " " .. built.problem.fold.values, built
end

function TestForms:test_a_single_wide_head_folds_both_sides()
    local form <const>, built <const> = form_of(layer("kwt1", 1, 99, 64, 1))
    lu.assertEquals(form, "folded folded")
    lu.assertEquals(built.projection_flops + built.core_flops, 4131072)
    local _, plain <const> = form_of(layer("kwt1", 1, 99, 64, 1, { plan = { fold = { qk = false,
        vo = false } } }))
    lu.assertEquals(plain.projection_flops + plain.core_flops, 5753088)
    lu.assertTrue(built.form_cycles < plain.form_cycles)
end

function TestForms:test_many_heads_project()
    for _, shape in ipairs({ layer("minilm", 1, 128, 384, 12), layer("vit_b", 1, 197, 768, 12),
        layer("gpt2", 1, 1024, 768, 12, { mask = "causal" }) }) do
        for _, name in ipairs(isa.names) do
            lu.assertEquals(form_of(shape, name), "projected projected", shape.name)
        end
    end
end

function TestForms:test_a_class_token_needs_no_keys_and_values()
    local fields <const> = layer("vit_b", 1, 1, 768, 12, { kv_len = 197, queries = "first" })
    local form <const>, built <const> = form_of(fields)
    lu.assertEquals(form, "lifted deferred")
    lu.assertEquals(built.projection_flops, 4 * 2 * 768 * 768)
    -- twelve heads with one query each: a vector of eight, and four that share another
    local blocks <const> = built.attention.blocks
    lu.assertEquals(built.attention.problem.heads, 1)
    lu.assertEquals({ blocks[1].queries, blocks[2].queries, blocks[2].split }, { 8, 4, 2 })
    fields.plan = { fold = { few_queries = false, qk = false, vo = false } }
    lu.assertEquals(form_of(fields), "projected projected")
end

function TestForms:test_the_plan_says_what_it_chose()
    local _, built <const> = form_of(layer("kwt1", 1, 99, 64, 1))
    local reason <const> = built.problem.fold.reasons[1]
    lu.assertStrContains(reason, "Wk folded into Wq, Wv folded into Wo (4131.1 kFLOP")
    lu.assertStrContains(reason, "K projected, V projected (5753.1 kFLOP")
end

function TestForms:test_heads_are_stacked_only_where_no_mask_tells_them_apart()
    local function lanes_used(more)
        local fields <const> = { op = "sdpa", seq_len = 2, kv_len = 9, heads = 6, kv_heads = 2,
            head_dim = 8, plan = { scores = { orientation = "queries" } } }
        for key, value in pairs(more) do fields[key] = value end
        local built <const> = build_plan(fields)
        return built.attention.blocks[1].queries
    end
    lu.assertEquals(lanes_used({}), 6)
    lu.assertEquals(lanes_used({ mask = "padding" }), 6)
    lu.assertEquals(lanes_used({ return_weights = "per_head" }), 6)
    lu.assertEquals(lanes_used({ return_weights = "mean" }), 2)
    lu.assertEquals(lanes_used({ mask = "causal", causal_align = "bottom_right" }), 2)
    lu.assertEquals(lanes_used({ mask = "bool", mask_shape = { 1, 6, 1, 9 } }), 2)
    lu.assertEquals(lanes_used({ mask = "bool", mask_shape = { 1, 1, 2, 9 } }), 2)
    lu.assertEquals(lanes_used({ mask = "bool", mask_shape = { 1, 1, 1, 9 } }), 6)
    lu.assertEquals(lanes_used({ seq_len = 8 }), 8)
end

-- ---- Layouts and buffers -------------------------------------------------------------------

TestLayouts = {}

-- Where the projection writes vector v of panel p of a group, for row 0.
local function written_at(group, panel, v)
    local at <const> = panel + group.start
    return at // group.per_block * group.block_stride + at % group.per_block * group.panel_stride
        + group.target + group.vector_offsets[v + 1]
end

-- Each column lands where attention reads it, and a vector stays within what is contiguous there.
function TestLayouts:test_panels_write_where_heads_are_read()
    local seen <const> = { heads = 0, rows = 0 }
    for_plans(function(built, label)
        local lanes <const> = built.machine.lanes
        for _, p in ipairs(built.projections) do
            local layout <const>, width <const> = p.layout, p.head_width
            local split, lost = 0, 0
            seen[layout.kind] = seen[layout.kind] + 1
            for _, group in ipairs(p.groups) do
                for panel = 0, group.count - 1 do
                    for v = 0, group.vectors - 1 do
                        local column <const> = group.first_column
                            + (panel * group.vectors + v) * lanes
                        local wanted = column
                        if layout.kind == "heads" then
                            split = split + (column % width + lanes > width and 1 or 0)
                            wanted = column // width * layout.head + column % width
                        end
                        lost = lost + (written_at(group, panel, v) ~= wanted and 1 or 0)
                    end
                end
            end
            lu.assertEquals({ split, lost }, { 0, 0 }, label)
        end
    end)
    lu.assertTrue(seen.heads > 0 and seen.rows > 0)
end

function TestLayouts:test_heads_are_contiguous_only_where_panels_fit_them()
    for_plans(function(built, label)
        local lanes <const> = built.machine.lanes
        for _, p in ipairs(built.projections) do
            local width <const> = p.head_width
            local fits = width % lanes == 0
            for _, group in ipairs(p.groups) do
                for panel = 0, group.count - 1 do
                    local first <const> = group.first_column + panel * group.vectors * lanes
                    local last <const> = first + group.vectors * lanes
                    local inside <const> = first // width == (last - 1) // width
                    local whole <const> = first % width == 0 and last % width == 0
                    fits = fits and (inside and width % (last - first) == 0 or whole)
                end
            end
            if p.layout.kind == "heads" then lu.assertTrue(fits, label) end
        end
    end)
    lu.assertEquals(build_plan({ seq_len = 64, d_model = 64, heads = 4 }).q.kind, "heads")
    lu.assertEquals(build_plan({ seq_len = 8, d_model = 52, heads = 4 }).q.kind, "rows")
end

-- No element of a tensor is stored outside its buffer, whole vectors at the ends of rows included.
function TestLayouts:test_tensors_stay_inside_their_buffers()
    for_plans(function(built, label)
        local given <const>, lanes <const> = built.problem, built.machine.lanes
        for _, p in ipairs(built.projections) do
            local layout <const>, width <const> = p.layout, p.head_width
            local is_query <const> = p.name == "q"
            local heads <const> = is_query and given.heads or given.kv_heads
            local rows <const> = is_query and given.seq_len or given.kv_len
            local vectors_end <const> = (given.batch - 1) * layout.batch
                + (heads - 1) * layout.head + (rows - 1) * layout.row
                + (width + lanes - 1) // lanes * lanes
            local buffer
            for _, one in ipairs(built.shared_buffers) do
                if one.name == p.name then buffer = one end
            end
            lu.assertTrue(vectors_end <= buffer.floats, label .. " " .. p.name)
            lu.assertTrue(layout.kind == "heads" or layout.row >= p.padded_columns, label)
        end
    end)
end

-- Items go through all stages in blocks where their tensors would not stay in L2 together and there
-- are blocks enough for any number of parts; a block's plan is that of a smaller batch.
function TestTiles:test_large_batches_go_through_the_layer_in_blocks_of_items()
    local function blocks(fields) return build_plan(fields).item_block end
    local swin <const> = build_plan(layer("swin_t", 64, 49, 96, 3))
    local item_block <const> = swin.item_block
    lu.assertEquals(item_block.items * item_block.count, 64)
    lu.assertEquals(swin.phases, 1)
    lu.assertEquals(swin.part_bytes, swin.workspace_bytes)
    lu.assertTrue(swin.workspace_bytes <= swin.machine.target.l2 // 2)
    lu.assertEquals(item_block.strides.x, item_block.items * 49 * 96)
    lu.assertEquals(item_block.strides.y, item_block.items * 49 * 96)
    lu.assertEquals(item_block.strides.mask_add, 0)
    lu.assertEquals(swin.core_flops, 64 * 4 * 49 * 49 * 96)
    lu.assertNil(blocks(layer("few", 8, 128, 384, 12)))
    lu.assertNil(blocks(layer("small", 64, 8, 16, 2)))
    lu.assertNil(blocks(layer("padded", 64, 49, 96, 3, { mask = "lengths" })))
    local function asked(items)
        local block <const> = blocks(layer("asked", 6, 9, 32, 2, { plan = { layer =
            { items = items } } }))
        return block and block.items
    end
    lu.assertEquals({ asked(1), asked(3), asked(5) }, { 1, 3, 3 })
    lu.assertNil(asked(6))
end

-- Rows that do not fit L2 are taken in blocks that do, each with all panels.
function TestTiles:test_rows_beyond_l2_are_taken_in_blocks()
    local long <const> = build_plan(layer("whisper_e", 1, 1500, 384, 6))
    for _, one in ipairs(long.products) do
        lu.assertTrue(one.block_tiles < one.tiles)
        lu.assertTrue(one.block_tiles * one.tile_rows * one.depth * 4 <= long.machine.target.l2)
        lu.assertEquals(one.prefetch_out, "first")
    end
    for _, one in ipairs(build_plan(layer("kwt3", 1, 99, 192, 3)).products) do
        lu.assertNil(one.block_tiles)
        lu.assertFalse(one.prefetch_out)
    end
end

-- An output smaller than L2 leaves it too, where far more passes in between; asked for only where
-- the rows of a tile follow each other, and beside turns long enough.
function TestTiles:test_outputs_that_weights_push_out_of_l2_are_asked_for()
    local function asked(isa_name, ...)
        local found <const> = {}
        for _, one in ipairs(build_plan(layer("asked", 1, ...), isa_name).products) do
            found[one.name] = one.prefetch_out
        end
        return found
    end
    local function ways(within, o) return { q = within, k = within, v = within, o = o } end
    lu.assertEquals(asked("avx512", 128, 768, 12), ways("line by line", false))
    lu.assertEquals(asked("avx2", 128, 768, 12), ways(false, false))
    lu.assertEquals(asked("avx512", 128, 384, 12), ways(false, false))
    lu.assertEquals(asked("avx512", 1500, 384, 6), ways("line by line", "first"))
end

-- What the next blocks of attention read is asked for where a layer's rows do not stay in L2, what
-- the next tile reads elsewhere.
function TestTiles:test_rows_that_leave_l2_are_prefetched()
    local function prefetches(fields) return build_plan(fields).attention.prefetch end
    lu.assertEquals(prefetches(layer("whisper_e", 1, 1500, 384, 6)), "blocks")
    lu.assertEquals(prefetches(layer("bert", 1, 128, 768, 12)), "blocks")
    lu.assertEquals(prefetches(layer("small", 1, 64, 64, 4)), "tiles")
    -- rows that would stay but for the weights that pass
    lu.assertEquals(prefetches(layer("clip_txt", 1, 16, 512, 8)), "blocks")
    lu.assertFalse(prefetches(layer("small", 2, 64, 64, 4)))
    lu.assertEquals(prefetches(layer("small", 2, 64, 64, 4, { mask = "lengths" })), "tiles")
    lu.assertFalse(prefetches(layer("windows", 32, 64, 64, 4)))
    lu.assertEquals(prefetches(layer("small", 1, 64, 64, 4, { target = { l2 = 65536 } })), "blocks")
    lu.assertEquals(prefetches(layer("asked", 1, 64, 64, 4,
        { plan = { scores = { prefetch = true } } })), "blocks")
    lu.assertFalse(prefetches(layer("bert", 1, 128, 768, 12,
        { plan = { scores = { prefetch = false } } })))
    -- asked for, it is done or refused
    local asked <const> = { plan = { scores = { prefetch = true } } }
    local short <const> = { op = "sdpa", seq_len = 4, heads = 1, head_dim = 8 }
    lu.assertTrue(build_plan(short).straight)
    short.plan = asked.plan
    lu.assertEquals(build_plan(short).attention.prefetch, "blocks")
    short.unroll = "full"
    local refused <const> = { { short, "avx2" }, { layer("small", 1, 64, 64, 4, asked), "scalar" },
        { layer("small", 2, 4, 64, 8, { plan = { scores = { prefetch = false,
            orientation = "heads" } } }), "avx2" } }
    for _, one in ipairs(refused) do
        local ok <const>, refusal = pcall(build_plan, one[1], one[2])
        lu.assertFalse(ok)
        lu.assertEquals(refusal.errors[1].key, "plan.scores.prefetch")
    end
end

-- On the causal diagonal the last half of a block's vectors has tiles of its own, if they are tall
-- enough to hide the FMA latency.
function TestTiles:test_last_queries_of_causal_blocks_have_their_own_tiles()
    local function last(mask, isa_name, rows, vectors)
        return build_plan({ op = "sdpa", batch = 1, seq_len = 128, heads = 1, head_dim = 16,
            mask = mask, plan = { scores = { rows = rows, vectors = vectors } } },
            isa_name).attention.blocks[1].last_vectors
    end
    lu.assertEquals(last("causal", "avx512", 8, 2), 1)
    lu.assertEquals(last("causal", "avx512", 6, 4), 2)
    lu.assertNil(last("causal", "avx512", 16, 1))
    lu.assertNil(last("causal", "avx2", 5, 2))
    lu.assertNil(last("none", "avx512", 8, 2))
end

TestBuffers = {}

local function check_apart(list, label)
    local ends = 0
    for _, buffer in ipairs(list) do
        lu.assertEquals(buffer.offset * 4 % 64, 0, label .. " " .. buffer.name)
        lu.assertTrue(buffer.floats > 0, label .. " " .. buffer.name)
        lu.assertTrue(buffer.offset >= ends, label .. " " .. buffer.name)
        ends = buffer.offset + buffer.floats
    end
    lu.assertTrue(ends <= list.floats, label)
    lu.assertEquals(list.floats * 4 % 64, 0, label)
end

function TestBuffers:test_they_keep_apart_on_cache_lines()
    for_plans(function(built, label)
        check_apart(built.shared_buffers, label)
        check_apart(built.part_buffers, label)
        lu.assertTrue(built.part_offset >= built.shared_buffers.floats, label)
        lu.assertEquals(built.part_offset * 4 % 64, 0, label)
        lu.assertTrue(built.workspace_bytes
            >= built.part_offset * 4 + built.part_buffers.floats * 4, label)
        lu.assertEquals(built.workspace_bytes % 64, 0, label)
        lu.assertEquals(built.part_bytes % 64, 0, label)
        lu.assertTrue(built.part_bytes >= built.part_buffers.floats * 4, label)
    end)
end

function TestBuffers:test_blocks_of_queries_fit_theirs()
    for_query_plans(function(built, label)
        local given <const>, shape <const> = built.problem, built.attention
        local width <const> = shape.width
        local floats <const> = { queries = built.score_dim * width, mask_panel = given.kv_len
            * width }
        for _, buffer in ipairs(built.part_buffers) do
            local whole <const> = { scores = shape.key_block * width, trust = 1,
                turning = 2 * built.machine.lanes, strays = built.machine.lanes }
            local wanted <const> = whole[buffer.name]
                or shape.together * (floats[buffer.name] or width)
            lu.assertTrue(buffer.floats >= wanted, label .. " " .. buffer.name)
        end
    end)
end

function TestBuffers:test_packed_panels_follow_each_other()
    for_plans(function(built, label)
        local packed = 0
        for _, p in ipairs(projections_of(built)) do
            for _, group in ipairs(p.groups) do
                lu.assertEquals(group.offset, packed, label)
                lu.assertEquals(group.panel_floats,
                    group.vectors * built.machine.lanes * (p.depth + (p.bias and 1 or 0)), label)
                packed = packed + group.count * group.panel_floats
            end
            lu.assertEquals(p.packed_end, packed, label)
        end
        lu.assertEquals(built.packed_bytes, 4 * packed, label)
    end)
end

-- ---- Refusals ------------------------------------------------------------------------------

TestRefusals = {}

function TestRefusals:test_a_tile_beyond_the_registers()
    for _, stage in ipairs({ "project", "scores", "context", "output" }) do
        local refusal <const> = get_refusal({ seq_len = 40, d_model = 64, heads = 2,
            plan = { [stage] = { rows = 8, vectors = 4 } } })
        lu.assertEquals(refusal.key, "plan." .. stage)
        lu.assertStrContains(refusal.value, "rows=8, vectors=4")
        lu.assertStrContains(refusal.message, "37")
        lu.assertStrContains(refusal.allowed, "16")
        lu.assertStrContains(refusal.allowed, "avx2")
    end
end

-- rows * vectors + vectors + 1 registers: the last that fit, and one more.
function TestRefusals:test_the_limit_is_exact()
    local fields <const> = { seq_len = 40, d_model = 64, heads = 2,
        plan = { project = { rows = 4, vectors = 3 } } }
    lu.assertEquals(build_plan(fields).projections[1].tile_rows, 4)
    fields.plan.project.rows = 5
    lu.assertStrContains(get_refusal(fields).message, "19")
    lu.assertEquals(build_plan(fields, "avx512").projections[1].tile_rows, 5)
end

-- A wish for one dimension alone can be too much.
function TestRefusals:test_half_a_tile_beyond_the_registers()
    local refusal <const> = get_refusal({ seq_len = 40, d_model = 64, heads = 2,
        plan = { output = { rows = 16 } } })
    lu.assertEquals(refusal.key, "plan.output")
    lu.assertStrContains(refusal.message, "18")
end

local function straight(code_budget)
    return { batch = 2, seq_len = 16, d_model = 64, heads = 4, unroll = "full",
        code_budget = code_budget }
end

function TestRefusals:test_straight_line_code_over_its_budget()
    local refusal <const> = get_refusal(straight(4096))
    lu.assertEquals(refusal.key, "unroll")
    lu.assertEquals(refusal.value, "full")
    local bytes <const>, seconds <const>, budget = refusal.message:match(
        "(%d+) bytes and (%d+) s of compiling, over code_budget = (%d+)")
    lu.assertNotNil(bytes, refusal.message)
    lu.assertEquals(budget, "4096")
    lu.assertTrue(tonumber(bytes) > 4096 and tonumber(seconds) >= 0)
    -- exactly what is predicted is allowed, a byte less is not
    local built <const> = build_plan(straight(math.tointeger(tonumber(bytes))))
    lu.assertEquals(built.code_bytes, tonumber(bytes))
    lu.assertEquals(("%.0f"):format(built.compile_seconds), seconds)
    lu.assertEquals(get_refusal(straight(built.code_bytes - 1)).key, "unroll")
end

function TestRefusals:test_the_budget_is_for_straight_line_code_only()
    local fields <const> = straight(1)
    fields.unroll = "auto"
    lu.assertTrue(build_plan(fields).code_bytes > 1)
end

function TestRefusals:test_refusals_reach_the_caller_of_generate()
    local ok <const>, refusal = pcall(generate.bundle, make_record(straight(4096)))
    lu.assertFalse(ok)
    lu.assertEquals(refusal.errors[1].key, "unroll")
end

-- ---- Generation ----------------------------------------------------------------------------

TestGeneration = {}

-- CPU seconds, the best of up to five: other work on the machine is not ours.
local function measure_generation(record)
    local best = math.huge
    for _ = 1, 5 do
        collectgarbage()
        local started <const> = os.clock()
        generate.bundle(record)
        best = math.min(best, os.clock() - started)
        if best <= SECONDS_A_SHAPE then break end
    end
    return best
end

function TestGeneration:test_every_shape_generates_soon()
    local slowest, slowest_name = 0, ""
    for _, shape in ipairs(SHAPES) do
        for _, name in ipairs(isa.names) do
            local record <const> = make_record(shape)
            record.isa = { name }
            local seconds <const> = measure_generation(record)
            if seconds > slowest then
                slowest, slowest_name = seconds, shape.name .. " " .. name
            end
            lu.assertTrue(seconds <= SECONDS_A_SHAPE, ("%s %s: %.3f s"):format(shape.name, name,
                seconds))
        end
    end
    print(("\ngeneration: slowest %s, %.3f s"):format(slowest_name, slowest))
end

-- The twelve heads of a class token, transposed by whole vectors: nothing is cleared on its own.
function TestGeneration:test_few_queries_are_transposed_in_blocks()
    local record <const> = make_record({ name = "token", seq_len = 1, kv_len = 197, d_model = 768,
        heads = 12, queries = "first" })
    record.isa = { "avx512" }
    local bundle <const> = generate.bundle(record)
    for _, file in ipairs(bundle.files) do
        if file.path == bundle.manifest.variants[1].kernel then
            local gather <const> = file.text:match("void gather_queries_12(.-)\n}")
            lu.assertStrContains(gather, "transpose_part(query_rows + 16 * column_block, 768, "
                .. "queries + 256 * column_block, 16, 12);")
            lu.assertNotStrContains(gather, "0.0f")
            return
        end
    end
    lu.fail("no kernel")
end

-- ---- Packed layout -------------------------------------------------------------------------

TestLayoutHash = {}

local function hash_of(changes, isa_name)
    local fields <const> = { batch = 1, seq_len = 64, d_model = 96, heads = 3,
        plan = { project = { rows = 4, vectors = 2 }, output = { rows = 4, vectors = 2 } } }
    for key, value in pairs(changes or {}) do fields[key] = value end
    return packing.layout_hash(build_plan(fields, isa_name))
end

local function with_tiles(project, output)
    return { plan = { project = project, output = output or { rows = 4, vectors = 2 } } }
end

function TestLayoutHash:test_lengths_and_tile_rows_share_a_blob()
    local base <const> = hash_of()
    lu.assertStrMatches(base, "%x+")
    lu.assertEquals(#base, 16)
    lu.assertEquals(hash_of({ seq_len = 128 }), base)
    lu.assertEquals(hash_of({ batch = 7, seq_len = 1 }), base)
    lu.assertEquals(hash_of({ mask = "causal" }), base)
    lu.assertEquals(hash_of({ unroll = "tiles" }), base)
    lu.assertEquals(hash_of(with_tiles({ rows = 6, vectors = 2 }, { rows = 1, vectors = 2 })), base)
end

function TestLayoutHash:test_panel_width_matters()
    local base <const> = hash_of()
    lu.assertNotEquals(hash_of({ bias = { q = true, k = true, v = true, o = false } }), base)
    lu.assertNotEquals(hash_of(with_tiles({ rows = 4, vectors = 1 })), base)
    lu.assertNotEquals(hash_of(with_tiles({ rows = 4, vectors = 2 }, { rows = 4, vectors = 3 })),
        base)
    lu.assertNotEquals(hash_of({}, "avx512"), base)
    -- two vectors of 8 are one of 16: the same panels
    lu.assertEquals(hash_of(with_tiles({ rows = 4, vectors = 1 }, { rows = 4, vectors = 1 }),
        "avx512"), base)
end

function TestLayoutHash:test_folding_matters()
    local hashes <const>, count = {}, 0
    local function with_fold(folds)
        local fields <const> = with_tiles({ rows = 4, vectors = 2 })
        fields.plan.fold = folds
        return fields
    end
    local changes <const> = { {}, with_fold({ scale = false }), with_fold({ k_bias = false }),
        with_fold({ v_bias = false }), { scale = 0.5 }, { bias = false },
        { bias = { q = true, k = false, v = true, o = true } },
        { mask = "additive", empty_row = "uniform" }, { kv_heads = 1 } }
    for _, change in ipairs(changes) do
        local hash <const> = hash_of(change)
        if hashes[hash] then lu.fail(("changes %d and %d"):format(hashes[hash], count + 1)) end
        count = count + 1
        hashes[hash] = count
    end
    lu.assertEquals(count, #changes)
end

os.exit(lu.LuaUnit.run())
