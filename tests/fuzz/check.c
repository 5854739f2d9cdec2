/* Judges one compiled kernel; see check.h. */
#include "fuzz/check.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz/arena.h"
#include "fuzz/inputs.h"
#include "reference/reference.h"
#ifdef REF_WITH_BLAS
#include "reference/blas_path.h"
#endif

/* Everything one job needs while it runs. */
typedef struct session {
    const check_job *job;
    check_result *result;
    void *library;
    const attn_kernel *kernel;
    pack_function pack;
    ref_sizes sizes;
    input_set set;
    ref_result truth;
    arena memory;
    float *y, *weights;            /* outputs of the first call of a set */
    float *caches[ARENA_CACHES];   /* the same, of caches that grow */
    double *blas_y, *blas_weights; /* second opinion */
    float *blas_y32, *blas_weights32;
    double kernel_sum, blas_sum, scale_sum; /* squared errors, squared outputs */
} session;

int check_parse(check_job *job, const char *line, char *message, size_t message_size)
{
    const char *bar = strchr(line, '|');
    memset(job, 0, sizeof *job);
    if (bar == NULL ||
        sscanf(line, "%127s %31s %511s %127s %15s %zu %" SCNu64, job->label, job->group,
               job->object, job->prefix, job->isa, &job->sets, &job->seed) != 7) {
        snprintf(message, message_size, "bad job line: %.200s", line);
        return -1;
    }
    return ref_case_parse(&job->problem, bar + 1, message, message_size);
}

static int fail(session *s, const char *format, ...) __attribute__((format(printf, 2, 3)));

static int fail(session *s, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(s->result->message, sizeof s->result->message, format, list);
    va_end(list);
    return -1;
}

/* dlsym returns an object pointer; a function pointer has the same representation on POSIX. */
static void *find(const session *s, const char *suffix)
{
    char name[256];
    snprintf(name, sizeof name, "%s%s", s->job->prefix, suffix);
    return dlsym(s->library, name);
}

static uint32_t expected_tensors(const ref_case *c)
{
    uint32_t t = c->sdpa ? ATTN_T_QKV : ATTN_T_X;
    t |= c->cross ? ATTN_T_CONTEXT : 0;
    t |= c->queries != REF_QUERIES_ALL ? ATTN_T_X_KEYS : 0;
    t |= c->cache == REF_CACHE_STATIC ? ATTN_T_KV : 0;
    t |= c->cache == REF_CACHE_APPEND ? ATTN_T_CACHE : 0;
    t |= c->lengths ? ATTN_T_KV_LENGTHS : 0;
    t |= c->padding ? ATTN_T_KEY_KEEP : 0;
    t |= c->bool_mask ? ATTN_T_MASK_KEEP : 0;
    t |= c->additive ? ATTN_T_MASK_ADD : 0;
    t |= c->return_weights == REF_WEIGHTS_PER_HEAD ? ATTN_T_WEIGHTS_HEADS : 0;
    t |= c->return_weights == REF_WEIGHTS_MEAN ? ATTN_T_WEIGHTS_MEAN : 0;
    t |= c->q_bias ? ATTN_T_Q_BIAS : 0;
    t |= c->k_bias ? ATTN_T_K_BIAS : 0;
    t |= c->v_bias ? ATTN_T_V_BIAS : 0;
    t |= c->o_bias ? ATTN_T_O_BIAS : 0;
    t |= c->output_projection && !c->sdpa ? ATTN_T_O_WEIGHT : 0;
    return t;
}

static uint32_t expected_features(const char *isa)
{
    return strcmp(isa, "avx2") == 0     ? ATTN_CPU_AVX2
           : strcmp(isa, "avx512") == 0 ? ATTN_CPU_AVX512
           : strcmp(isa, "neon") == 0   ? ATTN_CPU_NEON
                                        : 0;
}

