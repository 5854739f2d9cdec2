/* Input sets: every tensor of a case, filled from a seed, in kinds that probe one weakness each. */
#ifndef ATTNGEN_INPUTS_H
#define ATTNGEN_INPUTS_H

#include <stdint.h>

#include "attngen/kernel.h"
#include "reference/ref_case.h"

typedef enum input_kind {
    INPUT_NORMAL,
    INPUT_LARGE_LOGITS,   /* queries x 400 */
    INPUT_ZEROS,          /* +0 and -0, some of them all zero */
    INPUT_DENORMAL,       /* values around 1e-40 mixed in */
    INPUT_ONE_HOT,        /* rows of x (or q, k) one-hot */
    INPUT_SAME_SIGN,      /* everything positive: no cancellation, rounding adds up */
    INPUT_MASKED_GARBAGE, /* NaN and infinities wherever no query looks */
    INPUT_NAN_ALLOWED,    /* one NaN in a place that is read */
    INPUT_INF_ALLOWED,    /* one infinity in a place that is read */
    INPUT_EMPTY_ROWS,     /* masks that leave rows without a key */
    INPUT_EDGE_LENGTHS,   /* lengths 0, 1, S */
    INPUT_EXTREME_ADD,    /* additive -FLT_MAX, -1e9, -inf, large finite */
    INPUT_KINDS
} input_kind;

typedef struct rng {
    uint64_t state;
} rng;

uint64_t rng_next(rng *r);
size_t rng_below(rng *r, size_t n); /* 0 .. n-1 */
float rng_normal(rng *r);           /* mean 0, standard deviation about 1 */

typedef struct input_set {
    ref_sizes sizes;
    float *x, *context, *q, *k, *v, *k_cache, *v_cache, *mask_add;
    float *q_weight, *k_weight, *v_weight, *o_weight, *q_bias, *k_bias, *v_bias, *o_bias;
    int32_t *kv_lengths;
    uint8_t *key_keep, *mask_keep;
    attn_weights weights; /* views of the arrays above; NULL where the case has none */
    attn_args args;       /* y and weights stay NULL */
} input_set;

int input_alloc(input_set *s, const ref_case *c);
void input_free(input_set *s);

/* Whether the kind makes sense for the case. */
int input_applies(const ref_case *c, input_kind kind);

/* Whether every value of the kind is finite (the dense OpenBLAS path may judge it). */
int input_is_finite(input_kind kind);

const char *input_name(input_kind kind);

void input_fill(input_set *s, const ref_case *c, input_kind kind, uint64_t seed);

/* Overwrites with garbage (NaN, infinities, large values) every key/value token of item b for
 * which keep[token] is 0; queries of self-attention live in the same tokens. Of a cache that grows
 * only what the caller brings is overwritten: new tokens come from x, which stays. */
int input_is_new_token(const ref_case *c, const attn_args *a, size_t b, size_t token);
void input_poison_keys(input_set *s, const ref_case *c, size_t b, const uint8_t *keep, rng *r);

#endif
