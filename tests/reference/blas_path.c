/* The dense OpenBLAS path in float and double; see blas_path.h. */
#include "reference/blas_path.h"

#include <cblas.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t blas_lock = PTHREAD_MUTEX_INITIALIZER;

static size_t broadcast(const ref_case *c, size_t b, size_t h, size_t i, size_t j)
{
    const size_t index[4] = {b, h, i, j};
    size_t at = 0;
    for (int axis = 0; axis < 4; axis++) {
        at = at * c->mask_shape[axis] + (c->mask_shape[axis] > 1 ? index[axis] : 0);
    }
    return at;
}

/* Dense mask of one (item, head), one kind of mask after the other. */
static void build_drop(const ref_case *c, const attn_args *a, size_t b, size_t h,
                       unsigned char *drop)
{
    const long nl = (long)c->seq_len, ns = (long)c->kv_len;
    const long length = c->lengths ? (long)a->kv_lengths[b] : ns;
    memset(drop, 0, (size_t)(nl * ns));
    for (long i = 0; i < nl; i++) {
        unsigned char *row = drop + i * ns;
        long end = length; /* first dropped key */
        if (c->causal) {
            const long shift = c->align == REF_TOP_LEFT       ? 0
                               : c->align == REF_BOTTOM_RIGHT ? ns - nl
                               : c->align == REF_LENGTHS      ? length - nl
                                                              : c->offset;
            end = i + shift + 1 < end ? i + shift + 1 : end;
        }
        for (long j = end > 0 ? end : 0; j < ns; j++) {
            row[j] = 1;
        }
        for (long j = 0; j < ns; j++) {
            const size_t at =
                c->bool_mask || c->additive ? broadcast(c, b, h, (size_t)i, (size_t)j) : 0;
            const int keep = (!c->padding || a->key_keep[(long)b * ns + j]) &&
                             (!c->bool_mask || a->mask_keep[at]) &&
                             (!c->additive || !(a->mask_add[at] == -INFINITY));
            row[j] = (unsigned char)(row[j] | !keep);
        }
    }
}

#define REAL double
#define GEMM cblas_dgemm
#define EXP exp
#define NAME(x) x##_f64
#include "reference/blas_body.h"
#undef REAL
#undef GEMM
#undef EXP
#undef NAME

#define REAL float
#define GEMM cblas_sgemm
#define EXP expf
#define NAME(x) x##_f32
#include "reference/blas_body.h"

void blas_describe(char *text, size_t size)
{
    openblas_set_num_threads(1);
    snprintf(text, size, "%s, core %s, %d thread", openblas_get_config(), openblas_get_corename(),
             openblas_get_num_threads());
}
