/* Lets AVX-512 kernels run on a machine without it: -include this file, -mavx2 -mfma -Wno-psabi.
 *
 * SIMDe supplies the plain operations; what SIMDe 0.7.4 lacks, or rounds and selects differently
 * from the instruction, is written here lane by lane with the exact meaning of the instruction.
 * Defines the feature macros last, so that the kernels' guards pass. Slow, same bits. */
#ifndef ATTNGEN_EMULATE_AVX512_H
#define ATTNGEN_EMULATE_AVX512_H

#include <immintrin.h> /* first: its declarations must not see SIMDe's macros */

#if defined(__clang__)
#define __mmask64 __mmask64 /* clang has it, with another base type than SIMDe would give it */
#endif
#define SIMDE_ENABLE_NATIVE_ALIASES
#define SIMDE_X86_AVX512F_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512/add.h>
#include <simde/x86/avx512/and.h>
#include <simde/x86/avx512/broadcast.h>
#include <simde/x86/avx512/cast.h>
#include <simde/x86/avx512/cvt.h>
#include <simde/x86/avx512/div.h>
#include <simde/x86/avx512/fmadd.h>
#include <simde/x86/avx512/load.h>
#include <simde/x86/avx512/loadu.h>
#include <simde/x86/avx512/mov.h>
#include <simde/x86/avx512/mul.h>
#include <simde/x86/avx512/or.h>
#include <simde/x86/avx512/permutex2var.h>
#include <simde/x86/avx512/permutexvar.h>
#include <simde/x86/avx512/set.h>
#include <simde/x86/avx512/set1.h>
#include <simde/x86/avx512/setzero.h>
#include <simde/x86/avx512/slli.h>
#include <simde/x86/avx512/store.h>
#include <simde/x86/avx512/storeu.h>
#include <simde/x86/avx512/sub.h>
#include <simde/x86/avx512/test.h>
#include <simde/x86/avx512/unpackhi.h>
#include <simde/x86/avx512/unpacklo.h>
#include <simde/x86/avx512/xor.h>

/* Out of line: inlined a thousand times, compilers take minutes over a kernel. */
#define EMULATED static __attribute__((noinline, unused))

typedef union emulated_ps {
    simde__m512 vector;
    float lane[16];
    unsigned bits[16];
} emulated_ps;

static inline emulated_ps emulated_open(simde__m512 vector)
{
    emulated_ps e;
    e.vector = vector;
    return e;
}

static inline int emulated_is_nan(float x)
{
    return __builtin_isnan(x);
}

/* VCMPPS: the predicates' low three bits say which relation, bit 2 negates, bit 3 turns the answer
 * for unordered operands around; bit 4 is about signalling only. */
EMULATED int emulated_compare(float a, float b, int predicate)
{
    const int unordered = emulated_is_nan(a) || emulated_is_nan(b);
    switch (predicate & 15) {
    case 0:
        return !unordered && a == b; /* EQ_O */
    case 1:
        return !unordered && a < b; /* LT_O */
    case 2:
        return !unordered && a <= b; /* LE_O */
    case 3:
        return unordered;
    case 4:
        return unordered || a != b; /* NEQ_U */
    case 5:
        return unordered || !(a < b); /* NLT_U */
    case 6:
        return unordered || !(a <= b);
    case 7:
        return !unordered;
    case 8:
        return unordered || a == b; /* EQ_U */
    case 9:
        return unordered || a < b; /* NGE_U */
    case 10:
        return unordered || a <= b; /* NGT_U */
    case 11:
        return 0;
    case 12:
        return !unordered && a != b; /* NEQ_O */
    case 13:
        return !unordered && a >= b; /* GE_O */
    case 14:
        return !unordered && a > b; /* GT_O */
    default:
        return 1;
    }
}

EMULATED __mmask16 emulated_cmp_ps_mask(simde__m512 a, simde__m512 b, int predicate)
{
    const emulated_ps x = emulated_open(a), y = emulated_open(b);
    unsigned mask = 0;
    for (int i = 0; i < 16; i++) {
        mask |= (unsigned)emulated_compare(x.lane[i], y.lane[i], predicate) << i;
    }
    return (__mmask16)mask;
}

