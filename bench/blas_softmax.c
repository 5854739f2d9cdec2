/* The softmax of the BLAS layer: loops the compiler vectorises (-O3 -march=native -ffast-math). */
#include "blas_layer.h"

#include <string.h>

/* exp(x) for x <= 0, about 2 ulp, 0 below -87.7. Nearest integer, polynomial on [-1/2, 1/2], exponent
 * bits, which are all 0 at the clamp: with a branch around it gcc does not vectorise the loop. */
static inline float exp_below(float x)
{
    const float t = (x > -88.0F ? x : -88.0F) * 1.44269504F;
    const int whole = (int)(t - 0.5F);
    const float r = t - (float)whole;
    float p = 0x1.5bda4p-10F;
    p = p * r + 0x1.3ce8acp-7F;
    p = p * r + 0x1.c6b6d8p-5F;
    p = p * r + 0x1.ebf9c2p-3F;
    p = p * r + 0x1.62e42ap-1F;
    p = p * r + 1.0F;
    const int bits = (whole + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return p * power;
}

static float row_maximum(const float *row, size_t n)
{
    float top = BLAS_MASKED;
    for (size_t j = 0; j < n; j++) {
        top = row[j] > top ? row[j] : top;
    }
    return top;
}

static void normalise(float *row, size_t end, size_t n, float sum)
{
    const float factor = sum > 0.0F ? 1.0F / sum : 0.0F;
    for (size_t j = 0; j < end; j++) {
        row[j] *= factor;
    }
    for (size_t j = end; j < n; j++) {
        row[j] = 0.0F;
    }
}

/* Rows shorter than a few vectors: one exp loop over all of them. */
static void short_rows(float *scores, size_t rows, size_t n, const size_t *ends)
{
    for (size_t i = 0; i < rows; i++) {
        float *row = scores + i * n;
        const float top = row_maximum(row, ends[i]);
        const float base = top > BLAS_MASKED ? top : 0.0F; /* nothing left: all become 0 */
        for (size_t j = 0; j < ends[i]; j++) {
            row[j] -= base;
        }
        for (size_t j = ends[i]; j < n; j++) {
            row[j] = BLAS_MASKED;
        }
    }
    for (size_t at = 0; at < rows * n; at++) {
        scores[at] = exp_below(scores[at]);
    }
    for (size_t i = 0; i < rows; i++) {
        float sum = 0.0F;
        for (size_t j = 0; j < ends[i]; j++) {
            sum += scores[i * n + j];
        }
        normalise(scores + i * n, ends[i], n, sum);
    }
}

void blas_softmax(float *scores, size_t rows, size_t n, size_t stride, const size_t *ends)
{
    if (n < 32 && stride == n) {
        short_rows(scores, rows, n, ends);
        return;
    }
    for (size_t i = 0; i < rows; i++) {
        float *row = scores + i * stride;
        const float top = row_maximum(row, ends[i]);
        const float base = top > BLAS_MASKED ? top : 0.0F;
        float sum = 0.0F;
        for (size_t j = 0; j < ends[i]; j++) {
            const float e = exp_below(row[j] - base);
            row[j] = e;
            sum += e;
        }
        normalise(row, ends[i], n, sum);
    }
}
