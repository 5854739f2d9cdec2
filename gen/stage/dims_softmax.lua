-- Softmax of a stack of rows with lanes along keys (gen/plan/dims.lua), in place: scores[row][key]
-- become weights before division, inverse_sums[row] = 1 / their sum. The reference of a row is its
-- maximum rounded up to a whole number, as in gen/stage/softmax.lua. Also writes returned weights.
local ir <const> = require("gen.ir")
local exact_rows <const> = require("gen.stage.exact_rows")
local dims_scores <const> = require("gen.stage.dims_scores")

local dims_softmax <const> = {}

local LINE_FLOATS <const> = 16

local LOG2_E <const> = 0x1.715476p+0

-- Applies `op` to neighbouring lanes until every lane holds the result for all.
local function across(block, ctx, op, name)
    local lanes, value = ctx.lanes, name
    while lanes > 1 do
        value = block:let("vec", name .. "_" .. lanes, op, value, value)
        lanes = lanes // 2
    end
    return value
end

-- Runs build(body, key) for the first key of every vector of keys that some row sees.
local function each_vector(block, ctx, build)
    local lanes <const> = ctx.lanes
    local known <const> = ir.constant(ctx.key_end)
    if known then
        block:each("at", (known + lanes - 1) // lanes, ctx.straight, function(body, i)
            build(body, i * lanes)
        end)
    else
        block:loop({ var = "key", from = 0, to = ctx.key_end, step = lanes, below = true }, build)
    end
end

function dims_softmax.build(ctx)
    local problem <const>, planned <const> = ctx.problem, ctx.plan.attention
    local exp2 <const> = problem.accuracy == "fast" and "exp2_fast" or "exp2"
    local natural <const> = problem.fold.base ~= 2
    return ir.func("softmax" .. ctx.suffix,
        { ("exp of the logits of %d rows, in place, and 1 / sum of each."):format(ctx.block.rows) },
        ctx.parameters, function(block)
            if natural then block:let("vec", "log2_e", "splat", ir.float(LOG2_E)) end
            block:let("vec", "one", "splat", ir.float(1.0))
            dims_scores.each_row(block, ctx, function(body, row)
                local from <const> = body:pointer("writable", "logits",
                    ir.offset(ctx.scores, row * planned.row_floats))
                body:declare("vec", "max", "minus_infinity")
                each_vector(body, ctx, function(inner, key)
                    inner:let("vec", "s", "load", ir.offset(from, key))
                    inner:set("max", "max", "max", "s")
                end)
                local largest <const> = across(body, ctx, "pair_max", "max")
                local reference = body:let("vec", "whole", "ceil", largest)
                if problem.masked then
                    -- nothing seen: any finite reference keeps -inf - reference at -inf
                    body:let("mask", "seen", "lanes_allowed", largest)
                    body:let("vec", "nothing", "zero")
                    reference = body:let("vec", "reference", "select", "seen", "whole", "nothing")
                end
                body:declare("vec", "sum", "zero")
                each_vector(body, ctx, function(inner, key)
                    if planned.value_ahead then
                        -- the values come next: a line for every vector of weights
                        inner:run("prefetch_soon", ir.offset(ctx.value_rows,
                            key * (LINE_FLOATS // ctx.lanes)))
                    end
                    inner:let("vec", "logit", "load", ir.offset(from, key))
                    local below = inner:let("vec", "x", "sub", "logit", reference)
                    if natural then below = inner:let("vec", "y", "mul", "x", "log2_e") end
                    inner:let("vec", "p", exp2, below)
                    inner:set("sum", "add", "sum", "p")
                    inner:run("store", ir.offset(from, key), "p")
                end)
                local total <const> = across(body, ctx, "pair_sums", "sum")
                body:let("vec", "inverse", "div", "one", total)
                local to <const> = ir.offset(ctx.inverse_sums, row)
                if ctx.lanes == 1 then
                    body:run("store", to, "inverse")
                else
                    body:run("store_part", to, "inverse", ir.index(1))
                end
            end)
        end)
end

-- ---- Returned weights ----------------------------------------------------------------------

local function clear_keys(block, ctx, to, from)
    local known <const> = ir.constant(from)
    if known and ctx.straight then
        for key = known, ctx.problem.kv_len - 1 do
            block:run("store_zero", ir.offset(to, ir.index(key)))
        end
    elseif known ~= ctx.problem.kv_len then
        block:loop({ var = "key", from = from, to = ctx.problem.kv_len },
            function(body, key) body:run("store_zero", ir.offset(to, key)) end)
    end
end

-- weights[query][key] = p * (1 / sum); "mean" adds to what earlier heads left there.
function dims_softmax.build_weights(ctx)
    local problem <const>, planned <const> = ctx.problem, ctx.plan.attention
    local is_mean <const> = problem.return_weights == "mean"
    local write <const> = is_mean and "add_product" or "store_product"
    local keys <const>, queries <const> = problem.kv_len, problem.seq_len
    return ir.func("write_weights" .. ctx.suffix,
        { ("Attention weights of %d rows."):format(ctx.block.rows) }, ctx.parameters,
        function(block)
            dims_scores.each_row(block, ctx, function(body, row)
                local head <const>, query <const> = dims_scores.position(body, ctx,
                    ctx.row0 + row, "")
                local place <const> = is_mean and query * keys
                    or head * (queries * keys) + query * keys
                local to <const> = body:pointer("writable", "row_weights",
                    ir.offset(ctx.weight_rows, place))
                local from <const> = body:pointer("pointer", "weights_of_row",
                    ir.offset(ctx.scores, row * planned.row_floats))
                local inverse <const> = ir.offset(ctx.inverse_sums, row)
                local function plain(inner)
                    local function product(deep, key)
                        deep:run(write, ir.offset(to, key), ir.offset(from, key), inverse)
                    end
                    local known <const> = ir.constant(ctx.key_end)
                    if known then
                        inner:each("key", known, ctx.straight, product)
                    else
                        inner:loop({ var = "key", from = 0, to = ctx.key_end }, product)
                    end
                    if not is_mean then clear_keys(inner, ctx, to, ctx.key_end) end
                end
                local function finite(inner)
                    if not problem.masked then
                        plain(inner)
                        return
                    end
                    inner:let("float", "inverse", "load_f32", inverse)
                    inner:when("float_positive", { "inverse" }, function(deep)
                        local exact <const> = setmetatable({
                            visible = dims_scores.visible(deep, ctx, ctx.row0 + row, ""),
                            mask_row = dims_scores.mask_row(ctx, row), inverse_sum = inverse,
                            weight = function(key) return ir.offset(from, key) end,
                        }, { __index = ctx })
                        exact_rows.write_weights(deep, exact, to, write)
                    end, plain)
                end
                if problem.padded_queries == "zero" then
                    body:when("ge", { query, ctx.length }, function(inner)
                        if not is_mean then clear_keys(inner, ctx, to, ir.index(0)) end
                    end, finite)
                else
                    finite(body)
                end
            end)
        end)
end

-- For "mean": all rows of an item cleared before the first head, scaled by 1/heads after the last.
function dims_softmax.build_mean(ctx, name, comment, op, ...)
    local problem <const>, extra <const> = ctx.problem, table.pack(...)
    return ir.func(name, { comment }, ctx.parameters, function(block)
        block:each("cell", problem.seq_len * problem.kv_len, ctx.straight, function(body, cell)
            body:run(op, ir.offset(ctx.weight_rows, cell), table.unpack(extra, 1, extra.n))
        end)
    end)
end

return dims_softmax
