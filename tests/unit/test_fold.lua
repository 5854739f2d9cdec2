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

TestWithoutWeights = {}

function TestWithoutWeights:test_attention_alone_folds_no_bias()
    local folded <const> = build_fold({ op = "sdpa" })
    lu.assertFalse(folded.drop_k_bias)
    lu.assertFalse(folded.move_v_bias)
    lu.assertEquals(folded.biases, { q = false, k = false, v = false, o = false })
end

os.exit(lu.LuaUnit.run())
