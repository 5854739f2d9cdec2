/* Whole layers: the tutorial shapes, layer cases of the bug-case log, and relations that need two
 * kernels. Numbers come from the double reference or by hand. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "c/case_kernel.h"
#include "reference/reference.h"

/* Weights of a layer with d inputs and d outputs everywhere. */
typedef struct layer {
    float *w[4], *b[4];
    attn_weights weights;
} layer;

static layer layer_open(size_t d, unsigned long seed)
{
    layer l;
    for (int i = 0; i < 4; i++) {
        l.w[i] = calloc(d * d, sizeof(float));
        l.b[i] = calloc(d, sizeof(float));
        cr_assert(l.w[i] != NULL && l.b[i] != NULL);
        case_fill(l.w[i], d * d, 1.0F / sqrtf((float)d), seed + (unsigned long)i);
        case_fill(l.b[i], d, 0.5F, seed + 10 + (unsigned long)i);
    }
    l.weights = (attn_weights){l.w[0], l.w[1], l.w[2], l.w[3], l.b[0], l.b[1], l.b[2], l.b[3]};
    return l;
}

static void layer_close(layer *l)
{
    for (int i = 0; i < 4; i++) {
        free(l->w[i]);
        free(l->b[i]);
    }
}

/* The kernel's shape as the reference reads it: plain self-attention, no mask. */
static ref_case plain_layer(const attn_kernel *k)
{
    ref_case c;
    memset(&c, 0, sizeof c);
    c.batch = k->batch;
    c.seq_len = k->seq_len;
    c.kv_len = k->kv_len;
    c.heads = k->heads;
    c.kv_heads = k->kv_heads;
    c.head_dim = k->head_dim;
    c.v_head_dim = k->v_head_dim;
    c.d_model = c.kv_dim = k->d_model;
    c.sdpa = k->d_model == 0;
    c.output_projection = !c.sdpa;
    c.q_bias = c.k_bias = c.v_bias = c.o_bias = !c.sdpa;
    c.scale = 1 / sqrt((double)k->head_dim);
    c.return_weights = k->tensors & ATTN_T_WEIGHTS_HEADS  ? REF_WEIGHTS_PER_HEAD
                       : k->tensors & ATTN_T_WEIGHTS_MEAN ? REF_WEIGHTS_MEAN
                                                          : REF_WEIGHTS_NONE;
    return c;
}

static void expect_reference(case_kernel *c, const attn_weights *w, const char *what,
                             const char *isa)
{
    const ref_case problem = plain_layer(c->kernel);
    ref_result truth;
    double worst = 0;
    cr_assert_eq(ref_alloc(&truth, &problem), 0);
    ref_run(&problem, w, &c->args, &truth);
    case_run(c, w);
    cr_expect_eq(ref_compare(c->args.y, truth.y, truth.y_tol, truth.sizes.y, 0, &worst),
                 truth.sizes.y, "%s, %s: y", what, isa);
    cr_expect_eq(ref_compare(c->args.weights, truth.weights, truth.weights_tol, truth.sizes.weights,
                             0, &worst),
                 truth.sizes.weights, "%s, %s: weights", what, isa);
    for (size_t row = 0; row < truth.sizes.weights / problem.kv_len; row++) {
        double sum = 0;
        for (size_t j = 0; j < problem.kv_len; j++) {
            sum += (double)c->args.weights[row * problem.kv_len + j];
        }
        cr_expect(fabs(sum - 1) <= 1e-6, "%s, %s: row %zu sums to %.9g", what, isa, row, sum);
    }
    ref_free(&truth);
}

Test(tutorial, two_by_four)
{
    static const char *const names[4] = {"tutorial_64_1", "tutorial_64_8", "tutorial_16_1",
                                         "tutorial_16_2"};
    FOR_EACH_ISA(isa)
    {
        for (int i = 0; i < 4; i++) {
            case_kernel c = case_open(names[i], isa);
            layer l = layer_open(c.kernel->d_model, 5);
            float x[2 * 4 * 64];
            case_fill(x, 8 * c.kernel->d_model, 1, 99);
            c.args.x = x;
            expect_reference(&c, &l.weights, names[i], isa);
            layer_close(&l);
            case_close(&c);
        }
    }
}

Test(tutorial, q_k_and_v_are_x)
{
    static float x[2 * 4 * 512];
    case_fill(x, sizeof x / sizeof x[0], 1, 3);
    FOR_EACH_ISA(isa)
    {
        case_kernel c = case_open("qkv_512", isa);
        c.args.q = c.args.k = c.args.v = x;
        expect_reference(&c, NULL, "Q = K = V = x", isa);
        case_close(&c);
    }
}

