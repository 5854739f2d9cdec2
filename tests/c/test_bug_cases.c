/* The bug-case log's masked-softmax, numerics, mask and tail cases with their literal answers, on
 * every ISA. Layer and program cases: test_layer_cases.c, test_programs.c. */
#include <criterion/criterion.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "c/case_kernel.h"

static const float STD3_K[6] = {1, 0, 0, 1, 1, 1};
static const float STD3_V[6] = {1, 10, 2, 20, 4, 40};
static const double STD3_FREE[6] = {2.40111209, 24.0111209, 2.60444837,
                                    26.0444837, 2.75872461, 27.5872461};
static const double STD3_KEEP_110[6] = {1.33023845, 13.3023845, 1.66976155, 16.6976155, 1.5, 15};
static const double STD3_CAUSAL[6] = {1, 10, 1.66976155, 16.6976155, 2.75872461, 27.5872461};

static case_kernel open_qkv(const char *name, const char *isa, const float *q, const float *k,
                            const float *v)
{
    case_kernel c = case_open(name, isa);
    c.args.q = q;
    c.args.k = k;
    c.args.v = v;
    return c;
}

static case_kernel open_std3(const char *name, const char *isa)
{
    return open_qkv(name, isa, STD3_K, STD3_K, STD3_V);
}

static void expect_y(case_kernel *c, const char *what, const char *isa, const double *want)
{
    case_run(c, NULL);
    case_expect(what, isa, c->args.y, want, c->kernel->y_elements);
}

Test(masked_softmax, bc01_every_key_masked)
{
    static const uint8_t keep[9] = {1, 1, 1, 0, 0, 0, 1, 0, 1};
    static const char *const names[3] = {"std3_bool", "std3_bool_uniform", "std3_bool_nan"};
    const double empty[3][2] = {{0, 0}, {7.0 / 3, 70.0 / 3}, {(double)NAN, (double)NAN}};
    FOR_EACH_ISA(isa)
    {
        for (int i = 0; i < 3; i++) {
            const double want[6] = {2.40111209,  24.0111209, empty[i][0],
                                    empty[i][1], 3.00928465, 30.0928465};
            case_kernel c = open_std3(names[i], isa);
            c.args.mask_keep = keep;
            expect_y(&c, names[i], isa, want);
            if (i == 0) {
                cr_expect(c.args.y[2] == 0.0F && c.args.y[3] == 0.0F, "%s: not exactly 0", isa);
            }
            case_close(&c);
        }
    }
}

Test(masked_softmax, bc02_lowest_float_is_not_a_mask)
{
    const float low = -FLT_MAX;
    const float add[9] = {0, 0, 0, low, low, low, 0, 0, 0};
    const double want[6] = {2.40111209, 24.0111209, 7.0 / 3, 70.0 / 3, 2.75872461, 27.5872461};
    FOR_EACH_ISA(isa)
    {
        case_kernel c = open_std3("std3_add", isa);
        c.args.mask_add = add;
        expect_y(&c, "-FLT_MAX", isa, want);
        case_close(&c);
    }
}

/* The -1e9 convention: a row of them is the uniform mean; one of them drops its key. */
Test(masked_softmax, bc15_minus_1e9)
{
    const float add[9] = {0, 0, -1e9F, 0, 0, -1e9F, -1e9F, -1e9F, -1e9F};
    const double want[6] = {1.33023845, 13.3023845, 1.66976155, 16.6976155, 7.0 / 3, 70.0 / 3};
    FOR_EACH_ISA(isa)
    {
        case_kernel c = open_std3("std3_add", isa);
        c.args.mask_add = add;
        expect_y(&c, "-1e9", isa, want);
        case_close(&c);
    }
}

/* -inf selects: a whole row of it is an empty row, which is 0 here. */
Test(masked_softmax, additive_minus_infinity)
{
    const float off = -INFINITY;
    const float add[9] = {0, 0, off, 0, 0, off, off, off, off};
    const double want[6] = {1.33023845, 13.3023845, 1.66976155, 16.6976155, 0, 0};
    FOR_EACH_ISA(isa)
    {
        case_kernel c = open_std3("std3_add", isa);
        c.args.mask_add = add;
        expect_y(&c, "-inf", isa, want);
        case_close(&c);
    }
}

Test(masked_softmax, bc04_left_padding_with_causal)
{
    static const float qk[8] = {1, 0, 0, 1, 1, 1, 2, 0}, v[8] = {1, 10, 2, 20, 4, 40, 8, 80};
    static const uint8_t keep[4] = {0, 0, 1, 1};
    const double want[8] = {0, 0, 0, 0, 4, 40, 7.21771873, 72.1771873};
    FOR_EACH_ISA(isa)
    {
        case_kernel c = open_qkv("left_padded", isa, qk, qk, v);
        c.args.key_keep = keep;
        expect_y(&c, "left padding", isa, want);
        case_close(&c);
    }
}

