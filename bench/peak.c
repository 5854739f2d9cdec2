/* FMA peak of the instruction set this file is compiled for: independent accumulators, no memory. */
#include "peak.h"

#if defined(__AVX512F__)
#include <immintrin.h>
typedef __m512 vec;
enum { LANES = 16, CHAINS = 24 };
#define SPLAT(x) _mm512_set1_ps(x)
#define FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define ADD(a, b) _mm512_add_ps(a, b)
#define STORE(p, v) _mm512_storeu_ps(p, v)
#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
typedef __m256 vec;
enum { LANES = 8, CHAINS = 12 };
#define SPLAT(x) _mm256_set1_ps(x)
#define FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define ADD(a, b) _mm256_add_ps(a, b)
#define STORE(p, v) _mm256_storeu_ps(p, v)
#elif defined(__aarch64__)
#include <arm_neon.h>
typedef float32x4_t vec;
enum { LANES = 4, CHAINS = 24 };
#define SPLAT(x) vdupq_n_f32(x)
#define FMA(a, b, c) vfmaq_f32(c, a, b)
#define ADD(a, b) vaddq_f32(a, b)
#define STORE(p, v) vst1q_f32(p, v)
#else
typedef float vec;
enum { LANES = 1, CHAINS = 8 };
#define SPLAT(x) (x)
#define FMA(a, b, c) ((a) * (b) + (c))
#define ADD(a, b) ((a) + (b))
#define STORE(p, v) (*(p) = (v))
#endif

/* Unrolled by hand: an array indexed in a loop would live in memory with some compilers. */
#define CHAIN(i) c##i = FMA(c##i, factor, summand);
#define TWELVE(X, a, b, c, d, e, f, g, h, i, j, k, l)                                              \
    X(a) X(b) X(c) X(d) X(e) X(f) X(g) X(h) X(i) X(j) X(k) X(l)
#define START(i) vec c##i = SPLAT(0.001f * (float)(i));
#define SUM(i) total = ADD(total, c##i);

double fma_peak_flops(long turns, float *sink)
{
    const vec factor = SPLAT(0.999f), summand = SPLAT(0.001f);
    vec total = SPLAT(0.0f);
    START(0)
    START(1) START(2) START(3) START(4) START(5) START(6) START(7)
#if defined(__AVX2__) || defined(__aarch64__)
        START(8) START(9) START(10) START(11)
#endif
#if defined(__AVX512F__) || defined(__aarch64__)
            TWELVE(START, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23)
#endif
                for (long turn = 0; turn < turns; turn++)
    {
        CHAIN(0)
        CHAIN(1) CHAIN(2) CHAIN(3) CHAIN(4) CHAIN(5) CHAIN(6) CHAIN(7)
#if defined(__AVX2__) || defined(__aarch64__)
            CHAIN(8) CHAIN(9) CHAIN(10) CHAIN(11)
#endif
#if defined(__AVX512F__) || defined(__aarch64__)
                TWELVE(CHAIN, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23)
#endif
    }
    SUM(0)
    SUM(1) SUM(2) SUM(3) SUM(4) SUM(5) SUM(6) SUM(7)
#if defined(__AVX2__) || defined(__aarch64__)
        SUM(8) SUM(9) SUM(10) SUM(11)
#endif
#if defined(__AVX512F__) || defined(__aarch64__)
            TWELVE(SUM, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23)
#endif
                STORE(sink, total);
    return 2.0 * LANES * CHAINS * (double)turns;
}
