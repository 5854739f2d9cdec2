/* Double-precision attention from the formula, with the rounding error a float32 kernel may show.
 *
 * Error model (docs/testing.md): every quantity carries a standard error; a dot product of n terms
 * adds u * sum|x||w| * sqrt(1/4 + n/14); errors of independent terms add in squares; an error of a
 * logit moves its weight in proportion, the context by p * error * (v - c), all its columns at once,
 * and the output by what Wo makes of that. */
#include "reference/reference.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double U = 0x1p-24;     /* float32 unit roundoff */
static const double TINY = 0x1p-149; /* smallest float32 denormal: absolute rounding floor */
static const double EXP_ERROR = 4.0 * 0x1p-24;        /* relative standard error of exp, exact */
static const double EXP_ERROR_FAST = 100.0 * 0x1p-24; /* one polynomial degree less */
static const double SMALL_LOGIT_ERROR = 0.1; /* above it the first-order model is not used */

/* Per-element value, standard error, and magnitude (|value| plus the bias a kernel may move). */
typedef struct plane {
    double *value, *error, *magnitude;
} plane;

typedef struct parts {
    plane q, k, v, context;
    /* Of the forms without keys or values, per (item, head, query): queries times Wk, weighted
     * inputs; and the products of weights, [head][kv_dim][d_model] and [d_model][head][kv_dim]. */
    plane lifted, wide;
    double *wqk, *wov;
    double *own;     /* of a context column: the error that no other column shares */
    double *outputs; /* of one item: Wo times the values, [head][kv_len][d_model] */
    /* Of one row of y: squared errors, and the errors that the heads of one kv head add up to. */
    double *squared, *together;
    const float *kv, *v_weight; /* rows that stand for keys and values */
    const float *v_bias;
    double *logit, *logit_error, *weight, *weight_error; /* one row of S */
    size_t *different; /* per kv head of one item: keys with rows of their own */
    size_t terms;      /* of sums over the keys: see terms_of */
} parts;

static double square(double x)
{
    return x * x;
}

/* Standard error of a float32 dot product of n terms with magnitude sum a. */
static double dot_error(double a, size_t n)
{
    return U * a * sqrt(0.25 + (double)n / 14.0) + TINY * (double)n;
}

/* Squared error of what the sum of n weights divides, by the rounding of the sum and of its inverse:
 * the same factor for a whole row. */
static double division(double value, size_t n)
{
    return square(dot_error(fabs(value), n)) + 2.0 * square(U * value);
}

/* Squared error of one value times that inverse. */
static double quotient(double value)
{
    return 2.0 * square(U * value);
}

static plane take_plane(double **at, size_t n)
{
    const plane p = {*at, *at + n, *at + 2 * n};
    *at += 3 * n;
    return p;
}

static size_t scratch_size(const ref_case *c)
{
    const size_t q = c->batch * c->heads * c->seq_len * c->head_dim;
    const size_t k = c->batch * c->kv_heads * c->kv_len * c->head_dim;
    const size_t v = c->batch * c->kv_heads * c->kv_len * c->v_head_dim;
    const size_t context = c->batch * c->heads * c->seq_len * c->v_head_dim;
    const size_t wide = c->batch * c->heads * c->seq_len * c->kv_dim;
    const size_t product = c->heads * c->kv_dim * c->d_model;
    const size_t outputs = (c->heads * c->kv_len + 2) * c->d_model;
    return 3 * (q + k + v + context + 2 * wide) + 2 * product + context + outputs + 4 * c->kv_len;
}

static parts carve(const ref_case *c, double *at, size_t *different)
{
    parts p;
    p.different = different;
    p.q = take_plane(&at, c->batch * c->heads * c->seq_len * c->head_dim);
    p.k = take_plane(&at, c->batch * c->kv_heads * c->kv_len * c->head_dim);
    p.v = take_plane(&at, c->batch * c->kv_heads * c->kv_len * c->v_head_dim);
    p.context = take_plane(&at, c->batch * c->heads * c->seq_len * c->v_head_dim);
    p.lifted = take_plane(&at, c->batch * c->heads * c->seq_len * c->kv_dim);
    p.wide = take_plane(&at, c->batch * c->heads * c->seq_len * c->kv_dim);
    p.wqk = at;
    p.wov = p.wqk + c->heads * c->kv_dim * c->d_model;
    p.own = p.wov + c->heads * c->kv_dim * c->d_model;
    p.outputs = p.own + c->batch * c->heads * c->seq_len * c->v_head_dim;
    p.squared = p.outputs + c->heads * c->kv_len * c->d_model;
    p.together = p.squared + c->d_model;
    at = p.together + c->d_model;
    p.kv = p.v_weight = p.v_bias = NULL;
    p.logit = at;
    p.logit_error = at + c->kv_len;
    p.weight = at + 2 * c->kv_len;
    p.weight_error = at + 3 * c->kv_len;
    return p;
}

