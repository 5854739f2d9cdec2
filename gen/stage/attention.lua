-- The attention phase: walks (batch, head, block of queries) and calls scores, softmax and context
-- for
-- each. Knows the order and where each head's rows lie, not how a stage works.
local ir <const> = require("gen.ir")
local mask <const> = require("gen.stage.mask")
local scores <const> = require("gen.stage.scores")
local softmax <const> = require("gen.stage.softmax")
local context <const> = require("gen.stage.context")

local attention <const> = {}

-- Every variable a stage function may take, in parameter order.
local parameters <const> = {
    { "input", "query_rows" }, { "input", "key_rows" }, { "input", "value_rows" },
    { "output", "out_rows" }, { "output", "weight_rows" },
    { "bytes", "key_keep" }, { "bytes", "mask_keep" }, { "input", "mask_add" },
    { "scratch", "scratch" }, { "scratch", "queries" }, { "scratch", "scores" },
    { "scratch", "maxima" }, { "scratch", "inverse_sums" }, { "scratch", "mask_panel" },
    { "input", "weight_column" }, { "input", "inverse_sum" }, { "input", "mask_column" },
    { "output", "out_row" },
    { "size", "query0" }, { "size", "length" }, { "size", "visible" }, { "size", "key_full" },
    { "size", "key_end" },
}

-- Bounds a stage takes as a parameter: the constant itself or a variable of that name.
local function as_parameter(value, name)
    if ir.constant(value) then return value end
    return ir.var(name)
end

-- The functions of one kind of query block; `query0` is constant in straight-line code. Returns
-- {attend, clear_weights, scale_weights}.
local function build_block(phase, plan, block, query0, suffix)
    local problem <const> = plan.problem
    local ctx <const> = {
        plan = plan, problem = problem, block = block, lanes = plan.machine.lanes,
        straight = plan.straight, suffix = suffix, parameters = parameters,
        query0 = query0 or ir.var("query0"), batch = ir.index(0), head = ir.index(0),
        length = ir.var("length"),
    }
    for _, name in ipairs({ "query_rows", "key_rows", "value_rows", "out_rows", "weight_rows",
        "key_keep", "mask_keep", "mask_add", "queries", "scores", "maxima", "inverse_sums" }) do
        ctx[name] = ir.mem(name)
    end
    if plan.attention.mask_panel then ctx.mask_panel = ir.mem("mask_panel") end

    local made <const> = {}
    made.attend = ir.func("attend" .. suffix,
        { ("Attention of one head for %d queries."):format(block.queries) },
        parameters, function(body)
            for _, buffer in ipairs(plan.part_buffers) do
                body:let("writable", buffer.name, "address", ir.mem("scratch", buffer.offset))
            end
            local full <const>, key_end <const> = mask.range(body, ctx)
            ctx.key_full, ctx.key_end = as_parameter(full, "key_full"), as_parameter(key_end,
                "key_end")
            local bounds <const> = { key_full = full, key_end = key_end }
            local function stage(fn) body:call(phase:add(fn), bounds) end
            stage(scores.gather_queries(ctx))
            if plan.attention.mask_panel then stage(scores.gather_mask(ctx)) end
            stage(scores.start(ctx))
            for _, fn in ipairs(scores.build(ctx)) do stage(fn) end
            stage(softmax.build(ctx))
            if problem.return_weights then stage(softmax.build_weights(ctx)) end
            local repair <const>, functions <const> = context.build(ctx)
            if repair then phase:add(repair).apart = not plan.straight end
            for _, fn in ipairs(functions) do stage(fn) end
            if problem.padded_queries == "zero" and not problem.output_projection then
                stage(context.build_clear(ctx))
            end
        end)
    phase:add(made.attend)
    if problem.return_weights == "mean" then
        made.clear_weights = phase:add(softmax.build_mean(ctx, "clear_weights",
            "Weights start at zero; every head adds its own.", "store_zero"))
        made.scale_weights = phase:add(softmax.build_mean(ctx, "scale_weights",
            "The mean over the heads.", "scale_value", ir.float(1.0 / problem.heads)))
    end
    return made
end

