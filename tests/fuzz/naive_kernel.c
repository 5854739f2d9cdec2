/* A naive scalar kernel with plantable faults: the harness must kill every one of them.
 *
 * Implements the kernel contract for one shape given by macros (-DNK_BATCH=... written by
 * tests/mutants.lua). naive_mutant selects the fault; 0 is the correct kernel. */
#include <math.h>
#include <string.h>

#include "attngen/kernel.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

enum mutant {
    CORRECT,
    FLIP_KEEP,      /* mask polarity */
    SWAP_ALIGNMENT, /* top-left <-> bottom-right */
    TILE_KV_HEADS,  /* head h reads h % G */
    DROP_LAST_KEY,
    DROP_LAST_COLUMN, /* of the query-key product */
    SCALE_FROM_WIDTH, /* 1/sqrt(H*D) */
    SOFTMAX_OVER_QUERIES,
    SKIP_OUTPUT_BIAS,
    SWAP_K_AND_V,
    FIRST_ITEM_MASK, /* batch 0's mask for all */
    PERTURB_OUTPUT,  /* relative 1e-4 in one element */
    STORE_PAST_OUTPUT,
    READ_PAST_KEYS,
    READ_WORKSPACE,  /* result depends on what the workspace held */
    FLUSH_DENORMALS, /* leaves FTZ on */
    HIDE_NAN,        /* NaN becomes 0 */
    MULTIPLY_MASKED, /* masked values times weight 0 */
    FINITE_SENTINEL, /* maximum starts from -1e4 */
    NO_MAXIMUM,      /* exp of raw logits */
    SKIP_FIFTH_PART,
    TRUST_LENGTHS,     /* no range check */
    SCALE_MASK,        /* additive mask times the scale */
    EMPTY_ROW_WRONG,   /* uniform instead of zero, zero instead of the others */
    SUM_HEADS,         /* mean weights without the division */
    ALIGNMENT_MATTERS, /* other rounding when x is not 16-byte aligned */
    FUTURE_MAXIMUM,    /* reference maximum over all keys: same value, other bits */
    SKIP_QUERY_BIAS,
    PERTURB_WEIGHTS, /* relative 1e-4 in one returned weight */
    KEEP_STATE,      /* second call differs */
    LONG_LENGTHS,    /* lengths + 1 keys */
    COMPUTE_PADDED,  /* padded_queries = "zero" ignored */
    OTHER_END,       /* queries = "first" for "last" and the other way round */
    STALE_CACHE,     /* attends to what the cache held before the new tokens */
    SKIP_APPEND,     /* new tokens are not written to the cache */
    APPEND_LATE,     /* ... or one row too far */
    CLEAR_TAIL,      /* clears the cache behind the new tokens */
    SLOPPY_ROUNDING, /* inputs rounded to 16 bits of significand */
    MUTANTS
};

int naive_mutant = CORRECT;
int naive_mutant_count(void);

enum {
    B = NK_BATCH,
    L = NK_SEQ_LEN,
    S = NK_KV_LEN,
    H = NK_HEADS,
    G = NK_KV_HEADS,
    D = NK_HEAD_DIM,
    V = NK_V_HEAD_DIM,
    E = NK_D_MODEL,
    C = NK_KV_DIM,
    XL = NK_X_ROWS,
    QSIZE = H * D * E,
    KSIZE = NK_CACHE == 2 ? 0 : G * D * C,
    VSIZE = NK_CACHE == 2 ? 0 : G * V * C,
    OSIZE = NK_OUTPUT * E * H * V
};

static const size_t MASK_SHAPE[4] = {NK_MASK_SHAPE};

int naive_mutant_count(void)
{
    return MUTANTS;
}

static int is(enum mutant m)
{
    return naive_mutant == (int)m;
}

/* Packed: q, k, v, o weights, then their biases (zeros where the case has none). */
enum {
    QB = QSIZE + KSIZE + VSIZE + OSIZE,
    KB = QB + H * D,
    VB = KB + G * D,
    OB = VB + G * V,
    PACKED = OB + E
};

