-- Context of one block of queries: out[query][d] = 1/sum * sum over keys of p[key][query] .
-- V[key][d],
-- written where the next stage reads it.
--
-- Hidden keys have weight exactly 0, so they vanish unless V holds NaN or infinity there; rows
-- without
-- any key have the sum 0. Both make the row NaN: such a row is computed again by `repair_row` from
-- its
-- allowed keys alone, in the same order, so a clean row never changes by a bit.
local ir <const> = require("gen.ir")
local tile <const> = require("gen.tile")
local mask <const> = require("gen.stage.mask")

local context <const> = {}

-- Column groups with the last panel apart where its last vector is only partly there:
-- list of {count, vectors, first (column), last_lanes}.
local function value_columns(ctx)
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

-- ---- The exact path ------------------------------------------------------------------------

-- One output row from its allowed keys; ctx.visible bounds the range masks.
local function repair_row(ctx)
    local problem <const>, lanes <const> = ctx.problem, ctx.lanes
    local value_row <const> = ctx.plan.v.row
    local rest <const> = ctx.plan.value_dim % lanes
    local vectors <const> = ctx.plan.attention.value_vectors
    local rules <const> = { zero = "gives 0", uniform = "averages all values", nan = "gives NaN" }
    return ir.func("repair_row" .. ctx.suffix,
        { "One row again, from its allowed keys alone; a row without any "
            .. rules[problem.empty_row] .. "." },
        ctx.parameters, function(block)
            local function store(body, column, name, part)
                if part then
                    body:run("store_part", ir.offset(ctx.out_row, column), name, ir.index(rest))
                else
                    body:run("store", ir.offset(ctx.out_row, column), name)
                end
            end
            local function each_vector(body, build)
                local whole <const> = ctx.plan.value_dim // lanes
                if whole > 0 then
                    body:each("vector", whole, ctx.straight, function(inner, i)
                        build(inner, i * lanes, false)
                    end)
                end
                if rest > 0 then
                    body:scope(function(inner) build(inner, ir.index((vectors - 1) * lanes),
                        true) end)
                end
            end
            local function add_allowed(body, first, count, column)
                mask.each_allowed(body, ctx, first, count, ctx.visible, function(inner, key)
                    inner:let("vec", "p", "broadcast",
                        ir.offset(ctx.weight_column, key * ctx.block.width))
                    inner:let("vec", "value", "load",
                        ir.offset(ctx.value_rows, key * value_row + column))
                    inner:set("sum", "fma", "p", "value", "sum")
                end)
            end
            -- in the order of the product: block by block
            local keys <const>, block_keys <const> = problem.kv_len, tile.DEPTH_BLOCK
            local function weighted(body)
                each_vector(body, function(inner, column, part)
                    inner:declare("vec", "sum", "zero")
                    if keys <= tile.LONGEST_SUM then
                        add_allowed(inner, ir.index(0), keys, column)
                    else
                        inner:declare("vec", "total", "zero")
                        inner:each("part", (keys + block_keys - 1) // block_keys, ctx.straight,
                            function(deep, i)
                                deep:set("sum", "zero")
                                add_allowed(deep, i * block_keys, block_keys, column)
                                deep:set("total", "add", "total", "sum")
                            end)
                        inner:set("sum", "copy", "total")
                    end
                    inner:let("vec", "inverse", "broadcast", ctx.inverse_sum)
                    inner:let("vec", "result", "mul", "sum", "inverse")
                    store(inner, column, "result", part)
                end)
            end
            if not problem.may_be_empty or problem.empty_row == "nan" then
                -- without a key: 0 * (1 / 0) = NaN
                weighted(block)
                return
            end
            block:declare("int", "allowed", "none")
            mask.each_allowed(block, ctx, ir.index(0), keys, ctx.visible,
                function(body) body:set("allowed", "one") end)
            block:when("true_", { "allowed" }, weighted, function(body)
                each_vector(body, function(inner, column, part)
                    inner:declare("vec", "sum", "zero")
                    if problem.empty_row == "uniform" then
                        inner:each("key", problem.kv_len, ctx.straight, function(deep, key)
                            deep:let("vec", "value", "load",
                                ir.offset(ctx.value_rows, key * value_row + column))
                            deep:set("sum", "add", "sum", "value")
                        end)
                        inner:let("vec", "share", "splat", ir.float(1.0 / problem.kv_len))
                        inner:set("sum", "mul", "sum", "share")
                    end
                    store(inner, column, "sum", part)
                end)
            end)
        end)
end

-- ---- The product ---------------------------------------------------------------------------