-- Appends the attention phase to `kernel`.
function attention.build(kernel, plan)
    local problem <const>, shape <const> = plan.problem, plan.attention
    local phase <const> = kernel:phase("attention", "Attention: scores, softmax, context")
    local q <const>, k <const>, v <const> = kernel:place(plan.q), kernel:place(plan.k),
        kernel:place(plan.v)
    local out <const> = problem.output_projection and kernel:buffer("heads") or ir.mem("y")
    local S <const>, L <const> = problem.kv_len, problem.seq_len

    local function call_head(body, block, made, batch, head, query0)
        local kv_head <const> = problem.group == 1 and head
            or body:size("kv_head", "quotient", head, ir.index(problem.group))
        local mask_ctx <const> = { problem = problem, batch = batch, head = head, query0 = query0 }
        local rows <const> = problem.return_weights == "per_head"
            and batch * (problem.heads * L * S) + head * (L * S) or batch * (L * S)
        body:call(made.attend, {
            query_rows = ir.offset(q,
                batch * plan.q.batch + head * plan.q.head + query0 * plan.q.row),
            key_rows = ir.offset(k, batch * plan.k.batch + kv_head * plan.k.head),
            value_rows = ir.offset(v, batch * plan.v.batch + kv_head * plan.v.head),
            out_rows = ir.offset(out, batch * plan.out.batch + head * plan.out.head
                + query0 * plan.out.row),
            weight_rows = ir.mem("weights_out", rows + query0 * S),
            key_keep = ir.mem("key_keep", batch * S),
            mask_keep = problem.mask_tensor and mask.tensor_mem(mask_ctx, "mask_keep"),
            mask_add = problem.mask_tensor and mask.tensor_mem(mask_ctx, "mask_add"),
            scratch = ir.mem("scratch"), query0 = query0, block = block,
        })
    end

    local function call_block(body, block, made, batch, query0, each_head)
        if shape.heads_inside then
            local rows <const> = { weight_rows = ir.mem("weights_out",
                batch * (L * S) + query0 * S) }
            body:call(made.clear_weights, rows)
            body:each("head", problem.heads, plan.straight, function(inner, head)
                call_head(inner, block, made, batch, head, query0)
            end)
            body:call(made.scale_weights, rows)
        else
            each_head(body, function(inner, head)
                call_head(inner, block, made, batch, head, query0)
            end)
        end
    end

    local function load_length(body, batch)
        if problem.mask.lengths then
            body:size("length", "load_i32", ir.mem("kv_lengths", batch))
        end
    end

    local body <const> = phase.body
    body:let("writable", "scratch", "address",
        ir.mem("workspace", plan.straight and ir.index(plan.part_offset)
            or ir.var("part") * plan.part_buffers.floats + plan.part_offset))

    if plan.straight then
        local variants <const> = {}
        for _, block in ipairs(shape.blocks) do
            for i = 0, block.count - 1 do
                local query0 <const> = block.first + i * block.width
                local shared <const> = i > 0 and not shape.by_query
                local suffix <const> = shape.by_query and ("_%d_q%d"):format(block.queries, query0)
                    or ("_%d"):format(block.queries)
                variants[#variants + 1] = { block = block, query0 = query0,
                    made = shared and variants[#variants].made
                        or build_block(phase, plan, block, ir.index(query0), suffix) }
            end
        end
        for batch = 0, problem.batch - 1 do
            body:scope(function(inner)
                load_length(inner, ir.index(batch))
                for _, variant in ipairs(variants) do
                    call_block(inner, variant.block, variant.made, ir.index(batch),
                        ir.index(variant.query0), function(deep, call)
                            for head = 0, problem.heads - 1 do call(deep, ir.index(head)) end
                        end)
                end
            end)
        end
        return
    end

    local made <const> = {}
    for i, block in ipairs(shape.blocks) do
        made[i] = build_block(phase, plan, block, nil,
            ("_%d"):format(block.queries) .. (i > 2 and "_" .. i or ""))
    end
    local blocks <const> = shape.block_count
    local heads <const> = shape.heads_inside and 1 or problem.heads
    body:loop({ var = "unit", from = ir.var("part"), to = problem.batch * heads * blocks,
        step = "parts" }, function(inner, unit)
        local index <const> = blocks == 1 and ir.index(0)
            or inner:size("block", "remainder", unit, ir.index(blocks))
        local item <const> = blocks == 1 and unit or inner:size("item", "quotient", unit,
            ir.index(blocks))
        local head <const> = heads == 1 and ir.index(0) or problem.batch == 1 and item
            or inner:size("head", "remainder", item, ir.index(heads))
        local batch <const> = problem.batch == 1 and ir.index(0) or heads == 1 and item
            or inner:size("batch", "quotient", item, ir.index(heads))
        load_length(inner, batch)
        local function dispatch(deep, i)
            local block <const> = shape.blocks[i]
            local function this(last)
                call_block(last, block, made[i], batch,
                    (index + -block.first_index) * block.width + block.first,
                    function(deepest, call) call(deepest, head) end)
            end
            if i == #shape.blocks then
                this(deep)
            else
                deep:when("lt", { index, ir.index(block.first_index + block.count) }, this,
                    function(other) dispatch(other, i + 1) end)
            end
        end
        dispatch(inner, 1)
    end)
end

return attention