EMULATED simde__m512 emulated_mask_blend_ps(__mmask16 mask, simde__m512 a, simde__m512 b)
{
    emulated_ps x = emulated_open(a);
    const emulated_ps y = emulated_open(b);
    for (int i = 0; i < 16; i++) {
        x.bits[i] = mask >> i & 1 ? y.bits[i] : x.bits[i];
    }
    return x.vector;
}

static inline simde__m512 emulated_maskz_mov_ps(__mmask16 mask, simde__m512 a)
{
    return emulated_mask_blend_ps(mask, simde_mm512_setzero_ps(), a);
}

/* Masked-off lanes are neither read nor written. */
EMULATED simde__m512 emulated_maskz_loadu_ps(__mmask16 mask, const void *from)
{
    emulated_ps x = emulated_open(simde_mm512_setzero_ps());
    for (int i = 0; i < 16; i++) {
        if (mask >> i & 1) {
            __builtin_memcpy(&x.bits[i], (const char *)from + 4 * i, 4);
        }
    }
    return x.vector;
}

EMULATED void emulated_mask_storeu_ps(void *to, __mmask16 mask, simde__m512 a)
{
    const emulated_ps x = emulated_open(a);
    for (int i = 0; i < 16; i++) {
        if (mask >> i & 1) {
            __builtin_memcpy((char *)to + 4 * i, &x.bits[i], 4);
        }
    }
}

/* VMAXPS, VMINPS: the second operand when either is NaN or both are zero. */
EMULATED simde__m512 emulated_max_ps(simde__m512 a, simde__m512 b)
{
    emulated_ps x = emulated_open(a);
    const emulated_ps y = emulated_open(b);
    for (int i = 0; i < 16; i++) {
        x.bits[i] = x.lane[i] > y.lane[i] ? x.bits[i] : y.bits[i];
    }
    return x.vector;
}

EMULATED simde__m512 emulated_min_ps(simde__m512 a, simde__m512 b)
{
    emulated_ps x = emulated_open(a);
    const emulated_ps y = emulated_open(b);
    for (int i = 0; i < 16; i++) {
        x.bits[i] = x.lane[i] < y.lane[i] ? x.bits[i] : y.bits[i];
    }
    return x.vector;
}

/* VRNDSCALEPS: imm[7:4] fraction bits, imm[1:0] nearest even, down, up, truncate; imm[2] would use
 * MXCSR, which is nearest even here. */
