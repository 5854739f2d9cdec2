-- AVX2 + FMA: 8 float lanes, 16 vector registers, masks are vectors of all-ones lanes.
local exp2 <const> = require("gen.isa.exp2")
local groups <const> = require("gen.isa.groups")

local function exp2_near_helper(name, accuracy)
    return {
        text = ([[
/* 2^(x + 16) for x from -142 to 64, 0 at -142 (no denormals), NaN stays NaN. Round to nearest by
 * adding 1.5 * 2^23 + 142 (the low bits then hold the exponent of 2^(x + 15), all 0 at -142), twice
 * the polynomial on [-1/2, 1/2]. */
static inline __m256 NAME(__m256 x)
{
    const __m256 magic = _mm256_set1_ps(0x1.80011cp23f);
    const __m256 biased = _mm256_add_ps(x, magic);
    const __m256 r = _mm256_sub_ps(x, _mm256_sub_ps(biased, magic));
    const __m256 power = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(biased), 23));
HORNER
    return _mm256_mul_ps(p, power);
}
]]):gsub("NAME", name):gsub("HORNER", function()
            return exp2.horner("nearest", accuracy, "__m256", "_mm256_set1_ps($1)",
                "_mm256_fmadd_ps($1, $2, $3)", 2.0)
        end),
    }
end

local function exp2_helper(name, near)
    return {
        needs = { near },
        text = ([[
/* The same for all x <= 64: 0 from -142 down. */
static inline __m256 NAME(__m256 x)
{
    return _mm256_andnot_ps(_mm256_cmp_ps(x, _mm256_set1_ps(-142.0f), _CMP_LT_OQ), NEAR(x));
}
]]):gsub("NAME", name):gsub("NEAR", near),
    }
end