#if !NK_SDPA
static void copy(float *to, const float *from, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        to[i] = from != NULL ? from[i] : 0.0F;
    }
}

int naive_pack(const attn_weights *w, void *packed);

int naive_pack(const attn_weights *w, void *packed)
{
    float *p = packed;
    const int swap = is(SWAP_K_AND_V) && KSIZE == VSIZE;
    copy(p, w->q_weight, QSIZE);
    copy(p + QSIZE, swap ? w->v_weight : w->k_weight, KSIZE);
    copy(p + QSIZE + KSIZE, swap ? w->k_weight : w->v_weight, VSIZE);
    copy(p + QSIZE + KSIZE + VSIZE, w->o_weight, OSIZE);
    copy(p + QB, is(SKIP_QUERY_BIAS) || !NK_BIAS_Q ? NULL : w->q_bias, H * D);
    copy(p + KB, NK_BIAS_K ? w->k_bias : NULL, G * D);
    copy(p + VB, NK_BIAS_V ? w->v_bias : NULL, G * V);
    copy(p + OB, is(SKIP_OUTPUT_BIAS) || !NK_BIAS_O ? NULL : w->o_bias, E);
    return ATTN_OK;
}
#endif

/* Workspace: q [H,D] and context [H,V] of one query, k and v of one key, and a row of logits. */
enum { WQ = 0, WK = WQ + D, WC = WK + D, WS = WC + H * V, WM = WS + H * S, WORK = WM + S };

static float rounded(float x)
{
    if (is(SLOPPY_ROUNDING)) {
        uint32_t bits = 0;
        memcpy(&bits, &x, sizeof bits);
        bits &= UINT32_C(0xffffff00);
        memcpy(&x, &bits, sizeof x);
    }
    return x;
}

static float dot(const float *a, const float *b, size_t n, float start)
{
    for (size_t i = 0; i < n; i++) {
        start += rounded(a[i]) * b[i];
    }
    return start;
}

static const float *query(const float *p, const attn_args *a, int b, int h, int i, float *room)
{
#if NK_SDPA
    (void)p;
    (void)room;
    return a->q + ((b * H + h) * L + i) * D;
#else
    const int row = i + (is(OTHER_END) ? XL - L - NK_FIRST_QUERY : NK_FIRST_QUERY);
    for (int d = 0; d < D; d++) {
        room[d] = dot(a->x + (b * XL + row) * E, p + (h * D + d) * E, E, p[QB + h * D + d]);
    }
    return room;
#endif
}

/* The row of x or context that holds key j, or NULL where it is given. */
static const float *source(const attn_args *a, int b, int j)
{
    if (NK_SDPA || NK_CACHE == 2) {
        return NULL;
    }
    if (NK_CACHE == 1) {
        const int fresh = j - (a->kv_lengths[b] - L);
        return fresh < 0 || fresh >= L || is(STALE_CACHE) ? NULL : a->x + (b * L + fresh) * E;
    }
    return (NK_CROSS ? a->context : a->x) + (b * S + j) * C;
}

static const float *key(const float *p, const attn_args *a, int b, int g, int j, float *room)
{
    const float *x = source(a, b, j);
    if (x == NULL) {
        return (NK_CACHE == 1 ? a->k_cache : a->k) + ((b * G + g) * S + j) * D;
    }
    for (int d = 0; d < D; d++) {
        room[d] = dot(x, p + QSIZE + (g * D + d) * C, C, p[KB + g * D + d]);
    }
    return room;
}

static float value(const float *p, const attn_args *a, int b, int g, int j, int d)
{
    const float *x = source(a, b, j);
    if (x == NULL) {
        return (NK_CACHE == 1 ? a->v_cache : a->v)[((b * G + g) * S + j) * V + d];
    }
    return dot(x, p + QSIZE + KSIZE + (g * V + d) * C, C, p[VB + g * V + d]);
}

