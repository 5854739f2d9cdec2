/* Four bundles in one program, headers included twice; compiled as C and as C++ (BC-54).
 * Zero queries and keys make every allowed key equally likely, so each answer is a mean. */
#include "five_none_avx2.h"
#include "four_causal_avx2.h"
#include "four_none_avx2.h"
#include "four_none_scalar.h"

#include "five_none_avx2.h"
#include "four_causal_avx2.h"
#include "four_none_avx2.h"
#include "four_none_scalar.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WIDTH = 4, BYTES = 65536 };

typedef int (*pack_function)(const attn_weights *, void *);

#if defined(__cplusplus)
#define ALIGNED alignas(128)
#else
#define ALIGNED _Alignas(128)
#endif

ALIGNED static unsigned char packed[BYTES];
ALIGNED static unsigned char workspace[BYTES];

/* y[i] must be the mean of tokens 0..last(i), token j holding 2^j in every column. */
static int check(const attn_kernel *k, pack_function pack, int causal)
{
    float zero[WIDTH * WIDTH], unit[WIDTH * WIDTH], bias[WIDTH], x[8 * WIDTH], y[8 * WIDTH];
    attn_weights w;
    attn_args a;
    int bad = 0;
    memset(zero, 0, sizeof zero);
    memset(unit, 0, sizeof unit);
    memset(bias, 0, sizeof bias);
    memset(&w, 0, sizeof w);
    memset(&a, 0, sizeof a);
    for (int i = 0; i < WIDTH; i++) {
        unit[i * WIDTH + i] = 1.0F;
    }
    for (size_t i = 0; i < k->seq_len * WIDTH; i++) {
        x[i] = (float)(1 << i / WIDTH);
    }
    w.q_weight = zero;
    w.k_weight = zero;
    w.v_weight = unit;
    w.o_weight = unit;
    w.q_bias = w.k_bias = w.v_bias = w.o_bias = bias;
    a.x = x;
    a.y = y;
    if (k->packed_bytes > BYTES || k->workspace_bytes > BYTES || pack(&w, packed) != ATTN_OK ||
        k->forward(packed, &a, workspace) != ATTN_OK) {
        printf("%s: no answer\n", k->name);
        return 1;
    }
    for (size_t i = 0; i < k->seq_len * WIDTH; i++) {
        const size_t keys = causal ? i / WIDTH + 1 : k->seq_len;
        const float want = ((float)(1 << keys) - 1.0F) / (float)keys;
        if (!(fabsf(y[i] - want) <= 1e-5F * want)) {
            printf("%s: y[%u] is %g, expected %g\n", k->name, (unsigned)i, (double)y[i],
                   (double)want);
            bad = 1;
        }
    }
    return bad;
}

int main(void)
{
    return check(&four_none_avx2_kernel, four_none_avx2_pack, 0) |
           check(&four_causal_avx2_kernel, four_causal_avx2_pack, 1) |
           check(&four_none_scalar_kernel, four_none_scalar_pack, 0) |
           check(&five_none_avx2_kernel, five_none_avx2_pack, 0);
}
