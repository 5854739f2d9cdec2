-- The same config and version give the same bytes: in a second run, another directory, another
-- locale, another time zone, and whatever the order of the config's keys.

package.path = "./?.lua;./?/init.lua;" .. package.path
local lu <const> = require("luaunit")

local process <const> = require("gen.process")
local support <const> = require("tests.unit.support")

-- Two configs that use lists, nested tables and several ISAs, each in two orders of its keys.
local CONFIGS <const> = {
    layer = {
        [[return {
            batch = 2, seq_len = 8, kv_len = 12, cross = true,
            d_model = 32, heads = 4, kv_heads = 2,
            mask = { "causal", "lengths", "padding" }, causal_align = "bottom_right",
            bias = { q = true, k = false, v = true, o = false }, return_weights = "mean",
            isa = { "scalar", "neon", "avx2", "avx512" }, scale = 0.1,
            plan = { scores = { rows = 2, vectors = 1 }, fold = { scale = true, v_bias = false } },
            target = { l1d = 49152, l2 = 1048576 },
        }]],
        [[return {
            target = { l2 = 1048576, l1d = 49152 },
            plan = { fold = { v_bias = false, scale = true }, scores = { vectors = 1, rows = 2 } },
            scale = 0.1, isa = { "scalar", "neon", "avx2", "avx512" },
            return_weights = "mean", bias = { o = false, v = true, k = false, q = true },
            causal_align = "bottom_right", mask = { "causal", "lengths", "padding" },
            kv_heads = 2, cross = true, heads = 4, d_model = 32,
            kv_len = 12, seq_len = 8, batch = 2,
        }]],
    },
    core = {
        [[return { op = "sdpa", seq_len = 6, heads = 3, head_dim = 8, v_head_dim = 5,
            mask = { "bool", "additive" }, mask_shape = { 1, 3, 6, 6 }, empty_row = "uniform",
            return_weights = "per_head", isa = "scalar" }]],
        [[return { isa = "scalar", return_weights = "per_head", empty_row = "uniform",
            mask_shape = { 1, 3, 6, 6 }, mask = { "bool", "additive" }, v_head_dim = 5,
            head_dim = 8, heads = 3, seq_len = 6, op = "sdpa" }]],
    },
}
local NAMES <const> = { "core", "layer" }

-- A locale that writes 0,1: numbers that slip through the C library's formatting show up. When the
-- machine has none, one is built if the sources are there.
local function find_comma_locale(scratch)
    local listed <const> = scratch:shell("locale -a").out
    for name in listed:gmatch("[^\n]+") do
        if name:find("^de_") or name:find("^fr_") then
            return "LC_ALL=" .. name
        end
    end
    local built <const> = scratch:shell("mkdir -p locales && localedef -i de_DE -f UTF-8 "
        .. "locales/de_DE.UTF-8")
    if built.code == 0 then
        return ("LOCPATH='%s' LC_ALL=de_DE.UTF-8"):format(scratch:path("locales"))
    end
    return nil
end

TestDeterminism = {}

function TestDeterminism:setUp()
    self.scratch = support.new_scratch()
    for _, name in ipairs(NAMES) do
        self.scratch:write(name .. ".lua", CONFIGS[name][1])
        self.scratch:write("shuffled/" .. name .. ".lua", CONFIGS[name][2])
    end
    self.expected = self:emit("layer.lua core.lua", "first")
end

function TestDeterminism:tearDown()
    self.scratch:remove()
end

-- Emits into `out` and returns {name = text} of everything there, and how many files.
function TestDeterminism:emit(configs, out, before)
    local result <const> = self.scratch:attngen(("emit %s -o %s"):format(configs, out), before)
    lu.assertEquals(result.code, 0, result.err)
    return self:collect(out)
end

function TestDeterminism:collect(out)
    local files <const> = {}
    for _, name in ipairs(self.scratch:list(out)) do
        files[name] = self.scratch:read(out .. "/" .. name)
    end
    return files
end

local function assert_same_files(self, actual)
    local count = 0
    for name, text in pairs(self.expected) do
        count = count + 1
        lu.assertTrue(text == actual[name], name .. " differs")
        actual[name] = nil
    end
    lu.assertNil(next(actual))
    lu.assertTrue(count >= 14, "too few files to compare: " .. count)
end

function TestDeterminism:test_a_second_run()
    -- Lua seeds its string hashes anew in each process: ten chances for a table order to show.
    for run = 1, 10 do
        assert_same_files(self, self:emit("layer.lua core.lua", "again" .. run))
    end
end

function TestDeterminism:test_another_directory()
    lu.assertEquals(self.scratch:shell("mkdir -p deep/er && cd deep/er && " .. process.quote(
        support.root .. "/attngen") .. " emit ../../layer.lua ../../core.lua -o here").code, 0)
    assert_same_files(self, self:collect("deep/er/here"))
    assert_same_files(self, self:emit(("'%s' '%s'"):format(self.scratch:path("layer.lua"),
        self.scratch:path("core.lua")), self.scratch:path("absolute")) and self:collect("absolute"))
end

function TestDeterminism:test_another_checkout()
    local command <const> = ("mkdir -p 'a copy/tests' && cd ROOT && cp -r attngen gen templates "
        .. "runtime COPY && cp -r tests/harness COPY/tests && cd - && "
        .. "'a copy/attngen' emit layer.lua core.lua -o copied"):gsub("%u%u%u%u",
        { ROOT = process.quote(support.root), COPY = process.quote(self.scratch:path("a copy")) })
    local run <const> = self.scratch:shell(command)
    lu.assertEquals(run.code, 0, run.err)
    assert_same_files(self, self:collect("copied"))
end

function TestDeterminism:test_shuffled_keys()
    assert_same_files(self, self:emit("shuffled/layer.lua shuffled/core.lua", "shuffled/out"))
end

function TestDeterminism:test_order_of_configs()
    assert_same_files(self, self:emit("core.lua layer.lua", "reversed"))
end

function TestDeterminism:test_another_environment()
    assert_same_files(self, self:emit("layer.lua core.lua", "environment",
        "TZ=Asia/Tokyo USER=somebody HOME=/nonexistent LANG=C LC_ALL=POSIX COLUMNS=20"))
    assert_same_files(self, self:emit("layer.lua core.lua", "utf8", "LC_ALL=C.UTF-8"))
end

function TestDeterminism:test_a_locale_with_decimal_comma()
    local environment <const> = find_comma_locale(self.scratch)
    if not environment then
        lu.skip("no locale with a decimal comma here, and none can be built (package locales)")
    end
    -- LUA_INIT sets the locale, as a program that embeds Lua might.
    self.scratch:write("locale.lua", 'assert(os.setlocale("") and ("%.1f"):format(0.5) == "0,5")')
    assert_same_files(self, self:emit("layer.lua core.lua", "comma",
        environment .. " LUA_INIT=@locale.lua"))
end

-- JSON and Lua say the same, so they make the same.
function TestDeterminism:test_json_config()
    self.scratch:write("json/core.json", '{"op": "sdpa", "seq_len": 6, "heads": 3, "head_dim": 8, '
        .. '"v_head_dim": 5, "mask": ["bool", "additive"], "mask_shape": [1, 3, 6, 6], '
        .. '"empty_row": "uniform", "return_weights": "per_head", "isa": "scalar"}')
    assert_same_files(self, self:emit("json/core.json layer.lua", "json/out"))
end

if arg and arg[0] and arg[0]:find("test_determinism%.lua$") then
    os.exit(lu.LuaUnit.run())
end
