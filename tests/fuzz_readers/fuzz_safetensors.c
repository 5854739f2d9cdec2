/* libFuzzer target: any bytes as a safetensors file. What opens is read completely, by every
 * conversion, and must keep the promises of a validated file. */
#include <stdint.h>
#include <stdlib.h>

#include "attngen/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static void require(int condition)
{
    if (!condition) {
        abort();
    }
}

static void read_all(const attn_safetensors *file, const attn_tensor *tensor)
{
    /* A tensor is never larger than the file it came with; 4-bit elements are two to a byte. */
    const size_t count = (size_t)tensor->elements;
    float *floats = malloc(count * sizeof *floats + 1);
    int32_t *integers = malloc(count * sizeof *integers + 1);
    uint8_t *small = malloc(count + 1);
    require(floats != NULL && integers != NULL && small != NULL);
    attn_tensor_read_f32(file, tensor, 0, count, floats);
    attn_tensor_read_i32(file, tensor, 0, count, INT32_MIN, INT32_MAX, integers);
    attn_tensor_read_u8(file, tensor, 0, count, small);
    require(attn_tensor_read_f32(file, tensor, 1, count, floats).code != ATTN_OK);
    free(floats);
    free(integers);
    free(small);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    attn_safetensors *file;
    const attn_status status = attn_safetensors_open_memory(bytes, n, &file);
    require((status.code == ATTN_OK) == (file != NULL));
    require((status.code == ATTN_OK) == (status.message[0] == '\0'));
    if (file == NULL) {
        return 0;
    }
    for (size_t i = 0; i < attn_safetensors_count(file); i++) {
        const attn_tensor *tensor = attn_safetensors_at(file, i);
        char shape[ATTN_SHAPE_TEXT_BYTES];
        attn_shape_text(tensor->shape, tensor->rank, shape);
        require(tensor->end <= n && tensor->begin <= tensor->end);
        require(tensor->elements <= 2 * n);
        require(attn_safetensors_find(file, tensor->name) == tensor);
        read_all(file, tensor);
    }
    const attn_tensor *missing;
    attn_safetensors_get(file, "encoder.layer.0.query.weight", &missing);
    attn_safetensors_close(file);
    return 0;
}