return {
    name = "avx2",
    arch = "x86_64",
    lanes = 8,
    registers = 16,
    trial = "bits",
    header = "immintrin.h",
    guard = { condition = "defined(__AVX2__) && defined(__FMA__)",
        message = "compile with -mavx2 -mfma" },
    flags = { "-mavx2", "-mfma", "-mprfchw" },
    features = "ATTN_CPU_AVX2",
    cpu_test = { "avx2", "fma" },
    types = { vec = "__m256", mask = "__m256" },
    target = { fma_latency = 4, fma_pipes = 2, load_ports = 2, l1d = 32768, l1i = 32768,
        l2 = 524288,
        bytes_per_op = 8 },
    ops = {
        zero = { text = "_mm256_setzero_ps()" },
        splat = { text = "_mm256_set1_ps($1)" },
        minus_infinity = { text = "_mm256_castsi256_ps(_mm256_set1_epi32((int)0xff800000u))" },
        load = { text = "_mm256_loadu_ps($1)" },
        load_part = { text = "_mm256_maskload_ps($1, first_lanes($2))", helper = "first_lanes" },
        broadcast = { text = "_mm256_broadcast_ss($1)" },
        spread = { text = "spread($1, $2)", helper = "spread" },
        zip_low = { text = "zip_low($1, $2, $3)", helper = "zip_low" },
        zip_high = { text = "zip_high($1, $2, $3)", helper = "zip_high" },
        join = { text = "join_half($1, $2, $3, $4)", helper = "join_half" },
        split = { text = "split_half($1, $2, $3, $4, $5)", helper = "split_half" },
        store = { text = "_mm256_storeu_ps($1, $2)" },
        store_part = { text = "_mm256_maskstore_ps($1, first_lanes($3), $2)",
            helper = "first_lanes" },
        add = { text = "_mm256_add_ps($1, $2)" },
        sub = { text = "_mm256_sub_ps($1, $2)" },
        mul = { text = "_mm256_mul_ps($1, $2)" },
        div = { text = "_mm256_div_ps($1, $2)" },
        fma = { text = "_mm256_fmadd_ps($1, $2, $3)" },
        max = { text = "_mm256_max_ps($1, $2)" },
        ceil = { text = "_mm256_ceil_ps($1)" },
        exp2 = { text = "vec_exp2($1)", helper = "vec_exp2" },
        exp2_fast = { text = "vec_exp2_fast($1)", helper = "vec_exp2_fast" },
        exp2_near = { text = "vec_exp2_near($1)", helper = "vec_exp2_near" },
        exp2_near_fast = { text = "vec_exp2_near_fast($1)", helper = "vec_exp2_near_fast" },
        or_stray = { text = "or_stray($1, $2)", helper = "or_stray" },
        has_high_bits = {
            text = "(_mm256_testz_si256(_mm256_castps_si256($1), _mm256_set1_epi32(~0xff)) == 0)",
        },
        pair_sums = { text = "pair_sums($1, $2)", helper = "pair_sums" },
        near_sums = { text = "near_sums($1, $2)", helper = "near_sums" },
        far_sums = { text = "far_sums($1, $2)", helper = "far_sums" },
        pair_max = { text = "pair_max($1, $2)", helper = "pair_max" },
        lanes_from = { text = "lanes_from($1)", helper = "lanes_from" },
        lanes_if = { text = "_mm256_castsi256_ps(_mm256_set1_epi32(-($1)))" },
        lanes_above = { text = "_mm256_cmp_ps($1, $2, _CMP_GT_OQ)" },
        has_above = { text = "_mm256_movemask_ps(_mm256_cmp_ps($1, $2, _CMP_GT_OQ))" },
        lanes_both = { text = "_mm256_and_ps($1, $2)" },
        lanes_allowed = {
            text = "_mm256_cmp_ps($1, _mm256_castsi256_ps(_mm256_set1_epi32((int)0xff800000u)), "
                .. "_CMP_NEQ_UQ)",
        },
        select = { text = "_mm256_blendv_ps($3, $2, $1)" },
        has_nan = { text = "_mm256_movemask_ps(_mm256_cmp_ps($1, $1, _CMP_UNORD_Q))" },
        has_nan_part = {
            text = "(_mm256_movemask_ps(_mm256_cmp_ps($1, $1, _CMP_UNORD_Q)) & ((1 << $2) - 1))",
        },
        prefetch = { text = "_mm_prefetch((const char *)($1), _MM_HINT_T1)" },
        prefetch_soon = { text = "_mm_prefetch((const char *)($1), _MM_HINT_T0)" },
        prefetch_write = { text = "_mm_prefetch((const char *)($1), _MM_HINT_ET0)" },
    },
    helpers = groups.with({
        spread = { text = [[
/* A group of 2 or 4 floats, again and again. */
static inline __m256 spread(const float *src, size_t group)
{
    if (group == 4)
        return _mm256_broadcast_ps((const __m128 *)(const void *)src);
    const __m128i two = _mm_loadl_epi64((const __m128i *)(const void *)src);
    return _mm256_castsi256_ps(_mm256_broadcastq_epi64(two)); /* one load in gcc, as integers */
}
]] },
        zip_low = { text = [[
/* Groups of 2 or 4 floats of a and b in turn: those of the lower halves. */
static inline __m256 zip_low(__m256 a, __m256 b, size_t group)
{
    if (group == 4)
        return _mm256_permute2f128_ps(a, b, 0x20);
    const __m256d even = _mm256_unpacklo_pd(_mm256_castps_pd(a), _mm256_castps_pd(b));
    const __m256d odd = _mm256_unpackhi_pd(_mm256_castps_pd(a), _mm256_castps_pd(b));
    return _mm256_castpd_ps(_mm256_permute2f128_pd(even, odd, 0x20));
}
]] },
        zip_high = { text = [[
/* Groups of 2 or 4 floats of a and b in turn: those of the upper halves. */
static inline __m256 zip_high(__m256 a, __m256 b, size_t group)
{
    if (group == 4)
        return _mm256_permute2f128_ps(a, b, 0x31);
    const __m256d even = _mm256_unpacklo_pd(_mm256_castps_pd(a), _mm256_castps_pd(b));
    const __m256d odd = _mm256_unpackhi_pd(_mm256_castps_pd(a), _mm256_castps_pd(b));
    return _mm256_castpd_ps(_mm256_permute2f128_pd(even, odd, 0x31));
}
]] },
        lane_table = { text = [[
/* Sliding window of lane masks: eight ones, eight zeros, eight ones. */
static const int32_t lane_table[24] = {-1, -1, -1, -1, -1, -1, -1, -1, 0,  0,  0,  0,
                                       0,  0,  0,  0,  -1, -1, -1, -1, -1, -1, -1, -1};
]] },
        first_lanes = { needs = { "lane_table" }, text = [[
/* Mask of lanes 0 .. count-1, 0 <= count <= 8. */
static inline __m256i first_lanes(size_t count)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)(lane_table + 8 - count));
}
]] },
        lanes_from = { needs = { "lane_table" }, text = [[
/* Mask of the lanes >= first; none when first >= 8. */
static inline __m256 lanes_from(size_t first)
{
    const size_t skipped = first < 8 ? first : 8;
    return _mm256_castsi256_ps(
        _mm256_loadu_si256((const __m256i *)(const void *)(lane_table + 16 - skipped)));
}
]] },
        in_order = { text = [[
/* Pairs of 64 bits of two interleaved halves, first operand first. */
static inline __m256 in_order(__m256 v)
{
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(v), 0xd8));
}
]] },
        pair_sums = { needs = { "in_order" }, text = [[
/* a0 + a1, a2 + a3, ... and the same of b. */
static inline __m256 pair_sums(__m256 a, __m256 b)
{
    return in_order(_mm256_add_ps(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xdd)));
}
]] },
        near_sums = { text = [[
/* a0 + a1, a2 + a3, b0 + b1, b2 + b3 of every four lanes. */
static inline __m256 near_sums(__m256 a, __m256 b)
{
    return _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xdd));
}
]] },
        far_sums = { text = [[
/* Lower half plus upper half of a, then of b. */
static inline __m256 far_sums(__m256 a, __m256 b)
{
    return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}
]] },
        pair_max = { needs = { "in_order" }, text = [[
/* Larger of a0 and a1, of a2 and a3, ... and the same of b. */
static inline __m256 pair_max(__m256 a, __m256 b)
{
    return in_order(_mm256_max_ps(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xdd)));
}
]] },
        or_stray = { text = [[
/* The bits of all and those by which x + 1.5 * 2^23 + 142, as vec_exp2_near has it, differs from
 * 1.5 * 2^23: the last eight for x from -142 to 113. */
static inline __m256 or_stray(__m256 all, __m256 x)
{
    const __m256 biased = _mm256_add_ps(x, _mm256_set1_ps(0x1.80011cp23f));
    return _mm256_or_ps(all, _mm256_xor_ps(biased, _mm256_set1_ps(0x1.8p23f)));
}
]] },
        vec_exp2_near = exp2_near_helper("vec_exp2_near", "exact"),
        vec_exp2_near_fast = exp2_near_helper("vec_exp2_near_fast", "fast"),
        vec_exp2 = exp2_helper("vec_exp2", "vec_exp2_near"),
        vec_exp2_fast = exp2_helper("vec_exp2_fast", "vec_exp2_near_fast"),
        regroup_block = { text = [[
/* Groups of 2 or 4 floats transposed: group j of row i becomes group i of row j. */
static inline void regroup_block(const float *src, size_t src_stride, float *dst,
                                 size_t dst_stride, size_t group)
{
    const __m256d a0 = _mm256_castps_pd(_mm256_loadu_ps(src));
    const __m256d a1 = _mm256_castps_pd(_mm256_loadu_ps(src + src_stride));
    __m256d b0 = a0, b1 = a1;
    if (group == 2) {
        const __m256d a2 = _mm256_castps_pd(_mm256_loadu_ps(src + 2 * src_stride));
        const __m256d a3 = _mm256_castps_pd(_mm256_loadu_ps(src + 3 * src_stride));
        const __m256d c0 = _mm256_unpacklo_pd(a2, a3), c1 = _mm256_unpackhi_pd(a2, a3);
        b0 = _mm256_unpacklo_pd(a0, a1);
        b1 = _mm256_unpackhi_pd(a0, a1);
        _mm256_storeu_ps(dst + 2 * dst_stride,
                         _mm256_castpd_ps(_mm256_permute2f128_pd(b0, c0, 0x31)));
        _mm256_storeu_ps(dst + 3 * dst_stride,
                         _mm256_castpd_ps(_mm256_permute2f128_pd(b1, c1, 0x31)));
        b0 = _mm256_permute2f128_pd(b0, c0, 0x20);
        b1 = _mm256_permute2f128_pd(b1, c1, 0x20);
    } else {
        b0 = _mm256_permute2f128_pd(a0, a1, 0x20);
        b1 = _mm256_permute2f128_pd(a0, a1, 0x31);
    }
    _mm256_storeu_ps(dst, _mm256_castpd_ps(b0));
    _mm256_storeu_ps(dst + dst_stride, _mm256_castpd_ps(b1));
}
]] },
        load_halves = { text = [[
/* The first 4 floats of two rows `stride` apart. */
static inline __m256 load_halves(const float *src, size_t stride)
{
    const __m256 low = _mm256_castps128_ps256(_mm_loadu_ps(src));
    return _mm256_insertf128_ps(low, _mm_loadu_ps(src + stride), 1);
}
]] },
        transpose_columns = { needs = { "load_halves" }, text = [[
/* Four columns of an 8x8 block: 4x4 blocks in the halves of vectors. */
static inline void transpose_columns(const float *src, size_t src_stride, float *dst,
                                     size_t dst_stride)
{
    const __m256 a0 = load_halves(src, 4 * src_stride);
    const __m256 a1 = load_halves(src + src_stride, 4 * src_stride);
    const __m256 a2 = load_halves(src + 2 * src_stride, 4 * src_stride);
    const __m256 a3 = load_halves(src + 3 * src_stride, 4 * src_stride);
    const __m256 b0 = _mm256_unpacklo_ps(a0, a1), b1 = _mm256_unpackhi_ps(a0, a1);
    const __m256 b2 = _mm256_unpacklo_ps(a2, a3), b3 = _mm256_unpackhi_ps(a2, a3);
    _mm256_storeu_ps(dst, _mm256_shuffle_ps(b0, b2, 0x44));
    _mm256_storeu_ps(dst + dst_stride, _mm256_shuffle_ps(b0, b2, 0xee));
    _mm256_storeu_ps(dst + 2 * dst_stride, _mm256_shuffle_ps(b1, b3, 0x44));
    _mm256_storeu_ps(dst + 3 * dst_stride, _mm256_shuffle_ps(b1, b3, 0xee));
}
]] },
        transpose_block = { needs = { "transpose_columns" }, text = [[
/* dst[c * dst_stride + r] = src[r * src_stride + c] for an 8x8 block. */
static inline void transpose_block(const float *src, size_t src_stride, float *dst,
                                   size_t dst_stride)
{
    transpose_columns(src, src_stride, dst, dst_stride);
    transpose_columns(src + 4, src_stride, dst + 4 * dst_stride, dst_stride);
}
]] },
    }),
}
