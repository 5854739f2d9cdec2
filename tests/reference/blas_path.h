/* Second opinion: the same attention as dense matrix products through OpenBLAS.
 *
 * In double it cross-checks the reference (their disagreement is an oracle fault, not a kernel
 * bug); in float it is the accuracy a kernel has to match. Dense, so masked keys are multiplied by
 * a zero weight: inputs must be finite. All calls hold one lock and run on one thread. */
#ifndef ATTNGEN_BLAS_PATH_H
#define ATTNGEN_BLAS_PATH_H

#include "attngen/kernel.h"
#include "reference/ref_case.h"

/* y and weights (may be NULL) of one call. Returns 0, or -1 without memory. */
int blas_attention_f64(const ref_case *c, const attn_weights *w, const attn_args *a, double *y,
                       double *weights);
int blas_attention_f32(const ref_case *c, const attn_weights *w, const attn_args *a, float *y,
                       float *weights);

/* "OpenBLAS 0.3.21 ..., core Zen, 1 thread" into text. */
void blas_describe(char *text, size_t size);

#endif
