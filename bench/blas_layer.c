/* See blas_layer.h. */
#include "blas_layer.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROW_MAJOR = 101, PLAIN = 111, TRANSPOSED = 112 }; /* of every CBLAS */

typedef void gemm_function(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                           const float *a, int lda, const float *b, int ldb, float beta, float *c,
                           int ldc);
typedef void gemv_function(int order, int trans, int m, int n, float alpha, const float *a, int lda,
                           const float *x, int incx, float beta, float *y, int incy);

/* pack and forward of a subject take no context of their own, so this is the process's one layer. */
static struct {
    ref_case problem;
    gemm_function *gemm;
    gemv_function *gemv;
} the;

/* out = in · weightᵀ + bias, in whichever form this BLAS does fastest here. */
typedef enum way { WAY_NT, WAY_NN, WAY_GEMV, WAYS } way;

typedef struct product {
    size_t rows, depth, columns;
    float *weight;     /* [columns, depth], as in a checkpoint */
    float *transposed; /* [depth, columns] */
    float *bias;       /* [columns] or NULL */
    way fastest;
} product;

/* The packed block: this, and the floats it points to. */
typedef struct layer {
    product first;  /* Q|K|V; Q alone with a second input */
    product second; /* K|V of those */
    product output;
} layer;

typedef struct sizes {
    size_t q, k, v;              /* columns of the projections */
    size_t first, second;        /* columns of the two fused products */
    size_t context;              /* columns of the concatenated heads */
    size_t query_rows, key_rows; /* over the batch */
} sizes;

/* Whether K and V are projected from other rows than Q. */
static int is_split(const ref_case *c)
{
    return c->cross || c->queries != REF_QUERIES_ALL;
}

static sizes get_sizes(const ref_case *c)
{
    sizes n = {.q = c->heads * c->head_dim,
               .k = c->kv_heads * c->head_dim,
               .v = c->kv_heads * c->v_head_dim,
               .context = c->heads * c->v_head_dim,
               .query_rows = c->batch * c->seq_len,
               .key_rows = c->batch * c->kv_len};
    if (!c->sdpa) {
        const int is_given = c->cache == REF_CACHE_STATIC;
        n.first = is_split(c) || is_given ? n.q : n.q + n.k + n.v;
        n.second = is_split(c) ? n.k + n.v : 0;
    }
    return n;
}

static size_t product_floats(size_t depth, size_t columns)
{
    return 2 * depth * columns + columns;
}

static size_t header_bytes(void)
{
    return (sizeof(layer) + 63) / 64 * 64;
}

static size_t packed_bytes(const ref_case *c)
{
    const sizes n = get_sizes(c);
    if (c->sdpa) {
        return 0;
    }
    return header_bytes() + sizeof(float) * (product_floats(c->d_model, n.first) +
                                             product_floats(c->kv_dim, n.second) +
                                             product_floats(n.context, c->d_model));
}

static size_t workspace_bytes(const ref_case *c)
{
    const sizes n = get_sizes(c);
    return sizeof(float) * (n.query_rows * (n.first + n.context) + n.key_rows * n.second +
                            c->seq_len * c->kv_len * (c->heads / c->kv_heads)) +
           sizeof(size_t) * c->seq_len * (c->heads / c->kv_heads) + 256;
}

