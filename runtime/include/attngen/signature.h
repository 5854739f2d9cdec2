/* The tensors of a kernel as data: names, types and shapes of its weights, inputs and outputs,
 * derived from the descriptor. */
#ifndef ATTNGEN_SIGNATURE_H
#define ATTNGEN_SIGNATURE_H

#include "attngen/safetensors.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ATTN_MAX_SLOTS 24

typedef enum attn_role { ATTN_WEIGHT, ATTN_INPUT, ATTN_OUTPUT } attn_role;

typedef struct attn_slot {
    const char *name; /* "q.weight", "x", "y" … as in the files of `attngen run` */
    attn_role role;
    attn_dtype dtype; /* of the memory the kernel touches: F32, U8 or I32 */
    uint32_t flag;    /* the bit of attn_kernel.tensors behind it; 0: there by the kind of kernel */
    size_t rank;
    uint64_t shape[4];
    size_t elements, bytes;
    size_t offset; /* of the pointer in attn_weights (weights) or attn_args (the others) */
} attn_slot;

/* Checks that the descriptor makes sense: interface version, alignment, dimensions. */
attn_status attn_check_kernel(const attn_kernel *kernel);

/* Fills `slots` in a fixed order, weights first, then inputs, then outputs; checks the kernel. */
attn_status attn_kernel_slots(const attn_kernel *kernel, attn_slot slots[ATTN_MAX_SLOTS],
                              size_t *count);

/* The least kv_lengths entry the kernel takes: its new tokens are part of a cache. */
size_t attn_least_length(const attn_kernel *kernel);

/* The pointer of this slot in *weights or *args. */
const void *attn_slot_get(const attn_slot *slot, const attn_weights *weights,
                          const attn_args *args);
void attn_slot_set(const attn_slot *slot, attn_weights *weights, attn_args *args, void *data);

#ifdef __cplusplus
}
#endif

#endif /* ATTNGEN_SIGNATURE_H */