static int check_descriptor(session *s)
{
    const attn_kernel *k = s->kernel;
    const ref_case *c = &s->job->problem;
    const struct {
        const char *name;
        size_t got, want;
    } rows[] = {
        {"abi", k->abi, ATTN_KERNEL_ABI},
        {"features", k->features, expected_features(s->job->isa)},
        {"tensors", k->tensors, expected_tensors(c)},
        {"batch", k->batch, c->batch},
        {"seq_len", k->seq_len, c->seq_len},
        {"kv_len", k->kv_len, c->kv_len},
        {"d_model", k->d_model, c->d_model},
        {"kv_dim", k->kv_dim, c->kv_dim},
        {"heads", k->heads, c->heads},
        {"kv_heads", k->kv_heads, c->kv_heads},
        {"head_dim", k->head_dim, c->head_dim},
        {"v_head_dim", k->v_head_dim, c->v_head_dim},
        {"mask_shape[0]", k->mask_shape[0], c->mask_shape[0]},
        {"mask_shape[1]", k->mask_shape[1], c->mask_shape[1]},
        {"mask_shape[2]", k->mask_shape[2], c->mask_shape[2]},
        {"mask_shape[3]", k->mask_shape[3], c->mask_shape[3]},
        {"y_elements", k->y_elements, s->sizes.y},
        {"weights_elements", k->weights_elements, s->sizes.weights},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].got != rows[i].want) {
            return fail(s, "descriptor: %s is %zu, expected %zu", rows[i].name, rows[i].got,
                        rows[i].want);
        }
    }
    if (strcmp(k->name, s->job->prefix) != 0 || strcmp(k->isa, s->job->isa) != 0) {
        return fail(s, "descriptor: name \"%s\", isa \"%s\"", k->name, k->isa);
    }
    if (k->alignment < 4 || k->alignment > 128 || (k->alignment & (k->alignment - 1)) != 0) {
        return fail(s, "descriptor: alignment %zu", k->alignment);
    }
    if (k->cycles == 0 || k->cycles >> 48 != 0) {
        return fail(s, "descriptor: %llu cycles planned", (unsigned long long)k->cycles);
    }
    if (k->phases == 0 || k->forward == NULL || k->forward_part == NULL) {
        return fail(s, "descriptor: no phases or no functions");
    }
    if ((k->packed_bytes != 0) != (s->pack != NULL)) {
        return fail(s, "descriptor: packed_bytes %zu %s a pack function", k->packed_bytes,
                    s->pack != NULL ? "with" : "without");
    }
    return 0;
}

static int open_kernel(session *s)
{
    s->library = dlopen(s->job->object, RTLD_NOW | RTLD_LOCAL);
    if (s->library == NULL) {
        return fail(s, "dlopen: %s", dlerror());
    }
    s->kernel = find(s, "_kernel");
    void *const pack = find(s, "_pack");
    memcpy(&s->pack, &pack, sizeof s->pack);
    if (s->kernel == NULL) {
        return fail(s, "no symbol %s_kernel", s->job->prefix);
    }
    int *mutant = s->job->mutant > 0 ? find(s, "_mutant") : NULL;
    if (s->job->mutant > 0) {
        if (mutant == NULL) {
            return fail(s, "no mutants in %s", s->job->object);
        }
        *mutant = s->job->mutant;
    }
    return check_descriptor(s);
}

static int open_session(session *s, const check_job *job, check_result *result)
{
    memset(s, 0, sizeof *s);
    s->job = job;
    s->result = result;
    s->sizes = ref_case_sizes(&job->problem);
    if (open_kernel(s) != 0) {
        return -1;
    }
    const size_t y = s->sizes.y, w = s->sizes.weights + 1;
    s->y = calloc(y, sizeof *s->y);
    s->weights = calloc(w, sizeof *s->weights);
    s->caches[0] = calloc(s->sizes.k_cache + 1, sizeof(float));
    s->caches[1] = calloc(s->sizes.v_cache + 1, sizeof(float));
    s->blas_y = calloc(y, sizeof *s->blas_y);
    s->blas_weights = calloc(w, sizeof *s->blas_weights);
    s->blas_y32 = calloc(y, sizeof *s->blas_y32);
    s->blas_weights32 = calloc(w, sizeof *s->blas_weights32);
    if (!s->y || !s->weights || !s->caches[0] || !s->caches[1] || !s->blas_y || !s->blas_weights ||
        !s->blas_y32 || !s->blas_weights32 || input_alloc(&s->set, &job->problem) != 0 ||
        ref_alloc(&s->truth, &job->problem) != 0) {
        return fail(s, "no memory");
    }
    if (arena_open(&s->memory, s->kernel, s->pack, &s->set) != 0) {
        return fail(s, "%s", s->memory.fault);
    }
    return 0;
}

