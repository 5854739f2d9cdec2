/* The tensors of a kernel, derived from its descriptor by one table. */
#include "attngen/signature.h"

#include <string.h>

#include "checked.h"

/* Dimensions a shape may name; values come from the descriptor. */
enum dimension { END, B, L, S, E, C, H, G, D, V, HD, GD, GV, HV, M0, M1, M2, M3, DIMENSIONS };

typedef struct row {
    const char *name;
    attn_role role;
    attn_dtype dtype;
    uint32_t flags;   /* present when any of these bits is set … */
    uint32_t without; /* … and none of these */
    uint8_t shape[5]; /* enum dimension, ended by END */
    size_t offset;
} row;

#define WEIGHT(field) offsetof(attn_weights, field)
#define ARG(field) offsetof(attn_args, field)

static const row ROWS[] = {
    {"q.weight", ATTN_WEIGHT, ATTN_F32, ATTN_T_X, 0, {HD, E}, WEIGHT(q_weight)},
    {"k.weight", ATTN_WEIGHT, ATTN_F32, ATTN_T_X, ATTN_T_KV, {GD, C}, WEIGHT(k_weight)},
    {"v.weight", ATTN_WEIGHT, ATTN_F32, ATTN_T_X, ATTN_T_KV, {GV, C}, WEIGHT(v_weight)},
    {"o.weight", ATTN_WEIGHT, ATTN_F32, ATTN_T_O_WEIGHT, 0, {E, HV}, WEIGHT(o_weight)},
    {"q.bias", ATTN_WEIGHT, ATTN_F32, ATTN_T_Q_BIAS, 0, {HD}, WEIGHT(q_bias)},
    {"k.bias", ATTN_WEIGHT, ATTN_F32, ATTN_T_K_BIAS, 0, {GD}, WEIGHT(k_bias)},
    {"v.bias", ATTN_WEIGHT, ATTN_F32, ATTN_T_V_BIAS, 0, {GV}, WEIGHT(v_bias)},
    {"o.bias", ATTN_WEIGHT, ATTN_F32, ATTN_T_O_BIAS, 0, {E}, WEIGHT(o_bias)},
    {"x", ATTN_INPUT, ATTN_F32, ATTN_T_X, ATTN_T_X_KEYS, {B, L, E}, ARG(x)},
    {"x", ATTN_INPUT, ATTN_F32, ATTN_T_X_KEYS, 0, {B, S, E}, ARG(x)},
    {"context", ATTN_INPUT, ATTN_F32, ATTN_T_CONTEXT, 0, {B, S, C}, ARG(context)},
    {"q", ATTN_INPUT, ATTN_F32, ATTN_T_QKV, 0, {B, H, L, D}, ARG(q)},
    {"k", ATTN_INPUT, ATTN_F32, ATTN_T_QKV, 0, {B, G, S, D}, ARG(k)},
    {"v", ATTN_INPUT, ATTN_F32, ATTN_T_QKV, 0, {B, G, S, V}, ARG(v)},
    {"past_k", ATTN_INPUT, ATTN_F32, ATTN_T_KV, 0, {B, G, S, D}, ARG(k)},
    {"past_v", ATTN_INPUT, ATTN_F32, ATTN_T_KV, 0, {B, G, S, V}, ARG(v)},
    /* updated in place: one argument is both slots */
    {"past_k", ATTN_INPUT, ATTN_F32, ATTN_T_CACHE, 0, {B, G, S, D}, ARG(k_cache)},
    {"past_v", ATTN_INPUT, ATTN_F32, ATTN_T_CACHE, 0, {B, G, S, V}, ARG(v_cache)},
    {"kv_lengths", ATTN_INPUT, ATTN_I32, ATTN_T_KV_LENGTHS, 0, {B}, ARG(kv_lengths)},
    {"key_keep", ATTN_INPUT, ATTN_U8, ATTN_T_KEY_KEEP, 0, {B, S}, ARG(key_keep)},
    {"mask_keep", ATTN_INPUT, ATTN_U8, ATTN_T_MASK_KEEP, 0, {M0, M1, M2, M3}, ARG(mask_keep)},
    {"mask_add", ATTN_INPUT, ATTN_F32, ATTN_T_MASK_ADD, 0, {M0, M1, M2, M3}, ARG(mask_add)},
    {"y", ATTN_OUTPUT, ATTN_F32, ATTN_T_QKV, 0, {B, H, L, V}, ARG(y)},
    {"y", ATTN_OUTPUT, ATTN_F32, ATTN_T_O_WEIGHT, ATTN_T_QKV, {B, L, E}, ARG(y)},
    {"y", ATTN_OUTPUT, ATTN_F32, ATTN_T_X, ATTN_T_QKV | ATTN_T_O_WEIGHT, {B, L, HV}, ARG(y)},
    {"weights", ATTN_OUTPUT, ATTN_F32, ATTN_T_WEIGHTS_HEADS, 0, {B, H, L, S}, ARG(weights)},
    {"weights", ATTN_OUTPUT, ATTN_F32, ATTN_T_WEIGHTS_MEAN, 0, {B, L, S}, ARG(weights)},
    {"present_k", ATTN_OUTPUT, ATTN_F32, ATTN_T_CACHE, 0, {B, G, S, D}, ARG(k_cache)},
    {"present_v", ATTN_OUTPUT, ATTN_F32, ATTN_T_CACHE, 0, {B, G, S, V}, ARG(v_cache)},
};