int ref_alloc(ref_result *r, const ref_case *c)
{
    memset(r, 0, sizeof *r);
    r->sizes = ref_case_sizes(c);
    r->y = calloc(r->sizes.y, sizeof *r->y);
    r->y_tol = calloc(r->sizes.y, sizeof *r->y_tol);
    r->scratch = calloc(scratch_size(c), sizeof *r->scratch);
    r->different = calloc(c->kv_heads, sizeof *r->different);
    int ok = r->y != NULL && r->y_tol != NULL && r->scratch != NULL && r->different != NULL;
    if (r->sizes.weights != 0) {
        r->weights = calloc(r->sizes.weights, sizeof *r->weights);
        r->weights_tol = calloc(r->sizes.weights, sizeof *r->weights_tol);
        ok = ok && r->weights != NULL && r->weights_tol != NULL;
    }
    if (r->sizes.k_cache != 0) {
        r->k_cache = calloc(r->sizes.k_cache, sizeof *r->k_cache);
        r->k_cache_tol = calloc(r->sizes.k_cache, sizeof *r->k_cache_tol);
        r->v_cache = calloc(r->sizes.v_cache, sizeof *r->v_cache);
        r->v_cache_tol = calloc(r->sizes.v_cache, sizeof *r->v_cache_tol);
        ok = ok && r->k_cache != NULL && r->k_cache_tol != NULL && r->v_cache != NULL &&
             r->v_cache_tol != NULL;
    }
    if (!ok) {
        ref_free(r);
        return -1;
    }
    return 0;
}

void ref_free(ref_result *r)
{
    free(r->y);
    free(r->y_tol);
    free(r->weights);
    free(r->weights_tol);
    free(r->k_cache);
    free(r->k_cache_tol);
    free(r->v_cache);
    free(r->v_cache_tol);
    free(r->scratch);
    free(r->different);
    memset(r, 0, sizeof *r);
}

/* out[b,head,row,d] = x[b,row,:] . w[head*dim+d,:] + bias, x with x_rows rows an item. With `ends`
 * out has out_rows rows an item and x's rows stand in front of row ends[b]. */
static void project(plane out, const float *x, const float *w, const float *bias, size_t batch,
                    size_t rows, size_t x_rows, size_t width, size_t heads, size_t dim,
                    size_t out_rows, const int32_t *ends)
{
    for (size_t b = 0; b < batch; b++) {
        const size_t first = ends != NULL ? (size_t)ends[b] - rows : 0;
        for (size_t h = 0; h < heads; h++) {
            for (size_t row = 0; row < rows; row++) {
                size_t at = ((b * heads + h) * out_rows + first + row) * dim;
                const float *xr = x + (b * x_rows + row) * width;
                for (size_t d = 0; d < dim; d++, at++) {
                    const float *wr = w + (h * dim + d) * width;
                    const double offset = bias != NULL ? (double)bias[h * dim + d] : 0.0;
                    double sum = 0.0, size = fabs(offset);
                    for (size_t e = 0; e < width; e++) {
                        const double term = (double)xr[e] * (double)wr[e];
                        sum += term;
                        size += fabs(term);
                    }
                    out.value[at] = sum + offset;
                    out.error[at] = dot_error(size, width + 1);
                    out.magnitude[at] = fabs(out.value[at]) + fabs(offset);
                }
            }
        }
    }
}

/* One cache after the call: its plane, with a tolerance for the rows that are new. */
static void store_cache(const ref_case *c, const attn_args *a, plane p, size_t dim, double *out,
                        double *tol)
{
    for (size_t row = 0; row < c->batch * c->kv_heads * c->kv_len; row++) {
        const size_t end = (size_t)a->kv_lengths[row / c->kv_len / c->kv_heads];
        const int fresh = row % c->kv_len < end && row % c->kv_len + c->seq_len >= end;
        for (size_t at = row * dim; at < (row + 1) * dim; at++) {
            out[at] = p.value[at];
            tol[at] = fresh ? REF_SAFETY * p.error[at] + TINY : 0.0;
        }
    }
}

/* ---- Forms without projected keys or values ---- */

