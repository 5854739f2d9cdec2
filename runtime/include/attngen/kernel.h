/* attngen kernel interface, ABI 2.
 *
 * Every generated header carries this block verbatim, so a bundle needs no other file; the guard
 * lets any number of bundles and the runtime meet in one translation unit. Freestanding C11 / C++.
 *
 * All tensors are packed row-major float32 unless said otherwise; letters: B batch, L seq_len
 * (queries), S kv_len (keys), E d_model, H heads, G kv_heads, D head_dim, V v_head_dim. */
#ifndef ATTN_KERNEL_ABI
#define ATTN_KERNEL_ABI 2

#include <stddef.h>
#include <stdint.h>

/* Status of pack, forward and forward_part. On any value but ATTN_OK no output was written. */
enum {
    ATTN_OK = 0,
    ATTN_E_NULL = 1,   /* a pointer the kernel needs is NULL */
    ATTN_E_ALIGN = 2,  /* packed or workspace is not aligned to attn_kernel.alignment */
    ATTN_E_LENGTH = 3, /* a kv_lengths entry lies outside [0, S], of ATTN_T_CACHE [L, S] */
    ATTN_E_PART = 4,   /* phase or part out of range */
    ATTN_E_NONFINITE =
        5 /* pack: folding makes a finite weight infinite, or what it multiplies or drops is not
           * finite */
};

/* attn_kernel.features: what the CPU and the OS must offer (0: nothing beyond the base ABI). */
#define ATTN_CPU_AVX2 UINT32_C(1)   /* AVX2 and FMA, YMM state enabled */
#define ATTN_CPU_AVX512 UINT32_C(2) /* AVX-512 F, BW, DQ, VL, ZMM state enabled */
#define ATTN_CPU_NEON UINT32_C(4)   /* AArch64 Advanced SIMD */

/* attn_kernel.tensors: which tensors the kernel reads and writes. */
#define ATTN_T_X UINT32_C(0x1)
#define ATTN_T_CONTEXT UINT32_C(0x2)
#define ATTN_T_QKV UINT32_C(0x4) /* op "sdpa": q, k and v are inputs */
#define ATTN_T_KV_LENGTHS UINT32_C(0x8)
#define ATTN_T_KEY_KEEP UINT32_C(0x10)
#define ATTN_T_MASK_KEEP UINT32_C(0x20)
#define ATTN_T_MASK_ADD UINT32_C(0x40)
#define ATTN_T_WEIGHTS_HEADS UINT32_C(0x80) /* weights is written as [B,H,L,S] */
#define ATTN_T_WEIGHTS_MEAN UINT32_C(0x100) /* weights is written as [B,L,S] */
#define ATTN_T_Q_BIAS UINT32_C(0x200)
#define ATTN_T_K_BIAS UINT32_C(0x400)
#define ATTN_T_V_BIAS UINT32_C(0x800)
#define ATTN_T_O_BIAS UINT32_C(0x1000)
#define ATTN_T_O_WEIGHT UINT32_C(0x2000) /* with an output projection */
#define ATTN_T_X_KEYS UINT32_C(0x4000)   /* x has S rows, L of them are queries: [B,S,E] */
#define ATTN_T_KV UINT32_C(0x8000)       /* k and v are inputs, beside x: no weights for them */
#define ATTN_T_CACHE UINT32_C(0x10000)   /* k_cache and v_cache are read and appended to */

/* Source weights for NAME_pack, in the layout of a PyTorch Linear: [out, in]. */
typedef struct attn_weights {
    const float *q_weight; /* [H*D, E] */
    const float *k_weight; /* [G*D, kv_dim] */
    const float *v_weight; /* [G*V, kv_dim] */
    const float *o_weight; /* [E, H*V] */
    const float *q_bias;   /* [H*D] */
    const float *k_bias;   /* [G*D] */
    const float *v_bias;   /* [G*V] */
    const float *o_bias;   /* [E] */
} attn_weights;

/* Arguments of one call. Only the tensors named in attn_kernel.tensors are touched; the others may
 * be NULL. No tensor may overlap another; none needs more than its natural 4-byte alignment. */
typedef struct attn_args {
    const float *x;            /* [B,L,E]; [B,S,E] with ATTN_T_X_KEYS */
    const float *context;      /* [B,S,kv_dim], cross-attention */
    const float *q;            /* [B,H,L,D], op "sdpa" */
    const float *k;            /* [B,G,S,D], op "sdpa" or ATTN_T_KV */
    const float *v;            /* [B,G,S,V] */
    const int32_t *kv_lengths; /* [B], each in [0, S], new tokens included */
    const uint8_t *key_keep;   /* [B,S], non-zero = attend */
    const uint8_t *mask_keep;  /* mask_shape, non-zero = attend */
    const float *mask_add;     /* mask_shape, added after the scale; -inf = do not attend */
    float *y;                  /* [B,L,E]; [B,L,H*V] without output projection; sdpa [B,H,L,V] */
    float *weights;            /* see ATTN_T_WEIGHTS_* */
    float *k_cache;            /* [B,G,S,D]: the L tokens of x go to kv_lengths[b]-L and on; the */
    float *v_cache;            /* [B,G,S,V]: others keep their bits. Keys with bias, unscaled. */
} attn_args;

typedef struct attn_kernel {
    uint32_t abi;         /* ATTN_KERNEL_ABI */
    uint32_t features;    /* ATTN_CPU_* the kernel executes */
    uint32_t tensors;     /* ATTN_T_* */
    uint32_t phases;      /* forward_part is called for phase 0 .. phases-1, in order */
    const char *name;     /* symbol prefix */
    const char *isa;      /* "scalar", "avx2", ... */
    uint64_t layout_hash; /* of the packed blob's layout; equal hashes may share a blob */
    uint64_t config_hash; /* of the resolved config */
    size_t batch, seq_len, kv_len, d_model, kv_dim; /* d_model and kv_dim are 0 for "sdpa" */
    size_t heads, kv_heads, head_dim, v_head_dim;
    size_t mask_shape[4]; /* of mask_keep and mask_add; all 0 when neither is used */
    size_t y_elements, weights_elements;
    size_t packed_bytes;    /* 0: the kernel needs no packed weights */
    size_t workspace_bytes; /* for one part; p parts need workspace_bytes + (p-1)*part_bytes */
    size_t part_bytes;
    size_t alignment; /* of packed and workspace, in bytes */
    uint64_t cycles;  /* of one call on one core as planned, with full lengths; a lower bound */
    int (*forward)(const void *packed, const attn_args *args, void *workspace);
    int (*forward_part)(const void *packed, const attn_args *args, void *workspace, uint32_t phase,
                        uint32_t part, uint32_t parts);
} attn_kernel;

#endif /* ATTN_KERNEL_ABI */
