-- The attention phase: walks (batch, head, block of queries) and calls scores, softmax and context
-- for each. Knows the order and where each head's rows lie, not how a stage works.
local ir <const> = require("gen.ir")
local mask <const> = require("gen.stage.mask")
local scores <const> = require("gen.stage.scores")
local softmax <const> = require("gen.stage.softmax")
local weights <const> = require("gen.stage.weights")
local context <const> = require("gen.stage.context")
local query_context <const> = require("gen.stage.query_context")

local attention <const> = {}

-- Every variable a stage function may take, in parameter order.
local parameters <const> = {
    { "input", "query_rows" }, { "input", "key_rows" }, { "input", "value_rows" },
    { "output", "out_rows" }, { "output", "weight_rows" },
    { "bytes", "key_keep" }, { "bytes", "mask_keep" }, { "input", "mask_add" },
    { "scratch", "scratch" }, { "scratch", "queries" }, { "scratch", "scores" },
    { "scratch", "maxima" }, { "scratch", "references" }, { "scratch", "sums" },
    { "scratch", "totals" }, { "scratch", "factors" }, { "scratch", "inverse_sums" },
    { "scratch", "mask_panel" }, { "scratch", "trust" }, { "scratch", "strays" },
    { "scratch", "turning" }, { "scratch", "dim_rows" },
    { "input", "weight_column" }, { "input", "inverse_sum" }, { "input", "mask_column" },
    { "output", "out_row" },
    { "size", "query0" }, { "size", "count" }, { "size", "key0" }, { "size", "length" },
    { "size", "visible" }, { "size", "key_full" }, { "size", "key_end" }, { "size", "whole_end" },
}

-- Bounds a stage takes as a parameter: the constant itself or a variable of that name.
local function as_parameter(value, name)
    if ir.constant(value) then return value end
    return ir.var(name)
end

-- Appends a function that goes through elements one by one, in loops of many turns. Inlined in the
-- loop over heads, clang keeps the addresses of all turns on the stack, up to 50 KB of them.
local function add_apart(phase, ctx, fn)
    fn.apart = not ctx.straight
    return phase:add(fn)
end

local function add_context(phase, body, ctx, stage)
    local lying <const> = ctx.block.dim_groups and query_context or context
    local repairs <const>, functions <const> = lying.build(ctx)
    for _, fn in ipairs(repairs) do add_apart(phase, ctx, fn) end
    for _, fn in ipairs(functions) do stage(body, phase:add(fn)) end
end

local function clears_padded(problem)
    return problem.padded_queries == "zero" and not problem.output_projection
end

local function buffer_pointers(body, plan)
    for _, buffer in ipairs(plan.part_buffers) do
        body:let("writable", buffer.name, "address", ir.mem("scratch", buffer.offset))
    end
end

local function settle_bounds(body, ctx)
    local full <const>, key_end <const> = mask.range(body, ctx)
    ctx.key_full, ctx.key_end = as_parameter(full, "key_full"), as_parameter(key_end, "key_end")
    return { key_full = full, key_end = key_end }
end

-- The whole row at once: every key of one block of queries.
local function attend_rows(phase, ctx, clear)
    local plan <const>, problem <const> = ctx.plan, ctx.problem
    return ir.func("attend" .. ctx.suffix,
        { ("Attention of one head for %d queries."):format(ctx.block.queries) },
        parameters, function(body)
            buffer_pointers(body, plan)
            local bounds <const> = settle_bounds(body, ctx)
            local function stage(to, fn) to:call(fn, bounds) end
            stage(body, add_apart(phase, ctx, scores.gather_queries(ctx)))
            if plan.attention.mask_panel then
                stage(body, add_apart(phase, ctx, scores.gather_mask(ctx)))
            end
            stage(body, phase:add(softmax.start(ctx)))
            weights.add(phase, body, ctx, scores.build, stage)
            stage(body, phase:add(softmax.finish(ctx)))
            if problem.return_weights then
                stage(body, phase:add(softmax.build_weights(ctx)))
            end
            add_context(phase, body, ctx, stage)
            if clear then body:call(clear) end
        end)
end

