-- Context of one block of queries: out[query][d] = 1/sum * sum over keys of p[key][query] .
-- V[key][d], written where the next stage reads it. Rows that come out NaN are computed again
-- (gen/stage/exact_rows.lua).
local ir <const> = require("gen.ir")
local tile <const> = require("gen.tile")
local mask <const> = require("gen.stage.mask")
local exact_rows <const> = require("gen.stage.exact_rows")

local context <const> = {}

-- This block of keys' share of `width` values of a row, added to what is there.
local function repair_share(ctx, width, suffix)
    return ir.func("repair_row" .. ctx.suffix .. suffix,
        { ("This block's share of %d values of a row again, from its allowed keys alone.")
            :format(width) },
        ctx.parameters, function(block)
            exact_rows.each_vector(block, ctx, function(body, column, part)
                local to <const> = ir.offset(ctx.out_row, column)
                exact_rows.sum(body, ctx, ctx.plan.attention.key_block, column, part)
                exact_rows.load(body, "before", to, part)
                body:let("vec", "result", "add", "before", "sum")
                exact_rows.store(body, to, "result", part)
            end, width)
        end)
end

-- The ctx of one row that is computed again.
local function row_ctx(ctx)
    return setmetatable({
        inverse_sum = ir.mem("inverse_sum"), out_row = ir.mem("out_row"),
        mask_column = ir.mem("mask_column"), visible = ir.var("visible"),
        weight = function(key)
            return ir.offset(ir.mem("weight_column"), key * ctx.block.width)
        end,
    }, { __index = ctx })
end

-- The function that repairs a whole row.
function context.repair(ctx) return exact_rows.repair(row_ctx(ctx)) end

-- Calls `repair` for the values from `column` on of `rows` rows from row0 on.
function context.repair_rows(block, ctx, repair, row0, rows, column)
    block:each("repaired", rows, ctx.straight, function(inner, r)
        local row <const> = row0 + r
        inner:call(repair, {
            weight_column = ir.offset(ctx.scores, row),
            mask_column = ctx.mask_panel and ir.offset(ctx.mask_panel, row),
            inverse_sum = ir.offset(ctx.inverse_sums, row),
            out_row = ir.offset(ctx.out_rows, row * ctx.plan.out.row + column),
            value_rows = ir.offset(ctx.value_rows, column),
            visible = mask.visible_in_block(inner, ctx, ctx.query0 + row, "visible"),
        })
    end)
end

-- Depth of the product for rows [row0, row0 + rows): keys that the last of them may see.
function context.tile_depth(block, ctx, row0, rows)
    local problem <const> = ctx.problem
    if not problem.causal then return ctx.key_end end
    if ctx.plan.attention.range_loops then
        return mask.visible_in_block(block, ctx, ctx.query0 + (row0 + (rows - 1)), "depth")
    end
    local causal <const>, key_end <const> = problem.causal, ir.constant(ctx.key_end)
    if causal.by_length then return ir.index(key_end) end
    local last <const> = ir.constant(ctx.query0 + row0) + rows - 1
    return ir.index(math.max(0, math.min(key_end, last + 1 + causal.positive - causal.negative)))
end