/* wqk[h][e][i] = sum over d of Wk[g,d][e] Wq[h,d][i], wov[o][h][e] = sum of Wo[o][h,d] Wv[g,d][e] */
static void multiply_weights(const ref_case *c, const attn_weights *w, parts *p)
{
    const size_t nd = c->head_dim, nv = c->v_head_dim, width = c->kv_dim;
    for (size_t h = 0; h < c->heads; h++) {
        const size_t g = h / (c->heads / c->kv_heads);
        for (size_t e = 0; e < width; e++) {
            for (size_t i = 0; i < c->d_model; i++) {
                double qk = 0.0, ov = 0.0;
                for (size_t d = 0; c->keys == REF_FOLDED && d < nd; d++) {
                    qk += (double)w->k_weight[(g * nd + d) * width + e] *
                          (double)w->q_weight[(h * nd + d) * c->d_model + i];
                }
                for (size_t d = 0; c->values == REF_FOLDED && d < nv; d++) {
                    ov += (double)w->o_weight[(i * c->heads + h) * nv + d] *
                          (double)w->v_weight[(g * nv + d) * width + e];
                }
                p->wqk[(h * width + e) * c->d_model + i] = qk;
                p->wov[(i * c->heads + h) * width + e] = ov;
            }
        }
    }
}

/* lifted[b,h,i,e] = sum over d of Wk[g,d][e] q[b,h,i,d], as one product with x or as two. */
static void lift_queries(const ref_case *c, const attn_weights *w, const float *x, parts *p)
{
    const size_t nd = c->head_dim, width = c->kv_dim;
    for (size_t row = 0; row < c->batch * c->heads * c->seq_len; row++) {
        const size_t b = row / (c->heads * c->seq_len), h = row / c->seq_len % c->heads;
        const size_t g = h / (c->heads / c->kv_heads);
        const float *xr = x + (b * ref_x_rows(c) + row % c->seq_len) * c->d_model;
        for (size_t e = 0; e < width; e++) {
            double sum = 0.0, size = 0.0, carried = 0.0, bias = 0.0;
            for (size_t d = 0; d < nd; d++) {
                const double wk = (double)w->k_weight[(g * nd + d) * width + e];
                sum += wk * p->q.value[row * nd + d];
                size += fabs(wk * p->q.value[row * nd + d]);
                carried += square(wk * p->q.error[row * nd + d]);
                bias += c->q_bias ? wk * (double)w->q_bias[h * nd + d] : 0.0;
            }
            double error = sqrt(carried + square(dot_error(size, nd)));
            if (c->keys == REF_FOLDED) {
                size = fabs(bias);
                for (size_t i = 0; i < c->d_model; i++) {
                    size += fabs(p->wqk[(h * width + e) * c->d_model + i] * (double)xr[i]);
                }
                error = dot_error(size, c->d_model + 1);
            }
            p->lifted.value[row * width + e] = sum;
            p->lifted.error[row * width + e] = error;
        }
    }
}

/* The logit as lifted query times input row. */
static void lifted_score(const ref_case *c, const parts *p, const float *row, size_t li, double add,
                         double *logit, double *error)
{
    double sum = 0.0, size = 0.0, carried = 0.0;
    for (size_t e = 0; e < c->kv_dim; e++) {
        const double q = p->lifted.value[li + e], x = (double)row[e];
        sum += q * x;
        size += fabs(q * x);
        carried += square(p->lifted.error[li + e] * x);
    }
    const double s = fabs(c->scale);
    *logit = c->scale * sum + add;
    *error = sqrt(square(s) * carried + square(dot_error(s * size + fabs(add), c->kv_dim + 4)));
    if (isinf(*logit)) {
        *error = 0.0;
    }
}

/* wide[e] = sum over keys of p x[e] with its own rounding error alone. */
static void weigh_inputs(const ref_case *c, const parts *p, size_t b, size_t wi)
{
    for (size_t e = 0; e < c->kv_dim; e++) {
        double sum = 0.0, size = 0.0;
        for (size_t j = 0; j < c->kv_len; j++) {
            if (!(p->logit_error[j] < 0.0)) {
                const double x = (double)p->kv[(b * c->kv_len + j) * c->kv_dim + e];
                sum += p->weight[j] * x;
                size += p->weight[j] * fabs(x);
            }
        }
        p->wide.value[wi + e] = sum;
        p->wide.error[wi + e] = sqrt(square(dot_error(size, p->terms)) + quotient(sum));
    }
}

/* Squared error of context column d of kv head g computed as Wv . wide (+ bv). */
static double deferred_error(const ref_case *c, const parts *p, size_t g, size_t d, size_t wi)
{
    const float *wv = p->v_weight + (g * c->v_head_dim + d) * c->kv_dim;
    double size = p->v_bias != NULL ? fabs((double)p->v_bias[g * c->v_head_dim + d]) : 0.0;
    double carried = 0.0;
    for (size_t e = 0; e < c->kv_dim; e++) {
        size += fabs((double)wv[e] * p->wide.value[wi + e]);
        carried += square((double)wv[e] * p->wide.error[wi + e]);
    }
    return carried + square(dot_error(size, c->kv_dim + 1));
}

static void copy_input(plane out, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        out.value[i] = (double)x[i];
        out.error[i] = 0.0;
        out.magnitude[i] = fabs((double)x[i]);
    }
}

