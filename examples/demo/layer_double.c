/* The attention layer in double, straight from the formula: slow and obvious. */
#include <math.h>
#include <stdlib.h>

#include "layers.h"

/* out [rows, columns] = x · Wᵀ + bias, W [columns, width]. */
static void project(size_t rows, size_t width, size_t columns, const double *x, const float *weight,
                    const float *bias, double *out)
{
    for (size_t i = 0; i < rows; i++) {
        for (size_t j = 0; j < columns; j++) {
            double sum = bias[j];
            for (size_t e = 0; e < width; e++) {
                sum += x[i * width + e] * weight[j * width + e];
            }
            out[i * columns + j] = sum;
        }
    }
}

/* One row of attention weights: softmax over the first n scores, zero behind them. */
static void softmax(size_t n, size_t total, double *row)
{
    double max = -INFINITY;
    for (size_t j = 0; j < n; j++) {
        max = fmax(max, row[j]);
    }
    double sum = 0;
    for (size_t j = 0; j < n; j++) {
        row[j] = exp(row[j] - max);
        sum += row[j];
    }
    for (size_t j = 0; j < total; j++) {
        row[j] = j < n ? row[j] / sum : 0;
    }
}

/* One head of one sequence of n tokens; q, k, v and context have rows of `stride` numbers. */
static void attend(size_t n, size_t tokens, size_t head_dim, size_t stride, bool uniform,
                   const double *q, const double *k, const double *v, double *context,
                   double *weights)
{
    for (size_t i = 0; i < n; i++) {
        double *row = weights + i * tokens;
        for (size_t j = 0; j < n; j++) {
            double dot = 0;
            for (size_t d = 0; d < head_dim; d++) {
                dot += q[i * stride + d] * k[j * stride + d];
            }
            row[j] = uniform ? 0 : dot / sqrt((double)head_dim);
        }
        softmax(n, tokens, row);
        for (size_t d = 0; d < head_dim; d++) {
            double sum = 0;
            for (size_t j = 0; j < n; j++) {
                sum += row[j] * v[j * stride + d];
            }
            context[i * stride + d] = sum;
        }
    }
}

static void forward_item(const layer *l, bool uniform, size_t n, const float *x, double *scratch,
                         double *y, double *weights)
{
    size_t inner = l->heads * l->head_dim;
    size_t square = l->tokens * l->tokens;
    double *input = scratch;
    double *q = input + l->tokens * l->d_model;
    double *k = q + l->tokens * inner;
    double *v = k + l->tokens * inner;
    double *context = v + l->tokens * inner;

    for (size_t i = 0; i < n * l->d_model; i++) {
        input[i] = x[i];
    }
    const attn_weights *w = &l->weights;
    project(n, l->d_model, inner, input, w->q_weight, w->q_bias, q);
    project(n, l->d_model, inner, input, w->k_weight, w->k_bias, k);
    project(n, l->d_model, inner, input, w->v_weight, w->v_bias, v);
    for (size_t i = 0; i < l->heads * square; i++) {
        weights[i] = 0;
    }
    for (size_t h = 0; h < l->heads; h++) {
        size_t column = h * l->head_dim;
        attend(n, l->tokens, l->head_dim, inner, uniform, q + column, k + column, v + column,
               context + column, weights + h * square);
    }
    for (size_t i = 0; i < l->tokens * l->d_model; i++) {
        y[i] = 0;
    }
    project(n, inner, l->d_model, context, w->o_weight, w->o_bias, y);
}

bool reference_forward(const layer *l, bool uniform, const float *x, const int32_t *lengths,
                       double *y, double *weights)
{
    size_t row = l->d_model + 4 * l->heads * l->head_dim;
    double *scratch = calloc(l->tokens * row, sizeof *scratch);
    if (scratch == NULL) {
        return false;
    }
    for (size_t b = 0; b < l->batch; b++) {
        forward_item(l, uniform, (size_t)lengths[b], x + b * l->tokens * l->d_model, scratch,
                     y + b * l->tokens * l->d_model,
                     weights + b * l->heads * l->tokens * l->tokens);
    }
    free(scratch);
    return true;
}
