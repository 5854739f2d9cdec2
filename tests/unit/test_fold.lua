-- Which algebra moves into the packed weights: every rule on, off, and overridden.

package.path = "./?.lua;./?/init.lua;" .. package.path
local lu <const> = require("luaunit")

local config <const> = require("gen.config")
local fold <const> = require("gen.fold")
local problem <const> = require("gen.problem")

local LOG2_E <const> = 0x1.71547652b82fep+0

local function build_fold(fields)
    local raw <const> = { op = "mha", batch = 2, seq_len = 6, d_model = 32, heads = 4,
        isa = "scalar" }
    for key, value in pairs(fields or {}) do raw[key] = value end
    if raw.op == "sdpa" then raw.d_model, raw.head_dim = nil, 8 end
    local record <const>, errors = config.validate(raw, "test", "test")
    lu.assertNotNil(record, errors and config.format_errors(errors))
    return fold.apply(problem.build(record)).fold
end

local function has_reason(folded, text)
    for _, reason in ipairs(folded.reasons) do
        if reason:find(text, 1, true) then return true end
    end
    return false
end

TestScale = {}

function TestScale:test_scale_and_log2e_go_into_wq()
    local folded <const> = build_fold({ scale = 0.25 })
    lu.assertEquals(folded.base, 2)
    lu.assertEquals(folded.weight_scale, 0.25 * LOG2_E)
    lu.assertEquals(folded.query_scale, 1.0)
    lu.assertTrue(has_reason(folded, "folded into Wq"))
end

function TestScale:test_the_default_scale_is_that_of_the_head()
    lu.assertAlmostEquals(build_fold().weight_scale, LOG2_E / math.sqrt(8), 1e-15)
end

function TestScale:test_fold_scale_off_leaves_it_to_the_queries()
    local folded <const> = build_fold({ scale = 0.25, plan = { fold = { scale = false } } })
    lu.assertEquals(folded.weight_scale, 1.0)
    lu.assertEquals(folded.query_scale, 0.25 * LOG2_E)
    lu.assertEquals(folded.base, 2)
    lu.assertTrue(has_reason(folded, "fold.scale is off"))
end

function TestScale:test_without_wq_the_queries_are_scaled()
    local folded <const> = build_fold({ op = "sdpa", scale = 0.5 })
    lu.assertEquals(folded.weight_scale, 1.0)
    lu.assertEquals(folded.query_scale, 0.5 * LOG2_E)
end

-- log2(e) times a finite mask of -FLT_MAX would become -inf and hide the key.
function TestScale:test_an_additive_mask_keeps_natural_logits()
    for _, off in ipairs({ false, true }) do
        local folded <const> = build_fold({ scale = 0.25, mask = "additive",
            plan = off and { fold = { scale = false } } or nil })
        lu.assertEquals(folded.base, 0)
        lu.assertEquals(folded.weight_scale, off and 1.0 or 0.25)
        lu.assertEquals(folded.query_scale, off and 0.25 or 1.0)
        lu.assertTrue(has_reason(folded, "natural logits"))
    end
    lu.assertEquals(build_fold({ mask = { "causal", "additive" } }).base, 0)
    lu.assertEquals(build_fold({ mask = "bool" }).base, 2)
    lu.assertEquals(build_fold({ op = "sdpa", mask = "additive", scale = 0.5 }).query_scale, 0.5)
end

TestKeyBias = {}

function TestKeyBias:test_it_is_dropped()
    local folded <const> = build_fold()
    lu.assertTrue(folded.drop_k_bias)
    lu.assertFalse(folded.biases.k)
    lu.assertTrue(folded.biases.q)
    lu.assertTrue(has_reason(folded, "K bias dropped"))
end

function TestKeyBias:test_it_is_dropped_under_every_mask()
    for _, mask in ipairs({ "causal", "lengths", "padding", "bool", "additive" }) do
        lu.assertTrue(build_fold({ mask = mask }).drop_k_bias, mask)
    end
end

function TestKeyBias:test_the_override_keeps_it()
    local folded <const> = build_fold({ plan = { fold = { k_bias = false } } })
    lu.assertFalse(folded.drop_k_bias)
    lu.assertTrue(folded.biases.k)
    lu.assertFalse(has_reason(folded, "K bias dropped"))
end

function TestKeyBias:test_there_may_be_none()
    local folded <const> = build_fold({ bias = { q = true, k = false, v = true, o = true } })
    lu.assertFalse(folded.drop_k_bias)
    lu.assertFalse(folded.biases.k)
end

TestValueBias = {}

local function check_moved(fields, moved, reason)
    local folded <const> = build_fold(fields)
    lu.assertEquals(folded.move_v_bias, moved)
    lu.assertEquals(folded.biases.v, not moved)
    if reason then lu.assertTrue(has_reason(folded, reason), table.concat(folded.reasons, "\n")) end
    return folded
end

function TestValueBias:test_it_moves_into_the_output_bias()
    lu.assertTrue(check_moved({}, true, "V bias moved").biases.o)
end

-- The output projection then has a bias even where the layer has none.
function TestValueBias:test_it_moves_where_the_output_has_no_bias()
    lu.assertTrue(check_moved({ bias = { q = true, k = true, v = true, o = false } },
        true).biases.o)
end

function TestValueBias:test_it_stays_without_an_output_projection()
    local folded <const> = check_moved({ output_projection = false }, false,
        "no output projection")
    lu.assertFalse(folded.biases.o)
end

function TestValueBias:test_the_override_keeps_it()
    check_moved({ plan = { fold = { v_bias = false } } }, false, "fold.v_bias is off")
end