-- One block of keys for one block of queries.
local function attend_key_block(phase, ctx)
    local shape <const> = ctx.plan.attention
    return ir.func("attend_keys" .. ctx.suffix,
        { ("Adds what %d queries take from up to %d keys from key0 on."):format(ctx.block.queries,
            shape.key_block) },
        parameters, function(body)
            local bounds <const> = settle_bounds(body, ctx)
            local left <const> = body:size("whole_left", "excess", ir.index(shape.whole_keys),
                ctx.key0)
            bounds.whole_end = body:size("whole_end", "min", left, ir.index(shape.key_block))
            local function stage(to, fn) to:call(fn, bounds) end
            weights.add(phase, body, ctx, scores.build, stage)
            softmax.add_block(body, ctx)
            add_context(phase, body, ctx, stage)
        end)
end

-- `count` blocks of queries walk the keys together, block by block of keys.
local function attend_in_blocks(phase, ctx, clear)
    local plan <const>, problem <const>, block <const> = ctx.plan, ctx.problem, ctx.block
    local shape <const> = plan.attention
    local key_block <const> = phase:add(attend_key_block(phase, ctx))
    local gather <const> = add_apart(phase, ctx, scores.gather_queries(ctx))
    local gather_mask <const> = shape.mask_panel
        and add_apart(phase, ctx, scores.gather_mask(ctx))
    local start <const> = phase:add(softmax.start(ctx))
    local along_queries <const> = block.dim_groups ~= nil
    local open <const> = phase:add((along_queries and query_context or context).build_open(ctx))
    local invert <const> = phase:add(softmax.finish(ctx))
    local store <const> = along_queries and phase:add(query_context.build_rows(ctx))
    local close <const> = phase:add(context.build_close(ctx))
    return ir.func("attend" .. ctx.suffix,
        { ("Attention of one head for `count` times %d queries."):format(block.queries) },
        parameters, function(body)
            buffer_pointers(body, plan)
            -- what belongs to query block i, for the keys from key0 on
            local function values(i, key0)
                local moved <const> = { query0 = ctx.query0 + i * block.width, key0 = key0 }
                for _, name in ipairs({ "maxima", "references", "sums", "totals", "factors",
                    "inverse_sums" }) do
                    moved[name] = ir.offset(ir.mem(name), i * block.width)
                end
                local panel <const> = problem.kv_len * block.width
                moved.queries = ir.offset(ctx.queries, i * (plan.score_dim * block.width))
                moved.dim_rows = ir.offset(ir.mem("dim_rows"), i * (plan.value_dim * block.width))
                moved.query_rows = ir.offset(ctx.query_rows, i * (block.width * plan.q.row))
                moved.out_rows = ir.offset(ctx.out_rows, i * (block.width * plan.out.row))
                moved.mask_panel = ir.offset(ir.mem("mask_panel"), i * panel
                    + key0 * block.width)
                moved.key_rows = ir.offset(ctx.key_rows, key0 * plan.k.row)
                moved.value_rows = ir.offset(ctx.value_rows, key0 * plan.v.row)
                moved.key_keep = ir.offset(ctx.key_keep, key0)
                local tensor <const> = problem.mask_tensor
                local rows <const> = tensor and i * (block.width * tensor.query) or ir.index(0)
                moved.mask_keep = ir.offset(ctx.mask_keep, rows + key0)
                moved.mask_add = ir.offset(ctx.mask_add, rows + key0)
                return moved
            end
            local function each_block(to, visit)
                if block.together == 1 then
                    visit(to, ir.index(0))
                else
                    to:loop({ var = "i", from = 0, to = ir.var("count") }, visit)
                end
            end
            each_block(body, function(inner, i)
                local here <const> = values(i, ir.index(0))
                inner:call(gather, here)
                if gather_mask then inner:call(gather_mask, here) end
                inner:call(start, here)
                inner:call(open, here)
            end)
            local last <const> = ctx.query0 + (block.together == 1 and ir.index(block.queries - 1)
                or ir.var("count") * block.width + -1)
            local keys <const> = mask.visible_keys(body, ctx, last, "keys")
            body:loop({ var = "key0", from = 0, to = keys, step = shape.key_block, below = true },
                function(inner, key0)
                    each_block(inner, function(deep, i) deep:call(key_block, values(i, key0)) end)
                end)
            each_block(body, function(inner, i)
                local here <const> = values(i, ir.index(0))
                inner:call(invert, here)
                if store then inner:call(store, here) end
                inner:call(close, here)
                if clear then inner:call(clear, here) end
            end)
        end)
end