#if NK_CACHE == 1
/* Item b's new tokens to their places. */
static void append(const float *p, const attn_args *a, int b)
{
    const int first = a->kv_lengths[b] - L, late = is(APPEND_LATE) && a->kv_lengths[b] < S;
    for (int g = 0; g < G && !is(SKIP_APPEND); g++) {
        for (int i = 0; i < L; i++) {
            const float *x = a->x + (b * L + i) * E;
            const int row = (b * G + g) * S + first + i + late;
            for (int d = 0; d < D; d++) {
                a->k_cache[row * D + d] = dot(x, p + QSIZE + (g * D + d) * C, C, p[KB + g * D + d]);
            }
            for (int d = 0; d < V; d++) {
                a->v_cache[row * V + d] =
                    dot(x, p + QSIZE + KSIZE + (g * V + d) * C, C, p[VB + g * V + d]);
            }
        }
        for (int d = 0; d < V && is(CLEAR_TAIL) && a->kv_lengths[b] < S; d++) {
            a->v_cache[((b * G + g) * S + S - 1) * V + d] = 0.0F;
        }
    }
}
#endif

static size_t mask_at(int b, int h, int i, int j)
{
    const size_t *n = MASK_SHAPE;
    const size_t mb = n[0] == 1 ? 0 : (size_t)b, mh = n[1] == 1 ? 0 : (size_t)h;
    return ((mb * n[1] + mh) * n[2] + (n[2] == 1 ? 0 : (size_t)i)) * n[3] + (size_t)j;
}

static int allowed(const attn_args *a, int b, int h, int i, int j)
{
    const int mb = is(FIRST_ITEM_MASK) ? 0 : b;
    const int flip = is(FLIP_KEEP);
    const int length = NK_LENGTHS ? a->kv_lengths[mb] + is(LONG_LENGTHS) : S;
    int offset = NK_ALIGN == 0 ? 0 : NK_ALIGN == 1 ? S - L : NK_ALIGN == 2 ? length - L : NK_OFFSET;
    if (is(SWAP_ALIGNMENT) && NK_ALIGN < 2) {
        offset = S - L - offset;
    }
    if (is(DROP_LAST_KEY) && j == S - 1) {
        return 0;
    }
    return (!NK_CAUSAL || j <= i + offset) && (!NK_LENGTHS || j < length) &&
           (!NK_PADDING || (a->key_keep[mb * S + j] != 0) != flip) &&
           (!NK_BOOL || (a->mask_keep[mask_at(mb, h, i, j)] != 0) != flip) &&
           (!NK_ADDITIVE || a->mask_add[mask_at(mb, h, i, j)] != -INFINITY);
}

static float logit(const float *p, const attn_args *a, float *w, const float *q, int b, int h,
                   int i, int j)
{
    const float scale = is(SCALE_FROM_WIDTH) ? 1.0F / sqrtf((float)(H * D)) : (float)NK_SCALE;
    const int g = is(TILE_KV_HEADS) ? h % G : h / (H / G);
    const float *k = key(p, a, b, g, j, w + WK);
    float s = dot(q, k, (size_t)(is(DROP_LAST_COLUMN) ? D - 1 : D), 0.0F) * scale;
    if (NK_ADDITIVE) {
        s += a->mask_add[mask_at(b, h, i, j)] * (is(SCALE_MASK) ? scale : 1.0F);
    }
    return s;
}

