/* FMA peak, L1-hot product and load bandwidth of one instruction set; see machine.h.
 *
 * Written with vector types of the compiler, so that an ISA is two numbers and its flags. Compile
 * with -ffp-contract=fast: a * b + c has to become one instruction where there is one. */
#include "machine.h"

#if LANES == 1
typedef float vec;
typedef float vec_in_memory;
#else
typedef float vec __attribute__((vector_size(LANES * 4)));
typedef float vec_in_memory __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
#endif

#define LOAD(p) (*(const vec_in_memory *)(p))
#define STORE(p, v) (*(vec_in_memory *)(p) = (v))

/* x - 0 is x for every x, so compilers see a plain broadcast. */
static inline vec splat(float x)
{
#if LANES == 1
    return x;
#else
    return x - (vec){0};
#endif
}

/* Accumulators are named variables: an array would live in memory with some compilers. */
#define FIVE(X) X(0) X(1) X(2) X(3) X(4)
#define TEN(X) FIVE(X) X(5) X(6) X(7) X(8) X(9)
#define TWELVE(X) TEN(X) X(10) X(11)
#define TWENTY_FOUR(X)                                                                             \
    TWELVE(X) X(12) X(13) X(14) X(15) X(16) X(17) X(18) X(19) X(20) X(21) X(22) X(23)

/* As many chains as leave registers for the operands; tiles of 2 vectors, some to spare. */
#if REGISTERS >= 32
#define EACH_CHAIN TWENTY_FOUR
#define EACH_ROW TEN
enum { CHAINS = 24, ROWS = 10 };
#else
#define EACH_CHAIN TWELVE
#define EACH_ROW FIVE
enum { CHAINS = 12, ROWS = 5 };
#endif

#define START(i) vec c##i = splat(0.001f * (float)(i));
#define STEP(i) c##i = c##i * factor + summand;
#define SUM(i) total = total + c##i;

double machine_fma(long turns, float *sink)
{
    const vec factor = splat(0.999f), summand = splat(0.001f);
    vec total = splat(0.0f);
    EACH_CHAIN(START);
    for (long turn = 0; turn < turns; turn++) {
        EACH_CHAIN(STEP);
    }
    EACH_CHAIN(SUM);
    STORE(sink, total);
    return 2.0 * LANES * CHAINS * (double)turns;
}

enum { DEPTH = 128 };

/* One float at a time, moves and separate multiplies and adds share the issue slots. */
const double machine_floor = LANES == 1 ? 0.5 : 0.9;

#define ZERO_ROW(r) vec left##r = splat(0.0f), right##r = splat(0.0f);
#define STEP_ROW(r)                                                                                \
    {                                                                                              \
        const vec x = splat(a[(r)*DEPTH + k]);                                                     \
        left##r = left##r + x * b0;                                                                \
        right##r = right##r + x * b1;                                                              \
    }
#define STORE_ROW(r)                                                                               \
    STORE(sink + 2 * LANES * (r), left##r);                                                        \
    STORE(sink + 2 * LANES * (r) + LANES, right##r);

double machine_product(long turns, const float *operands, float *sink)
{
    const float *a = operands, *b = operands + ROWS * DEPTH;
    for (long turn = 0; turn < turns; turn++) {
        EACH_ROW(ZERO_ROW);
        for (size_t k = 0; k < DEPTH; k++) {
            const vec b0 = LOAD(b + 2 * LANES * k), b1 = LOAD(b + 2 * LANES * k + LANES);
            EACH_ROW(STEP_ROW);
        }
        EACH_ROW(STORE_ROW);
    }
    return 2.0 * 2.0 * LANES * ROWS * DEPTH * (double)turns;
}

double machine_load(const float *from, size_t floats, float *sink)
{
    vec s0 = splat(0.0f), s1 = s0, s2 = s0, s3 = s0, s4 = s0, s5 = s0, s6 = s0, s7 = s0;
    const size_t turns = floats / (8 * LANES);
    for (size_t turn = 0; turn < turns; turn++, from += 8 * LANES) {
        s0 = s0 + LOAD(from);
        s1 = s1 + LOAD(from + LANES);
        s2 = s2 + LOAD(from + 2 * LANES);
        s3 = s3 + LOAD(from + 3 * LANES);
        s4 = s4 + LOAD(from + 4 * LANES);
        s5 = s5 + LOAD(from + 5 * LANES);
        s6 = s6 + LOAD(from + 6 * LANES);
        s7 = s7 + LOAD(from + 7 * LANES);
    }
    STORE(sink, ((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7)));
    return 4.0 * 8.0 * LANES * (double)turns;
}
