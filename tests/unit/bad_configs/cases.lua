-- Bad configs and exactly what is said about each: {raw table, one line per error …}.
-- <KEYS>, <SIZE>, <MASK>, <ISAS>, <TOKENS>, <ALIGN>, <ID> stand for texts that come up often.
-- "native" cannot be resolved here: a config without isa shows it.

local isa <const> = require("gen.isa")
local null <const> = require("gen.strict_json").null

local BASE <const> = { seq_len = 8, d_model = 64, heads = 4, isa = "scalar" }
local SDPA <const> = { op = "sdpa", seq_len = 8, heads = 4, head_dim = 16, isa = "scalar" }

local function merge(base, changes)
    local result <const> = {}
    for _, source in ipairs({ base, changes }) do
        for key, value in pairs(source) do
            result[key] = value
        end
    end
    return result
end

-- The base config with some keys changed, or with one taken out.
local function with(changes)
    return merge(BASE, changes)
end

local function sdpa(changes)
    return merge(SDPA, changes)
end

local function without(key)
    local result <const> = merge(BASE, {})
    result[key] = nil
    return result
end

local function sdpa_without(key)
    local result <const> = merge(SDPA, {})
    result[key] = nil
    return result
end

local function cyclic()
    local list <const> = { "causal" }
    list[2] = list
    return list
end

local function nested(depth)
    local list = {}
    for _ = 1, depth do
        list = { list }
    end
    return list
end

local TOKENS <const> = '"' .. table.concat(isa.names, '", "') .. '"'

local TEXTS <const> = {
    KEYS = "name, op, batch, seq_len, kv_len, d_model, heads, kv_heads, queries, head_dim, "
        .. "v_head_dim, cross, kv_dim, bias, output_projection, scale, mask, mask_shape, "
        .. "causal_align, padded_queries, empty_row, return_weights, kv_cache, dtype, layout, "
        .. "accuracy, isa, unroll, code_budget, plan, target, tuning",
    SIZE = "an integer from 1 to 2147483647",
    MASK = '"none", or one or a list of "causal", "lengths", "padding", "bool", "additive"',
    ISAS = '"native", ' .. TOKENS .. ", or a list of them",
    TOKENS = TOKENS,
    ALIGN = '"top_left", "bottom_right", "lengths" or an integer offset',
    ID = "a letter, then letters, digits and _",
}

local function expand(line)
    return (line:gsub("<(%u+)>", TEXTS))
end