attn_status attn_check_kernel(const attn_kernel *kernel)
{
    if (kernel == NULL) {
        return attn_fail(ATTN_E_NULL, "kernel is NULL");
    }
    if (kernel->abi != ATTN_KERNEL_ABI) {
        return attn_fail(ATTN_E_ABI, "kernel has interface version %u, this runtime %u",
                         (unsigned)kernel->abi, (unsigned)ATTN_KERNEL_ABI);
    }
    const size_t alignment = kernel->alignment;
    if (kernel->name == NULL || kernel->isa == NULL || kernel->phases == 0 || alignment == 0 ||
        (alignment & (alignment - 1)) != 0) {
        return attn_fail(ATTN_E_ARGUMENT, "the kernel descriptor is damaged");
    }
    const bool is_sdpa = (kernel->tensors & ATTN_T_QKV) != 0;
    if (is_sdpa == ((kernel->tensors & ATTN_T_X) != 0)) {
        return attn_fail(ATTN_E_ARGUMENT, "kernel \"%s\" reads both or neither of x and q",
                         kernel->name);
    }
    const uint32_t caches = kernel->tensors & (ATTN_T_KV | ATTN_T_CACHE);
    if (caches != 0 && (is_sdpa || caches == (ATTN_T_KV | ATTN_T_CACHE) ||
                        (caches == ATTN_T_CACHE && kernel->kv_len < kernel->seq_len))) {
        return attn_fail(ATTN_E_ARGUMENT,
                         "kernel \"%s\": its keys have two sources, or its cache "
                         "is shorter than the new tokens",
                         kernel->name);
    }
    const size_t heads = kernel->heads;
    if (kernel->batch == 0 || kernel->seq_len == 0 || kernel->kv_len == 0 || heads == 0 ||
        kernel->kv_heads == 0 || heads % kernel->kv_heads != 0 || kernel->head_dim == 0 ||
        kernel->v_head_dim == 0 || (!is_sdpa && (kernel->d_model == 0 || kernel->kv_dim == 0))) {
        return attn_fail(ATTN_E_ARGUMENT,
                         "kernel \"%s\": a dimension is 0, or heads is no multiple "
                         "of kv_heads",
                         kernel->name);
    }
    return attn_success();
}

static bool fill_dimensions(const attn_kernel *kernel, size_t value[DIMENSIONS])
{
    value[B] = kernel->batch;
    value[L] = kernel->seq_len;
    value[S] = kernel->kv_len;
    value[E] = kernel->d_model;
    value[C] = kernel->kv_dim;
    value[H] = kernel->heads;
    value[G] = kernel->kv_heads;
    value[D] = kernel->head_dim;
    value[V] = kernel->v_head_dim;
    for (size_t i = 0; i < 4; i++) {
        value[M0 + i] = kernel->mask_shape[i];
    }
    return attn_mul_size(value[H], value[D], &value[HD]) &&
           attn_mul_size(value[G], value[D], &value[GD]) &&
           attn_mul_size(value[G], value[V], &value[GV]) &&
           attn_mul_size(value[H], value[V], &value[HV]);
}

attn_status attn_kernel_slots(const attn_kernel *kernel, attn_slot slots[ATTN_MAX_SLOTS],
                              size_t *count)
{
    *count = 0;
    const attn_status status = attn_check_kernel(kernel);
    if (status.code != ATTN_OK) {
        return status;
    }
    size_t value[DIMENSIONS] = {0};
    bool fits = fill_dimensions(kernel, value);
    size_t filled = 0;
    for (size_t i = 0; i < sizeof ROWS / sizeof ROWS[0]; i++) {
        const row *from = &ROWS[i];
        if ((kernel->tensors & from->flags) == 0 || (kernel->tensors & from->without) != 0) {
            continue;
        }
        attn_slot *slot = &slots[filled++];
        *slot = (attn_slot){.name = from->name,
                            .role = from->role,
                            .dtype = from->dtype,
                            .flag = from->flags,
                            .elements = 1,
                            .offset = from->offset};
        for (size_t axis = 0; from->shape[axis] != END; axis++) {
            const size_t size = value[from->shape[axis]];
            slot->shape[slot->rank++] = size;
            fits = fits && attn_mul_size(slot->elements, size, &slot->elements);
        }
        fits = fits && attn_mul_size(slot->elements, slot->dtype == ATTN_U8 ? 1 : 4, &slot->bytes);
    }
    if (!fits) {
        return attn_fail(ATTN_E_MEMORY, "kernel \"%s\": a tensor exceeds the address space",
                         kernel->name);
    }
    *count = filled;
    return attn_success();
}

size_t attn_least_length(const attn_kernel *kernel)
{
    return (kernel->tensors & ATTN_T_CACHE) != 0 ? kernel->seq_len : 0;
}

/* All members of both structs are object pointers of one size and representation (POSIX). */
const void *attn_slot_get(const attn_slot *slot, const attn_weights *weights, const attn_args *args)
{
    const char *base = slot->role == ATTN_WEIGHT ? (const char *)weights : (const char *)args;
    const void *data;
    memcpy(&data, base + slot->offset, sizeof data);
    return data;
}

void attn_slot_set(const attn_slot *slot, attn_weights *weights, attn_args *args, void *data)
{
    char *base = slot->role == ATTN_WEIGHT ? (char *)weights : (char *)args;
    memcpy(base + slot->offset, &data, sizeof data);
}
