-- The attention phase with lanes along heads (gen/plan/heads.lua): walks (item, vector of heads,
-- block of queries). A row of q, k, v and of the concatenated heads is [dim][head]; a vector is one
-- element of every head of one or several queries, so that scores, softmax and context are
-- element-wise. Two items that share vectors are one with the heads of both.
local heads_rows <const> = require("gen.stage.heads_rows")
local ir <const> = require("gen.ir")
local tile <const> = require("gen.tile")
local softmax <const> = require("gen.stage.softmax")
local weights <const> = require("gen.stage.weights")

local heads <const> = {}

-- Every variable a stage function may take, in parameter order.
local parameters <const> = {
    { "input", "query_rows" }, { "input", "key_rows" }, { "input", "value_rows" },
    { "output", "out_rows" },
    { "scratch", "scratch" }, { "scratch", "queries" }, { "scratch", "scores" },
    { "scratch", "maxima" }, { "scratch", "references" }, { "scratch", "sums" },
    { "scratch", "inverse_sums" }, { "scratch", "trust" }, { "scratch", "strays" },
    { "scratch", "query_pairs" }, { "scratch", "key_pairs" }, { "scratch", "value_pairs" },
}

-- Queries in vector `v` of the block.
local function queries_in(ctx, v)
    local each <const> = ctx.plan.attention.queries_each
    return math.min(each, ctx.block.queries - v * each)
end

-- Element k of every head, of the queries of vector v, from rows of q.
local function load_queries(block, ctx, name, from, v)
    local planned <const> = ctx.plan.attention
    if planned.queries_each == 1 then return block:let("vec", name, "load", from) end
    return block:let("vec", name, "join", from, ir.index(ctx.q.row),
        ir.index(planned.group), ir.index(queries_in(ctx, v)))
end

-- The same element of a key or value for every query of a vector.
local function spread(ctx)
    local planned <const> = ctx.plan.attention
    return function(block, name, from)
        if planned.queries_each == 1 then return block:let("vec", name, "load", from) end
        return block:let("vec", name, "spread", from, ir.index(planned.group))
    end
end

local function query_mem(ctx, k, v)
    return ir.offset(ctx.query_rows, v * (ctx.plan.attention.queries_each * ctx.q.row)
        + k * ctx.q.dim)
end

-- queries[d][vector] of the block, times the scale where it is not in the weights.
local function gather_queries(ctx)
    local plan <const>, scale <const> = ctx.plan, ctx.problem.fold.query_scale
    return ir.func("gather_queries" .. ctx.suffix,
        { ("%d queries as vectors of heads: [head_dim][query][head]."):format(
            ctx.block.queries) }, parameters, function(block)
            if plan.attention.regroups_queries then
                -- groups transposed: as many dims at once as a vector has queries
                local each <const> = plan.attention.queries_each
                block:each("dims", plan.score_dim // each, ctx.straight, function(body, i)
                    for v = 0, ctx.block.vectors - 1 do
                        body:run("regroup", query_mem(ctx, i * each, v), ir.index(ctx.q.row),
                            ir.offset(ctx.queries, i * (each * ctx.block.width)
                                + v * ctx.lanes),
                            ir.index(ctx.block.width), ir.index(plan.attention.group))
                    end
                end)
                return
            end
            if scale ~= 1.0 then block:let("vec", "scale", "splat", "QUERY_SCALE") end
            block:each("d", plan.score_dim, ctx.straight, function(body, d)
                for v = 0, ctx.block.vectors - 1 do
                    local q = load_queries(body, ctx, "q" .. v, query_mem(ctx, d, v), v)
                    if scale ~= 1.0 then
                        q = body:let("vec", "scaled" .. v, "mul", q, "scale")
                    end
                    body:run("store", ir.offset(ctx.queries, d * ctx.block.width
                        + v * ctx.lanes), q)
                end
            end)
        end)
end

-- Runs build(body, i) for the tiles of a group: in a loop or, in straight-line code, for the only
-- tile of a function that is called for each; inlined one after the other compilers would load
-- ahead for all of them and spill.
local function each_tile(block, ctx, group, build)
    block:each("tile", ctx.straight and 1 or group.count, false, build)
