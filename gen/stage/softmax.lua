-- Softmax of one block of queries, fused into the score tiles: a logit becomes its weight before
-- division, 2^(logit - reference), while it is in a register. 1 / sum is applied once, to the
-- head-wide output. Also writes the caller's weights tensor when the config returns it.
--
-- The reference of a query starts at 0: most rows need no maximum. After every block of keys the
-- maxima are looked at; where one is out of reach of its reference, the reference moves to the
-- maximum rounded up (a whole number), what was summed is scaled, and the block is done again. That
-- depends on the row's own allowed logits alone, so nothing else changes its bits.
--
-- ctx.at_zero: tiles for references that are all 0, without maxima. Their sums tell whether every
-- maximum is within reach; if they cannot, the block is done again with maxima. The bits are alike.
-- Where exp2 is cheaper in a smaller domain (trial "bits"), the bits of all logits are collected:
-- `strays` tells whether one was out of it.
local ir <const> = require("gen.ir")
local mask <const> = require("gen.stage.mask")
local exact_rows <const> = require("gen.stage.exact_rows")

local softmax <const> = {}

local LOG2_E <const> = 0x1.715476p+0

-- Logits at the lower end of exp2_near's domain, where it is 0.
local NEAR_END <const> = { [2] = -142.0, [0] = -98.4 }

-- How far above its reference a row's maximum may lie, lowest and highest, for logits in powers of
-- two (base 2) and of e. Weights are 2^16 times 2^(logit - reference): the largest of a row is then
-- at least 1, so that nothing within 2^-125 of it is lost, and at most 2^48, which leaves room for
-- values up to 2^80 divided by the number of keys.
local REACH <const> = { [2] = { -16.0, 32.0 }, [0] = { -11.0, 22.0 } }

-- Runs build(body, i) for i in [0, count); count is an integer or an index.
local function each_key(block, ctx, name, count, build)
    local known <const> = ir.constant(count)
    if known then
        if known > 0 then block:each(name, known, ctx.straight, build) end
    else
        block:loop({ var = name, from = 0, to = count }, build)
    end
end

-- Sums that prove a row's maximum to be within the reach of 0: above the first its keys cannot all
-- weigh what the lowest maximum does (2^0.13 at most), below the second none weighs what the
-- highest does (2^47.7 at least). Both leave room for rounding.
local PROOF_EACH <const>, PROOF_MOST <const> = 1.25, 0x1p47

local function is_natural(ctx) return ctx.problem.fold.base ~= 2 end

local function finds_strays(ctx) return ctx.at_zero and ctx.plan.attention.trial == "bits" end

local function exp2_op(ctx)
    return (finds_strays(ctx) and "exp2_near" or "exp2")
        .. (ctx.problem.accuracy == "fast" and "_fast" or "")
end

local function at(mem, ctx, v) return ir.offset(mem, v * ctx.lanes) end

-- ---- Inside the score tiles ----------------------------------------------------------------

-- Declares `hidden`, the logit of a key that a query does not see: its weight is 0.
function softmax.let_hidden(block, ctx)
    if finds_strays(ctx) then
        block:let("vec", "hidden", "splat", ir.float(NEAR_END[ctx.problem.fold.base]))
    else
        block:let("vec", "hidden", "minus_infinity")
    end
end

-- What a function around score tiles keeps in registers: maxima, sums, references.
function softmax.open(block, ctx)
    if is_natural(ctx) then block:let("vec", "log2_e", "splat", ir.float(LOG2_E)) end
    if finds_strays(ctx) then
        block:declare("vec", "differing", "load", ctx.strays)
    end
    for v = 0, ctx.block.vectors - 1 do
        if not ctx.at_zero then
            block:let("vec", "ref" .. v, "load", at(ctx.references, ctx, v))
            block:declare("vec", "max" .. v, "load", at(ctx.maxima, ctx, v))
        end
        block:declare("vec", "sum" .. v, "load", at(ctx.sums, ctx, v))
    end
end

-- Weights of one key from its logits: name of the vector, given the logit's.
function softmax.weigh(block, ctx, r, v, logit)
    local n <const> = ("%d_%d"):format(r, v)
    local x = logit
    if not ctx.at_zero then
        block:set("max" .. v, "max", "max" .. v, logit)
        x = block:let("vec", "x" .. n, "sub", logit, "ref" .. v)
    end
    if is_natural(ctx) then x = block:let("vec", "y" .. n, "mul", x, "log2_e") end
    if finds_strays(ctx) then block:set("differing", "or_stray", "differing", x) end
    local p <const> = block:let("vec", "p" .. n, exp2_op(ctx), x)
    block:set("sum" .. v, "add", "sum" .. v, p)
    return p
