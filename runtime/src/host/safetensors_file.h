/* What an open safetensors file holds. Internal. */
#ifndef ATTNGEN_SAFETENSORS_FILE_H
#define ATTNGEN_SAFETENSORS_FILE_H

#include <stdbool.h>

#include "attngen/safetensors.h"

struct attn_safetensors {
    int fd;                    /* -1 when the bytes are in memory */
    const unsigned char *base; /* the whole file, or NULL */
    bool is_mapped;
    uint64_t file_bytes;
    uint64_t data_start;
    attn_tensor *tensors; /* in byte order of the names */
    size_t count, room;
    char *names; /* all names, each with its NUL */
};

/* Fills tensors and names of `file` from the n bytes of header text; file->names has room for n
 * bytes. The order is that of the text. */
attn_status attn_safetensors_parse(attn_safetensors *file, const char *text, size_t n);

#endif /* ATTNGEN_SAFETENSORS_FILE_H */
