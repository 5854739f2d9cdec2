/* Values of an open safetensors file, converted piece by piece while they are read. */
#include <string.h>

#include "bytes.h"
#include "file.h"
#include "safetensors_file.h"

/* Checks a request and hands the raw bytes on, piece by piece, to `convert`. */
typedef attn_status (*converter)(const unsigned char *bytes, size_t count, uint64_t first,
                                 const attn_tensor *tensor, void *state);

static attn_status for_each_piece(const attn_safetensors *file, const attn_tensor *tensor,
                                  uint64_t first, size_t count, size_t width, converter convert,
                                  void *state)
{
    unsigned char piece[16384];
    if (first > tensor->elements || count > tensor->elements - first) {
        return attn_fail(ATTN_E_ARGUMENT, "tensor \"%s\": elements %llu to %llu of %llu asked for",
                         tensor->name, (unsigned long long)first, (unsigned long long)first + count,
                         (unsigned long long)tensor->elements);
    }
    uint64_t offset = file->data_start + tensor->begin + first * width;
    attn_status status = attn_success();
    while (count > 0 && status.code == ATTN_OK) {
        size_t take_now = sizeof piece / width;
        take_now = count < take_now ? count : take_now;
        const unsigned char *bytes = piece;
        if (file->base != NULL) {
            bytes = file->base + offset;
        } else {
            status = attn_file_read(file->fd, offset, piece, take_now * width);
        }
        if (status.code == ATTN_OK) {
            status = convert(bytes, take_now, first, tensor, state);
        } else {
            status = attn_fail(status.code, "tensor \"%s\": %s", tensor->name, status.message);
        }
        offset += take_now * width;
        first += take_now;
        count -= take_now;
    }
    return status;
}

static attn_status refuse_dtype(const attn_tensor *tensor, const char *wanted)
{
    return attn_fail(ATTN_E_DTYPE, "tensor \"%s\" has dtype %s, wanted %s", tensor->name,
                     tensor->dtype_name, wanted);
}

static attn_status convert_f32(const unsigned char *bytes, size_t count, uint64_t first,
                               const attn_tensor *tensor, void *state)
{
    (void)first;
    float **at = state;
    float *out = *at;
    switch (tensor->dtype) {
    case ATTN_F32:
        for (size_t i = 0; i < count; i++) {
            out[i] = attn_float_of_bits(attn_le32(bytes + 4 * i));
        }
        break;
    case ATTN_F16:
        for (size_t i = 0; i < count; i++) {
            out[i] = attn_float_of_f16(attn_le16(bytes + 2 * i));
        }
        break;
    case ATTN_BF16:
        for (size_t i = 0; i < count; i++) {
            out[i] = attn_float_of_bf16(attn_le16(bytes + 2 * i));
        }
        break;
    default: /* F64: attn_tensor_read_f32 lets no other through */
        for (size_t i = 0; i < count; i++) {
            out[i] = attn_float_of_f64(attn_le64(bytes + 8 * i));
        }
        break;
    }
    *at += count;
    return attn_success();
}

attn_status attn_tensor_read_f32(const attn_safetensors *file, const attn_tensor *tensor,
                                 uint64_t first, size_t count, float *out)
{
    const attn_dtype dtype = tensor->dtype;
    if (dtype != ATTN_F32 && dtype != ATTN_F16 && dtype != ATTN_BF16 && dtype != ATTN_F64) {
        return refuse_dtype(tensor, "F32, F16, BF16 or F64");
    }
    const size_t width = dtype == ATTN_F32 ? 4 : dtype == ATTN_F64 ? 8 : 2;
    return for_each_piece(file, tensor, first, count, width, convert_f32, &out);
}

static attn_status convert_u8(const unsigned char *bytes, size_t count, uint64_t first,
                              const attn_tensor *tensor, void *state)
{
    (void)first;
    (void)tensor;
    uint8_t **at = state;
    memcpy(*at, bytes, count);
    *at += count;
    return attn_success();
}

attn_status attn_tensor_read_u8(const attn_safetensors *file, const attn_tensor *tensor,
                                uint64_t first, size_t count, uint8_t *out)
{
    if (tensor->dtype != ATTN_U8 && tensor->dtype != ATTN_BOOL) {
        return refuse_dtype(tensor, "U8 or BOOL");
    }
    return for_each_piece(file, tensor, first, count, 1, convert_u8, &out);
}

typedef struct integers {
    int32_t *out;
    int32_t low, high;
} integers;

static attn_status convert_i32(const unsigned char *bytes, size_t count, uint64_t first,
                               const attn_tensor *tensor, void *state)
{
    integers *to = state;
    for (size_t i = 0; i < count; i++) {
        int64_t value;
        if (tensor->dtype == ATTN_I32) {
            const uint32_t bits = attn_le32(bytes + 4 * i);
            int32_t narrow;
            memcpy(&narrow, &bits, sizeof narrow);
            value = narrow;
        } else {
            const uint64_t bits = attn_le64(bytes + 8 * i);
            memcpy(&value, &bits, sizeof value);
        }
        if (value < to->low || value > to->high) {
            return attn_fail(ATTN_E_RANGE,
                             "tensor \"%s\": element %llu is %lld, allowed is %d to %d",
                             tensor->name, (unsigned long long)first + i, (long long)value,
                             (int)to->low, (int)to->high);
        }
        *to->out++ = (int32_t)value;
    }
    return attn_success();
}

attn_status attn_tensor_read_i32(const attn_safetensors *file, const attn_tensor *tensor,
                                 uint64_t first, size_t count, int32_t low, int32_t high,
                                 int32_t *out)
{
    if (tensor->dtype != ATTN_I32 && tensor->dtype != ATTN_I64) {
        return refuse_dtype(tensor, "I32 or I64");
    }
    integers to = {out, low, high};
    return for_each_piece(file, tensor, first, count, tensor->dtype == ATTN_I32 ? 4 : 8,
                          convert_i32, &to);
}