end

-- Calls `fn` for the tiles of `group` from `base` on; moved(first) gives the pointers of the tile
-- that begins there.
local function call_tiles(block, ctx, fn, group, base, moved)
    if not ctx.straight then
        block:call(fn)
        return
    end
    fn.apart = group.count > 1
    -- weights are called for twice, so gcc would not inline them
    fn.piece = not fn.apart
    for i = 0, group.count - 1 do block:call(fn, moved(base + i * group.size)) end
end

-- Weights of the keys in tiles of one height; straight-line code has one tile.
local function scores_function(ctx, group, base)
    local plan <const>, width <const> = ctx.plan, ctx.block.width
    local planned <const>, vectors <const> = plan.attention, ctx.block.vectors
    local rows <const> = group.size
    return ir.func(("%sscores_%dkeys%s"):format(ctx.at_zero and "try_" or "", rows, ctx.suffix),
        { ctx.straight and ("Weights of %d keys."):format(rows)
            or ("Weights of keys from %d on, in tiles of %d."):format(base, rows) }, parameters,
        function(block)
            softmax.open(block, ctx)
            each_tile(block, ctx, group, function(body, i)
                local key0 <const> = i * rows + (ctx.straight and 0 or base)
                local from <const> = body:pointer("pointer", "keys",
                    ir.offset(ctx.key_rows, key0 * ctx.k.row))
                local out <const> = tile.carry(function(r, v)
                    return ir.offset(ctx.scores, (key0 + r) * width + v * ctx.lanes)
                end)
                local c <const> = tile.product(body, {
                    title = ("%d keys x %d vectors of queries"):format(rows, vectors),
                    rows = rows, vectors = vectors, registers = plan.machine.registers,
                    depth = plan.score_dim, unroll = planned.scores_unroll, index = ir.index,
                    a = function(k, r) return ir.offset(from, k * ctx.k.dim + r * ctx.k.row) end,
                    load_a = spread(ctx),
                    b = function(k, v)
                        return planned.gathers
                            and ir.offset(ctx.queries, k * width + v * ctx.lanes)
                            or query_mem(ctx, k, v)
                    end,
                    load_b = not planned.gathers and function(inner, name, mem, v)
                        load_queries(inner, ctx, name, mem, v)
                    end or nil,
                    carry = out,
                })
                for r = 0, rows - 1 do
                    for v = 0, vectors - 1 do
                        out.store(body, softmax.weigh(body, ctx, r, v, c[r][v]), r, v)
                    end
                end
            end)
            softmax.close(block, ctx)
        end)
end

-- Dim r of vector v of the output, from dim `to` on.
local function store_output(body, ctx, to, r, v, value)
    local plan <const>, planned <const> = ctx.plan, ctx.plan.attention
    if planned.in_place then
        body:run("store", ir.offset(to, (v * plan.value_dim + r) * ctx.lanes), value)
        return
    end
    local at <const> = ir.offset(to, r * plan.out.dim + v * (planned.queries_each * plan.out.row))
    if planned.queries_each == 1 then
        body:run("store", at, value)
    else
        body:run("split", at, value, ir.index(plan.out.row), ir.index(planned.group),
            ir.index(queries_in(ctx, v)))
    end
end