static size_t mask_index(const ref_case *c, size_t b, size_t h, size_t i, size_t j)
{
    const size_t *n = c->mask_shape;
    const size_t mb = n[0] == 1 ? 0 : b, mh = n[1] == 1 ? 0 : h, mi = n[2] == 1 ? 0 : i;
    return ((mb * n[1] + mh) * n[2] + mi) * n[3] + j;
}

int ref_allowed(const ref_case *c, const attn_args *a, size_t b, size_t h, size_t i, size_t j)
{
    if (c->causal) {
        long offset = 0;
        if (c->align == REF_BOTTOM_RIGHT) {
            offset = (long)c->kv_len - (long)c->seq_len;
        } else if (c->align == REF_LENGTHS) {
            offset = (long)a->kv_lengths[b] - (long)c->seq_len;
        } else if (c->align == REF_OFFSET) {
            offset = c->offset;
        }
        if ((long)j > (long)i + offset) {
            return 0;
        }
    }
    if (c->lengths && (long)j >= (long)a->kv_lengths[b]) {
        return 0;
    }
    if (c->padding && a->key_keep[b * c->kv_len + j] == 0) {
        return 0;
    }
    if (c->bool_mask && a->mask_keep[mask_index(c, b, h, i, j)] == 0) {
        return 0;
    }
    if (c->additive) {
        const float add = a->mask_add[mask_index(c, b, h, i, j)];
        if (isinf(add) && add < 0.0F) {
            return 0;
        }
    }
    return 1;
}

static int is_same(const double *a, const double *b, size_t n)
{
    return memcmp(a, b, n * sizeof *a) == 0;
}

/* As many terms as a sum over n keys rounds like, of which a query sees `seen`. Equal rows give equal
 * terms, which round the same way again and again: their errors add up, to half a unit of the sum each
 * and no more, seen / 2 where REF_SAFETY * sqrt(seen^2 / 144) is allowed. */
static size_t terms_of(size_t n, size_t seen, size_t different)
{
    return seen > different ? n + (seen * seen / different - seen) / 10 : n;
}

/* Keys with rows of their own, of the kv head whose rows start at ki and vi. */
static size_t count_different(const ref_case *c, const parts *p, size_t ki, size_t vi)
{
    const size_t n = c->kv_len, dims = c->head_dim, width = c->v_head_dim;
    const double *k = p->k.value + ki, *v = p->v.value + vi;
    size_t different = 0;
    for (size_t j = 0; j < n; j++) {
        size_t twin = 0;
        while (twin < j && !(is_same(k + twin * dims, k + j * dims, dims) &&
                             is_same(v + twin * width, v + j * width, width))) {
            twin++;
        }
        different += twin == j;
    }
    return different;
}

/* One logit and its standard error; q and k point at the row's value/error/magnitude. */
static void score(const ref_case *c, const parts *p, size_t qi, size_t ki, double add,
                  double *logit, double *error)
{
    double sum = 0.0, size = 0.0, carried = 0.0;
    for (size_t d = 0; d < c->head_dim; d++) {
        const double q = p->q.value[qi + d], km = p->k.magnitude[ki + d];
        sum += q * p->k.value[ki + d];
        size += fabs(q) * km;
        carried += square(p->q.error[qi + d] * km) + square(q * p->k.error[ki + d]);
    }
    const double s = fabs(c->scale);
    *logit = c->scale * sum + add;
    *error = sqrt(square(s) * carried + square(dot_error(s * size + fabs(add), c->head_dim + 4)));
    if (isinf(*logit)) {
        *error = 0.0; /* from an infinite input: certain */
    }
}

/* Softmax over the allowed keys (logit_error < 0 marks a masked key). Returns the normaliser's
 * logarithm; weights of masked keys are 0. */
