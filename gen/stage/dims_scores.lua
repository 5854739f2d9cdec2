-- Scores with lanes along the head (gen/plan/dims.lua): scores[row][key] of a stack of query rows
-- against the keys as they lie in memory. A tile multiplies a few rows with one vector's worth of
-- keys, one accumulator for each pair, and sums the accumulators across lanes by a tree: its leaves
-- are keys, so the result has lanes along keys. A key is summed alike wherever it stands.
--
-- ctx: plan, problem, block (of rows), lanes, straight, suffix, parameters, row0, batch, length,
-- key_full, key_end, and the mems of gen/stage/dims.lua.
local ir <const> = require("gen.ir")
local mask <const> = require("gen.stage.mask")
local numbers <const> = require("gen.plan.numbers")

local dims_scores <const> = {}

-- Head within the stack and query of a stacked row, as indices.
function dims_scores.position(block, ctx, row, tag)
    local queries <const> = ctx.problem.seq_len
    if queries == 1 then return row, ir.index(0) end
    if ctx.problem.group == 1 then return ir.index(0), row end
    return block:size("head" .. tag, "quotient", row, ir.index(queries)),
        block:size("query" .. tag, "remainder", row, ir.index(queries))
end

-- Number of keys that range masks leave visible to stacked row `row`, as an index.
function dims_scores.visible(block, ctx, row, tag)
    local query = ir.index(0)
    if ctx.problem.causal then
        local _, at <const> = dims_scores.position(block, ctx, row, "_of" .. tag)
        query = at
    end
    return mask.visible_keys(block, ctx, query, "visible" .. tag)
end

-- The mask row of stacked row `row` (both counted within the block); nil without one.
function dims_scores.mask_row(ctx, row)
    local planned <const> = ctx.plan.attention
    if planned.mask_rows == 0 then return nil end
    return ir.offset(ctx.mask_rows, planned.mask_per_row and row * planned.row_floats or 0)
end

-- Runs build(body, row) for the rows of the block: one after the other in straight-line code.
function dims_scores.each_row(block, ctx, build)
    block:each("row", ctx.block.rows, ctx.straight, build)
end

-- ---- Queries and masks ---------------------------------------------------------------------

-- queries[row][d] from rows of q, zeros up to a whole vector, times the scale where it is not in
-- the weights.
function dims_scores.gather_queries(ctx)
    local plan <const>, lanes <const> = ctx.plan, ctx.lanes
    local width <const> = plan.attention.query_floats
    local whole <const>, rest <const> = plan.score_dim // lanes, plan.score_dim % lanes
    local scale <const> = ctx.problem.fold.query_scale
    return ir.func("gather_queries" .. ctx.suffix,
        { ("%d query rows, one after the other."):format(ctx.block.rows) }, ctx.parameters,
        function(block)
            if scale ~= 1.0 then block:let("vec", "scale", "splat", "QUERY_SCALE") end
            dims_scores.each_row(block, ctx, function(body, row)
                local head <const>, query <const> = dims_scores.position(body, ctx, ctx.row0 + row,
                    "")
                local from <const> = body:pointer("pointer", "from",
                    ir.offset(ctx.query_rows, head * plan.q.head + query * plan.q.row))
                local to <const> = body:pointer("writable", "to",
                    ir.offset(ctx.queries, row * width))
                local function copy(inner, at, part)
                    if part then
                        inner:let("vec", "q", "load_part", ir.offset(from, at), ir.index(rest))
                    else
                        inner:let("vec", "q", "load", ir.offset(from, at))
                    end
                    local value = "q"
                    if scale ~= 1.0 then value = inner:let("vec", "scaled", "mul", "q", "scale") end
                    inner:run("store", ir.offset(to, at), value)
                end
                if whole > 0 then
                    body:each("vector", whole, ctx.straight, function(inner, i)
                        copy(inner, i * lanes, false)
                    end)
                end
                if rest > 0 then
                    body:scope(function(inner) copy(inner, ir.index(whole * lanes), true) end)
                end
            end)
        end)
end

