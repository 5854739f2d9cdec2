/* Kernels inside programs: many threads on one kernel (BC-88), small stacks (BC-87), any number of
 * parts (BC-89), packing that must be refused. */
#include <criterion/criterion.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "c/case_kernel.h"

enum { THREADS = 8, CALLS = 1000 };

/* Weights of a plain layer; the caller frees block. */
static attn_weights make_weights(size_t d, float **block)
{
    float *w = calloc(4 * d * d + 4 * d, sizeof *w);
    cr_assert(w != NULL);
    case_fill(w, 4 * d * d, 1.0F / sqrtf((float)d), 41);
    case_fill(w + 4 * d * d, 4 * d, 0.5F, 42);
    *block = w;
    float *b = w + 4 * d * d;
    return (attn_weights){w, w + d * d, w + 2 * d * d, w + 3 * d * d,
                          b, b + d,     b + 2 * d,     b + 3 * d};
}

typedef struct worker {
    const case_kernel *shared;
    float x[17 * 24], want[17 * 24], y[17 * 24];
    void *workspace;
    int bad;
} worker;

static void *call_often(void *data)
{
    worker *w = data;
    attn_args args = w->shared->args;
    args.x = w->x;
    args.y = w->y;
    for (int i = 0; i < CALLS; i++) {
        memset(w->y, 0xFF, sizeof w->y);
        const int status = w->shared->kernel->forward(w->shared->packed, &args, w->workspace);
        w->bad += status != ATTN_OK || memcmp(w->y, w->want, sizeof w->y) != 0;
    }
    return NULL;
}

Test(programs, bc88_threads_share_a_kernel)
{
    FOR_EACH_ISA(isa)
    {
        static worker workers[THREADS];
        pthread_t threads[THREADS];
        float *block = NULL;
        case_kernel c = case_open("causal_17", isa);
        const attn_weights weights = make_weights(24, &block);
        for (int t = 0; t < THREADS; t++) {
            worker *w = &workers[t];
            case_fill(w->x, 17 * 24, 1, 50 + (unsigned long)t);
            c.args.x = w->x;
            case_run(&c, &weights);
            memcpy(w->want, c.args.y, sizeof w->want);
            w->shared = &c;
            w->bad = 0;
            cr_assert_eq(posix_memalign(&w->workspace, 128, c.kernel->workspace_bytes + 1), 0);
        }
        for (int t = 0; t < THREADS; t++) {
            cr_assert_eq(pthread_create(&threads[t], NULL, call_often, &workers[t]), 0);
        }
        for (int t = 0; t < THREADS; t++) {
            pthread_join(threads[t], NULL);
            cr_expect_eq(workers[t].bad, 0, "%s: thread %d: %d of %d calls differ", isa, t,
                         workers[t].bad, CALLS);
            free(workers[t].workspace);
        }
        free(block);
        case_close(&c);
    }
}

static void *call_once(void *data)
{
    case_kernel *c = data;
    return c->kernel->forward(c->packed, &c->args, c->workspace) == ATTN_OK ? NULL : data;
}

Test(programs, bc87_small_stack)
{
    static const char *const names[2] = {"stack_256", "stack_256_scores"};
    static float x[256 * 64], add[256 * 256], want[256 * 64];
    case_fill(x, 256 * 64, 1, 60);
    FOR_EACH_ISA(isa)
    {
        for (int i = 0; i < 2; i++) {
            float *block = NULL;
            pthread_attr_t attributes;
            pthread_t thread;
            void *bad = NULL;
            case_kernel c = case_open(names[i], isa);
            const attn_weights weights = make_weights(64, &block);
            c.args.x = x;
            c.args.mask_add = add;
            case_run(&c, &weights);
            memcpy(want, c.args.y, sizeof want);
            memset(c.args.y, 0xFF, sizeof want);
            pthread_attr_init(&attributes);
            const size_t stack = PTHREAD_STACK_MIN > 131072 ? (size_t)PTHREAD_STACK_MIN : 131072;
            cr_assert_eq(pthread_attr_setstacksize(&attributes, stack), 0);
            cr_assert_eq(pthread_create(&thread, &attributes, call_once, &c), 0);
            pthread_join(thread, &bad);
            cr_expect_null(bad, "%s: %s failed in a small thread", isa, names[i]);
            cr_expect_arr_eq(c.args.y, want, sizeof want, "%s: %s: other bits", isa, names[i]);
            free(block);
            case_close(&c);
        }
    }
}

Test(programs, bc89_parts_do_not_change_bits)
{
    static float x[256 * 64], want[256 * 64];
    case_fill(x, 256 * 64, 1, 61);
    FOR_EACH_ISA(isa)
    {
        static const uint32_t counts[6] = {1, 2, 3, 5, 8, 300};
        float *block = NULL;
        case_kernel c = case_open("stack_256", isa);
        const attn_weights weights = make_weights(64, &block);
        c.args.x = x;
        case_run(&c, &weights);
        memcpy(want, c.args.y, sizeof want);
        for (int i = 0; i < 6; i++) {
            const uint32_t parts = counts[i];
            const size_t bytes = c.kernel->workspace_bytes + (parts - 1) * c.kernel->part_bytes;
            void *workspace = NULL;
            cr_assert_eq(posix_memalign(&workspace, 128, bytes + 1), 0);
            memset(workspace, 0xFF, bytes);
            memset(c.args.y, 0xFF, sizeof want);
            for (uint32_t phase = 0; phase < c.kernel->phases; phase++) {
                for (uint32_t part = 0; part < parts; part++) {
                    cr_assert_eq(
                        c.kernel->forward_part(c.packed, &c.args, workspace, phase, part, parts),
                        ATTN_OK);
                }
            }
            cr_expect_arr_eq(c.args.y, want, sizeof want, "%s: %u parts: other bits", isa, parts);
            free(workspace);
        }
        free(block);
        case_close(&c);
    }
}

/* A non-finite bias that packing would drop, and a weight that the scale overflows, are refused;
 * what packing accepts must show its NaN. */
Test(programs, pack_refuses_what_it_would_hide)
{
    FOR_EACH_ISA(isa)
    {
        float *block = NULL;
        static float x[17 * 24];
        case_kernel c = case_open("causal_17", isa);
        attn_weights weights = make_weights(24, &block);
        float *bias = block + 4 * 24 * 24;
        const float good = bias[24];
        case_fill(x, 17 * 24, 1, 70);
        c.args.x = x;
        bias[24] = NAN; /* of K */
        const int status = c.pack(&weights, c.packed);
        cr_expect(status == ATTN_E_NONFINITE || status == ATTN_OK, "%s: pack returned %d", isa,
                  status);
        if (status == ATTN_OK) {
            cr_assert_eq(c.kernel->forward(c.packed, &c.args, c.workspace), ATTN_OK);
            cr_expect(isnan(c.args.y[0]), "%s: a NaN bias vanished", isa);
        }
        bias[24] = good;
        cr_expect_eq(c.pack(&weights, c.packed), ATTN_OK);
        cr_expect_eq(c.pack(NULL, c.packed), ATTN_E_NULL);
        cr_expect_eq(c.pack(&weights, NULL), ATTN_E_NULL);
        weights.k_weight = NULL;
        cr_expect_eq(c.pack(&weights, c.packed), ATTN_E_NULL);
        free(block);
        case_close(&c);
    }
}