static void close_session(session *s)
{
    arena_close(&s->memory);
    input_free(&s->set);
    ref_free(&s->truth);
    free(s->y);
    free(s->weights);
    free(s->caches[0]);
    free(s->caches[1]);
    free(s->blas_y);
    free(s->blas_weights);
    free(s->blas_y32);
    free(s->blas_weights32);
    if (s->library != NULL) {
        dlclose(s->library);
    }
}

static int call(session *s, const call_plan *plan)
{
    const int status = arena_call(&s->memory, &s->set, plan);
    if (status < 0) {
        return fail(s, "%s", s->memory.fault);
    }
    return status == ATTN_OK ? 0 : fail(s, "forward returned %d", status);
}

/* Bit equality; NaN equals NaN (the payload is not promised). */
static int same(float a, float b)
{
    return (isnan(a) && isnan(b)) || memcmp(&a, &b, sizeof a) == 0;
}

static int compare_bits(session *s, const char *what)
{
    const float *y = (const void *)s->memory.y.data, *w = (const void *)s->memory.weights.data;
    for (size_t i = 0; i < s->sizes.y; i++) {
        if (!same(y[i], s->y[i])) {
            return fail(s, "%s changed y[%zu]: %a, was %a", what, i, (double)y[i], (double)s->y[i]);
        }
    }
    for (size_t i = 0; i < s->sizes.weights; i++) {
        if (!same(w[i], s->weights[i])) {
            return fail(s, "%s changed weights[%zu]: %a, was %a", what, i, (double)w[i],
                        (double)s->weights[i]);
        }
    }
    return 0;
}

/* What a second call does to the caches, bit by bit. */
static int compare_caches(session *s, const char *what)
{
    for (int i = 0; i < ARENA_CACHES; i++) {
        const guard *cache = &s->memory.caches[i];
        if (cache->bytes != 0 && memcmp(cache->data, s->caches[i], cache->bytes) != 0) {
            return fail(s, "%s changed %s", what, cache->name);
        }
    }
    return 0;
}

static void keep_outputs(session *s)
{
    for (int i = 0; i < ARENA_CACHES; i++) {
        if (s->memory.caches[i].bytes != 0) {
            memcpy(s->caches[i], s->memory.caches[i].data, s->memory.caches[i].bytes);
        }
    }
    memcpy(s->y, s->memory.y.data, s->sizes.y * sizeof *s->y);
    if (s->sizes.weights != 0) {
        memcpy(s->weights, s->memory.weights.data, s->sizes.weights * sizeof *s->weights);
    }
    for (size_t i = 0; i < s->sizes.y + s->sizes.weights; i++) {
        const float value = i < s->sizes.y ? s->y[i] : s->weights[i - s->sizes.y];
        uint32_t bits = 0x7fc00000;
        if (!isnan(value)) {
            memcpy(&bits, &value, sizeof bits);
        }
        s->result->hash = (s->result->hash ^ bits) * UINT64_C(0x100000001b3);
    }
}

