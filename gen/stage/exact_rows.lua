-- Rows by the definition, whichever way the lanes lie: of the output, of returned weights. Hidden
-- keys have weight exactly 0, so they vanish unless V holds NaN or infinity there; rows without any
-- key have the sum 0. Both make the row NaN: such a row is computed again from its allowed keys
-- alone, in the same order, so a clean row never changes by a bit.
--
-- A row is described by its ctx: visible (bounds the range masks), mask_row or mask_column where
-- there are other masks, weight(key), inverse_sum and out_row (mems).
local ir <const> = require("gen.ir")
local numbers <const> = require("gen.plan.numbers")
local mask <const> = require("gen.stage.mask")

local exact_rows <const> = {}

local LONGEST_SUM <const> = numbers.LONGEST_SUM

-- ---- Vectors of a row ----------------------------------------------------------------------

-- Column groups with the last panel apart where its last vector is only partly there:
-- list of {count, vectors, first (column), last_lanes}.
function exact_rows.columns(ctx)
    local lanes <const> = ctx.lanes
    local rest <const> = ctx.plan.value_dim % lanes
    local list <const>, column = {}, 0
    local groups <const> = ctx.plan.attention.column_groups
    for i, group in ipairs(groups) do
        local width <const> = group.size * lanes
        local peel <const> = rest > 0 and i == #groups
        local whole <const> = peel and group.count - 1 or group.count
        if whole > 0 then
            list[#list + 1] = { count = whole, vectors = group.size, first = column,
                last_lanes = lanes }
        end
        if peel then
            list[#list + 1] = { count = 1, vectors = group.size, first = column + whole * width,
                last_lanes = rest }
        end
        column = column + group.count * width
    end
    return list
end

-- The vectors of one output row, or of `width` values of it: visit(block, column, part), part: only
-- the lanes that exist.
function exact_rows.each_vector(block, ctx, visit, width)
    width = width or ctx.plan.value_dim
    local whole <const>, rest <const> = width // ctx.lanes, width % ctx.lanes
    if whole > 0 then
        block:each("vector", whole, ctx.straight, function(body, i)
            visit(body, i * ctx.lanes, nil)
        end)
    end
    if rest > 0 then
        block:scope(function(body) visit(body, ir.index(whole * ctx.lanes), ir.index(rest)) end)
    end
end

function exact_rows.load(block, name, from, part)
    if part then return block:let("vec", name, "load_part", from, part) end
    return block:let("vec", name, "load", from)
end

function exact_rows.store(block, to, name, part)
    if part then
        block:run("store_part", to, name, part)
    else
        block:run("store", to, name)
    end
end

-- Sums that add up at a time: one would wait for its latency at every value.
local MOST_CHAINS <const> = 4

-- Name of an int: one of a tile's values is NaN. Values beyond last_lanes of the last vector do not
-- exist.
function exact_rows.find_nan(block, ctx, rows, results, vectors, last_lanes)
    local partial <const> = last_lanes < ctx.lanes
    local whole <const> = partial and vectors - 1 or vectors
    local function total(first, last, name)
        local chains <const> = math.max(1, math.min(MOST_CHAINS,
            ctx.plan.machine.registers - rows * vectors))
        local nth = 0
        for r = 0, rows - 1 do
            for v = first, last do
                local chain <const> = nth % chains == 0 and name or name .. nth % chains
                if nth < chains then
                    block:declare("vec", chain, "copy", results[r][v])
                else
                    block:set(chain, "add", chain, results[r][v])
                end
                nth = nth + 1
            end
        end
        for i = 1, math.min(chains, nth) - 1 do block:set(name, "add", name, name .. i) end
    end
    local found
    if whole > 0 then
        total(0, whole - 1, "total")
        found = block:let("int", "found", "has_nan", "total")
    end
    if partial then
        total(vectors - 1, vectors - 1, "tail")
        local tail <const> = block:let("int", "tail_found", "has_nan_part", "tail",
            ir.index(last_lanes))
        found = found and block:let("int", "any_found", "or_into", found, tail) or tail
    end
    return found
end

-- ---- A row again ---------------------------------------------------------------------------

-- A tensor of the caller ends with its last row, others in whole vectors.
local function load_value(block, ctx, key, column, part)
    exact_rows.load(block, "value", ir.offset(ctx.value_rows, key * ctx.plan.v.row + column),
        ctx.plan.v.argument and part)
end

