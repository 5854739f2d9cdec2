-- AArch64 Advanced SIMD: 4 float lanes, 32 vector registers, masks are vectors of all-ones lanes.
local exp2 <const> = require("gen.isa.exp2")

-- A request for the line at src; arguments: whether it is to be written, and how near it stays.
local function prefetch_helper(name, arguments)
    return { text = ([[
static inline void %s(const float *src)
{
#if defined(__GNUC__)
    __builtin_prefetch(src, %s);
#else
    (void)src;
#endif
}
]]):format(name, arguments) }
end

local function exp2_helper(name, accuracy)
    return {
        text = ([[
/* 2^(x + 16) for x <= 64, 0 from -142 down (no denormals), NaN stays NaN. Round to nearest,
 * polynomial on [-1/2, 1/2], exponent added in the integer domain of a power of two. */
static inline float32x4_t NAME(float32x4_t x)
{
    const float32x4_t rounded = vrndnq_f32(x);
    const float32x4_t r = vsubq_f32(x, rounded);
    const int32x4_t exponent = vaddq_s32(vcvtq_s32_f32(rounded), vdupq_n_s32(143));
    const float32x4_t power = vreinterpretq_f32_s32(vshlq_n_s32(exponent, 23));
HORNER
    const uint32x4_t flushed = vcleq_f32(x, vdupq_n_f32(-142.0f));
    return vreinterpretq_f32_u32(
        vbicq_u32(vreinterpretq_u32_f32(vmulq_f32(p, power)), flushed));
}
]]):gsub("NAME", name):gsub("HORNER", function()
            return exp2.horner("nearest", accuracy, "float32x4_t", "vdupq_n_f32($1)",
                "vfmaq_f32($3, $1, $2)")
        end),
    }
end

