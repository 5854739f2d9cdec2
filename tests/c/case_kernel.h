/* The kernels of tests/cases/list.lua, loaded by name for the Criterion suites. */
#ifndef ATTNGEN_CASE_KERNEL_H
#define ATTNGEN_CASE_KERNEL_H

#include <stddef.h>

#include "attngen/kernel.h"

typedef struct case_kernel {
    const attn_kernel *kernel;
    int (*pack)(const attn_weights *, void *); /* NULL for sdpa */
    void *handle, *packed, *workspace;
    attn_args args; /* y and weights point at arrays of the right size, filled with NaN */
} case_kernel;

/* ISAs the cases were built for on this machine, NULL-terminated. Fails the test when
 * tests/run.lua did not set the environment. */
const char *const *case_isas(void);

/* Opens a kernel with its workspace and outputs; fails the test when it is missing. */
case_kernel case_open(const char *name, const char *isa);
void case_close(case_kernel *k);

/* Packs and runs; fails the test on any status but ATTN_OK. weights may be NULL for sdpa. */
void case_run(case_kernel *k, const attn_weights *weights);

/* |got - want| <= 1e-6 + 1e-5 |want|, NaN exactly where wanted: the bug-case log's tolerance. */
void case_expect(const char *what, const char *isa, const float *got, const double *want, size_t n);

/* Fills with numbers that look random, the same for the same seed. */
void case_fill(float *at, size_t n, float scale, unsigned long seed);

#define FOR_EACH_ISA(isa)                                                                          \
    for (const char *const *isa##_at = case_isas(), *isa = *isa##_at; isa != NULL;                 \
         isa = *++isa##_at)

#endif
