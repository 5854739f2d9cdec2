/* The attention layer as a careful programmer writes it on a BLAS: one fused QKV product, two
 * products per head, a vectorised softmax, everything allocated beforehand. What the kernels are
 * compared with. The BLAS is a shared object: OpenBLAS as packaged or from elsewhere, or MKL. */
#ifndef ATTNGEN_BENCH_BLAS_LAYER_H
#define ATTNGEN_BENCH_BLAS_LAYER_H

#include "subject.h"

/* `s->library` is the loaded BLAS. 0, or -1 and a message. One layer a process. */
int blas_layer_open(subject *s, const subject_options *options, char *message, size_t message_size);

/* Softmax of `rows` rows in place, `stride` apart. Row i covers its first ends[i] columns; what
 * follows up to n becomes 0. Values of BLAS_MASKED do not count. blas_softmax.c is compiled with
 * -ffast-math for this CPU. */
#define BLAS_MASKED (-0x1p100F)
void blas_softmax(float *scores, size_t rows, size_t n, size_t stride, const size_t *ends);

#endif