end

function softmax.close(block, ctx)
    for v = 0, ctx.block.vectors - 1 do
        if not ctx.at_zero then block:run("store", at(ctx.maxima, ctx, v), "max" .. v) end
        block:run("store", at(ctx.sums, ctx, v), "sum" .. v)
    end
    if finds_strays(ctx) then block:run("store", ctx.strays, "differing") end
end

-- ---- Around them ---------------------------------------------------------------------------

-- Before the first key. `totals`: sums of whole blocks, where rows are done in several.
function softmax.start(ctx)
    return ir.func("start_softmax" .. ctx.suffix, { "No key seen yet; every reference is 0." },
        ctx.parameters, function(block)
            block:let("vec", "nothing", "minus_infinity")
            block:let("vec", "none", "zero")
            for v = 0, ctx.block.vectors - 1 do
                block:run("store", at(ctx.maxima, ctx, v), "nothing")
                block:run("store", at(ctx.references, ctx, v), "none")
                block:run("store", at(ctx.sums, ctx, v), "none")
                if ctx.totals then block:run("store", at(ctx.totals, ctx, v), "none") end
            end
        end)
end

-- Vector v's maxima against their reach: the square of the distance from its middle. No key seen:
-- the maximum counts as the reference itself.
local function distance(block, ctx, v)
    block:let("vec", "ref" .. v, "load", at(ctx.references, ctx, v))
    local reached = block:let("vec", "max" .. v, "load", at(ctx.maxima, ctx, v))
    if ctx.problem.masked then
        block:let("mask", "seen" .. v, "lanes_allowed", reached)
        reached = block:let("vec", "reached" .. v, "select", "seen" .. v, reached, "ref" .. v)
    end
    block:let("vec", "above" .. v, "sub", reached, "ref" .. v)
    block:let("vec", "off" .. v, "sub", "above" .. v, "middle")
    return block:let("vec", "square" .. v, "mul", "off" .. v, "off" .. v)
end

local function let_reach(block, ctx)
    local reach <const> = REACH[ctx.problem.fold.base]
    local radius <const> = (reach[2] - reach[1]) / 2.0
    block:let("vec", "middle", "splat", ir.float(reach[1] + radius))
    block:let("vec", "reach", "splat", ir.float(radius * radius))
end

-- Where lanes share a query (block.split): every lane gets what its query's lanes have together.
function softmax.join_lanes(ctx)
    local turning <const> = ir.mem("turning")
    return ir.func((ctx.at_zero and "try_" or "") .. "join_lanes" .. ctx.suffix,
        { "Sums and maxima of each query over the lanes that share it." }, ctx.parameters,
        function(block)
            local function join(name, op, mem)
                block:declare("vec", name, "load", mem)
                local step = ctx.lanes // 2
                while step >= ctx.block.width do
                    block:run("store", turning, name)
                    block:run("store", ir.offset(turning, ctx.lanes), name)
                    local turned <const> = ("%s_%d"):format(name, step)
                    block:let("vec", turned, "load", ir.offset(turning, step))
                    block:set(name, op, name, turned)
                    step = step // 2
                end
                block:run("store", mem, name)
            end
            if not ctx.at_zero then join("max", "max", ctx.maxima) end
            join("sum", "add", ctx.sums)
        end)
end

-- Where the lanes are more than one vector: name of the int that is set when one of `parts` is.
local function any(block, parts)
    local found = parts[0]
    for v = 1, #parts do found = block:let("int", "any" .. v, "or_into", found, parts[v]) end
    return found
end

function softmax.moved(ctx)
    return ir.question("is_moved" .. ctx.suffix, { "Whether some reference is not 0." },
        ctx.parameters, function(block)
            local moved <const> = {}
            block:let("vec", "start", "zero")
            for v = 0, ctx.block.vectors - 1 do
                local reference <const> = block:let("vec", "reference" .. v, "load",
                    at(ctx.references, ctx, v))
                local square <const> = block:let("vec", "square" .. v, "mul", reference, reference)
                moved[v] = block:let("int", "moved" .. v, "has_above", square, "start")
            end
            return any(block, moved)
        end)
end

-- Name of an int: a logit so far was out of exp2_near's domain.
local function strayed(block, ctx)
    block:let("vec", "differing", "load", ctx.strays)
    return block:let("int", "strayed", "has_high_bits", "differing")
end

