/* The attention layer as one writes it on OpenBLAS: the tokens of all sequences packed without
 * their padding, Q, K and V in one product over them, the biases as start values, two products per
 * head, a softmax that the compiler vectorises (this file is built with -O3 -march=native
 * -ffast-math). */
#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "layers.h"

struct blas_layer {
    layer l;
    float *qkv_weight; /* [3*H*D, E] */
    float *qkv_bias;   /* [3*H*D] */
    float *x;          /* [B*L, E], packed; the output as well */
    float *qkv;        /* [B*L, 3*H*D] */
    float *context;    /* [B*L, H*D] */
};

blas_layer *blas_layer_new(const layer *l)
{
    size_t inner = l->heads * l->head_dim;
    size_t part = inner * l->d_model;
    size_t rows = l->batch * l->tokens;
    blas_layer *b = malloc(sizeof *b);
    float *memory = calloc(3 * part + 3 * inner + rows * (l->d_model + 4 * inner), sizeof *memory);
    if (b == NULL || memory == NULL) {
        free(memory);
        free(b);
        return NULL;
    }
    *b = (blas_layer){.l = *l, .qkv_weight = memory};
    b->qkv_bias = b->qkv_weight + 3 * part;
    b->x = b->qkv_bias + 3 * inner;
    b->qkv = b->x + rows * l->d_model;
    b->context = b->qkv + 3 * rows * inner;

    const float *weights[] = {l->weights.q_weight, l->weights.k_weight, l->weights.v_weight};
    const float *biases[] = {l->weights.q_bias, l->weights.k_bias, l->weights.v_bias};
    for (size_t i = 0; i < 3; i++) {
        memcpy(b->qkv_weight + i * part, weights[i], part * sizeof(float));
        memcpy(b->qkv_bias + i * inner, biases[i], inner * sizeof(float));
    }
    openblas_set_num_threads(1);
    return b;
}

void blas_layer_free(blas_layer *b)
{
    if (b != NULL) {
        free(b->qkv_weight);
        free(b);
    }
}

/* out [rows, columns] = x [rows, width] · Wᵀ + bias. */
static void project(size_t rows, size_t width, size_t columns, const float *x, const float *weight,
                    const float *bias, float *out)
{
    for (size_t i = 0; i < rows; i++) {
        memcpy(out + i * columns, bias, columns * sizeof(float));
    }
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)rows, (int)columns, (int)width, 1.0F,
                x, (int)width, weight, (int)width, 1.0F, out, (int)columns);
}

static void softmax(size_t n, float *row)
{
    float max = row[0];
    for (size_t j = 1; j < n; j++) {
        max = row[j] > max ? row[j] : max;
    }
    float sum = 0.0F;
    for (size_t j = 0; j < n; j++) {
        row[j] = expf(row[j] - max);
        sum += row[j];
    }
    float inverse = 1.0F / sum;
    for (size_t j = 0; j < n; j++) {
        row[j] *= inverse;
    }
}

/* All heads of one sequence of n tokens: context [n, H*D] and weights [H,L,L] from qkv. */
static void attend(const layer *l, size_t n, const float *qkv, float *context, float *weights)
{
    size_t inner = l->heads * l->head_dim;
    int stride = (int)(3 * inner);
    int rows = (int)n;
    int head_dim = (int)l->head_dim;
    float scale = 1.0F / sqrtf((float)l->head_dim);

    memset(weights, 0, l->heads * l->tokens * l->tokens * sizeof(float));
    for (size_t h = 0; h < l->heads; h++) {
        const float *q = qkv + h * l->head_dim;
        const float *k = q + inner;
        const float *v = k + inner;
        float *p = weights + h * l->tokens * l->tokens;
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, rows, head_dim, scale, q, stride,
                    k, stride, 0.0F, p, (int)l->tokens);
        for (size_t i = 0; i < n; i++) {
            softmax(n, p + i * l->tokens);
        }
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, head_dim, rows, 1.0F, p,
                    (int)l->tokens, v, stride, 0.0F, context + h * l->head_dim, (int)inner);
    }
}

/* Gathers the rows that are not padding into b->x; returns their number. */
static size_t pack_rows(blas_layer *b, const float *x, const int32_t *lengths)
{
    const layer *l = &b->l;
    size_t rows = 0;
    for (size_t i = 0; i < l->batch; i++) {
        size_t n = (size_t)lengths[i];
        memcpy(b->x + rows * l->d_model, x + i * l->tokens * l->d_model,
               n * l->d_model * sizeof(float));
        rows += n;
    }
    return rows;
}

/* Brings the rows of b->x back to their places in y [B,L,E], zeros behind them. */
static void unpack_rows(const blas_layer *b, const int32_t *lengths, float *y)
{
    const layer *l = &b->l;
    size_t rows = 0;
    for (size_t i = 0; i < l->batch; i++) {
        size_t n = (size_t)lengths[i];
        float *item = y + i * l->tokens * l->d_model;
        memcpy(item, b->x + rows * l->d_model, n * l->d_model * sizeof(float));
        memset(item + n * l->d_model, 0, (l->tokens - n) * l->d_model * sizeof(float));
        rows += n;
    }
}

void blas_forward(blas_layer *b, const float *x, const int32_t *lengths, float *y, float *weights)
{
    const layer *l = &b->l;
    size_t inner = l->heads * l->head_dim;
    size_t total = pack_rows(b, x, lengths);
    size_t rows = 0;

    project(total, l->d_model, 3 * inner, b->x, b->qkv_weight, b->qkv_bias, b->qkv);
    for (size_t i = 0; i < l->batch; i++) {
        size_t n = (size_t)lengths[i];
        attend(l, n, b->qkv + rows * 3 * inner, b->context + rows * inner,
               weights + i * l->heads * l->tokens * l->tokens);
        rows += n;
    }
    project(total, inner, l->d_model, b->context, l->weights.o_weight, l->weights.o_bias, b->x);
    unpack_rows(b, lengths, y);
}

const char *blas_version(void)
{
    return openblas_get_config();
}

const char *blas_core(void)
{
    return openblas_get_corename();
}
