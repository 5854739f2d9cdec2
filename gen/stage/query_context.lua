-- Context of one block of queries with lanes along queries: rows[d][query] = 1/sum * sum over keys
-- of V[key][d] . p[key][query], then transposed to where the next stage reads it. Every element is
-- the same sum in the same order as with lanes along dims (stage/context): the same bits. Blocks of
-- keys add to rows[d][query]; the division comes last.
local ir <const> = require("gen.ir")
local tile <const> = require("gen.tile")
local context <const> = require("gen.stage.context")
local transpose <const> = require("gen.stage.transpose")

local query_context <const> = {}

local dim_rows <const> = ir.mem("dim_rows")

-- Keys that one of `count` queries from `first` on sees; all of the block's where it is one tile.
local function tile_depth(block, ctx, first, count)
    if not ctx.problem.causal or count == ctx.block.width then return ctx.key_end end
    return block:size("tile_end", "min", context.tile_depth(block, ctx, first, count), ctx.key_end)
end

-- `rows` dims from dim0 on for `vectors` vectors of queries from `first` on.
local function product(block, ctx, dim0, rows, first, vectors)
    local lanes <const>, width <const> = ctx.lanes, ctx.block.width
    local attention <const> = ctx.plan.attention
    local depth <const> = tile_depth(block, ctx, first, vectors * lanes)
    local known <const> = ir.constant(depth)
    local out <const> = tile.carry(function(r, v)
        return ir.offset(dim_rows, (dim0 + r) * width + first + v * lanes)
    end)
    local c <const> = tile.product(block, {
        title = ("%d values x %d queries"):format(rows, vectors * lanes),
        rows = rows, vectors = vectors, registers = ctx.plan.machine.registers,
        depth = known or depth, max_depth = attention.key_block, index = ir.index,
        unroll = ctx.straight and math.max(known, 1) or ctx.block.context_unroll,
        a = function(k, r) return ir.offset(ctx.value_rows, k * ctx.plan.v.row + dim0 + r) end,
        b = function(k, v) return ir.offset(ctx.scores, k * width + first + v * lanes) end,
        carry = out,
    })
    local in_blocks <const> = attention.in_blocks
    for v = 0, vectors - 1 do
        if not in_blocks then
            block:let("vec", "inverse" .. v, "load", ir.offset(ctx.inverse_sums,
                first + v * lanes))
        end
        for r = 0, rows - 1 do
            local n <const> = ("%d_%d"):format(r, v)
            local result <const> = in_blocks
                and block:let("vec", "o" .. n, "add", out.load(block, "t" .. n, r, v), c[r][v])
                or block:let("vec", "o" .. n, "mul", c[r][v], "inverse" .. v)
            out.store(block, result, r, v)
        end
    end
end

-- Name of an int: one of the block's values is NaN.
local function find_nan(block, ctx)
    local lanes <const>, vectors <const> = ctx.lanes, ctx.block.vectors
    for v = 0, vectors - 1 do block:declare("vec", "total" .. v, "zero") end
    block:each("d", ctx.plan.value_dim, ctx.straight, function(body, d)
        for v = 0, vectors - 1 do
            body:let("vec", "value" .. v, "load",
                ir.offset(dim_rows, d * ctx.block.width + v * lanes))
            body:set("total" .. v, "add", "total" .. v, "value" .. v)
        end
    end)
    local found
    for v = 0, vectors - 1 do
        local exist <const> = math.min(lanes, ctx.block.queries - v * lanes)
        if exist == lanes then
            block:let("int", "found" .. v, "has_nan", "total" .. v)
        else
            block:let("int", "found" .. v, "has_nan_part", "total" .. v, ir.index(exist))
        end
        found = found and block:let("int", "any_found" .. v, "or_into", found, "found" .. v)
            or "found" .. v
    end
    return found
end

-- Zeros where blocks of keys will add.
function query_context.build_open(ctx)
    return ir.func("clear_rows" .. ctx.suffix, { "Nothing summed yet." }, ctx.parameters,
        function(block)
            block:let("vec", "none", "zero")
            block:loop({ var = "vector", from = 0, to = ctx.plan.value_dim * ctx.block.vectors },
                function(body, i) body:run("store", ir.offset(dim_rows, i * ctx.lanes), "none") end)
        end)
end

-- Rows of the output, those with NaN again from their allowed keys.
function query_context.build_rows(ctx, repair)
    local queries <const> = ctx.block.queries
    local rows <const> = ir.func("store_context" .. ctx.suffix,
        { ("Rows of %d values of %d queries."):format(ctx.plan.value_dim, queries) },
        ctx.parameters, function(block)
            transpose(block, ctx, { mem = dim_rows, row = ctx.block.width },
                { mem = ctx.out_rows, row = ctx.plan.out.row }, ctx.plan.value_dim, queries)
            if not repair then return end
            block:when("true_", { find_nan(block, ctx) }, function(body)
                context.repair_rows(body, ctx, repair, ir.index(0), queries, 0)
            end)
        end)
    rows.apart = not ctx.straight -- it may go through single elements
    return rows
end

-- Returns the functions that repair rows, and the list of context functions.
function query_context.build(ctx)
    local functions <const>, block <const>, lanes <const> = {}, ctx.block, ctx.lanes
    local repair <const> = ctx.plan.attention.repair and context.repair(ctx) or nil
    local dim0 = 0
    for _, dims in ipairs(block.dim_groups) do
        local first_dim <const> = dim0
        local query0 = 0
        for _, group in ipairs(block.vector_groups) do
            local first_query <const>, width <const> = query0, group.size * lanes
            functions[#functions + 1] = ir.func(("context%s_%dx%d"):format(ctx.suffix, dims.size,
                group.size),
                { ("Weighted values %d to %d of queries from %d on, %s."):format(first_dim,
                    first_dim + dims.count * dims.size - 1, first_query,
                    ctx.plan.attention.in_blocks and "added to those of earlier keys"
                        or "divided by the sums") },
                ctx.parameters, function(body)
                    body:each("queries", group.count, ctx.straight, function(outer, q)
                        outer:each("tile", dims.count, ctx.straight, function(inner, d)
                            product(inner, ctx, d * dims.size + first_dim, dims.size,
                                q * width + first_query, group.size)
                        end)
                    end)
                end)
            query0 = query0 + group.count * width
        end
        dim0 = dim0 + dims.count * dims.size
    end
    if not ctx.plan.attention.in_blocks then
        functions[#functions + 1] = query_context.build_rows(ctx, repair)
    end
    return { repair }, functions
end

return query_context
