/* The demo: a trained attention model whose attention layer is a kernel that attngen generated.
 *
 *   demo check WEIGHTS.safetensors HEATMAP.svg
 *       answers held-out sequences, compares every output with a double-precision reference and
 *       draws the attention weights; exits 1 when the accuracy is below 99 % or an error too large
 *   demo time WEIGHTS.safetensors
 *       measures the time per call against OpenBLAS, once both have given the right results */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "attngen/buffer.h"
#include "attngen/cpu.h"
#include "attngen/mapping.h"
#include "heatmap.h"
#include "layers.h"
#include "recall.h"
#include "task.h"

#ifdef __clang__
#define COMPILER __VERSION__
#else
#define COMPILER "gcc " __VERSION__
#endif

enum {
    HELD_OUT_CALLS = 250, /* of one batch each */
    SHOWN = 5,
    PICTURE_PAIRS = 8,
    SAMPLES = 41 /* timings of each side */
};

/* train.py draws from another generator with seed 1. Of the 1e10 sequences of 4 pairs, let alone
 * longer ones, it has seen under 3e4: that one comes up again here is a matter of 3e-4. */
static const uint64_t HELD_OUT_SEED = 20260101;
static const double WANTED_ACCURACY = 0.99;
static const double SAMPLE_SECONDS = 5e-3;

/* One batch: inputs, and what each of the three implementations makes of them. */
typedef struct batch {
    sequence *sequences; /* [B] */
    int32_t *lengths;    /* [B] */
    float *x;            /* [B,L,E] */
    float *y;            /* [B,L,E], kernel */
    float *weights;      /* [B,H,L,L], kernel */
    float *blas_y;
    float *blas_weights;
    double *true_y;
    double *true_weights;
} batch;

typedef struct demo {
    const attn_kernel *kernel;
    attn_loaded_weights loaded;
    embeddings model;
    attn_buffer packed;
    attn_buffer workspace;
    layer layer;
    blas_layer *blas;
    batch batch;
} demo;

/* Largest differences to the reference, and the largest output. */
typedef struct errors {
    double kernel_y, kernel_weights, blas_y, blas_weights, output;
} errors;

static _Noreturn void stop(const char *message)
{
    fprintf(stderr, "demo: %s\n", message);
    exit(EXIT_FAILURE);
}

static void check(attn_status status)
{
    if (status.code != ATTN_OK) {
        stop(status.message);
    }
}

static void check_code(int code)
{
    if (code != ATTN_OK) {
        stop(attn_error_text(code));
    }
}

static void *allocate(size_t count, size_t size)
{
    void *memory = calloc(count, size);
    if (memory == NULL) {
        stop("out of memory");
    }
    return memory;
}

/* ---- setting up ---- */

/* Every variant of the bundle packs for itself. Which there are depends on the architecture. */
static int pack(const attn_kernel *kernel, const attn_weights *weights, void *packed)
{
#ifdef RECALL_AVX512_PACKED_BYTES
    if (kernel == &recall_avx512_kernel) {
        return recall_avx512_pack(weights, packed);
    }
#endif
#ifdef RECALL_AVX2_PACKED_BYTES
    if (kernel == &recall_avx2_kernel) {
        return recall_avx2_pack(weights, packed);
    }
#endif
#ifdef RECALL_NEON_PACKED_BYTES
    if (kernel == &recall_neon_kernel) {
        return recall_neon_pack(weights, packed);
    }
#endif
    return recall_scalar_pack(weights, packed);
}

static void pack_weights(demo *d)
{
    check(attn_buffer_alloc(&d->packed, d->kernel->packed_bytes, d->kernel->alignment));
    check(attn_buffer_alloc(&d->workspace, d->kernel->workspace_bytes, d->kernel->alignment));
    check_code(pack(d->kernel, &d->loaded.weights, d->packed.data));
}

static void load(demo *d, const char *path)
{
    attn_safetensors *file;
    attn_layer plain = {.family = NULL};
    check(attn_safetensors_open(path, ATTN_OPEN_READ, &file));
    check(attn_weights_load(file, &plain, d->kernel, &d->loaded));
    check(load_embeddings(file, &d->model));
    attn_safetensors_close(file);
    if (d->kernel->seq_len != SEQ_LEN || d->kernel->d_model != D_MODEL) {
        stop("demo.lua and task.h do not fit together");
    }
}

