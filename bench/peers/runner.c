/* A layer in C behind plain functions, for ctypes: a generated kernel or a BLAS, one a process, with
 * the weights and inputs that the caller hands over by name. Loops and clocks are here, so that
 * Python costs nothing; the gauge is the probe's. */
#include "runner.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "machine.h"
#include "reference/ref_case.h"
#include "samples.h"
#include "subject.h"

static struct {
    ref_case problem;
    subject subject;
    attn_weights weights;
    attn_args args;
    void *packed, *workspace;
    char message[512];
} the;

/* Where a tensor's pointer belongs. */
typedef struct slot {
    const char *name;
    size_t offset;
} slot;

static const slot weight_slots[] = {
    {"q_weight", offsetof(attn_weights, q_weight)}, {"k_weight", offsetof(attn_weights, k_weight)},
    {"v_weight", offsetof(attn_weights, v_weight)}, {"o_weight", offsetof(attn_weights, o_weight)},
    {"q_bias", offsetof(attn_weights, q_bias)},     {"k_bias", offsetof(attn_weights, k_bias)},
    {"v_bias", offsetof(attn_weights, v_bias)},     {"o_bias", offsetof(attn_weights, o_bias)},
};

static const slot argument_slots[] = {
    {"x", offsetof(attn_args, x)},
    {"context", offsetof(attn_args, context)},
    {"k", offsetof(attn_args, k)},
    {"v", offsetof(attn_args, v)},
    {"k_cache", offsetof(attn_args, k_cache)},
    {"v_cache", offsetof(attn_args, v_cache)},
    {"kv_lengths", offsetof(attn_args, kv_lengths)},
    {"y", offsetof(attn_args, y)},
};

static int put(void *base, const slot *slots, size_t count, const char *name, void *data)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(slots[i].name, name) == 0) {
            memcpy((char *)base + slots[i].offset, &data, sizeof data);
            return 1;
        }
    }
    return 0;
}

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

int runner_set(const char *name, void *data)
{
    return put(&the.weights, weight_slots, COUNT(weight_slots), name, data) ||
                   put(&the.args, argument_slots, COUNT(argument_slots), name, data)
               ? 0
               : -1;
}

static void *take_aligned(size_t bytes)
{
    const size_t alignment = the.subject.alignment < 64 ? 64 : the.subject.alignment;
    return aligned_alloc(alignment, (bytes / alignment + 1) * alignment);
}

const char *runner_open(const char *case_text, const char *kernel, const char *prefix,
                        const char *blas, const char *blas_prefix)
{
    const subject_options options = {.kernel = kernel,
                                     .prefix = prefix,
                                     .blas = blas,
                                     .blas_prefix = blas_prefix,
                                     .problem = &the.problem};
    runner_close();
    if (ref_case_parse(&the.problem, case_text, the.message, sizeof the.message) != 0 ||
        subject_open(&the.subject, &options, the.message, sizeof the.message) != 0) {
        return the.message;
    }
    the.packed = take_aligned(the.subject.packed_bytes);
    the.workspace = take_aligned(the.subject.workspace_bytes);
    return the.packed != NULL && the.workspace != NULL ? NULL : "out of memory";
}

void runner_close(void)
{
    free(the.packed);
    free(the.workspace);
    memset(&the, 0, sizeof the);
}

const char *runner_detail(void)
{
    return the.subject.detail;
}

const char *runner_core(void)
{
    return the.subject.core;
}

int runner_pack(void)
{
    return the.subject.pack != NULL ? the.subject.pack(&the.weights, the.packed) : ATTN_OK;
}

double runner_run(long calls)
{
    const double start = seconds_now();
    for (long i = 0; i < calls; i++) {
        const int status = the.subject.forward(the.packed, &the.args, the.workspace);
        if (status != ATTN_OK) {
            return -status;
        }
    }
    return seconds_now() - start;
}

enum { PRODUCT_TURNS = 40 };

static float sink[MACHINE_SINK], operands[MACHINE_PRODUCT_FLOATS];

double runner_product(void)
{
    for (size_t i = 0; operands[0] == 0.0F && i < MACHINE_PRODUCT_FLOATS; i++) {
        operands[i] = 1.0F / (float)(1 + i % 7);
    }
    machine_product(2, operands, sink); /* brings the operands back into L1 */
    const double start = seconds_now();
    const double flops = machine_product(PRODUCT_TURNS, operands, sink);
    return flops / (seconds_now() - start);
}

double runner_peak(void)
{
    static long turns = 100;
    double flops, seconds;
    do {
        const double start = seconds_now();
        flops = machine_fma(turns, sink);
        seconds = seconds_now() - start;
    } while (seconds < 5e-6 && (turns *= 2) > 0);
    return flops / seconds;
}
