-- Configs of the written-down cases: those of the Criterion suites (tests/c), and the shapes that
-- the fuzzer judges in every run beside its random ones.
-- Data only. "BC-n" names the bug case a config belongs to.
local M = {}

local function sdpa(seq_len, kv_len, head_dim, more)
    local config <const> = { op = "sdpa", heads = 1, seq_len = seq_len, kv_len = kv_len,
        head_dim = head_dim }
    for _, key in ipairs({ "batch", "heads", "kv_heads", "v_head_dim", "mask", "mask_shape",
        "causal_align", "empty_row", "return_weights", "padded_queries", "scale" }) do
        if more and more[key] ~= nil then
            config[key] = more[key]
        end
    end
    return config
end

local ROWS3 <const> = { 1, 1, 3, 3 }

-- name, config: loaded by tests/c/case_kernel.c under this name.
M.programs = {
    -- The three-key example "STD3" under every mask (BC-01, 02, 07, 15, 16, 17, 20, 22).
    { "std3", sdpa(3, 3, 2, { return_weights = "per_head" }) },
    { "std3_bool", sdpa(3, 3, 2, { mask = "bool", mask_shape = ROWS3 }) },
    { "std3_bool_uniform", sdpa(3, 3, 2, { mask = "bool", mask_shape = ROWS3,
        empty_row = "uniform" }) },
    { "std3_bool_nan", sdpa(3, 3, 2, { mask = "bool", mask_shape = ROWS3, empty_row = "nan" }) },
    { "std3_add", sdpa(3, 3, 2, { mask = "additive", mask_shape = ROWS3 }) },
    { "std3_pad", sdpa(3, 3, 2, { mask = "padding" }) },
    { "std3_causal", sdpa(3, 3, 2, { batch = 2, mask = "causal" }) },
    { "left_padded", sdpa(4, 4, 2, { mask = { "causal", "padding" } }) }, -- BC-04
    { "two_keys", sdpa(1, 2, 1) }, -- BC-06, 11
    { "nine_keys", sdpa(1, 9, 1) }, -- BC-13
    { "scaled_mask", sdpa(1, 2, 64, { v_head_dim = 1, mask = "additive" }) }, -- BC-19
    { "lengths_3", sdpa(5, 5, 1, { batch = 3, mask = "lengths" }) }, -- BC-20
    { "causal_padding_13", sdpa(7, 7, 37, { heads = 13, v_head_dim = 1,
        mask = { "causal", "padding" } }) }, -- BC-23
    { "bottom_right_2_5", sdpa(2, 5, 1, { mask = "causal", causal_align = "bottom_right" }) },
    { "bottom_right_1_5", sdpa(1, 5, 1, { mask = "causal", causal_align = "bottom_right" }) },
    { "top_left_2_5", sdpa(2, 5, 1, { mask = "causal", causal_align = "top_left" }) }, -- BC-24
    { "cache_2_5", sdpa(2, 5, 1, { batch = 2, mask = { "causal", "lengths" },
        causal_align = "lengths" }) },
    { "axis", sdpa(3, 3, 1) }, -- BC-27
    { "wide_128", sdpa(1, 2, 128, { v_head_dim = 128 }) }, -- BC-30
    { "gqa_4_2", sdpa(1, 1, 1, { heads = 4, kv_heads = 2 }) }, -- BC-43
    { "scale_16", sdpa(1, 2, 16, { heads = 4, v_head_dim = 1 }) }, -- BC-47
    { "qkv_512", sdpa(4, 4, 512, { batch = 2, return_weights = "mean" }) }, -- Q = K = V = x
    { "cancel_64", sdpa(4, 64, 64) }, -- BC-81
    { "unpadded", sdpa(3, 3, 4) },
    { "padded", sdpa(3, 6, 4, { batch = 2, mask = "lengths" }) },
    -- Layers.
    { "layer_std3", { seq_len = 3, d_model = 2, heads = 1 } }, -- BC-58
    { "layer_nan", { seq_len = 3, d_model = 2, heads = 1, mask = "causal",
        bias = false } }, -- BC-09
    { "tutorial_64_1", { batch = 2, seq_len = 4, d_model = 64, heads = 1,
        return_weights = "per_head" } },
    { "tutorial_64_8", { batch = 2, seq_len = 4, d_model = 64, heads = 8,
        return_weights = "per_head" } },
    { "tutorial_16_1", { batch = 2, seq_len = 4, d_model = 16, heads = 1,
        return_weights = "mean" } },
    { "tutorial_16_2", { batch = 2, seq_len = 4, d_model = 16, heads = 2,
        return_weights = "mean" } },
    { "causal_17", { seq_len = 17, d_model = 24, heads = 3, mask = "causal" } }, -- BC-88
    -- The layer of causal_17 (but GQA), whole and token by token: one blob of weights for all.
    { "tokens_whole", { seq_len = 17, d_model = 24, heads = 4, kv_heads = 2, head_dim = 12,
        mask = "causal" } },
    { "tokens_by_1", { seq_len = 1, kv_len = 19, d_model = 24, heads = 4, kv_heads = 2,
        head_dim = 12, kv_cache = "append" } },
    { "tokens_by_5", { seq_len = 5, kv_len = 19, d_model = 24, heads = 4, kv_heads = 2,
        head_dim = 12, kv_cache = "append" } },
    { "tokens_static", { seq_len = 1, kv_len = 19, d_model = 24, heads = 4, kv_heads = 2,
        head_dim = 12, kv_cache = "static", mask = "lengths" } },
    { "stack_256", { seq_len = 256, d_model = 64, heads = 1 } }, -- BC-87
    { "stack_256_scores", { seq_len = 256, d_model = 64, heads = 1, mask = "additive" } },
}

