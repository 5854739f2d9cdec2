/* Little-endian numbers from bytes, and the float formats of checkpoints. Internal; works at any
 * alignment on hosts of either byte order, and needs no half-precision instruction. */
#ifndef ATTNGEN_BYTES_H
#define ATTNGEN_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline bool attn_is_little_endian(void)
{
    const uint16_t probe = 1;
    return *(const unsigned char *)&probe == 1;
}

static inline uint16_t attn_le16(const unsigned char *b)
{
    return (uint16_t)(b[0] | b[1] << 8);
}

static inline uint32_t attn_le32(const unsigned char *b)
{
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

static inline uint64_t attn_le64(const unsigned char *b)
{
    return (uint64_t)attn_le32(b) | (uint64_t)attn_le32(b + 4) << 32;
}

static inline void attn_put_le(unsigned char *b, size_t bytes, uint64_t value)
{
    for (size_t i = 0; i < bytes; i++) {
        b[i] = (unsigned char)(value >> (8 * i) & 0xff);
    }
}

static inline float attn_float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float attn_float_of_bf16(uint16_t half)
{
    return attn_float_of_bits((uint32_t)half << 16);
}

static inline float attn_float_of_f16(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    const uint32_t exponent = (half >> 10) & 0x1f;
    uint32_t mantissa = half & 0x3ff;
    if (exponent == 0x1f) { /* infinity, NaN with its payload */
        return attn_float_of_bits(sign | 0x7f800000 | mantissa << 13);
    }
    if (exponent != 0) {
        return attn_float_of_bits(sign | (exponent + 112) << 23 | mantissa << 13);
    }
    if (mantissa == 0) {
        return attn_float_of_bits(sign);
    }
    uint32_t shift = 0; /* denormal in half precision, normal in single */
    while ((mantissa & 0x400) == 0) {
        mantissa <<= 1;
        shift++;
    }
    return attn_float_of_bits(sign | (113 - shift) << 23 | (mantissa & 0x3ff) << 13);
}

static inline float attn_float_of_f64(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return (float)value;
}

#endif /* ATTNGEN_BYTES_H */