-- Weighted values of dims in tiles of one height, divided by the sums; straight-line code has one
-- tile.
local function context_function(ctx, group, base)
    local plan <const>, width <const> = ctx.plan, ctx.block.width
    local planned <const>, vectors <const> = plan.attention, ctx.block.vectors
    local rows <const> = group.size
    return ir.func(("context_%ddims%s"):format(rows, ctx.suffix),
        { ctx.straight and ("Weighted values of %d dims, divided by the sums."):format(rows)
            or ("Weighted values, dims from %d on, in tiles of %d, divided by the sums."):format(
                base, rows) }, parameters,
        function(block)
            if not planned.divides_late then
                for v = 0, vectors - 1 do
                    block:let("vec", "inverse" .. v, "load",
                        ir.offset(ctx.inverse_sums, v * ctx.lanes))
                end
            end
            each_tile(block, ctx, group, function(body, i)
                local dim0 <const> = i * rows + (ctx.straight and 0 or base)
                local from <const> = body:pointer("pointer", "values",
                    ir.offset(ctx.value_rows, dim0 * ctx.v.dim))
                local to <const> = body:pointer("writable", "to",
                    ir.offset(ctx.out_rows, dim0 * (planned.in_place and ctx.lanes
                        or plan.out.dim)))
                local c <const> = tile.product(body, {
                    title = ("%d dims x %d vectors of queries"):format(rows, vectors),
                    rows = rows, vectors = vectors, registers = plan.machine.registers,
                    depth = ctx.problem.kv_len, unroll = planned.context_unroll,
                    index = ir.index,
                    a = function(k, r) return ir.offset(from, k * ctx.v.row + r * ctx.v.dim) end,
                    load_a = spread(ctx),
                    b = function(k, v)
                        return ir.offset(ctx.scores, k * width + v * ctx.lanes)
                    end,
                })
                if planned.divides_late then softmax.invert(body, ctx) end
                for r = 0, rows - 1 do
                    for v = 0, vectors - 1 do
                        local value <const> = body:let("vec", ("o%d_%d"):format(r, v), "mul",
                            c[r][v], "inverse" .. v)
                        store_output(body, ctx, to, r, v, value)
                    end
                end
            end)
        end)
end

-- fn(group, first) for the groups of a list {count, size}.
local function each_group(groups, visit)
    local first = 0
    for _, group in ipairs(groups) do
        visit(group, first)
        first = first + group.count * group.size
    end
end