static void softmax_row(const ref_case *c, parts *p)
{
    const size_t n = c->kv_len;
    double top = -INFINITY, sum = 0.0;
    for (size_t j = 0; j < n; j++) {
        if (p->logit_error[j] < 0.0) {
            continue;
        }
        if (isnan(p->logit[j])) {
            top = NAN;
        }
        if (!(p->logit[j] <= top)) {
            top = isnan(top) ? top : p->logit[j];
        }
    }
    for (size_t j = 0; j < n; j++) {
        p->weight[j] = 0.0;
        if (!(p->logit_error[j] < 0.0)) {
            const double below = p->logit[j] - top;
            p->weight[j] = exp(below);
            if (isfinite(below)) {
                p->logit_error[j] = hypot(p->logit_error[j], U * below);
            }
            sum += p->weight[j];
        }
    }
    double worst = 0.0, top_error = 0.0;
    for (size_t j = 0; j < n; j++) {
        if (p->logit_error[j] < 0.0) {
            p->weight_error[j] = 0.0;
            continue;
        }
        p->weight[j] /= sum;
        if (p->weight[j] >= 1e-3) {
            top_error = fmax(top_error, REF_SAFETY * p->logit_error[j]);
        }
        if (p->logit[j] - top + REF_SAFETY * p->logit_error[j] > -90.0) {
            worst = fmax(worst, REF_SAFETY * p->logit_error[j]);
        }
    }
    const double exp_error = c->fast ? EXP_ERROR_FAST : EXP_ERROR;
    double common = square(U) * (0.25 + (double)p->terms / 14.0 + 4.0);
    for (size_t j = 0; j < n; j++) {
        if (p->weight[j] > 0.0) {
            common += square(p->weight[j]) * (square(p->logit_error[j]) + square(exp_error));
        }
    }
    for (size_t j = 0; j < n; j++) {
        const double e = p->logit_error[j];
        if (e < 0.0) {
            continue;
        }
        if (worst <= SMALL_LOGIT_ERROR) {
            p->weight_error[j] =
                p->weight[j] * sqrt(square(e) + square(exp_error) + common) + FLT_MIN;
        } else {
            /* A logit is uncertain by so much that its weight may be nearly anything. */
            const double shift = REF_SAFETY * e + top_error + 1e-5;
            const double logw = p->logit[j] - top - log(sum);
            const double up = exp(fmin(0.0, logw + shift)), down = p->weight[j] * exp(-shift);
            p->weight_error[j] =
                fmax(up - p->weight[j], p->weight[j] - down) * 1.001 / REF_SAFETY + FLT_MIN;
        }
    }
}

/* Columns that are summed side by side, for the sake of the cache. */
enum { COLUMNS = 16 };

/* What the errors of the weights do to the means of `columns` values per key, up to COLUMNS of them. */
static void move_by_weights(const ref_case *c, const parts *p, const double *values, size_t stride,
                            size_t columns, const double *mean, double *moved)
{
    double squares[COLUMNS] = {0}, linear[COLUMNS] = {0}, reach[COLUMNS] = {0};
    int large = 0;
    for (size_t j = 0; j < c->kv_len; j++) {
        if (p->logit_error[j] < 0.0) {
            continue;
        }
        const double we = p->weight_error[j];
        const int counts = p->weight[j] + REF_SAFETY * we > 1e-30;
        large |= we > SMALL_LOGIT_ERROR * 0.1 / REF_SAFETY;
        for (size_t d = 0; d < columns; d++) {
            const double away = fabs(values[j * stride + d] - mean[d]);
            squares[d] += square(we * away);
            linear[d] += we * away;
            reach[d] = counts && away > reach[d] ? away : reach[d];
        }
    }
    for (size_t d = 0; d < columns; d++) {
        moved[d] = sqrt((large ? square(fmin(linear[d], reach[d])) : 0.0) + squares[d]);
    }
}

/* The context row of one query head: value and error for each of the V columns. */
static void context_row(const ref_case *c, parts *p, size_t b, size_t h, size_t vi, size_t ci)
{
    const size_t g = h / (c->heads / c->kv_heads);
    const size_t wi = ci / c->v_head_dim * c->kv_dim;
    if (c->values != REF_PROJECTED) {
        weigh_inputs(c, p, b, wi);
    }
    const size_t width = c->v_head_dim, n = c->kv_len;
    double *mean = p->context.value + ci, moved[COLUMNS];
    for (size_t d = 0; d < width; d++) {
        double sum = 0.0, size = 0.0, carried = 0.0, floor = 0.0;
        for (size_t j = 0; j < n; j++) {
            if (!(p->logit_error[j] < 0.0)) {
                const size_t at = vi + j * width + d;
                sum += p->weight[j] * p->v.value[at];
                size += p->weight[j] * p->v.magnitude[at];
                carried += square(p->weight[j] * p->v.error[at]);
                floor += FLT_MIN * p->v.magnitude[at];
            }
        }
        /* Of folded values the rounding is the output's. */
        const double own = c->values == REF_PROJECTED
                               ? carried + square(dot_error(size, p->terms)) + quotient(sum)
                           : c->values == REF_BETWEEN ? deferred_error(c, p, g, d, wi)
                                                      : 0.0;
        mean[d] = sum;
        p->own[ci + d] = sqrt(own) + floor + TINY;
    }
    for (size_t d0 = 0; d0 < width; d0 += COLUMNS) {
        const size_t columns = width - d0 < COLUMNS ? width - d0 : COLUMNS;
        move_by_weights(c, p, p->v.value + vi + d0, width, columns, mean + d0, moved);
        for (size_t d = d0; d < d0 + columns; d++) {
            p->context.error[ci + d] =
                sqrt(square(moved[d - d0]) + division(mean[d], p->terms) + square(p->own[ci + d]));
        }
    }
}

static void uniform_row(const ref_case *c, parts *p)
{
    for (size_t j = 0; j < c->kv_len; j++) {
        p->weight[j] = 1.0 / (double)c->kv_len;
        p->logit_error[j] = 0.0;
        p->weight_error[j] = U / (double)c->kv_len;
    }
}

