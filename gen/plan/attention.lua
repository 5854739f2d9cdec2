-- Plans the attention of one head: blocks of queries, tiles of scores and context, and the buffers
-- a part works in.
local numbers <const> = require("gen.plan.numbers")
local tiles <const> = require("gen.plan.tiles")

local attention <const> = {}

local ceil_div <const>, split_even <const> = numbers.ceil_div, numbers.split_even
local add_buffer <const> = numbers.add_buffer

-- Query blocks: {first, count, vectors, queries}; only the last may hold fewer queries than lanes.
local function query_blocks(seq_len, lanes, groups)
    local blocks <const>, first = {}, 0
    for _, group in ipairs(groups) do
        local width <const> = group.size * lanes
        local whole <const> = math.min(group.count, (seq_len - first) // width)
        if whole > 0 then
            blocks[#blocks + 1] = { first = first, count = whole, vectors = group.size,
                queries = width }
            first = first + whole * width
        end
        if whole < group.count then
            blocks[#blocks + 1] = { first = first, count = 1, vectors = group.size,
                queries = seq_len - first }
            first = seq_len
        end
    end
    return blocks
end

-- Query heads that read the same keys and values are rows of one block, where that leaves fewer
-- lanes empty: 12 heads with one query each are 12 lanes, not 12 mostly empty vectors. Returns the
-- problem that the attention stages see (fewer heads, more queries) and its layouts of q and out.
-- Only where no mask tells the stacked rows apart, and where they lie equally far apart.
function attention.stack_heads(problem, built, lanes)
    local q <const>, out <const> = built.q, built.out
    local is_shared <const> = built.k.head == 0 and built.v.head == 0
    local heads <const> = is_shared and problem.heads or problem.group
    local L <const>, tensor <const> = problem.seq_len, problem.mask_tensor
    local fewer <const> = ceil_div(heads * L, lanes) < heads * ceil_div(L, lanes)
    if not fewer or problem.causal or problem.padded_queries == "zero"
        or tensor and (tensor.per_query or tensor.head ~= 0)
        or problem.return_weights == "mean" then
        return problem, q, out
    end
    local q_row, out_row
    if L == 1 then
        q_row, out_row = q.head, out.head
    elseif q.head == L * q.row and out.head == L * out.row then
        q_row, out_row = q.row, out.row
    elseif q.row == heads * q.head and out.row == heads * out.head
        and not problem.return_weights then
        q_row, out_row = q.head, out.head
    else
        return problem, q, out
    end
    local stacked <const> = {}
    for key, value in pairs(problem) do stacked[key] = value end
    stacked.heads, stacked.seq_len = problem.heads // heads, heads * L
    stacked.kv_heads, stacked.group = stacked.heads, 1
    local function layout(from, row)
        return { batch = from.batch, head = heads * from.head, row = row, buffer = from.buffer,
            argument = from.argument }
    end
    return stacked, layout(q, q_row), layout(out, out_row)
end

-- dims: {score, value}: depth of the scores and width of the values, a head.
function attention.build(problem, machine, dims, straight)
    local lanes <const> = machine.lanes
    local range_loops <const> = problem.key_range and not straight
    local function split_keys(rows)
        if not range_loops then return split_even(problem.kv_len, rows) end
        local whole <const>, rest <const> = problem.kv_len // rows, problem.kv_len % rows
        local groups <const> = {}
        if whole > 0 then groups[#groups + 1] = { count = whole, size = rows } end
        if rest > 0 then groups[#groups + 1] = { count = 1, size = rest } end
        return groups
    end
    local scores <const> = tiles.choose("scores", problem, machine,
        { vectors = ceil_div(problem.seq_len, lanes), depth = dims.score }, split_keys)
    local blocks <const> = query_blocks(problem.seq_len, lanes, scores.column_groups)

    local value_vectors <const> = ceil_div(dims.value, lanes)
    local block_queries <const> = blocks[1].queries
    local context <const> = tiles.choose("context", problem, machine,
        { vectors = value_vectors, depth = problem.kv_len },
        function(rows) return split_even(block_queries, rows) end)
    local count, widest = 0, 0
    for _, block in ipairs(blocks) do
        block.first_index = count
        block.width = block.vectors * lanes
        block.row_groups = split_even(block.queries, context.rows)
        count = count + block.count
        widest = math.max(widest, block.width)
    end
    return {
        blocks = blocks, block_count = count, width = widest,
        key_groups = scores.row_groups, key_rows = scores.rows, range_loops = range_loops,
        scores_vectors = scores.vectors,
        scores_unroll = tiles.depth_unroll("scores", problem, dims.score,
            scores.rows * scores.vectors, straight),
        context_rows = context.rows, column_groups = context.column_groups,
        context_vectors = context.vectors,
        context_unroll = tiles.depth_unroll("context", problem, problem.kv_len,
            context.rows * context.vectors, straight),
        value_vectors = value_vectors,
        straight = straight,
        cycles = (scores.cycles + context.cycles * count) * problem.batch * problem.heads,
        mask_panel = problem.mask_tensor ~= nil and problem.mask_tensor.per_query,
        repair = problem.masked,
        -- what a block computes depends on where its queries stand, not only on its pointers
        by_query = problem.causal ~= nil or problem.padded_queries == "zero",
        -- items cost what their lengths say
        items_apart = problem.mask.lengths,
        -- blocks of padded queries are only cleared
        skips = not straight and problem.padded_queries == "zero",
        -- a block's cost depends on its place: parts then take long and short ones in turns
        uneven = not straight and (problem.causal ~= nil or problem.padded_queries == "zero"),
        heads_inside = problem.return_weights == "mean",
    }
end

-- The buffers of one part.
function attention.part_buffers(problem, planned, dims)
    local list <const> = { floats = 0 }
    add_buffer(list, "queries", dims.score * planned.width,
        "query block, transposed: [head_dim][queries]")
    add_buffer(list, "scores", problem.kv_len * planned.width,
        "logits, then weights before division: [kv_len][queries]")
    add_buffer(list, "maxima", planned.width, "reference maximum of each query")
    add_buffer(list, "inverse_sums", planned.width, "1 / sum of weights of each query")
    if planned.mask_panel then
        add_buffer(list, "mask_panel", problem.kv_len * planned.width,
            "mask of the query block, transposed: [kv_len][queries]")
    end
    return list
end

return attention
