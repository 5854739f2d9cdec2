/* The packed-weights blob: what NAME_pack wrote, behind a 64-byte header.
 *
 *   offset bytes
 *        0     8  magic "ATTNPACK"
 *        8     4  blob format, 1
 *       12     4  ATTN_KERNEL_ABI
 *       16     8  attn_kernel.layout_hash
 *       24     8  payload bytes = attn_kernel.packed_bytes
 *       32     4  alignment of the payload, a power of two
 *       36     4  bytes of a payload word, 4: a big-endian host swaps words of this size
 *       40     8  offset of the payload: 64 rounded up to the alignment
 *       48     8  zero
 *       56     8  checksum: FNV-1a 64 over all other bytes of the blob, header first
 *        …        zeros up to the payload, then the payload; nothing follows
 *
 * All numbers, and the payload's words, are little-endian. FNV-1a 64: start with
 * 0xcbf29ce484222325; per byte: xor it in, then multiply by 0x100000001b3 modulo 2^64.
 *
 * The first group of functions needs no heap, no stdio, no JSON, no libc at all (src/edge): a
 * device keeps the blob in flash and uses the payload in place. The second group works on files. */
#ifndef ATTNGEN_PACKED_H
#define ATTNGEN_PACKED_H

#include "attngen/buffer.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ATTN_PACKED_HEADER_BYTES 64
#define ATTN_PACKED_MAX_ALIGNMENT 4096

/* ---- freestanding ---- */

/* FNV-1a 64 continued from `hash`; start with ATTN_FNV_START. */
#define ATTN_FNV_START UINT64_C(0xcbf29ce484222325)
uint64_t attn_fnv1a64(uint64_t hash, const void *bytes, size_t n);

/* Bytes of the whole blob of this kernel, 0 when that number does not fit size_t or the kernel's
 * alignment is not a power of two <= ATTN_PACKED_MAX_ALIGNMENT. */
size_t attn_packed_blob_bytes(const attn_kernel *kernel);

/* Offset of the payload in a blob of this kernel (0 as above). Have NAME_pack write there, then
 * seal the blob. */
size_t attn_packed_payload_offset(const attn_kernel *kernel);

/* Writes header and checksum around a payload that is already in place, as little-endian words.
 * `bytes` must be attn_packed_blob_bytes(kernel). Returns ATTN_OK, ATTN_E_NULL, ATTN_E_ARGUMENT. */
int attn_packed_seal(void *blob, size_t bytes, const attn_kernel *kernel);

/* Checks a blob against the kernel and gives the payload inside it, not a copy. The blob must
 * outlive its use, and its payload must lie on attn_kernel.alignment: place the blob on that
 * alignment. Any byte changed, missing or added is an error. Returns ATTN_OK or ATTN_E_NULL,
 * ATTN_E_ALIGN, ATTN_E_FORMAT (size, magic, header), ATTN_E_ABI, ATTN_E_LAYOUT, ATTN_E_CHECKSUM;
 * on a big-endian target ATTN_E_BYTE_ORDER at best (use attn_packed_load there). *packed is NULL
 * on any failure. Text for the codes: attn_error_text. */
int attn_packed_open(const void *bytes, size_t n, const attn_kernel *kernel, const void **packed);

/* ---- hosted ---- */

/* A blob in memory that this process owns. */
typedef struct attn_packed_blob {
    attn_buffer storage;
    const void *packed; /* the payload, aligned as the kernel wants */
} attn_packed_blob;

/* Saves `packed` (attn_kernel.packed_bytes as NAME_pack wrote them) as a blob; the file appears
 * complete or not at all. */
attn_status attn_packed_save(const char *path, const attn_kernel *kernel, const void *packed);

/* Loads and checks a blob. On failure *blob is empty. Works on hosts of either byte order. */
attn_status attn_packed_load(const char *path, const attn_kernel *kernel, attn_packed_blob *blob);

void attn_packed_free(attn_packed_blob *blob);

#ifdef __cplusplus
}
#endif

#endif /* ATTNGEN_PACKED_H */
