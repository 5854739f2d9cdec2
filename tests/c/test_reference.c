/* The judge judged: the double reference against answers known by hand, against OpenBLAS, and with
 * faults planted in it (BC-90). */
#include <criterion/criterion.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz/inputs.h"
#include "reference/blas_path.h"
#include "reference/reference.h"

static const char STD3[] =
    "op=sdpa batch=1 seq_len=3 kv_len=3 heads=1 kv_heads=1 head_dim=2 v_head_dim=2 d_model=0 "
    "kv_dim=0 cross=0 output_projection=0 queries=all bias_q=0 bias_k=0 bias_v=0 bias_o=0 "
    "scale=0x1.6a09e667f3bcdp-1 causal=0 lengths=0 padding=1 bool=0 additive=0 "
    "causal_align=top_left offset=0 mask_shape=0,0,0,0 padded_queries=compute empty_row=zero "
    "return_weights=per_head kv_cache=none accuracy=exact keys=projected values=projected";

static const char LAYER[] =
    "op=mha batch=2 seq_len=5 kv_len=7 heads=6 kv_heads=2 head_dim=3 v_head_dim=4 d_model=11 "
    "kv_dim=9 cross=1 output_projection=1 queries=all bias_q=1 bias_k=1 bias_v=1 bias_o=1 "
    "scale=0x1p-1 causal=1 lengths=1 padding=1 bool=1 additive=1 causal_align=bottom_right "
    "offset=0 "
    "mask_shape=2,1,5,7 padded_queries=zero empty_row=uniform return_weights=mean kv_cache=none "
    "accuracy=exact keys=projected values=projected";

static const char FEW_ROWS[] =
    "op=mha batch=1 seq_len=400 kv_len=400 heads=1 kv_heads=1 head_dim=2 v_head_dim=2 d_model=2 "
    "kv_dim=2 cross=0 output_projection=0 queries=all bias_q=1 bias_k=1 bias_v=1 bias_o=0 "
    "scale=0x1p+1 causal=0 lengths=0 padding=0 bool=0 additive=0 causal_align=top_left offset=0 "
    "mask_shape=0,0,0,0 padded_queries=compute empty_row=zero return_weights=none kv_cache=none "
    "accuracy=exact keys=projected values=projected";

static ref_case parse(const char *text)
{
    ref_case c;
    char message[256] = "";
    cr_assert_eq(ref_case_parse(&c, text, message, sizeof message), 0, "%s", message);
    return c;
}

Test(reference, known_answer)
{
    static const float qk[6] = {1, 0, 0, 1, 1, 1}, v[6] = {1, 10, 2, 20, 4, 40};
    static const uint8_t keep[2][3] = {{1, 1, 1}, {1, 1, 0}};
    static const double want[2][6] = {
        {2.40111209, 24.0111209, 2.60444837, 26.0444837, 2.75872461, 27.5872461},
        {1.33023845, 13.3023845, 1.66976155, 16.6976155, 1.5, 15}};
    const ref_case c = parse(STD3);
    ref_result r;
    attn_args a;
    memset(&a, 0, sizeof a);
    a.q = a.k = qk;
    a.v = v;
    cr_assert_eq(ref_alloc(&r, &c), 0);
    for (int i = 0; i < 2; i++) {
        a.key_keep = keep[i];
        ref_run(&c, NULL, &a, &r);
        for (int j = 0; j < 6; j++) {
            cr_expect(fabs(r.y[j] - want[i][j]) <= 1e-8 * want[i][j], "[%d] is %.12g", j, r.y[j]);
            cr_expect(r.y_tol[j] > 0 && r.y_tol[j] < 3e-6 * want[i][j], "tolerance %g", r.y_tol[j]);
        }
    }
    cr_expect_eq(r.weights[2], 0.0, "a masked key has a weight");
    ref_free(&r);
}

Test(reference, bad_case_text_is_refused)
{
    ref_case c;
    char message[256], text[1024];
    cr_expect_eq(ref_case_parse(&c, "batch=2", message, sizeof message), -1);
    snprintf(text, sizeof text, "%s colour=red", STD3);
    cr_expect_eq(ref_case_parse(&c, text, message, sizeof message), -1);
    cr_expect(strstr(message, "colour") != NULL, "%s", message);
    snprintf(text, sizeof text, "%s batch=-1", STD3);
    cr_expect_eq(ref_case_parse(&c, text, message, sizeof message), -1);
}

