-- AVX-512 F+BW+DQ+VL: 16 float lanes, 32 vector registers, masks in mask registers.
local exp2 <const> = require("gen.isa.exp2")
local groups <const> = require("gen.isa.groups")

local function exp2_helper(name, accuracy)
    return {
        text = ([[
/* 2^(x + 16) for x <= 64, 0 from -142 down (no denormals), NaN stays NaN. r = x - floor(x) in one
 * instruction, 2^16 times the polynomial on [0, 1), scaled by 2^floor(x). */
static inline __m512 NAME(__m512 x)
{
    const __m512 r = _mm512_reduce_ps(x, 0x09);
HORNER
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(-142.0f), _CMP_NLE_UQ), p,
        x);
}
]]):gsub("NAME", name):gsub("HORNER", function()
            return exp2.horner("floor", accuracy, "__m512", "_mm512_set1_ps($1)",
                "_mm512_fmadd_ps($1, $2, $3)", 0x1p+16)
        end),
    }
end

-- Transposes of groups of 8, 4 and 2 floats: halves, quarters, 64-bit pairs before them.
local function regroup_text()
    local lines <const> = {}
    local function put(format, ...) lines[#lines + 1] = format:format(...) end
    put("/* Groups of 2, 4 or 8 floats transposed: group j of row i becomes group i of row j. */")
    put("static inline void regroup_block(const float *src, size_t src_stride, float *dst,")
    put("                                 size_t dst_stride, size_t group)")
    put("{")
    local function load(name, row)
        put("        const __m512 %s = _mm512_loadu_ps(src + %d * src_stride);", name, row)
    end
    local function store(row, first, second, control)
        put("        _mm512_storeu_ps(dst + %d * dst_stride, "
            .. "_mm512_shuffle_f32x4(%s, %s, %s));", row, first, second, control)
    end
    local function shuffle(name, first, second, control)
        put("        const __m512 %s = _mm512_shuffle_f32x4(%s, %s, %s);", name, first, second,
            control)
    end
    put("    if (group == 8) {")
    load("a0", 0)
    load("a1", 1)
    store(0, "a0", "a1", "0x44")
    store(1, "a0", "a1", "0xee")
    put("    } else if (group == 4) {")
    for row = 0, 3 do load("a" .. row, row) end
    for pair = 0, 1 do
        shuffle("b" .. pair, "a" .. 2 * pair, "a" .. 2 * pair + 1, "0x44")
        shuffle("c" .. pair, "a" .. 2 * pair, "a" .. 2 * pair + 1, "0xee")
    end
    store(0, "b0", "b1", "0x88")
    store(1, "b0", "b1", "0xdd")
    store(2, "c0", "c1", "0x88")
    store(3, "c0", "c1", "0xdd")
    put("    } else {")
    for row = 0, 7 do load("a" .. row, row) end
    for row = 0, 6, 2 do
        for half, op in ipairs({ "lo", "hi" }) do
            put("        const __m512 b%d = _mm512_castpd_ps(_mm512_unpack%s_pd("
                .. "_mm512_castps_pd(a%d), _mm512_castps_pd(a%d)));", row + half - 1, op, row,
                row + 1)
        end
    end
    -- c, d: quarters 0, 2 and 1, 3 of the row pairs
    for i = 0, 3 do
        local first <const> = i // 2 * 4 + i % 2
        shuffle("c" .. i, "b" .. first, "b" .. first + 2, "0x88")
        shuffle("d" .. i, "b" .. first, "b" .. first + 2, "0xdd")
    end
    for i = 0, 1 do
        store(i, "c" .. i, "c" .. i + 2, "0x88")
        store(2 + i, "d" .. i, "d" .. i + 2, "0x88")
        store(4 + i, "c" .. i, "c" .. i + 2, "0xdd")
        store(6 + i, "d" .. i, "d" .. i + 2, "0xdd")
    end
    put("    }")
    put("}\n")
    return table.concat(lines, "\n")
end

return {
    name = "avx512",
    arch = "x86_64",
    lanes = 16,
    registers = 32,
    trial = "sums",
    header = "immintrin.h",
    guard = {
        condition = "defined(__AVX512F__) && defined(__AVX512BW__) && \\\n      "
            .. "defined(__AVX512DQ__) && defined(__AVX512VL__)",
        message = "compile with -mavx512f -mavx512bw -mavx512dq -mavx512vl",
    },
    flags = { "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma",
        "-mprfchw", "-mprefer-vector-width=512" },
    features = "ATTN_CPU_AVX512",
    cpu_test = { "avx512f", "avx512bw", "avx512dq", "avx512vl", "fma" },
    types = { vec = "__m512", mask = "__mmask16" },
    target = { fma_latency = 4, fma_pipes = 2, load_ports = 2, l1d = 32768, l1i = 32768,
        l2 = 1048576,
        bytes_per_op = 10 },
    ops = {
        zero = { text = "_mm512_setzero_ps()" },
        splat = { text = "_mm512_set1_ps($1)" },
        minus_infinity = { text = "_mm512_castsi512_ps(_mm512_set1_epi32((int)0xff800000u))" },
        load = { text = "_mm512_loadu_ps($1)" },
        load_part = { text = "_mm512_maskz_loadu_ps((__mmask16)((1u << $2) - 1u), $1)" },
        broadcast = { text = "_mm512_set1_ps(*($1))" },
        spread = { text = "spread($1, $2)", helper = "spread" },
        zip_low = { text = "zip_low($1, $2, $3)", helper = "zip_low" },
        zip_high = { text = "zip_high($1, $2, $3)", helper = "zip_high" },
        join = { text = "join($1, $2, $3, $4)", helper = "join" },
        split = { text = "split($1, $2, $3, $4, $5)", helper = "split" },
        store = { text = "_mm512_storeu_ps($1, $2)" },
        store_part = { text = "_mm512_mask_storeu_ps($1, (__mmask16)((1u << $3) - 1u), $2)" },
        add = { text = "_mm512_add_ps($1, $2)" },
        sub = { text = "_mm512_sub_ps($1, $2)" },
        mul = { text = "_mm512_mul_ps($1, $2)" },
        div = { text = "_mm512_div_ps($1, $2)" },
        fma = { text = "_mm512_fmadd_ps($1, $2, $3)" },
        max = { text = "_mm512_max_ps($1, $2)" },
        ceil = { text = "_mm512_ceil_ps($1)" },
        exp2 = { text = "vec_exp2($1)", helper = "vec_exp2" },
        exp2_fast = { text = "vec_exp2_fast($1)", helper = "vec_exp2_fast" },
        exp2_near = { text = "vec_exp2($1)", helper = "vec_exp2" },
        exp2_near_fast = { text = "vec_exp2_fast($1)", helper = "vec_exp2_fast" },
        or_stray = { text = "or_stray($1, $2)", helper = "or_stray" },
        has_high_bits = {
            text = "(int)_mm512_test_epi32_mask(_mm512_castps_si512($1), _mm512_set1_epi32(~0xff))",
        },
        pair_sums = { text = "pair_sums($1, $2)", helper = "pair_sums" },
        near_sums = { text = "near_sums($1, $2)", helper = "near_sums" },
        far_sums = { text = "far_sums($1, $2)", helper = "far_sums" },
        pair_max = { text = "pair_max($1, $2)", helper = "pair_max" },
        lanes_from = { text = "lanes_from($1)", helper = "lanes_from" },
        lanes_if = { text = "(__mmask16)(0u - (unsigned)($1))" },
        lanes_above = { text = "_mm512_cmp_ps_mask($1, $2, _CMP_GT_OQ)" },
        has_above = { text = "(int)_mm512_cmp_ps_mask($1, $2, _CMP_GT_OQ)" },
        lanes_both = { text = "(__mmask16)($1 & $2)" },
        lanes_allowed = {
            text = "_mm512_cmp_ps_mask($1, "
                .. "_mm512_castsi512_ps(_mm512_set1_epi32((int)0xff800000u)), "
                .. "_CMP_NEQ_UQ)",
        },
        select = { text = "_mm512_mask_blend_ps($1, $3, $2)" },
        has_nan = { text = "(int)_mm512_cmp_ps_mask($1, $1, _CMP_UNORD_Q)" },
        has_nan_part = {
            text = "((int)_mm512_cmp_ps_mask($1, $1, _CMP_UNORD_Q) & ((1 << $2) - 1))",
        },
        prefetch = { text = "_mm_prefetch((const char *)($1), _MM_HINT_T1)" },
        prefetch_soon = { text = "_mm_prefetch((const char *)($1), _MM_HINT_T0)" },
        prefetch_write = { text = "_mm_prefetch((const char *)($1), _MM_HINT_ET0)" },
    },
    helpers = groups.with({
        spread = { text = [[
/* A group of 2, 4 or 8 floats, again and again. */
static inline __m512 spread(const float *src, size_t group)
{
    if (group == 8)
        return _mm512_broadcast_f32x8(_mm256_loadu_ps(src));
    if (group == 4)
        return _mm512_broadcast_f32x4(_mm_loadu_ps(src));
    const __m128i two = _mm_loadl_epi64((const __m128i *)(const void *)src);
    return _mm512_castsi512_ps(_mm512_broadcastq_epi64(two)); /* one load in gcc, as integers */
}
]] },
        zip_low = { text = [[
/* Groups of 2, 4 or 8 floats of a and b in turn: those of the lower halves. */
static inline __m512 zip_low(__m512 a, __m512 b, size_t group)
{
    if (group == 8)
        return _mm512_shuffle_f32x4(a, b, 0x44);
    const __m512i order = group == 4 ? _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0)
        : _mm512_set_epi64(11, 3, 10, 2, 9, 1, 8, 0);
    return _mm512_castpd_ps(
        _mm512_permutex2var_pd(_mm512_castps_pd(a), order, _mm512_castps_pd(b)));
}
]] },
        zip_high = { text = [[
/* Groups of 2, 4 or 8 floats of a and b in turn: those of the upper halves. */
static inline __m512 zip_high(__m512 a, __m512 b, size_t group)
{
    if (group == 8)
        return _mm512_shuffle_f32x4(a, b, 0xee);
    const __m512i order = group == 4 ? _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4)
        : _mm512_set_epi64(15, 7, 14, 6, 13, 5, 12, 4);
    return _mm512_castpd_ps(
        _mm512_permutex2var_pd(_mm512_castps_pd(a), order, _mm512_castps_pd(b)));
}
]] },
        join = { needs = { "join_half" }, text = [[
/* Groups of 2, 4 or 8 floats from rows `stride` apart, zeros from group `count` on. */
static inline __m512 join(const float *src, size_t stride, size_t group, size_t count)
{
    const size_t first = 8 / group;
    const __m256 low = join_half(src, stride, group, count);
    const __m256 high = count <= first ? _mm256_setzero_ps()
        : join_half(src + first * stride, stride, group, count - first);
    return _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
}
]] },
        split = { needs = { "split_half" }, text = [[
/* Stores groups of 2, 4 or 8 lanes to rows `stride` apart, the first `count` of them. */
static inline void split(float *dst, __m512 v, size_t stride, size_t group, size_t count)
{
    const size_t first = 8 / group;
    split_half(dst, _mm512_castps512_ps256(v), stride, group, count);
    if (count > first)
        split_half(dst + first * stride, _mm512_extractf32x8_ps(v, 1), stride, group,
                   count - first);
}
]] },
        lanes_from = { text = [[
/* Mask of the lanes >= first; none when first >= 16. */
static inline __mmask16 lanes_from(size_t first)
{
    return (__mmask16)(first < 16 ? 0xffffu << first : 0u);
}
]] },
        in_order = { text = [[
/* Pairs of 64 bits of two interleaved vectors, first operand first. */
static inline __m512 in_order(__m512 v)
{
    const __m512i order = _mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0);
    return _mm512_castpd_ps(_mm512_permutexvar_pd(order, _mm512_castps_pd(v)));
}
]] },
        pair_sums = { needs = { "in_order" }, text = [[
/* a0 + a1, a2 + a3, ... and the same of b. */
static inline __m512 pair_sums(__m512 a, __m512 b)
{
    return in_order(_mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd)));
}
]] },
        near_sums = { text = [[
/* a0 + a1, a2 + a3, b0 + b1, b2 + b3 of every four lanes. */
static inline __m512 near_sums(__m512 a, __m512 b)
{
    return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));
}
]] },
        far_sums = { text = [[
/* Neighbouring quarters of a added, then of b. */
static inline __m512 far_sums(__m512 a, __m512 b)
{
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}
]] },
        pair_max = { needs = { "in_order" }, text = [[
/* Larger of a0 and a1, of a2 and a3, ... and the same of b. */
static inline __m512 pair_max(__m512 a, __m512 b)
{
    return in_order(_mm512_max_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd)));
}
]] },
        or_stray = { text = [[
/* The bits of all and those by which x + 1.5 * 2^23 + 142 differs from 1.5 * 2^23. */
static inline __m512 or_stray(__m512 all, __m512 x)
{
    const __m512i biased = _mm512_castps_si512(_mm512_add_ps(x, _mm512_set1_ps(0x1.80011cp23f)));
    const __m512i whole = _mm512_castps_si512(_mm512_set1_ps(0x1.8p23f));
    return _mm512_castsi512_ps(
        _mm512_or_si512(_mm512_castps_si512(all), _mm512_xor_si512(biased, whole)));
}
]] },
        vec_exp2 = exp2_helper("vec_exp2", "exact"),
        vec_exp2_fast = exp2_helper("vec_exp2_fast", "fast"),
        load_quarters = { text = [[
/* The first 4 floats of four rows `stride` apart. */
static inline __m512 load_quarters(const float *src, size_t stride)
{
    __m512 v = _mm512_castps128_ps512(_mm_loadu_ps(src));
    v = _mm512_insertf32x4(v, _mm_loadu_ps(src + stride), 1);
    v = _mm512_insertf32x4(v, _mm_loadu_ps(src + 2 * stride), 2);
    return _mm512_insertf32x4(v, _mm_loadu_ps(src + 3 * stride), 3);
}
]] },
        transpose_columns = { needs = { "load_quarters" }, text = [[
/* Four columns of a 16x16 block: 4x4 blocks in the quarters of vectors. Shuffles have
 * one port: loads that insert leave half of them. */
static inline void transpose_columns(const float *src, size_t src_stride, float *dst,
                                     size_t dst_stride)
{
    const __m512 a0 = load_quarters(src, 4 * src_stride);
    const __m512 a1 = load_quarters(src + src_stride, 4 * src_stride);
    const __m512 a2 = load_quarters(src + 2 * src_stride, 4 * src_stride);
    const __m512 a3 = load_quarters(src + 3 * src_stride, 4 * src_stride);
    const __m512 b0 = _mm512_unpacklo_ps(a0, a1), b1 = _mm512_unpackhi_ps(a0, a1);
    const __m512 b2 = _mm512_unpacklo_ps(a2, a3), b3 = _mm512_unpackhi_ps(a2, a3);
    _mm512_storeu_ps(dst, _mm512_shuffle_ps(b0, b2, 0x44));
    _mm512_storeu_ps(dst + dst_stride, _mm512_shuffle_ps(b0, b2, 0xee));
    _mm512_storeu_ps(dst + 2 * dst_stride, _mm512_shuffle_ps(b1, b3, 0x44));
    _mm512_storeu_ps(dst + 3 * dst_stride, _mm512_shuffle_ps(b1, b3, 0xee));
}
]] },
        transpose_block = { needs = { "transpose_columns" }, text = [[
/* dst[c * dst_stride + r] = src[r * src_stride + c] for a 16x16 block. */
static inline void transpose_block(const float *src, size_t src_stride, float *dst,
                                   size_t dst_stride)
{
    transpose_columns(src, src_stride, dst, dst_stride);
    transpose_columns(src + 4, src_stride, dst + 4 * dst_stride, dst_stride);
    transpose_columns(src + 8, src_stride, dst + 8 * dst_stride, dst_stride);
    transpose_columns(src + 12, src_stride, dst + 12 * dst_stride, dst_stride);
}
]] },
        regroup_block = { text = regroup_text() },
    }),
}