-- A row without keys gives 0, not the bias: only where no row can be empty, or it gives the mean.
function TestValueBias:test_it_stays_where_an_empty_row_gives_zero()
    for _, mask in ipairs({ "lengths", "padding", "bool", "additive" }) do
        check_moved({ mask = mask, empty_row = "zero" }, false, "a row may be empty")
        check_moved({ mask = mask, empty_row = "uniform" }, true)
        check_moved({ mask = mask, empty_row = "nan" }, true)
    end
end

function TestValueBias:test_causal_rows_are_empty_only_before_the_first_key()
    check_moved({ mask = "causal", empty_row = "zero" }, true)
    check_moved({ mask = "causal", causal_align = 2, empty_row = "zero" }, true)
    check_moved({ mask = "causal", causal_align = -1, empty_row = "zero" }, false)
    check_moved({ mask = "causal", causal_align = -1, empty_row = "uniform" }, true)
    check_moved({ mask = "causal", cross = true, kv_len = 4, causal_align = "bottom_right",
        empty_row = "zero" }, false)
    check_moved({ mask = "causal", cross = true, kv_len = 9, causal_align = "bottom_right",
        empty_row = "zero" }, true)
    check_moved({ mask = { "causal", "lengths" }, empty_row = "zero" }, false)
end

function TestValueBias:test_there_may_be_none()
    local folded <const> = build_fold({ bias = false })
    lu.assertFalse(folded.move_v_bias)
    lu.assertEquals(folded.biases, { q = false, k = false, v = false, o = false })
end

-- ---- Forms ---------------------------------------------------------------------------------

local function build_forms(fields)
    local raw <const> = { op = "mha", batch = 1, seq_len = 6, d_model = 32, heads = 4,
        isa = "scalar" }
    for key, value in pairs(fields or {}) do raw[key] = value end
    if raw.op == "sdpa" then raw.d_model, raw.head_dim = nil, 8 end
    local record <const>, errors = config.validate(raw, "test", "test")
    lu.assertNotNil(record, errors and config.format_errors(errors))
    local built <const> = fold.apply(problem.build(record))
    local keys <const>, values <const> = {}, {}
    for _, form in ipairs(built.forms) do
        keys[form.keys], values[form.values] = true, true
    end
    local function list(set, names)
        local found <const> = {}
        for _, name in ipairs(names) do
            if set[name] then found[#found + 1] = name end
        end
        return table.concat(found, " ")
    end
    return list(keys, { "projected", "folded", "lifted" }),
        list(values, { "projected", "folded", "deferred" }), built.forms
end

local function assert_forms(fields, wanted_keys, wanted_values)
    local keys <const>, values <const> = build_forms(fields)
    lu.assertEquals(keys, wanted_keys)
    lu.assertEquals(values, wanted_values)
end

local ALL_KEYS <const>, ALL_VALUES <const> = "projected folded lifted", "projected folded deferred"

TestForms = {}

function TestForms:test_every_combination_is_offered()
    assert_forms({}, ALL_KEYS, ALL_VALUES)
    local _, _, forms <const> = build_forms()
    lu.assertEquals(#forms, 9)
    lu.assertEquals({ forms[1].keys, forms[1].values }, { "projected", "projected" })
end

function TestForms:test_attention_alone_has_no_weights_to_move()
    assert_forms({ op = "sdpa" }, "projected", "projected")
end

function TestForms:test_an_override_leaves_one_way_or_takes_one_away()
    assert_forms({ plan = { fold = { qk = true } } }, "folded", ALL_VALUES)
    assert_forms({ plan = { fold = { vo = true } } }, ALL_KEYS, "folded")
    assert_forms({ plan = { fold = { qk = false } } }, "projected lifted", ALL_VALUES)
    assert_forms({ plan = { fold = { vo = false } } }, ALL_KEYS, "projected deferred")
    assert_forms({ plan = { fold = { few_queries = true } } }, "lifted", "deferred")
    assert_forms({ plan = { fold = { few_queries = false } } }, "projected folded",
        "projected folded")
    assert_forms({ plan = { fold = { few_queries = true, qk = true } } }, "folded", "deferred")
end

-- q . (k + bk) is linear in the input no more, unless softmax may ignore q . bk.
function TestForms:test_a_k_bias_that_stays_keeps_the_keys()
    assert_forms({ plan = { fold = { k_bias = false } } }, "projected", ALL_VALUES)
    assert_forms({ plan = { fold = { k_bias = false } }, bias = { k = false } }, ALL_KEYS,
        ALL_VALUES)
end

function TestForms:test_without_output_projection_nothing_takes_wv()
    assert_forms({ output_projection = false }, ALL_KEYS, "projected deferred")
    assert_forms({ output_projection = false, mask = "lengths", padded_queries = "zero",
        bias = false }, ALL_KEYS, "projected")
end

-- An empty row is 0; behind Wv the V bias would stand there.
function TestForms:test_an_empty_row_keeps_the_values_where_there_is_a_v_bias()
    assert_forms({ mask = "padding" }, ALL_KEYS, "projected")
    assert_forms({ mask = "padding", bias = { v = false } }, ALL_KEYS, ALL_VALUES)
    assert_forms({ mask = "padding", empty_row = "uniform" }, ALL_KEYS, ALL_VALUES)
end

function TestForms:test_a_v_bias_that_stays_can_only_be_deferred()
    assert_forms({ plan = { fold = { v_bias = false } } }, ALL_KEYS, "projected deferred")
end

TestWithoutWeights = {}

function TestWithoutWeights:test_attention_alone_folds_no_bias()
    local folded <const> = build_fold({ op = "sdpa" })
    lu.assertFalse(folded.drop_k_bias)
    lu.assertFalse(folded.move_v_bias)
    lu.assertEquals(folded.biases, { q = false, k = false, v = false, o = false })
end

os.exit(lu.LuaUnit.run())