EMULATED float emulated_round(float x, int imm)
{
    const float scale = (float)(1 << (imm >> 4 & 15));
    if (!(__builtin_fabsf(x) < 0x1p24F / scale)) {
        return x + 0.0F; /* integral already, infinite, or NaN (made quiet) */
    }
    const float scaled = x * scale;
    const int mode = imm & 4 ? 0 : imm & 3;
    __m128 v = _mm_set_ss(scaled);
    v = mode == 0   ? _mm_round_ss(v, v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
        : mode == 1 ? _mm_round_ss(v, v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)
        : mode == 2 ? _mm_round_ss(v, v, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC)
                    : _mm_round_ss(v, v, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
    return _mm_cvtss_f32(v) / scale;
}

EMULATED simde__m512 emulated_roundscale_ps(simde__m512 a, int imm)
{
    emulated_ps x = emulated_open(a);
    for (int i = 0; i < 16; i++) {
        x.lane[i] = emulated_round(x.lane[i], imm);
    }
    return x.vector;
}

/* a - b rounded as imm[2:0] says, which MXCSR[14:13] encodes alike. */
EMULATED float emulated_subtract(float a, float b, int imm)
{
    const unsigned state = _mm_getcsr(), mode = imm & 4 ? 0 : (unsigned)imm & 3;
    const volatile float from = a; /* keeps the subtraction between the two changes of state */
    _mm_setcsr((state & ~0x6000U) | mode << 13);
    const volatile float difference = from - b;
    _mm_setcsr(state);
    return difference;
}

/* VREDUCEPS: x - round(x), the difference rounded the same way (down: 1 - 2^-24 just below a whole
 * number, -0 at one); +0 for infinities, NaN stays NaN. */
EMULATED simde__m512 emulated_reduce_ps(simde__m512 a, int imm)
{
    emulated_ps x = emulated_open(a);
    for (int i = 0; i < 16; i++) {
        const float whole = emulated_round(x.lane[i], imm);
        x.lane[i] = __builtin_isinf(whole) ? 0.0F : emulated_subtract(x.lane[i], whole, imm);
    }
    return x.vector;
}

/* x * 2^n with one rounding; double holds every product of a float and 2^n in this range. */
EMULATED float emulated_scale(float x, int n)
{
    union {
        unsigned long long bits;
        double value;
    } power;
    n = n < -400 ? -400 : n > 400 ? 400 : n;
    power.bits = (unsigned long long)(n + 1023) << 52;
    return (float)((double)x * power.value);
}

/* VSCALEFPS: a * 2^floor(b). Special cases by the manual: b = +inf gives inf, b = -inf gives 0, even
 * for a quiet NaN; 0 * 2^inf and inf * 2^-inf are the indefinite NaN; else a NaN in either is NaN. */
EMULATED float emulated_scalef(float a, float b)
{
    const float indefinite = -__builtin_nanf("");
    if (__builtin_isinf(b) && emulated_is_nan(a)) {
        return b > 0.0F ? b : 0.0F;
    }
    if (emulated_is_nan(a) || emulated_is_nan(b)) {
        return a + b;
    }
    if (__builtin_isinf(b)) {
        if (b > 0.0F) {
            return a == 0.0F ? indefinite : a * b;
        }
        return __builtin_isinf(a) ? indefinite : a * 0.0F;
    }
    const float clamped = b < -1000.0F ? -1000.0F : b > 1000.0F ? 1000.0F : b;
    return emulated_scale(a, (int)emulated_round(clamped, 1));
}

EMULATED simde__m512 emulated_scalef_ps(simde__m512 a, simde__m512 b)
{
    emulated_ps x = emulated_open(a);
    const emulated_ps y = emulated_open(b);
    for (int i = 0; i < 16; i++) {
        x.lane[i] = emulated_scalef(x.lane[i], y.lane[i]);
    }
    return x.vector;
}

/* VSHUFPS within 128-bit lanes, VSHUFF32X4 of whole lanes. */
EMULATED simde__m512 emulated_shuffle_ps(simde__m512 a, simde__m512 b, int imm)
{
    const emulated_ps x = emulated_open(a), y = emulated_open(b);
    emulated_ps r = x;
    for (int i = 0; i < 16; i++) {
        const int from = (i & 12) + (imm >> (2 * (i & 3)) & 3);
        r.bits[i] = (i & 3) < 2 ? x.bits[from] : y.bits[from];
    }
    return r.vector;
}

EMULATED simde__m512 emulated_shuffle_f32x4(simde__m512 a, simde__m512 b, int imm)
{
    const emulated_ps x = emulated_open(a), y = emulated_open(b);
    emulated_ps r = x;
    for (int i = 0; i < 16; i++) {
        const int from = 4 * (imm >> (2 * (i / 4)) & 3) + (i & 3);
        r.bits[i] = i < 8 ? x.bits[from] : y.bits[from];
    }
    return r.vector;
}

EMULATED simde__m512 emulated_broadcast_f32x8(simde__m256 a)
{
    emulated_ps e;
    __builtin_memcpy(e.lane, &a, sizeof a);
    __builtin_memcpy(e.lane + 8, &a, sizeof a);
    return e.vector;
}

EMULATED simde__m512 emulated_broadcast_f32x4(simde__m128 a)
{
    emulated_ps e;
    for (int i = 0; i < 16; i += 4)
        __builtin_memcpy(e.lane + i, &a, sizeof a);
    return e.vector;
}

EMULATED simde__m512d emulated_broadcastsd_pd(simde__m128d a)
{
    simde__m512d result;
    double lane[8];
    for (int i = 0; i < 8; i++)
        __builtin_memcpy(lane + i, &a, sizeof lane[0]);
    __builtin_memcpy(&result, lane, sizeof result);
    return result;
}

EMULATED simde__m512 emulated_insertf32x8(simde__m512 a, simde__m256 b, int half)
{
    emulated_ps e = emulated_open(a);
    __builtin_memcpy(e.lane + 8 * half, &b, sizeof b);
    return e.vector;
}

EMULATED simde__m512 emulated_insertf32x4(simde__m512 a, simde__m128 b, int quarter)
{
    emulated_ps e = emulated_open(a);
    __builtin_memcpy(e.lane + 4 * quarter, &b, sizeof b);
    return e.vector;
}

EMULATED simde__m256 emulated_extractf32x8_ps(simde__m512 a, int half)
{
    const emulated_ps e = emulated_open(a);
    simde__m256 result;
    __builtin_memcpy(&result, e.lane + 8 * half, sizeof result);
    return result;
}

#undef _mm512_broadcast_f32x8
#undef _mm512_broadcast_f32x4
#undef _mm512_broadcastsd_pd
#undef _mm512_insertf32x4
#undef _mm512_insertf32x8
#undef _mm512_extractf32x8_ps
#undef _mm512_shuffle_ps
#undef _mm512_shuffle_f32x4
#undef _mm512_cmp_ps_mask
#undef _mm512_mask_blend_ps
#undef _mm512_maskz_mov_ps
#undef _mm512_mask_mov_ps
#undef _mm512_maskz_loadu_ps
#undef _mm512_mask_storeu_ps
#undef _mm512_max_ps
#undef _mm512_min_ps
#undef _mm512_roundscale_ps
#undef _mm512_ceil_ps
#undef _mm512_reduce_ps
#undef _mm512_scalef_ps
#undef _mm512_maskz_scalef_ps
#define _mm512_broadcast_f32x8(a) emulated_broadcast_f32x8(a)
#define _mm512_broadcast_f32x4(a) emulated_broadcast_f32x4(a)
#define _mm512_broadcastsd_pd(a) emulated_broadcastsd_pd(a)
#define _mm512_insertf32x4(a, b, quarter) emulated_insertf32x4(a, b, quarter)
#define _mm512_insertf32x8(a, b, half) emulated_insertf32x8(a, b, half)
#define _mm512_extractf32x8_ps(a, half) emulated_extractf32x8_ps(a, half)
#define _mm512_shuffle_ps(a, b, imm) emulated_shuffle_ps(a, b, imm)
#define _mm512_shuffle_f32x4(a, b, imm) emulated_shuffle_f32x4(a, b, imm)
#define _mm512_cmp_ps_mask(a, b, predicate) emulated_cmp_ps_mask(a, b, predicate)
#define _mm512_mask_blend_ps(mask, a, b) emulated_mask_blend_ps(mask, a, b)
#define _mm512_maskz_mov_ps(mask, a) emulated_maskz_mov_ps(mask, a)
#define _mm512_mask_mov_ps(src, mask, a) emulated_mask_blend_ps(mask, src, a)
#define _mm512_maskz_loadu_ps(mask, from) emulated_maskz_loadu_ps(mask, from)
#define _mm512_mask_storeu_ps(to, mask, a) emulated_mask_storeu_ps(to, mask, a)
#define _mm512_max_ps(a, b) emulated_max_ps(a, b)
#define _mm512_min_ps(a, b) emulated_min_ps(a, b)
#define _mm512_roundscale_ps(a, imm) emulated_roundscale_ps(a, imm)
#define _mm512_ceil_ps(a) emulated_roundscale_ps(a, 2)
#define _mm512_reduce_ps(a, imm) emulated_reduce_ps(a, imm)
#define _mm512_scalef_ps(a, b) emulated_scalef_ps(a, b)
#define _mm512_maskz_scalef_ps(mask, a, b) emulated_maskz_mov_ps(mask, emulated_scalef_ps(a, b))

/* Last: SIMDe chooses its portable code by their absence. */
#define __AVX512F__ 1
#define __AVX512BW__ 1
#define __AVX512DQ__ 1
#define __AVX512VL__ 1

#endif
