-- Plans the attention of one head: blocks of queries, tiles of scores and context, and the buffers
-- a part works in.
local context <const> = require("gen.plan.context")
local numbers <const> = require("gen.plan.numbers")
local tiles <const> = require("gen.plan.tiles")

local attention <const> = {}

local ceil_div <const>, split_even <const> = numbers.ceil_div, numbers.split_even
local add_buffer <const> = numbers.add_buffer

-- Query blocks: {first, count, vectors, queries}, `each` queries a vector; only the last block may
-- hold fewer than its vectors have room for.
function attention.query_blocks(seq_len, each, groups)
    local blocks <const>, first = {}, 0
    for _, group in ipairs(groups) do
        local width <const> = group.size * each
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

-- Cycles of exp2 and what stands around it for a vector of weights, and of adding the lanes of two
-- vectors into one.
local WEIGHT_CYCLES <const>, PAIR_CYCLES <const> = 5, 2

-- Where the last queries leave most of a vector's lanes empty, `split` neighbouring lanes share one
-- query: each takes every split-th step along the head, and the sums of `split` keys fill a vector
-- of weights [key][query]. Returns the split and its cycles, or nil where whole lanes are as cheap.
local function choose_split(problem, machine, depth)
    local lanes <const> = machine.lanes
    local queries <const> = problem.seq_len % lanes
    if queries == 0 or problem.seq_len < lanes or problem.masked then return nil end
    local split = 1
    while 2 * split * queries <= lanes and split < 8 do split = 2 * split end
    if split == 1 or depth % split ~= 0 or depth // split < 2 or depth // split > 384 then
        return nil
    end
    local keys <const>, pipes <const> = problem.kv_len, machine.target.fma_pipes
    local whole <const> = keys * (depth / pipes + WEIGHT_CYCLES)
    local shared <const> = numbers.round_up(keys, split)
        * (depth / split / pipes + WEIGHT_CYCLES / split + PAIR_CYCLES)
        + queries * depth / split + 100
    if shared < whole then return split, shared end
    return nil
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
            offset = from.offset, argument = from.argument }
    end
    return stacked, layout(q, q_row), layout(out, out_row)
end

-- Keys a block of them holds. Short rows are one block: the whole row's weights stay in cache and
-- their sum is added up in one go. Long rows (more than LONGEST keys) are cut into even blocks of
-- whole key tiles, at most WIDEST keys each: memory and rounding errors then grow with the block.
-- No block is deeper than one sum (gen/tile.lua): the carry would lie where earlier blocks add up.
local LONGEST <const>, WIDEST <const> = numbers.LONGEST_SUM, 256

local function choose_key_block(problem, rows, straight)
    local forced <const> = problem.plan.scores and problem.plan.scores.key_block
    local keys <const> = problem.kv_len
    if problem.return_weights or straight then
        if forced and forced < keys then
            numbers.refuse("plan.scores.key_block", forced, problem.return_weights
                and "returned weights need whole rows" or "straight-line code has whole rows",
                ("not given, or >= kv_len = %d"):format(keys))
        end
        return keys
    end
    if (forced or LONGEST) >= keys then return keys end
    local most <const> = forced or WIDEST
    if most > LONGEST then
        numbers.refuse("plan.scores.key_block", forced, "a block of keys is one sum",
            ("up to %d, or >= kv_len = %d"):format(LONGEST, keys))
    end
    local blocks = ceil_div(keys, most)
    while numbers.round_up(ceil_div(keys, blocks), rows) > LONGEST do blocks = blocks + 1 end
    return math.min(numbers.round_up(ceil_div(keys, blocks), rows), keys)
end

-- Fraction of the scores that score tiles of so many keys compute for blocks of queries that end at
-- the diagonal: wide blocks reach further beyond it.
local function causal_fraction(problem, lanes)
    local causal <const> = problem.causal
    if not causal then return nil end
    local keys <const>, queries <const> = problem.kv_len, problem.seq_len
    local shift <const> = causal.by_length and keys - queries or causal.positive - causal.negative
    return function(rows, column_groups)
        local computed, last = 0, 0
        for _, group in ipairs(column_groups) do
            local width <const> = group.size * lanes
            for _ = 1, group.count do
                last = last + width
                local seen <const> = math.max(0, math.min(last, queries) + shift)
                computed = computed + width * math.min(numbers.round_up(seen, rows), keys)
            end
        end
        return computed / (last * keys)
    end
end

