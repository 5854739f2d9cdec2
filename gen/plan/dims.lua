-- Plans attention with lanes along the head: for few query rows a kv head. The query rows that read
-- one kv head (its group of heads times the queries) are stacked; scores are dot products along
-- head_dim, summed across lanes for as many keys as there are lanes, so that the softmax has lanes
-- along keys and the context has lanes along v_head_dim. Every row of K and V is then loaded as it
-- lies in memory and once for the whole stack.
local numbers <const> = require("gen.plan.numbers")
local tiles <const> = require("gen.plan.tiles")

local dims <const> = {}

local ceil_div <const>, round_up <const> = numbers.ceil_div, numbers.round_up
local split_even <const>, add_buffer <const> = numbers.split_even, numbers.add_buffer

-- Vector instructions of exp2 and the loads, stores and sums around it, and the cycles they take.
dims.SOFTMAX_OPS = 16
dims.SOFTMAX_CYCLES = 8

-- Instructions that sum the lanes of two vectors into one, and how many a cycle.
local PAIR_OPS <const>, PAIR_RATE <const> = 3, 2.5

-- Keys multiplied at a time before their lanes are summed; all of a vector's where a row of K takes
-- more vectors than are written out.
local KEYS_AT_ONCE <const>, MOST_CHUNKS <const> = 2, 16

-- Vectors of queries up to which the row tiles of a key are written out.
local MOST_QUERIES <const> = 32

-- Registers of a score tile a row: an accumulator for each key multiplied at a time, a sum for each
-- level of the tree above them, the row's queries.
function dims.row_registers(lanes, at_once)
    at_once = at_once or math.min(KEYS_AT_ONCE, lanes)
    local levels, width = 0, at_once
    while width < lanes do levels, width = levels + 1, 2 * width end
    return at_once + levels + 1
end

