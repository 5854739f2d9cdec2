-- Config files are data: what a Lua config can reach, how much it may take, what it leaves behind.

package.path = "./?.lua;./?/init.lua;" .. package.path
local lu <const> = require("luaunit")

local sandbox <const> = require("gen.sandbox")

-- Every test ends with the state of the host as it was.
local function assert_host_untouched(hook)
    lu.assertEquals(("x"):rep(3), "xxx")
    lu.assertEquals(getmetatable("").__index, string)
    lu.assertEquals(debug.gethook(), hook)
    lu.assertTrue(collectgarbage("isrunning"))
end

local function assert_refused(source, message)
    local ok <const>, got = sandbox.evaluate(source)
    lu.assertFalse(ok, source:sub(1, 80))
    lu.assertStrContains(got, message, false, false, source:sub(1, 80))
    lu.assertNil(got:find("[\n\r]"))
    lu.assertNil(got:find("traceback"))
    lu.assertNil(got:find("sandbox%.lua"))
    assert_host_untouched()
end

TestSandboxReach = {}

function TestSandboxReach:test_pure_math_works()
    local ok <const>, value = sandbox.evaluate([[
        local n = math.floor(99 / 2) + math.tointeger(2.0)
        return { seq_len = n, scale = 1 / math.sqrt(16), huge = math.huge, name = "a" .. n }
    ]])
    lu.assertTrue(ok)
    lu.assertEquals(value, { seq_len = 51, scale = 0.25, huge = math.huge, name = "a51" })
    assert_host_untouched()
end

function TestSandboxReach:test_nothing_else_is_there()
    local absent <const> = {
        "_G", "string", "table", "coroutine", "io", "os", "debug", "package", "utf8", "require",
        "load", "loadstring", "loadfile", "dofile", "pcall", "xpcall", "error", "assert", "print",
        "setmetatable", "getmetatable", "rawset", "rawget", "rawequal", "rawlen", "next", "pairs",
        "ipairs", "select", "tostring", "tonumber", "type", "collectgarbage", "warn", "_VERSION",
        "math.random", "math.randomseed",
    }
    for _, name in ipairs(absent) do
        local ok <const>, value = sandbox.evaluate("return " .. name .. " == nil")
        lu.assertTrue(ok, name)
        lu.assertTrue(value, name .. " can be reached from a config")
    end
end