/* Zero Q and K: every weight is 1/S exactly as float rounds it, whatever x holds. */
Test(tutorial, zero_q_and_k_give_uniform_weights)
{
    FOR_EACH_ISA(isa)
    {
        case_kernel c = case_open("tutorial_64_8", isa);
        layer l = layer_open(64, 8);
        float x[2 * 4 * 64];
        case_fill(x, 512, 1, 4);
        for (int i = 0; i < 2; i++) {
            memset(l.w[i], 0, 64 * 64 * sizeof(float));
            memset(l.b[i], 0, 64 * sizeof(float));
        }
        c.args.x = x;
        case_run(&c, &l.weights);
        for (size_t i = 0; i < c.kernel->weights_elements; i++) {
            cr_expect(fabs((double)c.args.weights[i] - 0.25) <= 3e-8, "%s: weight %zu is %.9g", isa,
                      i, (double)c.args.weights[i]);
        }
        layer_close(&l);
        case_close(&c);
    }
}

Test(layer, bc09_nan_stays_visible)
{
    static const float unit[4] = {1, 0, 0, 1}, clean[6] = {1, 0, 0, 1, 1, 1};
    float x[6];
    memcpy(x, clean, sizeof x);
    x[2] = NAN;
    FOR_EACH_ISA(isa)
    {
        const attn_weights w = {unit, unit, unit, unit, NULL, NULL, NULL, NULL};
        float first[2];
        case_kernel c = case_open("layer_nan", isa);
        c.args.x = clean;
        case_run(&c, &w);
        memcpy(first, c.args.y, sizeof first);
        c.args.x = x;
        case_run(&c, &w);
        cr_expect_arr_eq(c.args.y, first, sizeof first, "%s: row 0 changed", isa);
        for (int i = 2; i < 6; i++) {
            cr_expect(isnan(c.args.y[i]), "%s: y[%d] hides the NaN", isa, i);
        }
        case_close(&c);
    }
}

/* STD3 as a layer, d_model 2: x holds the keys, V = x times a matrix. */
Test(layer, bc58_k_bias_cannot_matter)
{
    static const float unit[4] = {1, 0, 0, 1}, x[6] = {1, 0, 0, 1, 1, 1}, none[2];
    static const float v[4] = {1, 2, 10, 20}, bk[2] = {5, -3}; /* rows give (1,10) (2,20) (3,30) */
    /* By hand: weights of STD3, values 1, 2 and 3 = 1 + 2. */
    const double e = exp(1 / sqrt(2.0)), f = exp(sqrt(2.0));
    const double row0 = (e + 2 + 3 * e) / (2 * e + 1), row1 = (1 + 2 * e + 3 * e) / (2 * e + 1);
    const double row2 = (3 * e + 3 * f) / (2 * e + f);
    const double want[6] = {row0, 10 * row0, row1, 10 * row1, row2, 10 * row2};
    FOR_EACH_ISA(isa)
    {
        attn_weights w = {unit, unit, v, unit, none, none, none, none};
        case_kernel c = case_open("layer_std3", isa);
        c.args.x = x;
        case_run(&c, &w);
        case_expect("without k bias", isa, c.args.y, want, 6);
        w.k_bias = bk;
        case_run(&c, &w);
        case_expect("with k bias", isa, c.args.y, want, 6);
        case_close(&c);
    }
}

/* A padded item equals the unpadded one, whatever lies in the padding. */
Test(relations, padded_equals_unpadded)
{
    float q[24], k[48], v[48];
    static const int32_t lengths[2] = {3, 6};
    case_fill(q, 24, 1, 1);
    case_fill(k, 48, 1, 2);
    case_fill(v, 48, 1, 3);
    for (int i = 12; i < 24; i++) {
        k[i] = v[i] = NAN;
    }
    FOR_EACH_ISA(isa)
    {
        double want[12];
        case_kernel c = case_open("unpadded", isa);
        c.args.q = q;
        c.args.k = k;
        c.args.v = v;
        case_run(&c, NULL);
        for (int i = 0; i < 12; i++) {
            want[i] = (double)c.args.y[i];
        }
        case_close(&c);
        c = case_open("padded", isa);
        c.args.q = q;
        c.args.k = k;
        c.args.v = v;
        c.args.kv_lengths = lengths;
        case_run(&c, NULL);
        case_expect("padded", isa, c.args.y, want, 12);
        case_close(&c);
    }
}

/* The layer of the tokens_* kernels: 24 inputs, 4 heads of 12, 2 of them for keys and values. */
enum { TOKENS = 17, TOKEN_WIDTH = 24, CACHE_TOKENS = 19, CACHE_FLOATS = 2 * CACHE_TOKENS * 12 };

static layer token_layer(void)
{
    layer l;
    const size_t outputs[4] = {48, 24, 24, 24}, inputs[4] = {24, 24, 24, 48};
    for (int i = 0; i < 4; i++) {
        l.w[i] = calloc(outputs[i] * inputs[i], sizeof(float));
        l.b[i] = calloc(outputs[i], sizeof(float));
        cr_assert(l.w[i] != NULL && l.b[i] != NULL);
        case_fill(l.w[i], outputs[i] * inputs[i], 1.0F / sqrtf((float)inputs[i]),
                  40 + (unsigned long)i);
        case_fill(l.b[i], outputs[i], 0.5F, 50 + (unsigned long)i);
    }
    l.weights = (attn_weights){l.w[0], l.w[1], l.w[2], l.w[3], l.b[0], l.b[1], l.b[2], l.b[3]};
    return l;
}

