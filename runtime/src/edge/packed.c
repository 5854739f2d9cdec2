/* The packed blob in memory: validate one in place, or put the header around a payload.
 * Freestanding: no libc, no heap, no global state. The layout is described in packed.h. */
#include "attngen/packed.h"

enum {
    AT_FORMAT = 8,
    AT_ABI = 12,
    AT_LAYOUT = 16,
    AT_BYTES = 24,
    AT_ALIGNMENT = 32,
    AT_WORD = 36,
    AT_OFFSET = 40,
    AT_ZERO = 48,
    AT_CHECKSUM = 56,
    BLOB_FORMAT = 1,
    WORD_BYTES = 4
};

static const unsigned char MAGIC[8] = {'A', 'T', 'T', 'N', 'P', 'A', 'C', 'K'};

static uint64_t get_le(const unsigned char *bytes, size_t n)
{
    uint64_t value = 0;
    for (size_t i = 0; i < n; i++) {
        value |= (uint64_t)bytes[i] << (8 * i);
    }
    return value;
}

static void put_le(unsigned char *bytes, size_t n, uint64_t value)
{
    for (size_t i = 0; i < n; i++) {
        bytes[i] = (unsigned char)(value >> (8 * i) & 0xff);
    }
}

static int is_little_endian(void)
{
    const uint16_t probe = 1;
    return *(const unsigned char *)&probe == 1;
}

uint64_t attn_fnv1a64(uint64_t hash, const void *bytes, size_t n)
{
    const unsigned char *byte = bytes;
    for (size_t i = 0; i < n; i++) {
        hash = (hash ^ byte[i]) * UINT64_C(0x100000001b3);
    }
    return hash;
}

static uint64_t blob_checksum(const unsigned char *blob, size_t n)
{
    const uint64_t header = attn_fnv1a64(ATTN_FNV_START, blob, AT_CHECKSUM);
    return attn_fnv1a64(header, blob + ATTN_PACKED_HEADER_BYTES, n - ATTN_PACKED_HEADER_BYTES);
}

size_t attn_packed_payload_offset(const attn_kernel *kernel)
{
    const size_t alignment = kernel->alignment;
    if (alignment == 0 || alignment > ATTN_PACKED_MAX_ALIGNMENT ||
        (alignment & (alignment - 1)) != 0) {
        return 0;
    }
    return alignment > ATTN_PACKED_HEADER_BYTES ? alignment : ATTN_PACKED_HEADER_BYTES;
}

size_t attn_packed_blob_bytes(const attn_kernel *kernel)
{
    const size_t offset = attn_packed_payload_offset(kernel);
    if (offset == 0 || kernel->packed_bytes > SIZE_MAX - offset) {
        return 0;
    }
    return offset + kernel->packed_bytes;
}

int attn_packed_seal(void *blob, size_t bytes, const attn_kernel *kernel)
{
    if (blob == NULL || kernel == NULL) {
        return ATTN_E_NULL;
    }
    const size_t offset = attn_packed_payload_offset(kernel);
    if (bytes == 0 || bytes != attn_packed_blob_bytes(kernel)) {
        return ATTN_E_ARGUMENT;
    }
    unsigned char *header = blob;
    for (size_t i = 0; i < sizeof MAGIC; i++) {
        header[i] = MAGIC[i];
    }
    put_le(header + AT_FORMAT, 4, BLOB_FORMAT);
    put_le(header + AT_ABI, 4, ATTN_KERNEL_ABI);
    put_le(header + AT_LAYOUT, 8, kernel->layout_hash);
    put_le(header + AT_BYTES, 8, kernel->packed_bytes);
    put_le(header + AT_ALIGNMENT, 4, kernel->alignment);
    put_le(header + AT_WORD, 4, WORD_BYTES);
    put_le(header + AT_OFFSET, 8, offset);
    put_le(header + AT_ZERO, 8, 0);
    for (size_t i = ATTN_PACKED_HEADER_BYTES; i < offset; i++) {
        ((volatile unsigned char *)header)[i] = 0; /* volatile: no call of memset */
    }
    put_le(header + AT_CHECKSUM, 8, blob_checksum(header, bytes));
    return ATTN_OK;
}

/* Everything but layout and checksum: is this a blob, whole, and of our format? */
static int check_header(const unsigned char *blob, size_t n)
{
    if (n < ATTN_PACKED_HEADER_BYTES) {
        return ATTN_E_FORMAT;
    }
    for (size_t i = 0; i < sizeof MAGIC; i++) {
        if (blob[i] != MAGIC[i]) {
            return ATTN_E_FORMAT;
        }
    }
    if (get_le(blob + AT_FORMAT, 4) != BLOB_FORMAT || get_le(blob + AT_ABI, 4) != ATTN_KERNEL_ABI) {
        return ATTN_E_ABI;
    }
    const uint64_t alignment = get_le(blob + AT_ALIGNMENT, 4);
    const uint64_t offset = get_le(blob + AT_OFFSET, 8);
    const uint64_t least =
        alignment > ATTN_PACKED_HEADER_BYTES ? alignment : ATTN_PACKED_HEADER_BYTES;
    if (alignment == 0 || alignment > ATTN_PACKED_MAX_ALIGNMENT ||
        (alignment & (alignment - 1)) != 0 || offset != least || offset > n ||
        get_le(blob + AT_BYTES, 8) != n - offset || get_le(blob + AT_WORD, 4) != WORD_BYTES ||
        get_le(blob + AT_ZERO, 8) != 0) {
        return ATTN_E_FORMAT;
    }
    return ATTN_OK;
}

int attn_packed_open(const void *bytes, size_t n, const attn_kernel *kernel, const void **packed)
{
    if (packed == NULL) {
        return ATTN_E_NULL;
    }
    *packed = NULL;
    if (bytes == NULL || kernel == NULL) {
        return ATTN_E_NULL;
    }
    const unsigned char *blob = bytes;
    const int header = check_header(blob, n);
    if (header != ATTN_OK) {
        return header;
    }
    if (get_le(blob + AT_LAYOUT, 8) != kernel->layout_hash ||
        get_le(blob + AT_BYTES, 8) != kernel->packed_bytes) {
        return ATTN_E_LAYOUT;
    }
    if (get_le(blob + AT_CHECKSUM, 8) != blob_checksum(blob, n)) {
        return ATTN_E_CHECKSUM;
    }
    const unsigned char *payload = blob + get_le(blob + AT_OFFSET, 8);
    if (kernel->alignment == 0 || (uintptr_t)payload % kernel->alignment != 0) {
        return ATTN_E_ALIGN;
    }
    if (!is_little_endian()) {
        return ATTN_E_BYTE_ORDER; /* last: attn_packed_load relies on all else being checked */
    }
    *packed = payload;
    return ATTN_OK;
}
