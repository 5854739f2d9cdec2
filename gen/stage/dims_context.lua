-- Context of a stack of rows with lanes along v_head_dim (gen/plan/dims.lua): out[row][d] = 1/sum *
-- sum over keys of p[row][key] . V[key][d], every row of V loaded once for a tile of rows. Rows
-- that come out NaN are computed again (gen/stage/exact_rows.lua).
local ir <const> = require("gen.ir")
local tile <const> = require("gen.tile")
local dims_scores <const> = require("gen.stage.dims_scores")
local exact_rows <const> = require("gen.stage.exact_rows")

local dims_context <const> = {}

-- Where the output of stacked row `row` (within the block) goes.
local function out_place(block, ctx, row, tag)
    local head <const>, query <const> = dims_scores.position(block, ctx, ctx.row0 + row, tag)
    return block:pointer("writable", "to" .. tag, ir.offset(ctx.out_rows,
        head * ctx.plan.out.head + query * ctx.plan.out.row))
end

-- Repairs the tile's rows when one of its values is NaN.
local function check_tile(block, ctx, repair, row0, rows, results, group)
    local found <const> = exact_rows.find_nan(block, ctx, rows, results, group.vectors,
        group.last_lanes)
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
        ahead = planned.value_ahead and ir.constant(column) == 0 and { row = ctx.plan.v.row,
            line = function(k)
                return ir.offset(values, (k + planned.value_ahead) * ctx.plan.v.row)
            end } or nil,
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
    local exact <const> = setmetatable({
        inverse_sum = ir.mem("inverse_sum"), out_row = ir.mem("out_row"),
        mask_row = ctx.plan.attention.mask_rows > 0 and ir.mem("mask_row") or nil,
        visible = ir.var("visible"),
        weight = function(key) return ir.offset(ir.mem("weight_row"), key) end,
    }, { __index = ctx })
    local repair <const> = ctx.plan.attention.repair and exact_rows.repair(exact) or nil
    local functions <const>, first = {}, 0
    for _, group in ipairs(ctx.block.row_groups) do
        local base <const>, size <const> = first, group.size
        for i, columns in ipairs(exact_rows.columns(ctx)) do
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
                    exact_rows.each_vector(inner, ctx, function(deep, column, part)
                        exact_rows.store(deep, ir.offset(to, column), "none", part)
                    end)
                end)
            end)
        end)
end

return dims_context
