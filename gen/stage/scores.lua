-- Scores of one block of queries against its keys, lanes along queries: S^T[key][query] = K . Q^T.
-- First the queries (and a per-query mask) are transposed into vectors of one query a lane; then
-- maxima, sums and masks are vertical and P^T is already the broadcast operand of the context
-- product. The softmax weighs each tile's logits while they are in registers.
local ir <const> = require("gen.ir")
local tile <const> = require("gen.tile")
local mask <const> = require("gen.stage.mask")
local fetch <const> = require("gen.stage.fetch")
local softmax <const> = require("gen.stage.softmax")
local transpose <const> = require("gen.stage.transpose")

local scores <const> = {}

-- Clears the lanes of queries that do not exist, from row `first` on, so that they compute with
-- zeros.
local function clear_unused_lanes(block, ctx, dst, first, rows)
    local unused <const> = ctx.block.width - ctx.block.queries
    if unused == 0 or first == rows then return end
    block:each("row", rows - first, ctx.straight, function(body, r)
        for lane = 0, unused - 1 do
            body:run("store_zero", ir.offset(dst, (r + first) * ctx.block.width
                + ctx.block.queries + lane))
        end
    end)
end

-- Clears the lanes of padded queries, whose rows of q were left out: nothing stored there may cost
-- the others their fast path.
local function clear_padded_lanes(block, ctx, depth)
    local live <const> = block:size("live", "excess", ctx.length, ctx.query0)
    block:loop({ var = "lane", from = live, to = ctx.block.queries }, function(body, lane)
        body:each("d", depth, false, function(inner, d)
            inner:run("store_zero", ir.offset(ctx.queries, d * ctx.block.width + lane))
        end)
    end)
end

-- For lanes that share a query: queries[d / split][query][split] from rows of q, in order, so that
-- each store clears the lanes beyond its own.
local function gather_shared(ctx)
    local plan <const>, lanes <const>, split <const> = ctx.plan, ctx.lanes, ctx.block.split
    local scale <const> = ctx.problem.fold.query_scale
    return ir.func("gather_queries" .. ctx.suffix,
        { ("%d queries, [head_dim / %d][query][%d]."):format(ctx.block.queries, split, split) },
        ctx.parameters, function(block)
            if scale ~= 1.0 then block:let("vec", "scale", "splat", "QUERY_SCALE") end
            block:each("chunk", plan.score_dim // split, false, function(body, c)
                for q = 0, ctx.block.queries - 1 do
                    local from <const> = ir.offset(ctx.query_rows, c * split + q * plan.q.row)
                    local name = split == lanes and body:let("vec", "q" .. q, "load", from)
                        or body:let("vec", "q" .. q, "load_part", from, ir.index(split))
                    if scale ~= 1.0 then
                        name = body:let("vec", "scaled" .. q, "mul", name, "scale")
                    end
                    body:run("store", ir.offset(ctx.queries, c * lanes + q * split), name)
                end
            end)
        end)
end

-- queries[d][query] from rows of q, times the scale where it is not in the weights.
function scores.gather_queries(ctx)
    if ctx.block.split then return gather_shared(ctx) end
    local plan <const>, depth <const> = ctx.plan, ctx.plan.score_dim
    return ir.func("gather_queries" .. ctx.suffix,
        { ("%d queries, transposed to [head_dim][query]."):format(ctx.block.queries) },
        ctx.parameters, function(block)
            local cleared <const> = transpose(block, ctx,
                { mem = ctx.query_rows, row = plan.q.row },
                { mem = ctx.queries, row = ctx.block.width, padded = true },
                ctx.block.queries, depth)
            clear_unused_lanes(block, ctx, ctx.queries, cleared, depth)
            if plan.attention.skips then clear_padded_lanes(block, ctx, depth) end
            local scale <const> = ctx.problem.fold.query_scale
            if scale == 1.0 then return end
            block:let("vec", "scale", "splat", "QUERY_SCALE")
            block:each("d", depth, ctx.straight, function(body, d)
                for v = 0, ctx.block.vectors - 1 do
                    local at <const> = ir.offset(ctx.queries, d * ctx.block.width + v * ctx.lanes)
                    body:let("vec", "q" .. v, "load", at)
                    body:let("vec", "scaled" .. v, "mul", "q" .. v, "scale")
                    body:run("store", at, "scaled" .. v)
                end
            end)
        end)
end

-- mask_panel[key][query]: the additive mask, -inf where the boolean one drops a key.
function scores.gather_mask(ctx)
    local problem <const> = ctx.problem
    local row <const> = problem.mask_tensor.query
    local keep <const>, add <const> = problem.mask.bool, problem.mask.additive
    return ir.func("gather_mask" .. ctx.suffix,
        { ("The mask of %d queries, transposed to [key][query]; -inf: do not attend."):format(
            ctx.block.queries) },
        ctx.parameters, function(block)
            local cleared = 0
            if not keep then
                cleared = transpose(block, ctx, { mem = ctx.mask_add, row = row },
                    { mem = ctx.mask_panel, row = ctx.block.width, padded = true },
                    ctx.block.queries, problem.kv_len)
            else
                block:each("row", ctx.block.queries, ctx.straight, function(body, r)
                    body:each("key", problem.kv_len, ctx.straight, function(inner, key)
                        local to <const> = ir.offset(ctx.mask_panel, key * ctx.block.width + r)
                        local kept <const> = ir.offset(ctx.mask_keep, r * row + key)
                        if add then
                            inner:run("store_keep_add", to, kept, ir.offset(ctx.mask_add,
                                r * row + key))
                        else
                            inner:run("store_keep", to, kept)
                        end
                    end)
                end)
            end
            clear_unused_lanes(block, ctx, ctx.mask_panel, cleared, problem.kv_len)
        end)