-- Declares `sum`: one vector of the values of `keys` keys by their weights, in the order of the
-- product.
function exact_rows.sum(block, ctx, keys, column, part)
    local function add_allowed(body, first, count)
        mask.each_allowed(body, ctx, first, count, ctx.visible, function(inner, key)
            inner:let("vec", "p", "broadcast", ctx.weight(key))
            load_value(inner, ctx, key, column, part)
            inner:set("sum", "fma", "p", "value", "sum")
        end)
    end
    block:declare("vec", "sum", "zero")
    if keys <= LONGEST_SUM then
        add_allowed(block, ir.index(0), keys)
        return
    end
    block:declare("vec", "total", "zero")
    block:each("part", (keys + LONGEST_SUM - 1) // LONGEST_SUM, ctx.straight,
        function(body, i)
            body:set("sum", "zero")
            add_allowed(body, i * LONGEST_SUM, LONGEST_SUM)
            body:set("total", "add", "total", "sum")
        end)
    block:set("sum", "copy", "total")
end

-- Which rows without any key there may be, and what they give.
function exact_rows.empty_rule(ctx)
    local problem <const> = ctx.problem
    return problem.may_be_empty and problem.empty_row ~= "nan" and problem.empty_row or nil
end

-- `present` for a row with an allowed key (may be nil), `absent` for one without.
function exact_rows.by_allowed(block, ctx, present, absent)
    block:declare("int", "allowed", "none")
    mask.each_allowed(block, ctx, ir.index(0), ctx.problem.kv_len, ctx.visible,
        function(body) body:set("allowed", "one") end)
    if present then
        block:when("true_", { "allowed" }, present, absent)
    else
        block:when("false_", { "allowed" }, absent)
    end
end

-- What the rule gives a row without any key: 0, or the mean of all values.
function exact_rows.write_empty(block, ctx)
    exact_rows.each_vector(block, ctx, function(body, column, part)
        body:declare("vec", "sum", "zero")
        if ctx.problem.empty_row == "uniform" then
            body:each("key", ctx.problem.kv_len, ctx.straight, function(inner, key)
                load_value(inner, ctx, key, column, part)
                inner:set("sum", "add", "sum", "value")
            end)
            body:let("vec", "share", "splat", ir.float(1.0 / ctx.problem.kv_len))
            body:set("sum", "mul", "sum", "share")
        end
        exact_rows.store(body, ir.offset(ctx.out_row, column), "sum", part)
    end)
end

local RULES <const> = { zero = "gives 0", uniform = "averages all values", nan = "gives NaN" }

-- The function that computes one output row again.
function exact_rows.repair(ctx)
    local problem <const> = ctx.problem
    local function weighted(block)
        exact_rows.each_vector(block, ctx, function(body, column, part)
            exact_rows.sum(body, ctx, problem.kv_len, column, part)
            body:let("vec", "inverse", "broadcast", ctx.inverse_sum)
            body:let("vec", "result", "mul", "sum", "inverse")
            exact_rows.store(body, ir.offset(ctx.out_row, column), "result", part)
        end)
    end
    return ir.func("repair_row" .. ctx.suffix,
        { "One row again, from its allowed keys alone; a row without any "
            .. RULES[problem.empty_row] .. "." },
        ctx.parameters, function(block)
            if not exact_rows.empty_rule(ctx) then
                -- without a key: 0 * (1 / 0) = NaN
                weighted(block)
                return
            end
            exact_rows.by_allowed(block, ctx, weighted,
                function(body) exact_rows.write_empty(body, ctx) end)
        end)
end

-- ---- Returned weights ----------------------------------------------------------------------

-- One row of them, where the sum is 0, NaN or infinite: hidden keys stay exact zeros, an empty row
-- follows its rule. `write`: store_product, or add_product for the mean over heads.
function exact_rows.write_weights(block, ctx, to, write)
    local problem <const> = ctx.problem
    local stores <const> = write == "store_product"
    local function each_key(body, build)
        body:each("key", problem.kv_len, ctx.straight, function(inner, key)
            build(inner, ir.offset(to, key))
        end)
    end
    if stores then each_key(block, function(body, at) body:run("store_zero", at) end) end
    local has_rule <const> = problem.may_be_empty and problem.empty_row ~= "zero"
    if has_rule then block:declare("int", "allowed", "none") end
    mask.each_allowed(block, ctx, ir.index(0), problem.kv_len, ctx.visible, function(body, key)
        if has_rule then body:set("allowed", "one") end
        body:run(write, ir.offset(to, key), ctx.weight(key), ctx.inverse_sum)
    end)
    if not has_rule then return end
    block:when("false_", { "allowed" }, function(body)
        if problem.empty_row == "uniform" then
            body:let("float", "each", "constant_f32", ir.float(1.0 / problem.kv_len))
        else
            -- no key: the sum is 0, its inverse infinite, their product NaN
            body:let("float", "each", "times_zero", ctx.inverse_sum)
        end
        each_key(body, function(inner, at)
            inner:run(stores and "store_value" or "add_value", at, "each")
        end)
    end)
end

return exact_rows
