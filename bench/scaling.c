/* How a kernel scales over threads, beside how the machine does.
 *   scaling KERNEL.so PREFIX THREADS [SECONDS]
 * Turns of: the FMA loop on one core and on THREADS pinned cores at once, the kernel on one thread
 * and on a pool of THREADS, between two L1-hot products on all cores. Those see states of the machine
 * that the FMA loop does not: a turn is good when both reach machine_floor of its FMA loops, and only
 * good turns count; SECONDS (2) grow up to fivefold until GOOD_TURNS are. A kernel scales perfectly
 * when its speed-up is that of the FMA loops. Every answer of the pool must have the bits of the
 * single thread's. Exit status 3 when one has not, 1 on anything else. */
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "attngen/threads.h"
#include "machine.h"
#include "samples.h"

enum {
    FMA_TURNS = 20000,
    PRODUCT_TURNS = 400,
    MAX_CPUS = 64,
    CALLS = 4, /* of a turn; the best counts */
    GOOD_TURNS = 15,
    MAX_TURNS = 5000,
    WRONG = 3
};

typedef int pack_function(const attn_weights *, void *);

static void stay_on(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

/* ---- What the machine does on several cores at once ---- */

typedef struct core_job {
    pthread_t thread;
    int cpu, is_product;
    atomic_int *waiting;
    double rate; /* flops per second */
} core_job;

static void *run_core(void *argument)
{
    core_job *const job = argument;
    static _Thread_local float sink[MACHINE_SINK], operands[MACHINE_PRODUCT_FLOATS];
    memset(operands, 0, sizeof operands);
    stay_on(job->cpu);
    atomic_fetch_sub(job->waiting, 1);
    while (atomic_load(job->waiting) > 0) {
    }
    const double start = seconds_now();
    const double flops = job->is_product ? machine_product(PRODUCT_TURNS, operands, sink)
                                         : machine_fma(FMA_TURNS, sink);
    job->rate = flops / (seconds_now() - start);
    return NULL;
}

/* Flops per second of `count` cores together; 0 when a thread cannot be started. */
static double core_rate(int is_product, int count, const int *cpus)
{
    core_job jobs[MAX_CPUS];
    atomic_int waiting;
    atomic_init(&waiting, count);
    double total = 0;
    for (int i = 0; i < count; i++) {
        jobs[i] = (core_job){.cpu = cpus[i], .is_product = is_product, .waiting = &waiting};
        if (pthread_create(&jobs[i].thread, NULL, run_core, &jobs[i]) != 0) {
            fprintf(stderr, "scaling: cannot start a thread\n");
            exit(1);
        }
    }
    for (int i = 0; i < count; i++) {
        pthread_join(jobs[i].thread, NULL);
        total += jobs[i].rate;
    }
    return total;
}

/* ---- The kernel ---- */

static float *random_floats(size_t count, float scale)
{
    float *const values = malloc((count + 1) * sizeof *values);
    uint32_t state = 12345;
    for (size_t i = 0; values != NULL && i < count; i++) {
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

static void *aligned(size_t bytes)
{
    void *const memory = aligned_alloc(4096, bytes / 4096 * 4096 + 4096);
    if (memory == NULL) {
        fprintf(stderr, "scaling: out of memory\n");
        exit(1);
    }
    return memset(memory, 0, bytes);
}

static double least(double a, double b)
{
    return a < b ? a : b;
}

static double most(double a, double b)
{
    return a > b ? a : b;
}

/* Flops per second of the FMA loops, seconds of the kernel, on one core and on all. */
typedef struct turn {
    double fma_one, fma_all, one, all;
    int is_good;
} turn;

/* Seconds of the best of CALLS calls. */
static double time_calls(attn_pool *pool, const attn_kernel *kernel, const void *packed,
                         const attn_args *args, void *workspace)
{
    double best = 0;
    for (int i = 0; i < CALLS; i++) {
        const double start = seconds_now();
        const attn_status status = attn_forward(pool, kernel, packed, args, workspace);
        const double seconds = seconds_now() - start;
        if (status.code != ATTN_OK) {
            fprintf(stderr, "scaling: %s\n", status.message);
            exit(1);
        }
        best = i == 0 ? seconds : least(best, seconds);
    }
    return best;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Of the good turns, of all where none is: best times, and the share of the FMA loops' speed-up, from
 * the best of each and as the median of the turns. */
static void report(const attn_kernel *kernel, int threads, const turn *turns, size_t count,
                   size_t good)
{
    static double shares[MAX_TURNS];
    turn best = {.one = 1e9, .all = 1e9};
    size_t used = 0;
    for (size_t i = 0; i < count; i++) {
        const turn *const t = &turns[i];
        if (good > 0 && !t->is_good) {
            continue;
        }
        best.one = least(best.one, t->one);
        best.all = least(best.all, t->all);
        best.fma_one = most(best.fma_one, t->fma_one);
        best.fma_all = most(best.fma_all, t->fma_all);
        shares[used++] = t->one / t->all / (t->fma_all / t->fma_one);
    }
    qsort(shares, used, sizeof shares[0], by_value);
    const double speed_up = best.one / best.all, loops = best.fma_all / best.fma_one;
    printf("%-10s %-7s %9.1f us alone, %9.1f us on %d threads: x%.3f, %.3f of the FMA loops' x%.3f "
           "(median %.3f); %zu of %zu turns good",
           kernel->name, kernel->isa, best.one * 1e6, best.all * 1e6, threads, speed_up,
           speed_up / loops, loops, shares[used / 2], good, count);
}

static int measure(const attn_kernel *kernel, pack_function *pack, int threads, const int *cpus,
                   double seconds)
{
    const size_t width =
        kernel->heads * (kernel->head_dim + kernel->v_head_dim) + kernel->d_model + kernel->kv_dim;
    const size_t floats = kernel->batch * (kernel->seq_len + kernel->kv_len) * width;
    float *const x = random_floats(floats, 1.0f), *const w = random_floats(width * width, 0.05f);
    float *const alone = aligned(kernel->y_elements * sizeof(float));
    float *const together = aligned(kernel->y_elements * sizeof(float));
    float *const probabilities = aligned(kernel->weights_elements * sizeof(float));
    float *const cache = aligned(2 * floats * sizeof(float));
    int32_t *const lengths = aligned(kernel->batch * sizeof *lengths);
    void *const packed = aligned(kernel->packed_bytes);
    attn_pool *pool = NULL;
    size_t bytes = 0;
    attn_workspace_bytes(kernel, (size_t)threads, &bytes);
    void *const workspace = aligned(bytes);
    const attn_weights weights = {w, w, w, w, w, w, w, w};
    if (x == NULL || w == NULL || attn_pool_create((size_t)threads, &pool).code != ATTN_OK ||
        (kernel->packed_bytes > 0 && (pack == NULL || pack(&weights, packed) != ATTN_OK))) {
        fprintf(stderr, "scaling: no memory, no thread or no weights\n");
        return 1;
    }
    for (size_t i = 0; i < kernel->batch; i++) {
        lengths[i] = (int32_t)kernel->kv_len;
    }
    attn_args args = {.x = x,
                      .context = x,
                      .q = x,
                      .k = x,
                      .v = x,
                      .kv_lengths = lengths,
                      .y = alone,
                      .weights = probabilities,
                      .k_cache = cache,
                      .v_cache = cache + floats};
    static turn turns[MAX_TURNS];
    size_t count = 0, good = 0;
    const double start = seconds_now();
    int differs = 0;
    for (;;) {
        const double elapsed = seconds_now() - start;
        if (count == MAX_TURNS ||
            (count >= 5 && elapsed > (good < GOOD_TURNS ? 5.0 : 1.0) * seconds)) {
            break;
        }
        turn *const t = &turns[count++];
        const double before = core_rate(1, threads, cpus);
        t->fma_one = core_rate(0, 1, cpus);
        t->fma_all = core_rate(0, threads, cpus);
        args.y = alone;
        t->one = time_calls(NULL, kernel, packed, &args, workspace);
        args.y = together;
        t->all = time_calls(pool, kernel, packed, &args, workspace);
        const double gate = least(before, core_rate(1, threads, cpus));
        t->is_good = gate >= machine_floor * t->fma_all;
        good += (size_t)t->is_good;
        differs |= memcmp(alone, together, kernel->y_elements * sizeof(float)) != 0;
    }
    attn_pool_destroy(pool);
    report(kernel, threads, turns, count, good);
    printf("; %s%s\n", differs ? "BITS DIFFER" : "same bits",
           kernel->cycles < ATTN_POOL_MIN_CYCLES ? "; short: one thread" : "");
    free(x);
    free(w);
    free(alone);
    free(together);
    free(probabilities);
    free(cache);
    free(lengths);
    free(packed);
    free(workspace);
    return differs ? WRONG : 0;
}

int main(int argc, char **argv)
{
    const int threads = argc >= 4 ? atoi(argv[3]) : 0;
    if (threads < 1 || threads > MAX_CPUS) {
        fprintf(stderr, "usage: scaling KERNEL.so PREFIX THREADS(1..%d) [SECONDS]\n", MAX_CPUS);
        return 2;
    }
    int cpus[MAX_CPUS], count = 0;
    cpu_set_t set;
    sched_getaffinity(0, sizeof set, &set);
    for (int cpu = 0; cpu < CPU_SETSIZE && count < threads; cpu++) {
        if (CPU_ISSET((size_t)cpu, &set)) {
            cpus[count++] = cpu;
        }
    }
    if (count < threads) {
        fprintf(stderr, "scaling: %d cores for %d threads\n", count, threads);
        return 1;
    }
    void *const library = dlopen(argv[1], RTLD_NOW);
    const attn_kernel *const kernel = library ? symbol(library, argv[2], "kernel") : NULL;
    if (kernel == NULL || kernel->abi != ATTN_KERNEL_ABI) {
        fprintf(stderr, "scaling: no kernel %s in %s\n", argv[2], argv[1]);
        return 1;
    }
    pack_function *pack;
    void *const pack_symbol = symbol(library, argv[2], "pack");
    memcpy(&pack, &pack_symbol, sizeof pack);
    return measure(kernel, pack, threads, cpus, argc > 4 ? strtod(argv[4], NULL) : 2.0);
}
