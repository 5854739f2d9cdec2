/* Regular files: exact reads, and writing that appears complete or not at all. Internal. */
#ifndef ATTNGEN_FILE_H
#define ATTNGEN_FILE_H

#include "attngen/status.h"

/* Opens a regular file for reading and tells its size. On failure *fd is -1. */
attn_status attn_file_open(const char *path, int *fd, uint64_t *bytes);
void attn_file_close(int fd);

/* Reads exactly n bytes at offset; the file ending earlier is an error. Thread-safe. */
attn_status attn_file_read(int fd, uint64_t offset, void *out, size_t n);

typedef struct attn_file_writer {
    int fd;
    char *path, *temporary;
} attn_file_writer;

/* begin, any number of puts, then exactly one finish. finish renames the file into place when
 * `status` (the outcome so far) is a success, else removes it; it returns the final outcome. */
attn_status attn_file_begin(const char *path, attn_file_writer *writer);
attn_status attn_file_put(attn_file_writer *writer, const void *bytes, size_t n);
attn_status attn_file_finish(attn_file_writer *writer, attn_status status);

#endif /* ATTNGEN_FILE_H */
