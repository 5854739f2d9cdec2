-- Plans attention with lanes along heads: for short sequences of several heads, whose queries would
-- leave most lanes empty and whose heads are narrow. Projections interleave the heads of a row,
-- [dim][head] (gen/packing permutes the weights), so that a group of neighbouring floats is one
-- element of every head: scores and context are element-wise, without sums across lanes or
-- transposes. Where there are fewer heads than lanes, a vector holds the heads of several queries;
-- keys and values are then repeated for each. With more heads, vectors take their heads in turn.
-- Two items whose queries fill half a vector each are one with the heads of both: their rows are
-- put together first, [dim][item][head].
local attention <const> = require("gen.plan.attention")
local numbers <const> = require("gen.plan.numbers")
local tiles <const> = require("gen.plan.tiles")

local heads <const> = {}

local ceil_div <const>, split_even <const> = numbers.ceil_div, numbers.split_even

-- Short rows only: each is one block, its weights one chain of sums.
local MOST_KEYS <const> = 128

-- Cycles of one key and vector in the softmax, and of what a block of queries costs besides.
local SOFTMAX_CYCLES <const>, BLOCK_CYCLES <const> = 8, 40

-- Why the heads cannot lie along the lanes, or nil.
function heads.obstacle(problem, lanes)
    local H <const> = problem.heads
    if problem.op ~= "mha" or not problem.output_projection then
        return "needs the projections around it"
    end
    if problem.group > 1 then return "needs as many kv heads as heads" end
    if problem.kv_cache then return "the cache holds head after head" end
    if problem.masked or problem.return_weights then return "has neither masks nor weights" end
    if problem.kv_len > MOST_KEYS then return ("has at most %d keys"):format(MOST_KEYS) end
    if H % lanes ~= 0 and (H < 2 or lanes % H ~= 0) then
        return "needs a multiple of the lanes, or heads that divide them"
    end
    return nil
end

-- Whether `form` leaves keys and values in rows of heads.
function heads.fits_form(form)
    return form.keys == "projected" and form.values == "projected"
end

-- Whether an item's keys and values stay in half of a first-level cache of `l1d` bytes: every block
-- of queries reads all of them.
function heads.stays(problem, l1d)
    local floats <const> = problem.kv_len * problem.heads * (problem.head_dim
        + problem.v_head_dim)
    return floats * numbers.FLOAT_BYTES <= l1d // 2
end

-- Vector instructions in the text of the kernel's attention.
local function text_ops(problem, planned)
    local ops = 20
    for _, block in ipairs(planned.blocks) do
        local v <const> = block.vectors
        for _, keys in ipairs(planned.key_groups) do
            ops = ops + planned.scores_unroll * (keys.size * v + keys.size + v)
                + 14 * keys.size * v + (planned.straight and 10 * keys.count or 0)
        end
        for _, dims in ipairs(planned.dim_groups) do
            ops = ops + planned.context_unroll * (dims.size * v + dims.size + v)
                + 3 * dims.size * v + (planned.straight and 10 * dims.count or 0)
        end
        ops = ops + 40 * v
    end
    if planned.straight then
        ops = ops + 10 * problem.batch * planned.head_vectors * planned.block_count
    end
    return ops
end

-- How many items share a vector, and whether outputs stay as they are computed: a vector of queries
-- after the other, [dim][query][head], from where the output projection takes its factors.
local function share_vectors(problem, lanes)
    local rows <const>, forced <const> = lanes // problem.heads, problem.plan.output or {}
    local both <const> = 2 * problem.seq_len == rows and problem.batch % 2 == 0
    local in_place <const> = rows > 2 and (both or problem.seq_len % rows == 0)
        and not (forced.rows or forced.vectors or forced.unroll)
    return both and in_place and 2 or 1, in_place
end

-- Floats of a row of two items with `width` dims a head: whole vectors of each.
function heads.pair_row(problem, width, lanes)
    return 2 * numbers.round_up(width * problem.heads, lanes)
end