/* The second opinion: 0 when OpenBLAS confirms the reference. */
static int cross_check(session *s, input_kind kind)
{
#ifdef REF_WITH_BLAS
    const ref_case *c = &s->job->problem;
    double *weights = s->sizes.weights != 0 ? s->blas_weights : NULL;
    if (!input_is_finite(kind)) {
        return 0;
    }
    if (blas_attention_f64(c, &s->set.weights, &s->set.args, s->blas_y, weights) != 0) {
        return fail(s, "no memory for OpenBLAS");
    }
    const size_t y_bad = ref_agree(s->blas_y, s->truth.y, s->truth.y_tol, s->sizes.y);
    const size_t w_bad =
        ref_agree(s->blas_weights, s->truth.weights, s->truth.weights_tol, s->sizes.weights);
    if (y_bad != s->sizes.y || w_bad != s->sizes.weights) {
        s->result->oracle_fault = 1;
        return fail(s, "oracle fault: reference and OpenBLAS disagree at %s[%zu]",
                    y_bad != s->sizes.y ? "y" : "weights", y_bad != s->sizes.y ? y_bad : w_bad);
    }
    s->result->cross_checked++;
    if (kind != INPUT_NORMAL && kind != INPUT_ONE_HOT && kind != INPUT_SAME_SIGN) {
        return 0;
    }
    if (blas_attention_f32(c, &s->set.weights, &s->set.args, s->blas_y32,
                           weights != NULL ? s->blas_weights32 : NULL) != 0) {
        return fail(s, "no memory for OpenBLAS");
    }
    double scale = 0.0, ours = 0.0, theirs = 0.0;
    for (size_t i = 0; i < s->sizes.y; i++) {
        const double y = s->truth.y[i];
        scale += y * y;
        ours += (s->y[i] - y) * (s->y[i] - y);
        theirs += (s->blas_y32[i] - y) * (s->blas_y32[i] - y);
    }
    if (isfinite(scale)) {
        s->kernel_sum += ours;
        s->blas_sum += theirs;
        s->scale_sum += scale;
    }
#else
    (void)s;
    (void)kind;
#endif
    return 0;
}

/* New rows of a cache within their tolerance, all others with their bits. */
static int check_cache(session *s, int which, int loose)
{
    const ref_case *c = &s->job->problem;
    const float *before = which == 0 ? s->set.k_cache : s->set.v_cache;
    const size_t n = which == 0 ? s->sizes.k_cache : s->sizes.v_cache;
    const double *want = which == 0 ? s->truth.k_cache : s->truth.v_cache;
    const double *tol = which == 0 ? s->truth.k_cache_tol : s->truth.v_cache_tol;
    const size_t width = which == 0 ? c->head_dim : c->v_head_dim;
    for (size_t at = 0; at < n; at++) {
        const size_t row = at / width, b = row / c->kv_len / c->kv_heads;
        const float *got = &s->caches[which][at];
        if (!input_is_new_token(c, &s->set.args, b, row % c->kv_len)) {
            if (memcmp(got, before + at, sizeof *got) != 0) {
                return fail(s, "%c_cache[%zu] is no new token's, but was written", "kv"[which], at);
            }
        } else if (ref_compare(got, want + at, tol + at, 1, loose, &s->result->worst) != 1) {
            return fail(s, "%c_cache[%zu] is %.9g, expected %.9g within %.3g", "kv"[which], at,
                        (double)*got, want[at], tol[at]);
        }
    }
    return 0;
}

static int compare_truth(session *s, input_kind kind)
{
    const int loose = kind == INPUT_INF_ALLOWED || kind == INPUT_MASKED_GARBAGE;
    double *worst = &s->result->worst;
    size_t at = ref_compare(s->y, s->truth.y, s->truth.y_tol, s->sizes.y, loose, worst);
    if (at != s->sizes.y) {
        return fail(s, "y[%zu] is %.9g, expected %.9g within %.3g", at, (double)s->y[at],
                    s->truth.y[at], s->truth.y_tol[at]);
    }
    at = ref_compare(s->weights, s->truth.weights, s->truth.weights_tol, s->sizes.weights, loose,
                     worst);
    if (at != s->sizes.weights) {
        return fail(s, "weights[%zu] is %.9g, expected %.9g within %.3g", at,
                    (double)s->weights[at], s->truth.weights[at], s->truth.weights_tol[at]);
    }
    return check_cache(s, 0, loose) != 0 || check_cache(s, 1, loose) != 0 ? -1 : 0;
}