local function tallest_tile(problem, machine, at_once)
    local registers <const> = machine.registers
    local per_row <const> = dims.row_registers(machine.lanes, at_once)
    local forced <const> = problem.plan.scores or {}
    if forced.vectors and forced.vectors ~= 1 then
        numbers.refuse("plan.scores.vectors", forced.vectors,
            'orientation "dims" sums one vector of keys at a time', "1, or not given")
    end
    local most <const> = math.max(1, (registers - 1) // per_row)
    if forced.rows and forced.rows * per_row + 1 > registers then
        numbers.refuse("plan.scores.rows", forced.rows, ('orientation "dims" needs %d vector '
            .. "registers"):format(forced.rows * per_row + 1),
            ("rows * %d + 1 <= %d on %s"):format(per_row, registers, machine.name))
    end
    return forced.rows or most
end

-- Cycles of one score tile of `rows` x lanes keys.
local function tile_cycles(rows, depth, machine, at_once)
    local lanes <const>, target <const> = machine.lanes, machine.target
    local chunk <const> = math.max(rows * lanes / target.fma_pipes,
        (rows * lanes / at_once + lanes) / target.load_ports, target.fma_latency) + 0.3
    return ceil_div(depth, lanes) * chunk + rows * (PAIR_OPS * (lanes - 1) / PAIR_RATE + 2)
end

-- Blocks of stacked rows, so that their scores stay in half of L2.
local function row_blocks(rows, row_floats, machine, straight)
    local room <const> = machine.target.l2 // 2 // numbers.FLOAT_BYTES // row_floats
    local most <const> = straight and rows or math.max(1, math.min(rows, room))
    local blocks <const>, first = {}, 0
    for _, group in ipairs(split_even(rows, most)) do
        blocks[#blocks + 1] = { first = first, count = group.count, rows = group.size,
            first_index = #blocks == 0 and 0 or blocks[1].count }
        first = first + group.count * group.size
    end
    return blocks
end

-- Vector instructions in the text of the kernel's attention.
local function text_ops(problem, planned, widths, straight)
    local ops = 0
    local chunks <const> = (straight or planned.unroll_chunks) and planned.chunks or 1
    for _, block in ipairs(planned.blocks) do
        local tile_ops = 0
        for _, group in ipairs(block.score_groups) do
            local copies <const> = planned.unroll_rows and group.count or 1
            tile_ops = tile_ops + copies * (chunks * (group.size * planned.lanes * 2)
                + group.size * PAIR_OPS * planned.lanes)
        end
        local context_ops = 0
        for _, rows in ipairs(block.row_groups) do
            for _, columns in ipairs(planned.column_groups) do
                local count <const> = straight and rows.count * columns.count or 1
                context_ops = context_ops + count * (planned.context_unroll
                    * (rows.size * columns.size + rows.size + columns.size)
                    + 4 * rows.size * columns.size)
            end
        end
        local softmax_ops <const> = (straight and block.rows * planned.key_tiles or 1)
            * dims.SOFTMAX_OPS
        local copies <const> = straight and planned.key_tiles or planned.range_loops and 3 or 2
        ops = ops + copies * tile_ops + context_ops + softmax_ops
        if planned.repair then
            ops = ops + (straight and 3 * problem.kv_len * planned.value_vectors or 60)
        end
        if straight then
            ops = ops + block.rows * (4 * planned.chunks + planned.mask_rows * problem.kv_len)
                + 10 * problem.batch * problem.kv_heads
            if problem.return_weights then ops = ops + 3 * block.rows * problem.kv_len end
        end
    end
    return ops + 20 + (straight and ceil_div(widths.value, planned.lanes) or 1)
end

-- widths: {score, value}: depth of the scores and width of the values, a head.
function dims.build(problem, machine, widths, straight)
    local lanes <const> = machine.lanes
    local rows <const> = problem.group * problem.seq_len
    local row_floats <const> = round_up(problem.kv_len, lanes)
    local chunks <const> = ceil_div(widths.score, lanes)
    local at_once <const> = chunks <= MOST_CHUNKS and math.min(KEYS_AT_ONCE, lanes) or lanes
    local tile_rows <const> = tallest_tile(problem, machine, at_once)
    local blocks <const> = row_blocks(rows, row_floats, machine, straight)
    local value_vectors <const> = ceil_div(widths.value, lanes)
    local context <const> = tiles.choose("context", problem, machine,
        { vectors = value_vectors, depth = problem.kv_len },
        function(most) return split_even(blocks[1].rows, most) end)
    local key_tiles <const> = row_floats // lanes
    local tensor <const> = problem.mask_tensor
    local per_row <const> = tensor ~= nil and (tensor.per_query or tensor.head > 0)
    local score_cycles, block_count, widest = 0.0, 0, 0
    for _, block in ipairs(blocks) do
        block.score_groups = split_even(block.rows, tile_rows)
        block.row_groups = split_even(block.rows, context.rows)
        block_count = block_count + block.count
        widest = math.max(widest, block.rows)
        for _, group in ipairs(block.score_groups) do
            score_cycles = score_cycles + block.count * group.count * key_tiles
                * tile_cycles(group.size, widths.score, machine, at_once)
        end
    end
    local planned <const> = {
        orientation = "dims", lanes = lanes, rows = rows, blocks = blocks,
        block_count = block_count, widest = widest,
        tile_rows = blocks[1].score_groups[1].size, key_tiles = key_tiles, row_floats = row_floats,
        chunks = chunks, unroll_chunks = chunks <= MOST_CHUNKS, keys_at_once = at_once,
        query_floats = round_up(widths.score, lanes),
        range_loops = problem.key_range and not straight,
        context_rows = context.rows, context_vectors = context.vectors,
        column_groups = context.column_groups, value_vectors = value_vectors,
        context_unroll = tiles.depth_unroll("context", problem, machine, problem.kv_len,
            context.rows, context.vectors, straight),
        mask_rows = per_row and widest or (problem.mask.padding or tensor ~= nil) and 1 or 0,
        mask_per_row = per_row,
        repair = problem.masked, heads_inside = problem.return_weights == "mean",
        straight = straight,
        cycles = (score_cycles + context.cycles * block_count) * problem.batch * problem.kv_heads,
        softmax_cycles = rows * key_tiles * dims.SOFTMAX_CYCLES * problem.batch * problem.kv_heads,
    }
    -- a few row tiles are written one after the other; more of them, and compilers hoist more
    -- queries out of the loop over keys than there are registers
    planned.unroll_rows = straight or widest * planned.chunks <= MOST_QUERIES
    -- keys and values that a call does not find in L2
    local kv_floats <const> = problem.batch * problem.kv_heads * problem.kv_len
        * (widths.score + widths.value)
    if not straight and kv_floats * numbers.FLOAT_BYTES > machine.target.l2 // 2 then
        planned.key_ahead = round_up(ceil_div(numbers.AHEAD_FLOATS, widths.score), lanes)
        planned.value_ahead = ceil_div(numbers.AHEAD_FLOATS, widths.value)
    end
    planned.text_ops = text_ops(problem, planned, widths, straight)
    return planned
end

-- The buffers of one part.
function dims.part_buffers(problem, planned)
    local list <const> = { floats = 0 }
    add_buffer(list, "queries", planned.widest * planned.query_floats,
        "stacked query rows: [row][head_dim]")
    add_buffer(list, "scores", planned.widest * planned.row_floats,
        "logits, then weights before division: [row][kv_len]")
    add_buffer(list, "inverse_sums", planned.widest, "1 / sum of weights of each row")
    if planned.mask_rows > 0 then
        add_buffer(list, "mask_rows", planned.mask_rows * round_up(problem.kv_len, planned.lanes),
            "mask added to the logits, -inf: do not attend: "
                .. (planned.mask_per_row and "[row][kv_len]" or "[kv_len]"))
    end
    return list
end

return dims