/* Logits far from 0. log2(e) is folded into the query, so a logit s is rounded to s * 2^-24: near
 * 60000 the weights move by up to 0.0018, as for any float logits of that size that are not
 * integers. What the case is about, a maximum that starts too high, gives 0 or NaN. */
Test(masked_softmax, bc06_bc11_maxima)
{
    static const struct {
        float q, k[2];
        double want, tolerance;
    } rows[4] = {{1, {-60000, -60001}, 0.731058579, 60001 * 0x1p-23 * 0.25},
                 {1, {-1e30F, -1e30F}, 0.5, 0},
                 {100, {100, 99}, 1.0, 0},
                 {1, {89, 89}, 0.5, 0}};
    static const float v[2] = {1, 0};
    FOR_EACH_ISA(isa)
    {
        for (int i = 0; i < 4; i++) {
            case_kernel c = open_qkv("two_keys", isa, &rows[i].q, rows[i].k, v);
            case_run(&c, NULL);
            const double error = fabs((double)c.args.y[0] - rows[i].want);
            cr_expect(error <= 1e-6 + rows[i].tolerance, "%s: row %d is %.9g, expected %.9g", isa,
                      i, (double)c.args.y[0], rows[i].want);
            case_close(&c);
        }
    }
}

Test(masked_softmax, bc07_garbage_under_the_mask)
{
    const float v[6] = {1, 10, 2, 20, NAN, INFINITY};
    const float v2[12] = {1, 10, 2, 20, NAN, NAN, 1, 10, 2, 20, 4, 40};
    const float qk2[12] = {1, 0, 0, 1, 1, 1, 1, 0, 0, 1, 1, 1};
    static const uint8_t keep[3] = {1, 1, 0};
    FOR_EACH_ISA(isa)
    {
        case_kernel c = open_qkv("std3_pad", isa, STD3_K, STD3_K, v);
        c.args.key_keep = keep;
        expect_y(&c, "padding", isa, STD3_KEEP_110);
        case_close(&c);
        c = open_qkv("std3_causal", isa, qk2, qk2, v2);
        case_run(&c, NULL);
        case_expect("causal", isa, c.args.y, STD3_CAUSAL, 4);
        cr_expect(isnan(c.args.y[4]) && isnan(c.args.y[5]), "%s: NaN hidden", isa);
        case_expect("causal, item 1", isa, c.args.y + 6, STD3_CAUSAL, 6);
        case_close(&c);
    }
}

Test(numerics, bc13_exp_far_below)
{
    static const float k[9] = {0, -87, -87.5F, -88, -88.5F, -100, -103, -104, -1000};
    const float q = 1;
    FOR_EACH_ISA(isa)
    {
        for (int hot = 0; hot < 9; hot++) {
            float v[9] = {0};
            v[hot] = 1;
            case_kernel c = open_qkv("nine_keys", isa, &q, k, v);
            case_run(&c, NULL);
            const double y = (double)c.args.y[0];
            cr_expect(hot == 0 ? fabs(y - 1) <= 1e-6 : y >= 0 && y <= 1.7e-38, "%s: key %d: %g",
                      isa, hot, y);
            cr_expect(hot != 8 || y == 0, "%s: not exactly 0 at -1000: %g", isa, y);
            case_close(&c);
        }
    }
}

/* The weight of a key x below the maximum, for x = 0 .. -110: right, and never rising. */
Test(numerics, bc13_exp_sweep)
{
    FOR_EACH_ISA(isa)
    {
        double before = 2;
        for (int step = 0; step <= 11000; step++) {
            const float q = 1, k[2] = {0, -(float)step * 0.01F}, v[2] = {0, 1};
            static case_kernel c;
            if (step == 0) {
                c = case_open("two_keys", isa);
            }
            c.args.q = &q;
            c.args.k = k;
            c.args.v = v;
            case_run(&c, NULL);
            const double y = (double)c.args.y[0], x = (double)k[1];
            const double want = exp(x) / (1 + exp(x));
            cr_expect(y >= 0 && y <= before * (1 + 4e-7), "%s: rises at %g", isa, x);
            if (x > -87) {
                /* 3e-7 of the exponential, and the float argument itself is off by |x| 2^-24. */
                cr_expect(fabs(y - want) <= want * (4e-7 + fabs(x) * 1.2e-7), "%s: %g at %g", isa,
                          y, x);
            }
            before = y;
            if (step == 11000) {
                case_close(&c);
            }
        }
    }
}

