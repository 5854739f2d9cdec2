/* Input sets from a seed; see inputs.h. */
#include "fuzz/inputs.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "reference/reference.h"

static const char *const KIND_NAMES[INPUT_KINDS] = {
    "normal",           "large logits", "zeros",          "denormal",
    "one-hot",          "same sign",    "masked garbage", "NaN allowed",
    "infinity allowed", "empty rows",   "edge lengths",   "extreme additive",
};

/* splitmix64: every seed, however small, gives an independent stream. */
uint64_t rng_next(rng *r)
{
    uint64_t z = r->state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

size_t rng_below(rng *r, size_t n)
{
    return (size_t)(rng_next(r) >> 11) % n;
}

float rng_normal(rng *r)
{
    /* Sum of four uniforms on [-1, 1], variance 4/3. */
    const uint64_t bits = rng_next(r);
    float sum = 0.0F;
    for (int i = 0; i < 4; i++) {
        sum += (float)(int16_t)(uint16_t)(bits >> (16 * i)) * 0x1p-15F;
    }
    /* Products with full 24-bit significands: spread the coarse grid. */
    return sum * 0.8660254F + (float)(bits & 1023U) * 0x1.1p-24F;
}

static void *take(size_t n, size_t size, int *ok)
{
    if (n == 0) {
        return NULL;
    }
    void *p = calloc(n, size);
    *ok = *ok && p != NULL;
    return p;
}

int input_alloc(input_set *s, const ref_case *c)
{
    int ok = 1;
    memset(s, 0, sizeof *s);
    s->sizes = ref_case_sizes(c);
    s->x = take(s->sizes.x, sizeof(float), &ok);
    s->context = take(s->sizes.context, sizeof(float), &ok);
    s->q = take(s->sizes.q, sizeof(float), &ok);
    s->k = take(s->sizes.k, sizeof(float), &ok);
    s->v = take(s->sizes.v, sizeof(float), &ok);
    s->k_cache = take(s->sizes.k_cache, sizeof(float), &ok);
    s->v_cache = take(s->sizes.v_cache, sizeof(float), &ok);
    s->mask_add = take(s->sizes.mask_add, sizeof(float), &ok);
    s->q_weight = take(s->sizes.q_weight, sizeof(float), &ok);
    s->k_weight = take(s->sizes.k_weight, sizeof(float), &ok);
    s->v_weight = take(s->sizes.v_weight, sizeof(float), &ok);
    s->o_weight = take(s->sizes.o_weight, sizeof(float), &ok);
    s->q_bias = take(s->sizes.q_bias, sizeof(float), &ok);
    s->k_bias = take(s->sizes.k_bias, sizeof(float), &ok);
    s->v_bias = take(s->sizes.v_bias, sizeof(float), &ok);
    s->o_bias = take(s->sizes.o_bias, sizeof(float), &ok);
    s->kv_lengths = take(s->sizes.kv_lengths, sizeof(int32_t), &ok);
    s->key_keep = take(s->sizes.key_keep, 1, &ok);
    s->mask_keep = take(s->sizes.mask_keep, 1, &ok);
    s->weights = (attn_weights){s->q_weight, s->k_weight, s->v_weight, s->o_weight,
                                s->q_bias,   s->k_bias,   s->v_bias,   s->o_bias};
    s->args.x = s->x;
    s->args.context = s->context;
    s->args.q = s->q;
    s->args.k = s->k;
    s->args.v = s->v;
    s->args.k_cache = s->k_cache;
    s->args.v_cache = s->v_cache;
    s->args.kv_lengths = s->kv_lengths;
    s->args.key_keep = s->key_keep;
    s->args.mask_keep = s->mask_keep;
    s->args.mask_add = s->mask_add;
    if (!ok) {
        input_free(s);
    }
    return ok ? 0 : -1;
}

void input_free(input_set *s)
{
    void *const all[] = {s->x,        s->context,   s->q,        s->k,        s->v,
                         s->mask_add, s->q_weight,  s->k_weight, s->v_weight, s->o_weight,
                         s->q_bias,   s->k_bias,    s->v_bias,   s->o_bias,   s->kv_lengths,
                         s->key_keep, s->mask_keep, s->k_cache,  s->v_cache};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        free(all[i]);
    }
    memset(s, 0, sizeof *s);
}