/* A layer whose errors of logits outweigh all others, see below. */
static const char ALIKE[] =
    "op=mha batch=1 seq_len=12 kv_len=12 heads=2 kv_heads=2 head_dim=72 v_head_dim=72 d_model=144 "
    "kv_dim=144 cross=0 output_projection=1 queries=all bias_q=1 bias_k=1 bias_v=1 bias_o=1 "
    "scale=0x1p-2 causal=0 lengths=0 padding=0 bool=0 additive=0 causal_align=top_left offset=0 "
    "mask_shape=0,0,0,0 padded_queries=compute empty_row=zero return_weights=none kv_cache=none "
    "accuracy=exact keys=projected values=projected";

/* Both opinions of one input set. */
typedef struct opinions {
    ref_case problem;
    input_set set;
    ref_result truth;
    double *y, *weights;
} opinions;

static opinions form(input_kind kind, uint64_t seed)
{
    opinions o;
    o.problem = parse(LAYER);
    cr_assert(input_alloc(&o.set, &o.problem) == 0 && ref_alloc(&o.truth, &o.problem) == 0);
    o.y = calloc(o.set.sizes.y, sizeof(double));
    o.weights = calloc(o.set.sizes.weights, sizeof(double));
    input_fill(&o.set, &o.problem, kind, seed);
    ref_run(&o.problem, &o.set.weights, &o.set.args, &o.truth);
    cr_assert_eq(blas_attention_f64(&o.problem, &o.set.weights, &o.set.args, o.y, o.weights), 0);
    return o;
}

static void dissolve(opinions *o)
{
    input_free(&o->set);
    ref_free(&o->truth);
    free(o->y);
    free(o->weights);
}

Test(reference, agrees_with_openblas)
{
    for (uint64_t seed = 0; seed < 200; seed++) {
        const input_kind kind = (input_kind)(seed % INPUT_KINDS);
        if (input_is_finite(kind)) {
            opinions o = form(kind, seed);
            cr_expect_eq(ref_agree(o.y, o.truth.y, o.truth.y_tol, o.set.sizes.y), o.set.sizes.y,
                         "%s, seed %zu", input_name(kind), (size_t)seed);
            cr_expect_eq(
                ref_agree(o.weights, o.truth.weights, o.truth.weights_tol, o.set.sizes.weights),
                o.set.sizes.weights);
            dissolve(&o);
        }
    }
}

Test(reference, bc90_planted_fault_is_an_oracle_fault)
{
    opinions o = form(INPUT_NORMAL, 7);
    for (size_t i = 0; i < o.set.sizes.y; i++) {
        const double good = o.truth.y[i];
        if (o.truth.y_tol[i] == 0) {
            continue; /* an exact zero of a padded query */
        }
        o.truth.y[i] = good * (1 + 1e-2) + 1e-2;
        cr_expect_eq(ref_agree(o.y, o.truth.y, o.truth.y_tol, o.set.sizes.y), i);
        o.truth.y[i] = good + 1e-9; /* far below any float error, still seen */
        cr_expect_eq(ref_agree(o.y, o.truth.y, o.truth.y_tol, o.set.sizes.y), i);
        o.truth.y[i] = good;
    }
    dissolve(&o);
}

/* A relative error of 1e-4 in any single element is outside of the tolerance. */
Test(reference, tolerance_is_tight)
{
    opinions o = form(INPUT_NORMAL, 11);
    float *y = calloc(o.set.sizes.y, sizeof(float));
    double worst = 0;
    for (size_t i = 0; i < o.set.sizes.y; i++) {
        y[i] = (float)o.truth.y[i];
    }
    cr_expect_eq(ref_compare(y, o.truth.y, o.truth.y_tol, o.set.sizes.y, 0, &worst), o.set.sizes.y);
    for (size_t i = 0; i < o.set.sizes.y; i++) {
        const float good = y[i];
        if (fabsf(good) > 0.05F) {
            y[i] = good * 1.0001F;
            cr_expect_eq(ref_compare(y, o.truth.y, o.truth.y_tol, o.set.sizes.y, 0, &worst), i,
                         "%.9g within %.3g", (double)good, o.truth.y_tol[i]);
        }
        y[i] = good;
    }
    free(y);
    dissolve(&o);
}

static void clear_columns(float *w, size_t n, size_t width, size_t first, size_t count)
{
    for (size_t i = 0; i < n; i++) {
        if (i % width - first < count) {
            w[i] = 0.0F;
        }
    }
}

/* OpenBLAS in float on one input set, which a correct tolerance lets pass; *worst collects the largest
 * error/tolerance ratio. */