-- The sums are those of all keys so far.
function softmax.unproven(ctx)
    return ir.question("is_unproven" .. ctx.suffix,
        { "Whether some row's maximum is not proven to be within reach of 0." },
        ctx.parameters, function(block)
            block:let("vec", "least", "splat", ir.float(PROOF_EACH * ctx.problem.kv_len))
            block:let("vec", "most", "splat", ir.float(PROOF_MOST))
            block:let("vec", "bound", "zero")
            for v = 0, ctx.block.vectors - 1 do
                local sum = block:let("vec", "sum" .. v, "load", at(ctx.sums, ctx, v))
                if ctx.totals then
                    block:let("vec", "total" .. v, "load", at(ctx.totals, ctx, v))
                    sum = block:let("vec", "both" .. v, "add", "total" .. v, sum)
                end
                -- negative between the bounds, NaN for NaN
                block:let("vec", "over" .. v, "sub", sum, "most")
                block:let("vec", "under" .. v, "sub", sum, "least")
                local side <const> = block:let("vec", "side" .. v, "mul", "over" .. v, "under" .. v)
                if v == 0 then
                    block:declare("vec", "worst", "copy", side)
                    block:declare("vec", "all", "copy", side)
                else
                    block:set("worst", "max", "worst", side)
                    block:set("all", "add", "all", side)
                end
            end
            block:let("int", "outside", "has_above", "worst", "bound")
            block:let("int", "lost", "has_nan", "all")
            block:let("int", "unproven", "or_into", "outside", "lost")
            if ctx.plan.attention.trial ~= "bits" then return "unproven" end
            return block:let("int", "failed", "or_into", "unproven", strayed(block, ctx))
        end)
end

-- A block with maxima passed: the next is worth a try, unless a stray makes all of them fail.
function softmax.trust(block, ctx)
    if ctx.plan.attention.trial ~= "bits" then
        block:run("store_one", ir.mem("trust"))
        return
    end
    block:when("false_", { strayed(block, ctx) }, function(body)
        body:run("store_one", ir.mem("trust"))
    end)
end

-- Sums of the block start again.
function softmax.restart(ctx)
    return ir.func("restart_sums" .. ctx.suffix, { "The block's sums start again." },
        ctx.parameters, function(block)
            block:let("vec", "none", "zero")
            for v = 0, ctx.block.vectors - 1 do
                block:run("store", at(ctx.sums, ctx, v), "none")
            end
        end)
end

-- Maxima of rows that are proven: any value within reach of 0 says as much to later blocks.
function softmax.settled(block, ctx)
    block:let("vec", "settled", "zero")
    for v = 0, ctx.block.vectors - 1 do
        block:run("store", at(ctx.maxima, ctx, v), "settled")
    end
end

function softmax.out_of_reach(ctx)
    return ir.question("is_out_of_reach" .. ctx.suffix,
        { "Whether some maximum has left the reach of its reference." }, ctx.parameters,
        function(block)
            local far <const> = {}
            let_reach(block, ctx)
            for v = 0, ctx.block.vectors - 1 do
                far[v] = block:let("int", "far" .. v, "has_above", distance(block, ctx, v), "reach")
            end
            return any(block, far)
        end)
end

-- What earlier blocks have summed, times the change of scale: rows of the output.
local function scale_rows(block, ctx)
    local lanes <const> = ctx.lanes
    local width <const> = ctx.plan.value_dim
    local whole <const>, rest <const> = width // lanes, width % lanes
    block:loop({ var = "row", from = 0, to = ctx.block.queries }, function(body, row)
        body:let("vec", "factor", "broadcast", ir.offset(ctx.factors, row))
        local function scale(inner, column, count)
            local out <const> = ir.offset(ctx.out_rows, row * ctx.plan.out.row + column)
            if count then
                inner:let("vec", "value", "load_part", out, ir.index(count))
            else
                inner:let("vec", "value", "load", out)
            end
            inner:let("vec", "scaled", "mul", "value", "factor")
            if count then
                inner:run("store_part", out, "scaled", ir.index(count))
            else
                inner:run("store", out, "scaled")
            end
        end
        body:each("vector", whole, false, function(inner, i) scale(inner, i * lanes) end)
        if rest > 0 then
            body:scope(function(inner) scale(inner, whole * lanes, rest) end)
        end
    end)
end

-- The same where lanes lie along queries.
local function scale_dims(block, ctx)
    block:loop({ var = "d", from = 0, to = ctx.plan.value_dim }, function(body, d)
        for v = 0, ctx.block.vectors - 1 do
            local sums <const> = ir.mem("dim_rows", d * ctx.block.width + v * ctx.lanes)
            body:let("vec", "value" .. v, "load", sums)
            body:let("vec", "product" .. v, "mul", "value" .. v, "factor" .. v)
            body:run("store", sums, "product" .. v)
        end
    end)
