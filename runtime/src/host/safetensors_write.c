/* Writer of safetensors files. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "attngen/safetensors.h"
#include "bytes.h"
#include "checked.h"
#include "file.h"

#define DATA_ALIGNMENT 8

static size_t width_of(attn_dtype dtype)
{
    return dtype == ATTN_I64                        ? 8
           : dtype == ATTN_F32 || dtype == ATTN_I32 ? 4
           : dtype == ATTN_U8 || dtype == ATTN_BOOL ? 1
                                                    : 0;
}

static const char *name_of(attn_dtype dtype)
{
    return dtype == ATTN_I64   ? "I64"
           : dtype == ATTN_F32 ? "F32"
           : dtype == ATTN_I32 ? "I32"
           : dtype == ATTN_U8  ? "U8"
                               : "BOOL";
}

/* Adds one tensor to the header at *offset, which moves to its end. */
static attn_status describe_tensor(json_t *header, const attn_tensor_source *tensor, size_t *offset)
{
    size_t bytes = width_of(tensor->dtype);
    bool fits = true;
    json_t *shape = json_array();
    for (size_t i = 0; i < tensor->rank; i++) {
        fits = fits && tensor->shape[i] <= SIZE_MAX &&
               attn_mul_size(bytes, (size_t)tensor->shape[i], &bytes);
        json_array_append_new(shape, json_integer((json_int_t)tensor->shape[i]));
    }
    size_t end;
    if (!fits || !attn_add_size(*offset, bytes, &end) || end > INT64_MAX) {
        json_decref(shape);
        return attn_fail(ATTN_E_MEMORY, "tensor \"%s\": its size overflows", tensor->name);
    }
    json_t *entry = json_pack("{s:s, s:o, s:[I,I]}", "dtype", name_of(tensor->dtype), "shape",
                              shape, "data_offsets", (json_int_t)*offset, (json_int_t)end);
    if (entry == NULL || json_object_set_new(header, tensor->name, entry) != 0) {
        return attn_fail(ATTN_E_ARGUMENT, "tensor name is no UTF-8 text, or out of memory");
    }
    *offset = end;
    return attn_success();
}

static attn_status check_source(const json_t *header, const attn_tensor_source *tensor)
{
    if (tensor->name == NULL || tensor->rank > ATTN_MAX_RANK) {
        return attn_fail(ATTN_E_ARGUMENT, "a tensor without name, or of rank above %d",
                         ATTN_MAX_RANK);
    }
    if (width_of(tensor->dtype) == 0) {
        return attn_fail(ATTN_E_DTYPE, "tensor \"%s\": cannot write this dtype", tensor->name);
    }
    if (json_object_get(header, tensor->name) != NULL ||
        strcmp(tensor->name, "__metadata__") == 0) {
        return attn_fail(ATTN_E_ARGUMENT, "tensor name \"%s\" is taken", tensor->name);
    }
    return attn_success();
}

static attn_status put_data(attn_file_writer *writer, const attn_tensor_source *tensor)
{
    const size_t width = width_of(tensor->dtype);
    size_t count = 1;
    for (size_t i = 0; i < tensor->rank; i++) {
        count *= (size_t)tensor->shape[i]; /* checked by describe_tensor */
    }
    if (width == 1 || attn_is_little_endian()) {
        return attn_file_put(writer, tensor->data, count * width);
    }
    attn_status status = attn_success();
    for (size_t i = 0; i < count && status.code == ATTN_OK; i++) {
        const unsigned char *from = (const unsigned char *)tensor->data + i * width;
        unsigned char swapped[8];
        for (size_t b = 0; b < width; b++) {
            swapped[b] = from[width - 1 - b];
        }
        status = attn_file_put(writer, swapped, width);
    }
    return status;
}

/* Widest elements first, else in the given order. `order` has room for n. */
static void sort_by_width(const attn_tensor_source *tensors, size_t n, size_t *order)
{
    size_t filled = 0;
    for (size_t width = 8; width > 0; width /= 2) {
        for (size_t i = 0; i < n; i++) {
            if (width_of(tensors[i].dtype) == width) {
                order[filled++] = i;
            }
        }
    }
}

/* Length, JSON and padding in one allocation; the caller frees *text. */
static attn_status build_header(const attn_tensor_source *tensors, const size_t *order, size_t n,
                                char **text, size_t *text_bytes)
{
    attn_status status = attn_success();
    json_t *header = json_object();
    size_t offset = 0;
    for (size_t i = 0; i < n && status.code == ATTN_OK; i++) {
        status = describe_tensor(header, &tensors[order[i]], &offset);
    }
    if (status.code == ATTN_OK) {
        const size_t bytes = json_dumpb(header, NULL, 0, JSON_COMPACT);
        const size_t padded = bytes + (DATA_ALIGNMENT - bytes % DATA_ALIGNMENT) % DATA_ALIGNMENT;
        *text = bytes == 0 || padded > ATTN_MAX_HEADER_BYTES ? NULL : malloc(8 + padded);
        if (*text == NULL) {
            status = attn_fail(ATTN_E_MEMORY, "cannot build the header");
        } else {
            memset(*text, ' ', 8 + padded);
            attn_put_le((unsigned char *)*text, 8, padded);
            json_dumpb(header, *text + 8, bytes, JSON_COMPACT);
            *text_bytes = 8 + padded;
        }
    }
    json_decref(header);
    return status;
}

static attn_status check_sources(const attn_tensor_source *tensors, size_t n)
{
    json_t *names = json_object();
    attn_status status = attn_success();
    for (size_t i = 0; i < n && status.code == ATTN_OK; i++) {
        status = check_source(names, &tensors[i]);
        if (status.code == ATTN_OK && json_object_set_new(names, tensors[i].name, json_true())) {
            status = attn_fail(ATTN_E_ARGUMENT, "a tensor name is no UTF-8 text");
        }
    }
    json_decref(names);
    return status;
}

attn_status attn_safetensors_write(const char *path, const attn_tensor_source *tensors, size_t n)
{
    attn_status status = check_sources(tensors, n);
    if (status.code != ATTN_OK) {
        return status;
    }
    char *header = NULL;
    size_t header_bytes = 0;
    size_t *order = malloc((n + 1) * sizeof *order);
    if (order == NULL) {
        return attn_fail(ATTN_E_MEMORY, "out of memory");
    }
    sort_by_width(tensors, n, order);
    status = build_header(tensors, order, n, &header, &header_bytes);
    if (status.code == ATTN_OK) {
        attn_file_writer writer;
        status = attn_file_begin(path, &writer);
        if (status.code == ATTN_OK) {
            status = attn_file_put(&writer, header, header_bytes);
            for (size_t i = 0; i < n && status.code == ATTN_OK; i++) {
                status = put_data(&writer, &tensors[order[i]]);
            }
            status = attn_file_finish(&writer, status);
        }
    }
    free(header);
    free(order);
    return status;
}
