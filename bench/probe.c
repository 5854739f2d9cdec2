/* Measures one kernel, or a BLAS layer, on one case, and prints one JSON object.
 *   probe --case FILE (--kernel SO --prefix NAME | --blas SO [--blas-prefix P]) [options]
 *   probe --case FILE --truth FILE --truth-only      writes the answer for another machine
 *   probe --machine                                  FMA peak and load bandwidth alone
 * FILE of --case holds the case as tests/reference/ref_case.c reads it. Options:
 *   --truth FILE     double-precision answer, read when it is this case's, else computed and kept
 *   --seconds S      time to spend on samples (0.3); at least 5 good ones, within 4 times that
 *   --samples N      at most so many
 *   --cold N         also N single calls with emptied caches
 *   --seed N         of inputs and weights
 *   --fill SHARE     items with a length have this share of their keys (1)
 *   --logits FACTOR  multiplies the queries, and so all logits (1)
 *   --cpu N          run there; without it where the process happens to be
 * Exit status: 0 measured and right, 3 the output is wrong (nothing was timed), 1 anything else. */
#include <math.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz/inputs.h"
#include "machine.h"
#include "reference/ref_case.h"
#include "reference/reference.h"
#include "samples.h"
#include "subject.h"
#include "truth.h"

enum {
    FORMAT = 1,
    FAILED = 1,
    WRONG = 3,
    MIN_GOOD = 5,
    MAX_COLD = 200,
    PRODUCT_TURNS = 40,
    EVICT_BYTES = 128 << 20,
    MIN_LOAD_BYTES = 4 << 10,
    ONE_LOAD_BYTES = 100000, /* at least, of a timed pass */
    MAX_LOAD_BYTES = 128 << 20,
};

static const double BATCH_SECONDS = 60e-6; /* calls of one sample, shorter kernels several times */

typedef struct options {
    const char *case_file, *truth_file;
    subject_options subject;
    int truth_only, machine_only;
    double seconds, fill, logits;
    size_t samples, cold;
    uint64_t seed;
    long cpu;
} options;

typedef struct session {
    options o;
    char case_text[4096];
    ref_case problem;
    input_set inputs;
    ref_result truth;
    subject subject;
    void *packed, *workspace;
    float *y, *weights, *first_y;
    double first_call, pack_seconds;
    double worst, max_error, max_output; /* worst: error / tolerance */
    samples timed;
    double cold[MAX_COLD];
    double load_rate; /* bytes per second at the size of this call's traffic */
    size_t traffic;
} session;

static float sink[MACHINE_SINK], operands[MACHINE_PRODUCT_FLOATS];

static int fail(const char *format, const char *what)
{
    fprintf(stderr, "probe: ");
    fprintf(stderr, format, what);
    fprintf(stderr, "\n");
    return FAILED;
}

/* ---------------------------------------------------------------------------------------------- */
/* The machine                                                                                    */
/* ---------------------------------------------------------------------------------------------- */

static double rate_of_peak(void)
{
    static long turns = 200;
    for (;;) {
        const double start = seconds_now();
        const double flops = machine_fma(turns, sink);
        const double seconds = seconds_now() - start;
        if (seconds > 5e-6) {
            return flops / seconds;
        }
        turns *= 2; /* a faster machine than expected */
    }
}

static double rate_of_product(void)
{
    machine_product(2, operands, sink); /* brings the operands back into L1 */
    const double start = seconds_now();
    const double flops = machine_product(PRODUCT_TURNS, operands, sink);
    return flops / (seconds_now() - start);
}

/* Best rate of reading `bytes`, between turns of the gate as kernels are: what it takes of L2 and of
 * the time to come back to full speed is 2 to 4 % of a pass over some megabytes. 0 without memory. */
static double rate_of_load(size_t bytes)
{
    /* machine_load reads whole turns of several vectors: less than one would be nothing. */
    const size_t floats = (bytes < MIN_LOAD_BYTES ? MIN_LOAD_BYTES : bytes) / sizeof(float);
    float *memory = aligned_alloc(64, (floats * sizeof(float) / 64 + 1) * 64);
    double best = 0.0;
    for (size_t i = 0; memory != NULL && i < floats; i++) {
        memory[i] = 1.0F;
    }
    const double end = seconds_now() + 0.02;
    for (int turn = 0; memory != NULL && (turn < 5 || seconds_now() < end); turn++) {
        (void)rate_of_peak();
        (void)rate_of_product();
        if (bytes < ONE_LOAD_BYTES) {
            machine_load(memory, floats, sink); /* what the gate has put out of L1 comes back */
        }
        const double start = seconds_now();
        double done = 0.0;
        do {
            done += machine_load(memory, floats, sink);
        } while (done < ONE_LOAD_BYTES);
        const double rate = done / (seconds_now() - start);
        best = rate > best ? rate : best;
    }
    free(memory);
    return best;
}

