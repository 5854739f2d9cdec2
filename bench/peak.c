/* FMA peak of the instruction set this file is compiled for: independent accumulators, no memory. */
#include "peak.h"

#if defined(__AVX512F__)
#include <immintrin.h>
typedef __m512 vec;
#define EACH_CHAIN(X) TWENTY_FOUR(X)
enum { LANES = 16, CHAINS = 24 };
#define SPLAT(x) _mm512_set1_ps(x)
#define FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define ADD(a, b) _mm512_add_ps(a, b)
#define STORE(p, v) _mm512_storeu_ps(p, v)
#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
typedef __m256 vec;
#define EACH_CHAIN(X) TWELVE(X)
enum { LANES = 8, CHAINS = 12 };
#define SPLAT(x) _mm256_set1_ps(x)
#define FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define ADD(a, b) _mm256_add_ps(a, b)
#define STORE(p, v) _mm256_storeu_ps(p, v)
#elif defined(__aarch64__)
#include <arm_neon.h>
typedef float32x4_t vec;
#define EACH_CHAIN(X) TWENTY_FOUR(X)
enum { LANES = 4, CHAINS = 24 };
#define SPLAT(x) vdupq_n_f32(x)
#define FMA(a, b, c) vfmaq_f32(c, a, b)
#define ADD(a, b) vaddq_f32(a, b)
#define STORE(p, v) vst1q_f32(p, v)
#else
typedef float vec;
#define EACH_CHAIN(X) EIGHT(X)
enum { LANES = 1, CHAINS = 8 };
#define SPLAT(x) (x)
#define FMA(a, b, c) ((a) * (b) + (c))
#define ADD(a, b) ((a) + (b))
#define STORE(p, v) (*(p) = (v))
#endif

/* Chains are named variables: an array would live in memory with some compilers. */
#define EIGHT(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#define TWELVE(X) EIGHT(X) X(8) X(9) X(10) X(11)
#define TWENTY_FOUR(X)                                                                             \
    TWELVE(X) X(12) X(13) X(14) X(15) X(16) X(17) X(18) X(19) X(20) X(21) X(22) X(23)
#define START(i) vec c##i = SPLAT(0.001f * (float)(i));
#define STEP(i) c##i = FMA(c##i, factor, summand);
#define SUM(i) total = ADD(total, c##i);

double fma_peak_flops(long turns, float *sink)
{
    const vec factor = SPLAT(0.999f), summand = SPLAT(0.001f);
    vec total = SPLAT(0.0f);
    EACH_CHAIN(START);
    for (long turn = 0; turn < turns; turn++) {
        EACH_CHAIN(STEP);
    }
    EACH_CHAIN(SUM);
    STORE(sink, total);
    return 2.0 * LANES * CHAINS * (double)turns;
}