-- Vectors of the block's last queries that have tiles of their own behind the keys which the others
-- see, on the causal diagonal; nil where such tiles would wait for the FMA latency.
local function choose_last_vectors(problem, machine, rows, block)
    local vectors <const>, target <const> = block.vectors // 2, machine.target
    if not problem.causal or rows * vectors < target.fma_latency * target.fma_pipes then
        return nil
    end
    return vectors
end

-- Score tiles ask for what the next blocks read and write (gen/stage/fetch.lua) where that takes
-- more than this share of L2, so that it does not stay there, or with the weights that pass while
-- it is projected more than so many times L2. Elsewhere for the next tile's keys and their own
-- values, where parts project and share heads, not items: one part gains nothing, several have them
-- from each other.
local STAYING_SHARE <const>, PASSING_SHARE <const> = 0.7, 1.5

-- What score tiles ask for: "blocks", "tiles" or nothing (false).
local function choose_prefetch(problem, machine, dims, straight)
    local forced <const> = problem.plan.scores and problem.plan.scores.prefetch
    local obstacle <const> = straight and "straight-line code asks for nothing"
        or machine.lanes == 1 and "one lane asks for nothing"
    if forced and obstacle then
        numbers.refuse("plan.scores.prefetch", forced, obstacle, "false, or not given")
    end
    if obstacle then return false end
    if forced ~= nil then return forced and "blocks" end
    local rows <const> = problem.heads * problem.seq_len + problem.kv_heads * problem.kv_len
    local floats <const> = problem.batch * rows * (dims.score + dims.value)
    local weights <const> = problem.op == "mha" and problem.d_model * problem.heads * dims.score
        + problem.kv_dim * problem.kv_heads * (dims.score + dims.value) or 0
    local held <const> = machine.target.l2 // numbers.FLOAT_BYTES
    if floats > STAYING_SHARE * held or floats + weights > PASSING_SHARE * held then
        return "blocks"
    end
    local own_items <const> = problem.is_block or problem.batch > 1 and not problem.mask.lengths
    return problem.op == "mha" and not own_items and "tiles"
end

-- What it counts that one of two parts has more queries than the other: most calls have one thread.
local LAG_SHARE <const> = 0.1

-- By how much blocks of such widths make one of two parts later than the other, as a fraction that
-- tiles pay for: nearly equal ones go to even shares. nil where whole heads or items are shared.
local function lag(problem, lanes, split)
    local heads <const>, queries <const> = problem.batch * problem.heads, problem.seq_len
    if heads % 2 == 0 or problem.is_block then return nil end
    local whole <const> = split and queries // lanes * lanes or queries
    return function(column_groups)
        local blocks <const> = attention.query_blocks(whole, lanes, column_groups)
        local count = split and 1 or 0
        for _, block in ipairs(blocks) do count = count + block.count end
        -- one head is shared by both
        local first, left = 0, count // 2
        for _, block in ipairs(blocks) do
            local taken <const> = math.min(left, block.count)
            first, left = first + taken * block.queries, left - taken
        end
        return LAG_SHARE * math.abs(2 * first - queries) / (heads * queries)
    end
end

-- Query blocks that walk the keys together where rows are done in several blocks of keys: each
-- block of K and V then comes from memory once for all of them.
local QUERIES_TOGETHER <const> = 64

