-- What score tiles ask for: every line of the rows that the next blocks read and write.

package.path = "./?.lua;./?/init.lua;" .. package.path
local lu <const> = require("luaunit")

local fetch <const> = require("gen.stage.fetch")
local ir <const> = require("gen.ir")

TestFetch = {}

local LINE <const> = 16

-- Set of the lines that all tiles of a block of queries ask for, by the names of their rows.
local function lines_asked(ctx, rows)
    local asked <const> = {}
    local function note(mem)
        asked[mem.base] = asked[mem.base] or {}
        asked[mem.base][ir.constant(mem.index) // LINE] = true
    end
    local shape <const>, block <const> = ctx.plan.attention, ir.block()
    for key0 = 0, shape.key_block - 1, rows do
        local here <const> = math.min(rows, shape.key_block - key0)
        local inside <const>, beside <const> = fetch.build(ctx, ir.index(key0), here)
        for k = 0, ctx.plan.score_dim - 1, shape.scores_unroll do
            if inside then inside(block, ir.index(k)) end
        end
        for r = 0, here - 1 do beside(block, r) end
    end
    for _, node in ipairs(block.nodes) do
        note(node.args[1])
        -- rows of the output are another core's until they are written
        lu.assertEquals(node.op, node.args[1].base == "out_rows" and "prefetch_write"
            or "prefetch")
    end
    return asked
end

local function check_rows(lines, first, count, layout, width)
    for row = 0, count - 1 do
        for d = 0, width - 1, LINE do
            lu.assertTrue(lines[(first + row * layout.row + d) // LINE], ("row %d"):format(row))
        end
    end
end

local function context_of(key_block, more)
    local ctx <const> = {
        plan = { score_dim = 64, value_dim = 32,
            q = { row = 64, head = 4096 }, k = { row = 64, head = 8192 },
            v = { row = 32, head = 4096 }, out = { row = 96, head = 32 },
            attention = { key_block = key_block, scores_unroll = 2, in_blocks = false } },
        problem = { batch = 1, kv_len = 128, seq_len = 64, heads = 2, kv_heads = 2 },
        block = { width = 32, together = 1 }, query0 = ir.index(32),
    }
    for _, name in ipairs({ "key_rows", "value_rows", "query_rows", "out_rows" }) do
        ctx[name] = ir.mem(name)
    end
    for key, value in pairs(more or {}) do ctx.plan[key] = value end
    return ctx
end

function TestFetch:test_rows_in_blocks_ask_for_the_next_block_and_the_next_queries()
    for _, rows in ipairs({ 1, 5, 6, 12 }) do
        local dense <const> = { row = 192, head = 64 }
        local ctx <const> = context_of(48, { k = dense })
        ctx.plan.attention.in_blocks, ctx.block.together = true, 2
        local asked <const> = lines_asked(ctx, rows)
        check_rows(asked.key_rows, 48 * 192, 48, dense, 64)
        check_rows(asked.value_rows, 48 * 32, 48, ctx.plan.v, 32)
        check_rows(asked.query_rows, 2 * 32 * 64, 32, ctx.plan.q, 64)
        check_rows(asked.out_rows, 2 * 32 * 96, 32, ctx.plan.out, 32)
    end
end

-- A block of queries asks for its place in the next head: the second of two for the second half.
function TestFetch:test_whole_rows_ask_for_their_share_of_the_next_head()
    local ctx <const> = context_of(128)
    local asked = lines_asked(ctx, 6)
    check_rows(asked.key_rows, 8192 + 64 * 64, 64, ctx.plan.k, 64)
    check_rows(asked.value_rows, 4096 + 64 * 32, 64, ctx.plan.v, 32)
    check_rows(asked.query_rows, 4096, 32, ctx.plan.q, 64)
    check_rows(asked.out_rows, 32, 32, ctx.plan.out, 32)
    -- the only head has none behind it
    ctx.problem.heads, ctx.problem.kv_heads = 1, 1
    asked = lines_asked(ctx, 6)
    check_rows(asked.query_rows, 32 * 64, 32, ctx.plan.q, 64)
    check_rows(asked.out_rows, 32 * 96, 32, ctx.plan.out, 32)
    lu.assertNil(asked.key_rows)
    lu.assertNil(asked.value_rows)
end

os.exit(lu.LuaUnit.run())