static void judge_openblas(const ref_case *c, const input_set *set, uint64_t seed, double *worst)
{
    ref_result truth;
    cr_assert_eq(ref_alloc(&truth, c), 0);
    float *y = calloc(set->sizes.y, sizeof(float));
    ref_run(c, &set->weights, &set->args, &truth);
    cr_assert_eq(blas_attention_f32(c, &set->weights, &set->args, y, NULL), 0);
    cr_expect_eq(ref_compare(y, truth.y, truth.y_tol, set->sizes.y, 0, worst), set->sizes.y,
                 "seed %zu", (size_t)seed);
    free(y);
    ref_free(&truth);
}

/* Large logits that are almost alike, values that differ between keys, and alike in all columns
 * (weights of one sign): a logit's error then moves all columns of the context the same way. */
Test(reference, errors_that_all_columns_share_are_within_the_tolerance)
{
    const ref_case c = parse(ALIKE);
    const size_t width = c.d_model, half = c.d_model / 2;
    double worst = 0;
    for (uint64_t seed = 0; seed < 12; seed++) {
        input_set set;
        cr_assert_eq(input_alloc(&set, &c), 0);
        input_fill(&set, &c, INPUT_SAME_SIGN, seed);
        for (size_t i = 0; i < set.sizes.x; i++) {
            const float row = 1.0F + (float)(i / width % 3);
            set.x[i] = i % width < half ? 1.0F + 0.02F * set.x[i] : row * set.x[i];
        }
        clear_columns(set.q_weight, set.sizes.q_weight, width, half, half);
        clear_columns(set.k_weight, set.sizes.k_weight, width, half, half);
        clear_columns(set.v_weight, set.sizes.v_weight, width, 0, half);
        judge_openblas(&c, &set, seed, &worst);
        input_free(&set);
    }
    cr_expect(worst > 0.05, "a tolerance of %.0f times the error tells nothing", 1.0 / worst);
}

/* Inputs of two different rows: sums over the keys round the same two terms again and again. */
Test(reference, errors_of_sums_of_equal_terms_are_within_the_tolerance)
{
    const ref_case c = parse(FEW_ROWS);
    double worst = 0;
    for (uint64_t seed = 0; seed < 150; seed++) {
        input_set set;
        cr_assert_eq(input_alloc(&set, &c), 0);
        input_fill(&set, &c, INPUT_ONE_HOT, seed);
        judge_openblas(&c, &set, seed, &worst);
        input_free(&set);
    }
    cr_expect(worst > 0.05, "a tolerance of %.0f times the error tells nothing", 1.0 / worst);
}

Test(reference, nan_and_infinity_must_meet_their_like)
{
    const double want[3] = {1, (double)NAN, (double)INFINITY}, tol[3] = {1e-6, 0, 0};
    double worst = 0;
    float got[3] = {1, NAN, INFINITY};
    cr_expect_eq(ref_compare(got, want, tol, 3, 0, &worst), 3);
    got[2] = NAN;
    cr_expect_eq(ref_compare(got, want, tol, 3, 0, &worst), 3);
    got[1] = INFINITY;
    cr_expect_eq(ref_compare(got, want, tol, 3, 0, &worst), 1);
    cr_expect_eq(ref_compare(got, want, tol, 3, 1, &worst), 3);
    got[1] = 0;
    cr_expect_eq(ref_compare(got, want, tol, 3, 1, &worst), 1);
    got[0] = NAN;
    cr_expect_eq(ref_compare(got, want, tol, 3, 1, &worst), 0);
}

static void *call_blas(void *data)
{
    opinions *o = data;
    double *y = calloc(o->set.sizes.y, sizeof(double));
    size_t bad = 0;
    for (int i = 0; i < 50; i++) {
        blas_attention_f64(&o->problem, &o->set.weights, &o->set.args, y, NULL);
        bad += memcmp(y, o->y, o->set.sizes.y * sizeof(double)) != 0;
    }
    free(y);
    return bad != 0 ? data : NULL;
}

Test(reference, bc90_openblas_from_eight_threads)
{
    opinions o = form(INPUT_NORMAL, 3);
    pthread_t threads[8];
    for (int i = 0; i < 8; i++) {
        cr_assert_eq(pthread_create(&threads[i], NULL, call_blas, &o), 0);
    }
    for (int i = 0; i < 8; i++) {
        void *bad = NULL;
        pthread_join(threads[i], &bad);
        cr_expect_null(bad, "thread %d saw other bits", i);
    }
    dissolve(&o);
}