int input_applies(const ref_case *c, input_kind kind)
{
    const int masked = c->causal || c->lengths || c->padding || c->bool_mask || c->additive;
    switch (kind) {
    case INPUT_MASKED_GARBAGE:
        return masked && c->empty_row != REF_EMPTY_UNIFORM;
    case INPUT_EMPTY_ROWS:
        return c->lengths || c->padding || c->bool_mask || c->additive;
    case INPUT_EDGE_LENGTHS:
        return c->lengths;
    case INPUT_EXTREME_ADD:
        return c->additive;
    default:
        return 1;
    }
}

int input_is_finite(input_kind kind)
{
    return kind != INPUT_MASKED_GARBAGE && kind != INPUT_NAN_ALLOWED && kind != INPUT_INF_ALLOWED;
}

const char *input_name(input_kind kind)
{
    return KIND_NAMES[kind];
}

static void fill_normal(float *at, size_t n, float scale, rng *r)
{
    for (size_t i = 0; i < n; i++) {
        at[i] = scale * rng_normal(r);
    }
}

static void scale_all(float *at, size_t n, float factor)
{
    for (size_t i = 0; i < n; i++) {
        at[i] *= factor;
    }
}

static void fill_weights(input_set *s, const ref_case *c, rng *r)
{
    const ref_sizes *n = &s->sizes;
    const float in = c->d_model ? 1.0F / sqrtf((float)c->d_model) : 1.0F;
    const float kv = c->kv_dim ? 1.0F / sqrtf((float)c->kv_dim) : 1.0F;
    const float out = 1.0F / sqrtf((float)(c->heads * c->v_head_dim));
    fill_normal(s->q_weight, n->q_weight, in, r);
    fill_normal(s->k_weight, n->k_weight, kv, r);
    fill_normal(s->v_weight, n->v_weight, kv, r);
    fill_normal(s->o_weight, n->o_weight, out, r);
    fill_normal(s->q_bias, n->q_bias, 0.5F, r);
    fill_normal(s->k_bias, n->k_bias, 0.5F, r);
    fill_normal(s->v_bias, n->v_bias, 0.5F, r);
    fill_normal(s->o_bias, n->o_bias, 0.5F, r);
}

/* The new tokens are part of a cache's length. */
static size_t least_length(const ref_case *c)
{
    return c->cache == REF_CACHE_APPEND ? c->seq_len : 0;
}

static void fill_masks(input_set *s, const ref_case *c, rng *r)
{
    const ref_sizes *n = &s->sizes;
    const size_t least = least_length(c) > 0 ? least_length(c) : 1;
    for (size_t i = 0; i < n->kv_lengths; i++) {
        s->kv_lengths[i] = (int32_t)(least + rng_below(r, c->kv_len + 1 - least));
    }
    for (size_t i = 0; i < n->key_keep; i++) {
        s->key_keep[i] = (uint8_t)(rng_below(r, 4) == 0 ? 0 : 1 + rng_below(r, 255));
    }
    for (size_t i = 0; i < n->mask_keep; i++) {
        s->mask_keep[i] = (uint8_t)(rng_below(r, 4) == 0 ? 0 : 1 + rng_below(r, 255));
    }
    for (size_t i = 0; i < n->mask_add; i++) {
        s->mask_add[i] = rng_below(r, 4) == 0 ? -INFINITY : 2.0F * rng_normal(r);
    }
}

/* Applies f-like edits to the tensors that act as the layer's inputs. */
typedef struct views {
    float *at[3]; /* inputs, then keys and values */
    size_t n[3], width[3];
    int count;
} views;

static views input_views(input_set *s, const ref_case *c)
{
    views v = {{s->x, s->context, NULL},
               {s->sizes.x, s->sizes.context, 0},
               {c->d_model, c->kv_dim, 1},
               s->context != NULL ? 2 : 1};
    if (c->sdpa) {
        v = (views){{s->q, s->k, s->v},
                    {s->sizes.q, s->sizes.k, s->sizes.v},
                    {c->head_dim, c->head_dim, c->v_head_dim},
                    3};
    } else if (c->cache == REF_CACHE_STATIC) {
        v = (views){{s->x, s->k, s->v},
                    {s->sizes.x, s->sizes.k, s->sizes.v},
                    {c->d_model, c->head_dim, c->v_head_dim},
                    3};
    } else if (c->cache == REF_CACHE_APPEND) {
        v = (views){{s->x, s->k_cache, s->v_cache},
                    {s->sizes.x, s->sizes.k_cache, s->sizes.v_cache},
                    {c->d_model, c->head_dim, c->v_head_dim},
                    3};
    }
    return v;
}