static void run_product(const product *p, way how, const float *in, float *out)
{
    const int rows = (int)p->rows, depth = (int)p->depth, columns = (int)p->columns;
    const float start = p->bias != NULL ? 1.0F : 0.0F;
    for (size_t i = 0; p->bias != NULL && i < p->rows; i++) {
        memcpy(out + i * p->columns, p->bias, p->columns * sizeof(float));
    }
    if (how == WAY_NT) {
        the.gemm(ROW_MAJOR, PLAIN, TRANSPOSED, rows, columns, depth, 1.0F, in, depth, p->weight,
                 depth, start, out, columns);
    } else if (how == WAY_NN) {
        the.gemm(ROW_MAJOR, PLAIN, PLAIN, rows, columns, depth, 1.0F, in, depth, p->transposed,
                 columns, start, out, columns);
    } else {
        for (size_t i = 0; i < p->rows; i++) {
            the.gemv(ROW_MAJOR, PLAIN, columns, depth, 1.0F, p->weight, depth, in + i * p->depth, 1,
                     start, out + i * p->columns, 1);
        }
    }
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Times the forms of one product on this very shape. Vectors only for a few rows. */
static int choose_way(product *p)
{
    float *memory = calloc(p->rows * (p->depth + p->columns), sizeof *memory);
    double best = INFINITY;
    if (memory == NULL) {
        return -1;
    }
    for (way how = 0; how < WAYS; how++) {
        for (int turn = 0; turn < 6 && (how != WAY_GEMV || p->rows <= 4); turn++) {
            const double start = now();
            run_product(p, how, memory, memory + p->rows * p->depth);
            const double seconds = now() - start;
            if (turn > 0 && seconds < best) {
                best = seconds;
                p->fastest = how;
            }
        }
    }
    free(memory);
    return 0;
}

/* One block of rows of a fused product: weight [columns, depth] and its bias, or zeros. */
static void add_rows(product *p, size_t at, const float *weight, const float *bias, size_t columns)
{
    memcpy(p->weight + at * p->depth, weight, columns * p->depth * sizeof(float));
    for (size_t i = 0; i < columns; i++) {
        p->bias[at + i] = bias != NULL ? bias[i] : 0.0F;
    }
}

static int finish_product(product *p, int has_bias)
{
    for (size_t i = 0; i < p->columns; i++) {
        for (size_t k = 0; k < p->depth; k++) {
            p->transposed[k * p->columns + i] = p->weight[i * p->depth + k];
        }
    }
    if (!has_bias) {
        p->bias = NULL;
    }
    return choose_way(p);
}

static product place_product(float **at, size_t rows, size_t depth, size_t columns)
{
    product p = {.rows = rows, .depth = depth, .columns = columns, .weight = *at};
    p.transposed = p.weight + depth * columns;
    p.bias = p.transposed + depth * columns;
    *at += product_floats(depth, columns);
    return p;
}

static int pack(const attn_weights *w, void *packed)
{
    const ref_case *c = &the.problem;
    const sizes n = get_sizes(c);
    layer *l = packed;
    float *at = (void *)((char *)packed + header_bytes());
    memset(l, 0, sizeof *l);
    l->first = place_product(&at, c->queries == REF_QUERIES_ALL ? n.query_rows : c->seq_len,
                             c->d_model, n.first);
    add_rows(&l->first, 0, w->q_weight, w->q_bias, n.q);
    product *keys = &l->first;
    size_t column = n.q;
    if (is_split(c)) {
        l->second = place_product(&at, n.key_rows, c->kv_dim, n.second);
        keys = &l->second;
        column = 0;
    }
    if (c->cache != REF_CACHE_STATIC) {
        add_rows(keys, column, w->k_weight, w->k_bias, n.k);
        add_rows(keys, column + n.k, w->v_weight, w->v_bias, n.v);
    }
    int failed = finish_product(&l->first, c->q_bias || (!is_split(c) && (c->k_bias || c->v_bias)));
    if (is_split(c)) {
        failed |= finish_product(&l->second, c->k_bias || c->v_bias);
    }
    if (c->output_projection) {
        l->output = place_product(&at, n.query_rows, n.context, c->d_model);
        add_rows(&l->output, 0, w->o_weight, w->o_bias, c->d_model);
        failed |= finish_product(&l->output, c->o_bias);
    }
    return failed;
}

static size_t mask_index(const ref_case *c, size_t b, size_t h, size_t i, size_t j)
{
    const size_t *n = c->mask_shape;
    return (((n[0] > 1 ? b : 0) * n[1] + (n[1] > 1 ? h : 0)) * n[2] + (n[2] > 1 ? i : 0)) * n[3] +
           j;
}

/* Masks given as tensors; causal and lengths are in the rows' ends. */
static void apply_masks(const ref_case *c, const attn_args *a, size_t b, size_t h, size_t i,
                        size_t end, float *row)
{
    const size_t base = c->bool_mask || c->additive ? mask_index(c, b, h, i, 0) : 0;
    for (size_t j = 0; c->additive && j < end; j++) {
        const float add = a->mask_add[base + j];
        row[j] = add > -0x1p100F ? row[j] + add : BLAS_MASKED;
    }
    for (size_t j = 0; c->bool_mask && j < end; j++) {
        row[j] = a->mask_keep[base + j] != 0 ? row[j] : BLAS_MASKED;
    }
    for (size_t j = 0; c->padding && j < end; j++) {
        row[j] = a->key_keep[b * c->kv_len + j] != 0 ? row[j] : BLAS_MASKED;
    }
}

static size_t row_end(const ref_case *c, size_t length, size_t i)
{
    long end = (long)length;
    if (c->causal) {
        const long shift = c->align == REF_BOTTOM_RIGHT ? (long)c->kv_len - (long)c->seq_len
                           : c->align == REF_LENGTHS    ? (long)length - (long)c->seq_len
                           : c->align == REF_OFFSET     ? c->offset
                                                        : 0;
        end = (long)i + shift + 1 < end ? (long)i + shift + 1 : end;
    }
    return end > 0 ? (size_t)end : 0;
}

/* Where one tensor of heads lies: item, head, row, in floats. */
typedef struct heads {
    const float *at;
    size_t item, head, row;
} heads;

/* The rows of new tokens, `row` apart, to their places in the caller's cache [B,G,S,width]. */
static void append(const ref_case *c, const int32_t *lengths, const float *fresh, size_t row,
                   size_t width, float *cache)
{
    for (size_t b = 0; b < c->batch; b++) {
        const size_t token = (size_t)lengths[b] - c->seq_len;
        for (size_t g = 0; g < c->kv_heads; g++) {
            float *to = cache + ((b * c->kv_heads + g) * c->kv_len + token) * width;
            for (size_t i = 0; i < c->seq_len; i++) {
                memcpy(to + i * width, fresh + (b * c->seq_len + i) * row + g * width,
                       width * sizeof(float));
            }
        }
    }
}

/* Attention of `stack` heads that share one key head; their queries are the rows of one product. */
static void attend(const ref_case *c, const attn_args *a, heads q, heads k, heads v, float *out,
                   size_t out_row, size_t b, size_t h, size_t stack, float *scores, size_t *ends)
{
    const size_t group = c->heads / c->kv_heads, g = h / group, rows = stack * c->seq_len;
    const size_t length = c->lengths ? (size_t)a->kv_lengths[b] : c->kv_len;
    const int m = (int)rows, n = (int)length;
    the.gemm(ROW_MAJOR, PLAIN, TRANSPOSED, m, n, (int)c->head_dim, (float)c->scale,
             q.at + b * q.item + h * q.head, (int)(stack > 1 ? q.head : q.row),
             k.at + b * k.item + g * k.head, (int)k.row, 0.0F, scores, n);
    for (size_t i = 0; i < rows; i++) {
        ends[i] = row_end(c, length, i % c->seq_len);
        if (c->additive || c->bool_mask || c->padding) {
            apply_masks(c, a, b, h + i / c->seq_len, i % c->seq_len, ends[i], scores + i * length);
        }
    }
    blas_softmax(scores, rows, length, length, ends);
    the.gemm(ROW_MAJOR, PLAIN, PLAIN, m, (int)c->v_head_dim, n, 1.0F, scores, n,
             v.at + b * v.item + g * v.head, (int)v.row, 0.0F, out, (int)out_row);
}

/* k or v as a tensor of its own, [B,G,S,width]. */
static heads by_head(const ref_case *c, const float *at, size_t width)
{
    return (heads){at, c->kv_heads * c->kv_len * width, c->kv_len * width, width};
}

/* Projects what the layer projects and says where q, k and v then lie. */
static void project(const ref_case *c, const layer *l, const attn_args *a, float *first,
                    float *second, heads *q, heads *k, heads *v)
{
    const sizes n = get_sizes(c);
    for (size_t b = 0; b * l->first.rows < n.query_rows; b++) {
        run_product(&l->first, l->first.fastest,
                    a->x + (b * ref_x_rows(c) + ref_x_row(c, 0)) * c->d_model,
                    first + b * l->first.rows * n.first);
    }
    *q = (heads){first, c->seq_len * n.first, c->head_dim, n.first};
    if (c->cache == REF_CACHE_STATIC) {
        *k = by_head(c, a->k, c->head_dim);
        *v = by_head(c, a->v, c->v_head_dim);
        return;
    } else if (c->cache == REF_CACHE_APPEND) {
        append(c, a->kv_lengths, first + n.q, n.first, c->head_dim, a->k_cache);
        append(c, a->kv_lengths, first + n.q + n.k, n.first, c->v_head_dim, a->v_cache);
        *k = by_head(c, a->k_cache, c->head_dim);
        *v = by_head(c, a->v_cache, c->v_head_dim);
        return;
    }
    const float *keys = first + n.q;
    size_t row = n.first;
    if (is_split(c)) {
        run_product(&l->second, l->second.fastest, c->cross ? a->context : a->x, second);
        keys = second;
        row = n.second;
    }
    *k = (heads){keys, c->kv_len * row, c->head_dim, row};
    *v = (heads){keys + n.k, c->kv_len * row, c->v_head_dim, row};
}

static int forward(const void *packed, const attn_args *a, void *workspace)
{
    const ref_case *c = &the.problem;
    const sizes n = get_sizes(c);
    const layer *l = packed;
    float *first = workspace, *second = first + n.query_rows * n.first;
    float *context = second + n.key_rows * n.second;
    float *scores = context + n.query_rows * n.context;
    const size_t group = c->heads / c->kv_heads;
    /* A single query: the heads that share a key head are one product. */
    const size_t stack = c->seq_len == 1 ? group : 1;
    size_t *ends = (void *)(scores + (group * c->seq_len * c->kv_len + 15) / 16 * 16);
    ends = (void *)(((uintptr_t)ends + 15) / 16 * 16);
    heads q = {a->q, c->heads * c->seq_len * c->head_dim, c->seq_len * c->head_dim, c->head_dim};
    heads k = by_head(c, a->k, c->head_dim);
    heads v = by_head(c, a->v, c->v_head_dim);
    if (!c->sdpa) {
        project(c, l, a, first, second, &q, &k, &v);
    }
    float *const to = c->sdpa || !c->output_projection ? a->y : context;
    for (size_t b = 0; b < c->batch; b++) {
        for (size_t h = 0; h < c->heads; h += stack) {
            /* y of sdpa is [B,H,L,V] */
            float *out = c->sdpa ? to + (b * c->heads + h) * c->seq_len * c->v_head_dim
                                 : to + b * c->seq_len * n.context + h * c->v_head_dim;
            attend(c, a, q, k, v, out, c->sdpa || stack > 1 ? c->v_head_dim : n.context, b, h,
                   stack, scores, ends);
        }
    }
    if (!c->sdpa && c->output_projection) {
        run_product(&l->output, l->output.fastest, context, a->y);
    }
    return ATTN_OK;
}

/* dlsym gives object pointers; a function pointer has the same representation on POSIX. */
static void find(const subject *s, const char *prefix, const char *name, void *function)
{
    char symbol[128];
    snprintf(symbol, sizeof symbol, "%s%s", prefix, name);
    void *const found = dlsym(s->library, symbol);
    memcpy(function, &found, sizeof found);
}

/* Asks the library what it is, and for one thread. */
static void introduce(subject *s, const char *prefix)
{
    void (*set_threads)(int) = NULL;
    char *(*get_text)(void) = NULL;
    void (*get_version)(char *, int) = NULL;
    find(s, prefix, "openblas_set_num_threads", &set_threads);
    if (set_threads == NULL) {
        find(s, prefix, "MKL_Set_Num_Threads", &set_threads);
    }
    if (set_threads != NULL) {
        set_threads(1);
    }
    find(s, prefix, "openblas_get_config", &get_text);
    if (get_text != NULL) {
        snprintf(s->detail, sizeof s->detail, "%s", get_text());
    }
    find(s, prefix, "openblas_get_corename", &get_text);
    if (get_text != NULL) {
        snprintf(s->core, sizeof s->core, "%s", get_text());
    }
    find(s, prefix, "MKL_Get_Version_String", &get_version);
    if (get_version != NULL) {
        get_version(s->detail, (int)sizeof s->detail - 1);
    }
}

int blas_layer_open(subject *s, const subject_options *options, char *message, size_t message_size)
{
    const char *prefix = options->blas_prefix != NULL ? options->blas_prefix : "";
    const ref_case *c = options->problem;
    the.problem = *c;
    find(s, prefix, "cblas_sgemm", &the.gemm);
    find(s, prefix, "cblas_sgemv", &the.gemv);
    if (the.gemm == NULL || the.gemv == NULL) {
        snprintf(message, message_size, "%s has no %scblas_sgemm and %scblas_sgemv", options->blas,
                 prefix, prefix);
        return -1;
    }
    if (c->return_weights != REF_WEIGHTS_NONE) {
        snprintf(message, message_size, "the BLAS layer does not return attention weights");
        return -1;
    }
    snprintf(s->name, sizeof s->name, "blas");
    s->packed_bytes = packed_bytes(c);
    s->workspace_bytes = workspace_bytes(c);
    s->alignment = 64;
    s->pack = c->sdpa ? NULL : pack;
    s->forward = forward;
    introduce(s, prefix);
    return 0;
}