/* Rows of weights are distributions: they sum to 1 where the reference row does. */
static int check_weight_sums(session *s)
{
    const size_t n = s->job->problem.kv_len;
    for (size_t row = 0; row < s->sizes.weights / n; row++) {
        double got = 0.0, want = 0.0;
        for (size_t j = 0; j < n; j++) {
            got += (double)s->weights[row * n + j];
            want += s->truth.weights[row * n + j];
        }
        const double bound = 0x1p-24 * (8.0 + 2.0 * (double)n);
        if (!isnan(want) && !(fabs(got - want) <= bound)) {
            return fail(s, "weights row %zu sums to %.9g, expected %.9g", row, got, want);
        }
    }
    return 0;
}

/* Changes keys that some rows cannot see; those rows, and all other items, must keep their bits. */
static int check_unseen_keys(session *s, rng *r)
{
    const ref_case *c = &s->job->problem;
    const size_t b = rng_below(r, c->batch), cut = rng_below(r, c->kv_len + 1);
    const int suffix = rng_below(r, 2) == 0;
    uint8_t keep[4096];
    if (c->kv_len > sizeof keep) {
        return 0;
    }
    for (size_t j = 0; j < c->kv_len; j++) {
        keep[j] = (uint8_t)(suffix ? j < cut : rng_below(r, 3) != 0);
    }
    input_poison_keys(&s->set, c, b, keep, r);
    for (size_t j = 0; j < c->kv_len; j++) { /* written before it is read */
        keep[j] = (uint8_t)(keep[j] || input_is_new_token(c, &s->set.args, b, j));
    }
    const call_plan plan = {GUARD_END, 0, 0x3C, 0};
    if (call(s, &plan) != 0) {
        return -1;
    }
    const float *y = (const void *)s->memory.y.data, *w = (const void *)s->memory.weights.data;
    const size_t rows = s->sizes.y / s->sizes.y_row;
    const size_t wrows = s->sizes.weights / c->kv_len;
    uint8_t *blind = calloc(c->batch * c->seq_len, 1); /* rows that saw no changed key */
    for (size_t at = 0; blind != NULL && at < c->batch * c->seq_len; at++) {
        const size_t item = at / c->seq_len, i = at % c->seq_len;
        int sees = item == b && !c->sdpa && !c->cross && c->cache == REF_CACHE_NONE &&
                   !keep[ref_x_row(c, i)];
        for (size_t h = 0; item == b && h < c->heads; h++) {
            size_t allowed = 0;
            for (size_t j = 0; j < c->kv_len; j++) {
                const int may = ref_allowed(c, &s->set.args, b, h, i, j);
                allowed += (size_t)may;
                sees = sees || (may && !keep[j]);
            }
            sees = sees || (allowed == 0 && c->empty_row == REF_EMPTY_UNIFORM);
        }
        blind[at] = (uint8_t)!sees;
    }
    int bad = blind == NULL ? fail(s, "no memory") : 0;
    for (size_t row = 0; bad == 0 && row < rows; row++) {
        const size_t item = c->sdpa ? row / (c->heads * c->seq_len) : row / c->seq_len;
        for (size_t o = 0;
             bad == 0 && blind[item * c->seq_len + row % c->seq_len] && o < s->sizes.y_row; o++) {
            const size_t at = row * s->sizes.y_row + o;
            if (!same(y[at], s->y[at])) {
                bad = fail(s, "y[%zu] depends on masked keys or another item: %a, was %a", at,
                           (double)y[at], (double)s->y[at]);
            }
        }
    }
    for (size_t row = 0; bad == 0 && row < wrows; row++) {
        const int heads = c->return_weights == REF_WEIGHTS_PER_HEAD;
        const size_t item = row / c->seq_len / (heads ? c->heads : 1);
        for (size_t j = 0; bad == 0 && blind[item * c->seq_len + row % c->seq_len] && j < c->kv_len;
             j++) {
            const size_t at = row * c->kv_len + j;
            if (!same(w[at], s->weights[at])) {
                bad = fail(s, "weights[%zu] depends on masked keys: %a, was %a", at, (double)w[at],
                           (double)s->weights[at]);
            }
        }
    }
    free(blind);
    return bad;
}

