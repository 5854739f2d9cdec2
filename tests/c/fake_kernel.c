/* A hand-written kernel as a shared library, for test_run.c: no attention, but every kind of tensor
 * takes part in its outputs. Compiled by the test, also for another architecture. */
#include "attngen/kernel.h"

enum { B = 2, L = 3, S = 3, E = 4, H = 2, PACKED = 3 };

int fake_pack(const attn_weights *weights, void *packed);
int fake_pack(const attn_weights *weights, void *packed)
{
    float *to = packed;
    to[0] = weights->q_weight[1];
    to[1] = weights->q_bias[3];
    to[2] = weights->o_weight[E * H * 2 - 1];
    return weights->q_weight[0] == 13 ? ATTN_E_NONFINITE : ATTN_OK;
}

static int forward_part(const void *packed, const attn_args *args, void *workspace, uint32_t phase,
                        uint32_t part, uint32_t parts)
{
    const float *p = packed;
    (void)workspace;
    (void)phase;
    for (uint32_t b = 0; b < B; b++) {
        if (args->kv_lengths[b] < 0 || args->kv_lengths[b] > S) {
            return ATTN_E_LENGTH;
        }
    }
    for (uint32_t row = B * L * part / parts; row < B * L * (part + 1) / parts; row++) {
        const uint32_t b = row / L, l = row % L;
        for (uint32_t e = 0; e < E; e++) {
            args->y[row * E + e] =
                args->x[row * E + e] * p[0] + p[1] + p[2] + (float)args->kv_lengths[b] * 100;
        }
        for (uint32_t s = 0; s < S; s++) {
            args->weights[row * S + s] =
                args->mask_add[l * S + s] + (args->key_keep[b * S + s] != 0 ? 1.0f : 0.0f);
        }
    }
    return ATTN_OK;
}

static int forward(const void *packed, const attn_args *args, void *workspace)
{
    return forward_part(packed, args, workspace, 0, 0, 1);
}

extern const attn_kernel fake_kernel, old_kernel, bare_kernel;

#define FAKE                                                                                       \
    .features = 0,                                                                                 \
    .tensors = ATTN_T_X | ATTN_T_O_WEIGHT | ATTN_T_Q_BIAS | ATTN_T_KV_LENGTHS | ATTN_T_KEY_KEEP |  \
               ATTN_T_MASK_ADD | ATTN_T_WEIGHTS_MEAN,                                              \
    .phases = 1, .name = "fake", .isa = "scalar", .layout_hash = 1, .config_hash = 2, .batch = B,  \
    .seq_len = L, .kv_len = S, .d_model = E, .kv_dim = E, .heads = H, .kv_heads = 1,               \
    .head_dim = 2, .v_head_dim = 2, .mask_shape = {1, 1, L, S}, .y_elements = B * L * E,           \
    .weights_elements = B * L * S, .packed_bytes = PACKED * sizeof(float), .workspace_bytes = 64,  \
    .part_bytes = 64, .alignment = 64, .cycles = UINT64_C(1) << 40, .forward = forward,            \
    .forward_part = forward_part

const attn_kernel fake_kernel = {.abi = ATTN_KERNEL_ABI, FAKE};
const attn_kernel old_kernel = {.abi = 0, FAKE};                /* another interface */
const attn_kernel bare_kernel = {.abi = ATTN_KERNEL_ABI, FAKE}; /* without bare_pack */