static void allocate_batch(batch *b, const attn_kernel *k)
{
    b->sequences = allocate(k->batch, sizeof *b->sequences);
    b->lengths = allocate(k->batch, sizeof *b->lengths);
    b->x = allocate(k->batch * k->seq_len * k->d_model, sizeof *b->x);
    b->y = allocate(k->y_elements, sizeof *b->y);
    b->weights = allocate(k->weights_elements, sizeof *b->weights);
    b->blas_y = allocate(k->y_elements, sizeof *b->blas_y);
    b->blas_weights = allocate(k->weights_elements, sizeof *b->blas_weights);
    b->true_y = allocate(k->y_elements, sizeof *b->true_y);
    b->true_weights = allocate(k->weights_elements, sizeof *b->true_weights);
}

static void free_batch(batch *b)
{
    free(b->sequences);
    free(b->lengths);
    free(b->x);
    free(b->y);
    free(b->weights);
    free(b->blas_y);
    free(b->blas_weights);
    free(b->true_y);
    free(b->true_weights);
}

static void set_up(demo *d, const char *weights_path)
{
    *d = (demo){0};
    check(attn_select(recall_variants, RECALL_VARIANTS, attn_cpu_features(), &d->kernel));
    load(d, weights_path);
    pack_weights(d);
    const attn_kernel *k = d->kernel;
    d->layer = (layer){.batch = k->batch,
                       .tokens = k->seq_len,
                       .d_model = k->d_model,
                       .heads = k->heads,
                       .head_dim = k->head_dim,
                       .weights = d->loaded.weights};
    d->blas = blas_layer_new(&d->layer);
    if (d->blas == NULL) {
        stop("out of memory");
    }
    allocate_batch(&d->batch, k);
}

static void tear_down(demo *d)
{
    free_batch(&d->batch);
    blas_layer_free(d->blas);
    attn_buffer_free(&d->workspace);
    attn_buffer_free(&d->packed);
    attn_weights_free(&d->loaded);
}

/* ---- running ---- */

static void embed_batch(demo *d)
{
    for (size_t i = 0; i < d->kernel->batch; i++) {
        d->batch.lengths[i] = d->batch.sequences[i].length;
        embed_sequence(&d->model, &d->batch.sequences[i], d->batch.x + i * SEQ_LEN * D_MODEL);
    }
}

static void draw_batch(demo *d, uint64_t *rng)
{
    for (size_t i = 0; i < d->kernel->batch; i++) {
        draw_any_sequence(rng, &d->batch.sequences[i]);
    }
    embed_batch(d);
}

static void run_kernel(demo *d)
{
    attn_args args = {.x = d->batch.x,
                      .kv_lengths = d->batch.lengths,
                      .y = d->batch.y,
                      .weights = d->batch.weights};
    check_code(d->kernel->forward(d->packed.data, &args, d->workspace.data));
}

static void run_blas(demo *d)
{
    blas_forward(d->blas, d->batch.x, d->batch.lengths, d->batch.blas_y, d->batch.blas_weights);
}

static void run_reference(demo *d, bool uniform)
{
    if (!reference_forward(&d->layer, uniform, d->batch.x, d->batch.lengths, d->batch.true_y,
                           d->batch.true_weights)) {
        stop("out of memory");
    }
}

/* The model's answer to sequence i of the batch, from the layer's output at its last token. */
static int answer_of(const demo *d, size_t i)
{
    size_t last = i * SEQ_LEN + (size_t)d->batch.sequences[i].length - 1;
    return best_answer(&d->model, d->batch.y + last * D_MODEL);
}

static size_t count_right(const demo *d)
{
    size_t right = 0;
    for (size_t i = 0; i < d->kernel->batch; i++) {
        right += answer_of(d, i) == d->batch.sequences[i].answer;
    }
    return right;
}

/* ---- held-out sequences ---- */

static void show_answers(const demo *d)
{
    for (size_t i = 0; i < SHOWN && i < d->kernel->batch; i++) {
        const sequence *s = &d->batch.sequences[i];
        char text[SEQUENCE_TEXT_BYTES];
        int answer = answer_of(d, i);
        printf("  %*s -> %d  %s\n", SEQUENCE_TEXT_BYTES - 1, sequence_text(s, text), answer,
               answer == s->answer ? "right" : "WRONG");
    }
}

/* NaN counts as infinitely wrong. */
static double largest_difference(const float *values, const double *truth, size_t count,
                                 double largest)
{
    for (size_t i = 0; i < count; i++) {
        double difference = fabs((double)values[i] - truth[i]);
        largest = isnan(difference) ? INFINITY : fmax(largest, difference);
    }
    return largest;
}