Test(mask_meaning, bc16_bc22_keep_means_attend)
{
    static const uint8_t keep[3] = {1, 1, 0}, rows[9] = {1, 1, 0, 1, 1, 0, 1, 1, 0};
    FOR_EACH_ISA(isa)
    {
        case_kernel c = open_std3("std3_pad", isa);
        c.args.key_keep = keep;
        expect_y(&c, "padding", isa, STD3_KEEP_110);
        case_close(&c);
        c = open_std3("std3_bool", isa);
        c.args.mask_keep = rows;
        expect_y(&c, "bool", isa, STD3_KEEP_110);
        case_close(&c);
        c = open_std3("std3", isa);
        expect_y(&c, "none", isa, STD3_FREE);
        case_close(&c);
    }
}

Test(mask_meaning, bc17_bytes_and_floats)
{
    static const float zero[6];
    static const uint8_t keep[3] = {1, 1, 0};
    const float add[9] = {1, 1, 0, 1, 1, 0, 1, 1, 0};
    const double bytes[6] = {1.5, 15, 1.5, 15, 1.5, 15};
    const double floats[6] = {1.88840601, 18.8840601, 1.88840601,
                              18.8840601, 1.88840601, 18.8840601};
    FOR_EACH_ISA(isa)
    {
        case_kernel c = open_qkv("std3_pad", isa, zero, zero, STD3_V);
        c.args.key_keep = keep;
        expect_y(&c, "bytes", isa, bytes);
        case_close(&c);
        c = open_qkv("std3_add", isa, zero, zero, STD3_V);
        c.args.mask_add = add;
        expect_y(&c, "floats", isa, floats);
        case_close(&c);
    }
}

Test(mask_meaning, bc19_mask_is_not_scaled)
{
    float q[64], k[128];
    const float v[2] = {1, 0}, add[2] = {0, -3};
    const double want = 0.952574127;
    for (int i = 0; i < 128; i++) {
        q[i % 64] = k[i] = 0.5F;
    }
    FOR_EACH_ISA(isa)
    {
        case_kernel c = open_qkv("scaled_mask", isa, q, k, v);
        c.args.mask_add = add;
        expect_y(&c, "scaled mask", isa, &want);
        case_close(&c);
    }
}

Test(mask_meaning, bc20_every_item_has_its_mask)
{
    static const float qk[12] = {1, 0, 0, 1, 1, 1, 1, 0, 0, 1, 1, 1};
    static const float v[12] = {1, 10, 2, 20, 4, 40, 1, 10, 2, 20, 4, 40};
    static const float zero[15];
    static const float powers[15] = {1, 2, 4, 8, 16, 1, 2, 4, 8, 16, 1, 2, 4, 8, 16};
    static const int32_t lengths[2][3] = {{1, 3, 5}, {2, 2, 2}};
    static const double means[2][3] = {{1, 7.0 / 3, 6.2}, {1.5, 1.5, 1.5}};
    FOR_EACH_ISA(isa)
    {
        case_kernel c = open_qkv("std3_causal", isa, qk, qk, v);
        case_run(&c, NULL);
        cr_expect_arr_eq(c.args.y, c.args.y + 6, 6 * sizeof(float), "%s: items differ", isa);
        case_close(&c);
        for (int i = 0; i < 2; i++) {
            double want[15];
            for (int row = 0; row < 15; row++) {
                want[row] = means[i][row / 5];
            }
            c = open_qkv("lengths_3", isa, zero, zero, powers);
            c.args.kv_lengths = lengths[i];
            expect_y(&c, "lengths", isa, want);
            case_close(&c);
        }
    }
}

Test(mask_meaning, bc23_causal_and_padding)
{
    static const double per_head[7] = {0, 2, 3, 3, 3, 12.6666667, 12.6666667};
    static const uint8_t keep[7] = {0, 1, 1, 0, 0, 1, 0};
    static const float zero[13 * 7 * 37];
    float v[13 * 7];
    double want[13 * 7];
    for (int i = 0; i < 13 * 7; i++) {
        v[i] = (float)(1 << i % 7);
        /* Mean of 2^1, 2^2, 2^5 is 38/3: the log's numbers, head by head. */
        want[i] = per_head[i % 7];
    }
    FOR_EACH_ISA(isa)
    {
        case_kernel c = open_qkv("causal_padding_13", isa, zero, zero, v);
        c.args.key_keep = keep;
        expect_y(&c, "13 heads", isa, want);
        case_close(&c);
    }
}