return {
    name = "neon",
    arch = "aarch64",
    lanes = 4,
    registers = 32,
    header = "arm_neon.h",
    guard = { condition = "defined(__aarch64__)", message = "needs an AArch64 compiler" },
    flags = {},
    features = "ATTN_CPU_NEON",
    cpu_test = { "asimd" },
    types = { vec = "float32x4_t", mask = "uint32x4_t" },
    target = { fma_latency = 4, fma_pipes = 2, load_ports = 2, l1d = 32768, l1i = 32768,
        l2 = 524288,
        bytes_per_op = 5 },
    ops = {
        zero = { text = "vdupq_n_f32(0.0f)" },
        splat = { text = "vdupq_n_f32($1)" },
        minus_infinity = { text = "vreinterpretq_f32_u32(vdupq_n_u32(0xff800000u))" },
        load = { text = "vld1q_f32($1)" },
        load_part = { text = "load_part($1, $2)", helper = "load_part" },
        broadcast = { text = "vld1q_dup_f32($1)" },
        spread = { text = "spread($1)", helper = "spread" },
        zip_low = { text = "vcombine_f32(vget_low_f32($1), vget_low_f32($2))" },
        zip_high = { text = "vcombine_f32(vget_high_f32($1), vget_high_f32($2))" },
        join = { text = "join($1, $2, $4)", helper = "join" },
        split = { text = "split($1, $2, $3, $5)", helper = "split" },
        store = { text = "vst1q_f32($1, $2)" },
        store_part = { text = "store_part($1, $2, $3)", helper = "store_part" },
        add = { text = "vaddq_f32($1, $2)" },
        sub = { text = "vsubq_f32($1, $2)" },
        mul = { text = "vmulq_f32($1, $2)" },
        div = { text = "vdivq_f32($1, $2)" },
        fma = { text = "vfmaq_f32($3, $1, $2)" },
        max = { text = "vmaxq_f32($1, $2)" },
        ceil = { text = "vrndpq_f32($1)" },
        exp2 = { text = "vec_exp2($1)", helper = "vec_exp2" },
        exp2_fast = { text = "vec_exp2_fast($1)", helper = "vec_exp2_fast" },
        exp2_near = { text = "vec_exp2($1)", helper = "vec_exp2" },
        exp2_near_fast = { text = "vec_exp2_fast($1)", helper = "vec_exp2_fast" },
        or_stray = { text = "or_stray($1, $2)", helper = "or_stray" },
        has_high_bits = { text = "(vmaxvq_u32(vreinterpretq_u32_f32($1)) > 0xff)" },
        pair_sums = { text = "vpaddq_f32($1, $2)" },
        near_sums = { text = "vpaddq_f32($1, $2)" },
        far_sums = { text = "vaddq_f32($1, $2)", meaning = "$1[$lane] + $2[$lane]" },
        pair_max = { text = "vpmaxq_f32($1, $2)" },
        lanes_from = { text = "lanes_from($1)", helper = "lanes_from" },
        lanes_if = { text = "vdupq_n_u32(0u - (uint32_t)($1))" },
        lanes_above = { text = "vcgtq_f32($1, $2)" },
        has_above = { text = "(vmaxvq_u32(vcgtq_f32($1, $2)) != 0)" },
        lanes_both = { text = "vandq_u32($1, $2)" },
        lanes_allowed = {
            text = "vmvnq_u32(vceqq_f32($1, vreinterpretq_f32_u32(vdupq_n_u32(0xff800000u))))",
        },
        select = { text = "vbslq_f32($1, $2, $3)" },
        has_nan = { text = "(vminvq_u32(vceqq_f32($1, $1)) == 0)" },
        has_nan_part = { text = "has_nan_part($1, $2)", helper = "has_nan_part" },
        prefetch = { text = "prefetch_line($1)", helper = "prefetch_line" },
        prefetch_soon = { text = "prefetch_soon($1)", helper = "prefetch_soon" },
        prefetch_write = { text = "prefetch_write($1)", helper = "prefetch_write" },
    },
    helpers = {
        spread = { text = [[
/* A group of 2 floats, twice. */
static inline float32x4_t spread(const float *src)
{
    const float32x2_t two = vld1_f32(src);
    return vcombine_f32(two, two);
}
]] },
        join = { text = [[
/* Groups of 2 floats from rows `stride` apart, zeros from group `count` on. */
static inline float32x4_t join(const float *src, size_t stride, size_t count)
{
    return vcombine_f32(vld1_f32(src), count > 1 ? vld1_f32(src + stride) : vdup_n_f32(0.0f));
}
]] },
        split = { text = [[
/* Stores groups of 2 lanes to rows `stride` apart, the first `count` of them. */
static inline void split(float *dst, float32x4_t v, size_t stride, size_t count)
{
    vst1_f32(dst, vget_low_f32(v));
    if (count > 1)
        vst1_f32(dst + stride, vget_high_f32(v));
}
]] },
        load_part = { text = [[
/* The first count floats (1 to 3), zeros behind them; reads nothing else. */
static inline float32x4_t load_part(const float *src, size_t count)
{
    float32x4_t v = vld1q_lane_f32(src, vdupq_n_f32(0.0f), 0);
    if (count > 1)
        v = vld1q_lane_f32(src + 1, v, 1);
    if (count > 2)
        v = vld1q_lane_f32(src + 2, v, 2);
    return v;
}
]] },
        store_part = { text = [[
/* Stores the first count lanes (1 to 3). */
static inline void store_part(float *dst, float32x4_t v, size_t count)
{
    vst1q_lane_f32(dst, v, 0);
    if (count > 1)
        vst1q_lane_f32(dst + 1, v, 1);
    if (count > 2)
        vst1q_lane_f32(dst + 2, v, 2);
}
]] },
        has_nan_part = { text = [[
/* Whether one of the first count lanes (1 to 3) is NaN. */
static inline int has_nan_part(float32x4_t v, size_t count)
{
    static const uint32_t lane[4] = {0, 1, 2, 3};
    const uint32x4_t unused = vcgeq_u32(vld1q_u32(lane), vdupq_n_u32((uint32_t)count));
    return vminvq_u32(vorrq_u32(vceqq_f32(v, v), unused)) == 0;
}
]] },
        lanes_from = { text = [[
/* Mask of the lanes >= first; none when first >= 4. */
static inline uint32x4_t lanes_from(size_t first)
{
    static const uint32_t lane[4] = {0, 1, 2, 3};
    return vcgeq_u32(vld1q_u32(lane), vdupq_n_u32((uint32_t)(first < 4 ? first : 4)));
}
]] },
        prefetch_line = prefetch_helper("prefetch_line", "0, 2"),
        prefetch_soon = prefetch_helper("prefetch_soon", "0, 3"),
        prefetch_write = prefetch_helper("prefetch_write", "1, 3"),
        or_stray = { text = [[
/* The bits of all and those by which x + 1.5 * 2^23 + 142 differs from 1.5 * 2^23. */
static inline float32x4_t or_stray(float32x4_t all, float32x4_t x)
{
    const uint32x4_t biased = vreinterpretq_u32_f32(vaddq_f32(x, vdupq_n_f32(0x1.80011cp23f)));
    const uint32x4_t whole = vreinterpretq_u32_f32(vdupq_n_f32(0x1.8p23f));
    return vreinterpretq_f32_u32(
        vorrq_u32(vreinterpretq_u32_f32(all), veorq_u32(biased, whole)));
}
]] },
        vec_exp2 = exp2_helper("vec_exp2", "exact"),
        vec_exp2_fast = exp2_helper("vec_exp2_fast", "fast"),
        regroup_block = { text = [[
/* Groups of 2 floats transposed: group j of row i becomes group i of row j. */
static inline void regroup_block(const float *src, size_t src_stride, float *dst,
                                 size_t dst_stride, size_t group)
{
    const float32x4_t a0 = vld1q_f32(src), a1 = vld1q_f32(src + src_stride);
    (void)group;
    vst1q_f32(dst, vcombine_f32(vget_low_f32(a0), vget_low_f32(a1)));
    vst1q_f32(dst + dst_stride, vcombine_f32(vget_high_f32(a0), vget_high_f32(a1)));
}
]] },
        transpose_block = { text = [[
/* dst[c * dst_stride + r] = src[r * src_stride + c] for a 4x4 block. */
static inline void transpose_block(const float *src, size_t src_stride, float *dst,
                                   size_t dst_stride)
{
    const float32x4_t a0 = vld1q_f32(src), a1 = vld1q_f32(src + src_stride);
    const float32x4_t a2 = vld1q_f32(src + 2 * src_stride), a3 = vld1q_f32(src + 3 * src_stride);
    const float32x4_t b0 = vzip1q_f32(a0, a2), b1 = vzip2q_f32(a0, a2);
    const float32x4_t b2 = vzip1q_f32(a1, a3), b3 = vzip2q_f32(a1, a3);
    vst1q_f32(dst, vzip1q_f32(b0, b2));
    vst1q_f32(dst + dst_stride, vzip2q_f32(b0, b2));
    vst1q_f32(dst + 2 * dst_stride, vzip1q_f32(b1, b3));
    vst1q_f32(dst + 3 * dst_stride, vzip2q_f32(b1, b3));
}
]] },
    },
}
