-- What score tiles ask for while they work. Where L2 does not hold it: the keys and values of the
-- next block of keys (behind the last one the next head's begin) and the rows of queries and output
-- of the next blocks of queries; of whole rows of several heads what has the same place in the next
-- head, as blocks of queries may take turns from both ends (a causal block walks fewer keys and so
-- asks for less). Elsewhere the next tile's keys and this one's values: another core may have
-- projected them.
local ir <const> = require("gen.ir")
local numbers <const> = require("gen.plan.numbers")

local fetch <const> = {}

local ceil_div <const>, LINE_FLOATS <const> = numbers.ceil_div, numbers.LINE_FLOATS

-- Rows that the keys of a block ask for together: `count` of `width` floats, layout.row apart.
local function area(ctx, name, mem, distance, count, layout, width)
    return { name = name, from = ir.offset(mem, distance), apart = layout.row, width = width,
        floats_a_key = ceil_div(count * width, ctx.plan.attention.key_block) }
end

-- Keys or values: a block of them, or this block's share of the next head's.
local function keys(ctx, name, mem, layout, width)
    local shape <const>, problem <const> = ctx.plan.attention, ctx.problem
    if shape.in_blocks then
        return area(ctx, name, mem, shape.key_block * layout.row, shape.key_block, layout, width)
    end
    local each <const> = ceil_div(problem.kv_len, problem.seq_len)
    return area(ctx, name, mem, ctx.query0 * (each * layout.row) + layout.head,
        ctx.block.width * each, layout, width)
end

-- Rows of queries or of the output.
local function queries(ctx, name, mem, layout, width)
    local block <const> = ctx.block
    local next_head <const> = not ctx.plan.attention.in_blocks and ctx.problem.heads > 1
    local distance <const> = next_head and layout.head
        or block.together * block.width * layout.row
    return area(ctx, name, mem, distance, block.width, layout, width)
end

-- Memory of an area at float `at` of its rows put together; `taken` counts names of the tile.
local function place(block, one, at, taken)
    if one.apart == one.width then return ir.offset(one.from, at) end
    local row <const> = block:size(("%s%d"):format(one.name, #taken), "quotient", at,
        ir.index(one.width))
    taken[#taken + 1] = one.name
    return ir.offset(one.from, at + row * (one.apart - one.width))
end

local function blocks_ahead(ctx)
    local plan <const>, problem <const> = ctx.plan, ctx.problem
    local list <const> = {}
    local function add(name, mem, layout, width)
        -- the only head's whole rows have none behind them
        local next_rows <const> = plan.attention.in_blocks
            or layout.head > 0 and problem.batch * problem.kv_heads > 1
        if next_rows then list[#list + 1] = keys(ctx, name, mem, layout, width) end
    end
    add("next_key", ctx.key_rows, plan.k, plan.score_dim)
    add("next_value", ctx.value_rows, plan.v, plan.value_dim)
    list[#list + 1] = queries(ctx, "next_query", ctx.query_rows, plan.q, plan.score_dim)
    local out <const> = queries(ctx, "next_out", ctx.out_rows, plan.out, plan.value_dim)
    out.written = true
    list[#list + 1] = out
    return list
end

local function tiles_ahead(ctx, rows)
    local plan <const>, count <const> = ctx.plan, ctx.plan.attention.key_block
    return {
        area(ctx, "next_key", ctx.key_rows, rows * plan.k.row, count, plan.k, plan.score_dim),
        area(ctx, "own_value", ctx.value_rows, 0, count, plan.v, plan.value_dim),
    }
end

-- What a tile of `rows` keys from key0 on asks for: inside(block, k) in a turn of its product (nil:
-- nothing), beside(block, r) the rest with the weights of key r. There is room for few lines there:
-- many would wait for each other.
function fetch.build(ctx, key0, rows)
    local plan <const> = ctx.plan
    local depth <const>, unroll <const> = plan.score_dim, plan.attention.scores_unroll
    local inner <const>, outer <const>, taken <const> = {}, {}, {}
    local near <const> = plan.attention.prefetch == "tiles"
    for _, one in ipairs(near and tiles_ahead(ctx, rows) or blocks_ahead(ctx)) do
        one.lines = ceil_div(rows * one.floats_a_key, LINE_FLOATS)
        local list <const> = one.lines > rows and inner or outer
        list[#list + 1] = one
    end
    local function ask(block, one, at)
        block:run(one.written and "prefetch_write" or "prefetch", place(block, one, at, taken))
    end
    local function inside(block, k)
        for _, one in ipairs(inner) do
            local a_step <const> = ceil_div(rows * one.floats_a_key, depth)
            for i = 0, ceil_div(a_step * unroll, LINE_FLOATS) - 1 do
                ask(block, one, key0 * one.floats_a_key + k * a_step + i * LINE_FLOATS)
            end
        end
    end
    local function beside(block, r)
        for _, one in ipairs(outer) do
            for i = r * one.lines // rows, (r + 1) * one.lines // rows - 1 do
                ask(block, one, key0 * one.floats_a_key + i * LINE_FLOATS)
            end
        end
    end
    return #inner > 0 and inside or nil, beside
end

return fetch
