/* The source weights of one layer in memory: what a loader fills and NAME_pack reads. */
#ifndef ATTNGEN_WEIGHTS_H
#define ATTNGEN_WEIGHTS_H

#include "attngen/buffer.h"
#include "attngen/signature.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Float32 weights in the layout NAME_pack wants, in one allocation. */
typedef struct attn_loaded_weights {
    attn_weights weights; /* what the kernel does not read is NULL */
    attn_buffer storage;
} attn_loaded_weights;

/* Memory for every weight among the slots of a kernel (attn_kernel_slots), contents indeterminate.
 * On failure *weights is empty. */
attn_status attn_weights_allocate(const attn_slot *slots, size_t count,
                                  attn_loaded_weights *weights);

void attn_weights_free(attn_loaded_weights *weights);

#ifdef __cplusplus
}
#endif

#endif /* ATTNGEN_WEIGHTS_H */
