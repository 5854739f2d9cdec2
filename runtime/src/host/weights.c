/* Memory for the source weights of one layer. */
#include "attngen/weights.h"

#include "checked.h"

attn_status attn_weights_allocate(const attn_slot *slots, size_t count,
                                  attn_loaded_weights *weights)
{
    *weights = (attn_loaded_weights){.storage = {NULL, 0}};
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        if (slots[i].role == ATTN_WEIGHT && !attn_add_size(bytes, slots[i].bytes, &bytes)) {
            return attn_fail(ATTN_E_MEMORY, "the weights exceed the address space");
        }
    }
    const attn_status status = attn_buffer_alloc(&weights->storage, bytes, 64);
    if (status.code != ATTN_OK) {
        return status;
    }
    char *at = weights->storage.data;
    for (size_t i = 0; i < count; i++) {
        if (slots[i].role == ATTN_WEIGHT) {
            attn_slot_set(&slots[i], &weights->weights, NULL, at);
            at += slots[i].bytes;
        }
    }
    return status;
}

void attn_weights_free(attn_loaded_weights *weights)
{
    attn_buffer_free(&weights->storage);
    weights->weights = (attn_weights){.q_weight = NULL};
}
