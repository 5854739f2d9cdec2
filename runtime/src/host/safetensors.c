/* Opening safetensors files: the header's length, the names' uniqueness and the layout of the data.
 * The latter two are checked by sorting, so that no header takes more than n log n. Nothing is
 * allocated, read or indexed by a number that has not been checked. */
#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "bytes.h"
#include "file.h"
#include "safetensors_file.h"

#define PREFIX_BYTES 8

/* ---- header ---- */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const attn_tensor *)a)->name, ((const attn_tensor *)b)->name);
}

typedef struct range {
    uint64_t begin, end;
    const char *name;
} range;

static int by_range(const void *a, const void *b)
{
    const range *left = a;
    const range *right = b;
    if (left->begin != right->begin) {
        return left->begin < right->begin ? -1 : 1;
    }
    return left->end < right->end ? -1 : left->end > right->end;
}

static attn_status check_names(attn_safetensors *file)
{
    if (file->count > 1) {
        qsort(file->tensors, file->count, sizeof file->tensors[0], by_name);
    }
    for (size_t i = 1; i < file->count; i++) {
        if (strcmp(file->tensors[i - 1].name, file->tensors[i].name) == 0) {
            return attn_fail(ATTN_E_FORMAT, "duplicate key \"%s\"", file->tensors[i].name);
        }
    }
    return attn_success();
}

/* The sorted ranges must tile the data: from 0, without gap or overlap, to the end of the file. */
static attn_status check_ranges(const range *ranges, size_t count, uint64_t have)
{
    uint64_t end = 0;
    for (size_t i = 0; i < count; i++) {
        if (ranges[i].begin != end) {
            return attn_fail(ATTN_E_FORMAT, "tensor \"%s\" starts at data byte %llu, %s %llu",
                             ranges[i].name, (unsigned long long)ranges[i].begin,
                             ranges[i].begin < end ? "inside the one that ends at"
                                                   : "leaving a gap behind",
                             (unsigned long long)end);
        }
        end = ranges[i].end;
        if (end > have) {
            return attn_fail(ATTN_E_FORMAT,
                             "incomplete file: tensor \"%s\" ends at data byte %llu: need %llu "
                             "bytes of data, have %llu",
                             ranges[i].name, (unsigned long long)end,
                             (unsigned long long)ranges[count - 1].end, (unsigned long long)have);
        }
    }
    if (end < have) {
        return attn_fail(
            ATTN_E_FORMAT, "%llu bytes behind the last tensor: data end at %llu, the file has %llu",
            (unsigned long long)(have - end), (unsigned long long)end, (unsigned long long)have);
    }
    return attn_success();
}

static attn_status check_layout(const attn_safetensors *file)
{
    range *ranges = malloc((file->count + 1) * sizeof *ranges);
    if (ranges == NULL) {
        return attn_fail(ATTN_E_MEMORY, "out of memory");
    }
    for (size_t i = 0; i < file->count; i++) {
        ranges[i] = (range){file->tensors[i].begin, file->tensors[i].end, file->tensors[i].name};
    }
    if (file->count > 1) {
        qsort(ranges, file->count, sizeof ranges[0], by_range);
    }
    const attn_status status =
        check_ranges(ranges, file->count, file->file_bytes - file->data_start);
    free(ranges);
    return status;
}

/* Other things that are often found under a name ending in .safetensors. */
static const struct {
    const char *start;
    const char *what;
} FOREIGN[] = {
    {"version ", "a git-LFS pointer, not the real file: fetch it with git lfs pull"},
    {"PK\3\4", "a zip archive, such as PyTorch writes, not safetensors"},
    {"GGUF", "a GGUF file, not safetensors"},
    {"<!DOCTYP", "a web page, not safetensors"},
    {"<html", "a web page, not safetensors"},
};

/* Length of the header from the first bytes of the file. */
static attn_status check_prefix(const unsigned char *prefix, uint64_t file_bytes,
                                uint64_t *header_bytes)
{
    for (size_t i = 0; i < sizeof FOREIGN / sizeof FOREIGN[0]; i++) {
        const size_t n = strlen(FOREIGN[i].start);
        if (file_bytes >= n && memcmp(prefix, FOREIGN[i].start, n) == 0) {
            return attn_fail(ATTN_E_FORMAT, "this is %s", FOREIGN[i].what);
        }
    }
    if (file_bytes < PREFIX_BYTES) {
        return attn_fail(ATTN_E_FORMAT, "file too short: %llu bytes, a header length has 8",
                         (unsigned long long)file_bytes);
    }
    const uint64_t n = attn_le64(prefix);
    if (n < 2) {
        return attn_fail(ATTN_E_FORMAT, "header length %llu: not even {}", (unsigned long long)n);
    }
    if (n > file_bytes - PREFIX_BYTES) {
        return attn_fail(ATTN_E_FORMAT,
                         "header length %llu exceeds the file%s: incomplete file, have %llu bytes",
                         (unsigned long long)n,
                         n > ATTN_MAX_HEADER_BYTES ? " (and the limit of 100000000)" : "",
                         (unsigned long long)file_bytes);
    }
    if (n > ATTN_MAX_HEADER_BYTES) {
        return attn_fail(ATTN_E_FORMAT, "header length %llu exceeds the limit of %d",
                         (unsigned long long)n, ATTN_MAX_HEADER_BYTES);
    }
    *header_bytes = n;
    return attn_success();
}

