-- Softmax of one block of queries, in place: scores[key][query] become weights before division, and
-- inverse_sums[query] = 1 / their sum. The division itself happens once, on the head-wide output.
-- Also writes the caller's weights tensor when the config returns it.
local ir <const> = require("gen.ir")
local mask <const> = require("gen.stage.mask")

local softmax <const> = {}

local LOG2_E <const> = 0x1.715476p+0

-- Runs build(body, i) for i in [0, count); count is an integer or an index.
local function each_key(block, ctx, name, count, build)
    local known <const> = ir.constant(count)
    if known then
        if known > 0 then block:each(name, known, ctx.straight, build) end
    else
        block:loop({ var = name, from = 0, to = count }, build)
    end
end

function softmax.build(ctx)
    local vectors <const>, lanes <const> = ctx.block.vectors, ctx.lanes
    local exp2 <const> = ctx.problem.accuracy == "fast" and "exp2_fast" or "exp2"
    local natural <const> = ctx.problem.fold.base ~= 2
    return ir.func("softmax" .. ctx.suffix,
        { ("exp of the logits of %d queries, in place, and 1 / sum of each."):format(
            ctx.block.queries) },
        ctx.parameters, function(block)
            if natural then block:let("vec", "log2_e", "splat", ir.float(LOG2_E)) end
            for v = 0, vectors - 1 do
                block:let("vec", "max" .. v, "load", ir.offset(ctx.maxima, v * lanes))
                block:declare("vec", "sum" .. v, "zero")
            end
            each_key(block, ctx, "key", ctx.key_end, function(body, key)
                for v = 0, vectors - 1 do
                    local at <const> = ir.offset(ctx.scores, key * ctx.block.width + v * lanes)
                    body:let("vec", "s" .. v, "load", at)
                    local below = body:let("vec", "x" .. v, "sub", "s" .. v, "max" .. v)
                    if natural then below = body:let("vec", "y" .. v, "mul", below, "log2_e") end
                    body:let("vec", "p" .. v, exp2, below)
                    body:set("sum" .. v, "add", "sum" .. v, "p" .. v)
                    body:run("store", at, "p" .. v)
                end
            end)
            block:let("vec", "one", "splat", ir.float(1.0))
            for v = 0, vectors - 1 do
                block:let("vec", "inverse" .. v, "div", "one", "sum" .. v)
                block:run("store", ir.offset(ctx.inverse_sums, v * lanes), "inverse" .. v)
            end
        end)
end

-- ---- Returned weights ----------------------------------------------------------------------

-- One row by the definition: used where the sum is 0, NaN or infinite, so that hidden keys stay
-- exact
-- zeros and an empty row follows its rule.
local function exact_row(block, ctx, to, row, write)
    local problem <const> = ctx.problem
    local visible <const> = mask.visible_keys(block, ctx, ctx.query0 + row, "visible")
    local exact <const> = setmetatable({
        mask_column = ctx.mask_panel and ir.offset(ctx.mask_panel, row),
    }, { __index = ctx })
    if write == "store_product" then
        block:each("key", problem.kv_len, ctx.straight, function(body, key)
            body:run("store_zero", ir.offset(to, key))
        end)
    end
    local has_rule <const> = problem.may_be_empty and problem.empty_row ~= "zero"
    if has_rule then block:declare("int", "allowed", "none") end
    mask.each_allowed(block, exact, ir.index(0), problem.kv_len, visible, function(body, key)
        if has_rule then body:set("allowed", "one") end
        body:run(write, ir.offset(to, key), ir.offset(ctx.scores, key * ctx.block.width + row),
            ir.offset(ctx.inverse_sums, row))
    end)
    if not has_rule then return end
    block:when("false_", { "allowed" }, function(body)
        if problem.empty_row == "uniform" then
            body:let("float", "each", "constant_f32", ir.float(1.0 / problem.kv_len))
        else
            -- no key: the sum is 0, its inverse infinite, their product NaN
            body:let("float", "each", "times_zero", ir.offset(ctx.inverse_sums, row))
        end
        body:each("key", problem.kv_len, ctx.straight, function(inner, key)
            inner:run(write == "store_product" and "store_value" or "add_value", ir.offset(to,
                key), "each")
        end)
    end)
end

-- weights[query][key] = p * (1 / sum); "mean" adds to what earlier heads left there.
function softmax.build_weights(ctx)
    local problem <const> = ctx.problem
    local write <const> = problem.return_weights == "mean" and "add_product" or "store_product"
    local hidden_rows <const> = problem.padded_queries == "zero"
    return ir.func("write_weights" .. ctx.suffix,
        { ("Attention weights of %d queries."):format(ctx.block.queries) },
        ctx.parameters, function(block)
            block:each("row", ctx.block.queries, ctx.straight, function(body, row)
                local to <const> = body:pointer("writable", "row_weights",
                    ir.offset(ctx.weight_rows, row * problem.kv_len))
                local function plain(inner)
                    each_key(inner, ctx, "key", ctx.key_end, function(deep, key)
                        deep:run(write, ir.offset(to, key),
                            ir.offset(ctx.scores, key * ctx.block.width + row),
                            ir.offset(ctx.inverse_sums, row))
                    end)
                    if write == "store_product" then
                        local known <const> = ir.constant(ctx.key_end)
                        if not known then
                            inner:loop({ var = "key", from = ctx.key_end, to = problem.kv_len },
                                function(deep, key) deep:run("store_zero", ir.offset(to, key)) end)
                        else
                            for key = known, problem.kv_len - 1 do
                                inner:run("store_zero", ir.offset(to, ir.index(key)))
                            end
                        end
                    end
                end
                local function finite(inner)
                    if not problem.masked then
                        plain(inner)
                        return
                    end
                    inner:let("float", "inverse", "load_f32", ir.offset(ctx.inverse_sums, row))
                    inner:when("float_positive", { "inverse" }, function(deep)
                        exact_row(deep, ctx, to, row, write)
                    end, plain)
                end
                if hidden_rows then
                    body:when("ge", { ctx.query0 + row, ctx.length }, function(inner)
                        if write == "store_product" then
                            inner:each("key", problem.kv_len, ctx.straight, function(deep, key)
                                deep:run("store_zero", ir.offset(to, key))
                            end)
                        end
                    end, finite)
                else
                    finite(body)
                end
            end)
        end)
end

-- For "mean": rows cleared before the first head, scaled by 1/heads after the last.
function softmax.build_mean(ctx, name, comment, op, ...)
    local problem <const>, extra <const> = ctx.problem, table.pack(...)
    return ir.func(name .. ctx.suffix, { comment }, ctx.parameters, function(block)
        block:each("row", ctx.block.queries, ctx.straight, function(body, row)
            body:each("key", problem.kv_len, ctx.straight, function(inner, key)
                inner:run(op, ir.offset(ctx.weight_rows, row * problem.kv_len + key),
                    table.unpack(extra, 1, extra.n))
            end)
        end)
    end)
end

return softmax