-- The functions of one kind of query block; `query0` is constant in straight-line code. Returns
-- {attend, and where needed clear_rows, clear_weights, scale_weights}.
local function build_block(phase, plan, block, query0, suffix)
    local shape <const> = plan.attention
    local problem <const> = shape.problem
    local ctx <const> = {
        plan = plan, problem = problem, block = block, lanes = plan.machine.lanes,
        straight = plan.straight, suffix = suffix, parameters = parameters,
        query0 = query0 or ir.var("query0"), batch = ir.index(0), head = ir.index(0),
        length = ir.var("length"),
        key0 = shape.in_blocks and ir.var("key0") or ir.index(0),
        whole_end = shape.in_blocks and ir.var("whole_end") or shape.whole_keys
            and ir.index(shape.whole_keys),
    }
    for _, name in ipairs({ "query_rows", "key_rows", "value_rows", "out_rows", "weight_rows",
        "key_keep", "mask_keep", "mask_add", "queries", "scores", "maxima", "references", "sums",
        "inverse_sums" }) do
        ctx[name] = ir.mem(name)
    end
    if shape.trial == "bits" then ctx.strays = ir.mem("strays") end
    if shape.in_blocks then ctx.totals, ctx.factors = ir.mem("totals"), ir.mem("factors") end
    if shape.mask_panel then ctx.mask_panel = ir.mem("mask_panel") end

    local made <const> = {}
    if clears_padded(problem) then made.clear_rows = phase:add(context.build_clear(ctx)) end
    made.attend = phase:add((shape.in_blocks and attend_in_blocks or attend_rows)(phase, ctx,
        made.clear_rows))
    local mean <const> = problem.return_weights == "mean"
    if mean or problem.return_weights and shape.skips then
        made.clear_weights = add_apart(phase, ctx, softmax.build_mean(ctx, "clear_weights",
            mean and "Weights start at zero; every head adds its own."
                or "Padded queries attend to nothing.", "store_zero"))
    end
    if mean then
        made.scale_weights = add_apart(phase, ctx, softmax.build_mean(ctx, "scale_weights",
            "The mean over the heads.", "scale_value", ir.float(1.0 / problem.heads)))
    end
    return made
end