static int print_machine(void)
{
    double peak = 0.0, product = 0.0;
    const double end = seconds_now() + 0.3;
    while (seconds_now() < end) {
        peak = fmax(peak, rate_of_peak());
        product = fmax(product, rate_of_product());
    }
    printf("{\n  \"format\": %d,\n  \"peak_gflops\": %.6g,\n  \"product_gflops\": %.6g,\n"
           "  \"load\": [",
           FORMAT, peak * 1e-9, product * 1e-9);
    for (size_t bytes = 16 << 10; bytes <= MAX_LOAD_BYTES; bytes *= 2) {
        printf("%s\n    {\"bytes\": %zu, \"gbytes_per_s\": %.6g}", bytes > 16 << 10 ? "," : "",
               bytes, rate_of_load(bytes) * 1e-9);
    }
    printf("\n  ]\n}\n");
    return 0;
}

/* The core this process will stay on, so that samples are of one core's caches. A core that was asked
 * for (cpu >= 0) must be it. */
static int pin(long cpu)
{
#ifdef __linux__
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)(cpu >= 0 ? cpu : sched_getcpu()), &set);
    if (sched_setaffinity(0, sizeof set, &set) == 0 || cpu < 0) {
        return 0;
    }
#else
    if (cpu < 0) {
        return 0;
    }
#endif
    char text[32];
    snprintf(text, sizeof text, "%ld", cpu);
    return fail("cannot stay on CPU %s", text);
}

/* ---------------------------------------------------------------------------------------------- */
/* Set-up                                                                                         */
/* ---------------------------------------------------------------------------------------------- */

static int read_case(session *s)
{
    char message[256];
    FILE *file = s->o.case_file != NULL ? fopen(s->o.case_file, "r") : NULL;
    const char *line = file != NULL ? fgets(s->case_text, sizeof s->case_text, file) : NULL;
    if (file != NULL) {
        fclose(file);
    }
    if (line == NULL) {
        return fail("no case in %s", s->o.case_file != NULL ? s->o.case_file : "(--case)");
    }
    return ref_case_parse(&s->problem, s->case_text, message, sizeof message) == 0
               ? 0
               : fail("%s", message);
}

/* Keys of an item: the share that was asked for, the new tokens of a cache at least. */
static int32_t item_length(const session *s)
{
    const double share = s->o.fill * (double)s->problem.kv_len;
    const size_t least = s->problem.cache == REF_CACHE_APPEND ? s->problem.seq_len : 0;
    const size_t length = (size_t)(share + 0.5);
    return (int32_t)(length < least ? least : length);
}

static void scale(float *values, size_t count, double factor)
{
    for (size_t i = 0; i < count; i++) {
        values[i] = (float)((double)values[i] * factor);
    }
}

/* Weights and inputs as the tests draw them, queries scaled where they are made or given; every item
 * of the same length. */
static int fill_inputs(session *s)
{
    if (input_alloc(&s->inputs, &s->problem) != 0) {
        return fail("out of memory for %s", "the inputs");
    }
    input_fill(&s->inputs, &s->problem, INPUT_NORMAL, s->o.seed);
    const ref_sizes *n = &s->inputs.sizes;
    scale(s->inputs.q, n->q, s->o.logits);
    scale(s->inputs.q_weight, n->q_weight, s->o.logits);
    scale(s->inputs.q_bias, n->q_bias, s->o.logits);
    for (size_t b = 0; b < s->inputs.sizes.kv_lengths; b++) {
        s->inputs.kv_lengths[b] = item_length(s);
    }
    return 0;
}

static void *take_aligned(size_t alignment, size_t bytes)
{
    return aligned_alloc(alignment, (bytes / alignment + 1) * alignment);
}

