-- Context of a stack of rows with lanes along v_head_dim (gen/plan/dims.lua): out[row][d] = 1/sum *
-- sum over keys of p[row][key] . V[key][d], every row of V loaded once for a tile of rows. Rows
-- that come out NaN are computed again from their allowed keys alone, as in gen/stage/context.lua.
local ir <const> = require("gen.ir")
local tile <const> = require("gen.tile")
local dims_scores <const> = require("gen.stage.dims_scores")
local dims_softmax <const> = require("gen.stage.dims_softmax")

local dims_context <const> = {}

local LINE_FLOATS <const> = 16

-- Column groups with the last panel apart where its last vector is only partly there:
-- list of {count, vectors, first (column), last_lanes}.
local function value_columns(ctx)
    local lanes <const>, rest <const> = ctx.lanes, ctx.plan.value_dim % ctx.lanes
    local list <const>, column = {}, 0
    local groups <const> = ctx.plan.attention.column_groups
    for i, group in ipairs(groups) do
        local apart <const> = rest > 0 and i == #groups and 1 or 0
        local width <const> = group.size * lanes
        if group.count > apart then
            list[#list + 1] = { count = group.count - apart, vectors = group.size, first = column,
                last_lanes = lanes }
        end
        column = column + (group.count - apart) * width
        if apart > 0 then
            list[#list + 1] = { count = 1, vectors = group.size, first = column,
                last_lanes = rest }
            column = column + width
        end
    end
    return list
end

-- Where the output of stacked row `row` (within the block) goes.
local function out_place(block, ctx, row, tag)
    local head <const>, query <const> = dims_scores.position(block, ctx, ctx.row0 + row, tag)
    return block:pointer("writable", "to" .. tag, ir.offset(ctx.out_rows,
        head * ctx.plan.out.head + query * ctx.plan.out.row))
end

local function each_vector(block, ctx, build)
    local lanes <const> = ctx.lanes
    local whole <const>, rest <const> = ctx.plan.value_dim // lanes, ctx.plan.value_dim % lanes
    if whole > 0 then
        block:each("vector", whole, ctx.straight, function(body, i) build(body, i * lanes, nil) end)
    end
    if rest > 0 then
        block:scope(function(body) build(body, ir.index(whole * lanes), ir.index(rest)) end)
    end
end

local function store(block, at, name, part)
    if part then
        block:run("store_part", at, name, part)
    else
        block:run("store", at, name)
    end
end

-- ---- The exact path ------------------------------------------------------------------------

local RULES <const> = { zero = "gives 0", uniform = "averages all values", nan = "gives NaN" }

