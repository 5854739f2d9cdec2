/* safetensors files: reading with every number checked, and writing.
 *
 * A file is refused whole when anything in it is wrong; what opens successfully can be read without
 * further surprises. Values are converted while they are read, whatever their alignment in the file
 * and the byte order of the host. */
#ifndef ATTNGEN_SAFETENSORS_H
#define ATTNGEN_SAFETENSORS_H

#include "attngen/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ATTN_MAX_RANK 8
#define ATTN_MAX_HEADER_BYTES 100000000

typedef enum attn_dtype {
    ATTN_BOOL,
    ATTN_U8,
    ATTN_I8,
    ATTN_I16,
    ATTN_U16,
    ATTN_F16,
    ATTN_BF16,
    ATTN_I32,
    ATTN_U32,
    ATTN_F32,
    ATTN_I64,
    ATTN_U64,
    ATTN_F64,
    ATTN_OTHER_DTYPE /* known to the format, not readable here: F8_E4M3, C64, … */
} attn_dtype;

typedef struct attn_tensor {
    const char *name;       /* UTF-8, owned by the file */
    const char *dtype_name; /* as the file spells it, static */
    attn_dtype dtype;
    size_t rank;
    uint64_t shape[ATTN_MAX_RANK];
    uint64_t elements;
    uint64_t begin, end; /* byte range behind the header */
} attn_tensor;

typedef struct attn_safetensors attn_safetensors;

typedef enum attn_open_mode {
    ATTN_OPEN_READ, /* read() on demand: a file that shrinks later gives an error */
    ATTN_OPEN_MAP   /* mmap: no system call per read, but a file that shrinks later is a SIGBUS */
} attn_open_mode;

/* Opens and validates a file; only the header is read. On failure *file is NULL. */
attn_status attn_safetensors_open(const char *path, attn_open_mode mode, attn_safetensors **file);

/* The same on bytes in memory, which must outlive *file. */
attn_status attn_safetensors_open_memory(const void *bytes, size_t n, attn_safetensors **file);

/* NULL is fine. */
void attn_safetensors_close(attn_safetensors *file);

size_t attn_safetensors_count(const attn_safetensors *file);

/* Tensor i, in byte order of the names; NULL when i is out of range. */
const attn_tensor *attn_safetensors_at(const attn_safetensors *file, size_t i);

/* The tensor of that name, or NULL. */
const attn_tensor *attn_safetensors_find(const attn_safetensors *file, const char *name);

/* The same with an error that names near matches. On failure *tensor is NULL. */
attn_status attn_safetensors_get(const attn_safetensors *file, const char *name,
                                 const attn_tensor **tensor);

/* Elements first .. first+count-1 as float32, from F32, F16, BF16 or F64 (rounded to nearest,
 * beyond the float range to infinity). On failure `out` holds nothing of value.
 * Safe from several threads at once. */
attn_status attn_tensor_read_f32(const attn_safetensors *file, const attn_tensor *tensor,
                                 uint64_t first, size_t count, float *out);

/* The same as bytes, from U8 or BOOL. */
attn_status attn_tensor_read_u8(const attn_safetensors *file, const attn_tensor *tensor,
                                uint64_t first, size_t count, uint8_t *out);

/* The same as integers, from I32 or I64; ATTN_E_RANGE names the first element that is outside
 * [low, high]. */
attn_status attn_tensor_read_i32(const attn_safetensors *file, const attn_tensor *tensor,
                                 uint64_t first, size_t count, int32_t low, int32_t high,
                                 int32_t *out);

/* "[2,3]" into text, cut when it does not fit; returns text. */
#define ATTN_SHAPE_TEXT_BYTES 96
char *attn_shape_text(const uint64_t *shape, size_t rank, char text[ATTN_SHAPE_TEXT_BYTES]);

/* A tensor to write: row-major, host byte order. */
typedef struct attn_tensor_source {
    const char *name; /* valid UTF-8, unique, not "__metadata__" */
    attn_dtype dtype; /* F32, U8, BOOL, I32 or I64 */
    size_t rank;
    uint64_t shape[ATTN_MAX_RANK];
    const void *data;
} attn_tensor_source;

/* Writes a file that appears complete or not at all. The data start on a multiple of 8 and wide
 * elements come first, so that every tensor is aligned to its element. */
attn_status attn_safetensors_write(const char *path, const attn_tensor_source *tensors, size_t n);

#ifdef __cplusplus
}
#endif

#endif /* ATTNGEN_SAFETENSORS_H */
