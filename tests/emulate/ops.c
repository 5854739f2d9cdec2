/* Prints the bits that AVX-512 instructions give for edge values and random ones: once with the
 * instructions, once with tests/emulate/avx512.h (tests/unit/test_emulation.lua compares). */
#include <immintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { LANES = 16, TURNS = 400 };

static const uint32_t EDGES[LANES] = {
    0x00000000, 0x80000000, 0x3f800000, 0xbf800000, /* +-0, +-1 */
    0x7f800000, 0xff800000, 0x00000001, 0x80000001, /* +-inf, +-2^-149 */
    0x7fc00000, 0xb2000000, 0xc30e0000, 0xc30dffff, /* NaN, -2^-27, about -142 */
    0x4b000001, 0xcafffffe, 0x7f7fffff, 0xff7fffff, /* about +-2^23, +-FLT_MAX */
};

static void print_vector(const char *op, __m512 vector)
{
    uint32_t bits[LANES];
    memcpy(bits, &vector, sizeof bits);
    printf("%s", op);
    for (int i = 0; i < LANES; i++) {
        printf(" %08x", (unsigned)bits[i]);
    }
    printf("\n");
}

static uint32_t next(uint64_t *state)
{
    *state = *state * 6364136223846793005U + 1442695040888963407U;
    return (uint32_t)(*state >> 32);
}

/* Edge values against each other first, then values of up to 2^7. */
static __m512 draw(int turn, int shift, uint64_t *state)
{
    uint32_t bits[LANES];
    float lanes[LANES];
    for (int i = 0; i < LANES; i++) {
        const uint32_t exponent = 0x3a000000U + (next(state) % 17 << 23);
        const uint32_t drawn = (next(state) & 0x807fffffU) | exponent;
        bits[i] = turn < LANES ? EDGES[(i + turn * shift) % LANES] : drawn;
    }
    memcpy(lanes, bits, sizeof lanes);
    return _mm512_loadu_ps(lanes);
}

int main(void)
{
    uint64_t state = 1;
    for (int turn = 0; turn < TURNS; turn++) {
        const __m512 a = draw(turn, 0, &state), b = draw(turn, 1, &state);
        print_vector("reduce down", _mm512_reduce_ps(a, 0x09));
        print_vector("ceil", _mm512_ceil_ps(a));
        print_vector("scalef", _mm512_scalef_ps(a, b));
        print_vector("max", _mm512_max_ps(a, b));
        print_vector("blend", _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_NLT_UQ), a, b));
        print_vector("fmadd", _mm512_fmadd_ps(a, b, a));
        print_vector("div", _mm512_div_ps(a, b));
    }
    return 0;
}