static void compare(demo *d, errors *e)
{
    const batch *b = &d->batch;
    size_t n = d->kernel->y_elements;
    size_t m = d->kernel->weights_elements;
    for (size_t i = 0; i < n; i++) {
        e->output = fmax(e->output, fabs(b->true_y[i]));
    }
    e->kernel_y = largest_difference(b->y, b->true_y, n, e->kernel_y);
    e->kernel_weights = largest_difference(b->weights, b->true_weights, m, e->kernel_weights);
    e->blas_y = largest_difference(b->blas_y, b->true_y, n, e->blas_y);
    e->blas_weights = largest_difference(b->blas_weights, b->true_weights, m, e->blas_weights);
}

/* Right answers when every token attends equally to all: what the task is worth without attention.
 * Overwrites the batch's outputs. */
static size_t count_right_without_attention(demo *d)
{
    run_reference(d, true);
    for (size_t i = 0; i < d->kernel->y_elements; i++) {
        d->batch.y[i] = (float)d->batch.true_y[i];
    }
    return count_right(d);
}

/* What float rounding may cost: a unit in the last place of `magnitude` for each term of the sums
 * that an output goes through. Anything beyond is a mistake. */
static double rounding_budget(const attn_kernel *k, double magnitude)
{
    size_t terms = k->d_model + k->head_dim + k->kv_len + k->heads * k->v_head_dim;
    return (double)terms * (double)FLT_EPSILON * magnitude;
}

static bool is_blas_right(const demo *d, const errors *e)
{
    return e->blas_y <= rounding_budget(d->kernel, e->output) &&
           e->blas_weights <= rounding_budget(d->kernel, 1);
}

/* At most twice their error, or 4 units in the last place of `magnitude`. */
static bool is_close(double ours, double theirs, double magnitude)
{
    return ours <= fmax(2 * theirs, 4 * (double)FLT_EPSILON * magnitude);
}

static bool is_kernel_right(const errors *e)
{
    return is_close(e->kernel_y, e->blas_y, e->output) &&
           is_close(e->kernel_weights, e->blas_weights, 1);
}

static void run_all(demo *d, errors *e)
{
    run_kernel(d);
    run_blas(d);
    run_reference(d, false);
    compare(d, e);
}

static void print_errors(const demo *d, const errors *e)
{
    printf("largest difference to the double reference (outputs up to %.1f, weights up to 1)\n",
           e->output);
    printf("  kernel            output %.2e, weights %.2e%s\n", e->kernel_y, e->kernel_weights,
           is_kernel_right(e) ? "" : "  TOO LARGE");
    printf("  OpenBLAS          output %.2e, weights %.2e%s\n", e->blas_y, e->blas_weights,
           is_blas_right(d, e) ? "" : "  TOO LARGE");
}

static bool answer_held_out(demo *d)
{
    uint64_t rng = HELD_OUT_SEED;
    size_t right = 0;
    size_t right_without = 0;
    errors e = {0};

    printf("\nThe first of the held-out sequences (pairs of key and value, then a key):\n");
    for (int call = 0; call < HELD_OUT_CALLS; call++) {
        draw_batch(d, &rng);
        run_all(d, &e);
        right += count_right(d);
        if (call == 0) {
            show_answers(d);
        }
        right_without += count_right_without_attention(d);
    }
    size_t count = HELD_OUT_CALLS * d->kernel->batch;
    double accuracy = (double)right / (double)count;
    printf("\naccuracy            %.2f %% (%zu of %zu held-out sequences)\n", 100 * accuracy, right,
           count);
    printf("  without attention %.2f %% (every weight equal)\n",
           100 * (double)right_without / (double)count);
    print_errors(d, &e);
    return accuracy >= WANTED_ACCURACY && is_kernel_right(&e) && is_blas_right(d, &e);
}

/* ---- time ---- */

/* This thread's CPU time: other programs on a busy machine do not count. */
static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Seconds per call over `calls` calls. */
static double time_calls(demo *d, void (*run)(demo *), size_t calls)
{
    double start = now();
    for (size_t i = 0; i < calls; i++) {
        run(d);
    }
    return (now() - start) / (double)calls;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, size_t count)
{
    qsort(values, count, sizeof *values, compare_doubles);
    return values[count / 2];
}

static size_t calls_per_sample(demo *d, void (*run)(demo *))
{
    time_calls(d, run, 20); /* warm up */
    return 1 + (size_t)(SAMPLE_SECONDS / time_calls(d, run, 20));
}

/* "model name" of /proc/cpuinfo, or the architecture where there is none. */
static void cpu_name(char *name, size_t size)
{
    struct utsname system;
    snprintf(name, size, "%s", uname(&system) == 0 ? system.machine : "unknown");
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[256];
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        char *value = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && value != NULL) {
            value[strcspn(value, "\n")] = '\0';
            snprintf(name, size, "%s", value + 2);
            break;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
}