-- dims: {score, value}: depth of the scores and width of the values, a head.
function attention.build(problem, machine, dims, straight)
    local lanes <const> = machine.lanes
    -- tiles over a range of keys that only the call knows
    local function has_range(rows)
        return not straight
            and (problem.key_range or choose_key_block(problem, rows, straight) < problem.kv_len)
    end
    local function split_keys(rows)
        if not has_range(rows) then return split_even(problem.kv_len, rows) end
        local whole <const>, rest <const> = problem.kv_len // rows, problem.kv_len % rows
        local groups <const> = {}
        if whole > 0 then groups[#groups + 1] = { count = whole, size = rows } end
        if rest > 0 then groups[#groups + 1] = { count = 1, size = rest } end
        return groups
    end
    local split, split_cycles
    if not straight and not has_range(1) then
        split, split_cycles = choose_split(problem, machine, dims.score)
    end
    local scores <const> = tiles.choose("scores", problem, machine,
        { vectors = split and problem.seq_len // lanes or ceil_div(problem.seq_len, lanes),
            depth = dims.score, is_masked = problem.causal ~= nil,
            computed = causal_fraction(problem, lanes),
            lag = not straight and lag(problem, lanes, split) or nil }, split_keys)
    local key_block <const> = choose_key_block(problem, scores.rows, straight)
    local in_blocks <const> = key_block < problem.kv_len
    local key_blocks <const> = ceil_div(problem.kv_len, key_block)
    local together_queries <const> = split and problem.seq_len // lanes * lanes or problem.seq_len
    local blocks <const> = attention.query_blocks(together_queries, lanes, scores.column_groups)
    if split then
        blocks[#blocks + 1] = { first = together_queries, count = 1, vectors = 1,
            queries = problem.seq_len - together_queries, split = split }
    end

    local value_vectors <const> = ceil_div(dims.value, lanes)
    local seen <const> = causal_fraction(problem, 1)
    local along_dims <const> = context.build(problem, machine, blocks, {
        dims = dims.value, keys = key_block, key_blocks = key_blocks, in_blocks = in_blocks,
        straight = straight,
        seen = function(queries)
            return seen and seen(1, split_even(problem.seq_len, queries)) or 1.0
        end,
    })
    local together <const> = in_blocks
        and math.max(1, QUERIES_TOGETHER // (blocks[1].vectors * lanes)) or 1
    local count, units, widest, most, context_cycles, along_queries = 0, 0, 0, 1, 0.0, 0
    for _, block in ipairs(blocks) do
        block.width = block.vectors * lanes // (block.split or 1)
        block.together = math.min(together, block.count)
        block.last_vectors = has_range(scores.rows)
            and choose_last_vectors(problem, machine, scores.rows, block) or nil
        block.first_unit = units
        block.units = ceil_div(block.count, block.together)
        count = count + block.count
        units = units + block.units
        widest = math.max(widest, block.width)
        most = math.max(most, block.together)
        context_cycles = context_cycles + block.count * block.context_cycles
        along_queries = along_queries + (block.dim_groups and 1 or 0)
    end
    return {
        blocks = blocks, block_count = count, width = widest, split = split, lanes = lanes,
        unit_count = units, together = most,
        key_block = key_block, in_blocks = in_blocks,
        prefetch = choose_prefetch(problem, machine, dims, straight),
        -- keys in whole tiles, where tiles follow a range
        whole_keys = has_range(scores.rows) and problem.kv_len // scores.rows * scores.rows or nil,
        key_groups = scores.row_groups, key_rows = scores.rows,
        range_loops = has_range(scores.rows),
        scores_vectors = scores.vectors,
        scores_unroll = tiles.depth_unroll("scores", problem, machine, dims.score,
            scores.rows, scores.vectors, straight),
        context_rows = along_dims.rows, column_groups = along_dims.column_groups,
        context_vectors = along_dims.vectors,
        context_unroll = tiles.depth_unroll("context", problem, machine, key_block,
            along_dims.rows, along_dims.vectors, straight),
        -- some blocks' context lies along queries, some along the head
        context_along_queries = along_queries > 0, context_along_dims = along_queries < #blocks,
        value_vectors = value_vectors,
        straight = straight,
        cycles = problem.batch * problem.heads * (scores.cycles + (split_cycles or 0)
            + context_cycles * key_blocks),
        -- references of 0 are tried first, without maxima
        trial = not straight and machine.trial or nil,
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
    local width <const>, together <const> = planned.width, planned.together
    local each <const> = together > 1 and ("[%d blocks]"):format(together) or ""
    add_buffer(list, "queries", together * dims.score * width,
        ("query block, transposed: %s[head_dim][queries]"):format(each))
    add_buffer(list, "scores", planned.key_block * width,
        "weights before division: [keys][queries]")
    local function add_state(name, meaning)
        add_buffer(list, name, together * width, meaning .. " of each query")
    end
    add_state("maxima", "largest logit so far")
    add_state("references", "reference")
    add_state("sums", planned.in_blocks and "sum of the block's weights" or "sum of weights")
    if planned.in_blocks then
        add_state("totals", "sum of earlier blocks' weights")
        add_state("factors", "change of scale")
    end
    add_state("inverse_sums", "1 / sum of weights")
    if planned.context_along_queries then
        add_buffer(list, "dim_rows", together * dims.value * width,
            ("context of the query block, transposed: %s[v_head_dim][queries]"):format(each))
    end
    if planned.split then
        add_buffer(list, "turning", 2 * planned.lanes, "a vector twice, to turn its lanes")
    end
    if planned.trial then
        add_buffer(list, "trust", 1, "not 0: the last block of queries was within reach of 0")
    end
    if planned.trial == "bits" then
        add_buffer(list, "strays", planned.lanes, "bits of logits out of exp2_near's domain")
    end
    if planned.mask_panel then
        add_buffer(list, "mask_panel", together * problem.kv_len * width,
            ("mask of the query block, transposed: %s[kv_len][queries]"):format(each))
    end
    return list
end

return attention
