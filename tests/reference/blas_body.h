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

int NAME(blas_attention)(const ref_case *c, const attn_weights *w, const attn_args *a, REAL *y,
                         REAL *weights)
{
    const size_t nb = c->batch, nl = c->seq_len, ns = c->kv_len, nh = c->heads, ng = c->kv_heads;
    const size_t nd = c->head_dim, nv = c->v_head_dim;
    const ref_sizes n = ref_case_sizes(c);
    const size_t largest = n.x + n.context + n.q_weight + n.k_weight + n.v_weight + n.o_weight;
    const size_t q_size = nb * nl * nh * nd, k_size = nb * ns * ng * nd, v_size = nb * ns * ng * nv;
    const size_t total = q_size + k_size + v_size + nb * nl * nh * nv + nl * ns + 2 * largest;
    REAL *memory = calloc(total, sizeof *memory);
    unsigned char *drop = malloc(nl * ns);
    if (memory == NULL || drop == NULL) {
        free(memory);
        free(drop);
        return -1;
    }
    REAL *q = memory, *k = q + q_size, *v = k + k_size, *heads = v + v_size;
    REAL *scores = heads + nb * nl * nh * nv, *input = scores + nl * ns, *scratch = input + largest;
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
        NAME(linear)(k, input, w->k_weight, w->k_bias, nb * ns, ng * nd, c->kv_dim, scratch);
        NAME(linear)(v, input, w->v_weight, w->v_bias, nb * ns, ng * nv, c->kv_dim, scratch);
    }
    if (weights != NULL) {
        memset(weights, 0, n.weights * sizeof *weights);
    }
    for (size_t b = 0; b < nb; b++) {
        for (size_t h = 0; h < nh; h++) {
            const size_t g = h * ng / nh;
            const REAL *qh = c->sdpa ? q + (b * nh + h) * nl * nd : q + b * nl * q_step + h * nd;
            const REAL *kh = c->sdpa ? k + (b * ng + g) * ns * nd : k + b * ns * k_step + g * nd;
            const REAL *vh = c->sdpa ? v + (b * ng + g) * ns * nv : v + b * ns * v_step + g * nv;
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