end

-- Moves the references of the queries whose maximum is out of reach to that maximum, rounded up,
-- and scales what their earlier blocks have summed.
function softmax.move(ctx)
    local totals <const> = ctx.totals
    return ir.func("move_references" .. ctx.suffix,
        { "References out of reach move to their maximum, rounded up"
            .. (totals and "; sums so far are scaled." or ".") },
        ctx.parameters, function(block)
            let_reach(block, ctx)
            block:let("vec", "none", "zero")
            if totals then
                block:let("vec", "unit", exp2_op(ctx), "none")
            end
            if is_natural(ctx) and totals then
                block:let("vec", "log2_e", "splat", ir.float(LOG2_E))
            end
            for v = 0, ctx.block.vectors - 1 do
                local far <const> = block:let("mask", "far" .. v, "lanes_above",
                    distance(block, ctx, v), "reach")
                block:let("vec", "whole" .. v, "ceil", "max" .. v)
                block:let("vec", "new" .. v, "select", far, "whole" .. v, "ref" .. v)
                block:run("store", at(ctx.references, ctx, v), "new" .. v)
                block:run("store", at(ctx.sums, ctx, v), "none")
                if totals then
                    -- a reference only falls while the sum is still 0
                    block:let("vec", "rise" .. v, "sub", "new" .. v, "ref" .. v)
                    block:let("vec", "up" .. v, "max", "rise" .. v, "none")
                    local down = block:let("vec", "down" .. v, "sub", "none", "up" .. v)
                    if is_natural(ctx) then
                        down = block:let("vec", "bits" .. v, "mul", down, "log2_e")
                    end
                    block:let("vec", "power" .. v, exp2_op(ctx), down)
                    block:let("vec", "factor" .. v, "div", "power" .. v, "unit")
                    block:run("store", at(ctx.factors, ctx, v), "factor" .. v)
                    block:let("vec", "total" .. v, "load", at(totals, ctx, v))
                    block:let("vec", "scaled" .. v, "mul", "total" .. v, "factor" .. v)
                    block:run("store", at(totals, ctx, v), "scaled" .. v)
                end
            end
            if not totals then return end
            if ctx.block.dim_groups then
                scale_dims(block, ctx)
            else
                scale_rows(block, ctx)
            end
        end)
end

-- totals += sums of the block, which start again at 0.
function softmax.add_block(block, ctx)
    block:let("vec", "none", "zero")
    for v = 0, ctx.block.vectors - 1 do
        block:let("vec", "total" .. v, "load", at(ctx.totals, ctx, v))
        block:let("vec", "sum" .. v, "load", at(ctx.sums, ctx, v))
        block:let("vec", "both" .. v, "add", "total" .. v, "sum" .. v)
        block:run("store", at(ctx.totals, ctx, v), "both" .. v)
        block:run("store", at(ctx.sums, ctx, v), "none")
    end
end

-- Declares inverse0, …: 1 / sum of each query's weights. visit(v), if given, follows each.
function softmax.invert(block, ctx, visit)
    block:let("vec", "one", "splat", ir.float(1.0))
    for v = 0, ctx.block.vectors - 1 do
        block:let("vec", "sum" .. v, "load", at(ctx.totals or ctx.sums, ctx, v))
        block:let("vec", "inverse" .. v, "div", "one", "sum" .. v)
        if visit then visit(v) end
    end
end

-- inverse_sums[query] = 1 / sum.
function softmax.finish(ctx)
    return ir.func("invert_sums" .. ctx.suffix, { "1 / sum of each query's weights." },
        ctx.parameters, function(block)
            softmax.invert(block, ctx, function(v)
                block:run("store", at(ctx.inverse_sums, ctx, v), "inverse" .. v)
            end)
        end)
end

-- ---- Returned weights ----------------------------------------------------------------------

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
                        local exact <const> = setmetatable({
                            visible = mask.visible_keys(deep, ctx, ctx.query0 + row, "visible"),
                            mask_column = ctx.mask_panel and ir.offset(ctx.mask_panel, row),
                            inverse_sum = ir.offset(ctx.inverse_sums, row),
                            weight = function(key)
                                return ir.offset(ctx.scores, key * ctx.block.width + row)
                            end,
                        }, { __index = ctx })
                        exact_rows.write_weights(deep, exact, to, write)
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
