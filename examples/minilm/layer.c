/* One attention layer of a BERT checkpoint behind three functions that check.py calls through
 * ctypes: the weights come from the checkpoint as it is, by the runtime's "bert" mapping. */
#include <stdio.h>
#include <stdlib.h>

#include "attngen/buffer.h"
#include "attngen/cpu.h"
#include "attngen/mapping.h"
#include "minilm.h"

typedef struct layer {
    attn_buffer packed;
    attn_buffer workspace;
} layer;

void layer_close(layer *l);
layer *layer_open(const char *checkpoint, size_t index, char *message, size_t message_bytes);
int layer_forward(const layer *l, const float *x, const int32_t *lengths, float *y);

static attn_status load(const char *checkpoint, size_t index, attn_loaded_weights *weights)
{
    attn_safetensors *file;
    attn_status status = attn_safetensors_open(checkpoint, ATTN_OPEN_READ, &file);
    if (status.code == ATTN_OK) {
        attn_layer wanted = {.family = "bert", .layer = index};
        status = attn_weights_load(file, &wanted, &minilm_kernel, weights);
        attn_safetensors_close(file);
    }
    return status;
}

static attn_status fill(layer *l, const char *checkpoint, size_t index)
{
    attn_status status = attn_check_cpu(&minilm_kernel);
    if (status.code == ATTN_OK) {
        status = attn_buffer_alloc(&l->packed, MINILM_PACKED_BYTES, MINILM_ALIGNMENT);
    }
    if (status.code == ATTN_OK) {
        status = attn_buffer_alloc(&l->workspace, MINILM_WORKSPACE_BYTES, MINILM_ALIGNMENT);
    }
    if (status.code != ATTN_OK) {
        return status;
    }
    attn_loaded_weights weights;
    status = load(checkpoint, index, &weights);
    if (status.code == ATTN_OK) {
        int code = minilm_pack(&weights.weights, l->packed.data);
        if (code != ATTN_OK) {
            status = attn_fail(code, "%s", attn_error_text(code));
        }
        attn_weights_free(&weights);
    }
    return status;
}

void layer_close(layer *l)
{
    if (l != NULL) {
        attn_buffer_free(&l->workspace);
        attn_buffer_free(&l->packed);
        free(l);
    }
}

/* The layer of that index, ready to run; NULL with a message otherwise. */
layer *layer_open(const char *checkpoint, size_t index, char *message, size_t message_bytes)
{
    layer *l = calloc(1, sizeof *l);
    attn_status status =
        l == NULL ? attn_fail(ATTN_E_MEMORY, "out of memory") : fill(l, checkpoint, index);
    if (status.code != ATTN_OK) {
        snprintf(message, message_bytes, "%s", status.message);
        layer_close(l);
        return NULL;
    }
    return l;
}

/* y [B,L,E] from x [B,L,E] and lengths [B]; an ATTN_* code. One call at a time per layer. */
int layer_forward(const layer *l, const float *x, const int32_t *lengths, float *y)
{
    attn_args args = {.x = x, .kv_lengths = lengths, .y = y};
    return minilm_kernel.forward(l->packed.data, &args, l->workspace.data);
}