static int prepare(session *s)
{
    char message[512];
    const ref_sizes *n = &s->inputs.sizes;
    s->o.subject.problem = &s->problem;
    if (subject_open(&s->subject, &s->o.subject, message, sizeof message) != 0) {
        return fail("%s", message);
    }
    const size_t alignment = s->subject.alignment < 64 ? 64 : s->subject.alignment;
    s->packed = take_aligned(alignment, s->subject.packed_bytes);
    s->workspace = take_aligned(alignment, s->subject.workspace_bytes);
    s->y = malloc((n->y + 1) * sizeof *s->y);
    s->first_y = malloc((n->y + 1) * sizeof *s->first_y);
    s->weights = malloc((n->weights + 1) * sizeof *s->weights);
    if (!s->packed || !s->workspace || !s->y || !s->first_y || !s->weights) {
        return fail("out of memory for %s", "the kernel");
    }
    const double start = seconds_now();
    if (s->subject.packed_bytes > 0 &&
        (s->subject.pack == NULL || s->subject.pack(&s->inputs.weights, s->packed) != 0)) {
        return fail("packing failed for %s", s->subject.name);
    }
    s->pack_seconds = seconds_now() - start;
    /* What one call has to read at least once. */
    s->traffic = (s->subject.packed_bytes != 0 && s->o.subject.blas == NULL
                      ? s->subject.packed_bytes
                      : sizeof(float) * (n->q_weight + n->k_weight + n->v_weight + n->o_weight +
                                         n->q_bias + n->k_bias + n->v_bias + n->o_bias)) +
                 sizeof(float) * (n->x + n->context + n->q + n->k + n->v + n->k_cache + n->v_cache +
                                  n->mask_add) +
                 n->mask_keep + n->key_keep;
    return 0;
}

static attn_args arguments(const session *s)
{
    attn_args args = s->inputs.args;
    args.y = s->y;
    args.weights = s->weights;
    return args;
}

/* ---------------------------------------------------------------------------------------------- */
/* Judging and timing                                                                             */
/* ---------------------------------------------------------------------------------------------- */

static void scan_errors(session *s)
{
    for (size_t i = 0; i < s->inputs.sizes.y; i++) {
        const double want = s->truth.y[i], error = fabs((double)s->y[i] - want);
        s->max_error = error > s->max_error || isnan(error) ? error : s->max_error;
        s->max_output = fmax(s->max_output, fabs(want));
        s->worst = fmax(s->worst, s->truth.y_tol[i] > 0.0 ? error / s->truth.y_tol[i] : 0.0);
    }
}

/* 0 when outputs are right. */
static int judge(session *s)
{
    const ref_sizes *n = &s->inputs.sizes;
    double worst = 0.0;
    scan_errors(s);
    const size_t y_bad = ref_compare(s->y, s->truth.y, s->truth.y_tol, n->y, 0, &worst);
    const size_t w_bad =
        ref_compare(s->weights, s->truth.weights, s->truth.weights_tol, n->weights, 0, &worst);
    const size_t k_bad = ref_compare(s->inputs.k_cache, s->truth.k_cache, s->truth.k_cache_tol,
                                     n->k_cache, 0, &worst);
    const size_t v_bad = ref_compare(s->inputs.v_cache, s->truth.v_cache, s->truth.v_cache_tol,
                                     n->v_cache, 0, &worst);
    return y_bad == n->y && w_bad == n->weights && k_bad == n->k_cache && v_bad == n->v_cache
               ? 0
               : WRONG;
}

static int call_once(session *s, const attn_args *args)
{
    return s->subject.forward(s->packed, args, s->workspace);
}

/* One sample: `calls` calls between two turns of the gate. */
static sample take_sample(session *s, const attn_args *args, size_t calls)
{
    const core_use start_of_use = core_use_now();
    const double before = rate_of_product();
    if (calls > 1) {
        call_once(s, args); /* what the gate has put out of L1 comes back */
    }
    const double start = seconds_now();
    for (size_t i = 0; i < calls; i++) {
        call_once(s, args);
    }
    const double seconds = (seconds_now() - start) / (double)calls;
    const double after = rate_of_product();
    s->timed.best_gate = fmax(s->timed.best_gate, fmax(before, after));
    s->timed.best_peak = fmax(s->timed.best_peak, rate_of_peak());
    return (sample){seconds, fmin(before, after), core_was_shared(start_of_use, core_use_now())};
}

static size_t choose_calls(session *s, const attn_args *args)
{
    size_t calls = 1;
    for (;;) {
        const double start = seconds_now();
        for (size_t i = 0; i < calls; i++) {
            call_once(s, args);
        }
        const double seconds = seconds_now() - start;
        if (seconds >= BATCH_SECONDS / 2.0 || calls > 1000000) {
            return seconds >= BATCH_SECONDS ? calls : 2 * calls;
        }
        calls *= 2;
    }
}

