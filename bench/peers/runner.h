/* See runner.c. Functions that return text return NULL when all is well, except where said. */
#ifndef ATTNGEN_BENCH_RUNNER_H
#define ATTNGEN_BENCH_RUNNER_H

/* Opens a kernel (`prefix` of its symbols) or a BLAS (`blas_prefix`, may be NULL) for a case as
 * tests/reference/ref_case.c reads it; closes what was open. Returns NULL, or why not. */
const char *runner_open(const char *case_text, const char *kernel, const char *prefix,
                        const char *blas, const char *blas_prefix);
void runner_close(void);

/* Hands over one tensor by its name in attn_weights or attn_args; the memory stays the caller's and
 * must live on. 0, or -1 for a name there is not. */
int runner_set(const char *name, void *data);

/* Packs the weights. An ATTN_* code. */
int runner_pack(void);

/* Seconds that `calls` calls took; negative: minus the ATTN_* code of a call that failed. */
double runner_run(long calls);

/* What a BLAS says about itself: version, and the core it runs on. Never NULL. */
const char *runner_detail(void);
const char *runner_core(void);

/* Flops per second of the L1-hot product and of the FMA loop, now. */
double runner_product(void);
double runner_peak(void);

#endif