end

-- ---- Tiles ---------------------------------------------------------------------------------

-- One register tile: `rows` keys from `key0` against the block's queries from vector `first` on;
-- those before it see none of these keys.
local function score_tile(block, ctx, key0, rows, past_full, first)
    local attention <const>, vectors <const> = ctx.plan.attention, ctx.block.vectors - first
    local width <const>, key_row <const> = ctx.block.width, ctx.plan.k.row
    local from <const> = block:pointer("pointer", "keys", ir.offset(ctx.key_rows, key0 * key_row))
    local out <const> = tile.carry(function(r, v)
        return ir.offset(ctx.scores, (key0 + r) * width + v * ctx.lanes)
    end)
    local inside, beside
    if attention.prefetch then inside, beside = fetch.build(ctx, key0, rows) end
    local c <const> = tile.product(block, {
        title = ("%d keys x %d queries%s"):format(rows, vectors * ctx.lanes,
            past_full and ctx.problem.key_range and ", not all visible" or ""),
        rows = rows, vectors = vectors, registers = ctx.plan.machine.registers,
        depth = ctx.plan.score_dim, unroll = attention.scores_unroll, index = ir.index,
        a = function(k, r) return ir.offset(from, k + r * key_row) end,
        b = function(k, v)
            return ir.offset(ctx.queries, k * width + (first + v) * ctx.lanes)
        end,
        carry = out, prefetch = inside,
    })
    if first > 0 then block:let("vec", "weightless", "zero") end
    for r = 0, rows - 1 do
        local logits <const> = {}
        for v = 0, ctx.block.vectors - 1 do logits[v] = v >= first and c[r][v - first] end
        local row <const> = mask.apply(block, ctx, key0 + r, r, logits, past_full)
        for v = 0, ctx.block.vectors - 1 do
            out.store(block, row[v] and softmax.weigh(block, ctx, r, v, row[v]) or "weightless",
                r, v)
        end
        if beside then beside(block, r) end
    end
end

-- A function around tiles of one shape: keeps maxima and sums in registers meanwhile.
local function tiles_function(ctx, name, comment, past_full, build)
    return ir.func((ctx.at_zero and "try_" or "") .. name .. ctx.suffix, { comment },
        ctx.parameters, function(block)
        softmax.open(block, ctx)
        if mask.applies(ctx, past_full) then softmax.let_hidden(block, ctx) end
        build(block)
        softmax.close(block, ctx)
    end)
end

-- Keys of a tile whose lanes share queries: enough accumulators for the latency.
local SHARED_KEYS <const> = 8

-- One tile of `keys` keys from `key0` on against a block whose lanes share queries: neighbouring
-- lanes are added until each vector holds [split keys][queries].
local function shared_tile(block, ctx, key0, keys)
    local split <const>, lanes <const> = ctx.block.split, ctx.lanes
    local width <const>, key_row <const> = ctx.block.width, ctx.plan.k.row
    local from <const> = block:pointer("pointer", "keys", ir.offset(ctx.key_rows, key0 * key_row))
    local depth <const> = ctx.plan.score_dim // split
    local c <const> = tile.product(block, {
        title = ("%d keys x %d queries, %d lanes a query"):format(keys, ctx.block.queries, split),
        rows = keys, vectors = 1, registers = ctx.plan.machine.registers, depth = depth,
        unroll = math.min(depth, 4), index = ir.index,
        load_a = function(inner, name, mem)
            if split == lanes then return inner:let("vec", name, "load", mem) end
            return inner:let("vec", name, "spread", mem, ir.index(split))
        end,
        a = function(k, r) return ir.offset(from, k * split + r * key_row) end,
        b = function(k) return ir.offset(ctx.queries, k * lanes) end,
    })
    for first = 0, keys - 1, split do
        local level <const> = {}
        for i = 0, split - 1 do level[i] = c[math.min(first + i, keys - 1)][0] end
        local count, tag = split, 0
        while count > 1 do
            for i = 0, count // 2 - 1 do
                level[i] = block:let("vec", ("t%d_%d_%d"):format(first, tag, i), "pair_sums",
                    level[2 * i], level[2 * i + 1])
            end
            count, tag = count // 2, tag + 1
        end
        local logit = level[0]
        if first + split > keys then
            -- keys that do not exist
            softmax.let_hidden(block, ctx)
            block:let("mask", "beyond", "lanes_from", ir.index((keys - first) * width))
            logit = block:let("vec", "existing", "select", "beyond", "hidden", logit)
        end
        block:run("store", ir.offset(ctx.scores, (key0 + first) * width),
            softmax.weigh(block, ctx, first, 0, logit))
    end
