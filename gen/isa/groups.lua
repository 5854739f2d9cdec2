-- C text of the x86 helpers behind the ops spread, join and split: groups of 2, 4, … floats within
-- a vector. Vectors are put together from 128-bit quarters, which hold one group of 4 or two of 2.
local groups <const> = {}

groups.helpers = {
    join_quarter = { text = [[
/* One group of 4 floats, or the first two of 2 that exist, zeros for those that do not. */
static inline __m128 join_quarter(const float *src, size_t stride, size_t group, size_t count)
{
    if (count == 0)
        return _mm_setzero_ps();
    if (group == 4)
        return _mm_loadu_ps(src);
    const __m128d first = _mm_castsi128_pd(_mm_loadl_epi64((const __m128i *)(const void *)src));
    if (count == 1)
        return _mm_castpd_ps(first);
    const __m128i second = _mm_loadl_epi64((const __m128i *)(const void *)(src + stride));
    return _mm_castpd_ps(_mm_unpacklo_pd(first, _mm_castsi128_pd(second)));
}
]] },
    split_quarter = { text = [[
/* Stores one group of 4 floats, or the first two of 2 that exist. */
static inline void split_quarter(float *dst, __m128 v, size_t stride, size_t group, size_t count)
{
    if (count == 0)
        return;
    if (group == 4) {
        _mm_storeu_ps(dst, v);
        return;
    }
    _mm_storel_epi64((__m128i *)(void *)dst, _mm_castps_si128(v));
    if (count > 1)
        _mm_storel_epi64((__m128i *)(void *)(dst + stride),
                         _mm_castps_si128(_mm_movehl_ps(v, v)));
}
]] },
    join_half = { needs = { "join_quarter" }, text = [[
/* 8 floats: groups of 2, 4 or 8 from rows `stride` apart, zeros from group `count` on. */
static inline __m256 join_half(const float *src, size_t stride, size_t group, size_t count)
{
    if (group == 8)
        return count > 0 ? _mm256_loadu_ps(src) : _mm256_setzero_ps();
    const size_t first = 4 / group;
    const __m128 low = join_quarter(src, stride, group, count);
    if (count <= first)
        return _mm256_insertf128_ps(_mm256_setzero_ps(), low, 0);
    return _mm256_insertf128_ps(_mm256_castps128_ps256(low),
        join_quarter(src + first * stride, stride, group, count - first), 1);
}
]] },
    split_half = { needs = { "split_quarter" }, text = [[
/* Stores groups of 2, 4 or 8 lanes to rows `stride` apart, the first `count` of them. */
static inline void split_half(float *dst, __m256 v, size_t stride, size_t group, size_t count)
{
    if (count == 0)
        return;
    if (group == 8) {
        _mm256_storeu_ps(dst, v);
        return;
    }
    const size_t first = 4 / group;
    split_quarter(dst, _mm256_castps256_ps128(v), stride, group, count);
    if (count > first)
        split_quarter(dst + first * stride, _mm256_extractf128_ps(v, 1), stride, group,
                      count - first);
}
]] },
}

-- Adds them to an ISA's own helpers.
function groups.with(helpers)
    for name, helper in pairs(groups.helpers) do helpers[name] = helper end
    return helpers
end

return groups