/* Weights of one row into w[WS + h*S ...]; returns whether any key was allowed. */
static int softmax_row(const float *p, const attn_args *a, float *w, int b, int h, int i)
{
    float *row = w + WS + h * S;
    const float *q = query(p, a, b, h, i, w + WQ);
    float top = is(FINITE_SENTINEL) ? -1e4F : -INFINITY, sum = 0.0F;
    int kept = 0;
    for (int j = 0; j < S; j++) {
        const int keep = allowed(a, b, h, i, j);
        w[WM + j] = (float)keep;
        if (keep || is(FUTURE_MAXIMUM)) {
            row[j] = logit(p, a, w, q, b, h, i, j);
            top = row[j] > top ? row[j] : top;
        }
        kept += keep;
    }
    if (is(NO_MAXIMUM)) {
        top = 0.0F;
    }
    for (int j = 0; j < S; j++) {
        row[j] = w[WM + j] != 0.0F ? expf(row[j] - top) : 0.0F;
        sum += row[j];
    }
    if (is(SOFTMAX_OVER_QUERIES)) {
        /* Normalise each weight by its column: recompute the raw logits of the other queries. */
        for (int j = 0; j < S; j++) {
            float column = 0.0F;
            for (int o = 0; o < L; o++) {
                const float *other = query(p, a, b, h, o, w + WQ);
                column += allowed(a, b, h, o, j) ? expf(logit(p, a, w, other, b, h, o, j)) : 0.0F;
            }
            row[j] = row[j] * expf(top) / (column + 1e-30F);
        }
        return kept != 0;
    }
    const int uniform = kept == 0 && (NK_EMPTY == 1 || (is(EMPTY_ROW_WRONG) && NK_EMPTY == 0));
    const int nan = kept == 0 && NK_EMPTY == 2 && !is(EMPTY_ROW_WRONG);
    for (int j = 0; j < S; j++) {
        if (kept != 0) {
            row[j] = w[WM + j] != 0.0F ? row[j] / sum : 0.0F;
        } else {
            row[j] = nan ? NAN : uniform ? 1.0F / (float)S : 0.0F;
        }
        w[WM + j] = kept == 0 ? (float)(uniform || nan) : w[WM + j];
    }
    return kept != 0 || uniform || nan;
}

static void store_weights(const attn_args *a, const float *w, int b, int i)
{
    for (int j = 0; j < S; j++) {
        float sum = 0.0F;
        for (int h = 0; h < H; h++) {
            sum += w[WS + h * S + j];
            if (NK_WEIGHTS == 1) {
                a->weights[((b * H + h) * L + i) * S + j] = w[WS + h * S + j];
            }
        }
        if (NK_WEIGHTS == 2) {
            a->weights[(b * L + i) * S + j] = is(SUM_HEADS) ? sum : sum / (float)H;
        }
    }
    if (NK_WEIGHTS != 0 && is(PERTURB_WEIGHTS)) {
        a->weights[S / 2] *= 1.0001F;
    }
}

static void context_row(const float *p, const attn_args *a, float *w, int b, int h)
{
    const int g = is(TILE_KV_HEADS) ? h % G : h / (H / G);
    for (int d = 0; d < V; d++) {
        float sum = 0.0F;
        for (int j = 0; j < S; j++) {
            if (w[WM + j] != 0.0F || is(MULTIPLY_MASKED)) {
                sum += w[WS + h * S + j] * value(p, a, b, g, j, d);
            }
        }
        w[WC + h * V + d] = is(HIDE_NAN) && isnan(sum) ? 0.0F : sum;
    }
}

static void query_row(const float *p, const attn_args *a, float *w, int b, int i)
{
    static int calls;
    const int padded = NK_ZERO_PADDED && i >= a->kv_lengths[b] && !is(COMPUTE_PADDED);
    const float unclean = is(READ_WORKSPACE) ? w[0] * 1e-30F : 0.0F;
    calls++;
    for (int h = 0; h < H; h++) {
        const int any = !padded && softmax_row(p, a, w, b, h, i);
        for (int j = 0; j < S && !any; j++) {
            w[WS + h * S + j] = 0.0F;
        }
        for (int d = 0; d < V && !any; d++) {
            w[WC + h * V + d] = 0.0F;
        }
        if (any) {
            context_row(p, a, w, b, h);
        }
    }
    store_weights(a, w, b, i);
    for (int o = 0; o < (NK_OUTPUT ? E : H * V); o++) {
        float y = w[WC + (NK_OUTPUT ? 0 : o)];
#if NK_OUTPUT
        y = dot(w + WC, p + QSIZE + KSIZE + VSIZE + o * H * V, H * V, p[OB + o]);
#endif
        y = padded ? 0.0F : y + unclean;
        y *= is(PERTURB_OUTPUT) && o == 0 ? 1.0001F : 1.0F;
        y *= is(KEEP_STATE) && calls % 7 == 0 ? 1.0000001F : 1.0F;
        if (is(ALIGNMENT_MATTERS) && (uintptr_t)(NK_SDPA ? a->q : a->x) % 16 != 0) {
            y *= 1.0000001F;
        }
#if NK_SDPA
        a->y[((b * H + o / V) * L + i) * V + o % V] = y;
#else
        a->y[(b * L + i) * (NK_OUTPUT ? E : H * V) + o] = y;
#endif
    }
}