static attn_status read_bytes(const attn_safetensors *file, uint64_t offset, void *out, size_t n)
{
    if (file->base == NULL) { /* also an empty file that should have been mapped */
        return attn_file_read(file->fd, offset, out, n);
    }
    memcpy(out, file->base + offset, n);
    return attn_success();
}

/* `text` has room for the n bytes of the header. */
static attn_status read_header(attn_safetensors *file, char *text, size_t n)
{
    attn_status status = read_bytes(file, PREFIX_BYTES, text, n);
    if (status.code == ATTN_OK) {
        status = attn_safetensors_parse(file, text, n);
    }
    if (status.code == ATTN_OK) {
        status = check_names(file);
    }
    return status.code == ATTN_OK ? check_layout(file) : status;
}

/* Fills a file whose source (fd or base, file_bytes) is set. */
static attn_status load_header(attn_safetensors *file)
{
    unsigned char prefix[PREFIX_BYTES] = {0};
    uint64_t n = 0;
    attn_status status = read_bytes(
        file, 0, prefix, file->file_bytes < PREFIX_BYTES ? (size_t)file->file_bytes : PREFIX_BYTES);
    if (status.code == ATTN_OK) {
        status = check_prefix(prefix, file->file_bytes, &n);
    }
    if (status.code != ATTN_OK) {
        return status;
    }
    file->data_start = PREFIX_BYTES + n;
    char *text = malloc((size_t)n + 1);
    file->names = malloc((size_t)n + 1);
    if (text == NULL || file->names == NULL) {
        free(text);
        return attn_fail(ATTN_E_MEMORY, "out of memory: header of %llu bytes",
                         (unsigned long long)n);
    }
    status = read_header(file, text, (size_t)n);
    free(text);
    return status;
}

/* ---- opening and closing ---- */

static attn_safetensors *new_file(void)
{
    attn_safetensors *file = calloc(1, sizeof *file);
    if (file != NULL) {
        file->fd = -1;
    }
    return file;
}

/* The mapping outlives the descriptor. An empty file cannot be mapped and need not be. */
static attn_status map_file(attn_safetensors *file)
{
    if (file->file_bytes > SIZE_MAX) {
        return attn_fail(ATTN_E_MEMORY, "the file exceeds the address space");
    }
    void *base = mmap(NULL, (size_t)file->file_bytes, PROT_READ, MAP_PRIVATE, file->fd, 0);
    if (base == MAP_FAILED) {
        return attn_fail(ATTN_E_IO, "cannot map the file: %s", strerror(errno));
    }
    file->base = base;
    file->is_mapped = true;
    attn_file_close(file->fd);
    file->fd = -1;
    return attn_success();
}

attn_status attn_safetensors_open(const char *path, attn_open_mode mode, attn_safetensors **file)
{
    *file = NULL;
    attn_safetensors *opened = new_file();
    if (opened == NULL) {
        return attn_fail(ATTN_E_MEMORY, "out of memory");
    }
    attn_status status =
        attn_file_open(path, &opened->fd, &opened->file_bytes); /* names the path */
    if (status.code != ATTN_OK) {
        attn_safetensors_close(opened);
        return status;
    }
    if (mode == ATTN_OPEN_MAP && opened->file_bytes > 0) {
        status = map_file(opened);
    }
    if (status.code == ATTN_OK) {
        status = load_header(opened);
    }
    if (status.code != ATTN_OK) {
        attn_safetensors_close(opened);
        return attn_fail(status.code, "%s: %s", path, status.message);
    }
    *file = opened;
    return attn_success();
}

attn_status attn_safetensors_open_memory(const void *bytes, size_t n, attn_safetensors **file)
{
    *file = NULL;
    if (bytes == NULL) {
        return attn_fail(ATTN_E_NULL, "attn_safetensors_open_memory: NULL");
    }
    attn_safetensors *opened = new_file();
    if (opened == NULL) {
        return attn_fail(ATTN_E_MEMORY, "out of memory");
    }
    opened->base = bytes;
    opened->file_bytes = n;
    const attn_status status = load_header(opened);
    if (status.code != ATTN_OK) {
        attn_safetensors_close(opened);
        return status;
    }
    *file = opened;
    return attn_success();
}

void attn_safetensors_close(attn_safetensors *file)
{
    if (file == NULL) {
        return;
    }
    if (file->is_mapped) {
        /* mmap gave a writable type; the pages themselves are read-only. */
        munmap((void *)(uintptr_t)file->base, (size_t)file->file_bytes);
    }
    attn_file_close(file->fd);
    free(file->tensors);
    free(file->names);
    free(file);
}
