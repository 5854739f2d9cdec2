-- The statements of a kernel as data: indices, constant folding, blocks, functions.

package.path = "./?.lua;./?/init.lua;" .. package.path
local lu <const> = require("luaunit")

local emit <const> = require("gen.emit")
local ir <const> = require("gen.ir")
local isa <const> = require("gen.isa")

-- The value of an index for given variables.
local function evaluate(index, values)
    local sum = index.constant
    for _, term in ipairs(index.terms) do sum = sum + term.factor * values[term.name] end
    return sum
end

-- The C text of a function, printed for the scalar ISA.
local function print_c(fn)
    local printer <const> = emit.printer(isa.get("scalar"))
    printer:func(fn)
    return printer:text()
end

local function param_names(fn)
    local names <const> = {}
    for i, param in ipairs(fn.params) do names[i] = param[2] end
    return names
end

-- Names declared in a block and everything inside it, in order.
local function declared_names(block, names)
    names = names or {}
    for _, node in ipairs(block.nodes) do
        if node.kind == "let" then names[#names + 1] = node.name end
        if node.body then declared_names(node.body, names) end
        if node.otherwise then declared_names(node.otherwise, names) end
    end
    return names
end

local function kinds(block)
    local list <const> = {}
    for i, node in ipairs(block.nodes) do list[i] = node.kind end
    return list
end

TestIndex = {}

function TestIndex:test_sums_and_products_are_affine()
    local i <const>, j <const> = ir.var("i"), ir.var("j")
    local index <const> = (i * 3 + 2 + j) * 4 + i + 5
    lu.assertEquals(index.constant, 13)
    lu.assertEquals(index.terms, { { name = "i", factor = 13 }, { name = "j", factor = 4 } })
end

function TestIndex:test_random_expressions_agree_with_integers()
    math.randomseed(7)
    local names <const> = { "i", "j", "k" }
    for _ = 1, 500 do
        local values <const> = { i = math.random(0, 99), j = math.random(0, 99),
            k = math.random(0, 99) }
        local index, value = ir.index(0), 0
        for _ = 1, math.random(1, 10) do
            local number <const> = math.random(-9, 9)
            local name <const> = names[math.random(3)]
            local choice <const> = math.random(5)
            if choice == 1 then
                index, value = index + number, value + number
            elseif choice == 2 then
                index, value = number + index, number + value
            elseif choice == 3 then
                index, value = index + ir.var(name) * number, value + values[name] * number
            elseif choice == 4 then
                index, value = index * number, value * number
            else
                index, value = number * index * ir.index(2), value * number * 2
            end
        end
        lu.assertEquals(evaluate(index, values), value)
    end
end

function TestIndex:test_operands_are_not_changed()
    local i <const> = ir.var("i")
    local first <const> = i + 1
    local _ <const>, _ <const> = first + i, first * 7
    lu.assertEquals(first.constant, 1)
    lu.assertEquals(first.terms, { { name = "i", factor = 1 } })
end

function TestIndex:test_a_product_with_zero_is_constant()
    lu.assertEquals(ir.constant(ir.var("i") * 0), 0)
    lu.assertEquals(ir.constant(ir.var("i") * 0 + 7), 7)
end

function TestIndex:test_constants()
    lu.assertEquals(ir.constant(5), 5)
    lu.assertEquals(ir.constant(ir.index(5) * 3), 15)
    lu.assertNil(ir.constant(ir.var("i")))
end

function TestIndex:test_what_is_not_affine_is_refused()
    lu.assertError(function() return ir.var("i") * ir.var("j") end)
    lu.assertError(ir.index, 1.5)
    lu.assertError(ir.index, "i")
    lu.assertError(ir.index, nil)
    lu.assertError(function() return ir.var("i") + 0.5 end)
end

TestFolding = {}

function TestFolding:test_sizes_of_constants_take_no_statement()
    local cases <const> = {
        { "min", 3, 5, 3 }, { "min", 5, 3, 3 }, { "excess", 7, 4, 3 }, { "excess", 4, 7, 0 },
        { "excess", 4, 4, 0 }, { "quotient", 17, 5, 3 }, { "remainder", 17, 5, 2 },
    }
    for _, case in ipairs(cases) do
        local block <const> = ir.block()
        local got <const> = block:size("n", case[1], ir.index(case[2]), ir.index(case[3]))
        lu.assertEquals(ir.constant(got), case[4], case[1])
        lu.assertEquals(#block.nodes, 0)
    end
end

-- Whatever shortcut a size takes, it means the same as the C it stands for.
function TestFolding:test_sizes_of_variables_mean_the_same()
    local means <const> = {
        min = math.min, excess = function(a, b) return math.max(a - b, 0) end,
        quotient = function(a, b) return a // b end,
        remainder = function(a, b) return a % b end,
    }
    for fn, mean in pairs(means) do
        for constant = 0, 3 do
            for _, swapped in ipairs({ false, true }) do
                local undefined <const> = constant == 0 and not swapped
                    and (fn == "quotient" or fn == "remainder")
                if not undefined then
                    local block <const> = ir.block()
                    local a, b = ir.var("x"), ir.index(constant)
                    if swapped then a, b = b, a end
                    local got <const> = block:size("n", fn, a, b)
                    for x = 1, 9 do
                        local wanted <const> = swapped and mean(constant, x) or mean(x, constant)
                        if #block.nodes == 0 then
                            lu.assertEquals(evaluate(got, { x = x }), wanted, fn)
                        else
                            local node <const> = block.nodes[1]
                            lu.assertEquals({ node.op, node.name, #block.nodes }, { fn, "n", 1 })
                            lu.assertEquals(got.terms, { { name = "n", factor = 1 } })
                            lu.assertEquals(mean(evaluate(node.args[1], { x = x }),
                                evaluate(node.args[2], { x = x })), wanted)
                        end
                    end
                end
            end
        end
    end
end

function TestFolding:test_conditions_on_constants_are_decided()
    for _, case in ipairs({ { 1, 2, "yes" }, { 2, 2, "no" }, { 3, 2, "no" } }) do
        local block <const> = ir.block()
        block:when("lt", { ir.index(case[1]), ir.index(case[2]) },
            function(body) body:note("yes") end, function(body) body:note("no") end)
        lu.assertEquals(kinds(block), { "scope" })
        lu.assertEquals(block.nodes[1].body.nodes[1].text, case[3])
    end
    local block <const> = ir.block()
    block:when("lt", { 2, 1 }, function() error("not built") end)
    lu.assertEquals(#block.nodes, 0)
end

function TestFolding:test_conditions_on_variables_stay()
    local block <const> = ir.block()
    block:when("lt", { ir.var("i"), 4 }, function(body) body:note("yes") end,
        function(body) body:note("no") end)
    lu.assertEquals(kinds(block), { "if" })
    lu.assertEquals(block.nodes[1].otherwise.nodes[1].text, "no")
end

function TestFolding:test_a_pointer_at_a_constant_offset_is_no_variable()
    local block <const> = ir.block()
    lu.assertEquals(block:pointer("pointer", "p", ir.mem("x", 12)), ir.mem("x", 12))
    lu.assertEquals(#block.nodes, 0)
    local moved <const> = block:pointer("pointer", "p", ir.mem("x", ir.var("i") * 3))
    lu.assertEquals(moved, ir.mem("p"))
    lu.assertEquals(declared_names(block), { "p" })
end

TestLoops = {}

local function build_copy(unrolled, count)
    return ir.func("copy", { "Copies." }, { { "input", "x" }, { "output", "y" } }, function(block)
        block:each("i", count, unrolled, function(body, i)
            body:run("copy_f32", ir.mem("y", i * 2 + 1), ir.mem("x", i))
        end)
    end)
end

function TestLoops:test_no_turn_prints_nothing()
    lu.assertEquals(#build_copy(false, 0).body.nodes, 0)
    lu.assertEquals(#build_copy(true, 0).body.nodes, 0)
end

-- A causal mask may show a block of queries no key at all: compilers warn of a loop over nothing.
function TestLoops:test_a_loop_without_turns_is_left_out()
    local block <const> = ir.block()
    block:loop({ var = "key", from = 0, to = ir.index(0), step = 8 }, function(body)
        body:run("store_zero", ir.mem("out"))
    end)
    lu.assertEquals(#block.nodes, 0)
end

function TestLoops:test_one_turn_is_no_loop()
    for _, unrolled in ipairs({ true, false }) do
        lu.assertEquals(kinds(build_copy(unrolled, 1).body), { "scope" })
        lu.assertStrContains(print_c(build_copy(unrolled, 1)), "y[1] = x[0];")
    end
end

function TestLoops:test_a_loop_has_one_body()
    local text <const> = print_c(build_copy(false, 5))
    lu.assertStrContains(text, "for (size_t i = 0; i < 5; i++) {")
    lu.assertStrContains(text, "y[2 * i + 1] = x[i];")
end

function TestLoops:test_unrolled_turns_have_constant_indices_in_order()
    local text <const> = print_c(build_copy(true, 5))
    lu.assertNil(text:find("for", 1, true))
    local found <const> = {}
    for to, from in text:gmatch("y%[(%d+)%] = x%[(%d+)%];") do
        found[#found + 1] = { tonumber(to), tonumber(from) }
    end
    lu.assertEquals(found, { { 1, 0 }, { 3, 1 }, { 5, 2 }, { 7, 3 }, { 9, 4 } })
end

-- The turns a printed loop takes, by its text.
local function count_turns(from, to, step)
    local fn <const> = ir.func("f", { "F." }, { { "output", "y" } }, function(block)
        block:loop({ var = "i", from = from, to = to, step = step }, function(body, i)
            body:run("store_zero", ir.mem("y", i))
        end)
    end)
    local text <const> = print_c(fn)
    local first <const>, test <const> = text:match("for %(size_t i = (%d+); i ([^;]+);")
    if not first then return 0 end -- left out
    local added <const> = text:find("i++", 1, true) and 1 or tonumber(text:match("i %+= (%d+)%)"))
    local margin <const> = tonumber(test:match("^%+ (%d+) <=")) or 1
    local bound <const> = tonumber(test:match("(%d+)$"))
    local turns, i = 0, tonumber(first)
    while i + margin <= bound do turns, i = turns + 1, i + added end
    return turns
end

function TestLoops:test_whole_steps_only()
    for _, case in ipairs({ { 0, 12, 4, 3 }, { 0, 14, 4, 3 }, { 2, 14, 4, 3 }, { 0, 3, 4, 0 },
        { 0, 5, 1, 5 }, { 3, 3, 1, 0 } }) do
        lu.assertEquals(count_turns(case[1], case[2], case[3]), case[4])
    end
end

TestFunctions = {}

function TestFunctions:test_parameters_are_what_the_body_uses()
    local candidates <const> = { { "input", "a" }, { "input", "b" }, { "output", "out" },
        { "size", "n" }, { "size", "step" }, { "size", "unused" } }
    local fn <const> = ir.func("f", { "F." }, candidates, function(block)
        block:loop({ var = "i", from = 0, to = ir.var("n"), step = "step" }, function(body, i)
            body:let("float", "v", "load_f32", ir.mem("b", i))
            body:run("store_value", ir.mem("out", i), "v")
        end)
    end)
    lu.assertEquals(param_names(fn), { "b", "out", "n", "step" })
end

function TestFunctions:test_local_names_are_no_parameters()
    local fn <const> = ir.func("f", { "F." }, { { "size", "n" }, { "size", "i" },
        { "output", "out" } }, function(block)
        block:let("size", "n", "one")
        block:loop({ var = "i", from = 0, to = ir.var("n") }, function(body, i)
            body:run("store_zero", ir.mem("out", i))
        end)
    end)
    lu.assertEquals(param_names(fn), { "out" })
end

function TestFunctions:test_pointers_of_a_walk_are_local()
    local fn <const> = ir.func("f", { "F." }, { { "input", "at" }, { "input", "a" },
        { "size", "n" }, { "output", "out" } }, function(block)
        block:walk({ { name = "at", from = ir.mem("a", 2), step = 3 } },
            ir.mem("a", ir.var("n") * 3 + 2), function(body)
                body:let("float", "v", "load_f32", ir.mem("at", 1))
                body:run("store_value", ir.mem("out"), "v")
            end)
    end)
    lu.assertEquals(param_names(fn), { "a", "n", "out" })
    lu.assertStrContains(print_c(fn),
        "for (const float *at = a + 2; at != a + 3 * n + 2; at += 3) {")
end

function TestFunctions:test_conditions_and_calls_count_as_uses()
    local inner <const> = ir.func("g", { "G." }, { { "output", "out" } }, function(block)
        block:run("store_zero", ir.mem("out"))
    end)
    local fn <const> = ir.func("f", { "F." }, { { "size", "m" }, { "size", "k" },
        { "output", "out" } }, function(block)
        block:when("lt", { ir.var("k"), ir.var("m") }, function(body) body:call(inner) end)
    end)
    lu.assertEquals(param_names(fn), { "m", "k", "out" })
end

function TestFunctions:test_values_nothing_uses_are_dropped()
    local fn <const> = ir.func("f", { "F." }, { { "input", "x" }, { "output", "out" } },
        function(block)
            block:let("float", "a", "load_f32", ir.mem("x", 1))
            block:let("float", "b", "copy", "a")
            block:scope(function(body) body:let("float", "c", "copy", "b") end)
            block:let("float", "kept", "constant_f32", ir.float(1.0))
            block:run("store_value", ir.mem("out"), "kept")
        end)
    lu.assertEquals(declared_names(fn.body), { "kept" })
    -- nor is what only they used a parameter
    lu.assertEquals(param_names(fn), { "out" })
end

function TestFunctions:test_statements_with_an_effect_are_kept()
    local fn <const> = ir.func("f", { "F." }, { { "output", "out" } }, function(block)
        block:declare("float", "sum", "constant_f32", ir.float(0.0))
        block:set("sum", "copy", "sum")
        block:run("store_zero", ir.mem("out"))
    end)
    lu.assertEquals(kinds(fn.body), { "let", "set", "run" })
end

function TestFunctions:test_calls_pass_variables_of_the_same_name_unless_replaced()
    local fn <const> = ir.func("g", { "G." }, { { "input", "x" }, { "output", "out" },
        { "size", "n" } }, function(block)
        block:run("copy_f32", ir.mem("out", ir.var("n")), ir.mem("x"))
    end)
    local caller <const> = ir.func("f", { "F." }, { { "input", "x" }, { "output", "y" } },
        function(block)
            block:call(fn, { out = ir.mem("y", 8), n = ir.index(3), ignored = ir.index(4) })
        end)
    lu.assertStrContains(print_c(caller), "g(x, y + 8, 3);")
    lu.assertEquals(param_names(caller), { "x", "y" })
end

function TestFunctions:test_a_question_gives_an_int()
    local candidates <const> = { { "pointer", "a" }, { "pointer", "b" } }
    local fn <const> = ir.question("is_lost", { "About a." }, candidates, function(block)
        block:let("vec", "value", "load", ir.mem("a"))
        return block:let("int", "lost", "has_nan", "value")
    end)
    lu.assertStrContains(print_c(fn), "static int is_lost(const float *a)\n{\n")
    lu.assertStrContains(print_c(fn), "    return lost;\n}\n")
    local block <const> = ir.block()
    lu.assertEquals(block:ask("answer", fn), "answer")
    block:run("store_one", ir.mem("trust"))
    lu.assertEquals(ir.uses(block), { a = true, trust = true })
    local caller <const> = ir.func("ask", { "Asks." }, candidates, function(body)
        body:when("true_", { body:ask("answer", fn) }, function(inner)
            inner:run("store_zero", ir.mem("b"))
        end)
    end)
    lu.assertEquals(param_names(caller), { "a", "b" })
    lu.assertStrContains(print_c(caller), "    const int answer = is_lost(a);\n    if (answer) {\n")
end

function TestFunctions:test_sameness_ignores_name_and_comment_only()
    local function build(name, comment, offset, type_name)
        return ir.func(name, { comment }, { { type_name or "output", "out" } }, function(block)
            block:run("store_zero", ir.mem("out", offset))
        end)
    end
    local first <const> = build("a", "A.", 1)
    lu.assertTrue(ir.is_same(build("b", "B.", 1), first))
    lu.assertFalse(ir.is_same(build("a", "A.", 2), first))
    lu.assertFalse(ir.is_same(build("a", "A.", 1, "writable"), first))
end

function TestFunctions:test_count_is_of_statements()
    local block <const> = ir.block()
    block:note("not one")
    block:blank()
    block:let("size", "n", "one")
    block:each("i", 3, true, function(body, i) body:run("store_zero", ir.mem("y", i)) end)
    lu.assertEquals(ir.count(block), 7)
end

TestPrinting = {}

-- Sums as operands keep their meaning.
function TestPrinting:test_sums_get_parentheses_where_an_operator_follows()
    local fn <const> = ir.func("f", { "F." }, { { "size", "i" }, { "output", "out" } },
        function(block)
            block:size("q", "quotient", ir.var("i") + 3, ir.index(4))
            block:run("store_zero", ir.mem("out", ir.var("q") * 2 + ir.var("i")))
        end)
    local text <const> = print_c(fn)
    lu.assertStrContains(text, "const size_t q = (i + 3) / 4;")
    lu.assertStrContains(text, "out[2 * q + i] = 0.0f;")
end

function TestPrinting:test_floats_read_back_exactly()
    for _, value in ipairs({ 0.0, 1.0, -2.0, 0.1, 0x1.715476p+0, 1e-30, 3.5, 1e9, -0x1p-149 }) do
        local text <const> = emit.float(value)
        lu.assertEquals(text:sub(-1), "f")
        lu.assertEquals(tonumber((text:sub(1, -2))), value)
    end
end

function TestPrinting:test_lines_end_within_100_columns()
    local long <const> = ("a_rather_long_pointer_name"):rep(2)
    local fn <const> = ir.func("f", { "F." }, { { "input", long }, { "output", "out" } },
        function(block)
            block:run("add_product", ir.mem("out", ir.var("some_index_variable")),
                ir.mem(long, ir.var("i") * 12345 + 17), ir.mem(long, ir.var("j") * 98765 + 4))
        end)
    for line in print_c(fn):gmatch("[^\n]+") do lu.assertTrue(#line <= 100, line) end
end

function TestPrinting:test_unknown_ops_and_types_are_errors()
    lu.assertError(print_c, ir.func("f", { "F." }, {}, function(block) block:run("no_such_op") end))
    lu.assertError(print_c, ir.func("f", { "F." }, { { "output", "out" } }, function(block)
        block:let("no_such_type", "n", "one")
        block:run("store_value", ir.mem("out"), "n")
    end))
end

os.exit(lu.LuaUnit.run())
