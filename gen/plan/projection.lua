-- Plans a linear layer over packed panels: its tile, its panels, where its output lives.
local numbers <const> = require("gen.plan.numbers")
local tiles <const> = require("gen.plan.tiles")

local projection <const> = {}

local ceil_div <const>, round_up <const> = numbers.ceil_div, numbers.round_up
local split_even <const>, LINE_FLOATS <const> = numbers.split_even, numbers.LINE_FLOATS

-- Groups of equal weight panels with their first panel, column and packed offset (floats).
local function panel_groups(column_groups, lanes, depth, has_bias, base, blocks)
    local groups <const>, panel, column, offset = {}, 0, 0, base
    for _, group in ipairs(column_groups) do
        local width <const> = group.size * lanes
        local floats <const> = width * (depth + (has_bias and 1 or 0))
        groups[#groups + 1] = { count = group.count, vectors = group.size, first_panel = panel,
            first_column = column, offset = offset, panel_floats = floats }
        panel = panel + group.count * (blocks or 1)
        column = column + group.count * width
        offset = offset + group.count * floats * (blocks or 1)
    end
    return groups, offset
end

-- Rows of the input that one walk over all panels leaves in L2, beside the panels' stream.
local ROW_BLOCK_SHARE <const> = 0.75

-- Accumulators of a tile one vector wide: every multiply-add loads its factor, and more than twice
-- what hides the FMA latency only make the loads and stores between tiles come at once (AVX-512,
-- 256 rows x 16 columns: 26 take 4 % longer than 12 or 16 at depth 16, 20 % at 256).
local function most_sums(machine)
    return 2 * machine.target.fma_latency * machine.target.fma_pipes
end