-- One output row from its allowed keys, in the order of the product.
local function repair_row(ctx)
    local problem <const>, value_row <const> = ctx.problem, ctx.plan.v.row
    local mask_row <const> = ctx.plan.attention.mask_rows > 0 and ir.mem("mask_row") or nil
    local visible <const>, keys <const> = ir.var("visible"), problem.kv_len
    local out <const>, weights <const> = ir.mem("out_row"), ir.mem("weight_row")
    local function load_value(body, key, column, part)
        local at <const> = ir.offset(ctx.value_rows, key * value_row + column)
        if part then
            body:let("vec", "value", "load_part", at, part)
        else
            body:let("vec", "value", "load", at)
        end
    end
    local function add_allowed(body, first, count, column, part)
        dims_softmax.each_allowed(body, ctx, first, count, visible, mask_row, function(inner, key)
            inner:let("vec", "p", "broadcast", ir.offset(weights, key))
            load_value(inner, key, column, part)
            inner:set("sum", "fma", "p", "value", "sum")
        end)
    end
    local function weighted(block)
        each_vector(block, ctx, function(body, column, part)
            body:declare("vec", "sum", "zero")
            if keys <= tile.LONGEST_SUM then
                add_allowed(body, ir.index(0), keys, column, part)
            else
                body:declare("vec", "total", "zero")
                body:each("part", (keys + tile.DEPTH_BLOCK - 1) // tile.DEPTH_BLOCK, ctx.straight,
                    function(inner, i)
                        inner:set("sum", "zero")
                        add_allowed(inner, i * tile.DEPTH_BLOCK, tile.DEPTH_BLOCK, column, part)
                        inner:set("total", "add", "total", "sum")
                    end)
                body:set("sum", "copy", "total")
            end
            body:let("vec", "inverse", "broadcast", ir.mem("inverse_sum"))
            body:let("vec", "result", "mul", "sum", "inverse")
            store(body, ir.offset(out, column), "result", part)
        end)
    end
    local function empty(block)
        each_vector(block, ctx, function(body, column, part)
            body:declare("vec", "sum", "zero")
            if problem.empty_row == "uniform" then
                body:each("key", keys, ctx.straight, function(inner, key)
                    load_value(inner, key, column, part)
                    inner:set("sum", "add", "sum", "value")
                end)
                body:let("vec", "share", "splat", ir.float(1.0 / keys))
                body:set("sum", "mul", "sum", "share")
            end
            store(body, ir.offset(out, column), "sum", part)
        end)
    end
    return ir.func("repair_row" .. ctx.suffix,
        { "One row again, from its allowed keys alone; a row without any "
            .. RULES[problem.empty_row] .. "." },
        ctx.parameters, function(block)
            if not problem.may_be_empty or problem.empty_row == "nan" then
                weighted(block) -- without a key: 0 * (1 / 0) = NaN
                return
            end
            block:declare("int", "allowed", "none")
            dims_softmax.each_allowed(block, ctx, ir.index(0), keys, visible, mask_row,
                function(body) body:set("allowed", "one") end)
            block:when("true_", { "allowed" }, weighted, empty)
        end)
end

-- Repairs the tile's rows when one of its values is NaN.
local function check_tile(block, ctx, repair, row0, rows, results, group)
    local partial <const> = group.last_lanes < ctx.lanes
    local found
    local function test(first, last, name, op, ...)
        block:declare("vec", name, "copy", results[0][first])
        for r = 0, rows - 1 do
            for v = first, last do
                if r > 0 or v > first then block:set(name, "add", name, results[r][v]) end
            end
        end
        local one <const> = block:let("int", name .. "_nan", op, name, ...)
        found = found and block:let("int", "any_nan", "or_into", found, one) or one
    end
    local whole <const> = group.vectors - (partial and 1 or 0)
    if whole > 0 then test(0, whole - 1, "total", "has_nan") end
    if partial then
        test(whole, whole, "tail", "has_nan_part", ir.index(group.last_lanes))
    end
    block:when("true_", { found }, function(body)
        body:each("repaired", rows, ctx.straight, function(inner, r)
            local row <const> = row0 + r
            inner:call(repair, {
                weight_row = ir.offset(ctx.scores, row * ctx.plan.attention.row_floats),
                mask_row = dims_scores.mask_row(ctx, row),
                inverse_sum = ir.offset(ctx.inverse_sums, row),
                out_row = out_place(inner, ctx, row, "_repaired"),
                visible = dims_scores.visible(inner, ctx, ctx.row0 + row, "_repaired"),
            })
        end)
    end)
end

-- ---- The product ---------------------------------------------------------------------------

