/* Times one kernel against the FMA peak of its instruction set, in one process, alternating.
 *   measure KERNEL.so PREFIX FLOPS
 * Every sample is one call between two runs of the FMA loop; prints best and median time, and each as
 * a share of the best peak. Inputs are random; answers are the tests' business. */
#include <attngen/kernel.h>
#include <dlfcn.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "peak.h"

enum { SAMPLES = 301, PEAK_TURNS = 20000 };

typedef int pack_function(const attn_weights *, void *);

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static float *random_floats(size_t count, float scale)
{
    float *const values = malloc((count + 1) * sizeof *values);
    uint32_t state = 12345;
    for (size_t i = 0; values && i < count; i++) {
        state = state * 1664525u + 1013904223u;
        values[i] = scale * ((float)(state >> 8) / 8388608.0f - 1.0f);
    }
    return values;
}

static void *symbol(void *library, const char *prefix, const char *suffix)
{
    char name[160];
    snprintf(name, sizeof name, "%s_%s", prefix, suffix);
    return dlsym(library, name);
}

static double peak_once(double *best)
{
    float sink[16];
    const double start = now();
    const double flops = fma_peak_flops(PEAK_TURNS, sink);
    const double rate = flops / (now() - start);
    if (rate > *best)
        *best = rate;
    return sink[0];
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: measure KERNEL.so PREFIX FLOPS\n");
        return 2;
    }
    void *const library = dlopen(argv[1], RTLD_NOW);
    const attn_kernel *const kernel = library ? symbol(library, argv[2], "kernel") : NULL;
    if (!kernel || kernel->abi != ATTN_KERNEL_ABI) {
        fprintf(stderr, "measure: no kernel %s in %s\n", argv[2], argv[1]);
        return 1;
    }
    pack_function *pack;
    void *const pack_symbol = symbol(library, argv[2], "pack");
    memcpy(&pack, &pack_symbol, sizeof pack);

    const size_t width =
        kernel->heads * (kernel->head_dim + kernel->v_head_dim) + kernel->d_model + kernel->kv_dim;
    const size_t rows = kernel->batch * (kernel->seq_len + kernel->kv_len);
    float *const x = random_floats(rows * width, 1.0f);
    float *const w = random_floats(width * width, 0.05f);
    float *const y = malloc(kernel->y_elements * sizeof *y);
    float *const probabilities = malloc((kernel->weights_elements + 1) * sizeof *probabilities);
    int32_t *const lengths = malloc(kernel->batch * sizeof *lengths);
    void *const packed = aligned_alloc(64, kernel->packed_bytes / 64 * 64 + 64);
    void *const workspace = aligned_alloc(64, kernel->workspace_bytes / 64 * 64 + 64);
    if (!x || !w || !y || !probabilities || !lengths || !packed || !workspace) {
        fprintf(stderr, "measure: out of memory\n");
        return 1;
    }
    for (size_t i = 0; i < kernel->batch; i++)
        lengths[i] = (int32_t)kernel->kv_len;
    const attn_weights weights = {w, w, w, w, w, w, w, w};
    if (kernel->packed_bytes > 0 && (!pack || pack(&weights, packed) != ATTN_OK)) {
        fprintf(stderr, "measure: packing failed\n");
        return 1;
    }
    const attn_args args = {.x = x,
                            .context = x,
                            .q = x,
                            .k = x,
                            .v = x,
                            .kv_lengths = lengths,
                            .y = y,
                            .weights = probabilities};

    static double samples[SAMPLES];
    double peak = 0.0, sink = 0.0;
    for (int i = 0; i < SAMPLES; i++) {
        sink += peak_once(&peak);
        const double start = now();
        const int status = kernel->forward(packed, &args, workspace);
        samples[i] = now() - start;
        if (status != ATTN_OK) {
            fprintf(stderr, "measure: forward returned %d (masks other than lengths need input)\n",
                    status);
            return 1;
        }
    }
    qsort(samples, SAMPLES, sizeof samples[0], by_value);
    const double flops = strtod(argv[3], NULL);
    printf("%-8s best %9.2f us, %5.1f %% of the FMA peak; median %9.2f us, %5.1f %%; peak %.1f "
           "GF/s%s\n",
           kernel->isa, samples[0] * 1e6, 100.0 * flops / samples[0] / peak,
           samples[SAMPLES / 2] * 1e6, 100.0 * flops / samples[SAMPLES / 2] / peak, peak * 1e-9,
           isnan(sink) ? " (the FMA loop broke)" : "");
    free(x);
    free(w);
    free(y);
    free(probabilities);
    free(lengths);
    free(packed);
    free(workspace);
    dlclose(library);
    return 0;
}
