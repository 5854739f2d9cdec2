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

-- Which rows without any key there may be, and what they give.
local function empty_row_rule(ctx)
    local problem <const> = ctx.problem
    return problem.may_be_empty and problem.empty_row ~= "nan" and problem.empty_row or nil
end

-- The rule's value in one vector of an empty row: 0, or the mean of all values.
local function empty_value(block, ctx, column)
    block:declare("vec", "sum", "zero")
    if ctx.problem.empty_row ~= "uniform" then return end
    block:each("key", ctx.problem.kv_len, ctx.straight, function(body, key)
        body:let("vec", "value", "load", ir.offset(ctx.value_rows, key * ctx.plan.v.row + column))
        body:set("sum", "add", "sum", "value")
    end)
    block:let("vec", "share", "splat", ir.float(1.0 / ctx.problem.kv_len))
    block:set("sum", "mul", "sum", "share")
end

-- The vectors of one output row, or of `width` values of it: visit(block, column, part), part: only
-- the lanes that exist.
local function each_vector(block, ctx, visit, width)
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

local function load_out(block, name, from, part)
    if part then return block:let("vec", name, "load_part", from, part) end
    return block:let("vec", name, "load", from)
end

local function store_out(block, to, name, part)
    if part then
        block:run("store_part", to, name, part)
    else
        block:run("store", to, name)
    end
end

-- `present` for a row with an allowed key, `absent` for one without; ctx.visible bounds the range
-- masks.
local function by_allowed(block, ctx, present, absent)
    block:declare("int", "allowed", "none")
    mask.each_allowed(block, ctx, ir.index(0), ctx.problem.kv_len, ctx.visible,
        function(body) body:set("allowed", "one") end)
    if present then
        block:when("true_", { "allowed" }, present, absent)
    else
        block:when("false_", { "allowed" }, absent)
    end
end

-- One output row from its allowed keys; ctx.visible bounds the range masks. Where rows are done in
-- several blocks of keys: the block's share of `width` values of it, added to what is there.
local function repair_row(ctx, width, suffix)
    local problem <const>, value_row <const> = ctx.problem, ctx.plan.v.row
    local in_blocks <const> = ctx.plan.attention.in_blocks
    local rules <const> = { zero = "gives 0", uniform = "averages all values", nan = "gives NaN" }
    local keys <const> = in_blocks and ctx.plan.attention.key_block or problem.kv_len
    return ir.func("repair_row" .. ctx.suffix .. suffix,
        { in_blocks and ("This block's share of %d values of a row again, from its allowed keys "
            .. "alone."):format(width)
            or "One row again, from its allowed keys alone; a row without any "
            .. rules[problem.empty_row] .. "." },
        ctx.parameters, function(block)
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
            local function weighted(body)
                each_vector(body, ctx, function(inner, column, part)
                    local to <const> = ir.offset(ctx.out_row, column)
                    inner:declare("vec", "sum", "zero")
                    if keys <= tile.LONGEST_SUM then
                        add_allowed(inner, ir.index(0), keys, column)
                    else
                        inner:declare("vec", "total", "zero")
                        inner:each("part", (keys + tile.DEPTH_BLOCK - 1) // tile.DEPTH_BLOCK,
                            ctx.straight, function(deep, i)
                                deep:set("sum", "zero")
                                add_allowed(deep, i * tile.DEPTH_BLOCK, tile.DEPTH_BLOCK, column)
                                deep:set("total", "add", "total", "sum")
                            end)
                        inner:set("sum", "copy", "total")
                    end
                    if in_blocks then
                        load_out(inner, "before", to, part)
                        inner:let("vec", "result", "add", "before", "sum")
                    else
                        inner:let("vec", "inverse", "broadcast", ctx.inverse_sum)
                        inner:let("vec", "result", "mul", "sum", "inverse")
                    end
                    store_out(inner, to, "result", part)
                end, width)
            end
            if in_blocks or not empty_row_rule(ctx) then
                -- without a key: 0 * (1 / 0) = NaN
                weighted(block)
                return
            end
            by_allowed(block, ctx, weighted, function(body)
                each_vector(body, ctx, function(inner, column, part)
                    empty_value(inner, ctx, column)
                    store_out(inner, ir.offset(ctx.out_row, column), "sum", part)
                end)
            end)
        end)
end

-- ---- The product ---------------------------------------------------------------------------

-- Name of an int: one of the tile's values is NaN. Values beyond last_lanes of the last vector do
-- not exist.
local function find_nan(block, ctx, rows, results, vectors, last_lanes)
    local partial <const> = last_lanes < ctx.lanes
    local whole <const> = partial and vectors - 1 or vectors
    local function total(first, last, name)
        block:declare("vec", name, "copy", results[0][first])
        for r = 0, rows - 1 do
            for v = first, last do
                if r > 0 or v > first then block:set(name, "add", name, results[r][v]) end
            end
        end
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

local function repair_tile(block, ctx, repair, row0, rows, column)
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
local function tile_depth(block, ctx, row0, rows)
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
    local exact <const> = setmetatable({
        weight_column = ir.mem("weight_column"), inverse_sum = ir.mem("inverse_sum"),
        out_row = ir.mem("out_row"), mask_column = ir.mem("mask_column"),
        visible = ir.var("visible"),
    }, { __index = ctx })
    local panels <const> = value_columns(ctx)
    for i, group in ipairs(panels) do
        if attention.repair and (in_blocks or i == 1) then
            repairs[i] = repair_row(exact, in_blocks and (group.vectors - 1) * lanes
                + group.last_lanes or nil, i > 1 and "_" .. i or "")
        end
    end
    local function product(body, row0, rows, group, column, repair)
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
            return find_nan(body, ctx, rows, results, group.vectors, group.last_lanes)
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
                    repair_tile(inner, ctx, repair, row0, rows, column)
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
                repair_tile(inner, ctx, repair, row0, rows, 0)
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
                each_vector(body, ctx, function(inner, column, part)
                    store_out(inner, ir.offset(ctx.out_rows, row * ctx.plan.out.row + column),
                        "none", part)
                end)
            end)
        end)
end

-- Divides by the sums; rows without any key, 0 * (1 / 0) by then, get what the config says.
function context.build_close(ctx)
    local rule <const> = empty_row_rule(ctx)
    return ir.func("divide_rows" .. ctx.suffix, { "Weighted values divided by the sums." },
        ctx.parameters, function(block)
            block:each("row", ctx.block.queries, false, function(body, row)
                local out <const> = ir.offset(ctx.out_rows, row * ctx.plan.out.row)
                body:let("vec", "inverse", "broadcast", ir.offset(ctx.inverse_sums, row))
                if rule then body:declare("int", "found", "none") end
                each_vector(body, ctx, function(inner, column, part)
                    local value <const> = load_out(inner, "value", ir.offset(out, column), part)
                    inner:let("vec", "result", "mul", value, "inverse")
                    store_out(inner, ir.offset(out, column), "result", part)
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
                    }, { __index = ctx })
                    by_allowed(inner, exact, nil, function(deep)
                        each_vector(deep, ctx, function(deepest, column, part)
                            empty_value(deepest, ctx, column)
                            store_out(deepest, ir.offset(out, column), "sum", part)
                        end)
                    end)
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
                    each_vector(inner, ctx, function(deep, column, part)
                        store_out(deep, ir.offset(ctx.out_rows, row * ctx.plan.out.row + column),
                            "none", part)
                    end)
                end)
            end)
        end)
end

return context