function TestSandboxReach:test_environment_is_only_math()
    local _, environment = sandbox.evaluate("return _ENV")
    local names <const> = {}
    for name in pairs(environment) do
        names[#names + 1] = name
    end
    lu.assertEquals(names, { "math" })
    for name, value in pairs(environment.math) do
        lu.assertEquals(value, math[name])
    end
    lu.assertFalse(rawequal(environment.math, math))
end

function TestSandboxReach:test_a_config_cannot_change_math_for_others()
    lu.assertTrue(sandbox.evaluate("math.floor = 1; math.pi = 3; return {}"))
    lu.assertEquals(math.floor(2.5), 2)
    local _, value = sandbox.evaluate("return math.pi")
    lu.assertEquals(value, math.pi)
end

function TestSandboxReach:test_no_string_methods()
    local sources <const> = {
        'return ("x"):rep(1e9)', 'return ("x").rep', 'return ("%s"):format(1)',
        'return ("aaaa"):find("a-a-a-a-b")', 'return ("x"):len()', 'local s = "x" return s.byte',
        'return ("x").x.y', 'return (""):dump()',
    }
    for _, source in ipairs(sources) do
        assert_refused(source, "attempt to index a string value")
    end
end

function TestSandboxReach:test_no_string_arithmetic()
    assert_refused('return "10" + 1', "attempt to perform arithmetic on a string value")
    assert_refused('return -"2"', "attempt to perform arithmetic on a string value")
    assert_refused('return 1 < "2"', "attempt to compare number with string")
end

function TestSandboxReach:test_bytecode_is_refused()
    local bytecode <const> = string.dump(function() return {} end)
    assert_refused(bytecode, "binary")
end

function TestSandboxReach:test_messages_name_the_line()
    assert_refused("\n\nreturn error('x')", "line 3: attempt to call a nil value")
    assert_refused("return {\n  a = 1\n  b = 2\n}", "line 3: '}' expected")
    assert_refused("local t = nil\nreturn t.x", "line 2: attempt to index a nil value")
end

TestSandboxLimits = {}

function TestSandboxLimits:test_endless_loops()
    local sources <const> = {
        "while true do end", "repeat until false", "::a:: goto a",
        "for i = 1, math.maxinteger do end", "for i = 0, 1, 1e-300 do end",
        "local function f() return f() end return f()",
    }
    for _, source in ipairs(sources) do
        assert_refused(source, "runs more than 250000 instructions")
    end
end

function TestSandboxLimits:test_the_instruction_limit_is_exact_work_not_time()
    lu.assertTrue(sandbox.evaluate("for i = 1, 240000 do end return {}"))
    lu.assertFalse(sandbox.evaluate("for i = 1, 250000 do end return {}"))
end

function TestSandboxLimits:test_one_big_allocation()
    local sources <const> = {
        'local s = "x" while true do s = s .. s end',
        'local s = "x" for i = 1, 60 do s = s .. s .. s .. s .. s .. s .. s .. s end',
        "local t = {} for i = 1, 100000 do t[i] = i end",
        "local function f() return 1 + f() end return f()",
        "local function f(...) return f(0, 0, 0, 0, ...) end return f()",
        "local a = {" .. ("1,"):rep(60000) .. "} return a",
    }
    for _, source in ipairs(sources) do
        local before <const> = collectgarbage("count")
        assert_refused(source, "one operation needs more than 131072 bytes")
        lu.assertTrue(collectgarbage("count") - before < 8192, "memory is given back")
    end
end

-- The result of the last instruction, and one that only then passes the limit.
function TestSandboxLimits:test_the_last_instruction_counts()
    local doubling <const> = ('local s = "%s" '):format(("x"):rep(100000))
    lu.assertTrue(sandbox.evaluate(doubling .. "return #s"))
    assert_refused(doubling .. 'return s .. s', "one operation needs more")
end

function TestSandboxLimits:test_many_small_allocations()
    local sources <const> = {
        'local s = "' .. ("x"):rep(60000) .. '" local n = 0 while true do n = n + #(s .. n) end',
        "local function f(...) while true do local t = { ... } end end f("
            .. ("0,"):rep(200) .. "0)",
    }
    for _, source in ipairs(sources) do
        assert_refused(source, "needs more than 33554432 bytes")
    end
end

-- A limit may be passed anywhere, also between the return of the config and the end of the guard.
function TestSandboxLimits:test_a_limit_passed_at_any_instruction_is_caught()
    local refused, accepted = 0, 0
    for limit = 1, 60 do
        local limits <const> = {
            instructions = limit, bytes = 1 << 20, step_bytes = 1 << 17, source_bytes = 1000,
        }
        local ok <const>, value = sandbox.evaluate("local a = 1 return { a + 1 }", limits)
        if ok then
            accepted = accepted + 1
            lu.assertEquals(value, { 2 })
        else
            refused = refused + 1
            lu.assertStrContains(value, "instructions")
        end
        assert_host_untouched()
    end
    lu.assertTrue(refused > 3 and accepted > 10)
end

function TestSandboxLimits:test_deep_nesting()
    for _, pair in ipairs({ { "{", "}" }, { "(", ")" }, { "- ", "" }, { "not ", "" } }) do
        local source <const> = "return " .. pair[1]:rep(10000) .. "1" .. pair[2]:rep(10000)
        assert_refused(source, "nested too deeply")
    end
    assert_refused(("do "):rep(10000) .. ("end "):rep(10000), "nested too deeply")
end

function TestSandboxLimits:test_long_source()
    assert_refused("return {}" .. (" "):rep(256 << 10), "longer than 262144 bytes")
end

TestSandboxHost = {}

function TestSandboxHost:test_an_existing_hook_survives()
    local function hook() end
    debug.sethook(hook, "", 1000000)
    sandbox.evaluate("return {}")
    local after_success <const> = debug.gethook()
    sandbox.evaluate("while true do end")
    local after_failure <const> = debug.gethook()
    debug.sethook()
    lu.assertEquals(after_success, hook)
    lu.assertEquals(after_failure, hook)
end

function TestSandboxHost:test_a_stopped_collector_stays_stopped()
    collectgarbage("stop")
    sandbox.evaluate("return {}")
    local is_running <const> = collectgarbage("isrunning")
    collectgarbage("restart")
    lu.assertFalse(is_running)
end

if arg and arg[0] and arg[0]:find("test_sandbox%.lua$") then
    os.exit(lu.LuaUnit.run())
end