-- mask_rows[row][key]: what is added to the logits, -inf where a padding, boolean or additive mask
-- hides the key. One row for all where they do not differ.
function dims_scores.gather_mask(ctx)
    local problem <const>, planned <const> = ctx.problem, ctx.plan.attention
    local tensor <const> = problem.mask_tensor
    local rows <const> = planned.mask_per_row and ctx.block.rows or 1
    return ir.func("gather_mask" .. ctx.suffix,
        { "What the masks add to the logits; -inf: do not attend." }, ctx.parameters,
        function(block)
            block:each("row", rows, ctx.straight, function(body, row)
                local to <const> = dims_scores.mask_row(ctx, row)
                local at = ir.index(0)
                if planned.mask_per_row then
                    local head <const>, query <const> = dims_scores.position(body, ctx,
                        ctx.row0 + row, "")
                    at = head * tensor.head + query * tensor.query
                end
                body:each("key", problem.kv_len, ctx.straight, function(inner, key)
                    local cell <const> = ir.offset(to, key)
                    local keeps <const> = {}
                    if problem.mask.padding then keeps[1] = ir.offset(ctx.key_keep, key) end
                    if problem.mask.bool then
                        keeps[#keeps + 1] = ir.offset(ctx.mask_keep, at + key)
                    end
                    if problem.mask.additive then
                        inner:run("copy_f32", cell, ir.offset(ctx.mask_add, at + key))
                    else
                        inner:run("store_keep", cell, table.remove(keeps))
                    end
                    for _, keep in ipairs(keeps) do
                        inner:run("store_keep_add", cell, keep, cell)
                    end
                end)
            end)
        end)
end

-- ---- Tiles ---------------------------------------------------------------------------------

local function accumulator(r, i) return ("c%d_%d"):format(r, i) end

-- The products of rows with keys [first, first + count) of a tile, before their lanes are summed:
-- accumulators c<row>_<key>.
local function multiply(block, ctx, tile, first, count)
    local plan <const>, lanes <const>, rows <const> = ctx.plan, ctx.lanes, tile.rows
    local whole <const>, rest <const> = plan.score_dim // lanes, plan.score_dim % lanes
    local function step(body, at, part)
        for r = 0, rows - 1 do
            body:let("vec", "q" .. r, "load",
                ir.offset(tile.queries, at + r * plan.attention.query_floats))
        end
        for i = first, first + count - 1 do
            local from <const> = ir.offset(tile.keys, at + i * plan.k.row)
            if part then
                body:let("vec", "k" .. i, "load_part", from, ir.index(rest))
            else
                body:let("vec", "k" .. i, "load", from)
            end
            for r = 0, rows - 1 do
                local c <const> = accumulator(r, i)
                body:set(c, "fma", "q" .. r, "k" .. i, c)
            end
        end
    end
    for r = 0, rows - 1 do
        for i = first, first + count - 1 do block:declare("vec", accumulator(r, i), "zero") end
    end
    block:each("chunk", whole, ctx.straight or plan.attention.unroll_chunks,
        function(body, chunk) step(body, chunk * lanes, false) end)
    if rest > 0 then
        block:scope(function(body) step(body, ir.index(whole * lanes), true) end)
    end
end

-- Sums of keys [first, first + width) of a tile that has `count`, a list by rows of vectors that
-- lanes / width sums across lanes would leave with one lane a key; nil behind the last key. A few
-- keys are multiplied at a time, and what can be added is added at once: few registers hold sums,
-- and rows of K are read one after the other.
local function sum_keys(block, ctx, tile, first, width, count)
    if first >= count then return nil end
    local at_once <const> = ctx.plan.attention.keys_at_once
    if width == at_once then
        multiply(block, ctx, tile, first, math.min(width, count - first))
    end
    local sums <const> = {}
    if width == 1 then
        for r = 0, tile.rows - 1 do sums[r] = accumulator(r, first) end
        return sums
    end
    local left <const> = sum_keys(block, ctx, tile, first, width // 2, count)
    local right <const> = sum_keys(block, ctx, tile, first + width // 2, width // 2, count) or left
    for r = 0, tile.rows - 1 do
        sums[r] = block:let("vec", ("s%d_%d_%d"):format(r, first, width),
            width <= 4 and "near_sums" or "far_sums", left[r], right[r])
    end
    return sums
end

-- One tile: `rows` stacked rows from `row` on, keys [key0, key0 + count).
local function score_tile(block, ctx, row, rows, key0, count, masked)
    local planned <const> = ctx.plan.attention
    local values <const> = sum_keys(block, ctx, {
        rows = rows,
        keys = block:pointer("pointer", "keys", ir.offset(ctx.key_rows, key0 * ctx.plan.k.row)),
        queries = block:pointer("pointer", "rows",
            ir.offset(ctx.queries, row * planned.query_floats)),
    }, 0, ctx.lanes, count)
    for r = 0, rows - 1 do
        local value = values[r]
        local mask_row <const> = dims_scores.mask_row(ctx, row + r)
        if mask_row then
            local bias <const> = block:let("vec", "bias" .. r, "load", ir.offset(mask_row, key0))
            local open <const> = block:let("mask", "open" .. r, "lanes_allowed", bias)
            if ctx.problem.mask.additive then
                value = block:let("vec", "biased" .. r, "add", value, bias)
            end
            value = block:let("vec", "kept" .. r, "select", open, value, "hidden")
        end
        if masked then
            local visible <const> = dims_scores.visible(block, ctx, ctx.row0 + row + r,
                tostring(r))
            local from <const> = block:size("from" .. r, "excess", visible, key0)
            local behind <const> = block:let("mask", "behind" .. r, "lanes_from", from)
            value = block:let("vec", "seen" .. r, "select", behind, "hidden", value)
        end
        block:run("store", ir.offset(ctx.scores, (row + r) * planned.row_floats + key0), value)
    end
end

-- Asks for a line of every page of the keys that come a little later.
local function prefetch_keys(block, ctx, key0)
    local row <const>, ahead <const> = ctx.plan.k.row, ctx.plan.attention.key_ahead
    for i = 0, ctx.lanes - 1, numbers.rows_a_page(row) do
        block:run("prefetch_soon", ir.offset(ctx.key_rows, (key0 + (ahead + i)) * row))
    end
end

-- All row tiles of the block for one vector of keys.
local function row_tiles(block, ctx, key0, count, masked)
    if ctx.plan.attention.key_ahead and not masked then prefetch_keys(block, ctx, key0) end
    local first = 0
    for _, group in ipairs(ctx.block.score_groups) do
        local base <const>, size <const> = first, group.size
        block:each("tile", group.count, ctx.plan.attention.unroll_rows, function(body, t)
            score_tile(body, ctx, t * size + base, size, key0, count, masked)
        end)
        first = first + group.count * group.size
    end
end

-- The functions that fill scores[row][key] for keys [0, key_end), whole vectors of them.
function dims_scores.build(ctx)
    local functions <const> = {}
    local lanes <const>, keys <const> = ctx.lanes, ctx.problem.kv_len
    local whole_end <const>, rest <const> = keys // lanes * lanes, keys % lanes
    local has_mask <const> = ctx.plan.attention.mask_rows > 0
    local function add(name, comment, masked, build)
        functions[#functions + 1] = ir.func(name .. ctx.suffix, { comment }, ctx.parameters,
            function(block)
                if masked or has_mask then block:let("vec", "hidden", "minus_infinity") end
                build(block)
            end)
    end
    if ctx.plan.attention.range_loops then
        if whole_end > 0 then
            local function open_end(block)
                return block:size("open_end", "round_down", ctx.key_full, ir.index(lanes))
            end
            add("scores_open", "Logits of keys that every row sees.", false, function(block)
                block:loop({ var = "key", from = 0, to = open_end(block), step = lanes,
                    below = true }, function(body, key) row_tiles(body, ctx, key, lanes, false) end)
            end)
            add("scores_masked", "Logits of keys that some row does not see.", true,
                function(block)
                    block:loop({ var = "key", from = open_end(block),
                        to = block:size("masked_end", "min", ctx.key_end, ir.index(whole_end)),
                        step = lanes, below = true },
                        function(body, key) row_tiles(body, ctx, key, lanes, true) end)
                end)
        end
        if rest > 0 then
            add("scores_rest", ("Logits of the last %d keys, where some row sees them."):format(
                rest), true, function(block)
                block:when("lt", { ir.index(whole_end), ctx.key_end }, function(body)
                    row_tiles(body, ctx, ir.index(whole_end), rest, true)
                end)
            end)
        end
        return functions
    end
    -- places known now: what every row sees needs no mask
    local full <const>, last <const> = ir.constant(ctx.key_full), ir.constant(ctx.key_end)
    local open <const>, tiles <const> = math.min(full, whole_end) // lanes,
        math.min(last + lanes - 1, whole_end) // lanes
    if open > 0 then
        add("scores_open", "Logits of keys that every row sees.", false, function(block)
            block:each("at", open, ctx.straight, function(body, i)
                row_tiles(body, ctx, i * lanes, lanes, false)
            end)
        end)
    end
    if tiles > open then
        add("scores_masked", "Logits of keys that some row does not see.", true, function(block)
            block:each("at", tiles - open, ctx.straight, function(body, i)
                row_tiles(body, ctx, i * lanes + open * lanes, lanes, true)
            end)
        end)
    end
    if rest > 0 and last > whole_end then
        add("scores_rest", ("Logits of the last %d keys."):format(rest), true, function(block)
            row_tiles(block, ctx, ir.index(whole_end), rest, true)
        end)
    end
    return functions
end

return dims_scores
