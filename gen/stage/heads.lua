-- The attention phase with lanes along heads (gen/plan/heads.lua): walks (item, vector of heads,
-- block of queries). A row of q, k, v and of the concatenated heads is [dim][head]; a vector is one
-- element of every head of one or several queries, so that scores, softmax and context are
-- element-wise.
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
    { "scratch", "inverse_sums" }, { "scratch", "outputs" },
    { "scratch", "trust" }, { "scratch", "strays" },
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
    return block:let("vec", name, "join", from, ir.index(ctx.plan.q.row),
        ir.index(planned.group), ir.index(queries_in(ctx, v)))
end

-- The same element of a key or value for every query of a vector.
local function spread(ctx, layout)
    local planned <const> = ctx.plan.attention
    return function(block, name, from)
        if planned.items > 1 then
            return block:let("vec", name, "spread_both", from, ir.index(layout.batch),
                ir.index(planned.group))
        end
        if planned.queries_each == 1 then return block:let("vec", name, "load", from) end
        return block:let("vec", name, "spread", from, ir.index(planned.group))
    end
end

local function query_mem(ctx, k, v)
    local plan <const> = ctx.plan
    return ir.offset(ctx.query_rows, v * (plan.attention.queries_each * plan.q.row)
        + k * plan.q.dim)
end

-- Transposes the groups of all queries of the block, `dims` of them a query: between rows and
-- [dim][query][head].
local function regroup(block, ctx, dims, visit)
    local each <const> = ctx.plan.attention.queries_each
    block:each("dims", dims // each, ctx.straight, function(body, i)
        for v = 0, ctx.block.vectors - 1 do visit(body, i * each, v) end
    end)
end

-- queries[d][vector] of the block, times the scale where it is not in the weights.
local function gather_queries(ctx)
    local plan <const>, scale <const> = ctx.plan, ctx.problem.fold.query_scale
    return ir.func("gather_queries" .. ctx.suffix,
        { ("%d queries as vectors of heads: [head_dim][query][head]."):format(
            ctx.block.queries) }, parameters, function(block)
            if plan.attention.regroups_queries then
                regroup(block, ctx, plan.score_dim, function(body, d, v)
                    body:run("regroup", query_mem(ctx, d, v), ir.index(plan.q.row),
                        ir.offset(ctx.queries, d * ctx.block.width + v * ctx.lanes),
                        ir.index(ctx.block.width), ir.index(plan.attention.group))
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
                    ir.offset(ctx.key_rows, key0 * plan.k.row))
                local out <const> = tile.carry(function(r, v)
                    return ir.offset(ctx.scores, (key0 + r) * width + v * ctx.lanes)
                end)
                local c <const> = tile.product(body, {
                    title = ("%d keys x %d vectors of queries"):format(rows, vectors),
                    rows = rows, vectors = vectors, registers = plan.machine.registers,
                    depth = plan.score_dim, unroll = planned.scores_unroll, index = ir.index,
                    a = function(k, r) return ir.offset(from, k * plan.k.dim + r * plan.k.row) end,
                    load_a = spread(ctx, plan.k),
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
            for v = 0, vectors - 1 do
                block:let("vec", "inverse" .. v, "load",
                    ir.offset(ctx.inverse_sums, v * ctx.lanes))
            end
            each_tile(block, ctx, group, function(body, i)
                local dim0 <const> = i * rows + (ctx.straight and 0 or base)
                local from <const> = body:pointer("pointer", "values",
                    ir.offset(ctx.value_rows, dim0 * plan.v.dim))
                local to <const> = body:pointer("writable", "to", planned.regroups_values
                    and ir.offset(ctx.outputs, dim0 * width)
                    or ir.offset(ctx.out_rows, dim0 * plan.out.dim))
                local c <const> = tile.product(body, {
                    title = ("%d dims x %d vectors of queries"):format(rows, vectors),
                    rows = rows, vectors = vectors, registers = plan.machine.registers,
                    depth = ctx.problem.kv_len, unroll = planned.context_unroll,
                    index = ir.index,
                    a = function(k, r) return ir.offset(from, k * plan.v.row + r * plan.v.dim) end,
                    load_a = spread(ctx, plan.v),
                    b = function(k, v)
                        return ir.offset(ctx.scores, k * width + v * ctx.lanes)
                    end,
                })
                for r = 0, rows - 1 do
                    for v = 0, vectors - 1 do
                        local value <const> = body:let("vec", ("o%d_%d"):format(r, v), "mul",
                            c[r][v], "inverse" .. v)
                        local at <const> = ir.offset(to, r * plan.out.dim
                            + v * (planned.queries_each * plan.out.row))
                        if planned.regroups_values then
                            body:run("store", ir.offset(to, r * width + v * ctx.lanes), value)
                        elseif planned.queries_each == 1 then
                            body:run("store", at, value)
                        else
                            body:run("split", at, value, ir.index(plan.out.row),
                                ir.index(planned.group), ir.index(queries_in(ctx, v)))
                        end
                    end
                end
            end)
        end)
end

-- Rows of heads from the outputs of the block.
local function scatter_outputs(ctx)
    local plan <const>, width <const> = ctx.plan, ctx.block.width
    local planned <const> = plan.attention
    return ir.func("scatter_outputs" .. ctx.suffix,
        { ("Outputs of %d queries, from [head_dim][query][head] to rows."):format(
            ctx.block.queries) }, parameters, function(block)
            regroup(block, ctx, plan.value_dim, function(body, d, v)
                body:run("regroup", ir.offset(ctx.outputs, d * width + v * ctx.lanes),
                    ir.index(width), ir.offset(ctx.out_rows,
                        v * (planned.queries_each * plan.out.row) + d * plan.out.dim),
                    ir.index(plan.out.row), ir.index(planned.group))
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

-- The function that attends for one kind of block of queries.
local function build_block(phase, plan, block, suffix)
    local planned <const>, problem <const> = plan.attention, plan.attention.problem
    local ctx <const> = { plan = plan, problem = problem, block = block, suffix = suffix,
        lanes = plan.machine.lanes, straight = plan.straight, parameters = parameters }
    for _, param in ipairs(parameters) do ctx[param[2]] = ir.mem(param[2]) end
    return phase:add(ir.func("attend" .. suffix,
        { ("Attention of one vector of heads for %d queries."):format(block.queries) },
        parameters, function(body)
            for _, buffer in ipairs(plan.part_buffers) do
                body:let("writable", buffer.name, "address", ir.mem("scratch", buffer.offset))
            end
            if planned.gathers then body:call(phase:add(gather_queries(ctx))) end
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
                    return { key_rows = ir.offset(ctx.key_rows, key * plan.k.row),
                        scores = ir.offset(ctx.scores, key * block.width) }
                end)
            end)
            body:call(phase:add(softmax.finish(ctx)))
            each_group(planned.dim_groups, function(group, first)
                local fn <const> = phase:add(context_function(ctx, group, first))
                call_tiles(body, ctx, fn, group, first, function(dim)
                    return { value_rows = ir.offset(ctx.value_rows, dim * plan.v.dim),
                        out_rows = ir.offset(ctx.out_rows, dim * plan.out.dim),
                        outputs = ir.offset(ctx.outputs, dim * block.width) }
                end)
            end)
            if planned.regroups_values then body:call(phase:add(scatter_outputs(ctx))) end
        end))
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