static void fill_row(plane out, size_t at, size_t n, double value)
{
    for (size_t d = 0; d < n; d++) {
        out.value[at + d] = value;
        out.error[at + d] = 0.0;
    }
}

static void store_weights(const ref_case *c, const parts *p, ref_result *r, size_t b, size_t h,
                          size_t i)
{
    const size_t n = c->kv_len;
    if (c->return_weights == REF_WEIGHTS_PER_HEAD) {
        const size_t at = ((b * c->heads + h) * c->seq_len + i) * n;
        for (size_t j = 0; j < n; j++) {
            r->weights[at + j] = p->weight[j];
            r->weights_tol[at + j] = REF_SAFETY * p->weight_error[j];
        }
    } else if (c->return_weights == REF_WEIGHTS_MEAN) {
        const size_t at = (b * c->seq_len + i) * n;
        const double heads = (double)c->heads;
        for (size_t j = 0; j < n; j++) {
            if (h == 0) {
                r->weights[at + j] = 0.0;
                r->weights_tol[at + j] = 0.0;
            }
            r->weights[at + j] += p->weight[j] / heads;
            if (p->weight_error[j] > 0.0) {
                r->weights_tol[at + j] +=
                    REF_SAFETY * (p->weight_error[j] / heads + U * p->weight[j]);
            }
        }
    }
}

/* Everything of one (item, head, query) up to the context row. */
static void attend(const ref_case *c, const attn_args *a, parts *p, ref_result *r, size_t b,
                   size_t h, size_t i)
{
    const size_t g = h / (c->heads / c->kv_heads), n = c->kv_len;
    const size_t qi = ((b * c->heads + h) * c->seq_len + i) * c->head_dim;
    const size_t ki = (b * c->kv_heads + g) * n * c->head_dim;
    const size_t vi = (b * c->kv_heads + g) * n * c->v_head_dim;
    const size_t ci = ((b * c->heads + h) * c->seq_len + i) * c->v_head_dim;
    size_t allowed = 0;
    if (i == 0 && h % (c->heads / c->kv_heads) == 0) {
        p->different[g] = count_different(c, p, ki, vi);
    }
    memset(p->own + ci, 0, c->v_head_dim * sizeof *p->own);
    if (c->values != REF_PROJECTED) {
        fill_row(p->wide, ci / c->v_head_dim * c->kv_dim, c->kv_dim, 0.0);
    }
    for (size_t j = 0; j < n; j++) {
        p->weight[j] = p->weight_error[j] = 0.0;
        p->logit_error[j] = -1.0;
        if (ref_allowed(c, a, b, h, i, j)) {
            const double add = c->additive ? (double)a->mask_add[mask_index(c, b, h, i, j)] : 0.0;
            score(c, p, qi, ki + j * c->head_dim, add, &p->logit[j], &p->logit_error[j]);
            if (c->keys != REF_PROJECTED) {
                /* q . k and the lifted product differ by q . bk, which softmax ignores, and in
                 * what an infinite input gives. */
                double logit = 0.0;
                lifted_score(c, p, p->kv + (b * n + j) * c->kv_dim,
                             ((b * c->heads + h) * c->seq_len + i) * c->kv_dim, add, &logit,
                             &p->logit_error[j]);
                p->logit[j] = isfinite(p->logit[j]) ? p->logit[j] : logit;
            }
            allowed++;
        }
    }
    /* without allowed keys the mean of all of them may be wanted */
    p->terms = terms_of(n, allowed != 0 ? allowed : n, p->different[g]);
    if (c->zero_padded_queries && (long)i >= (long)a->kv_lengths[b]) {
        memset(p->weight, 0, n * sizeof *p->weight);
        memset(p->weight_error, 0, n * sizeof *p->weight_error);
        fill_row(p->context, ci, c->v_head_dim, 0.0);
    } else if (allowed != 0) {
        softmax_row(c, p);
        context_row(c, p, b, h, vi, ci);
    } else if (c->empty_row == REF_EMPTY_ZERO) {
        fill_row(p->context, ci, c->v_head_dim, 0.0);
    } else if (c->empty_row == REF_EMPTY_UNIFORM) {
        uniform_row(c, p);
        context_row(c, p, b, h, vi, ci);
    } else {
        for (size_t j = 0; j < n; j++) {
            p->weight[j] = NAN;
        }
        fill_row(p->context, ci, c->v_head_dim, NAN);
    }
    store_weights(c, p, r, b, h, i);
}