static size_t time_calls(session *s, const attn_args *args)
{
    const size_t calls = s->first_call < BATCH_SECONDS ? choose_calls(s, args) : 1;
    call_once(s, args);
    for (int i = 0; i < 20; i++) {
        s->timed.best_gate = fmax(s->timed.best_gate, rate_of_product());
        s->timed.best_peak = fmax(s->timed.best_peak, rate_of_peak());
    }
    const double start = seconds_now();
    while (s->timed.count < s->o.samples) {
        s->timed.all[s->timed.count++] = take_sample(s, args, calls);
        const double spent = seconds_now() - start;
        if (s->timed.count >= MIN_GOOD && spent > s->o.seconds &&
            (spent > 4.0 * s->o.seconds ||
             samples_count(&s->timed, machine_floor, SAMPLE_GOOD) >= MIN_GOOD)) {
            break;
        }
    }
    return calls;
}

/* Single calls after a walk through more memory than the caches hold: neither code nor data are in
 * L1 or L2, and in L3 only where it is larger than that. */
static int time_cold(session *s, const attn_args *args)
{
    unsigned char *memory = calloc(EVICT_BYTES, 1);
    if (memory == NULL) {
        return fail("out of memory for %s", "emptying the caches");
    }
    for (size_t i = 0; i < s->o.cold; i++) {
        for (size_t at = 0; at < EVICT_BYTES; at += 64) {
            memory[at] = (unsigned char)(memory[at] + 1 + i);
        }
        (void)seconds_now();
        const double start = seconds_now();
        call_once(s, args);
        s->cold[i] = seconds_now() - start;
    }
    free(memory);
    return 0;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double micros(double seconds)
{
    return seconds * 1e6;
}

/* JSON strings: what libraries say about themselves has no control characters worth keeping. */
static void print_text(const char *key, const char *text)
{
    printf("  \"%s\": \"", key);
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\') {
            putchar('\\');
        }
        putchar((unsigned char)*text < 32 ? ' ' : *text);
    }
    printf("\",\n");
}

static void print_number(const char *key, double value)
{
    if (isfinite(value)) {
        printf("  \"%s\": %.9g,\n", key, value);
    } else {
        printf("  \"%s\": null,\n", key);
    }
}

static void print_size(const char *key, size_t value)
{
    printf("  \"%s\": %zu,\n", key, value);
}

static void print_identity(const session *s)
{
    printf("{\n  \"format\": %d,\n", FORMAT);
    print_text("name", s->subject.name);
    if (s->o.subject.blas != NULL) {
        print_text("blas_library", s->subject.detail);
        print_text("core", s->subject.core);
    } else {
        print_text("isa", s->subject.isa);
    }
    print_size("packed_bytes", s->subject.packed_bytes);
    print_size("workspace_bytes", s->subject.workspace_bytes);
    print_size("traffic_bytes", s->traffic);
    print_number("pack_us", micros(s->pack_seconds));
    print_number("first_call_us", micros(s->first_call));
    print_number("max_error", s->max_error);
    print_number("max_output", s->max_output);
    print_number("tolerance_share", s->worst);
}

static void print_timing(session *s, size_t calls)
{
    const size_t good = samples_count(&s->timed, machine_floor, SAMPLE_GOOD);
    const size_t disturbed = samples_count(&s->timed, machine_floor, SAMPLE_DISTURBED);
    const int all_disturbed = disturbed == s->timed.count;
    print_size("calls_per_sample", calls);
    print_number("peak_gflops", s->timed.best_peak * 1e-9);
    print_number("product_gflops", s->timed.best_gate * 1e-9);
    print_number("gate_share", GATE_SHARE);
    print_number("gate_floor", machine_floor);
    print_number("load_gbytes_per_s", s->load_rate * 1e-9);
    print_size("good_samples", good);
    print_size("slow_samples", s->timed.count - good - disturbed);
    print_size("disturbed_samples", disturbed);
    printf("  \"all_disturbed\": %s,\n", all_disturbed ? "true" : "false");
    samples_print(stdout, &s->timed, machine_floor, SAMPLE_GOOD, "");
    samples_print(stdout, &s->timed, machine_floor, all_disturbed ? SAMPLE_DISTURBED : SAMPLE_SLOW,
                  "slow_");
    if (s->o.cold > 0) {
        qsort(s->cold, s->o.cold, sizeof s->cold[0], by_value);
        print_number("cold_best_us", micros(s->cold[0]));
        print_number("cold_median_us", micros(s->cold[s->o.cold / 2]));
    }
}