for _, d in ipairs({ 1, 3, 5, 7, 9, 17, 40, 72, 80, 96, 104 }) do -- BC-29
    M.programs[#M.programs + 1] = { "tail_" .. d, sdpa(1, 2, d, { v_head_dim = 1 }) }
end
for _, s in ipairs({ 1, 3, 7, 17, 33, 65, 197, 257, 1500 }) do -- BC-31
    M.programs[#M.programs + 1] = { "keys_1_" .. s, sdpa(1, s, 1) }
    if s <= 65 then
        M.programs[#M.programs + 1] = { "keys_" .. s, sdpa(s, s, 1) }
        M.programs[#M.programs + 1] = { "keys_causal_" .. s, sdpa(s, s, 1, { mask = "causal" }) }
    end
end

-- BC-54: several bundles in one program.
M.linked = {
    { "four_none_avx2", { seq_len = 3, d_model = 4, heads = 2, isa = "avx2" } },
    { "four_causal_avx2", { seq_len = 3, d_model = 4, heads = 2, isa = "avx2", mask = "causal" } },
    { "four_none_scalar", { seq_len = 3, d_model = 4, heads = 2, isa = "scalar" } },
    { "five_none_avx2", { seq_len = 5, d_model = 4, heads = 2, isa = "avx2" } },
}

-- Judged by the fuzzer's checks in every run: memory at page borders (BC-33, 35, 36, 38), shapes
-- of real reports (section 3 of the bug-case log). Without an `isa` they take turns.
M.judged = {
    { seq_len = 3, d_model = 5, heads = 1 },
    { seq_len = 1, d_model = 3, heads = 1 },
    { seq_len = 7, d_model = 9, heads = 1 },
    -- rows of several blocks of keys
    { op = "sdpa", batch = 2, seq_len = 21, kv_len = 397, heads = 2, head_dim = 12,
        mask = { "causal", "padding" }, causal_align = "bottom_right" },
    -- a bias so large beside one-hot inputs that sums starting from it lose them
    { batch = 3, seq_len = 6, d_model = 216, heads = 24, head_dim = 9, bias = { v = false },
        scale = 0.25, isa = "avx512" },
    { seq_len = 17, d_model = 33, heads = 1 },
    { seq_len = 4, d_model = 8, heads = 1 },
    { seq_len = 37, d_model = 144, heads = 2 },
    { seq_len = 7, d_model = 147, heads = 13, head_dim = 37, mask = { "causal", "padding" } },
    { op = "sdpa", seq_len = 1, kv_len = 257, heads = 1, head_dim = 32 },
    { op = "sdpa", seq_len = 40, heads = 2, head_dim = 63, mask = "causal" },
    { op = "sdpa", seq_len = 9, heads = 28, kv_heads = 4, head_dim = 8 },
    { op = "sdpa", batch = 5, seq_len = 3, heads = 3, head_dim = 64, mask = "lengths" },
    { seq_len = 100, d_model = 48, heads = 3, mask = { "causal", "lengths" } },
    -- loops over heads whose turns have hundreds of addresses: what compilers keep on the stack
    { op = "sdpa", seq_len = 15, kv_len = 48, heads = 2, head_dim = 192, v_head_dim = 16,
        return_weights = "mean", unroll = "tiles", isa = "avx512" },
    { seq_len = 1, kv_len = 150, d_model = 64, heads = 1, kv_cache = "static" },
    { seq_len = 1, kv_len = 130, d_model = 72, heads = 9, kv_heads = 3, head_dim = 64, bias = false,
        kv_cache = "append" },
    { batch = 2, seq_len = 3, kv_len = 70, d_model = 32, heads = 4, kv_heads = 1, head_dim = 40,
        v_head_dim = 24, kv_cache = "append" },
    -- rows of several blocks of keys, with every mask; blocks of queries that walk them together
    { op = "sdpa", seq_len = 90, kv_len = 1030, heads = 1, head_dim = 10 },
    { op = "sdpa", seq_len = 24, kv_len = 780, heads = 1, head_dim = 20, isa = "avx2",
        plan = { scores = { key_block = 384, rows = 5, vectors = 1 } } }, -- 385 keys in whole tiles
    { op = "sdpa", batch = 2, seq_len = 70, kv_len = 520, heads = 2, head_dim = 5,
        mask = { "bool", "additive" }, empty_row = "uniform" },
    { op = "sdpa", batch = 2, seq_len = 400, heads = 1, head_dim = 9,
        mask = { "causal", "lengths" }, causal_align = "lengths", empty_row = "nan" },
    { batch = 2, seq_len = 390, d_model = 8, heads = 1, mask = "lengths", padded_queries = "zero",
        output_projection = false, plan = { fold = { qk = false } } },
    -- score tiles that ask for what comes next: within their product, beside their weights
    { op = "sdpa", batch = 2, seq_len = 37, kv_len = 95, heads = 3, head_dim = 32, mask = "lengths",
        plan = { scores = { prefetch = true, key_block = 30 } } },
    { batch = 2, seq_len = 40, d_model = 48, heads = 3, mask = "causal",
        plan = { scores = { prefetch = true } } },
    -- a class token, and the last tokens of a prompt
    { seq_len = 1, kv_len = 37, d_model = 48, heads = 3, queries = "first" },
    { batch = 2, seq_len = 3, kv_len = 19, d_model = 24, heads = 2, queries = "last",
        mask = "causal" },
    -- one wide head; keys and values that are never computed
    { seq_len = 33, d_model = 24, heads = 1 },
    { batch = 2, seq_len = 9, d_model = 20, heads = 1, mask = { "causal", "padding" },
        empty_row = "nan", plan = { fold = { qk = true, vo = true } } },
    { batch = 2, seq_len = 2, kv_len = 29, d_model = 36, heads = 6, kv_heads = 2, head_dim = 7,
        queries = "last", mask = "lengths", bias = { v = false },
        plan = { fold = { few_queries = true } } },
    -- many rows of equal items: parts take rows of all panels; with lengths: parts of every item
    { batch = 5, seq_len = 70, d_model = 12, heads = 3, plan = { project = { rows = 3 },
        output = { rows = 2 } } },
    { batch = 5, seq_len = 35, d_model = 12, heads = 3, mask = "lengths", padded_queries = "zero" },
    -- last queries that share a vector's lanes, on every instruction set in turn
    { seq_len = 35, d_model = 64, heads = 1, unroll = "tiles" },
    { op = "sdpa", batch = 2, seq_len = 49, heads = 3, head_dim = 32 },
    { op = "sdpa", seq_len = 21, kv_len = 29, heads = 1, head_dim = 12, unroll = "tiles" },
    { op = "sdpa", seq_len = 18, kv_len = 7, heads = 2, head_dim = 8, unroll = "tiles",
        return_weights = "per_head" },
}

-- Judged like these, each with both plans, whose outputs must have the same bits: the context's
-- lanes along the head or along queries, however heads fill vectors.
local LANES <const> = { { context = { orientation = "dims" } },
    { context = { orientation = "queries" } } }

-- The same for q, k, v as one product of weights side by side, or as one each.
local MERGED <const> = { { project = { merged = true }, fold = { qk = false, vo = false } },
    { project = { merged = false }, fold = { qk = false, vo = false } } }

-- Queries of a causal block that see none of a tile's keys: masked, or left out where the last
-- vectors have tiles of their own.
local DIAGONALS <const> = { { scores = { rows = 8, vectors = 1 } },
    { scores = { rows = 8, vectors = 2 } } }

M.twins = {
    { plans = LANES, isa = "avx512", config = { op = "sdpa", seq_len = 37, heads = 2, head_dim = 20,
        mask = "causal", return_weights = "per_head" } },
    { plans = MERGED, isa = "avx512", config = { batch = 2, seq_len = 21, d_model = 52, heads = 4,
        head_dim = 13, v_head_dim = 10, mask = "padding" } },
    { plans = LANES, isa = "avx2", config = { op = "sdpa", batch = 3, seq_len = 25, heads = 1,
        head_dim = 13, mask = "padding" } },
    { plans = MERGED, isa = "avx2", config = { batch = 2, seq_len = 4, d_model = 64, heads = 8,
        bias = { v = false } } },
    { plans = MERGED, isa = "avx512", config = { batch = 3, seq_len = 19, d_model = 70, heads = 6,
        kv_heads = 2, head_dim = 7, v_head_dim = 11, mask = "lengths" } },
    { plans = MERGED, isa = "neon", config = { seq_len = 2, kv_len = 9, d_model = 18, heads = 3,
        kv_heads = 1, head_dim = 6, kv_cache = "append" } },
    { plans = MERGED, isa = "scalar", config = { batch = 2, seq_len = 5, d_model = 6, heads = 2,
        mask = "lengths", padded_queries = "zero" } },
    { plans = MERGED, isa = "avx2", config = { batch = 2, seq_len = 9, kv_len = 14, d_model = 20,
        heads = 2, head_dim = 9, cross = true, kv_dim = 15, mask = "lengths" } },
    { plans = LANES, isa = "neon", config = { op = "sdpa", seq_len = 11, kv_len = 397, heads = 1,
        head_dim = 6 } },
    { plans = LANES, isa = "avx2", config = { batch = 2, seq_len = 24, d_model = 26, heads = 2,
        mask = { "causal", "lengths" } } },
    { plans = LANES, isa = "avx512", config = { op = "sdpa", seq_len = 16, kv_len = 400, heads = 1,
        head_dim = 26 } },
    { plans = LANES, isa = "avx512", config = { op = "sdpa", batch = 3, seq_len = 31, heads = 1,
        head_dim = 9, mask = "lengths", empty_row = "nan" } },
    { plans = DIAGONALS, isa = "avx512", config = { op = "sdpa", batch = 2, seq_len = 77, heads = 1,
        head_dim = 16, mask = { "causal", "lengths" } } },
}

return M
