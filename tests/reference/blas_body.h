/* Body of the dense OpenBLAS path, included once for float and once for double.
 * Expects REAL, GEMM, EXP and NAME(x). Deliberately no include guard. */

static const REAL *NAME(widen)(const float *from, size_t n, REAL *to)
{
    for (size_t i = 0; i < n; i++) {
        to[i] = (REAL)from[i];
    }
    return to;
}

/* out[rows, n] = in[rows, k] * weight[n, k]^T + bias */
static void NAME(linear)(REAL *out, const REAL *in, const float *weight, const float *bias,
                         size_t rows, size_t n, size_t k, REAL *scratch)
{
    for (size_t r = 0; r < rows; r++) {
        for (size_t o = 0; o < n; o++) {
            out[r * n + o] = bias != NULL ? (REAL)bias[o] : (REAL)0;
        }
    }
    GEMM(CblasRowMajor, CblasNoTrans, CblasTrans, (blasint)rows, (blasint)n, (blasint)k, 1, in,
         (blasint)k, NAME(widen)(weight, n * k, scratch), (blasint)k, 1, out, (blasint)n);
}

/* Dense softmax of one row under a dense mask; drop[j] != 0 removes key j. */
static void NAME(softmax)(const ref_case *c, REAL *row, const unsigned char *drop, int *empty)
{
    const size_t n = c->kv_len;
    REAL top = (REAL)-INFINITY, sum = 0;
    size_t kept = 0;
    for (size_t j = 0; j < n; j++) {
        if (!drop[j]) {
            kept++;
            top = row[j] > top ? row[j] : top;
        }
    }
    *empty = kept == 0;
    for (size_t j = 0; j < n; j++) {
        if (kept == 0) {
            row[j] = c->empty_row == REF_EMPTY_ZERO  ? (REAL)0
                     : c->empty_row == REF_EMPTY_NAN ? (REAL)NAN
                                                     : 1 / (REAL)n;
            continue;
        }
        row[j] = drop[j] ? (REAL)0 : EXP(row[j] - top);
        sum += row[j];
    }
    for (size_t j = 0; kept != 0 && j < n; j++) {
        row[j] /= sum;
    }
}

/* The caller's cache [B,G,S,width] with the new rows `fresh` [B*L, G*width] in their places. */
static void NAME(append)(const ref_case *c, const int32_t *lengths, REAL *cache, const REAL *fresh,
                         size_t width)
{
    for (size_t b = 0; b < c->batch; b++) {
        for (size_t i = 0; i < c->seq_len; i++) {
            const size_t token = (size_t)lengths[b] - c->seq_len + i;
            for (size_t g = 0; g < c->kv_heads; g++) {
                memcpy(cache + ((b * c->kv_heads + g) * c->kv_len + token) * width,
                       fresh + ((b * c->seq_len + i) * c->kv_heads + g) * width,
                       width * sizeof *cache);
            }
        }
    }
}