static int measure(session *s)
{
    const attn_args args = arguments(s);
    const double start = seconds_now();
    const int status = call_once(s, &args);
    s->first_call = seconds_now() - start;
    if (status != ATTN_OK) {
        char text[32];
        snprintf(text, sizeof text, "%d", status);
        return fail("forward returned %s", text);
    }
    const int verdict = judge(s);
    size_t calls = 0;
    if (verdict == 0) {
        memcpy(s->first_y, s->y, s->inputs.sizes.y * sizeof *s->y);
        calls = time_calls(s, &args);
        if (memcmp(s->first_y, s->y, s->inputs.sizes.y * sizeof *s->y) != 0) {
            return fail("%s changed its answer between calls", s->subject.name);
        }
        s->load_rate = rate_of_load(s->traffic < MAX_LOAD_BYTES ? s->traffic : MAX_LOAD_BYTES);
        if (s->o.cold > 0 && time_cold(s, &args) != 0) {
            return FAILED;
        }
    }
    print_identity(s);
    if (verdict == 0) {
        print_timing(s, calls);
    }
    printf("  \"right\": %s\n}\n", verdict == 0 ? "true" : "false");
    return verdict;
}

/* ---------------------------------------------------------------------------------------------- */
/* Command line                                                                                   */
/* ---------------------------------------------------------------------------------------------- */

static int parse_options(options *o, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i];
        if (strcmp(name, "--truth-only") == 0) {
            o->truth_only = 1;
            continue;
        } else if (strcmp(name, "--machine") == 0) {
            o->machine_only = 1;
            continue;
        }
        const char *value = i + 1 < argc ? argv[++i] : NULL;
        if (value == NULL) {
            return fail("%s needs a value or is unknown", name);
        } else if (strcmp(name, "--case") == 0) {
            o->case_file = value;
        } else if (strcmp(name, "--truth") == 0) {
            o->truth_file = value;
        } else if (strcmp(name, "--kernel") == 0) {
            o->subject.kernel = value;
        } else if (strcmp(name, "--prefix") == 0) {
            o->subject.prefix = value;
        } else if (strcmp(name, "--blas") == 0) {
            o->subject.blas = value;
        } else if (strcmp(name, "--blas-prefix") == 0) {
            o->subject.blas_prefix = value;
        } else if (strcmp(name, "--seconds") == 0) {
            o->seconds = strtod(value, NULL);
        } else if (strcmp(name, "--samples") == 0) {
            o->samples = strtoul(value, NULL, 10);
        } else if (strcmp(name, "--cold") == 0) {
            o->cold = strtoul(value, NULL, 10);
        } else if (strcmp(name, "--seed") == 0) {
            o->seed = strtoull(value, NULL, 10);
        } else if (strcmp(name, "--fill") == 0) {
            o->fill = strtod(value, NULL);
        } else if (strcmp(name, "--logits") == 0) {
            o->logits = strtod(value, NULL);
        } else if (strcmp(name, "--cpu") == 0) {
            o->cpu = strtol(value, NULL, 10);
        } else {
            return fail("unknown option %s", name);
        }
    }
    if (o->samples < MIN_GOOD || o->samples > SAMPLES_MAX || o->cold > MAX_COLD ||
        !(o->fill > 0.0 && o->fill <= 1.0) || !(o->logits > 0.0 && o->logits <= 1e6) ||
        (o->subject.kernel != NULL && o->subject.prefix == NULL)) {
        return fail("bad options: %s", "--samples 5..2000, --cold 0..200, --fill above 0 and up to "
                                       "1, --logits above 0 and up to 1e6, --kernel with --prefix");
    }
    return 0;
}

int main(int argc, char **argv)
{
    static session s;
    s.o = (options){
        .seconds = 0.3, .fill = 1.0, .logits = 1.0, .samples = SAMPLES_MAX, .seed = 1, .cpu = -1};
    if (parse_options(&s.o, argc, argv) != 0) {
        return FAILED;
    }
    for (size_t i = 0; i < MACHINE_PRODUCT_FLOATS; i++) {
        operands[i] = 1.0F / (float)(1 + i % 7);
    }
    if (pin(s.o.cpu) != 0) {
        return FAILED;
    }
    if (s.o.machine_only) {
        return print_machine();
    }
    if (read_case(&s) != 0 || fill_inputs(&s) != 0) {
        return FAILED;
    }
    if (truth_get(&s.truth, &s.problem, &s.inputs.weights, &s.inputs.args, s.case_text, s.o.seed,
                  s.o.truth_file) != 0) {
        return fail("out of memory for %s", "the reference");
    }
    if (s.o.truth_only) {
        return 0;
    }
    return prepare(&s) == 0 ? measure(&s) : FAILED;
}