-- Returns the functions that repair rows (none where no row may need it), and the list of context
-- functions. A whole row is repaired at once, and need not be twice; blocks of keys add to a row,
-- so there a repair is for the columns of one tile.
function context.build(ctx)
    local attention <const>, lanes <const> = ctx.plan.attention, ctx.lanes
    local functions <const>, repairs <const> = {}, {}
    local in_blocks <const> = attention.in_blocks
    local panels <const> = exact_rows.columns(ctx)
    if attention.repair and not in_blocks then
        repairs[1] = context.repair(ctx)
    elseif attention.repair then
        for i, group in ipairs(panels) do
            repairs[i] = repair_share(row_ctx(ctx), (group.vectors - 1) * lanes + group.last_lanes,
                i > 1 and "_" .. i or "")
        end
    end
    local function product(body, row0, rows, group, column, repair)
        local depth <const> = context.tile_depth(body, ctx, row0, rows)
        local known <const> = ir.constant(depth)
        local function lanes_of(v)
            local partial <const> = v == group.vectors - 1 and group.last_lanes < lanes
            return partial and ir.index(group.last_lanes) or nil
        end
        local out <const> = tile.carry(function(r, v)
            return ir.offset(ctx.out_rows, (row0 + r) * ctx.plan.out.row + column + v * lanes)
        end, lanes_of)
        local c <const> = tile.product(body, {
            title = ("%d queries x %d values"):format(rows, group.vectors * lanes),
            rows = rows, vectors = group.vectors, registers = ctx.plan.machine.registers,
            depth = known or depth,
            max_depth = in_blocks and attention.key_block or ctx.problem.kv_len, index = ir.index,
            unroll = ctx.straight and math.max(known, 1) or attention.context_unroll,
            a = function(k, r)
                return ir.offset(ctx.scores, k * ctx.block.width + row0 + r)
            end,
            b = function(k, v)
                return ir.offset(ctx.value_rows, k * ctx.plan.v.row + column + v * lanes)
            end,
            carry = out,
        })
        local function found(results)
            return exact_rows.find_nan(body, ctx, rows, results, group.vectors,
                group.last_lanes)
        end
        if in_blocks then
            local function add(inner)
                for r = 0, rows - 1 do
                    for v = 0, group.vectors - 1 do
                        local n <const> = ("%d_%d"):format(r, v)
                        local before <const> = out.load(inner, "t" .. n, r, v)
                        out.store(inner, inner:let("vec", "o" .. n, "add", before, c[r][v]), r, v)
                    end
                end
            end
            if not repair then
                add(body)
            else
                body:when("true_", { found(c) }, function(inner)
                    context.repair_rows(inner, ctx, repair, row0, rows, column)
                end, add)
            end
            return
        end
        local results <const> = {}
        for r = 0, rows - 1 do
            results[r] = {}
            body:let("vec", "inverse" .. r, "broadcast", ir.offset(ctx.inverse_sums, row0 + r))
            for v = 0, group.vectors - 1 do
                results[r][v] = body:let("vec", ("o%d_%d"):format(r, v), "mul", c[r][v],
                    "inverse" .. r)
                out.store(body, results[r][v], r, v)
            end
        end
        if repair then
            body:when("true_", { found(results) }, function(inner)
                context.repair_rows(inner, ctx, repair, row0, rows, 0)
            end)
        end
    end
    -- one function for each tile shape
    local first = 0
    for _, group in ipairs(ctx.block.row_groups) do
        local base <const> = first
        for i, columns in ipairs(panels) do
            local width <const> = columns.vectors * lanes
            functions[#functions + 1] = ir.func(("context%s_%dx%d%s"):format(ctx.suffix, group.size,
                columns.vectors, i > 1 and "_" .. i or ""),
                { ("Weighted values of queries %d to %d, %d columns from %d, %s."):format(base,
                    base + group.count * group.size - 1, columns.count * width, columns.first,
                    attention.in_blocks and "added to those of earlier keys"
                        or "divided by the sums") },
                ctx.parameters, function(block)
                    block:each("columns", columns.count, ctx.straight, function(body, c)
                        body:each("tile", group.count, ctx.straight, function(inner, t)
                            product(inner, t * group.size + base, group.size, columns,
                                c * width + columns.first,
                                repairs[in_blocks and i or 1])
                        end)
                    end)
                end)
        end
        first = first + group.count * group.size
    end
    return repairs, functions
end

-- ---- Rows done in several blocks of keys ---------------------------------------------------

-- Zeros where the blocks will add.
function context.build_open(ctx)
    return ir.func("clear_rows" .. ctx.suffix, { "Nothing summed yet." }, ctx.parameters,
        function(block)
            block:let("vec", "none", "zero")
            block:each("row", ctx.block.queries, false, function(body, row)
                exact_rows.each_vector(body, ctx, function(inner, column, part)
                    exact_rows.store(inner,
                        ir.offset(ctx.out_rows, row * ctx.plan.out.row + column), "none", part)
                end)
            end)
        end)
end

-- Divides by the sums; rows without any key, 0 * (1 / 0) by then, get what the config says.
function context.build_close(ctx)
    local rule <const> = exact_rows.empty_rule(ctx)
    return ir.func("divide_rows" .. ctx.suffix, { "Weighted values divided by the sums." },
        ctx.parameters, function(block)
            block:each("row", ctx.block.queries, false, function(body, row)
                local out <const> = ir.offset(ctx.out_rows, row * ctx.plan.out.row)
                body:let("vec", "inverse", "broadcast", ir.offset(ctx.inverse_sums, row))
                if rule then body:declare("int", "found", "none") end
                exact_rows.each_vector(body, ctx, function(inner, column, part)
                    local to <const> = ir.offset(out, column)
                    exact_rows.load(inner, "value", to, part)
                    inner:let("vec", "result", "mul", "value", "inverse")
                    exact_rows.store(inner, to, "result", part)
                    if not rule then return end
                    if part then
                        inner:let("int", "is_nan", "has_nan_part", "result", part)
                    else
                        inner:let("int", "is_nan", "has_nan", "result")
                    end
                    inner:set("found", "or_into", "found", "is_nan")
                end)
                if not rule then return end
                body:when("true_", { "found" }, function(inner)
                    local exact <const> = setmetatable({
                        visible = mask.visible_keys(inner, ctx, ctx.query0 + row, "visible"),
                        mask_column = ctx.mask_panel and ir.offset(ctx.mask_panel, row),
                        out_row = out,
                    }, { __index = ctx })
                    exact_rows.by_allowed(inner, exact, nil,
                        function(deep) exact_rows.write_empty(deep, exact) end)
                end)
            end)
        end)
end

-- Clears the output rows of padded queries (padded_queries = "zero" without an output projection).
function context.build_clear(ctx)
    return ir.func("clear_padded" .. ctx.suffix, { "Zeros for queries beyond the item's length." },
        ctx.parameters, function(block)
            block:each("row", ctx.block.queries, ctx.straight, function(body, row)
                body:when("ge", { ctx.query0 + row, ctx.length }, function(inner)
                    inner:let("vec", "none", "zero")
                    exact_rows.each_vector(inner, ctx, function(deep, column, part)
                        exact_rows.store(deep,
                            ir.offset(ctx.out_rows, row * ctx.plan.out.row + column), "none", part)
                    end)
                end)
            end)
        end)
end

return context
