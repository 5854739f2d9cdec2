/* Packed blobs in files, on hosts of either byte order. */
#include "attngen/packed.h"

#include <string.h>

#include "bytes.h"
#include "file.h"

/* Payload words between host order and little-endian; its own inverse. The payload of a kernel is a
 * sequence of 32-bit words. */
static void swap_words(unsigned char *payload, size_t bytes)
{
    for (size_t at = 0; at + 4 <= bytes; at += 4) {
        const unsigned char word[4] = {payload[at], payload[at + 1], payload[at + 2],
                                       payload[at + 3]};
        for (size_t i = 0; i < 4; i++) {
            payload[at + i] = word[3 - i];
        }
    }
}

static attn_status allocate_blob(const attn_kernel *kernel, attn_buffer *storage)
{
    const size_t bytes = attn_packed_blob_bytes(kernel);
    if (bytes == 0) {
        return attn_fail(ATTN_E_ARGUMENT, "kernel \"%s\": alignment %zu, packed size %zu",
                         kernel->name, kernel->alignment, kernel->packed_bytes);
    }
    return attn_buffer_alloc(storage, bytes, kernel->alignment);
}

attn_status attn_packed_save(const char *path, const attn_kernel *kernel, const void *packed)
{
    if (path == NULL || kernel == NULL || (packed == NULL && kernel->packed_bytes != 0)) {
        return attn_fail(ATTN_E_NULL, "attn_packed_save: NULL argument");
    }
    attn_buffer storage = {NULL, 0};
    attn_status status = allocate_blob(kernel, &storage);
    if (status.code != ATTN_OK || storage.data == NULL) {
        return status;
    }
    unsigned char *blob = storage.data;
    unsigned char *payload = blob + attn_packed_payload_offset(kernel);
    if (packed != NULL) {
        memcpy(payload, packed, kernel->packed_bytes);
    }
    if (!attn_is_little_endian()) {
        swap_words(payload, kernel->packed_bytes);
    }
    const int sealed = attn_packed_seal(blob, storage.bytes, kernel);
    attn_file_writer writer;
    status = sealed == ATTN_OK ? attn_file_begin(path, &writer)
                               : attn_fail(sealed, "%s", attn_error_text(sealed));
    if (status.code == ATTN_OK) {
        status = attn_file_finish(&writer, attn_file_put(&writer, blob, storage.bytes));
    }
    attn_buffer_free(&storage);
    return status;
}

static attn_status read_blob(const char *path, const attn_kernel *kernel, attn_buffer *storage)
{
    int fd;
    uint64_t bytes;
    attn_status status = attn_file_open(path, &fd, &bytes);
    if (status.code != ATTN_OK) {
        return status;
    }
    status = allocate_blob(kernel, storage);
    /* A file of another size may still be a whole blob of another kernel: let its first bytes
     * decide which error this is. */
    if (status.code == ATTN_OK && bytes != storage->bytes) {
        unsigned char magic[8] = {0};
        if (bytes >= ATTN_PACKED_HEADER_BYTES) {
            status = attn_file_read(fd, 0, magic, sizeof magic);
        }
        if (status.code == ATTN_OK) {
            const int is_blob = memcmp(magic, "ATTNPACK", sizeof magic) == 0;
            status = attn_fail(
                ATTN_E_FORMAT, "%s: %s: %llu bytes, but a blob of kernel \"%s\" has %zu", path,
                is_blob ? "truncated, or weights of another kernel" : "not a packed-weights blob",
                (unsigned long long)bytes, kernel->name, storage->bytes);
        }
    }
    if (status.code == ATTN_OK) {
        status = attn_file_read(fd, 0, storage->data, storage->bytes);
    }
    attn_file_close(fd);
    if (status.code != ATTN_OK) {
        attn_buffer_free(storage);
    }
    return status;
}

attn_status attn_packed_load(const char *path, const attn_kernel *kernel, attn_packed_blob *blob)
{
    blob->packed = NULL;
    blob->storage = (attn_buffer){NULL, 0};
    if (path == NULL || kernel == NULL) {
        return attn_fail(ATTN_E_NULL, "attn_packed_load: NULL argument");
    }
    attn_status status = read_blob(path, kernel, &blob->storage);
    if (status.code != ATTN_OK) {
        return status;
    }
    const void *payload = NULL;
    int code = attn_packed_open(blob->storage.data, blob->storage.bytes, kernel, &payload);
    if (code == ATTN_E_BYTE_ORDER) {
        unsigned char *words =
            (unsigned char *)blob->storage.data + attn_packed_payload_offset(kernel);
        swap_words(words, kernel->packed_bytes);
        payload = words;
        code = ATTN_OK;
    }
    if (code != ATTN_OK) {
        attn_packed_free(blob);
        return attn_fail(code, "%s: %s (kernel \"%s\")", path, attn_error_text(code), kernel->name);
    }
    blob->packed = payload;
    return attn_success();
}

void attn_packed_free(attn_packed_blob *blob)
{
    attn_buffer_free(&blob->storage);
    blob->packed = NULL;
}
