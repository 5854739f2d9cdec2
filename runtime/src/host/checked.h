/* Arithmetic that says when it does not fit. Internal. */
#ifndef ATTNGEN_CHECKED_H
#define ATTNGEN_CHECKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool attn_add_size(size_t a, size_t b, size_t *sum)
{
    if (a > SIZE_MAX - b) {
        return false;
    }
    *sum = a + b;
    return true;
}

static inline bool attn_mul_size(size_t a, size_t b, size_t *product)
{
    if (b != 0 && a > SIZE_MAX / b) {
        return false;
    }
    *product = a * b;
    return true;
}

static inline bool attn_mul_u64(uint64_t a, uint64_t b, uint64_t *product)
{
    if (b != 0 && a > UINT64_MAX / b) {
        return false;
    }
    *product = a * b;
    return true;
}

#endif /* ATTNGEN_CHECKED_H */