-- Repairs the tile's rows when one of its values is NaN.
local function check_tile(block, ctx, repair, row0, rows, results, vectors, last_lanes)
    local partial <const> = last_lanes < ctx.lanes
    local whole <const> = partial and vectors - 1 or vectors
    local found
    local function total(first, last, name)
        block:declare("vec", name, "copy", results[0][first])
        for r = 0, rows - 1 do
            for v = first, last do
                if r > 0 or v > first then block:set(name, "add", name, results[r][v]) end
            end
        end
    end
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
    block:when("true_", { found }, function(body)
        body:each("repaired", rows, ctx.straight, function(inner, r)
            local row <const> = row0 + r
            local visible <const> = mask.visible_keys(inner, ctx, ctx.query0 + row, "visible")
            inner:call(repair, {
                weight_column = ir.offset(ctx.scores, row),
                mask_column = ctx.mask_panel and ir.offset(ctx.mask_panel, row),
                inverse_sum = ir.offset(ctx.inverse_sums, row),
                out_row = ir.offset(ctx.out_rows, row * ctx.plan.out.row),
                visible = visible,
            })
        end)
    end)
end

-- Depth of the product for rows [row0, row0 + rows): keys that the last of them may see.
local function tile_depth(block, ctx, row0, rows)
    local problem <const> = ctx.problem
    if not problem.causal then return ctx.key_end end
    if ctx.plan.attention.range_loops then
        return mask.visible_keys(block, ctx, ctx.query0 + (row0 + (rows - 1)), "depth")
    end
    local causal <const>, key_end <const> = problem.causal, ir.constant(ctx.key_end)
    if causal.by_length then return ir.index(key_end) end
    local last <const> = ir.constant(ctx.query0 + row0) + rows - 1
    return ir.index(math.max(0, math.min(key_end, last + 1 + causal.positive - causal.negative)))
end

-- Returns the repair function, or nil where no row may need it, and the list of context functions.
function context.build(ctx)
    local attention <const>, lanes <const> = ctx.plan.attention, ctx.lanes
    local functions <const> = {}
    local repair
    if attention.repair then
        local exact <const> = setmetatable({
            weight_column = ir.mem("weight_column"), inverse_sum = ir.mem("inverse_sum"),
            out_row = ir.mem("out_row"), mask_column = ir.mem("mask_column"),
            visible = ir.var("visible"),
        }, { __index = ctx })
        repair = repair_row(exact)
    end
    local function product(body, row0, rows, group, column)
        local depth <const> = tile_depth(body, ctx, row0, rows)
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
            depth = known or depth, max_depth = ctx.problem.kv_len, index = ir.index,
            unroll = ctx.straight and math.max(known, 1) or attention.context_unroll,
            a = function(k, r)
                return ir.offset(ctx.scores, k * ctx.block.width + row0 + r)
            end,
            b = function(k, v)
                return ir.offset(ctx.value_rows, k * ctx.plan.v.row + column + v * lanes)
            end,
            carry = out,
        })
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
            check_tile(body, ctx, repair, row0, rows, results, group.vectors, group.last_lanes)
        end
    end
    -- one function for each tile shape
    local first = 0
    for _, group in ipairs(ctx.block.row_groups) do
        local base <const> = first
        for i, columns in ipairs(value_columns(ctx)) do
            local width <const> = columns.vectors * lanes
            functions[#functions + 1] = ir.func(("context%s_%dx%d%s"):format(ctx.suffix, group.size,
                columns.vectors, i > 1 and "_" .. i or ""),
                { ("Weighted values of queries %d to %d, %d columns from %d, divided by the sums.")
                    :format(base, base + group.count * group.size - 1, columns.count * width,
                        columns.first) },
                ctx.parameters, function(block)
                    block:each("columns", columns.count, ctx.straight, function(body, c)
                        body:each("tile", group.count, ctx.straight, function(inner, t)
                            product(inner, t * group.size + base, group.size, columns,
                                c * width + columns.first)
                        end)
                    end)
                end)
        end
        first = first + group.count * group.size
    end
    return repair, functions
end

-- Clears the output rows of padded queries (padded_queries = "zero" without an output projection).
function context.build_clear(ctx)
    local lanes <const> = ctx.lanes
    local whole <const>, rest <const> = ctx.plan.value_dim // lanes, ctx.plan.value_dim % lanes
    return ir.func("clear_padded" .. ctx.suffix, { "Zeros for queries beyond the item's length." },
        ctx.parameters, function(block)
            block:each("row", ctx.block.queries, ctx.straight, function(body, row)
                body:when("ge", { ctx.query0 + row, ctx.length }, function(inner)
                    inner:let("vec", "none", "zero")
                    local to <const> = ir.offset(ctx.out_rows, row * ctx.plan.out.row)
                    if whole > 0 then
                        inner:each("vector", whole, ctx.straight, function(deep, i)
                            deep:run("store", ir.offset(to, i * lanes), "none")
                        end)
                    end
                    if rest > 0 then
                        inner:run("store_part", ir.offset(to, whole * lanes), "none",
                            ir.index(rest))
                    end
                end)
            end)
        end)
end

return context