Test(mask_meaning, bc24_alignment)
{
    static const float zero[10];
    static const float powers[10] = {1, 2, 4, 8, 16, 1, 2, 4, 8, 16};
    static const int32_t lengths[2] = {5, 3};
    static const struct {
        const char *name;
        double want[4];
    } rows[4] = {{"bottom_right_2_5", {3.75, 6.2}},
                 {"bottom_right_1_5", {6.2}},
                 {"top_left_2_5", {1, 1.5}},
                 {"cache_2_5", {3.75, 6.2, 1.5, 7.0 / 3}}};
    FOR_EACH_ISA(isa)
    {
        for (int i = 0; i < 4; i++) {
            case_kernel c = open_qkv(rows[i].name, isa, zero, zero, powers);
            c.args.kv_lengths = lengths;
            expect_y(&c, rows[i].name, isa, rows[i].want);
            case_close(&c);
        }
    }
}

Test(mask_meaning, bc27_softmax_axis)
{
    static const float q[3] = {2, 0, 0}, k[3] = {1, 0, 0};
    const double want[3] = {0.786986042, 0.333333333, 0.333333333};
    FOR_EACH_ISA(isa)
    {
        case_kernel c = open_qkv("axis", isa, q, k, k);
        expect_y(&c, "axis", isa, want);
        case_close(&c);
    }
}

Test(tails, bc29_last_column_counts)
{
    static const struct {
        int d;
        double want;
    } rows[11] = {{1, 0.731058579},  {3, 0.640457476},  {5, 0.609976537},  {7, 0.593382065},
                  {9, 0.582570206},  {17, 0.560338419}, {40, 0.539446325}, {72, 0.529428729},
                  {80, 0.527921771}, {96, 0.525493392}, {104, 0.524494893}};
    const float v[2] = {1, 0};
    FOR_EACH_ISA(isa)
    {
        for (int i = 0; i < 11; i++) {
            float q[104] = {0}, k[208] = {0};
            char name[32];
            q[rows[i].d - 1] = k[rows[i].d - 1] = 1;
            snprintf(name, sizeof name, "tail_%d", rows[i].d);
            case_kernel c = open_qkv(name, isa, q, k, v);
            expect_y(&c, name, isa, &rows[i].want);
            case_close(&c);
        }
    }
}

Test(tails, bc30_all_columns)
{
    FOR_EACH_ISA(isa)
    {
        float q[128] = {0}, k[256] = {0}, v[256] = {0};
        double want[128] = {0};
        for (int i = 64; i < 128; i++) {
            q[i] = 0.25F;
            k[i] = 1;
        }
        v[0] = v[127] = 1;
        want[0] = want[127] = 0.804429683;
        case_kernel c = open_qkv("wide_128", isa, q, k, v);
        expect_y(&c, "128 columns", isa, want);
        case_close(&c);
    }
}

Test(tails, bc31_last_key_counts)
{
    static const int sizes[9] = {1, 3, 7, 17, 33, 65, 197, 257, 1500};
    static const float zero[1500];
    FOR_EACH_ISA(isa)
    {
        for (int i = 0; i < 9; i++) {
            const int s = sizes[i];
            for (int form = 0; form < (s <= 65 ? 3 : 1); form++) {
                static const char *const names[3] = {"keys_1_%d", "keys_%d", "keys_causal_%d"};
                char name[32];
                static float v[1500];
                double want[65];
                memset(v, 0, sizeof v);
                v[s - 1] = (float)s;
                for (int row = 0; row < (form == 0 ? 1 : s); row++) {
                    want[row] = form < 2 || row == s - 1 ? 1 : 0;
                }
                const char *const format = names[form];
                const size_t head = strcspn(format, "%");
                snprintf(name, sizeof name, "%.*s%d", (int)head, format, s);
                case_kernel c = open_qkv(name, isa, zero, zero, v);
                expect_y(&c, name, isa, want);
                case_close(&c);
            }
        }
    }
}

Test(heads, bc43_which_kv_head)
{
    static const float zero[4], v[2] = {10, 20};
    const double want[4] = {10, 10, 20, 20};
    FOR_EACH_ISA(isa)
    {
        case_kernel c = open_qkv("gqa_4_2", isa, zero, zero, v);
        expect_y(&c, "kv heads", isa, want);
        case_close(&c);
    }
}

Test(heads, bc47_scale_of_the_head)
{
    float q[64], k[128];
    const float v[8] = {1, 0, 1, 0, 1, 0, 1, 0};
    const double want[4] = {0.880797078, 0.880797078, 0.880797078, 0.880797078};
    for (int i = 0; i < 128; i++) {
        q[i % 64] = 1;
        k[i] = i % 32 < 16 ? 1 : 0.5F;
    }
    FOR_EACH_ISA(isa)
    {
        case_kernel c = open_qkv("scale_16", isa, q, k, v);
        expect_y(&c, "scale", isa, want);
        case_close(&c);
    }
}
