/* The truth the kernels are judged by: attention written from the formula, in double.
 *
 * Masked keys are skipped and never read. Beside every output element stands the tolerance a
 * correct float32 kernel may need on this very data (derivation: docs/testing.md). */
#ifndef ATTNGEN_REFERENCE_H
#define ATTNGEN_REFERENCE_H

#include "attngen/kernel.h"
#include "reference/ref_case.h"

/* Tolerance = REF_SAFETY times the standard error of float32 rounding, propagated. */
#define REF_SAFETY 6.0

typedef struct ref_result {
    ref_sizes sizes;
    double *y, *y_tol;
    double *weights, *weights_tol; /* NULL without return_weights */
    double *k_cache, *k_cache_tol; /* after the call; NULL without a cache that grows */
    double *v_cache, *v_cache_tol; /* tolerance 0: rows the kernel must leave alone */
    double *scratch;
    size_t *different; /* scratch too */
} ref_result;

/* Allocates the arrays for one case; 0 on success, -1 without memory. */
int ref_alloc(ref_result *r, const ref_case *c);
void ref_free(ref_result *r);

/* Computes y, weights and their tolerances. The arguments must be in range. */
void ref_run(const ref_case *c, const attn_weights *w, const attn_args *a, ref_result *r);

/* Whether query i of head h in batch item b may attend to key j. */
int ref_allowed(const ref_case *c, const attn_args *a, size_t b, size_t h, size_t i, size_t j);

/* Compares got[n] with want[n] within tol[n]. An infinity must meet something not finite, a NaN a
 * NaN (loose: something not finite; for inputs with infinities, where the order of summation
 * decides between the two). Returns n, or the first bad index; *worst collects the largest
 * error/tolerance ratio. */
size_t ref_compare(const float *got, const double *want, const double *tol, size_t n, int loose,
                   double *worst);

/* Whether two double-precision answers agree as closely as double rounding lets them (tol is the
 * float32 tolerance). Returns n, or the first index where they do not. */
size_t ref_agree(const double *a, const double *b, const double *tol, size_t n);

#endif