-- Dims of a context tile: it is as wide as its block of `vectors` vectors.
local function choose_dim_rows(problem, machine, vectors, width)
    local most <const> = math.max(1, (machine.registers - 1) // vectors - 1)
    local forced <const> = problem.plan.context or {}
    if forced.vectors and forced.vectors ~= vectors then
        numbers.refuse("plan.context.vectors", forced.vectors,
            'orientation "heads" has tiles as wide as those of the scores',
            ("%d, or not given"):format(vectors))
    end
    if forced.rows and forced.rows > most then
        numbers.refuse("plan.context.rows", forced.rows, "needs too many vector registers",
            ("at most %d with tiles of %d vectors on %s"):format(most, vectors, machine.name))
    end
    return math.min(forced.rows or most, width)
end

-- widths: {score, value}: depth of the scores and width of the values, a head.
function heads.build(problem, machine, widths, straight)
    local lanes <const>, H <const> = machine.lanes, problem.heads
    local items <const>, in_place <const> = share_vectors(problem, lanes)
    local group <const> = math.min(items * H, lanes)
    local queries_each <const> = lanes // group
    local seq_len <const>, batch <const> = problem.seq_len, problem.batch // items
    local vectors <const> = ceil_div(seq_len, queries_each)
    local scores <const> = tiles.choose("scores", problem, machine,
        -- what hides the latency is enough: exp2 of a tile needs registers of its own
        { vectors = vectors, depth = widths.score,
            sums = machine.target.fma_latency * machine.target.fma_pipes },
        function(rows) return split_even(problem.kv_len, rows) end)
    local dim_rows <const> = choose_dim_rows(problem, machine, scores.vectors, widths.value)
    local blocks <const> = attention.query_blocks(seq_len, queries_each,
        scores.column_groups)
    local width, cycles, block_count = 0, 0.0, 0
    for _, block in ipairs(blocks) do
        block.width = block.vectors * lanes
        width = math.max(width, block.width)
        block_count = block_count + block.count
        cycles = cycles + block.count * (BLOCK_CYCLES + tiles.cycles(
            split_even(widths.value, dim_rows), { { count = 1, size = block.vectors } },
            problem.kv_len, machine))
    end
    local key_groups <const> = scores.row_groups
    local one_tile <const> = #key_groups == 1 and key_groups[1].count == 1
    local dim_groups <const> = split_even(widths.value, dim_rows)
    -- tried weights are used before their sums are looked at, which hides what these take; of 16
    -- registers clang has none left for it (AVX2, tiny-ov: 2 % slower, gcc 1 % faster)
    local uses_tried <const> = not straight and machine.trial ~= nil
        and machine.registers > numbers.FEW_REGISTERS
    local head_vectors <const> = items * H // group
    -- as many dims as a vector has queries are transposed at once; two of each are as well joined
    local regroups_queries <const> = queries_each > 2 and seq_len % queries_each == 0
        and widths.score % queries_each == 0 and problem.fold.query_scale == 1.0
    local planned <const> = {
        orientation = "heads", lanes = lanes, group = group, queries_each = queries_each,
        items = items,
        head_vectors = head_vectors, blocks = blocks, block_count = block_count,
        width = width,
        key_groups = key_groups, key_rows = scores.rows, scores_vectors = scores.vectors,
        scores_unroll = tiles.depth_unroll("scores", problem, machine, widths.score,
            scores.rows, scores.vectors, straight),
        dim_groups = dim_groups, context_rows = dim_rows,
        uses_tried = uses_tried,
        -- the only tile of dims then divides by itself, behind its products
        divides_late = uses_tried and #dim_groups == 1 and dim_groups[1].count == 1,
        context_vectors = scores.vectors,
        context_unroll = tiles.depth_unroll("context", problem, machine, problem.kv_len,
            dim_rows, scores.vectors, straight),
        regroups_queries = regroups_queries, in_place = in_place,
        -- queries of a vector whose outputs follow each other
        output_rows = in_place and items * queries_each or nil,
        -- the only tile of keys takes its queries from where they are
        gathers = problem.fold.query_scale ~= 1.0 or regroups_queries
            or queries_each > 1 and not one_tile,
        key_block = problem.kv_len, straight = straight,
        -- as with lanes along queries
        trial = not straight and machine.trial or nil,
        cycles = batch * head_vectors * (scores.cycles + cycles),
        softmax_cycles = batch * head_vectors * vectors * problem.kv_len * SOFTMAX_CYCLES,
        gather_cycles = batch * head_vectors * vectors * widths.score,
    }
    planned.text_ops = text_ops(problem, planned)
    return planned
end

-- The buffers of one part.
function heads.part_buffers(problem, planned, widths)
    local list <const> = { floats = 0 }
    local width <const> = planned.width
    if planned.items > 1 then
        for _, one in ipairs({ { "query", problem.seq_len, widths.score },
            { "key", problem.kv_len, widths.score }, { "value", problem.kv_len, widths.value } }) do
            numbers.add_buffer(list, one[1] .. "_pairs",
                one[2] * heads.pair_row(problem, one[3], planned.lanes),
                ("%s rows of both items: [row][dim][item][head]"):format(one[1]))
        end
    end
    if planned.gathers then
        numbers.add_buffer(list, "queries", widths.score * width,
            "query block: [head_dim][query][head]")
    end
    numbers.add_buffer(list, "scores", planned.key_block * width,
        "weights before division: [key][query][head]")
    local states <const> = { { "maxima", "largest logit" }, { "references", "reference" },
        { "sums", "sum of weights" } }
    if not planned.divides_late then
        states[4] = { "inverse_sums", "1 / sum of weights" }
    end
    for _, one in ipairs(states) do
        numbers.add_buffer(list, one[1], width, one[2] .. " of each query and head")
    end
    if planned.trial then
        numbers.add_buffer(list, "trust", 1,
            "not 0: the last block of queries was within reach of 0")
    end
    if planned.trial == "bits" then
        numbers.add_buffer(list, "strays", planned.lanes,
            "bits of logits out of exp2_near's domain")
    end
    return list
end

return heads