/* outputs[h][j][o] = sum over d of Wo[o][h,d] v[b,g,j,d] */
static void project_values(const ref_case *c, const attn_weights *w, parts *p, size_t b)
{
    const size_t width = c->v_head_dim, rows = c->kv_len;
    for (size_t at = 0; at < c->heads * rows * c->d_model; at++) {
        const size_t h = at / c->d_model / rows, j = at / c->d_model % rows, o = at % c->d_model;
        const size_t g = h / (c->heads / c->kv_heads);
        const double *v = p->v.value + ((b * c->kv_heads + g) * rows + j) * width;
        const float *wo = w->o_weight + (o * c->heads + h) * width;
        double sum = 0.0;
        for (size_t d = 0; d < width; d++) {
            sum += (double)wo[d] * v[d];
        }
        p->outputs[at] = sum;
    }
}

/* Adds the errors of one head's context to the row of y they go to. An error of a weight, or of the
 * sum, is one for all columns: Wo adds it up with its signs. Heads that share keys and values share
 * their errors: those of one kv head add up whatever the sign. */
static void carry_head(const ref_case *c, const attn_weights *w, parts *p, size_t b, size_t h,
                       size_t i)
{
    const size_t width = c->v_head_dim, group = c->heads / c->kv_heads;
    const size_t ci = ((b * c->heads + h) * c->seq_len + i) * width;
    const double *outputs = p->outputs + h * c->kv_len * c->d_model;
    for (size_t o0 = 0; o0 < c->d_model; o0 += COLUMNS) {
        const size_t columns = c->d_model - o0 < COLUMNS ? c->d_model - o0 : COLUMNS;
        double mean[COLUMNS] = {0}, own[COLUMNS] = {0}, moved[COLUMNS];
        for (size_t o = 0; o < columns; o++) {
            const float *wo = w->o_weight + ((o0 + o) * c->heads + h) * width;
            for (size_t d = 0; d < width; d++) {
                mean[o] += (double)wo[d] * p->context.value[ci + d];
                own[o] += square((double)wo[d] * p->own[ci + d]);
            }
        }
        move_by_weights(c, p, outputs + o0, c->d_model, columns, mean, moved);
        for (size_t o = 0; o < columns; o++) {
            const double first = h % group == 0 ? 0.0 : p->together[o0 + o];
            const double error =
                first + sqrt(square(moved[o]) + division(mean[o], p->terms) + own[o]);
            p->together[o0 + o] = error;
            if (h % group == group - 1) {
                p->squared[o0 + o] = (h < group ? 0.0 : p->squared[o0 + o]) + square(error);
            }
        }
    }
}

/* Squared error of y[o] as (Wo Wv) . wide + bias, beyond that of the weights. */
static double folded_error(const ref_case *c, const parts *p, size_t b, size_t i, size_t o,
                           double bias)
{
    double size = bias, carried = 0.0;
    for (size_t h = 0; h < c->heads; h++) {
        const size_t wi = ((b * c->heads + h) * c->seq_len + i) * c->kv_dim;
        for (size_t e = 0; e < c->kv_dim; e++) {
            const double weight = p->wov[(o * c->heads + h) * c->kv_dim + e];
            size += fabs(weight * p->wide.value[wi + e]);
            carried += square(weight * p->wide.error[wi + e]);
        }
    }
    return carried + square(dot_error(size, c->heads * c->kv_dim + 1));
}

/* y row of (b, i) from the context rows of all heads. */
static void output_row(const ref_case *c, const attn_weights *w, const parts *p, ref_result *r,
                       size_t b, size_t i)
{
    const size_t width = c->v_head_dim, hv = c->heads * width;
    const size_t at = (b * c->seq_len + i) * r->sizes.y_row;
    for (size_t o = 0; o < r->sizes.y_row; o++) {
        double sum = c->o_bias ? (double)w->o_bias[o] : 0.0;
        double size = fabs(sum), carried = c->output_projection ? p->squared[o] : 0.0, moved = 0.0;
        for (size_t f = 0; f < hv; f++) {
            const size_t h = f / width, d = f % width;
            const size_t ci = ((b * c->heads + h) * c->seq_len + i) * width + d;
            if (!c->output_projection) {
                if (f == o) {
                    sum = p->context.value[ci];
                    carried = square(p->context.error[ci]);
                }
                continue;
            }
            const double wo = (double)w->o_weight[o * hv + f];
            const size_t g = h / (c->heads / c->kv_heads);
            const double bv = c->v_bias ? fabs((double)w->v_bias[g * width + d]) : 0.0;
            sum += wo * p->context.value[ci];
            size += fabs(wo) * (fabs(p->context.value[ci]) + 2.0 * bv);
            moved += fabs(wo) * bv;
        }
        double own = c->output_projection ? square(dot_error(size, hv + 1)) : 0.0;
        if (c->values == REF_FOLDED) {
            own =
                folded_error(c, p, b, i, o, c->o_bias ? fabs((double)w->o_bias[o]) + moved : moved);
        }
        r->y[at + o] = sum;
        r->y_tol[at + o] = REF_SAFETY * sqrt(carried + own) + TINY;
    }
}