/* Measures both on one batch, in turns so that both see the same machine. */
static void measure(demo *d, const char *what)
{
    double kernel[SAMPLES];
    double blas[SAMPLES];
    double ratio[SAMPLES];
    size_t kernel_calls = calls_per_sample(d, run_kernel);
    size_t blas_calls = calls_per_sample(d, run_blas);
    for (size_t i = 0; i < SAMPLES; i++) {
        kernel[i] = time_calls(d, run_kernel, kernel_calls);
        blas[i] = time_calls(d, run_blas, blas_calls);
        ratio[i] = blas[i] / kernel[i];
    }
    printf("  %-17s kernel %7.1f us, OpenBLAS %7.1f us, ratio %.2f\n", what,
           1e6 * median(kernel, SAMPLES), 1e6 * median(blas, SAMPLES), median(ratio, SAMPLES));
}

static bool benchmark(demo *d)
{
    char cpu[256];
    cpu_name(cpu, sizeof cpu);
    printf("CPU %s; compiler %s\n%s, core %s\n", cpu, COMPILER, blas_version(), blas_core());

    uint64_t rng = HELD_OUT_SEED;
    errors e = {0};
    draw_batch(d, &rng);
    run_all(d, &e);
    if (!is_kernel_right(&e) || !is_blas_right(d, &e)) {
        print_errors(d, &e);
        return false;
    }
    printf("CPU time per call of %zu sequences, one thread, medians of %d alternating samples\n",
           d->kernel->batch, SAMPLES);
    measure(d, "mixed lengths");
    for (size_t i = 0; i < d->kernel->batch; i++) {
        draw_sequence(&rng, MAX_PAIRS, &d->batch.sequences[i]);
    }
    embed_batch(d);
    measure(d, "no padding");
    return true;
}

/* ---- picture ---- */

static bool wants_colour(void)
{
    const char *terminal = getenv("TERM");
    return isatty(STDOUT_FILENO) && getenv("NO_COLOR") == NULL && terminal != NULL &&
           strcmp(terminal, "dumb") != 0;
}

static void draw_heatmap(demo *d, const char *svg_path)
{
    uint64_t rng = HELD_OUT_SEED + 1;
    draw_batch(d, &rng);
    sequence *s = &d->batch.sequences[0];
    draw_sequence(&rng, PICTURE_PAIRS, s);
    embed_batch(d);
    run_kernel(d);

    char labels[SEQ_LEN];
    char text[SEQUENCE_TEXT_BYTES];
    char caption[SEQUENCE_TEXT_BYTES + 32];
    heatmap map = {.heads = d->kernel->heads,
                   .tokens = (size_t)s->length,
                   .stride = SEQ_LEN,
                   .weights = d->batch.weights,
                   .labels = labels,
                   .caption = caption};
    for (int i = 0; i < s->length; i++) {
        labels[i] = token_char(s->tokens[i]);
        if (s->tokens[i] == s->tokens[s->length - 1] && i + 1 < s->length) {
            map.answer_column = (size_t)i + 1;
        }
    }
    snprintf(caption, sizeof caption, "%s the model answers %d", sequence_text(s, text),
             answer_of(d, 0));

    printf("\nAttention weights\n");
    heatmap_print(stdout, &map, wants_colour());
    if (!heatmap_save_svg(svg_path, &map)) {
        stop("cannot write the SVG file");
    }
    printf("\nThe same as a picture: %s\n", svg_path);
}

static bool check_answers(demo *d, const char *svg_path)
{
    printf("kernel %s: %zu sequences of up to %zu tokens, d_model %zu, %zu heads; "
           "%zu bytes of packed weights, %zu of workspace\n",
           d->kernel->name, d->kernel->batch, d->kernel->seq_len, d->kernel->d_model,
           d->kernel->heads, d->kernel->packed_bytes, d->kernel->workspace_bytes);
    bool good = answer_held_out(d);
    draw_heatmap(d, svg_path);
    return good;
}

int main(int argc, char **argv)
{
    bool checks = argc == 4 && strcmp(argv[1], "check") == 0;
    bool times = argc == 3 && strcmp(argv[1], "time") == 0;
    if (!checks && !times) {
        fprintf(stderr, "usage: demo check WEIGHTS.safetensors HEATMAP.svg\n"
                        "       demo time WEIGHTS.safetensors\n");
        return 2;
    }
    demo d;
    set_up(&d, argv[2]);
    bool good = checks ? check_answers(&d, argv[3]) : benchmark(&d);
    tear_down(&d);
    fflush(stdout);
    if (!good) {
        stop("FAILED: wrong answers, or results too far from the reference (see above)");
    }
    return EXIT_SUCCESS;
}