-- Rows [row0, row0 + rows) of the block times the columns of one panel from `column` on.
local function product(block, ctx, repair, row0, rows, group, column)
    local planned <const>, lanes <const> = ctx.plan.attention, ctx.lanes
    local known <const> = ir.constant(ctx.key_end)
    local function part(v)
        local is_last <const> = v == group.vectors - 1 and group.last_lanes < lanes
        return is_last and ir.index(group.last_lanes) or nil
    end
    local places <const> = {}
    for r = 0, rows - 1 do places[r] = out_place(block, ctx, row0 + r, tostring(r)) end
    local out <const> = tile.carry(function(r, v)
        return ir.offset(places[r], column + v * lanes)
    end, part)
    local weights <const> = block:pointer("pointer", "weights_of_rows",
        ir.offset(ctx.scores, row0 * planned.row_floats))
    local values <const> = block:pointer("pointer", "columns_of_values",
        ir.offset(ctx.value_rows, column))
    local c <const> = tile.product(block, {
        title = ("%d rows x %d values"):format(rows, group.vectors * lanes),
        rows = rows, vectors = group.vectors, registers = ctx.plan.machine.registers,
        depth = known or ctx.key_end, max_depth = ctx.problem.kv_len, index = ir.index,
        unroll = ctx.straight and math.max(known, 1) or planned.context_unroll,
        a = function(k, r) return ir.offset(weights, k + r * planned.row_floats) end,
        b = function(k, v) return ir.offset(values, k * ctx.plan.v.row + v * lanes) end,
        -- a tensor of the caller ends with its last row
        b_lanes = ctx.plan.v.argument and part or nil,
        carry = out,
        -- the first panel brings whole rows for those behind it
        ahead = planned.value_ahead and ir.constant(column) == 0 and function(k)
            local lines <const> = {}
            for at = 0, ctx.plan.value_dim - 1, LINE_FLOATS do
                lines[#lines + 1] = ir.offset(values, (k + planned.value_ahead) * ctx.plan.v.row
                    + at)
            end
            return lines
        end or nil,
    })
    local results <const> = {}
    for r = 0, rows - 1 do
        results[r] = {}
        block:let("vec", "inverse" .. r, "broadcast", ir.offset(ctx.inverse_sums, row0 + r))
        for v = 0, group.vectors - 1 do
            results[r][v] = block:let("vec", ("o%d_%d"):format(r, v), "mul", c[r][v], "inverse"
                .. r)
            out.store(block, results[r][v], r, v)
        end
    end
    if repair then check_tile(block, ctx, repair, row0, rows, results, group) end
end

-- The repair function, or nil where no row may need it, and the list of context functions.
function dims_context.build(ctx)
    local repair <const> = ctx.plan.attention.repair and repair_row(ctx) or nil
    local functions <const>, first = {}, 0
    for _, group in ipairs(ctx.block.row_groups) do
        local base <const>, size <const> = first, group.size
        for i, columns in ipairs(value_columns(ctx)) do
            local width <const> = columns.vectors * ctx.lanes
            functions[#functions + 1] = ir.func(("context%s_%dx%d%s"):format(ctx.suffix, size,
                columns.vectors, i > 1 and "_" .. i or ""),
                { ("Weighted values of rows %d to %d, %d columns from %d, divided by the sums."):
                    format(base, base + group.count * size - 1, columns.count * width,
                        columns.first) },
                ctx.parameters, function(block)
                    block:each("columns", columns.count, ctx.straight, function(body, c)
                        body:each("tile", group.count, ctx.straight, function(inner, t)
                            product(inner, ctx, repair, t * size + base, size, columns,
                                c * width + columns.first)
                        end)
                    end)
                end)
        end
        first = first + group.count * size
    end
    return repair, functions
end

-- Clears the output rows of padded queries (padded_queries = "zero" without an output projection).
function dims_context.build_clear(ctx)
    return ir.func("clear_padded" .. ctx.suffix, { "Zeros for queries beyond the item's length." },
        ctx.parameters, function(block)
            dims_scores.each_row(block, ctx, function(body, row)
                local _, query <const> = dims_scores.position(body, ctx, ctx.row0 + row, "")
                local to <const> = out_place(body, ctx, row, "_cleared")
                body:when("ge", { query, ctx.length }, function(inner)
                    inner:let("vec", "none", "zero")
                    each_vector(inner, ctx, function(deep, column, part)
                        store(deep, ir.offset(to, column), "none", part)
                    end)
                end)
            end)
        end)
end

return dims_context