local CASES <const> = {
    -- Sizes
    { with { batch = 0 },
        'c.lua: batch = 0: out of range (allowed: <SIZE>)',
    },
    { with { batch = -1 },
        'c.lua: batch = -1: out of range (allowed: <SIZE>)',
    },
    { with { batch = "" },
        'c.lua: batch = "": must be an integer, not a string (allowed: <SIZE>)',
    },
    { with { batch = 0 / 0 },
        'c.lua: batch = nan: must be an integer, not the number nan (allowed: <SIZE>)',
    },
    { with { batch = 1.5 },
        'c.lua: batch = 1.5: must be an integer, not the number 1.5 (allowed: <SIZE>)',
    },
    { with { batch = true },
        'c.lua: batch = true: must be an integer, not a boolean (allowed: <SIZE>)',
    },
    { with { batch = {} },
        'c.lua: batch = {}: must be an integer, not a table (allowed: <SIZE>)',
    },
    { with { seq_len = 0 },
        'c.lua: seq_len = 0: out of range (allowed: <SIZE>)',
    },
    { with { seq_len = -1 },
        'c.lua: seq_len = -1: out of range (allowed: <SIZE>)',
    },
    { with { seq_len = "" },
        'c.lua: seq_len = "": must be an integer, not a string (allowed: <SIZE>)',
    },
    { with { seq_len = 0 / 0 },
        'c.lua: seq_len = nan: must be an integer, not the number nan (allowed: <SIZE>)',
    },
    { without("seq_len"),
        'c.lua: seq_len: required, but missing (allowed: <SIZE>)',
    },
    { with { seq_len = "8" },
        'c.lua: seq_len = "8": must be an integer, not a string (allowed: <SIZE>)',
    },
    { with { seq_len = math.huge },
        'c.lua: seq_len = inf: must be an integer, not the number inf (allowed: <SIZE>)',
    },
    { with { seq_len = -math.huge },
        'c.lua: seq_len = -inf: must be an integer, not the number -inf (allowed: <SIZE>)',
    },
    { with { d_model = 0 },
        'c.lua: d_model = 0: out of range (allowed: <SIZE>)',
    },
    { with { d_model = -64 },
        'c.lua: d_model = -64: out of range (allowed: <SIZE>)',
    },
    { with { d_model = "512" },
        'c.lua: d_model = "512": must be an integer, not a string (allowed: <SIZE>)',
    },
    { with { d_model = 512.5 },
        'c.lua: d_model = 512.5: must be an integer, not the number 512.5 (allowed: <SIZE>)',
    },
    { with { d_model = 2 ^ 53 + 1 },
        'c.lua: d_model = 9007199254740992: out of range (allowed: <SIZE>)',
    },
    { with { d_model = (1 << 53) + 1 },
        'c.lua: d_model = 9007199254740993: out of range (allowed: <SIZE>)',
    },
    { without("d_model"),
        'c.lua: d_model: required with op "mha", but missing (allowed: <SIZE>)',
    },
    { with { d_model = null },
        'c.lua: d_model = null: must be an integer, not null (allowed: <SIZE>)',
    },
    { with { heads = 0 },
        'c.lua: heads = 0: out of range (allowed: <SIZE>)',
    },
    { with { heads = -4 },
        'c.lua: heads = -4: out of range (allowed: <SIZE>)',
    },
    { without("heads"),
        'c.lua: heads: required, but missing (allowed: <SIZE>)',
    },
    { with { heads = { 4 } },
        'c.lua: heads = {4}: must be an integer, not a table (allowed: <SIZE>)',
    },
    { with { heads = math.mininteger },
        'c.lua: heads = -9223372036854775808: out of range (allowed: <SIZE>)',
    },
    { with { kv_len = 2147483648 },
        'c.lua: kv_len = 2147483648: out of range (allowed: <SIZE>)',
    },
    { with { seq_len = 1 << 31 },
        'c.lua: seq_len = 2147483648: out of range (allowed: <SIZE>)',
    },
    { with { head_dim = 0 },
        'c.lua: head_dim = 0: out of range (allowed: <SIZE>)',
    },
    { with { v_head_dim = "16" },
        'c.lua: v_head_dim = "16": must be an integer, not a string (allowed: <SIZE>)',
    },
    { with { code_budget = 0 },
        'c.lua: code_budget = 0: out of range (allowed: <SIZE>)',
    },
    { with { code_budget = 1e30 },
        'c.lua: code_budget = 1e+30: out of range (allowed: <SIZE>)',
    },
    { {},
        'c.lua: seq_len: required, but missing (allowed: <SIZE>)',
        'c.lua: d_model: required with op "mha", but missing (allowed: <SIZE>)',
        'c.lua: heads: required, but missing (allowed: <SIZE>)',
        'c.lua: isa = "native": "native" cannot be resolved here (allowed: '
            .. '<TOKENS>)',
    },
    -- Heads
    { with { d_model = 1024, heads = 12 },
        'c.lua: heads = 12: d_model 1024 is not a multiple of heads 12 (allowed: a divisor '
            .. 'of d_model, such as 8 or 16; or give head_dim)',
    },
    { with { d_model = 1792, heads = 24 },
        'c.lua: heads = 24: d_model 1792 is not a multiple of heads 24 (allowed: a divisor '
            .. 'of d_model, such as 16 or 28; or give head_dim)',
    },
    { with { d_model = 7, heads = 2 },
        'c.lua: heads = 2: d_model 7 is not a multiple of heads 2 (allowed: a divisor of '
            .. 'd_model, such as 1 or 7; or give head_dim)',
    },
    { with { d_model = 2147483647, heads = 2 },
        'c.lua: heads = 2: d_model 2147483647 is not a multiple of heads 2 (allowed: a '
            .. 'divisor of d_model, such as 1 or 2147483647; or give head_dim)',
    },
    { with { d_model = 48, heads = 3, kv_heads = 2 },
        'c.lua: kv_heads = 2: heads 3 is not a multiple of kv_heads 2 (allowed: a divisor '
            .. 'of heads, such as 1 or 3)',
    },
    { with { d_model = 66, heads = 33, kv_heads = 2 },
        'c.lua: kv_heads = 2: heads 33 is not a multiple of kv_heads 2 (allowed: a divisor '
            .. 'of heads, such as 1 or 3)',
    },
    { with { d_model = 70, heads = 7, kv_heads = 2 },
        'c.lua: kv_heads = 2: heads 7 is not a multiple of kv_heads 2 (allowed: a divisor '
            .. 'of heads, such as 1 or 7)',
    },
    { with { heads = 4, kv_heads = 8 },
        'c.lua: kv_heads = 8: heads 4 is not a multiple of kv_heads 8 (allowed: a divisor '
            .. 'of heads, such as 4)',
    },
    { with { heads = 4, kv_heads = 0 },
        'c.lua: kv_heads = 0: out of range (allowed: <SIZE>)',
    },
    { with { d_model = 65, v_head_dim = 16 },
        'c.lua: heads = 4: d_model 65 is not a multiple of heads 4 (allowed: a divisor of '
            .. 'd_model, such as 1 or 5; or give head_dim)',
    },
    -- Overflow
    { with { d_model = 2147483647, heads = 1, seq_len = 2147483647, batch = 2147483647 },
        'c.lua: batch = 2147483647: q of 2147483647 x 2147483647 x 1 x 2147483647 (batch x '
            .. 'seq_len x heads x head_dim) elements is too big (allowed: less than 2^63 bytes '
            .. 'for a tensor)',
    },
    { with { batch = 2147483647, seq_len = 2147483647, d_model = 4 },
        'c.lua: batch = 2147483647: q of 2147483647 x 2147483647 x 4 x 1 (batch x seq_len '
            .. 'x heads x head_dim) elements is too big (allowed: less than 2^63 bytes for a '
            .. 'tensor)',
    },
    { with { heads = 65536, head_dim = 32768 },
        'c.lua: heads = 65536: heads times head_dim is too wide (allowed: a product of at '
            .. 'most 2147483647)',
    },
    { with { heads = 2, head_dim = 16, v_head_dim = 2147483647 },
        'c.lua: v_head_dim = 2147483647: heads times v_head_dim is too wide (allowed: a '
            .. 'product of at most 2147483647)',
    },
    { with { seq_len = 2147483647, d_model = 4, heads = 1 },
        "c.lua: seq_len = 2147483647: one head's score matrix of 2147483647 x 2147483647 "
            .. '(seq_len x kv_len) elements is too big (allowed: less than 2^63 bytes for a '
            .. 'tensor)',
    },
    { with { batch = 131072, heads = 4, seq_len = 1048576, return_weights = "per_head" },
        'c.lua: seq_len = 1048576: all tensors together are too big (allowed: less than '
            .. '2^61 bytes for all tensors of a call)',
    },
    { with { batch = 1 << 20, seq_len = 1 << 20, d_model = 1 << 19, heads = 1 << 10 },
        'c.lua: batch = 1048576: all tensors together are too big (allowed: less than 2^61 '
            .. 'bytes for all tensors of a call)',
    },
    { with { d_model = 64, heads = 1, seq_len = 1 << 29 },
        'c.lua: seq_len = 536870912: one call would take 1 x 1 x 536870912 x 536870912 '
            .. '(batch x heads x seq_len x kv_len) x 128 multiply-adds (allowed: less than 2^59 '
            .. 'multiply-adds for a call)',
    },
    { with { mask = "bool", mask_shape = { 65536, 65536, 65536, 65536 }, batch = 65536,
            heads = 65536, head_dim = 1, seq_len = 65536 },
        'c.lua: mask_shape = {65536, 65536, 65536, 65536}: the mask of 65536 x 65536 x '
            .. '65536 x 65536 (mask_shape) elements is too big (allowed: less than 2^63 bytes for '
            .. 'a tensor)',
    },
    -- Keys
    { with { seq_length = 8 },
        'c.lua: seq_length = 8: unknown key (allowed: <KEYS>; did you mean "seq_len"?)',
    },
    { with { heds = 4 },
        'c.lua: heds = 4: unknown key (allowed: <KEYS>; did you mean "heads"?)',
    },
    { with { Heads = 4 },
        'c.lua: Heads = 4: unknown key (allowed: <KEYS>; did you mean "heads"?)',
    },
    { with { num_heads = 4 },
        'c.lua: num_heads = 4: unknown key (allowed: <KEYS>; did you mean "heads"?)',
    },
    { with { is_causal = true },
        'c.lua: is_causal = true: unknown key (allowed: <KEYS>; did you mean "mask"?)',
    },
    { with { dropout = 0.1 },
        'c.lua: dropout = 0.1: unknown key (allowed: <KEYS>)',
    },
    { with { ["mask-shape"] = 1 },
        'c.lua: mask-shape = 1: unknown key (allowed: <KEYS>; did you mean "mask_shape"?)',
    },
    { with { [1] = "causal" },
        'c.lua: [1] = "causal": unknown key (allowed: <KEYS>)',
    },
    { with { [true] = 1 },
        'c.lua: [true] = 1: unknown key (allowed: <KEYS>)',
    },
    { with { [2.5] = 1 },
        'c.lua: [2.5] = 1: unknown key (allowed: <KEYS>)',
    },
    { with { ["a\nb"] = 1 },
        'c.lua: a\\x0Ab = 1: unknown key (allowed: <KEYS>)',
    },
    { with { ["\27[31m"] = 1 },
        'c.lua: \\x1B[31m = 1: unknown key (allowed: <KEYS>)',
    },
    { with { sink_bias = 1, zzz = 2 },
        'c.lua: sink_bias = 1: unknown key (allowed: <KEYS>)',
        'c.lua: zzz = 2: unknown key (allowed: <KEYS>)',
    },
    { with { [""] = 1 },
        'c.lua: [""] = 1: unknown key (allowed: <KEYS>)',
    },
    { with { score_bias = "alibi" },
        'c.lua: score_bias = "alibi": not supported yet (allowed: <KEYS>)',
    },
    { with { softcap = 30 },
        'c.lua: softcap = 30: not supported yet (allowed: <KEYS>)',
    },
    { with { sink = true },
        'c.lua: sink = true: not supported yet (allowed: <KEYS>)',
    },
    { with { rope = { theta = 10000 } },
        'c.lua: rope = {theta = 10000}: not supported yet (allowed: <KEYS>)',
    },
    { with { qk_norm = false },
        'c.lua: qk_norm = false: not supported yet (allowed: <KEYS>)',
    },
    { with { add_zero_attn = true },
        'c.lua: add_zero_attn = true: not supported yet (allowed: <KEYS>)',
    },
    { with { add_bias_kv = true },
        'c.lua: add_bias_kv = true: not supported yet (allowed: <KEYS>)',
    },
    { with { return_scores = "product" },
        'c.lua: return_scores = "product": not supported yet (allowed: <KEYS>)',
    },
    -- Caches
    { with { kv_cache = true },
        'c.lua: kv_cache = true: true does not say which (allowed: false, "append", "static")',
    },
    { with { kv_cache = "dynamic" },
        'c.lua: kv_cache = "dynamic": unknown value (allowed: false, "append", "static")',
    },
    { sdpa { kv_cache = "append" },
        'c.lua: kv_cache = "append": has no meaning with op "sdpa", where k and v are given in any '
            .. 'case (allowed: false, or op = "mha")',
    },
    { with { kv_cache = "append", kv_len = 7 },
        "c.lua: kv_len = 7: the cache is shorter than the 8 new tokens (allowed: at least seq_len)",
    },
    { with { kv_cache = "static", queries = "last" },
        'c.lua: queries = "last": with a kv_cache x holds queries only (allowed: "all")',
    },
    { with { kv_cache = "append", cross = true, kv_dim = 32, mask = "none",
        causal_align = "top_left", padded_queries = "zero" },
        'c.lua: cross = true: kv_cache = "append" projects K and V from x (allowed: false, or no '
            .. "kv_cache)",
        "c.lua: kv_dim = 32: differs from d_model: K and V of the new tokens come from x (allowed: "
            .. "not given)",
        'c.lua: mask = "none": "none" contradicts kv_cache = "append", whose tokens attend to what '
            .. "stands before them (allowed: not given, or any other mask)",
        'c.lua: causal_align = "top_left": kv_cache = "append" puts the new tokens at the end of '
            .. 'their item\'s length (allowed: not given, or "lengths")',
        'c.lua: padded_queries = "zero": kv_cache = "append" has no padded queries: all of x is '
            .. 'new tokens (allowed: "compute")',
    },
    { with { kv_cache = "static", cross = true, kv_dim = 32, bias = { v = true } },
        'c.lua: cross = true: kv_cache = "static" gives K and V themselves (allowed: false: K and '
            .. "V may come from any context)",
        "c.lua: kv_dim = 32: there is no context: K and V are given (allowed: not given)",
        'c.lua: bias.v = true: kv_cache = "static" gives K and V: they are not projected (allowed: '
            .. "false)",
    },
    { with { kv_cache = "static", kv_len = 20, mask = "causal" },
        "c.lua: causal_align: required: a causal mask with seq_len 8 and kv_len 20 can be aligned "
            .. 'in several ways (allowed: "top_left", "bottom_right", "lengths" or an integer '
            .. "offset)",
    },
    -- Choices
    { with { op = "mqa" },
        'c.lua: op = "mqa": unknown value (allowed: "mha", "sdpa"; did you mean "mha"?)',
    },
    { with { op = "MHA" },
        'c.lua: op = "MHA": unknown value (allowed: "mha", "sdpa"; did you mean "mha"?)',
    },
    { with { op = 1 },
        'c.lua: op = 1: must be a string, not the number 1 (allowed: "mha", "sdpa")',
    },
    { with { dtype = "bf16" },
        'c.lua: dtype = "bf16": not supported yet (allowed: "f32")',
    },
    { with { dtype = "i8" },
        'c.lua: dtype = "i8": not supported yet (allowed: "f32")',
    },
    { with { dtype = "float32" },
        'c.lua: dtype = "float32": unknown value (allowed: "f32")',
    },
    { with { empty_row = "zeros" },
        'c.lua: empty_row = "zeros": unknown value (allowed: "zero", "uniform", "nan"; did '
            .. 'you mean "zero"?)',
    },
    { with { empty_row = false },
        'c.lua: empty_row = false: must be a string, not a boolean (allowed: "zero", '
            .. '"uniform", "nan")',
    },
    { with { return_weights = true },
        'c.lua: return_weights = true: true does not say which (allowed: false, '
            .. '"per_head", "mean")',
    },
    { with { return_weights = "per-head" },
        'c.lua: return_weights = "per-head": unknown value (allowed: false, "per_head", '
            .. '"mean"; did you mean "per_head"?)',
    },
    { with { return_weights = 1 },
        'c.lua: return_weights = 1: must be false or a string, not the number 1 (allowed: '
            .. 'false, "per_head", "mean")',
    },
    { with { unroll = "tile" },
        'c.lua: unroll = "tile": unknown value (allowed: "auto", "full", "tiles"; did you '
            .. 'mean "tiles"?)',
    },
    { with { unroll = true },
        'c.lua: unroll = true: must be a string, not a boolean (allowed: "auto", "full", '
            .. '"tiles")',
    },
    { with { accuracy = "fastest" },
        'c.lua: accuracy = "fastest": unknown value (allowed: "exact", "fast")',
    },
    { with { padded_queries = "none" },
        'c.lua: padded_queries = "none": unknown value (allowed: "compute", "zero")',
    },
    { with { cross = "true" },
        'c.lua: cross = "true": must be a boolean, not a string (allowed: true, false)',
    },
    { with { cross = 1 },
        'c.lua: cross = 1: must be a boolean, not the number 1 (allowed: true, false)',
    },
    { with { output_projection = "no" },
        'c.lua: output_projection = "no": must be a boolean, not a string (allowed: true, '
            .. 'false)',
    },
    { with { layout = "bhld" },
        'c.lua: layout = "bhld": has no meaning with op "mha" (allowed: not given, or op = '
            .. '"sdpa")',
    },
    { sdpa { layout = "blhd" },
        'c.lua: layout = "blhd": not supported yet (allowed: "bhld")',
    },
    -- Bias and scale
    { with { bias = "none" },
        'c.lua: bias = "none": must be a boolean or a table, not a string (allowed: true, '
            .. 'false, or a table of booleans with the keys q, k, v, o)',
    },
    { with { bias = 1 },
        'c.lua: bias = 1: must be a boolean or a table, not the number 1 (allowed: true, '
            .. 'false, or a table of booleans with the keys q, k, v, o)',
    },
    { with { bias = { k = "no" } },
        'c.lua: bias.k = "no": must be a boolean, not a string (allowed: true, false)',
    },
    { with { bias = { qkv = true } },
        'c.lua: bias.qkv = true: unknown key (allowed: q, k, v, o)',
    },
    { with { bias = { true, false } },
        'c.lua: bias[1] = true: unknown key (allowed: q, k, v, o)',
        'c.lua: bias[2] = false: unknown key (allowed: q, k, v, o)',
    },
    { with { bias = { o = true }, output_projection = false },
        'c.lua: bias.o = true: there is no output projection to add it to (allowed: false, '
            .. 'or output_projection = true)',
    },
    { with { bias = null },
        'c.lua: bias = null: must be a boolean or a table, not null (allowed: true, false, '
            .. 'or a table of booleans with the keys q, k, v, o)',
    },
    { with { scale = "auto" },
        'c.lua: scale = "auto": must be a number, not a string (allowed: a finite number '
            .. 'between -1e38 and 1e38)',
    },
    { with { scale = 0 / 0 },
        'c.lua: scale = nan: not finite (allowed: a finite number between -1e38 and 1e38)',
    },
    { with { scale = math.huge },
        'c.lua: scale = inf: not finite (allowed: a finite number between -1e38 and 1e38)',
    },
    { with { scale = -math.huge },
        'c.lua: scale = -inf: not finite (allowed: a finite number between -1e38 and 1e38)',
    },
    { with { scale = 1e39 },
        'c.lua: scale = 1e+39: too large for a float32 constant (allowed: a finite number '
            .. 'between -1e38 and 1e38)',
    },
    { with { scale = {} },
        'c.lua: scale = {}: must be a number, not a table (allowed: a finite number '
            .. 'between -1e38 and 1e38)',
    },
    { with { scale = function() return 1 end },
        'c.lua: scale = (function): must be a number, not a function (allowed: a finite '
            .. 'number between -1e38 and 1e38)',
    },
    -- Masks
    { with { mask = "sliding" },
        'c.lua: mask = "sliding": unknown mask (allowed: <MASK>)',
    },
    { with { mask = "casual" },
        'c.lua: mask = "casual": unknown mask (allowed: <MASK>; did you mean "causal"?)',
    },
    { with { mask = "Causal" },
        'c.lua: mask = "Causal": unknown mask (allowed: <MASK>; did you mean "causal"?)',
    },
    { with { mask = true },
        'c.lua: mask = true: must be a string or a list of strings, not a boolean '
            .. '(allowed: <MASK>)',
    },
    { with { mask = {} },
        'c.lua: mask = {}: empty list (allowed: <MASK>)',
    },
    { with { mask = { "causal", "causal" } },
        'c.lua: mask = {"causal", "causal"}: "causal" is given twice (allowed: each mask '
            .. 'once)',
    },
    { with { mask = { "none", "causal" } },
        'c.lua: mask = {"none", "causal"}: "none" excludes every other mask (allowed: only '
            .. '"none", or a list without it)',
    },
    { with { mask = { "causal", "padded", 3 } },
        'c.lua: mask = "padded": unknown mask (allowed: <MASK>)',
        'c.lua: mask = 3: must be a string or a list of strings, not the number 3 '
            .. '(allowed: <MASK>)',
    },
    { with { mask = { window = { left = 2, right = 0 } } },
        'c.lua: mask = {window = {left = 2, right = 0}}: a window is not supported yet '
            .. '(allowed: <MASK>)',
    },
    { with { mask = { "causal", { window = { left = 2 } } } },
        'c.lua: mask = {window = {left = 2}}: a window is not supported yet (allowed: '
            .. '<MASK>)',
    },
    { with { mask = function(q, k) return k <= q end },
        'c.lua: mask = (function): a function is not supported yet (allowed: <MASK>)',
    },
    { with { mask = { causal = true } },
        'c.lua: mask = {causal = true}: must be a string or a list of strings, not a table '
            .. '(allowed: <MASK>)',
    },
    { with { mask = { [2] = "causal" } },
        'c.lua: mask = {[2] = "causal"}: must be a string or a list of strings, not a '
            .. 'table (allowed: <MASK>)',
    },
    { with { mask = null },
        'c.lua: mask = null: must be a string or a list of strings, not null (allowed: '
            .. '<MASK>)',
    },
    { with { mask_shape = { 1, 1, 8, 8 } },
        'c.lua: mask_shape = {1, 1, 8, 8}: there is no mask tensor (allowed: not given, or '
            .. 'mask "bool" or "additive")',
    },
    { with { mask = "causal", mask_shape = { 1, 1, 8, 8 } },
        'c.lua: mask_shape = {1, 1, 8, 8}: there is no mask tensor (allowed: not given, or '
            .. 'mask "bool" or "additive")',
    },
    { with { mask = "bool", mask_shape = { 8, 8 } },
        'c.lua: mask_shape = {8, 8}: must be a list of 4 integers (allowed: {B, H, L, S} '
            .. 'where each of B, H, L may be 1; with mask bool or additive)',
    },
    { with { mask = "bool", mask_shape = { 1, 1, 8, 1 } },
        'c.lua: mask_shape[4] = 1: fits neither kv_len 8 nor broadcasting (allowed: 8)',
    },
    { with { mask = "additive", batch = 3, mask_shape = { 2, 2, 4, 8 } },
        'c.lua: mask_shape[1] = 2: fits neither batch 3 nor broadcasting (allowed: 1 or 3)',
        'c.lua: mask_shape[2] = 2: fits neither heads 4 nor broadcasting (allowed: 1 or 4)',
        'c.lua: mask_shape[3] = 4: fits neither seq_len 8 nor broadcasting (allowed: 1 or '
            .. '8)',
    },
    { with { mask = "bool", mask_shape = "full" },
        'c.lua: mask_shape = "full": must be a list of 4 integers (allowed: {B, H, L, S} '
            .. 'where each of B, H, L may be 1; with mask bool or additive)',
    },
    { with { mask = "bool", mask_shape = { 1, 1, 8, "8" } },
        'c.lua: mask_shape[4] = "8": must be an integer, not a string (allowed: <SIZE>)',
    },
    { with { mask = "bool", mask_shape = { 1, 0, 8, 8 } },
        'c.lua: mask_shape[2] = 0: out of range (allowed: <SIZE>)',
    },
    { with { causal_align = "top_left" },
        'c.lua: causal_align = "top_left": there is no causal mask to align (allowed: not '
            .. 'given, or mask "causal")',
    },
    { with { mask = "causal", causal_align = "left" },
        'c.lua: causal_align = "left": unknown value (allowed: <ALIGN>)',
    },
    { with { mask = "causal", causal_align = "bottom-right" },
        'c.lua: causal_align = "bottom-right": unknown value (allowed: <ALIGN>; did you '
            .. 'mean "bottom_right"?)',
    },
    { with { mask = "causal", causal_align = "lengths" },
        'c.lua: causal_align = "lengths": needs the mask "lengths" (allowed: "top_left", '
            .. '"bottom_right", an integer; or mask = {"causal", "lengths"})',
    },
    { with { mask = "causal", causal_align = 1.5 },
        'c.lua: causal_align = 1.5: must be an integer, not the number 1.5 (allowed: an '
            .. 'integer from -2147483647 to 2147483647)',
    },
    { with { mask = "causal", causal_align = true },
        'c.lua: causal_align = true: must be a string or an integer, not a boolean '
            .. '(allowed: <ALIGN>)',
    },
    { with { mask = "causal", causal_align = 1 << 31 },
        'c.lua: causal_align = 2147483648: out of range (allowed: an integer from '
            .. '-2147483647 to 2147483647)',
    },
    { with { mask = "causal", cross = true, kv_len = 5 },
        'c.lua: causal_align: required: a causal mask with seq_len 8 and kv_len 5 can be '
            .. 'aligned in several ways (allowed: <ALIGN>)',
    },
    { sdpa { mask = "causal", kv_len = 5 },
        'c.lua: causal_align: required: a causal mask with seq_len 8 and kv_len 5 can be '
            .. 'aligned in several ways (allowed: <ALIGN>)',
    },
    { with { padded_queries = "zero" },
        'c.lua: padded_queries = "zero": needs the mask "lengths", which says where '
            .. 'padding starts (allowed: "compute", or mask "lengths")',
    },
    { with { mask = "padding", padded_queries = "zero" },
        'c.lua: padded_queries = "zero": needs the mask "lengths", which says where '
            .. 'padding starts (allowed: "compute", or mask "lengths")',
    },
    -- Queries
    { with { queries = "middle" },
        'c.lua: queries = "middle": unknown value (allowed: "all", "first", "last")',
    },
    { with { queries = "first", cross = true },
        'c.lua: queries = "first": chooses among the rows that are keys as well, but with a '
            .. 'context every row of x is a query (allowed: "all", or cross = false)',
    },
    { with { queries = "last", kv_len = 5 },
        'c.lua: seq_len = 8: more queries than the 5 rows of x (kv_len) (allowed: at most 5)',
    },
    { with { queries = "last", mask = "lengths", padded_queries = "zero" },
        'c.lua: padded_queries = "zero": means nothing with queries = "last": the last rows '
            .. 'of x are the padding itself (allowed: "compute", or queries = "first")',
    },
    { sdpa { queries = "last" },
        'c.lua: queries = "last": has no meaning with op "sdpa", which has no projections '
            .. '(allowed: not given, or op = "mha")',
    },
    -- Context and sdpa
    { with { kv_dim = 32 },
        'c.lua: kv_dim = 32: differs from d_model 64, but without a context K and V come '
            .. 'from x (allowed: d_model, or cross = true)',
    },
    { with { kv_len = 16 },
        'c.lua: kv_len = 16: differs from seq_len 8, but without a context K and V come '
            .. 'from x (allowed: seq_len, or cross = true, or op = "sdpa", or queries = '
            .. '"first" or "last", or a kv_cache)',
    },
    { with { kv_len = 16, mask = "causal" },
        'c.lua: kv_len = 16: differs from seq_len 8, but without a context K and V come '
            .. 'from x (allowed: seq_len, or cross = true, or op = "sdpa", or queries = '
            .. '"first" or "last", or a kv_cache)',
    },
    { sdpa { d_model = 64 },
        'c.lua: d_model = 64: has no meaning with op "sdpa", which has no projections '
            .. '(allowed: not given, or op = "mha")',
    },
    { sdpa { bias = false },
        'c.lua: bias = false: has no meaning with op "sdpa", which has no projections '
            .. '(allowed: not given, or op = "mha")',
    },
    { sdpa { cross = false },
        'c.lua: cross = false: has no meaning with op "sdpa", which has no projections '
            .. '(allowed: not given, or op = "mha")',
    },
    { sdpa { kv_dim = 64 },
        'c.lua: kv_dim = 64: has no meaning with op "sdpa", which has no projections '
            .. '(allowed: not given, or op = "mha")',
    },
    { sdpa { output_projection = false },
        'c.lua: output_projection = false: has no meaning with op "sdpa", which has no '
            .. 'projections (allowed: not given, or op = "mha")',
    },
    { sdpa_without("heads"),
        'c.lua: heads: required, but missing (allowed: <SIZE>)',
    },
    { sdpa_without("head_dim"),
        'c.lua: head_dim: required with op "sdpa", but missing (allowed: <SIZE>)',
    },
    { sdpa { d_model = 64, bias = true, cross = true },
        'c.lua: d_model = 64: has no meaning with op "sdpa", which has no projections '
            .. '(allowed: not given, or op = "mha")',
        'c.lua: cross = true: has no meaning with op "sdpa", which has no projections '
            .. '(allowed: not given, or op = "mha")',
        'c.lua: bias = true: has no meaning with op "sdpa", which has no projections '
            .. '(allowed: not given, or op = "mha")',
    },
    -- ISA, plan, target
    { with { isa = "avx" },
        'c.lua: isa = "avx": unknown ISA (allowed: <ISAS>; did you mean "avx2"?)',
    },
    { with { isa = "AVX2" },
        'c.lua: isa = "AVX2": unknown ISA (allowed: <ISAS>; did you mean "avx2"?)',
    },
    { with { isa = "sse2" },
        'c.lua: isa = "sse2": unknown ISA (allowed: <ISAS>)',
    },
    { with { isa = {} },
        'c.lua: isa = {}: empty list (allowed: <ISAS>)',
    },
    { with { isa = { "avx2", "avx2" } },
        'c.lua: isa = {"avx2", "avx2"}: "avx2" is given twice (allowed: each ISA once)',
    },
    { with { isa = 2 },
        'c.lua: isa = 2: must be an ISA or a list of ISAs, not the number 2 (allowed: '
            .. '<ISAS>)',
    },
    { with { isa = { "avx2", 2 } },
        'c.lua: isa = 2: must be a string, not the number 2 (allowed: <ISAS>)',
    },
    { with { isa = "native" },
        'c.lua: isa = "native": "native" cannot be resolved here (allowed: '
            .. '<TOKENS>)',
    },
    { with { isa = { a = "avx2" } },
        'c.lua: isa = {a = "avx2"}: must be an ISA or a list of ISAs, not a table '
            .. '(allowed: <ISAS>)',
    },
    { with { isa = { "avx2", "avx512f" } },
        'c.lua: isa = "avx512f": unknown ISA (allowed: <ISAS>; did you mean "avx512"?)',
    },
    { with { plan = 1 },
        'c.lua: plan = 1: must be a table, not the number 1 (allowed: a table of layer, project, '
            .. 'scores, context, output, fold)',
    },
    { with { plan = { score = { rows = 8 } } },
        'c.lua: plan.score = {rows = 8}: unknown key (allowed: layer, project, scores, '
            .. 'context, output, fold; did you mean "scores"?)',
    },
    { with { plan = { scores = { rows = 33 } } },
        'c.lua: plan.scores.rows = 33: out of range (allowed: an integer from 1 to 32)',
    },
    { with { plan = { scores = { rows = 0, vectors = 9 } } },
        'c.lua: plan.scores.rows = 0: out of range (allowed: an integer from 1 to 32)',
        'c.lua: plan.scores.vectors = 9: out of range (allowed: an integer from 1 to 8)',
    },
    { with { plan = { scores = { unroll = 2 } } },
        'c.lua: plan.scores.unroll = 2: unknown key '
            .. '(allowed: rows, vectors, orientation, key_block, prefetch)',
    },
    { with { plan = { project = { rows = "8" } } },
        'c.lua: plan.project.rows = "8": must be an integer, not a string (allowed: an '
            .. 'integer from 1 to 32)',
    },
    { with { plan = { project = 8 } },
        'c.lua: plan.project = 8: must be a table, not the number 8 (allowed: a table of '
            .. 'rows, vectors, unroll, row_block, merged)',
    },
    { with { plan = { context = { unroll = 65 } } },
        'c.lua: plan.context.unroll = 65: out of range (allowed: an integer from 1 to 64)',
    },
    { with { plan = { fold = { scale = 1 } } },
        'c.lua: plan.fold.scale = 1: must be a boolean, not the number 1 (allowed: true, '
            .. 'false)',
    },
    { with { plan = { fold = { kbias = true } } },
        'c.lua: plan.fold.kbias = true: unknown key (allowed: scale, k_bias, '
            .. 'v_bias, qk, vo, few_queries; did '
            .. 'you mean "k_bias"?)',
    },
    { with { plan = { fold = true } },
        'c.lua: plan.fold = true: must be a table, not a boolean (allowed: a table of '
            .. 'scale, k_bias, v_bias, qk, vo, few_queries)',
    },
    { with { plan = { [1] = 2 } },
        'c.lua: plan[1] = 2: unknown key (allowed: layer, project, scores, context, output, fold)',
    },
    { with { output_projection = false, plan = { output = { rows = 8 } } },
        'c.lua: plan.output = {rows = 8}: there is no output projection (allowed: not '
            .. 'given, or output_projection = true)',
    },
    { sdpa { plan = { project = { rows = 8 } } },
        'c.lua: plan.project = {rows = 8}: op "sdpa" has no such stage (allowed: scores, '
            .. 'context)',
    },
    { with { target = { l3 = 1 } },
        'c.lua: target.l3 = 1: unknown key (allowed: l1d, l1i, l2, fma_latency, fma_pipes; '
            .. 'did you mean "l2"?)',
    },
    { with { target = { l2 = 0 } },
        'c.lua: target.l2 = 0: out of range (allowed: an integer from 1 to 1073741824)',
    },
    { with { target = { l1d = 2147483647, fma_latency = 2147483647, fma_pipes = 17 } },
        'c.lua: target.fma_latency = 2147483647: out of range (allowed: an integer from 1 to 32)',
        'c.lua: target.fma_pipes = 17: out of range (allowed: an integer from 1 to 16)',
        'c.lua: target.l1d = 2147483647: out of range (allowed: an integer from 1 to 1073741824)',
    },
    { with { target = { l2 = 2.5 } },
        'c.lua: target.l2 = 2.5: must be an integer, not the number 2.5 (allowed: an '
            .. 'integer from 1 to 1073741824)',
    },
    { with { target = "zen4" },
        'c.lua: target = "zen4": must be a table, not a string (allowed: a table of l1d, '
            .. 'l1i, l2, fma_latency, fma_pipes)',
    },
    { with { target = { fma_latencies = 4 } },
        'c.lua: target.fma_latencies = 4: unknown key (allowed: l1d, l1i, l2, fma_latency, '
            .. 'fma_pipes; did you mean "fma_latency"?)',
    },
    -- Names
    { with { name = "bert.encoder.layer.0" },
        'c.lua: name = "bert.encoder.layer.0": is no C identifier (allowed: <ID>)',
    },
    { with { name = "2layers" },
        'c.lua: name = "2layers": is no C identifier (allowed: <ID>)',
    },
    { with { name = "int" },
        'c.lua: name = "int": is reserved in C or C++ (allowed: an identifier that is no '
            .. 'keyword)',
    },
    { with { name = "main" },
        'c.lua: name = "main": is reserved in C or C++ (allowed: an identifier that is no '
            .. 'keyword)',
    },
    { with { name = "a-b" },
        'c.lua: name = "a-b": is no C identifier (allowed: <ID>)',
    },
    { with { name = "attn;x" },
        'c.lua: name = "attn;x": is no C identifier (allowed: <ID>)',
    },
    { with { name = "x*/y" },
        'c.lua: name = "x*/y": is no C identifier (allowed: <ID>)',
    },
    { with { name = "../evil" },
        'c.lua: name = "../evil": is no C identifier (allowed: <ID>)',
    },
    { with { name = ("n"):rep(300) },
        'c.lua: name = "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn…": '
            .. 'is 300 characters long (allowed: at most 47, so that NAME_workspace_bytes and the '
            .. 'like stay within the 63 that C promises)',
    },
    { with { name = "" },
        'c.lua: name = "": is empty (allowed: <ID>)',
    },
    { with { name = "_x" },
        'c.lua: name = "_x": starts with _, which C reserves (allowed: <ID>)',
    },
    { with { name = "__x" },
        'c.lua: name = "__x": starts with _, which C reserves (allowed: <ID>)',
    },
    { with { name = "class" },
        'c.lua: name = "class": is reserved in C or C++ (allowed: an identifier that is no '
            .. 'keyword)',
    },
    { with { name = "constexpr" },
        'c.lua: name = "constexpr": is reserved in C or C++ (allowed: an identifier that '
            .. 'is no keyword)',
    },
    { with { name = "restrict" },
        'c.lua: name = "restrict": is reserved in C or C++ (allowed: an identifier that is '
            .. 'no keyword)',
    },
    { with { name = "a b" },
        'c.lua: name = "a b": is no C identifier (allowed: <ID>)',
    },
    { with { name = "a\n#include" },
        'c.lua: name = "a\\x0A#include": is no C identifier (allowed: <ID>)',
    },
    { with { name = "naïve" },
        'c.lua: name = "naïve": is no C identifier (allowed: <ID>)',
    },
    { with { name = 1 },
        'c.lua: name = 1: must be a string, not the number 1 (allowed: a C identifier '
            .. '(letter first, then letters, digits, _), no keyword)',
    },
    { with { name = false },
        'c.lua: name = false: must be a string, not a boolean (allowed: a C identifier '
            .. '(letter first, then letters, digits, _), no keyword)',
    },
    { with { name = "stdint" },
        'c.lua: name = "stdint": would shadow the header <stdint.h> (allowed: another name)',
    },
    { with { name = "Attn" },
        'c.lua: name = "Attn": is the prefix of the runtime\'s own symbols (allowed: '
            .. 'another name)',
    },
    { with { name = ("n"):rep(48) },
        'c.lua: name = "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn": is 48 '
            .. 'characters long (allowed: at most 47, so that NAME_workspace_bytes and the like '
            .. 'stay within the 63 that C promises)',
    },
    { with { name = ("n"):rep(41), isa = { "avx2", "avx512" } },
        'c.lua: name = "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn": is 41 characters long '
            .. '(allowed: at most 40, so that NAME_ISA_workspace_bytes and the like stay within '
            .. 'the 63 that C promises)',
    },
    -- Nesting
    { with { mask = cyclic() },
        'c.lua: mask = {"causal", {"causal", {…}}}: contains itself (allowed: <MASK>)',
    },
    { with { plan = nested(40) },
        'c.lua: plan = {{{…}}}: nested more than 16 deep (allowed: a table of layer, project, '
            .. 'scores, context, output, fold)',
    },
    { with { bias = nested(20000) },
        'c.lua: bias = {{{…}}}: nested more than 16 deep (allowed: true, false, or a '
            .. 'table of booleans with the keys q, k, v, o)',
    },
    { with { target = cyclic() },
        'c.lua: target = {"causal", {"causal", {…}}}: contains itself (allowed: a table '
            .. 'of l1d, l1i, l2, fma_latency, fma_pipes)',
    },
    { with { unknown = cyclic() },
        'c.lua: unknown = {"causal", {"causal", {…}}}: unknown key (allowed: <KEYS>)',
    },
    -- Several at once
    { { seq_len = 0, d_model = 65, heads = 4, mask = "casual", isa = "avx",
            plan = { scores = { rows = 99 } }, name = "a-b" },
        'c.lua: seq_len = 0: out of range (allowed: <SIZE>)',
        'c.lua: heads = 4: d_model 65 is not a multiple of heads 4 (allowed: a divisor of '
            .. 'd_model, such as 1 or 5; or give head_dim)',
        'c.lua: mask = "casual": unknown mask (allowed: <MASK>; did you mean "causal"?)',
        'c.lua: isa = "avx": unknown ISA (allowed: <ISAS>; did you mean "avx2"?)',
        'c.lua: plan.scores.rows = 99: out of range (allowed: an integer from 1 to 32)',
        'c.lua: name = "a-b": is no C identifier (allowed: <ID>)',
    },
    { with { heds = 3, softcap = 1, batch = -1, scale = 0 / 0, unroll = "none" },
        'c.lua: heds = 3: unknown key (allowed: <KEYS>; did you mean "heads"?)',
        'c.lua: softcap = 1: not supported yet (allowed: <KEYS>)',
        'c.lua: batch = -1: out of range (allowed: <SIZE>)',
        'c.lua: scale = nan: not finite (allowed: a finite number between -1e38 and 1e38)',
        'c.lua: unroll = "none": unknown value (allowed: "auto", "full", "tiles")',
    },
}

return { cases = CASES, expand = expand, with = with, sdpa = sdpa }