static void make_one_hot(input_set *s, const ref_case *c, rng *r)
{
    const views v = input_views(s, c);
    for (int t = 0; t < (v.count == 3 ? 2 : v.count); t++) {
        memset(v.at[t], 0, v.n[t] * sizeof(float));
        for (size_t row = 0; row < v.n[t] / v.width[t]; row++) {
            v.at[t][row * v.width[t] + rng_below(r, v.width[t])] = 1.0F;
        }
    }
}

static void make_zeros(input_set *s, const ref_case *c, rng *r)
{
    const views v = input_views(s, c);
    const size_t density = rng_below(r, 3); /* 0: everything is a signed zero */
    for (int t = 0; t < v.count; t++) {
        for (size_t i = 0; i < v.n[t]; i++) {
            if (density == 0 ? (v.count < 3 || t < 2) : rng_below(r, density + 1) != 0) {
                v.at[t][i] = rng_below(r, 2) ? 0.0F : -0.0F;
            }
        }
    }
}

static void make_denormal(input_set *s, const ref_case *c, rng *r)
{
    const views v = input_views(s, c);
    for (int t = 0; t < v.count; t++) {
        for (size_t i = 0; i < v.n[t]; i++) {
            if (rng_below(r, 3) != 0) {
                v.at[t][i] *= 0x1p-130F;
            }
        }
    }
    for (size_t i = 0; i < s->sizes.v_weight; i++) {
        if (rng_below(r, 3) == 0) {
            s->v_weight[i] *= 0x1p-130F;
        }
    }
}

static void make_same_sign(input_set *s, const ref_case *c)
{
    const views v = input_views(s, c);
    float *const weights[4] = {s->q_weight, s->k_weight, s->v_weight, s->o_weight};
    const size_t counts[4] = {s->sizes.q_weight, s->sizes.k_weight, s->sizes.v_weight,
                              s->sizes.o_weight};
    for (int t = 0; t < v.count; t++) {
        for (size_t i = 0; i < v.n[t]; i++) {
            v.at[t][i] = fabsf(v.at[t][i]);
        }
    }
    for (int t = 0; t < 4; t++) {
        for (size_t i = 0; i < counts[t]; i++) {
            weights[t][i] = fabsf(weights[t][i]);
        }
    }
}

/* A self-attention token is a query as well: there only NaN, whose effect on it is certain. */
static float garbage(const ref_case *c, rng *r)
{
    static const float VALUES[5] = {NAN, INFINITY, -INFINITY, FLT_MAX, -FLT_MAX};
    return VALUES[c->sdpa || c->cross || c->cache != REF_CACHE_NONE ? rng_below(r, 5) : 0];
}

int input_is_new_token(const ref_case *c, const attn_args *a, size_t b, size_t token)
{
    return c->cache == REF_CACHE_APPEND && token < (size_t)a->kv_lengths[b] &&
           token + c->seq_len >= (size_t)a->kv_lengths[b];
}

void input_poison_keys(input_set *s, const ref_case *c, size_t b, const uint8_t *keep, rng *r)
{
    const int appends = c->cache == REF_CACHE_APPEND;
    float *const keys = appends ? s->k_cache : s->k, *const values = appends ? s->v_cache : s->v;
    for (size_t j = 0; j < c->kv_len; j++) {
        if (keep[j]) {
            continue;
        }
        if (keys != NULL) {
            for (size_t g = 0; g < c->kv_heads; g++) {
                const size_t token = (b * c->kv_heads + g) * c->kv_len + j;
                for (size_t d = 0; d < c->head_dim; d++) {
                    keys[token * c->head_dim + d] = garbage(c, r);
                }
                for (size_t d = 0; d < c->v_head_dim; d++) {
                    values[token * c->v_head_dim + d] = garbage(c, r);
                }
            }
        } else {
            float *row = (c->cross ? s->context : s->x) + (b * c->kv_len + j) * c->kv_dim;
            for (size_t e = 0; e < c->kv_dim; e++) {
                row[e] = garbage(c, r);
            }
        }
    }
}

/* A key is safe to poison when no query of the item may look at it. */
static void make_masked_garbage(input_set *s, const ref_case *c, rng *r)
{
    uint8_t *keep = malloc(c->kv_len);
    for (size_t b = 0; keep != NULL && b < c->batch; b++) {
        /* Give the set something to poison: cut the last keys of this item where masks allow. */
        for (size_t j = c->kv_len / 2; c->padding && j < c->kv_len; j++) {
            s->key_keep[b * c->kv_len + j] = 0;
        }
        for (size_t j = 0; j < c->kv_len; j++) {
            keep[j] = 0;
            for (size_t h = 0; h < c->heads; h++) {
                for (size_t i = 0; i < c->seq_len; i++) {
                    /* The poisoned token of self-attention ruins its own query row only. */
                    const int own =
                        !c->sdpa && !c->cross && c->cache == REF_CACHE_NONE && ref_x_row(c, i) == j;
                    keep[j] = (uint8_t)(keep[j] || (!own && ref_allowed(c, &s->args, b, h, i, j)));
                }
            }
            /* what a cache holds where new tokens go is overwritten before anyone looks */
            keep[j] = (uint8_t)(keep[j] && !input_is_new_token(c, &s->args, b, j));
        }
        input_poison_keys(s, c, b, keep, r);
    }
    free(keep);
}

