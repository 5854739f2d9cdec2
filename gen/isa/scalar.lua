-- Portable C11, one lane: the reference vocabulary and the fallback for any CPU. No libm call, no
-- fused multiply-add (a call into libm where the CPU has none).
local exp2 <const> = require("gen.isa.exp2")

local function exp2_helper(name, accuracy)
    return {
        needs = { "float_bits" },
        text = ([[
/* 2^(x + 16) for x <= 64, 0 from -142 down (no denormals), NaN stays NaN. Round to nearest by
 * adding 1.5 * 2^23 + 143 (the low bits then hold exponent plus bias), polynomial on [-1/2, 1/2].
 */
static inline float NAME(float x)
{
    const float magic = 0x1.80011ep23f;
    const union float_bits biased = {.f = x + magic};
    const float r = x - (biased.f - magic);
    const union float_bits power = {.u = biased.u << 23};
HORNER
    return x <= -142.0f ? 0.0f : p * power.f;
}
]]):gsub("NAME", name):gsub("HORNER", function()
            return exp2.horner("nearest", accuracy, "float", "$1", "$1 * $2 + $3")
        end),
    }
end

return {
    name = "scalar",
    arch = "any",
    lanes = 1,
    registers = 16,
    flags = {},
    features = "0",
    cpu_test = {},
    types = { vec = "float", mask = "int" },
    target = { fma_latency = 4, fma_pipes = 1, load_ports = 2, l1d = 32768, l1i = 32768,
        l2 = 524288,
        bytes_per_op = 9 },
    ops = {
        zero = { text = "0.0f" },
        splat = { text = "$1" },
        minus_infinity = { text = "minus_infinity()", helper = "minus_infinity" },
        load = { text = "*($1)" },
        load_part = { text = "*($1)" },
        broadcast = { text = "*($1)" },
        spread = { text = "*($1)" },
        zip_low = { text = "$1" },
        zip_high = { text = "$2" },
        join = { text = "*($1)" },
        split = { text = "*($1) = $2" },
        store = { text = "*($1) = $2" },
        store_part = { text = "*($1) = $2" },
        add = { text = "$1 + $2" },
        sub = { text = "$1 - $2" },
        mul = { text = "$1 * $2" },
        div = { text = "$1 / $2" },
        fma = { text = "$1 * $2 + $3", meaning = "$1 * $2 + $3" },
        max = { text = "$1 > $2 ? $1 : $2" },
        ceil = { text = "round_up($1)", helper = "round_up" },
        exp2 = { text = "scalar_exp2($1)", helper = "scalar_exp2" },
        exp2_fast = { text = "scalar_exp2_fast($1)", helper = "scalar_exp2_fast" },
        exp2_near = { text = "scalar_exp2($1)", helper = "scalar_exp2" },
        exp2_near_fast = { text = "scalar_exp2_fast($1)", helper = "scalar_exp2_fast" },
        or_stray = { text = "or_stray($1, $2)", helper = "or_stray" },
        has_high_bits = { text = "has_high_bits($1)", helper = "has_high_bits" },
        -- one lane has no neighbour
        pair_sums = { text = "$1 + $2", meaning = "$1[0] + $2[0]" },
        near_sums = { text = "$1 + $2", meaning = "$1[0] + $2[0]" },
        far_sums = { text = "$1 + $2", meaning = "$1[0] + $2[0]" },
        pair_max = { text = "$1 > $2 ? $1 : $2", meaning = "fmaxf($1[0], $2[0])" },
        lanes_from = { text = "($1) == 0" },
        lanes_if = { text = "$1" },
        lanes_above = { text = "$1 > $2" },
        has_above = { text = "($1 > $2)" },
        lanes_both = { text = "$1 & $2" },
        lanes_allowed = { text = "$1 != minus_infinity()", helper = "minus_infinity" },
        select = { text = "$1 ? $2 : $3" },
        has_nan = { text = "($1 != $1)" },
        has_nan_part = { text = "($1 != $1)" },
        prefetch = { text = "(void)($1)" },
        prefetch_soon = { text = "(void)($1)" },
        prefetch_write = { text = "(void)($1)" },
    },
    helpers = {
        round_up = { text = [[
/* ceil(x) without libm: 2^23 and above are whole already; NaN stays NaN. */
static inline float round_up(float x)
{
    if (!(x > -0x1p23f && x < 0x1p23f))
        return x;
    const float whole = (float)(int32_t)x;
    return whole < x ? whole + 1.0f : whole;
}
]] },
        has_high_bits = { needs = { "float_bits" }, text = [[
/* Whether a bit but the last eight is set. */
static inline int has_high_bits(float x)
{
    const union float_bits bits = {.f = x};
    return bits.u > 0xff;
}
]] },
        or_stray = { needs = { "float_bits" }, text = [[
/* The bits of all and those by which x + 1.5 * 2^23 + 142 differs from 1.5 * 2^23. */
static inline float or_stray(float all, float x)
{
    const union float_bits biased = {.f = x + 0x1.80011cp23f}, whole = {.f = 0x1.8p23f};
    union float_bits bits = {.f = all};
    bits.u |= biased.u ^ whole.u;
    return bits.f;
}
]] },
        scalar_exp2 = exp2_helper("scalar_exp2", "exact"),
        scalar_exp2_fast = exp2_helper("scalar_exp2_fast", "fast"),
        regroup_block = { text = [[
/* One lane has no groups. */
static inline void regroup_block(const float *src, size_t src_stride, float *dst,
                                 size_t dst_stride, size_t group)
{
    (void)src_stride;
    (void)dst_stride;
    (void)group;
    *dst = *src;
}
]] },
        transpose_block = { text = [[
/* A 1x1 block: the strides do not matter. */
static inline void transpose_block(const float *src, size_t src_stride, float *dst,
                                   size_t dst_stride)
{
    (void)src_stride;
    (void)dst_stride;
    *dst = *src;
}
]] },
    },
}
