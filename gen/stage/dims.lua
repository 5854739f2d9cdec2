-- The attention phase with lanes along the head (gen/plan/dims.lua): walks (batch, kv head, block
-- of stacked rows) and calls scores, softmax and context for each. Knows the order and where each
-- head's rows lie, not how a stage works.
local ir <const> = require("gen.ir")
local mask <const> = require("gen.stage.mask")
local dims_scores <const> = require("gen.stage.dims_scores")
local dims_softmax <const> = require("gen.stage.dims_softmax")
local dims_context <const> = require("gen.stage.dims_context")

local dims <const> = {}

-- Every variable a stage function may take, in parameter order.
local parameters <const> = {
    { "input", "query_rows" }, { "input", "key_rows" }, { "input", "value_rows" },
    { "output", "out_rows" }, { "output", "weight_rows" },
    { "bytes", "key_keep" }, { "bytes", "mask_keep" }, { "input", "mask_add" },
    { "scratch", "scratch" }, { "scratch", "queries" }, { "scratch", "scores" },
    { "scratch", "inverse_sums" }, { "scratch", "mask_rows" },
    { "input", "weight_row" }, { "input", "mask_row" }, { "input", "inverse_sum" },
    { "output", "out_row" },
    { "size", "row0" }, { "size", "length" }, { "size", "visible" }, { "size", "key_full" },
    { "size", "key_end" },
}

-- Keys that all rows see, and that any row sees. In straight-line code bounds known only at run
-- time are left to the masks.
local function key_bounds(block, ctx)
    local problem <const> = ctx.problem
    local all <const> = ir.index(problem.kv_len)
    if not problem.key_range then return all, all end
    if ctx.straight and problem.mask.lengths then
        if not problem.causal or problem.causal.by_length then return ir.index(0), all end
        local static <const> = setmetatable({ length = all }, { __index = ctx })
        return ir.index(0), mask.visible_keys(block, static, ir.index(problem.seq_len - 1),
            "key_end")
    end
    local full <const> = mask.visible_keys(block, ctx, ir.index(0), "key_full")
    if not problem.causal then return full, full end
    return full, mask.visible_keys(block, ctx, ir.index(problem.seq_len - 1), "key_end")
end

-- Bounds a stage takes as a parameter: the constant itself or a variable of that name.
local function as_parameter(value, name)
    if ir.constant(value) then return value end
    return ir.var(name)
end

-- The function that attends for one block of rows.
local function build_block(phase, plan, block, suffix)
    local problem <const>, planned <const> = plan.attention.problem, plan.attention
    local ctx <const> = {
        plan = plan, problem = problem, block = block, lanes = plan.machine.lanes,
        straight = plan.straight, suffix = suffix, parameters = parameters,
        row0 = planned.block_count == 1 and ir.index(0) or ir.var("row0"),
        length = ir.var("length"),
    }
    for _, name in ipairs({ "query_rows", "key_rows", "value_rows", "out_rows", "weight_rows",
        "key_keep", "mask_keep", "mask_add", "queries", "scores", "inverse_sums", "mask_rows" }) do
        ctx[name] = ir.mem(name)
    end
    local attend <const> = phase:add(ir.func("attend" .. suffix,
        { ("Attention of one kv head for %d query rows."):format(block.rows) }, parameters,
        function(body)
            for _, buffer in ipairs(plan.part_buffers) do
                body:let("writable", buffer.name, "address", ir.mem("scratch", buffer.offset))
            end
            local full <const>, key_end <const> = key_bounds(body, ctx)
            ctx.key_full, ctx.key_end = as_parameter(full, "key_full"),
                as_parameter(key_end, "key_end")
            local bounds <const> = { key_full = full, key_end = key_end }
            local function stage(fn)
                -- straight-line stages in one function would spill more than a frame may hold
                fn.apart = plan.straight
                body:call(phase:add(fn), bounds)
            end
            stage(dims_scores.gather_queries(ctx))
            if planned.mask_rows > 0 then stage(dims_scores.gather_mask(ctx)) end
            for _, fn in ipairs(dims_scores.build(ctx)) do stage(fn) end
            stage(dims_softmax.build(ctx))
            if problem.return_weights then stage(dims_softmax.build_weights(ctx)) end
            local repair <const>, functions <const> = dims_context.build(ctx)
            if repair then phase:add(repair).apart = not plan.straight end
            for _, fn in ipairs(functions) do stage(fn) end
            if problem.padded_queries == "zero" and not problem.output_projection then
                stage(dims_context.build_clear(ctx))
            end
        end))
    return attend, ctx