static void make_empty_rows(input_set *s, const ref_case *c, rng *r)
{
    for (size_t b = 0; b < s->sizes.kv_lengths; b++) {
        const size_t least = least_length(c);
        s->kv_lengths[b] =
            (int32_t)(rng_below(r, 2) ? least : least + rng_below(r, c->kv_len + 1 - least));
    }
    for (size_t b = 0; c->padding && b < c->batch; b++) {
        if (rng_below(r, 2)) {
            memset(s->key_keep + b * c->kv_len, 0, c->kv_len);
        }
    }
    const size_t n = c->bool_mask ? s->sizes.mask_keep : s->sizes.mask_add;
    for (size_t row = 0; row < n / c->kv_len; row++) {
        const int empty = rng_below(r, 2) == 0;
        for (size_t j = 0; empty && j < c->kv_len; j++) {
            if (c->bool_mask) {
                s->mask_keep[row * c->kv_len + j] = 0;
            }
            if (c->additive && (!c->bool_mask || rng_below(r, 2))) {
                s->mask_add[row * c->kv_len + j] = -INFINITY;
            }
        }
    }
}

static void make_extreme_add(input_set *s, rng *r)
{
    static const float VALUES[6] = {-FLT_MAX, -1e9F, -INFINITY, -1e4F, 50.0F, 0.0F};
    const size_t only = rng_below(r, 7); /* 6: mixed */
    for (size_t i = 0; i < s->sizes.mask_add; i++) {
        s->mask_add[i] = VALUES[only < 6 ? only : rng_below(r, 6)];
    }
}

static void plant(input_set *s, const ref_case *c, float value, rng *r)
{
    const views v = input_views(s, c);
    const int t = (int)rng_below(r, (size_t)v.count);
    if (s->sizes.mask_add != 0 && isnan(value) && rng_below(r, 3) == 0) {
        s->mask_add[rng_below(r, s->sizes.mask_add)] = value;
    } else {
        v.at[t][rng_below(r, v.n[t])] = value;
    }
}

void input_fill(input_set *s, const ref_case *c, input_kind kind, uint64_t seed)
{
    rng r = {seed};
    const views v = input_views(s, c);
    fill_weights(s, c, &r);
    for (int t = 0; t < v.count; t++) {
        fill_normal(v.at[t], v.n[t], 1.0F, &r);
    }
    fill_masks(s, c, &r);
    switch (kind) {
    case INPUT_LARGE_LOGITS:
        scale_all(s->q, s->sizes.q, 400.0F);
        scale_all(s->q_weight, s->sizes.q_weight, 400.0F);
        scale_all(s->q_bias, s->sizes.q_bias, 400.0F);
        break;
    case INPUT_ZEROS:
        make_zeros(s, c, &r);
        break;
    case INPUT_DENORMAL:
        make_denormal(s, c, &r);
        break;
    case INPUT_ONE_HOT:
        make_one_hot(s, c, &r);
        break;
    case INPUT_SAME_SIGN:
        make_same_sign(s, c);
        break;
    case INPUT_MASKED_GARBAGE:
        make_masked_garbage(s, c, &r);
        break;
    case INPUT_NAN_ALLOWED:
        plant(s, c, NAN, &r);
        break;
    case INPUT_INF_ALLOWED:
        plant(s, c, rng_below(&r, 2) ? INFINITY : -INFINITY, &r);
        break;
    case INPUT_EMPTY_ROWS:
        make_empty_rows(s, c, &r);
        break;
    case INPUT_EDGE_LENGTHS:
        for (size_t b = 0; b < s->sizes.kv_lengths; b++) {
            const size_t pick = rng_below(&r, 3);
            const size_t least = least_length(c);
            s->kv_lengths[b] =
                (int32_t)(pick == 2 || least + pick > c->kv_len ? c->kv_len : least + pick);
        }
        break;
    case INPUT_EXTREME_ADD:
        make_extreme_add(s, &r);
        break;
    case INPUT_NORMAL:
    case INPUT_KINDS:
        break;
    }
}
