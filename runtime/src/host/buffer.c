/* Aligned allocation. */
#include "attngen/buffer.h"

#include <stdlib.h>

#include "checked.h"

attn_status attn_buffer_alloc(attn_buffer *buffer, size_t bytes, size_t alignment)
{
    buffer->data = NULL;
    buffer->bytes = 0;
    if (alignment == 0 || (alignment & (alignment - 1)) != 0) {
        return attn_fail(ATTN_E_ARGUMENT, "alignment %zu is not a power of two", alignment);
    }
    /* aligned_alloc wants a multiple of an alignment that malloc itself could serve. */
    const size_t step = alignment < sizeof(void *) ? sizeof(void *) : alignment;
    size_t rounded;
    if (!attn_add_size(bytes == 0 ? 1 : bytes, step - 1, &rounded)) {
        return attn_fail(ATTN_E_MEMORY, "%zu bytes exceed the address space", bytes);
    }
    rounded -= rounded % step;
    buffer->data = rounded > PTRDIFF_MAX ? NULL : aligned_alloc(step, rounded);
    if (buffer->data == NULL) {
        return attn_fail(ATTN_E_MEMORY, "out of memory: %zu bytes", bytes);
    }
    buffer->bytes = bytes;
    return attn_success();
}

void attn_buffer_free(attn_buffer *buffer)
{
    free(buffer->data);
    buffer->data = NULL;
    buffer->bytes = 0;
}