void ref_run(const ref_case *c, const attn_weights *w, const attn_args *a, ref_result *r)
{
    parts p = carve(c, r->scratch, r->different);
    if (c->sdpa) {
        copy_input(p.q, a->q, r->sizes.q);
        copy_input(p.k, a->k, r->sizes.k);
        copy_input(p.v, a->v, r->sizes.v);
    } else {
        const float *kv = c->cross ? a->context : a->x;
        const int appends = c->cache == REF_CACHE_APPEND;
        const int32_t *ends = appends ? a->kv_lengths : NULL;
        const size_t rows = appends ? c->seq_len : c->kv_len;
        project(p.q, a->x + ref_x_row(c, 0) * c->d_model, w->q_weight, c->q_bias ? w->q_bias : NULL,
                c->batch, c->seq_len, ref_x_rows(c), c->d_model, c->heads, c->head_dim, c->seq_len,
                NULL);
        if (c->cache != REF_CACHE_NONE) {
            copy_input(p.k, appends ? a->k_cache : a->k, appends ? r->sizes.k_cache : r->sizes.k);
            copy_input(p.v, appends ? a->v_cache : a->v, appends ? r->sizes.v_cache : r->sizes.v);
        }
        if (c->cache != REF_CACHE_STATIC) {
            project(p.k, kv, w->k_weight, c->k_bias ? w->k_bias : NULL, c->batch, rows, rows,
                    c->kv_dim, c->kv_heads, c->head_dim, c->kv_len, ends);
            project(p.v, kv, w->v_weight, c->v_bias ? w->v_bias : NULL, c->batch, rows, rows,
                    c->kv_dim, c->kv_heads, c->v_head_dim, c->kv_len, ends);
        }
        if (appends) {
            store_cache(c, a, p.k, c->head_dim, r->k_cache, r->k_cache_tol);
            store_cache(c, a, p.v, c->v_head_dim, r->v_cache, r->v_cache_tol);
        }
        p.kv = kv;
        p.v_weight = w->v_weight;
        p.v_bias = c->v_bias ? w->v_bias : NULL;
        if (c->keys == REF_FOLDED || c->values == REF_FOLDED) {
            multiply_weights(c, w, &p);
        }
        if (c->keys != REF_PROJECTED) {
            lift_queries(c, w, a->x + ref_x_row(c, 0) * c->d_model, &p);
        }
    }
    for (size_t b = 0; b < c->batch; b++) {
        if (c->output_projection) {
            project_values(c, w, &p, b);
        }
        for (size_t i = 0; i < c->seq_len; i++) {
            for (size_t h = 0; h < c->heads; h++) {
                attend(c, a, &p, r, b, h, i);
                if (c->output_projection) {
                    carry_head(c, w, &p, b, h, i);
                }
                if (c->sdpa) {
                    const size_t at = ((b * c->heads + h) * c->seq_len + i) * c->v_head_dim;
                    for (size_t d = 0; d < c->v_head_dim; d++) {
                        r->y[at + d] = p.context.value[at + d];
                        r->y_tol[at + d] = REF_SAFETY * p.context.error[at + d] + TINY;
                    }
                }
            }
            if (c->sdpa) {
                continue;
            }
            output_row(c, w, &p, r, b, i);
            if (c->zero_padded_queries && (long)i >= (long)a->kv_lengths[b]) {
                const size_t at = (b * c->seq_len + i) * r->sizes.y_row;
                memset(r->y + at, 0, r->sizes.y_row * sizeof *r->y);
                memset(r->y_tol + at, 0, r->sizes.y_row * sizeof *r->y_tol);
            }
        }
    }
}

size_t ref_compare(const float *got, const double *want, const double *tol, size_t n, int loose,
                   double *worst)
{
    for (size_t i = 0; i < n; i++) {
        const double g = (double)got[i];
        if (!isfinite(want[i])) {
            if (isnan(want[i]) && !loose ? !isnan(g) : isfinite(g)) {
                return i;
            }
            continue;
        }
        const double error = fabs(g - want[i]);
        if (!(error <= tol[i])) {
            return i;
        }
        if (tol[i] > 0.0 && error / tol[i] > *worst) {
            *worst = error / tol[i];
        }
    }
    return n;
}

size_t ref_agree(const double *a, const double *b, const double *tol, size_t n)
{
    /* Double rounds 2^-29 times as coarsely as float; the rest covers logits that cancel. */
    for (size_t i = 0; i < n; i++) {
        const int nan = isnan(a[i]) || isnan(b[i]);
        if (nan ? !(isnan(a[i]) && isnan(b[i])) : !(fabs(a[i] - b[i]) <= 0x1p-20 * tol[i])) {
            return i;
        }
    }
    return n;
}
