/* libFuzzer target: any bytes as a packed-weights blob. The first byte picks the kernel and whether
 * the checksum is made right first, which lets the fuzzer past it. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "attngen/packed.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static void require(int condition)
{
    if (!condition) {
        abort();
    }
}

static void repair_checksum(uint8_t *blob, size_t n)
{
    if (n < ATTN_PACKED_HEADER_BYTES) {
        return;
    }
    const uint64_t header = attn_fnv1a64(ATTN_FNV_START, blob, 56);
    const uint64_t sum =
        attn_fnv1a64(header, blob + ATTN_PACKED_HEADER_BYTES, n - ATTN_PACKED_HEADER_BYTES);
    for (size_t i = 0; i < 8; i++) {
        blob[56 + i] = (uint8_t)(sum >> (8 * i) & 0xff);
    }
}

/* What opens is byte for byte what sealing the same payload gives. */
static void require_sealed(const uint8_t *blob, size_t n, const attn_kernel *kernel,
                           const uint8_t *payload)
{
    require(payload >= blob && kernel->packed_bytes == n - (size_t)(payload - blob));
    require((uintptr_t)payload % kernel->alignment == 0);
    const size_t bytes = attn_packed_blob_bytes(kernel);
    attn_buffer sealed;
    if (bytes != n) {
        return; /* sealed for a wider alignment than this kernel's */
    }
    require(attn_buffer_alloc(&sealed, bytes, 64).code == ATTN_OK);
    memcpy((uint8_t *)sealed.data + attn_packed_payload_offset(kernel), payload,
           kernel->packed_bytes);
    require(attn_packed_seal(sealed.data, bytes, kernel) == ATTN_OK);
    require(memcmp((uint8_t *)sealed.data + 64, blob + 64, n - 64) == 0);
    attn_buffer_free(&sealed);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    if (n == 0) {
        return 0;
    }
    const uint8_t choice = *bytes++;
    n--;
    attn_kernel kernel = {.abi = ATTN_KERNEL_ABI,
                          .name = "fuzz",
                          .isa = "scalar",
                          .layout_hash = UINT64_C(0x0123456789abcdef),
                          .packed_bytes = choice & 2 ? 36 : (choice & 4 ? n - 64 : 0),
                          .alignment = choice & 8 ? 16 : 64};
    attn_buffer blob;
    require(attn_buffer_alloc(&blob, n, 64).code == ATTN_OK);
    memcpy(blob.data, bytes, n);
    if (choice & 1) {
        repair_checksum(blob.data, n);
    }
    const void *packed = bytes;
    const int code = attn_packed_open(blob.data, n, &kernel, &packed);
    require((code == ATTN_OK) == (packed != NULL));
    require(attn_error_text(code)[0] != 'u'); /* no unknown code */
    if (code == ATTN_OK) {
        require_sealed(blob.data, n, &kernel, packed);
    }
    attn_buffer_free(&blob);
    return 0;
}
