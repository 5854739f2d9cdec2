-- Where a tile of a matrix product adds its bias, and what it asks for ahead.

package.path = "./?.lua;./?/init.lua;" .. package.path
local lu <const> = require("luaunit")

local emit <const> = require("gen.emit")
local ir <const> = require("gen.ir")
local isa <const> = require("gen.isa")
local tile <const> = require("gen.tile")

-- The C text of one element: a row of `a` times a column of `b` plus `bias`.
local function product_text(depth, unroll, ahead, prefetch_first)
    local params <const> = { { "pointer", "a" }, { "pointer", "b" }, { "pointer", "bias" },
        { "writable", "dst" } }
    local fn <const> = ir.func("product", { "A product." }, params, function(body)
        local c <const> = tile.product(body, { title = "Tile.", rows = 1, vectors = 1,
            registers = 16, depth = depth, unroll = unroll or 1, ahead = ahead, index = ir.index,
            prefetch_first = prefetch_first,
            a = function(k) return ir.mem("a", k) end, b = function(k) return ir.mem("b", k) end,
            start = function() return "load", ir.mem("bias", ir.index(0)) end,
            carry = tile.carry(function() return ir.mem("dst", ir.index(0)) end) })
        body:run("store", ir.mem("dst", ir.index(0)), c[0][0])
    end)
    local printer <const> = emit.printer(isa.get("scalar"))
    printer:func(fn)
    return printer:text()
end

-- "first" where the sum starts from the bias, "last" where it is added behind every product.
local function bias_place(depth)
    local text <const> = product_text(depth)
    local bias <const> = text:find("= bias[0]", 1, true)
    local last_product, from = nil, text:find("b[k]", 1, true)
    while from do
        last_product, from = from, text:find("b[k]", from + 1, true)
    end
    lu.assertNil(text:find("= bias[0]", bias + 1, true), text)
    return bias < last_product and "first" or "last"
end

TestBias = {}

function TestBias:test_sums_of_at_most_64_start_from_the_bias()
    lu.assertEquals(bias_place(2), "first")
    lu.assertEquals(bias_place(64), "first")
    lu.assertStrContains(product_text(64), "float c0_0 = bias[0];")
end

-- A large bias at the start would coarsen every sum behind it.
function TestBias:test_longer_sums_add_it_last()
    for _, depth in ipairs({ 65, 384, 385, 1000 }) do
        lu.assertEquals(bias_place(depth), "last", depth)
        lu.assertStrContains(product_text(depth), "float c0_0 = 0.0f;")
    end
end

TestAhead = {}

-- Rows of 300 floats: of 8 in a turn the first, fourth and seventh cover its pages of 1024.
function TestAhead:test_a_line_of_every_page_is_asked_for()
    local text <const> = product_text(64, 8, { row = 300,
        line = function(k) return ir.mem("b", k * 300 + 3072) end })
    local asked <const> = {}
    for line in text:gmatch("%(void%)%(b %+ 300 %* k %+ (%d+)%)") do asked[#asked + 1] = line end
    lu.assertEquals(asked, { "3072", "3972", "4872" })
end

-- Where the tile goes is asked for until its first sum is put there, once a turn.
function TestAhead:test_the_first_sum_asks_for_lines_of_its_own()
    local text <const> = product_text(768, 4, nil,
        function(block, k) block:run("prefetch_write", ir.mem("dst", k * 3)) end)
    local asked <const> = {}
    for line in text:gmatch("%(void%)%((dst[^)]*)%)") do asked[#asked + 1] = line end
    lu.assertEquals(asked, { "dst + 3 * k" })
    lu.assertTrue(text:find("dst + 3 * k", 1, true) < text:find("k = 384", 1, true), text)
end

TestWalk = {}

-- The C text of a tile of `rows` x `vectors` and 12 steps, 4 a turn: rows of 20 from `a` + 3.
local function tile_text(rows, vectors)
    local fn <const> = ir.func("product", { "A product." },
        { { "pointer", "a" }, { "pointer", "b" }, { "writable", "dst" } }, function(body)
            local c <const> = tile.product(body, { title = "Tile.", rows = rows,
                vectors = vectors, registers = 16, depth = 12, unroll = 4, index = ir.index,
                a = function(k, r) return ir.mem("a", k + r * 20 + 3) end,
                b = function(k, v) return ir.mem("b", k * (8 * vectors) + v * 8) end })
            body:run("store", ir.mem("dst", ir.index(0)), c[0][0])
        end)
    local printer <const> = emit.printer(isa.get("avx2"))
    printer:func(fn)
    return printer:text()
end

function TestWalk:test_tiles_one_vector_wide_walk_pointers()
    local text <const> = tile_text(2, 1)
    lu.assertStrContains(text, "for (const float *b_at = b, *a_at = a + 3; b_at != b + 96; "
        .. "b_at += 32, a_at += 4) {")
    lu.assertStrContains(text, "_mm256_loadu_ps(b_at + 24)")
    lu.assertStrContains(text, "a_at + 20)")
    lu.assertStrContains(text, "a_at + 23)")
end

-- Wider ones use a factor several times: its load stands alone.
function TestWalk:test_others_count()
    lu.assertStrContains(tile_text(2, 2), "for (size_t k = 0; k < 12; k += 4) {")
    lu.assertStrContains(tile_text(1, 1), "for (size_t k = 0; k < 12; k += 4) {")
end

os.exit(lu.LuaUnit.run())