-- Row tiles of a block: all panels are multiplied with a block's rows before the next block's, so
-- that rows that do not fit L2 together come from there all the same. nil: one block holds all.
local function block_tiles(stage, problem, machine, shape, tile)
    local forced <const> = problem.plan[stage] and problem.plan[stage].row_block
    local most <const> = forced or machine.target.l2 * ROW_BLOCK_SHARE
        // (shape.depth * numbers.FLOAT_BYTES) | 0
    local total <const> = ceil_div(shape.rows, tile.rows)
    local blocks <const> = ceil_div(total, math.max(1, most // tile.rows))
    return blocks > 1 and ceil_div(total, blocks) or nil
end

-- Bytes of weights a cycle that may come from L3: a part that takes rows streams all panels.
local L3_BANDWIDTH <const> = 4

-- Up to how many parts take rows with all panels, nil: none do. A part then has so many rows that
-- its multiply-adds take as long as the weights may take from L3; more parts take panels. One tile
-- is not shared.
local function most_row_parts(rows, tile_rows, machine)
    local vector_bytes <const> = machine.lanes * numbers.FLOAT_BYTES
    local least <const> = machine.target.fma_pipes * vector_bytes // L3_BANDWIDTH
    local most <const> = rows // least
    return most > 1 and rows > tile_rows and most or nil
end

-- The projection `name` of stage `stage` ("project", "output") for shape {rows, items, depth,
-- columns, head_width, bias, packed_base, straight}. Of an input with more rows an item
-- (`input_rows`) only those from `first_row` on are read. `bounded`: rows beyond an item's length
-- are left out, so tiles may not straddle two items. `takes_rows`: a few parts share out rows, not
-- panels. `input_blocks` {rows, heads, items}: the input lies in blocks of so many rows,
-- [depth / heads][row][head], where the rows of `items` items take turns; tiles are then whole
-- blocks.
function projection.build(name, stage, problem, machine, shape)
    local lanes <const> = machine.lanes
    shape.vectors = ceil_div(shape.columns, lanes)
    local item_rows, input_row = shape.rows, shape.depth
    local input_rows <const> = shape.input_rows or shape.rows // shape.items
    local apart <const> = input_rows * shape.items > shape.rows
    if apart and shape.rows == shape.items and not shape.bounded then
        input_row = input_rows * shape.depth -- one row an item: all equally far apart
    elseif apart or shape.bounded then
        item_rows = shape.rows // shape.items
    end
    local blocks <const> = shape.input_blocks
    shape.row_unit, shape.is_panel = blocks and blocks.rows, lanes > 1
    shape.sums = shape.vectors == 1 and math.max(most_sums(machine), shape.row_unit or 1) or nil
    local tile <const> = tiles.choose(stage, problem, machine, shape,
        function(rows) return split_even(item_rows, rows, shape.row_unit) end)
    local groups <const>, packed_end <const> = panel_groups(tile.column_groups, lanes, shape.depth,
        shape.bias, shape.packed_base)
    local unroll <const> = tiles.depth_unroll(stage, problem, machine, shape.depth, tile.rows,
        tile.vectors, shape.straight)
    local blocked <const> = item_rows == shape.rows and not shape.straight
        and block_tiles(stage, problem, machine, shape, tile) or nil
    return {
        name = name, rows = shape.rows, depth = shape.depth, columns = shape.columns,
        padded_columns = shape.vectors * lanes, bias = shape.bias, groups = groups,
        panels = groups[#groups].first_panel + groups[#groups].count,
        -- of each item; items in one piece count as one
        items = shape.rows // item_rows, item_rows = item_rows, bounded = shape.bounded,
        row_parts = shape.takes_rows and not (blocked or shape.straight or shape.bounded)
            and item_rows == shape.rows and most_row_parts(shape.rows, tile.rows, machine) or nil,
        row_groups = tile.row_groups, tiles = ceil_div(item_rows, tile.rows),
        block_tiles = blocked, input_row = input_row, input_item = input_rows * shape.depth,
        input_first = (shape.first_row or 0) * shape.depth,
        tile_rows = tile.rows, tile_vectors = tile.vectors,
        cycles = tile.cycles * (shape.rows // item_rows), packed_end = packed_end,
        packed_floats = packed_end - shape.packed_base,
        unroll = blocks and math.min(shape.depth, round_up(unroll, blocks.heads)) or unroll,
        input_blocks = blocks, straight = shape.straight,
    }
end

-- A product with weights of its own for every block of columns (a kv head): out[row][block] =
-- in[row][block] . W_block^T. Panels lie group by group, then block by block. The `heads` query
-- heads of a block share its weights: one by one, or as rows of one tile where a head has one row.
--   shape     rows (of a head), heads, blocks, depth, columns (of a block), bias, packed_base,
--             straight, input {row, head}, output {row, head} in floats, padded (the output has
--             room for whole vectors behind every head)
function projection.build_blocks(name, stage, problem, machine, shape)
    local lanes <const> = machine.lanes
    local input <const>, output <const> = shape.input, shape.output
    local stacked <const> = shape.rows == 1
    local rows <const> = stacked and shape.heads or shape.rows
    local items <const> = stacked and 1 or shape.heads
    shape.vectors, shape.is_panel = ceil_div(shape.columns, lanes), lanes > 1
    local tile <const> = tiles.choose(stage, problem, machine, shape,
        function(most) return split_even(rows, most) end)
    local rest <const> = not shape.padded and shape.columns % lanes or 0
    local column_groups <const> = { table.unpack(tile.column_groups) }
    local final <const> = column_groups[#column_groups]
    if rest > 0 and final.count > 1 then -- the last panel of a block stands alone
        column_groups[#column_groups] = { count = final.count - 1, size = final.size }
        column_groups[#column_groups + 1] = { count = 1, size = final.size }
    end
    local groups <const>, packed_end <const> = panel_groups(column_groups, lanes, shape.depth,
        shape.bias, shape.packed_base, shape.blocks)
    for i, group in ipairs(groups) do
        local width <const> = group.vectors * lanes
        group.per_block, group.block_stride = group.count, shape.heads * output.head
        group.input_block = shape.heads * input.head
        group.panel_stride, group.target, group.start = width, group.first_column, 0
        group.vector_offsets = {}
        for v = 0, group.vectors - 1 do group.vector_offsets[v + 1] = v * lanes end
        group.count = group.count * shape.blocks
        group.last_lanes = i == #groups and rest > 0 and rest or lanes
    end
    return {
        name = name, rows = rows * items, depth = shape.depth, columns = shape.columns,
        padded_columns = shape.vectors * lanes,
        blocks = shape.blocks, bias = shape.bias, groups = groups,
        panels = groups[#groups].first_panel + groups[#groups].count,
        items = items, item_rows = rows,
        row_groups = tile.row_groups, tiles = ceil_div(rows, tile.rows),
        input_row = stacked and input.head or input.row, input_item = input.head, input_first = 0,
        output_row = stacked and output.head or output.row, output_item = output.head,
        tile_rows = tile.rows, tile_vectors = tile.vectors,
        cycles = tile.cycles * items * shape.blocks,
        packed_end = packed_end, packed_floats = packed_end - shape.packed_base,
        unroll = tiles.depth_unroll(stage, problem, machine, shape.depth, tile.rows, tile.vectors,
            shape.straight),
        straight = shape.straight,
    }
end

-- What weights and buffers of a call take, in L2s, when an output no longer stays there until it is
-- written again, whatever its own size.
local PASSING_SHARE <const> = 4
-- Cycles of multiply-adds beside which one more request a turn costs nothing (AVX2's 12 lose 1 %).
local LEAST_TURN <const> = 16

-- Weights that do not stay in L2 from call to call arrive late at the start of every panel: each
-- panel then asks for the next one. An output that does not stay there is fetched before it is
-- written: a row tile asks for its lines, line by line within its products where its rows follow
-- each other and turns are long, else first where the output alone exceeds L2.
function projection.choose_prefetch(built)
    local l2 <const> = built.machine.target.l2
    local stay <const> = built.packed_bytes <= l2 // 2
    local pass <const> = built.packed_bytes + built.workspace_bytes > PASSING_SHARE * l2
    for _, one in ipairs(built.products) do
        local passes <const> = one.items * (one.block_tiles or one.tiles)
        one.prefetch = not stay and not built.straight and passes > 1
        one.ahead = not stay and not built.straight and passes == 1
            and numbers.AHEAD_FLOATS or nil
        local beyond <const> = one.rows * one.columns * numbers.FLOAT_BYTES > l2
        local turn <const> = one.tile_rows * one.tile_vectors * one.unroll
        local within <const> = one.layout and one.layout.kind == "heads"
            and turn >= LEAST_TURN * built.machine.target.fma_pipes
        one.prefetch_out = not built.straight and passes > 1
            and (within and (pass or beyond) and "line by line" or beyond and "first")
    end
end

-- ---- Layouts -------------------------------------------------------------------------------

-- Where element (batch, head, row, d) of a projected tensor lives, in floats.
-- Head-major when heads are whole vectors and no panel straddles a head unevenly: each head is then
-- contiguous. Otherwise dense rows, with an odd number of cache lines a row so that the rows of one
-- head spread over all cache sets. `interleaved`: a row is [dim][head], not [head][dim]; `merged`:
-- other tensors share the row.
function projection.layout(planned, head_width, heads, rows_per_item, lanes, interleaved, merged)
    local sizes <const> = {}
    for i, group in ipairs(planned.groups) do
        sizes[i] = { count = group.count, size = group.vectors }
    end
    if not interleaved and not merged and tiles.panels_fit_heads(sizes, head_width, lanes) then
        return { kind = "heads", batch = rows_per_item * head_width,
            head = planned.rows * head_width, row = head_width,
            floats = planned.rows * head_width * heads }
    end
    local stride = round_up(planned.padded_columns, LINE_FLOATS)
    if stride // LINE_FLOATS % 2 == 0 then stride = stride + LINE_FLOATS end
    -- A vector load of the last head may run past its row; the tail keeps it inside the buffer.
    return { kind = "rows", batch = rows_per_item * stride, head = interleaved and 1 or head_width,
        dim = interleaved and heads or 1, row = stride,
        floats = planned.rows * stride + LINE_FLOATS }
end

-- The output of a projection, per group of panels: offset of panel p's vector v is
-- (p // heads_per_..)… reduced to: block = p // per_block, at = p % per_block.
function projection.target_panels(planned, layout, head_width, lanes)
    for _, group in ipairs(planned.groups) do
        local width <const> = group.vectors * lanes
        local vector_offsets <const> = {}
        if layout.kind == "rows" then
            group.per_block, group.block_stride, group.panel_stride = 1, width, 0
            group.target = group.first_column
            for v = 0, group.vectors - 1 do vector_offsets[v + 1] = v * lanes end
        elseif width <= head_width then
            -- several panels a head; the group may start inside one
            local per_head <const> = head_width // width
            assert(group.first_column % width == 0, "panels of a group are aligned to their width")
            group.per_block, group.block_stride, group.panel_stride = per_head, layout.head, width
            group.start = group.first_column // width
            group.target = 0
            for v = 0, group.vectors - 1 do vector_offsets[v + 1] = v * lanes end
        else
            -- several heads a panel
            local heads_per_panel <const> = width // head_width
            group.per_block, group.panel_stride = 1, 0
            group.block_stride = heads_per_panel * layout.head
            group.target = group.first_column // head_width * layout.head
            for v = 0, group.vectors - 1 do
                local column <const> = v * lanes
                vector_offsets[v + 1] = column // head_width * layout.head + column % head_width
            end
        end
        group.start = group.start or 0
        group.vector_offsets = vector_offsets
    end
end

return projection
