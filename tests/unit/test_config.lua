-- Configs: what is refused with which words, what a good one resolves to, files, overrides, docs.

package.path = "./?.lua;./?/init.lua;" .. package.path
local lfs <const> = require("lfs")
local lu <const> = require("luaunit")

local bad <const> = require("tests.unit.bad_configs.cases")
local config <const> = require("gen.config")
local diagnostics <const> = require("gen.diagnostics")
local keys <const> = require("gen.keys")
local names <const> = require("gen.config.names")
local sandbox <const> = require("gen.sandbox")
local sizes <const> = require("gen.config.sizes")
local strict_json <const> = require("gen.strict_json")

local NATIVE <const> = { native = function() return "avx2" end }

local function validate(raw)
    return config.validate(raw, "c.lua", "kernel", NATIVE)
end

----------------------------------------------------------------------------------------------------
-- Bad configs
----------------------------------------------------------------------------------------------------

TestConfigBad = {}

function TestConfigBad:test_every_case()
    lu.assertTrue(#bad.cases >= 80)
    for index, case in ipairs(bad.cases) do
        local expected <const> = {}
        for line = 2, #case do
            expected[line - 1] = bad.expand(case[line])
        end
        local record <const>, errors = config.validate(case[1], "c.lua", "kernel", {})
        lu.assertNil(record, ("case %d is accepted; expected: %s"):format(index, expected[1]))
        lu.assertEquals(config.format_errors(errors), table.concat(expected, "\n"))
    end
end

-- The same as data: what the command line or another tool reads.
function TestConfigBad:test_errors_are_data()
    local _, errors = validate(bad.with { heds = 7, mask = "casual" })
    lu.assertEquals(errors[1].file, "c.lua")
    lu.assertEquals(errors[1].key, "heds")
    lu.assertEquals(errors[1].value, 7)
    lu.assertEquals(errors[1].message, "unknown key")
    lu.assertEquals(errors[1].nearest, "heads")
    lu.assertStrContains(errors[1].allowed, "heads, kv_heads")
    lu.assertEquals(errors[2].key, "mask")
    lu.assertEquals(errors[2].value, "casual")
    lu.assertEquals(errors[2].nearest, "causal")
    lu.assertEquals(#errors, 2)
end

function TestConfigBad:test_no_error_is_more_than_one_line()
    for _, case in ipairs(bad.cases) do
        local _, errors = validate(case[1])
        for _, problem in ipairs(errors or {}) do
            lu.assertNil(diagnostics.format(problem):find("%c"))
        end
    end
end

-- The order does not depend on the order of a table.
function TestConfigBad:test_same_errors_whatever_the_table_order()
    local first
    for round = 1, 20 do
        local raw <const> = {}
        for index = 1, 40 do
            raw[("key%d"):format((index * 7 + round) % 40)] = index
        end
        local _, errors = validate(raw)
        local found <const> = {}
        for index, problem in ipairs(errors) do
            found[index] = problem.key
        end
        first = first or found
        lu.assertEquals(found, first)
    end
end

function TestConfigBad:test_a_flood_of_errors_is_cut()
    local raw <const> = bad.with {}
    for index = 1, 5000 do
        raw["k" .. index] = index
    end
    local _, errors = validate(raw)
    lu.assertEquals(#errors, 101)
    lu.assertEquals(errors[101].message, "too many errors; stopped")
end

function TestConfigBad:test_shared_tables_are_no_cycle_and_cost_nothing()
    local shared = {}
    for _ = 1, 14 do
        local list <const> = {}
        for index = 1, 2000 do
            list[index] = shared
        end
        shared = list
    end
    local _, errors = validate(bad.with { bias = shared })
    lu.assertStrContains(errors[1].message, "unknown key")
    local rows <const> = { rows = 8 }
    lu.assertNotNil(validate(bad.with { plan = { project = rows, output = rows } }))
end

function TestConfigBad:test_native_says_why_not()
    local _, errors = config.validate(bad.with { isa = "native" }, "c.lua", "kernel",
        { native = function() return nil, "no CPU" end })
    lu.assertEquals(errors[1].message, '"native" cannot be resolved here: no CPU')
    _, errors = config.validate(bad.with { isa = "native" }, "c.lua", "kernel",
        { native = function() return "mmx" end })
    lu.assertEquals(errors[1].message, '"native" cannot be resolved here')
end

function TestConfigBad:test_every_keyword_and_header_is_refused()
    for _, name in ipairs({ "alignas", "auto", "bool", "co_await", "concept", "delete", "export",
        "friend", "inline", "mutable", "namespace", "new", "not_eq", "nullptr", "register",
        "static_assert", "template", "this", "typeof", "union", "virtual", "wchar_t", "xor_eq" }) do
        lu.assertEquals(names.check(name, {}), "is reserved in C or C++", name)
    end
    for _, name in ipairs({ "stdio", "math", "immintrin", "arm_neon", "STDDEF" }) do
        lu.assertStrContains(names.check(name, {}), "would shadow", false, false, name)
    end
    for _, name in ipairs({ "attn_layer", "a", "A9_", "Int", "int_", "mains", "k8x64" }) do
        lu.assertNil(names.check(name, {}), name)
    end
end

----------------------------------------------------------------------------------------------------
-- Good configs
----------------------------------------------------------------------------------------------------

local function no_mask_but(...)
    local mask <const> = {
        causal = false, lengths = false, padding = false, bool = false, additive = false,
    }
    for _, name in ipairs({ ... }) do
        mask[name] = true
    end
    return mask
end

local NO_BIAS <const> = { q = false, k = false, v = false, o = false }

-- What bad.with {} and bad.sdpa {} resolve to.
local MHA_RECORD <const> = {
    name = "kernel", op = "mha", batch = 1, seq_len = 8, kv_len = 8, heads = 4, kv_heads = 4,
    head_dim = 16, v_head_dim = 16, d_model = 64, kv_dim = 64, cross = false, queries = "all",
    kv_cache = false,
    bias = { q = true, k = true, v = true, o = true }, output_projection = true, scale = 0.25,
    scale_is_default = true, mask = no_mask_but(), padded_queries = "compute", empty_row = "zero",
    return_weights = false, isa = { "scalar" }, unroll = "auto", code_budget = 24576, plan = {},
    target = {}, accuracy = "exact",
}
local SDPA_RECORD <const> = {
    name = "kernel", op = "sdpa", batch = 1, seq_len = 8, kv_len = 8, heads = 4, kv_heads = 4,
    head_dim = 16, v_head_dim = 16, d_model = 0, kv_dim = 0, cross = false, queries = "all",
    kv_cache = false, bias = NO_BIAS, output_projection = false, scale = 0.25,
    scale_is_default = true, mask = no_mask_but(),
    padded_queries = "compute", empty_row = "zero", return_weights = false, isa = { "scalar" },
    unroll = "auto", code_budget = 24576, plan = {}, target = {}, accuracy = "exact",
}

-- The raw keys, and how the record differs from that of the base.
local MHA_CASES <const> = {
    { {}, {} },
    { { batch = 3 }, { batch = 3 } },
    { { name = "layer_0" }, { name = "layer_0" } },
    { { name = ("n"):rep(47) }, { name = ("n"):rep(47) } },
    { { op = "mha", dtype = "f32" }, {} },
    { { seq_len = 8.0, d_model = 64.0, heads = 4.0, code_budget = 24576.0 }, {} },
    { { d_model = 512.0, heads = 8.0 },
        { d_model = 512, heads = 8, kv_heads = 8, kv_dim = 512, head_dim = 64, v_head_dim = 64,
            scale = 0.125 } },
    { { d_model = 1792, heads = 24, head_dim = 128 },
        { d_model = 1792, heads = 24, kv_heads = 24, kv_dim = 1792, head_dim = 128,
            v_head_dim = 128, scale = 1 / math.sqrt(128) } },
    { { d_model = 147, heads = 13, head_dim = 37 },
        { d_model = 147, heads = 13, kv_heads = 13, kv_dim = 147, head_dim = 37, v_head_dim = 37,
            scale = 1 / math.sqrt(37) } },
    { { kv_heads = 1 }, { kv_heads = 1 } },
    { { kv_heads = 2 }, { kv_heads = 2 } },
    { { kv_heads = 4 }, {} },
    { { v_head_dim = 24 }, { v_head_dim = 24 } },
    { { head_dim = 3, v_head_dim = 5 },
        { head_dim = 3, v_head_dim = 5, scale = 1 / math.sqrt(3) } },
    { { kv_len = 8, kv_dim = 64 }, {} },
    { { cross = true }, { cross = true } },
    { { cross = true, kv_len = 5, kv_dim = 48 }, { cross = true, kv_len = 5, kv_dim = 48 } },
    { { queries = "first" }, { queries = "first" } },
    { { queries = "last", seq_len = 1, kv_len = 8 }, { queries = "last", seq_len = 1 } },
    { { queries = "first", seq_len = 2, kv_len = 8, mask = "causal" }, { queries = "first",
        seq_len = 2, mask = no_mask_but("causal"), causal_align = "top_left" } },
    { { queries = "last", seq_len = 2, kv_len = 8, mask = "causal" }, { queries = "last",
        seq_len = 2, mask = no_mask_but("causal"), causal_align = "bottom_right" } },
    { { queries = "last", seq_len = 2, kv_len = 8, mask = "causal", causal_align = 1 },
        { queries = "last", seq_len = 2, mask = no_mask_but("causal"), causal_align = 1 } },
    { { bias = false }, { bias = NO_BIAS } },
    { { bias = true }, {} },
    { { bias = {} }, {} },
    { { bias = { k = false } }, { bias = { q = true, k = false, v = true, o = true } } },
    { { bias = { q = false, k = false, v = false, o = false } }, { bias = NO_BIAS } },
    { { output_projection = false },
        { output_projection = false, bias = { q = true, k = true, v = true, o = false } } },
    { { output_projection = false, bias = { o = false, v = false } },
        { output_projection = false, bias = { q = true, k = true, v = false, o = false } } },
    { { scale = 1 }, { scale = 1.0, scale_is_default = false } },
    { { scale = 0.25 }, { scale_is_default = false } },
    { { scale = -0.125 }, { scale = -0.125, scale_is_default = false } },
    { { scale = 0 }, { scale = 0.0, scale_is_default = false } },
    { { scale = -1e38 }, { scale = -1e38, scale_is_default = false } },
    { { mask = "none" }, {} },
    { { mask = { "none" } }, {} },
    { { mask = "causal" }, { mask = no_mask_but("causal"), causal_align = "top_left" } },
    { { mask = "causal", causal_align = "bottom_right" },
        { mask = no_mask_but("causal"), causal_align = "bottom_right" } },
    { { mask = "causal", causal_align = -2.0 },
        { mask = no_mask_but("causal"), causal_align = -2 } },
    { { mask = { "causal" }, causal_align = 3, cross = true, kv_len = 12 },
        { mask = no_mask_but("causal"), causal_align = 3, cross = true, kv_len = 12 } },
    { { mask = { "lengths", "causal" }, causal_align = "lengths", padded_queries = "zero" },
        { mask = no_mask_but("causal", "lengths"), causal_align = "lengths",
            padded_queries = "zero" } },
    { { mask = "padding", empty_row = "nan" },
        { mask = no_mask_but("padding"), empty_row = "nan" } },
    { { mask = "bool", empty_row = "uniform" },
        { mask = no_mask_but("bool"), mask_shape = { 1, 1, 8, 8 }, empty_row = "uniform" } },
    { { mask = "additive", batch = 2, mask_shape = { 2.0, 4.0, 1.0, 8.0 } },
        { mask = no_mask_but("additive"), batch = 2, mask_shape = { 2, 4, 1, 8 } } },
    { { mask = { "bool", "additive", "padding", "lengths", "causal" }, batch = 5 },
        { mask = no_mask_but("bool", "additive", "padding", "lengths", "causal"), batch = 5,
            mask_shape = { 5, 1, 8, 8 }, causal_align = "top_left" } },
    { { kv_cache = false }, {} },
    { { kv_cache = "append", kv_len = 32 },
        { kv_cache = "append", kv_len = 32, mask = no_mask_but("causal", "lengths"),
            causal_align = "lengths" } },
    { { kv_cache = "append", kv_dim = 64, mask = { "lengths", "padding" },
        causal_align = "lengths" },
        { kv_cache = "append", mask = no_mask_but("causal", "lengths", "padding"),
            causal_align = "lengths" } },
    { { kv_cache = "static", kv_len = 5 },
        { kv_cache = "static", kv_len = 5,
            bias = { q = true, k = false, v = false, o = true } } },
    { { kv_cache = "static", bias = { k = false }, mask = "lengths", padded_queries = "zero" },
        { kv_cache = "static", mask = no_mask_but("lengths"), padded_queries = "zero",
            bias = { q = true, k = false, v = false, o = true } } },
    { { return_weights = "per_head" }, { return_weights = "per_head" } },
    { { return_weights = "mean" }, { return_weights = "mean" } },
    { { return_weights = false, accuracy = "fast" }, { accuracy = "fast" } },
    { { isa = "native" }, { isa = { "avx2" } } },
    { { isa = { "neon", "scalar" } }, { isa = { "neon", "scalar" } } },
    { { isa = { "native", "avx2", "scalar" } }, { isa = { "avx2", "scalar" } } },
    { { unroll = "full", code_budget = 1048576 }, { unroll = "full", code_budget = 1048576 } },
    { { unroll = "tiles" }, { unroll = "tiles" } },
    { { plan = { project = { rows = 5.0, vectors = 4, unroll = 2 }, fold = { k_bias = false } } },
        { plan = { project = { rows = 5, vectors = 4, unroll = 2 }, fold = { k_bias = false } } } },
    { { plan = { scores = {}, context = { rows = 32 }, output = { unroll = 64 } } },
        { plan = { scores = {}, context = { rows = 32 }, output = { unroll = 64 } } } },
    { { target = { l1d = 32768.0, l1i = 32768, l2 = 1 << 20, fma_latency = 4, fma_pipes = 2 } },
        { target = { l1d = 32768, l1i = 32768, l2 = 1 << 20, fma_latency = 4, fma_pipes = 2 } } },
    -- BC-46: large, but every size is exact in 64 bits.
    { { batch = 20, heads = 32, seq_len = 2000, d_model = 2048 },
        { batch = 20, heads = 32, kv_heads = 32, seq_len = 2000, kv_len = 2000, d_model = 2048,
            kv_dim = 2048, head_dim = 64, v_head_dim = 64, scale = 0.125 } },
    { { seq_len = 46341 }, { seq_len = 46341, kv_len = 46341 } },
}

local SDPA_CASES <const> = {
    { {}, {} },
    { { layout = "bhld" }, {} },
    { { kv_len = 5, mask = "causal", causal_align = "bottom_right" },
        { kv_len = 5, mask = no_mask_but("causal"), causal_align = "bottom_right" } },
    { { seq_len = 1, kv_len = 5, mask = { "causal", "lengths" }, causal_align = "lengths" },
        { seq_len = 1, kv_len = 5, mask = no_mask_but("causal", "lengths"),
            causal_align = "lengths" } },
    { { heads = 8, kv_heads = 2, head_dim = 64, v_head_dim = 32 },
        { heads = 8, kv_heads = 2, head_dim = 64, v_head_dim = 32, scale = 0.125 } },
    { { mask = "additive", mask_shape = { 1, 4, 8, 8 }, return_weights = "mean" },
        { mask = no_mask_but("additive"), mask_shape = { 1, 4, 8, 8 }, return_weights = "mean" } },
    { { plan = { scores = { rows = 4, vectors = 2 }, fold = { scale = true } } },
        { plan = { scores = { rows = 4, vectors = 2 }, fold = { scale = true } } } },
}

local function merge(base, changes)
    local result <const> = {}
    for _, source in ipairs({ base, changes }) do
        for key, value in pairs(source) do
            result[key] = value
        end
    end
    return result
end

-- Every number of a record in its text form, so that 64 and 64.0 differ.
local function spell(value)
    if type(value) ~= "table" then
        return math.type(value) == "float" and ("%a"):format(value) or tostring(value)
    end
    local result <const> = {}
    for key, item in pairs(value) do
        result[key] = spell(item)
    end
    return result
end

TestConfigGood = {}

local function assert_records(cases, build, base_record)
    for index, case in ipairs(cases) do
        local record <const>, errors = validate(build(case[1]))
        lu.assertNotNil(record, ("case %d: %s"):format(index,
            errors and config.format_errors(errors) or ""))
        lu.assertEquals(spell(record), spell(merge(base_record, case[2])))
    end
end

function TestConfigGood:test_mha()
    lu.assertTrue(#MHA_CASES + #SDPA_CASES >= 40)
    assert_records(MHA_CASES, bad.with, MHA_RECORD)
end

function TestConfigGood:test_sdpa()
    assert_records(SDPA_CASES, bad.sdpa, SDPA_RECORD)
end

function TestConfigGood:test_the_scale_has_all_its_digits()
    for _, case in ipairs({ { 3, 0x1.279a74p-1 }, { 7, 0x1.83091ep-2 }, { 40, 0x1.43d136p-3 },
        { 72, 0x1.e2b7dep-4 }, { 80, 0x1.c9f25cp-4 }, { 96, 0x1.a20bd8p-4 } }) do
        local record <const> = validate(bad.with { head_dim = case[1] })
        lu.assertEquals(string.unpack("f", string.pack("f", record.scale)), case[2])
    end
end

function TestConfigGood:test_the_raw_table_is_not_changed()
    local raw <const> = bad.with { mask = { "causal" }, bias = { k = false }, layout = "bhld" }
    local copy <const> = merge(raw, {})
    validate(raw)
    lu.assertEquals(raw, copy)
end

function TestConfigGood:test_the_name_falls_back_to_the_default()
    lu.assertEquals(validate(bad.with {}).name, "kernel")
    local _, errors = config.validate(bad.with {}, "2-x.lua", "2-x", NATIVE)
    lu.assertEquals(config.format_errors(errors), '2-x.lua: name = "2-x": the file name cannot be '
        .. "the kernel's name: is no C identifier (allowed: a letter, then letters, digits and _; "
        .. "give `name`)")
    _, errors = config.validate(bad.with {}, "c", nil, NATIVE)
    lu.assertEquals(config.format_errors(errors), "c: name: required, but missing (allowed: a C "
        .. "identifier (letter first, then letters, digits, _), no keyword)")
end

function TestConfigGood:test_products_are_checked()
    lu.assertEquals(sizes.multiply(1 << 31, 1 << 31), 1 << 62)
    lu.assertEquals(sizes.multiply(math.maxinteger, 1), math.maxinteger)
    lu.assertNil(sizes.multiply(1 << 32, 1 << 31))
    lu.assertNil(sizes.multiply(math.maxinteger, 2))
    lu.assertNil(sizes.multiply(3037000500, 3037000500))
    lu.assertEquals(sizes.multiply(3037000499, 3037000499), 9223372030926249001)
end

----------------------------------------------------------------------------------------------------
-- Files
----------------------------------------------------------------------------------------------------

TestConfigFiles = {}

function TestConfigFiles:setUp()
    self.dir = os.tmpname()
    os.remove(self.dir)
    assert(lfs.mkdir(self.dir))
    self.made = {}
end

function TestConfigFiles:tearDown()
    for _, path in ipairs(self.made) do
        os.remove(path)
    end
    assert(lfs.rmdir(self.dir))
end

function TestConfigFiles:write(name, text)
    local path <const> = self.dir .. "/" .. name
    local file <const> = assert(io.open(path, "wb"))
    assert(file:write(text))
    assert(file:close())
    self.made[#self.made + 1] = path
    return path
end

function TestConfigFiles:load(name, text, overrides)
    return config.load(self:write(name, text), overrides, NATIVE)
end

-- The message for a file, without its path and the general hint.
function TestConfigFiles:assert_refused(name, text, expected)
    local records <const>, errors = self:load(name, text)
    lu.assertNil(records, expected)
    local path <const> = self.dir .. "/" .. name
    lu.assertEquals(errors[1].file, path)
    lu.assertEquals(config.format_errors(errors), path .. ": " .. expected
        .. " (allowed: a text file ending in .lua or .json that holds one table)")
end

local LUA <const> = 'return { seq_len = 8, d_model = 64, heads = 4, isa = "scalar" }\n'
local JSON <const> = '{"seq_len": 8, "d_model": 64, "heads": 4, "isa": "scalar"}\n'

function TestConfigFiles:test_lua_and_json_say_the_same()
    local from_lua <const> = self:load("block.lua", LUA)
    local from_json <const> = self:load("block.json", JSON)
    lu.assertEquals(#from_lua, 1)
    lu.assertEquals(spell(from_lua[1]), spell(merge(MHA_RECORD, { name = "block" })))
    lu.assertEquals(spell(from_json), spell(from_lua))
end

function TestConfigFiles:test_integral_floats_of_json_are_integers()
    local records <const> = self:load("block.json",
        '{"seq_len": 8.0, "d_model": 6.4e1, "heads": 4, "isa": ["scalar"], "name": "block"}')
    lu.assertEquals(spell(records[1]), spell(merge(MHA_RECORD, { name = "block" })))
end

function TestConfigFiles:test_byte_order_mark_and_line_ends()
    lu.assertNotNil(self:load("a.lua", "\xEF\xBB\xBF" .. LUA))
    lu.assertNotNil(self:load("a.json", "\xEF\xBB\xBF" .. JSON))
    lu.assertNotNil(self:load("b.lua", (("-- comment\n" .. LUA):gsub("\n", "\r\n"))))
    lu.assertNotNil(self:load("b.json", (JSON:gsub(", ", ",\r\n\t"))))
end

function TestConfigFiles:test_empty_and_binary()
    for _, name in ipairs({ "a.lua", "a.json" }) do
        self:assert_refused(name, "", "is empty")
        self:assert_refused(name, " \n\t\r\n", "is empty")
        self:assert_refused(name, "\xEF\xBB\xBF\n", "is empty")
        self:assert_refused(name, "\x7FELF\2\1\1\0\0\0", "is a binary file")
        self:assert_refused(name, string.dump(function() end), "is a binary file")
        self:assert_refused(name, "\27Lua", "is a binary file")
        self:assert_refused(name, (" "):rep(262145), "longer than 262144 bytes")
    end
end

function TestConfigFiles:test_files_that_cannot_be_read()
    local _, errors = config.load(self.dir .. "/absent.lua")
    lu.assertEquals(errors[1].message, "cannot be read: No such file or directory")
    local folder <const> = self.dir .. "/folder.lua"
    assert(lfs.mkdir(folder))
    _, errors = config.load(folder)
    assert(lfs.rmdir(folder))
    lu.assertEquals(errors[1].message, "cannot be read: is a directory")
    local loop <const> = self.dir .. "/loop.json"
    assert(lfs.link("loop.json", loop, true))
    self.made[#self.made + 1] = loop
    _, errors = config.load(loop)
    lu.assertEquals(errors[1].message, "cannot be read: Too many levels of symbolic links")
    _, errors = config.load(self.dir .. "/a.lua/b.lua")
    lu.assertStrContains(errors[1].message, "cannot be read: ")
end

function TestConfigFiles:test_other_file_names()
    for _, name in ipairs({ "config.yaml", "config", "config.LUA", "json", "config.lua.bak" }) do
        self:assert_refused(name, LUA, "neither a .lua nor a .json file")
    end
end

function TestConfigFiles:test_files_that_hold_no_table()
    self:assert_refused("a.lua", "seq_len = 8", "must return a table, not nothing")
    self:assert_refused("a.lua", "return 4", "must return a table, not 4")
    self:assert_refused("a.lua", "return math.floor", "must return a table, not (function)")
    self:assert_refused("a.json", "null", "must hold a table, not null")
    self:assert_refused("a.json", '"mha"', 'must hold a table, not "mha"')
    self:assert_refused("a.json", "false", "must hold a table, not false")
end

function TestConfigFiles:test_lua_errors()
    local prefix <const> = "is not a valid Lua config: "
    self:assert_refused("a.lua", "return {\n  seq_len = ,\n}",
        prefix .. "line 2: unexpected symbol near ','")
    self:assert_refused("a.lua", "return os.exit(0)",
        prefix .. "line 1: attempt to index a nil value (global 'os')")
    self:assert_refused("a.lua", "while true do end",
        prefix .. "stopped: runs more than 250000 instructions")
    self:assert_refused("a.lua", "return " .. ("{"):rep(10000) .. ("}"):rep(10000),
        prefix .. "nested too deeply")
    self:assert_refused("a.lua", JSON, prefix .. "line 1: unexpected symbol near '{'")
end

function TestConfigFiles:test_lua_tables_of_any_shape()
    local _, errors = self:load("a.lua", "local t = { seq_len = 8 } t.mask = t return t")
    lu.assertEquals(errors[1].key, "mask")
    lu.assertEquals(errors[1].message, "contains itself")
    _, errors = self:load("a.lua", "local t = {} t[t] = t return t")
    lu.assertStrContains(config.format_errors(errors), "[{")
    lu.assertEquals(errors[1].message, "unknown key")
    _, errors = self:load("a.lua",
        "local t = {} for i = 1, 5000 do t = { t } end return { plan = t }")
    lu.assertEquals(errors[1].message, "nested more than 16 deep")
end

function TestConfigFiles:test_a_file_may_compute()
    local records <const> = self:load("a.lua", [[
        local heads = 4
        local width = 0
        for _ = 1, heads do width = width + 16 end
        return { seq_len = math.max(8, 3), d_model = width, heads = heads, isa = "scalar",
            scale = 1 / math.sqrt(16), name = "h" .. heads }
    ]])
    lu.assertEquals(spell(records[1]),
        spell(merge(MHA_RECORD, { name = "h4", scale_is_default = false })))
end

function TestConfigFiles:test_the_file_name_is_the_default_name()
    lu.assertEquals(self:load("tiny_2x4.lua", LUA)[1].name, "tiny_2x4")
    local _, errors = self:load("2x4.lua", LUA)
    lu.assertEquals(errors[1].key, "name")
    lu.assertEquals(errors[1].value, "2x4")
    lu.assertStrContains(errors[1].message, "the file name cannot be the kernel's name")
    _, errors = self:load("a.b.json", JSON)
    lu.assertEquals(errors[1].value, "a.b")
    lu.assertEquals(self:load("2x4.json", '{"name": "ok",' .. JSON:sub(2))[1].name, "ok")
end

----------------------------------------------------------------------------------------------------
-- JSON
----------------------------------------------------------------------------------------------------

local BAD_JSON <const> = {
    { '{"a": 1, "a": 2}', 'line 1, column 10: key "a" appears twice' },
    { '{"a": 1, "\\u0061": 2}', 'line 1, column 10: key "\\u0061" appears twice' },
    { '{"p": {"x": 1, "x": 1}}', 'line 1, column 16: key "x" appears twice' },
    { '{} x', "line 1, column 4: text after the end of the value" },
    { "{}{}", "line 1, column 3: text after the end of the value" },
    { "{}\n,", "line 2, column 1: text after the end of the value" },
    { '{"a": 1,}', "line 1, column 9: expected a key in double quotes" },
    { '{"a" 1}', 'line 1, column 6: expected ":"' },
    { '{"a": 1 "b": 2}', 'line 1, column 9: expected "," or "}"' },
    { "{a: 1}", "line 1, column 2: expected a key in double quotes" },
    { "{1: 1}", "line 1, column 2: expected a key in double quotes" },
    { "[1 2]", 'line 1, column 4: expected "," or "]"' },
    { "[1,]", "line 1, column 4: not a JSON value" },
    { "{'a': 1}", "line 1, column 2: expected a key in double quotes" },
    { '{"a": NaN}', "line 1, column 7: not a JSON value" },
    { '{"a": Infinity}', "line 1, column 7: not a JSON value" },
    { '{"a": -inf}', "line 1, column 7: not a JSON value" },
    { '{"a": nil}', "line 1, column 7: not a JSON value" },
    { '{"a": True}', "line 1, column 7: not a JSON value" },
    { '{"a": 01}', "line 1, column 7: not a JSON value" },
    { '{"a": +1}', "line 1, column 7: not a JSON value" },
    { '{"a": .5}', "line 1, column 7: not a JSON value" },
    { '{"a": 1.}', "line 1, column 7: not a JSON value" },
    { '{"a": 0x10}', "line 1, column 7: not a JSON value" },
    { '{"a": 1e}', "line 1, column 7: not a JSON value" },
    { '{"a": "b', "line 1, column 7: string without end" },
    { '{"a": "\\q"}', "line 1, column 8: unknown escape in a string" },
    { '{"a": "\\u12g4"}', "line 1, column 8: unknown escape in a string" },
    { '{"a": "b\nc"}', "line 1, column 9: control character in a string" },
    { "{", "line 1, column 2: expected a key in double quotes" },
    { '{"a": ', "line 1, column 7: value expected, but the text ends" },
    { "// comment\n{}", "line 1, column 1: not a JSON value" },
    { '{"a": /* x */ 1}', "line 1, column 7: not a JSON value" },
    { ("["):rep(33) .. ("]"):rep(33), "line 1, column 33: nested more than 32 deep" },
    { ('{"a":'):rep(100000), "line 1, column 161: nested more than 32 deep" },
    { "\xEF\xBB\xBF{}", "line 1, column 1: not a JSON value" },
}

TestConfigJson = {}

function TestConfigJson:test_bad_texts()
    for _, case in ipairs(BAD_JSON) do
        local value <const>, message = strict_json.decode(case[1])
        lu.assertNil(value, case[1]:sub(1, 80))
        lu.assertEquals(message, case[2], case[1]:sub(1, 80))
    end
end

function TestConfigJson:test_good_texts()
    local cases <const> = {
        { "{}", {} }, { " [ ] ", {} }, { "true", true }, { "false", false }, { "-0", 0 },
        { "1.5e3", 1500.0 }, { "-12E-1", -1.2 }, { '"a\\"\\\\\\n\\u00e9\127"', 'a"\\\né\127' },
        { '{"a": [1, {"b": ""}], "c": {}}', { a = { 1, { b = "" } }, c = {} } },
        { ("["):rep(32) .. ("]"):rep(32), nil },
    }
    for _, case in ipairs(cases) do
        local value <const>, message = strict_json.decode(case[1])
        lu.assertNil(message, case[1])
        if case[2] ~= nil then
            lu.assertEquals(value, case[2])
        end
    end
    lu.assertEquals(strict_json.decode("null"), strict_json.null)
    lu.assertEquals(strict_json.decode("9007199254740993"), 9007199254740993)
end

function TestConfigJson:test_null_and_infinite_numbers_reach_no_record()
    local raw <const> = strict_json.decode('{"seq_len": 8, "d_model": 1e999, "heads": 4, '
        .. '"kv_len": null, "scale": -1e999, "isa": "scalar"}')
    local _, errors = validate(raw)
    lu.assertEquals(config.format_errors(errors), bad.expand(table.concat({
        "c.lua: kv_len = null: must be an integer, not null (allowed: <SIZE>)",
        "c.lua: d_model = inf: must be an integer, not the number inf (allowed: <SIZE>)",
        "c.lua: scale = -inf: not finite (allowed: a finite number between -1e38 and 1e38)",
    }, "\n")))
end

----------------------------------------------------------------------------------------------------
-- Overrides
----------------------------------------------------------------------------------------------------

TestConfigSet = {}

TestConfigSet.setUp, TestConfigSet.tearDown = TestConfigFiles.setUp, TestConfigFiles.tearDown
TestConfigSet.write, TestConfigSet.load = TestConfigFiles.write, TestConfigFiles.load

function TestConfigSet:assert_records(overrides, expected)
    local records <const>, errors = self:load("block.lua", LUA, overrides)
    lu.assertNotNil(records, errors and config.format_errors(errors))
    lu.assertEquals(#records, #expected)
    for index, differences in ipairs(expected) do
        lu.assertEquals(spell(records[index]),
            spell(merge(merge(MHA_RECORD, { name = "block" }), differences)))
    end
end

function TestConfigSet:assert_refused(overrides, expected)
    local records <const>, errors = self:load("block.lua", LUA, overrides)
    lu.assertNil(records)
    local text <const> = config.format_errors(errors):gsub(self.dir .. "/", "")
    lu.assertEquals(text, bad.expand(expected))
end

function TestConfigSet:test_one_value_keeps_the_name()
    self:assert_records({}, { {} })
    self:assert_records({ { "batch", { "3" } } }, { { batch = 3 } })
    self:assert_records({ { "batch", { "3.0" } } }, { { batch = 3 } })
    self:assert_records({ { "batch", { 3 } } }, { { batch = 3 } })
    self:assert_records({ { "bias", { "false" } } }, { { bias = NO_BIAS } })
    self:assert_records({ { "name", { "other" } } }, { { name = "other" } })
    self:assert_records({ { "name", { '"other"' } } }, { { name = "other" } })
    self:assert_records({ { "isa", { "neon" } } }, { { isa = { "neon" } } })
    self:assert_records({ { "isa", { '["neon", "scalar"]' } } }, { { isa = { "neon", "scalar" } } })
    self:assert_records({ { "bias", { '{"k": false}' } } },
        { { bias = { q = true, k = false, v = true, o = true } } })
end

function TestConfigSet:test_dots_reach_into_tables()
    self:assert_records({ { "plan.scores.rows", { "8" } }, { "plan.scores.vectors", { "2" } },
        { "target.l2", { "1048576" } }, { "plan.fold.scale", { "false" } } },
        { { plan = { scores = { rows = 8, vectors = 2 }, fold = { scale = false } },
            target = { l2 = 1048576 } } })
    self:assert_records({ { "plan", { '{"scores": {"rows": 4}}' } },
        { "plan.scores.rows", { "8", "6" } } },
        { { name = "block_plan_scores_rows8", plan = { scores = { rows = 8 } } },
            { name = "block_plan_scores_rows6", plan = { scores = { rows = 6 } } } })
end

function TestConfigSet:test_lists_multiply_out()
    local w16 <const>, w8 <const> = { kv_heads = 1 }, { kv_heads = 2 }
    self:assert_records({ { "kv_heads", { "1", "2" } }, { "isa", { "avx2", "neon" } } }, {
        merge(w16, { name = "block_kv_heads1_isaavx2", isa = { "avx2" } }),
        merge(w16, { name = "block_kv_heads1_isaneon", isa = { "neon" } }),
        merge(w8, { name = "block_kv_heads2_isaavx2", isa = { "avx2" } }),
        merge(w8, { name = "block_kv_heads2_isaneon", isa = { "neon" } }),
    })
end

function TestConfigSet:test_suffixes_are_identifiers()
    self:assert_records({ { "scale", { "-0.5", "0.5" } } }, {
        { name = "block_scalem0p5", scale = -0.5, scale_is_default = false },
        { name = "block_scale0p5", scale = 0.5, scale_is_default = false },
    })
    self:assert_records({ { "mask", { '["lengths", "padding"]', "none" } } }, {
        { name = "block_masklengths_padding", mask = no_mask_but("lengths", "padding") },
        { name = "block_masknone" },
    })
    self:assert_records({ { "bias", { "true", '{"k": true, "q": false}' } } }, {
        { name = "block_biastrue" },
        { name = "block_biasktrue_qfalse", bias = { q = false, k = true, v = true, o = true } },
    })
end

function TestConfigSet:test_names_multiply_without_suffix()
    self:assert_records({ { "name", { "a", "b" } } }, { { name = "a" }, { name = "b" } })
    self:assert_records({ { "name", { "a" } }, { "kv_heads", { "1", "2" } } },
        { { name = "a_kv_heads1", kv_heads = 1 }, { name = "a_kv_heads2", kv_heads = 2 } })
end

function TestConfigSet:test_the_last_set_of_a_key_wins()
    self:assert_records({ { "batch", { "1", "2" } }, { "batch", { "3" } } }, { { batch = 3 } })
end

function TestConfigSet:test_bad_overrides()
    self:assert_refused({ { "heads", { "5", "8" } }, { "kv_heads", { "3" } } },
        "block.lua: kv_heads = 3: heads 5 is not a multiple of kv_heads 3 "
        .. "(allowed: a divisor of heads, such as 1 or 5)\n"
        .. "block.lua: heads = 5: d_model 64 is not a multiple of heads 5 (allowed: a divisor of "
        .. "d_model, such as 4 or 8; or give head_dim)\n"
        .. "block.lua: kv_heads = 3: heads 8 is not a multiple of kv_heads 3 "
        .. "(allowed: a divisor of heads, such as 2 or 4)")
    self:assert_refused({ { "hedas", { "1" } } },
        'block.lua: hedas = 1: unknown key (allowed: <KEYS>; did you mean "heads"?)')
    self:assert_refused({ { "softcap", { "30" } } },
        "block.lua: softcap = 30: not supported yet (allowed: <KEYS>)")
    self:assert_refused({ { "batch", { "nan" } } },
        'block.lua: batch = "nan": must be an integer, not a string (allowed: <SIZE>)')
    self:assert_refused({ { "batch", { "0x10" } } },
        'block.lua: batch = "0x10": must be an integer, not a string (allowed: <SIZE>)')
    self:assert_refused({ { "batch", { "" } } },
        'block.lua: batch = "": must be an integer, not a string (allowed: <SIZE>)')
    self:assert_refused({ { "batch", { "null" } } },
        "block.lua: batch = null: must be an integer, not null (allowed: <SIZE>)")
    self:assert_refused({ { "mask", { '["causal"' } } },
        'block.lua: mask = "[\\"causal\\"": not valid JSON: line 1, column 10: expected "," or "]" '
        .. "(allowed: one value or a list of different ones, JSON for lists and tables)")
    self:assert_refused({ { "batch", { "2", "2.0" } } },
        'block.lua: batch = "2.0": given twice in one --set (allowed: one value or a list of '
        .. "different ones, JSON for lists and tables)")
    self:assert_refused({ { "heads.x", { "2" } } },
        "block.lua: heads = 4: not a table, so --set heads.x has no place")
    for _, key in ipairs({ "", ".rows", "plan.", "plan..rows" }) do
        self:assert_refused({ { key, { "2" } } }, ("block.lua: --set %s: not a key with a value "
            .. "(allowed: KEY=VALUE, or STAGE.KEY=VALUE with dots for nested keys)"):format(key))
    end
    self:assert_refused({ { "batch", {} } }, "block.lua: --set batch: not a key with a value "
        .. "(allowed: KEY=VALUE, or STAGE.KEY=VALUE with dots for nested keys)")
end

function TestConfigSet:test_errors_shared_by_all_variants_come_once()
    self:assert_refused({ { "softcap", { "1" } }, { "kv_heads", { "1", "2", "4" } } },
        "block.lua: softcap = 1: not supported yet (allowed: <KEYS>)")
end

function TestConfigSet:test_too_many_variants()
    local values <const> = {}
    for index = 1, 100 do
        values[index] = tostring(index)
    end
    self:assert_refused({ { "batch", values }, { "seq_len", values } },
        "block.lua: --set: the lists multiply out to more than 4096 variants")
end

----------------------------------------------------------------------------------------------------
-- Diagnostics and docs
----------------------------------------------------------------------------------------------------

TestConfigWords = {}

function TestConfigWords:test_nearest()
    local list <const> = { "heads", "kv_heads", "head_dim", "batch", false }
    for text, expected in pairs({ head = "heads", haeds = "heads", HEADS = "heads",
        kvheads = "kv_heads", ["head-dim"] = "head_dim", bacth = "batch" }) do
        lu.assertEquals(diagnostics.nearest(text, list), expected, text)
    end
    for _, text in ipairs({ "x", "", "temperature", ("h"):rep(1000) }) do
        lu.assertNil(diagnostics.nearest(text, list), text)
    end
    lu.assertNil(diagnostics.nearest(5, list))
end

function TestConfigWords:test_names_of_other_libraries()
    for theirs, ours in pairs({ num_heads = "heads", embed_dim = "d_model", kdim = "kv_dim",
        num_key_value_heads = "kv_heads", hidden_size = "d_model", is_causal = "mask",
        batch_size = "batch", d_k = "head_dim", need_weights = "return_weights" }) do
        local _, errors = validate(bad.with { [theirs] = 1 })
        lu.assertEquals(errors[1].nearest, ours, theirs)
    end
end

function TestConfigWords:test_render()
    local cases <const> = {
        { 512.0, "512" }, { 0.1, "0.1" }, { 1 / 3, "0.33333333333333331" }, { 1e300, "1e+300" },
        { -0.0, "-0" }, { "a\0\n\127b", '"a\\x00\\x0A\\x7Fb"' }, { "\xFF\xFE", '"\\xFF\\xFE"' },
        { ("é"):rep(40), '"' .. ("é"):rep(30) .. '…"' }, { 'a"b\\', '"a\\"b\\\\"' },
        { { b = 1, a = { 2 } }, "{a = {2}, b = 1}" },
        { { 1, 2, 3, 4, 5, 6, 7 }, "{1, 2, 3, 4, 5, 6, …}" }, { print, "(function)" },
    }
    for _, case in ipairs(cases) do
        lu.assertEquals(diagnostics.render(case[1]), case[2])
    end
end

function TestConfigWords:test_every_built_key_is_read()
    for _, entry in ipairs(keys.list) do
        if entry.status == "built" then
            local _, errors = validate(bad.with { [entry.name] = print })
            local named <const> = {}
            for _, problem in ipairs(errors) do
                named[problem.key] = problem.message
            end
            lu.assertNotNil(named[entry.name], entry.name)
            lu.assertNotEquals(named[entry.name], "unknown key")
        end
    end
end

function TestConfigWords:test_the_reference_page_is_current()
    local file <const> = assert(io.open("docs/config.md", "rb"))
    local page <const> = file:read("a")
    file:close()
    lu.assertEquals(keys.update_page(page), page, "run: lua5.4 tools/update_config_page.lua")
    for _, entry in ipairs(keys.list) do
        lu.assertStrContains(page, "| `" .. entry.name .. "` |")
    end
end

-- The examples of the page are configs.
function TestConfigWords:test_the_examples_of_the_page_are_valid()
    local file <const> = assert(io.open("docs/config.md", "rb"))
    local page <const> = file:read("a")
    file:close()
    local lua_text <const> = assert(page:match("```lua\n(.-)```"))
    local json_text <const> = assert(page:match("```json\n(.-)```"))
    local raw <const> = load(lua_text, "=page", "t", {})()
    lu.assertNotNil(validate(raw))
    lu.assertEquals(validate(strict_json.decode(json_text)), validate(raw))
end

----------------------------------------------------------------------------------------------------
-- Random damage: whatever comes in, the answer is a record or errors, never a Lua error
----------------------------------------------------------------------------------------------------

local ODD_VALUES <const> = {
    0, 1, -1, 8, 0.5, 1e300, 0 / 0, math.huge, math.maxinteger, math.mininteger, 2147483647, true,
    false, "", "causal", "lengths", "none", "top_left", "zero", "native", "avx2", "sdpa", "mha",
    "\0", {}, { 1, 1, 8, 8 }, { "causal", "lengths" }, { false }, { q = true }, { rows = 4 },
    { scores = { rows = 4 } }, { { { {} } } }, { [false] = 1 }, print, strict_json.null, io.stdout,
}

TestConfigDamage = {}

function TestConfigDamage:setUp()
    math.randomseed(20240607)
end

function TestConfigDamage:test_random_tables()
    local accepted, refused = 0, 0
    for _ = 1, 5000 do
        local raw <const> = math.random(2) == 1 and bad.with {} or bad.sdpa {}
        for _ = 1, math.random(3) do
            raw[keys.list[math.random(#keys.list)].name] = ODD_VALUES[math.random(#ODD_VALUES)]
        end
        local record <const>, errors = validate(raw)
        if record then
            accepted = accepted + 1
        else
            refused = refused + 1
            lu.assertTrue(#errors > 0)
            for line in (config.format_errors(errors) .. "\n"):gmatch("(.-)\n") do
                lu.assertEquals(line:sub(1, 7), "c.lua: ")
            end
        end
    end
    lu.assertTrue(accepted > 40 and refused > 4000, accepted .. " accepted")
end

local function damage(text)
    local at <const> = math.random(#text)
    local kind <const> = math.random(3)
    local middle = kind == 1 and "" or string.char(math.random(0, 255))
    if kind == 3 then
        middle = text:sub(at, at + math.random(10))
    end
    return text:sub(1, at - 1) .. middle .. text:sub(at + (kind == 3 and 0 or 1))
end

function TestConfigDamage:test_random_texts()
    local json_text <const> = '{"seq_len": 8, "d_model": 64, "heads": 4, "isa": ["scalar"], '
        .. '"bias": {"k": false}, "scale": 1.5e-1, "name": "a\\u0062", "cross": null}'
    local lua_text <const> = 'return { seq_len = 8, heads = math.floor(4.5), isa = { "scalar" }, '
        .. "bias = { k = not true }, d_model = (function(n) for i = 1, 3 do n = n * 2 end "
        .. "return n end)(8) }"
    for _ = 1, 3000 do
        local text = damage(json_text)
        local value, message = strict_json.decode(text)
        lu.assertTrue((value == nil) == (message ~= nil), text)
        text = damage(damage(lua_text))
        local ok
        ok, value = sandbox.evaluate(text)
        lu.assertTrue(ok or type(value) == "string", text)
        if ok and type(value) == "table" then
            validate(value)
        end
    end
end

if arg and arg[0] and arg[0]:find("test_config%.lua$") then
    os.exit(lu.LuaUnit.run())
end