/* Feeds x to kernel `name`, its seq_len tokens a call, and checks every row against the whole
 * pass to 1e-6 of the output's size; leaves the caches filled. */
static void feed_tokens(const char *name, const char *isa, const layer *l, float *x,
                        const float *whole, float *keys, float *values)
{
    case_kernel c = case_open(name, isa);
    const int step = (int)c.kernel->seq_len;
    for (int i = 0; i < CACHE_FLOATS; i++) {
        keys[i] = values[i] = NAN; /* nothing but tokens may be looked at */
    }
    c.args.k_cache = keys;
    c.args.v_cache = values;
    for (int first = 0; first + step <= TOKENS; first += step) {
        const int32_t length = first + step;
        c.args.x = x + first * TOKEN_WIDTH;
        c.args.kv_lengths = &length;
        case_run(&c, &l->weights);
        for (int i = 0; i < step * TOKEN_WIDTH; i++) {
            const float want = whole[first * TOKEN_WIDTH + i];
            cr_expect(fabsf(c.args.y[i] - want) <= 1e-6F * fmaxf(1.0F, fabsf(want)),
                      "%s, %s: token %d is %.9g, in one pass %.9g", name, isa,
                      first + i / TOKEN_WIDTH, (double)c.args.y[i], (double)want);
        }
    }
    case_close(&c);
}

/* Token by token, or five at a time, equals one causal pass; and the cache that this leaves behind
 * serves a kernel that is given keys and values. */
Test(relations, tokens_one_by_one_equal_one_pass)
{
    static float x[TOKENS * TOKEN_WIDTH], whole[TOKENS * TOKEN_WIDTH];
    static float keys[CACHE_FLOATS], values[CACHE_FLOATS];
    FOR_EACH_ISA(isa)
    {
        layer l = token_layer();
        case_fill(x, TOKENS * TOKEN_WIDTH, 1, 60);
        case_kernel c = case_open("tokens_whole", isa);
        c.args.x = x;
        case_run(&c, &l.weights);
        memcpy(whole, c.args.y, sizeof whole);
        case_close(&c);
        feed_tokens("tokens_by_5", isa, &l, x, whole, keys, values);
        feed_tokens("tokens_by_1", isa, &l, x, whole, keys, values);

        static const int32_t all = TOKENS;
        c = case_open("tokens_static", isa);
        c.args.x = x + (TOKENS - 1) * TOKEN_WIDTH;
        c.args.k = keys;
        c.args.v = values;
        c.args.kv_lengths = &all;
        case_run(&c, &l.weights);
        for (int i = 0; i < TOKEN_WIDTH; i++) {
            const float want = whole[(TOKENS - 1) * TOKEN_WIDTH + i];
            cr_expect(fabsf(c.args.y[i] - want) <= 1e-6F * fmaxf(1.0F, fabsf(want)),
                      "%s: with given keys %.9g, in one pass %.9g", isa, (double)c.args.y[i],
                      (double)want);
        }
        case_close(&c);
        layer_close(&l);
    }
}

/* Row i of a causal kernel keeps its bits when any later token changes, even to NaN. */
Test(relations, causal_rows_ignore_later_tokens)
{
    FOR_EACH_ISA(isa)
    {
        case_kernel c = case_open("causal_17", isa);
        layer l = layer_open(24, 21);
        float x[17 * 24], y[17 * 24];
        case_fill(x, 17 * 24, 3, 22);
        c.args.x = x;
        case_run(&c, &l.weights);
        memcpy(y, c.args.y, sizeof y);
        for (size_t i = 16; i > 0; i--) {
            for (size_t d = 0; d < 24; d++) {
                x[i * 24 + d] = d % 2 ? NAN : 1e30F;
            }
            case_run(&c, &l.weights);
            cr_expect_arr_eq(c.args.y, y, i * 24 * sizeof(float), "%s: a row before %zu moved", isa,
                             i);
        }
        layer_close(&l);
        case_close(&c);
    }
}

/* Two large halves of q.k cancel: the bound comes from the data, not from the result. */
Test(numerics, bc81_cancellation)
{
    static float q[4 * 64], k[64 * 64], v[64 * 64];
    case_fill(q, 4 * 64, 100, 31);
    case_fill(v, 64 * 64, 1, 33);
    for (size_t j = 0; j < 64; j++) {
        for (size_t d = 0; d < 32; d++) {
            k[j * 64 + d] = 100;
            k[j * 64 + 32 + d] = -100;
        }
        k[j * 64 + j] += 0.0625F;
    }
    for (size_t i = 0; i < 4; i++) {
        memcpy(q + i * 64 + 32, q + i * 64, 32 * sizeof(float));
    }
    FOR_EACH_ISA(isa)
    {
        case_kernel c = case_open("cancel_64", isa);
        c.args.q = q;
        c.args.k = k;
        c.args.v = v;
        expect_reference(&c, NULL, "cancellation", isa);
        case_close(&c);
    }
}
