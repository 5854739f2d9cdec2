/* Aligned memory for packed weights, workspaces and tensors. */
#ifndef ATTNGEN_BUFFER_H
#define ATTNGEN_BUFFER_H

#include "attngen/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct attn_buffer {
    void *data;   /* NULL when empty */
    size_t bytes; /* usable bytes */
} attn_buffer;

/* Allocates `bytes` (0 is allowed and gives a valid pointer) aligned to `alignment`, a power of
 * two. The contents are indeterminate. On failure *buffer is empty. */
attn_status attn_buffer_alloc(attn_buffer *buffer, size_t bytes, size_t alignment);

/* Frees the memory and empties the buffer; an empty buffer is fine. */
void attn_buffer_free(attn_buffer *buffer);

#ifdef __cplusplus
}
#endif

#endif /* ATTNGEN_BUFFER_H */