-- Adds the functions that make the outputs of the block of ctx; returns what appends their calls.
local function build_context(phase, ctx)
    local plan <const>, planned <const> = ctx.plan, ctx.plan.attention
    local finish <const> = not planned.divides_late and phase:add(softmax.finish(ctx))
    local makers <const> = {}
    each_group(planned.dim_groups, function(group, first)
        local fn <const> = phase:add(context_function(ctx, group, first))
        -- called for tried weights and for others
        fn.piece = planned.uses_tried
        makers[#makers + 1] = { fn = fn, group = group, first = first }
    end)
    return function(body)
        if finish then body:call(finish) end
        for _, maker in ipairs(makers) do
            call_tiles(body, ctx, maker.fn, maker.group, maker.first, function(dim)
                return { [ctx.value_rows.base] = ir.offset(ctx.value_rows, dim * ctx.v.dim),
                    out_rows = ir.offset(ctx.out_rows, dim * (planned.in_place and ctx.lanes
                        or plan.out.dim)) }
            end)
        end
    end
end

-- Appends the weights of the block of ctx, and what use(to) makes of them, to `body`.
local function add_weights(phase, body, ctx, use)
    local planned <const> = ctx.plan.attention
    body:call(phase:add(softmax.start(ctx)))
    local tiles_of <const> = {} -- by function: its group and first key
    local function build_scores(of)
        local makers <const> = {}
        each_group(planned.key_groups, function(group, first)
            local fn <const> = scores_function(of, group, first)
            tiles_of[fn] = { group = group, first = first }
            makers[#makers + 1] = fn
        end)
        return makers
    end
    weights.add(phase, body, ctx, build_scores, function(to, fn)
        local of <const> = tiles_of[fn]
        if not of then
            to:call(fn)
            return
        end
        call_tiles(to, ctx, fn, of.group, of.first, function(key)
            return { [ctx.key_rows.base] = ir.offset(ctx.key_rows, key * ctx.k.row),
                scores = ir.offset(ctx.scores, key * ctx.block.width) }
        end)
    end, use)
end

-- The function that attends for one kind of block of queries.
local function build_block(phase, plan, block, suffix)
    local problem <const> = plan.attention.problem
    local ctx <const> = { plan = plan, problem = problem, block = block, suffix = suffix,
        lanes = plan.machine.lanes, straight = plan.straight, parameters = parameters }
    for _, param in ipairs(parameters) do ctx[param[2]] = ir.mem(param[2]) end
    ctx.q = heads_rows.read(ctx, "query", plan.q, problem.seq_len, plan.score_dim)
    ctx.k = heads_rows.read(ctx, "key", plan.k, problem.kv_len, plan.score_dim)
    ctx.v = heads_rows.read(ctx, "value", plan.v, problem.kv_len, plan.value_dim)
    local attend <const> = ir.func("attend" .. suffix,
        { ("Attention of one vector of heads for %d queries."):format(block.queries) },
        parameters, function(body)
            for _, buffer in ipairs(plan.part_buffers) do
                body:let("writable", buffer.name, "address", ir.mem("scratch", buffer.offset))
            end
            local add_context
            local function use(to)
                add_context = add_context or build_context(phase, ctx)
                add_context(to)
            end
            local tried <const> = plan.attention.uses_tried
            -- tried weights are used at once; in straight-line code the weights' latencies hide it,
            -- and queries do not wait for the values, which are projected last
            local turn <const> = tried and "first" or plan.straight and "before the weights"
                or "behind them"
            local function pair_values(now)
                if now == turn then heads_rows.pair(phase, body, ctx, "value", ctx.v) end
            end
            pair_values("first")
            heads_rows.pair(phase, body, ctx, "key", ctx.k)
            heads_rows.pair(phase, body, ctx, "query", ctx.q)
            if plan.attention.gathers then body:call(phase:add(gather_queries(ctx))) end
            pair_values("before the weights")
            add_weights(phase, body, ctx, tried and use or nil)
            pair_values("behind them")
            if not tried then use(body) end
        end)
    -- between the projections of the same function both compilers order its short chains worse
    attend.apart = plan.straight
    return phase:add(attend)
end

-- Appends the attention phase to `kernel`.
function heads.build(kernel, plan)
    local planned <const>, problem <const> = plan.attention, plan.attention.problem
    local phase <const> = kernel:phase("attention", "Attention: scores, softmax, context")
    local q <const>, k <const>, v <const> = kernel:place(plan.q), kernel:place(plan.k),
        kernel:place(plan.v)
    local out <const> = kernel:place(plan.out)
    local made <const> = {}
    for i, block in ipairs(planned.blocks) do
        made[i] = build_block(phase, plan, block, ("_%d"):format(block.queries)
            .. (i > 2 and "_" .. i or ""))
    end
    local body <const> = phase.body
    body:let("writable", "scratch", "address",
        ir.mem("workspace", plan.straight and ir.index(plan.part_offset)
            or ir.var("part") * plan.part_buffers.floats + plan.part_offset))
    weights.trust(body, plan)
    local head_vectors <const> = planned.head_vectors
    local function unit(to, index)
        local vector <const> = head_vectors == 1 and ir.index(0)
            or to:size("head_vector", "remainder", index, ir.index(head_vectors))
        local batch <const> = head_vectors == 1 and index
            or to:size("batch", "quotient", index, ir.index(head_vectors))
        local function place(tensor, layout, query)
            return ir.offset(tensor, batch * (planned.items * layout.batch) + vector * planned.group
                + query * layout.row)
        end
        for i, block in ipairs(planned.blocks) do
            to:each("block", block.count, plan.straight, function(inner, n)
                local query <const> = n * block.queries + block.first
                inner:call(made[i], {
                    query_rows = place(q, plan.q, query), out_rows = place(out, plan.out, query),
                    key_rows = place(k, plan.k, ir.index(0)),
                    value_rows = place(v, plan.v, ir.index(0)),
                })
            end)
        end
    end
    local units <const> = problem.batch // planned.items * head_vectors
    if plan.straight then
        for i = 0, units - 1 do
            body:scope(function(inner) unit(inner, ir.index(i)) end)
        end
    else
        body:loop({ var = "unit", from = ir.var("part"), to = units, step = "parts" }, unit)
    end
end

return heads