end

-- Appends the attention phase to `kernel`.
function dims.build(kernel, plan)
    local problem <const>, planned <const> = plan.attention.problem, plan.attention
    local phase <const> = kernel:phase("attention", "Attention: scores, softmax, context")
    local q <const>, k <const>, v <const> = kernel:place(plan.q), kernel:place(plan.k),
        kernel:place(plan.v)
    local out <const> = kernel:place(plan.out)
    local S <const>, L <const>, G <const> = problem.kv_len, problem.seq_len, problem.kv_heads
    local tensor <const> = problem.mask_tensor
    local made <const>, ctx = {}, nil
    for i, block in ipairs(planned.blocks) do
        made[i], ctx = build_block(phase, plan, block, ("_%d"):format(block.rows))
    end

    -- One block of one kv head; row0 is constant or a variable.
    local function attend(body, i, batch, kv_head, row0)
        local head <const> = kv_head * problem.group
        local function tensor_mem(name)
            return tensor and ir.mem(name, batch * tensor.batch + head * tensor.head)
        end
        local weights <const> = problem.return_weights == "per_head"
            and batch * (problem.heads * L * S) + head * (L * S) or batch * (L * S)
        body:call(made[i], {
            query_rows = ir.offset(q, batch * plan.q.batch + head * plan.q.head),
            key_rows = ir.offset(k, batch * plan.k.batch + kv_head * plan.k.head),
            value_rows = ir.offset(v, batch * plan.v.batch + kv_head * plan.v.head),
            out_rows = ir.offset(out, batch * plan.out.batch + head * plan.out.head),
            weight_rows = ir.mem("weights_out", weights),
            key_keep = ir.mem("key_keep", batch * S),
            mask_keep = tensor_mem("mask_keep"), mask_add = tensor_mem("mask_add"),
            scratch = ir.mem("scratch"), row0 = row0,
        })
    end

    local function load_length(body, batch)
        if problem.mask.lengths then
            body:size("length", "load_i32", ir.mem("kv_lengths", batch))
        end
    end

    local function part_scratch(body)
        local parts <const> = plan.part_buffers.floats
        local at <const> = plan.straight and ir.mem("workspace", plan.part_offset)
            or ir.mem("workspace", ir.var("part") * parts + plan.part_offset)
        body:let("writable", "scratch", "address", at)
    end

    -- All blocks of one kv head, or the one that `index` names.
    local function each_block(body, batch, kv_head)
        for i, block in ipairs(planned.blocks) do
            body:each("block", block.count, plan.straight, function(inner, n)
                attend(inner, i, batch, kv_head, n * block.rows + block.first)
            end)
        end
    end

    local body <const> = phase.body
    part_scratch(body)
    if planned.heads_inside then
        local clear <const> = phase:add(dims_softmax.build_mean(ctx, "clear_weights",
            "Weights start at zero; every head adds its own.", "store_zero"))
        local scale <const> = phase:add(dims_softmax.build_mean(ctx, "scale_weights",
            "The mean over the heads.", "scale_value", ir.float(1.0 / problem.heads)))
        local function item(inner, batch)
            load_length(inner, batch)
            local rows <const> = { weight_rows = ir.mem("weights_out", batch * (L * S)) }
            inner:call(clear, rows)
            inner:each("kv_head", G, plan.straight, function(deep, kv_head)
                each_block(deep, batch, kv_head)
            end)
            inner:call(scale, rows)
        end
        if plan.straight then
            body:each("batch", problem.batch, true, item)
        else
            body:loop({ var = "batch", from = ir.var("part"), to = problem.batch, step = "parts" },
                item)
        end
        return
    end
    local function unit(inner, index)
        local kv_head <const> = G == 1 and ir.index(0)
            or inner:size("kv_head", "remainder", index, ir.index(G))
        local batch <const> = problem.batch == 1 and ir.index(0) or G == 1 and index
            or inner:size("batch", "quotient", index, ir.index(G))
        load_length(inner, batch)
        each_block(inner, batch, kv_head)
    end
    if plan.straight then
        body:each("unit", problem.batch * G, true, unit)
    else
        body:loop({ var = "unit", from = ir.var("part"), to = problem.batch * G, step = "parts" },
            unit)
    end
end

return dims