static int check_args(const void *packed, const attn_args *a, const void *workspace)
{
    if (a == NULL || workspace == NULL || (!NK_SDPA && (packed == NULL || a->x == NULL)) ||
        (NK_SDPA && (a->q == NULL || a->k == NULL || a->v == NULL)) || a->y == NULL ||
        (NK_CROSS && a->context == NULL) || (NK_CACHE == 2 && (a->k == NULL || a->v == NULL)) ||
        (NK_CACHE == 1 && (a->k_cache == NULL || a->v_cache == NULL)) ||
        (NK_LENGTHS && a->kv_lengths == NULL) || (NK_PADDING && a->key_keep == NULL) ||
        (NK_BOOL && a->mask_keep == NULL) || (NK_ADDITIVE && a->mask_add == NULL) ||
        (NK_WEIGHTS && a->weights == NULL)) {
        return ATTN_E_NULL;
    }
    if ((uintptr_t)workspace % 64 != 0 || (uintptr_t)packed % 64 != 0) {
        return ATTN_E_ALIGN;
    }
    for (int b = 0; NK_LENGTHS && !is(TRUST_LENGTHS) && b < B; b++) {
        if (a->kv_lengths[b] < (NK_CACHE == 1 ? L : 0) || a->kv_lengths[b] > S) {
            return ATTN_E_LENGTH;
        }
    }
    return ATTN_OK;
}

static int forward_part(const void *packed, const attn_args *a, void *workspace, uint32_t phase,
                        uint32_t part, uint32_t parts)
{
    const int status = check_args(packed, a, workspace);
    if (status != ATTN_OK) {
        return status;
    }
    if (phase != 0 || part >= parts) {
        return ATTN_E_PART;
    }
    if (is(TRUST_LENGTHS) && NK_LENGTHS) {
        for (int b = 0; b < B; b++) {
            if (a->kv_lengths[b] < (NK_CACHE == 1 ? L : 0) || a->kv_lengths[b] > S) {
                return ATTN_OK;
            }
        }
    }
    for (uint32_t row = part; row < (uint32_t)(B * L); row += parts) {
        if (!(is(SKIP_FIFTH_PART) && part == 4)) {
            query_row(packed, a, (float *)workspace + part * (uint32_t)(WORK + 16), (int)row / L,
                      (int)row % L);
        }
    }
#if NK_CACHE == 1
    for (int b = 0; b < B && part + 1 == parts; b++) {
        append(packed, a, b);
    }
#endif
    if (is(STORE_PAST_OUTPUT)) {
        volatile float *end = a->y + NK_Y;
        *end = 1.0F;
    }
    if (is(READ_PAST_KEYS)) {
        const volatile float *end = NK_SDPA ? a->k + B * G * S * D : a->x + B * XL * E;
        (void)*end;
    }
#if defined(__x86_64__)
    if (is(FLUSH_DENORMALS)) {
        _mm_setcsr(_mm_getcsr() | 0x8000U);
    }
#endif
    return ATTN_OK;
}

static int forward(const void *packed, const attn_args *a, void *workspace)
{
    return forward_part(packed, a, workspace, 0, 0, 1);
}

extern const attn_kernel naive_kernel;
const attn_kernel naive_kernel = {
    ATTN_KERNEL_ABI,
    0,
    NK_TENSORS,
    1,
    "naive",
    "scalar",
    0,
    0,
    B,
    L,
    S,
    E,
    C,
    H,
    G,
    D,
    V,
    {NK_MASK_SHAPE},
    NK_Y,
    NK_W,
    NK_SDPA ? 0 : PACKED * sizeof(float),
    (WORK + 16) * sizeof(float),
    (WORK + 16) * sizeof(float),
    64,
    1,
    forward,
    forward_part,
};
