/* The demo's attention layer twice more: in double straight from the formula (the truth), and in
 * float on OpenBLAS (the competitor). Both compute what the kernel of demo.lua computes: padded
 * keys are ignored, output rows of padded queries are zero, the attention weights are returned.
 *
 * B batch, L tokens, E d_model, H heads, D head_dim; H*D columns in the inner tensors. */
#ifndef DEMO_LAYERS_H
#define DEMO_LAYERS_H

#include <stdbool.h>

#include "attngen/kernel.h"

typedef struct layer {
    size_t batch, tokens, d_model, heads, head_dim;
    attn_weights weights;
} layer;

/* y [B,L,E] and weights [B,H,L,L] from x [B,L,E] and lengths [B]. With `uniform`, every token
 * attends equally to all tokens: the same layer robbed of its attention. Returns false when memory
 * ran out. */
bool reference_forward(const layer *l, bool uniform, const float *x, const int32_t *lengths,
                       double *y, double *weights);

typedef struct blas_layer blas_layer;

/* Prepares weights and scratch memory for one thread; NULL when memory ran out. */
blas_layer *blas_layer_new(const layer *l);
void blas_layer_free(blas_layer *b);

/* As above, in float; allocates nothing. */
void blas_forward(blas_layer *b, const float *x, const int32_t *lengths, float *y, float *weights);

/* Version and build options, and the name of the CPU core its kernels were written for. */
const char *blas_version(void);
const char *blas_core(void);

#endif /* DEMO_LAYERS_H */