int NAME(blas_attention)(const ref_case *c, const attn_weights *w, const attn_args *a, REAL *y,
                         REAL *weights)
{
    const size_t nb = c->batch, nl = c->seq_len, ns = c->kv_len, nh = c->heads, ng = c->kv_heads;
    const size_t nd = c->head_dim, nv = c->v_head_dim;
    const ref_sizes n = ref_case_sizes(c);
    const size_t largest = n.x + n.context + n.q_weight + n.k_weight + n.v_weight + n.o_weight;
    const size_t q_size = nb * nl * nh * nd, k_size = nb * ns * ng * nd, v_size = nb * ns * ng * nv;
    const size_t fresh_size = nb * nl * ng * (nd > nv ? nd : nv);
    const size_t total =
        q_size + k_size + v_size + nb * nl * nh * nv + nl * ns + 2 * largest + fresh_size;
    REAL *memory = calloc(total, sizeof *memory);
    unsigned char *drop = malloc(nl * ns);
    if (memory == NULL || drop == NULL) {
        free(memory);
        free(drop);
        return -1;
    }
    REAL *q = memory, *k = q + q_size, *v = k + k_size, *heads = v + v_size;
    REAL *scores = heads + nb * nl * nh * nv, *input = scores + nl * ns, *scratch = input + largest;
    REAL *fresh = scratch + largest;
    const int by_head = c->sdpa || c->cache != REF_CACHE_NONE; /* k and v are [B,G,S,width] */
    size_t q_step = nh * nd, k_step = ng * nd, v_step = ng * nv;
    pthread_mutex_lock(&blas_lock);
    openblas_set_num_threads(1);
    if (c->sdpa) {
        NAME(widen)(a->q, q_size, q);
        NAME(widen)(a->k, k_size, k);
        NAME(widen)(a->v, v_size, v);
        q_step = nd;
        k_step = nd;
        v_step = nv;
    } else {
        NAME(widen)(a->x, n.x, input);
        const size_t x_item = n.x / nb; /* projecting all rows would do, and cost more */
        const REAL *first = input + (c->queries == REF_QUERIES_LAST ? x_item - nl * c->d_model : 0);
        for (size_t b = 0; b < nb; b++) {
            NAME(linear)
            (q + b * nl * nh * nd, first + b * x_item, w->q_weight, w->q_bias, nl, nh * nd,
             c->d_model, scratch);
        }
        if (c->cross) {
            NAME(widen)(a->context, n.context, input);
        }
        if (by_head) {
            k_step = nd;
            v_step = nv;
        }
        if (c->cache == REF_CACHE_STATIC) {
            NAME(widen)(a->k, k_size, k);
            NAME(widen)(a->v, v_size, v);
        } else if (c->cache == REF_CACHE_APPEND) {
            NAME(widen)(a->k_cache, k_size, k);
            NAME(linear)
            (fresh, input, w->k_weight, w->k_bias, nb * nl, ng * nd, c->kv_dim, scratch);
            NAME(append)(c, a->kv_lengths, k, fresh, nd);
            NAME(widen)(a->v_cache, v_size, v);
            NAME(linear)
            (fresh, input, w->v_weight, w->v_bias, nb * nl, ng * nv, c->kv_dim, scratch);
            NAME(append)(c, a->kv_lengths, v, fresh, nv);
        } else {
            NAME(linear)(k, input, w->k_weight, w->k_bias, nb * ns, ng * nd, c->kv_dim, scratch);
            NAME(linear)(v, input, w->v_weight, w->v_bias, nb * ns, ng * nv, c->kv_dim, scratch);
        }
    }
    if (weights != NULL) {
        memset(weights, 0, n.weights * sizeof *weights);
    }
    for (size_t b = 0; b < nb; b++) {
        for (size_t h = 0; h < nh; h++) {
            const size_t g = h * ng / nh;
            const REAL *qh = c->sdpa ? q + (b * nh + h) * nl * nd : q + b * nl * q_step + h * nd;
            const REAL *kh = by_head ? k + (b * ng + g) * ns * nd : k + b * ns * k_step + g * nd;
            const REAL *vh = by_head ? v + (b * ng + g) * ns * nv : v + b * ns * v_step + g * nv;
            REAL *oh = c->sdpa ? heads + (b * nh + h) * nl * nv : heads + b * nl * nh * nv + h * nv;
            const size_t o_step = c->sdpa ? nv : nh * nv;
            GEMM(CblasRowMajor, CblasNoTrans, CblasTrans, (blasint)nl, (blasint)ns, (blasint)nd,
                 (REAL)c->scale, qh, (blasint)q_step, kh, (blasint)k_step, 0, scores, (blasint)ns);
            build_drop(c, a, b, h, drop);
            for (size_t i = 0; i < nl; i++) {
                int empty = 0;
                for (size_t j = 0; c->additive && j < ns; j++) {
                    scores[i * ns + j] += (REAL)a->mask_add[broadcast(c, b, h, i, j)];
                }
                NAME(softmax)(c, scores + i * ns, drop + i * ns, &empty);
                if (c->zero_padded_queries && i >= (size_t)a->kv_lengths[b]) {
                    memset(scores + i * ns, 0, ns * sizeof *scores);
                }
            }
            for (size_t i = 0; weights != NULL && i < nl * ns; i++) {
                if (c->return_weights == REF_WEIGHTS_MEAN) {
                    weights[b * nl * ns + i] += scores[i] / (REAL)nh;
                } else {
                    weights[(b * nh + h) * nl * ns + i] = scores[i];
                }
            }
            GEMM(CblasRowMajor, CblasNoTrans, CblasNoTrans, (blasint)nl, (blasint)nv, (blasint)ns,
                 1, scores, (blasint)ns, vh, (blasint)v_step, 0, oh, (blasint)o_step);
        }
    }
    if (!c->sdpa && c->output_projection) {
        NAME(linear)(y, heads, w->o_weight, w->o_bias, nb * nl, c->d_model, nh * nv, scratch);
    } else {
        memcpy(y, heads, n.y * sizeof *y);
    }
    if (c->zero_padded_queries && !c->sdpa) {
        for (size_t b = 0; b < nb; b++) {
            for (size_t i = (size_t)a->kv_lengths[b]; i < nl; i++) {
                memset(y + (b * nl + i) * n.y_row, 0, n.y_row * sizeof *y);
            }
        }
    }
    pthread_mutex_unlock(&blas_lock);
    free(memory);
    free(drop);
    return 0;
}