end

local function shared_tiles(ctx)
    local functions <const>, keys <const> = {}, ctx.problem.kv_len
    local size <const> = math.max(SHARED_KEYS, ctx.block.split)
    local whole <const>, rest <const> = keys // size, keys % size
    if whole > 0 then
        functions[1] = tiles_function(ctx, "scores_shared",
            ("Weights of keys in tiles of %d."):format(size), false, function(block)
                block:each("tile", whole, false, function(body, i)
                    shared_tile(body, ctx, i * size, size)
                end)
            end)
    end
    if rest > 0 then
        functions[#functions + 1] = tiles_function(ctx, "scores_rest",
            ("Weights of the last %d keys."):format(rest), false, function(block)
                shared_tile(block, ctx, ir.index(whole * size), rest)
            end)
    end
    functions[#functions + 1] = softmax.join_lanes(ctx)
    return functions
end

-- Tiles over a range known only at run time: whole tiles that every query sees, then masked ones,
-- those only the block's last queries see apart, then the keys that are left over by whole tiles.
-- Keys count from the block's first.
local function ranged_tiles(ctx)
    local functions <const>, problem <const> = {}, ctx.problem
    local rows <const>, last_vectors <const> = ctx.plan.attention.key_rows, ctx.block.last_vectors
    local left <const> = problem.kv_len % rows
    local function loop(name, comment, past_full, first, bounds)
        functions[#functions + 1] = tiles_function(ctx, name, comment, past_full, function(block)
            local from <const>, to <const> = bounds(block)
            block:loop({ var = "key", from = from, to = to, step = rows, below = true },
                function(body, key) score_tile(body, ctx, key, rows, past_full, first) end)
        end)
    end
    local function open_end(block)
        return block:size("open_end", "round_down", ctx.key_full, ir.index(rows))
    end
    local function masked_end(block)
        return block:size("masked_end", "min", ctx.key_end, ctx.whole_end)
    end
    -- where the keys begin that only the last vectors see
    local first <const> = last_vectors and ctx.block.vectors - last_vectors
    local function last_from(block)
        local seen <const> = mask.visible_in_block(block, ctx,
            ctx.query0 + (first * ctx.lanes - 1), "seen")
        local whole <const> = block:size("seen_tiles", "round_down", seen + (rows - 1),
            ir.index(rows))
        return block:size("last_from", "min", whole, masked_end(block))
    end
    if problem.kv_len >= rows then
        loop("scores_open", "Weights of keys that every query sees.", false, 0,
            function(block) return ir.index(0), open_end(block) end)
        if problem.key_range then
            loop("scores_masked", "Weights of keys that some query does not see.", true, 0,
                function(block)
                    return open_end(block), (first and last_from or masked_end)(block)
                end)
        end
        if first then
            loop("scores_last", ("Weights of keys that only the last %d queries see.")
                :format(last_vectors * ctx.lanes), true, first,
                function(block) return last_from(block), ir.var("masked_end") end)
        end
    end
    if left > 0 then
        functions[#functions + 1] = tiles_function(ctx, "scores_rest",
            ("Weights of the last %d keys, where some query sees them."):format(left),
            problem.key_range, function(block)
                block:when("lt", { ctx.whole_end, ctx.key_end }, function(body)
                    score_tile(body, ctx, ctx.whole_end, left, problem.key_range, 0)
                end)
            end)
    end
    return functions
end

-- Tiles whose place and visibility are known now.
local function fixed_tiles(ctx)
    local functions <const> = {}
    local full <const>, key_end <const> = ir.constant(ctx.key_full), ir.constant(ctx.key_end)
    local first = 0
    for _, group in ipairs(ctx.plan.attention.key_groups) do
        local base <const>, size <const> = first, group.size
        if base < key_end then
            functions[#functions + 1] = tiles_function(ctx, ("scores_%dkeys"):format(size),
                ("Weights of keys from %d on, in tiles of %d."):format(base, size), key_end > full,
                function(block)
                    if not ctx.problem.key_range then
                        block:each("tile", group.count, ctx.straight, function(body, i)
                            score_tile(body, ctx, i * size + base, size, false, 0)
                        end)
                        return
                    end
                    for i = 0, group.count - 1 do
                        local key0 <const> = base + i * size
                        local rows <const> = math.min(size, key_end - key0)
                        if rows > 0 then
                            block:scope(function(body)
                                score_tile(body, ctx, ir.index(key0), rows, key0 + rows > full, 0)
                            end)
                        end
                    end
                end)
        end
        first = first + group.count * size
    end
    return functions
end

-- ---- The stage -----------------------------------------------------------------------------

-- Functions that fill scores[key][query] with weights for the block's keys, and maxima and sums of
-- the queries.
function scores.build(ctx)
    if ctx.block.split then return shared_tiles(ctx) end
    if ctx.plan.attention.range_loops then return ranged_tiles(ctx) end
    return fixed_tiles(ctx)
end

return scores