static int run_set(session *s, size_t number, input_kind kind)
{
    const ref_case *c = &s->job->problem;
    const uint64_t seed = s->job->seed * UINT64_C(1000003) + number;
    rng r = {~seed};
    input_fill(&s->set, c, kind, seed);
    ref_run(c, &s->set.weights, &s->set.args, &s->truth);
    const call_plan at_end = {GUARD_END, 0, 0xFF, 0};
    const call_plan at_start = {GUARD_START, 0, 0x7F, 0};
    const call_plan in_parts = {GUARD_MIDDLE, 4 * (1 + number % 15), 0x00,
                                1 + (unsigned)(number % ARENA_MAX_PARTS)};
    if (call(s, &at_end) != 0) {
        return -1;
    }
    keep_outputs(s);
    if (cross_check(s, kind) != 0 || compare_truth(s, kind) != 0 || check_weight_sums(s) != 0) {
        return -1;
    }
    if (call(s, &at_start) != 0 || compare_bits(s, "a second call") != 0 ||
        compare_caches(s, "a second call") != 0) {
        return -1;
    }
    char what[64];
    snprintf(what, sizeof what, "%u parts, inputs at +%zu bytes,", in_parts.parts, in_parts.offset);
    if (call(s, &in_parts) != 0 || compare_bits(s, what) != 0 || compare_caches(s, what) != 0) {
        return -1;
    }
    return number % 2 == 0 ? check_unseen_keys(s, &r) : 0;
}

static int check_accuracy(session *s)
{
    if (s->scale_sum == 0.0) {
        return 0;
    }
    s->result->kernel_rms = sqrt(s->kernel_sum / s->scale_sum);
    s->result->blas_rms = sqrt(s->blas_sum / s->scale_sum);
    const double floor = 2.0 * 0x1p-23; /* two units in the last place of the output's scale */
    if (!s->job->problem.fast && s->result->kernel_rms > fmax(2.0 * s->result->blas_rms, floor)) {
        return fail(s, "error %.3g exceeds twice that of OpenBLAS in float, %.3g",
                    s->result->kernel_rms, s->result->blas_rms);
    }
    return 0;
}

static int run_sets(session *s)
{
    const ref_case *c = &s->job->problem;
    size_t kind = 0;
    for (size_t number = 0; number < s->job->sets; number++, kind = (kind + 1) % INPUT_KINDS) {
        while (!input_applies(c, (input_kind)kind)) {
            kind = (kind + 1) % INPUT_KINDS;
        }
        if (run_set(s, number, (input_kind)kind) != 0) {
            char text[400];
            snprintf(text, sizeof text, "%.399s", s->result->message);
            return fail(s, "set %zu (%s): %s", number, input_name((input_kind)kind), text);
        }
        s->result->sets++;
    }
    input_fill(&s->set, c, INPUT_NORMAL, s->job->seed);
    if (arena_check_errors(&s->memory, &s->set) != 0) {
        return fail(s, "%s", s->memory.fault);
    }
    return check_accuracy(s);
}

int check_run(const check_job *job, check_result *result)
{
    session s;
    memset(result, 0, sizeof *result);
    result->hash = UINT64_C(0xcbf29ce484222325);
    const int bad = open_session(&s, job, result) != 0 || run_sets(&s) != 0;
    close_session(&s);
    return bad ? -1 : 0;
}

void check_print(FILE *out, const check_job *job, const check_result *result)
{
    if (result->message[0] == '\0') {
        fprintf(out, "ok %s sets=%zu cross=%zu worst=%.3f rms=%.2e blas=%.2e hash=%016" PRIx64 "\n",
                job->label, result->sets, result->cross_checked, result->worst, result->kernel_rms,
                result->blas_rms, result->hash);
    } else {
        fprintf(out, "FAIL %s sets=%zu %s\n", job->label, result->sets, result->message);
    }
}
