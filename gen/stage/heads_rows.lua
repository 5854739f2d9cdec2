-- Rows of q, k and v as attention with lanes along heads reads them: as they are projected or,
-- where two items share vectors, put together from both, [row][dim][item][head]. Knows where rows
-- lie, not what they are for.
local heads_plan <const> = require("gen.plan.heads")
local ir <const> = require("gen.ir")

local heads_rows <const> = {}

-- Where a block finds the `count` rows of the tensor `name` ("query", "key", "value") of `layout`,
-- `width` dims a head: sets ctx[name_rows], returns {row, dim} in floats.
function heads_rows.read(ctx, name, layout, count, width)
    local plan <const> = ctx.plan
    if plan.attention.items == 1 then
        ctx[name .. "_rows"] = ir.mem(name .. "_rows")
        return { row = layout.row, dim = layout.dim }
    end
    ctx[name .. "_rows"] = ir.mem(name .. "_pairs")
    return { row = heads_plan.pair_row(plan.problem, width, ctx.lanes),
        dim = plan.attention.group, count = count, from = layout }
end

-- The function that puts `rows` (of heads_rows.read) of two items together.
local function pair_function(ctx, name, rows)
    local from <const>, to <const> = ir.mem(name .. "_rows"), ir.mem(name .. "_pairs")
    local group <const> = ir.index(ctx.plan.problem.heads)
    return ir.func(("pair_%s_rows"):format(name),
        { ("%d rows of two items as rows of both: [dim][item][head]."):format(rows.count) },
        ctx.parameters, function(block)
            block:each("row", rows.count, ctx.straight, function(body, row)
                for at = 0, rows.row // 2 - 1, ctx.lanes do
                    local source <const> = ir.offset(from, row * rows.from.row + at)
                    local target <const> = ir.offset(to, row * rows.row + 2 * at)
                    body:let("vec", "first" .. at, "load", source)
                    body:let("vec", "second" .. at, "load", ir.offset(source, rows.from.batch))
                    body:let("vec", "low" .. at, "zip_low", "first" .. at, "second" .. at, group)
                    body:run("store", target, "low" .. at)
                    body:let("vec", "high" .. at, "zip_high", "first" .. at, "second" .. at,
                        group)
                    body:run("store", ir.offset(target, ctx.lanes), "high" .. at)
                end
            end)
        end)
end

-- Appends to `body` what puts the rows of two items together, where they share vectors.
function heads_rows.pair(phase, body, ctx, name, rows)
    if ctx.plan.attention.items == 1 then return end
    body:call(phase:add(pair_function(ctx, name, rows)))
    -- queries are read as the whole vectors that registers still hold, keys and values in parts
    if name ~= "query" then
        local pairs_name <const> = name .. "_pairs"
        body:set(pairs_name, "from_memory", ir.mem(pairs_name))
    end
end

return heads_rows
