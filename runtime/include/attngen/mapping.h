/* From a checkpoint's tensors to the four projections of a kernel. */
#ifndef ATTNGEN_MAPPING_H
#define ATTNGEN_MAPPING_H

#include "attngen/safetensors.h"
#include "attngen/weights.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Which layer of which checkpoint. */
typedef struct attn_layer {
    const char *family; /* a name of attn_family_name; NULL = "plain": q.weight, k.weight, … */
    const char *prefix; /* what stands before the family's own names; NULL = the family's usual
                           prefixes are tried, and two that fit are an error */
    size_t layer;       /* ignored by families without a layer number */
} attn_layer;

/* The families, in the order of the table; NULL when i is out of range. */
const char *attn_family_name(size_t i);

/* Loads what `kernel` reads (kernel->tensors and its dimensions) from the file. Refused, each time
 * with the tensor's full name: a tensor that is missing (near matches are named, or a fused tensor
 * that is there instead), another shape than wanted (both are named), a bias in the file that the
 * kernel was generated without, and tensors that change the meaning of the layer (q_norm, sinks,
 * bias_k …). Other tensors are ignored. On failure *out is empty. Free with attn_weights_free. */
attn_status attn_weights_load(const attn_safetensors *file, const attn_layer *layer,
                              const attn_kernel *kernel, attn_loaded_weights *out);

#ifdef __cplusplus
}
#endif

#endif /* ATTNGEN_MAPPING_H */