-- Appends the attention phase to `kernel`.
function attention.build(kernel, plan)
    local shape <const> = plan.attention
    local problem <const> = shape.problem
    local phase <const> = kernel:phase("attention", "Attention: scores, softmax, context")
    local q <const>, k <const>, v <const> = kernel:place(plan.q), kernel:place(plan.k),
        kernel:place(plan.v)
    local out <const> = kernel:place(plan.out)
    local S <const>, L <const> = problem.kv_len, problem.seq_len

    -- where the results of one head's queries from query0 on go
    local function result_rows(batch, head, query0)
        local rows <const> = problem.return_weights == "per_head"
            and batch * (problem.heads * L * S) + head * (L * S) or batch * (L * S)
        return {
            out_rows = ir.offset(out, batch * plan.out.batch + head * plan.out.head
                + query0 * plan.out.row),
            weight_rows = ir.mem("weights_out", rows + query0 * S), query0 = query0,
        }
    end

    local function call_head(body, made, batch, head, query0, count)
        local kv_head <const> = problem.group == 1 and head
            or body:size("kv_head", "quotient", head, ir.index(problem.group))
        local mask_ctx <const> = { problem = problem, batch = batch, head = head, query0 = query0 }
        local given <const> = result_rows(batch, head, query0)
        given.query_rows = ir.offset(q,
            batch * plan.q.batch + head * plan.q.head + query0 * plan.q.row)
        given.key_rows = ir.offset(k, batch * plan.k.batch + kv_head * plan.k.head)
        given.value_rows = ir.offset(v, batch * plan.v.batch + kv_head * plan.v.head)
        given.key_keep = ir.mem("key_keep", batch * S)
        given.mask_keep = problem.mask_tensor and mask.tensor_mem(mask_ctx, "mask_keep")
        given.mask_add = problem.mask_tensor and mask.tensor_mem(mask_ctx, "mask_add")
        given.count = count
        body:call(made.attend, given)
    end

    -- attend for the heads of a block; mean weights run over all heads at once
    local function attend_block(body, made, batch, query0, count, each_head)
        local mean_rows <const> = shape.heads_inside and result_rows(batch, ir.index(0), query0)
        if mean_rows then body:call(made.clear_weights, mean_rows) end
        each_head(body, function(inner, head)
            call_head(inner, made, batch, head, query0, count)
        end)
        if mean_rows then body:call(made.scale_weights, mean_rows) end
    end

    -- zeros where the caller reads, for `count` blocks of padded queries
    local function clear_block(body, block, made, batch, query0, count, each_head)
        if shape.heads_inside then
            body:call(made.clear_weights, result_rows(batch, ir.index(0), query0))
        end
        each_head(body, function(inner, head)
            local function clear(deep, i)
                local rows <const> = result_rows(batch, head, query0 + i * block.width)
                if made.clear_weights and not shape.heads_inside then
                    deep:call(made.clear_weights, rows)
                end
                if made.clear_rows then deep:call(made.clear_rows, rows) end
            end
            if block.together == 1 then
                clear(inner, ir.index(0))
            else
                inner:loop({ var = "i", from = 0, to = count }, clear)
            end
        end)
    end

    local function call_block(body, block, made, batch, query0, count, each_head)
        if not shape.skips then
            attend_block(body, made, batch, query0, count, each_head)
            return
        end
        local clears <const> = made.clear_weights or made.clear_rows
        body:when("lt", { query0, ir.var("length") }, function(inner)
            attend_block(inner, made, batch, query0, count, each_head)
        end, clears and function(inner)
            clear_block(inner, block, made, batch, query0, count, each_head)
        end or nil)
    end

    -- build(body, head) for one head, or for all where they run inside
    local function heads_of(head)
        return function(body, build)
            if shape.heads_inside or plan.straight then
                body:each("head", problem.heads, plan.straight, build)
            else
                build(body, head)
            end
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
    weights.trust(body, plan)

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
                        ir.index(variant.query0), ir.index(1), heads_of())
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
    local units <const> = shape.unit_count
    local heads <const> = shape.heads_inside and 1 or problem.heads
    local function call_unit(inner, batch, unit)
        local index, head = ir.index(0), heads == 1 and ir.index(0) or unit
        if units > 1 then
            index = heads == 1 and unit or inner:size("turn", "remainder", unit, ir.index(units))
            if shape.uneven then
                index = inner:size("block", "outside_in", index, ir.index(units - 1))
            end
            head = heads == 1 and head or inner:size("head", "quotient", unit, ir.index(units))
        end
        local function dispatch(deep, i)
            local block <const> = shape.blocks[i]
            local function this(last)
                local count = ir.index(1)
                if block.together > 1 then
                    local left <const> = last:size("left", "excess",
                        ir.index(block.count + block.first_unit * block.together),
                        index * block.together)
                    count = last:size("count", "min", left, ir.index(block.together))
                end
                local query0 <const> = (index + -block.first_unit)
                    * (block.together * block.width) + block.first
                call_block(last, block, made[i], batch, query0, count, heads_of(head))
            end
            if i == #shape.blocks then
                this(deep)
            else
                deep:when("lt", { index, ir.index(block.first_unit + block.units) }, this,
                    function(other) dispatch(other, i + 1) end)
            end
        end
        dispatch(inner, 1)
    end
    local per_item <const> = heads * units
    if problem.batch == 1 or shape.items_apart then
        -- runs of neighbouring heads, item by item: an item's cost depends on its length; what does
        -- not divide evenly goes to another part in every item
        body:each("batch", problem.batch, false, function(item, batch)
            load_length(item, batch)
            local suffix <const> = problem.batch == 1 and "" or "_after"
            local first <const> = item:size("first", "share" .. suffix, ir.index(per_item), "part",
                "parts", batch)
            local last <const> = item:size("last", "share_end" .. suffix, ir.index(per_item),
                "part", "parts", batch)
            item:loop({ var = "unit", from = first, to = last },
                function(inner, unit) call_unit(inner, batch, unit) end)
        end)
        return
    end
    -- runs of neighbouring items, whose rows the same part projects
    local all <const> = ir.index(problem.batch * per_item)
    local first <const> = body:size("first", "share", all, "part", "parts")
    local last <const> = body:size("last", "share_end", all, "part", "parts")
    body:loop({ var = "nth", from = first, to = last }, function(inner, nth)
        local batch <const> = inner:size("batch", "quotient", nth, ir.index(per_item))
        call_unit(inner, batch, inner:size("unit", "remainder", nth, ir.index(per_item)))
    end)
end

return attention
