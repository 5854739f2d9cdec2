/* Packed-weights blobs: nothing but the very bytes that were sealed opens, in memory and in files;
 * and the part a device carries needs nobody's help. */
#include <stdint.h>

#include "attngen/packed.h"
#include "runtime_support.h"

TestSuite(packed, .init = make_test_dir, .fini = remove_test_dir);

#define WORDS 9

static attn_kernel make_kernel(void)
{
    return (attn_kernel){.abi = ATTN_KERNEL_ABI,
                         .name = "fake",
                         .isa = "scalar",
                         .layout_hash = UINT64_C(0x0123456789abcdef),
                         .packed_bytes = WORDS * sizeof(float),
                         .alignment = 64};
}

/* A sealed blob on a 64-byte border with payload 0, 1, 2 …; n is exact. */
static attn_buffer make_blob(const attn_kernel *kernel)
{
    attn_buffer blob;
    expect_ok(attn_buffer_alloc(&blob, attn_packed_blob_bytes(kernel), kernel->alignment));
    float *payload = (float *)(void *)((char *)blob.data + attn_packed_payload_offset(kernel));
    for (size_t i = 0; i < kernel->packed_bytes / sizeof(float); i++) {
        payload[i] = (float)i;
    }
    cr_assert_eq(attn_packed_seal(blob.data, blob.bytes, kernel), ATTN_OK);
    return blob;
}

static int open_blob(const void *bytes, size_t n, const attn_kernel *kernel)
{
    const void *packed = &n; /* must become NULL on failure */
    const int code = attn_packed_open(bytes, n, kernel, &packed);
    cr_assert_eq(code == ATTN_OK, packed != NULL);
    return code;
}

Test(packed, hash_is_the_published_one)
{
    cr_assert_eq(attn_fnv1a64(ATTN_FNV_START, "", 0), UINT64_C(0xcbf29ce484222325));
    cr_assert_eq(attn_fnv1a64(ATTN_FNV_START, "a", 1), UINT64_C(0xaf63dc4c8601ec8c));
    cr_assert_eq(attn_fnv1a64(ATTN_FNV_START, "foobar", 6), UINT64_C(0x85944171f73967e8));
    cr_assert_eq(attn_fnv1a64(attn_fnv1a64(ATTN_FNV_START, "foo", 3), "bar", 3),
                 UINT64_C(0x85944171f73967e8));
}

Test(packed, layout_is_as_documented)
{
    const attn_kernel kernel = make_kernel();
    attn_buffer blob = make_blob(&kernel);
    const unsigned char wanted[] = {
        'A',  'T',  'T',  'N',  'P',  'A',  'C',  'K', 1,  0, 0, 0, 2, 0, 0, 0,
        0xef, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 1,   36, 0, 0, 0, 0, 0, 0, 0,
        64,   0,    0,    0,    4,    0,    0,    0,   64, 0, 0, 0, 0, 0, 0, 0};
    cr_assert_eq(blob.bytes, 64 + 36);
    cr_assert_arr_eq(blob.data, wanted, sizeof wanted);
    attn_buffer_free(&blob);
}

Test(packed, the_payload_is_used_in_place)
{
    const attn_kernel kernel = make_kernel();
    attn_buffer blob = make_blob(&kernel);
    const void *packed;
    cr_assert_eq(attn_packed_open(blob.data, blob.bytes, &kernel, &packed), ATTN_OK);
    cr_assert_eq(packed, (char *)blob.data + 64);
    cr_assert_eq((uintptr_t)packed % kernel.alignment, 0);
    cr_assert_eq(((const float *)packed)[8], 8);
    attn_buffer_free(&blob);
}

Test(packed, every_bit_flipped_is_noticed)
{
    const attn_kernel kernel = make_kernel();
    attn_buffer blob = make_blob(&kernel);
    unsigned char *bytes = blob.data;
    for (size_t at = 0; at < blob.bytes; at++) {
        for (unsigned mask = 1; mask < 256; mask++) {
            bytes[at] ^= (unsigned char)mask;
            const int code = open_blob(bytes, blob.bytes, &kernel);
            cr_assert(code == ATTN_E_FORMAT || code == ATTN_E_ABI || code == ATTN_E_LAYOUT ||
                          code == ATTN_E_CHECKSUM,
                      "byte %zu ^ %02x: %d", at, mask, code);
            bytes[at] ^= (unsigned char)mask;
        }
    }
    cr_assert_eq(open_blob(bytes, blob.bytes, &kernel), ATTN_OK);
    attn_buffer_free(&blob);
}

/* A header that lies under a checksum that is right: each field is checked for itself. */
Test(packed, forged_headers_are_refused)
{
    const struct {
        size_t at;
        unsigned char value;
        int code;
    } cases[] = {
        {0, 'B', ATTN_E_FORMAT},   {8, 2, ATTN_E_ABI},      {12, 3, ATTN_E_ABI},
        {16, 0, ATTN_E_LAYOUT},    {24, 32, ATTN_E_FORMAT}, {24, 40, ATTN_E_FORMAT},
        {31, 0x80, ATTN_E_FORMAT}, {32, 0, ATTN_E_FORMAT},  {32, 48, ATTN_E_FORMAT},
        {32, 128, ATTN_E_FORMAT},  {34, 1, ATTN_E_FORMAT},  {36, 8, ATTN_E_FORMAT},
        {40, 0, ATTN_E_FORMAT},    {40, 68, ATTN_E_FORMAT}, {41, 1, ATTN_E_FORMAT},
        {47, 0x80, ATTN_E_FORMAT}, {48, 1, ATTN_E_FORMAT},  {55, 1, ATTN_E_FORMAT},
    };
    const attn_kernel kernel = make_kernel();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        attn_buffer blob = make_blob(&kernel);
        unsigned char *bytes = blob.data;
        bytes[cases[i].at] = cases[i].value;
        uint64_t sum = attn_fnv1a64(ATTN_FNV_START, bytes, 56);
        sum = attn_fnv1a64(sum, bytes + 64, blob.bytes - 64);
        for (size_t b = 0; b < 8; b++) {
            bytes[56 + b] = (unsigned char)(sum >> (8 * b) & 0xff);
        }
        cr_expect_eq(open_blob(bytes, blob.bytes, &kernel), cases[i].code, "byte %zu = %u",
                     cases[i].at, cases[i].value);
        attn_buffer_free(&blob);
    }
}

Test(packed, every_truncation_and_extension_is_noticed)
{
    const attn_kernel kernel = make_kernel();
    attn_buffer blob = make_blob(&kernel);
    for (size_t n = 0; n < blob.bytes; n++) {
        attn_buffer cut;
        expect_ok(attn_buffer_alloc(&cut, n, 64));
        memcpy(cut.data, blob.data, n);
        cr_assert_eq(open_blob(cut.data, n, &kernel), ATTN_E_FORMAT, "cut at %zu", n);
        attn_buffer_free(&cut);
    }
    attn_buffer longer;
    expect_ok(attn_buffer_alloc(&longer, blob.bytes + 4, 64));
    memset(longer.data, 0, longer.bytes);
    memcpy(longer.data, blob.data, blob.bytes);
    cr_assert_eq(open_blob(longer.data, longer.bytes, &kernel), ATTN_E_FORMAT);
    attn_buffer_free(&longer);
    attn_buffer_free(&blob);
}

Test(packed, blobs_of_other_kernels_are_refused)
{
    const attn_kernel kernel = make_kernel();
    attn_buffer blob = make_blob(&kernel);
    attn_kernel other = kernel;
    other.name = "same layout";
    other.config_hash = 99; /* two kernels of one layout share a blob */
    cr_assert_eq(open_blob(blob.data, blob.bytes, &other), ATTN_OK);
    other.layout_hash++;
    cr_assert_eq(open_blob(blob.data, blob.bytes, &other), ATTN_E_LAYOUT);
    other = kernel;
    other.packed_bytes -= 4;
    cr_assert_eq(open_blob(blob.data, blob.bytes, &other), ATTN_E_LAYOUT);
    attn_buffer_free(&blob);
}

Test(packed, a_blob_on_a_wrong_border_is_refused)
{
    const attn_kernel kernel = make_kernel();
    attn_buffer blob = make_blob(&kernel);
    attn_buffer shifted;
    expect_ok(attn_buffer_alloc(&shifted, blob.bytes + 64, 64));
    for (size_t shift = 1; shift <= 64; shift++) {
        char *at = (char *)shifted.data + shift;
        memcpy(at, blob.data, blob.bytes);
        cr_assert_eq(open_blob(at, blob.bytes, &kernel), shift == 64 ? ATTN_OK : ATTN_E_ALIGN);
    }
    attn_buffer_free(&shifted);
    attn_buffer_free(&blob);
}

Test(packed, wide_alignment_moves_the_payload)
{
    attn_kernel kernel = make_kernel();
    kernel.alignment = 256;
    cr_assert_eq(attn_packed_payload_offset(&kernel), 256);
    attn_buffer blob = make_blob(&kernel);
    cr_assert_eq(open_blob(blob.data, blob.bytes, &kernel), ATTN_OK);
    ((unsigned char *)blob.data)[100] = 1; /* between header and payload */
    cr_assert_eq(open_blob(blob.data, blob.bytes, &kernel), ATTN_E_CHECKSUM);
    attn_buffer_free(&blob);
}

Test(packed, senseless_arguments)
{
    attn_kernel kernel = make_kernel();
    attn_buffer blob = make_blob(&kernel);
    const void *packed;
    cr_assert_eq(attn_packed_open(NULL, 100, &kernel, &packed), ATTN_E_NULL);
    cr_assert_eq(attn_packed_open(blob.data, blob.bytes, NULL, &packed), ATTN_E_NULL);
    cr_assert_eq(attn_packed_open(blob.data, blob.bytes, &kernel, NULL), ATTN_E_NULL);
    cr_assert_eq(attn_packed_seal(NULL, 100, &kernel), ATTN_E_NULL);
    cr_assert_eq(attn_packed_seal(blob.data, blob.bytes - 1, &kernel), ATTN_E_ARGUMENT);
    const size_t bad[] = {0, 3, 96, 8192};
    for (size_t i = 0; i < 4; i++) {
        kernel.alignment = bad[i];
        cr_assert_eq(attn_packed_blob_bytes(&kernel), 0);
        cr_assert_eq(attn_packed_seal(blob.data, 0, &kernel), ATTN_E_ARGUMENT);
        expect_fail(attn_packed_save(in_dir("x"), &kernel, blob.data), ATTN_E_ARGUMENT,
                    "alignment");
    }
    kernel = make_kernel();
    kernel.packed_bytes = SIZE_MAX - 10;
    cr_assert_eq(attn_packed_blob_bytes(&kernel), 0);
    attn_buffer_free(&blob);
}

Test(packed, every_code_has_a_text)
{
    for (int code = ATTN_OK; code <= ATTN_E_BYTE_ORDER; code++) {
        const bool is_code = code <= ATTN_E_NONFINITE || code >= ATTN_E_ARGUMENT;
        cr_assert_eq(strcmp(attn_error_text(code), "unknown error") != 0, is_code, "%d", code);
    }
    cr_assert_str_eq(attn_error_text(-1), "unknown error");
}

/* ---- files ---- */

Test(packed, saved_and_loaded)
{
    attn_kernel kernel = make_kernel();
    const float weights[WORDS] = {1, -2, 3};
    expect_ok(attn_packed_save(in_dir("w.packed"), &kernel, weights));
    cr_assert_eq(count_files(), 1);
    attn_packed_blob blob;
    expect_ok(attn_packed_load(in_dir("w.packed"), &kernel, &blob));
    cr_assert_arr_eq(blob.packed, weights, sizeof weights);
    cr_assert_eq((uintptr_t)blob.packed % 64, 0);
    attn_packed_free(&blob);
    cr_assert_null(blob.packed);
    attn_packed_free(&blob);

    kernel.packed_bytes = 0; /* a kernel without weights still has a blob to tell it by */
    expect_ok(attn_packed_save(in_dir("none.packed"), &kernel, NULL));
    expect_ok(attn_packed_load(in_dir("none.packed"), &kernel, &blob));
    attn_packed_free(&blob);
}

Test(packed, damaged_files_are_refused)
{
    attn_kernel kernel = make_kernel();
    attn_buffer good = make_blob(&kernel);
    attn_packed_blob blob;
    for (size_t at = 0; at < good.bytes; at++) {
        ((unsigned char *)good.data)[at] ^= 0xff;
        const char *path = write_file("flipped", good.data, good.bytes);
        const attn_status status = attn_packed_load(path, &kernel, &blob);
        cr_assert_neq(status.code, ATTN_OK, "byte %zu", at);
        cr_assert_null(blob.packed);
        cr_assert_null(blob.storage.data);
        cr_assert_not_null(strstr(status.message, "flipped"), "%s", status.message);
        ((unsigned char *)good.data)[at] ^= 0xff;
    }
    for (size_t n = 0; n < good.bytes; n++) {
        const char *path = write_file("cut", good.data, n);
        expect_fail(attn_packed_load(path, &kernel, &blob), ATTN_E_FORMAT, "cut");
    }
    expect_fail(attn_packed_load(write_file("text", "not at all", 10), &kernel, &blob),
                ATTN_E_FORMAT, "not a packed-weights blob");
    write_file("good", good.data, good.bytes);
    kernel.layout_hash ^= 1;
    expect_fail(attn_packed_load(in_dir("good"), &kernel, &blob), ATTN_E_LAYOUT, "another kernel");
    kernel.packed_bytes *= 2;
    expect_fail(attn_packed_load(in_dir("good"), &kernel, &blob), ATTN_E_FORMAT, "another kernel");
    expect_fail(attn_packed_load(in_dir("absent"), &kernel, &blob), ATTN_E_IO, "absent");
    expect_fail(attn_packed_load(test_dir, &kernel, &blob), ATTN_E_IO, "not a regular file");
    expect_fail(attn_packed_save(in_dir("no/dir"), &kernel, good.data), ATTN_E_IO, "no/dir");
    attn_buffer_free(&good);
}

/* ---- buffers ---- */

Test(packed, buffers_are_aligned_or_refused)
{
    attn_buffer buffer;
    for (size_t alignment = 1; alignment <= 4096; alignment *= 2) {
        for (size_t bytes = 0; bytes < 200; bytes += 33) {
            expect_ok(attn_buffer_alloc(&buffer, bytes, alignment));
            cr_assert_eq((uintptr_t)buffer.data % alignment, 0);
            cr_assert_eq(buffer.bytes, bytes);
            memset(buffer.data, 1, bytes);
            attn_buffer_free(&buffer);
            cr_assert_null(buffer.data);
        }
    }
    expect_fail(attn_buffer_alloc(&buffer, 8, 0), ATTN_E_ARGUMENT, "power of two");
    expect_fail(attn_buffer_alloc(&buffer, 8, 48), ATTN_E_ARGUMENT, "power of two");
    expect_fail(attn_buffer_alloc(&buffer, SIZE_MAX, 64), ATTN_E_MEMORY, "address space");
    expect_fail(attn_buffer_alloc(&buffer, SIZE_MAX / 2 + 1, 64), ATTN_E_MEMORY, "out of memory");
    cr_assert_null(buffer.data);
}

/* ---- what a device carries ---- */

Test(packed, edge_files_need_no_symbol_from_anywhere)
{
    char command[2048];
    const char *const compilers[] = {"gcc", "clang", "aarch64-linux-gnu-gcc"};
    size_t tried = 0;
    for (size_t i = 0; i < 3; i++) {
        snprintf(command, sizeof command, "command -v %s >%s", compilers[i], in_dir("which"));
        if (system(command) != 0) {
            printf("skipped: freestanding build with %s: not installed\n", compilers[i]);
            continue;
        }
        const char *const levels[] = {"-O0", "-Os", "-O3"};
        for (size_t l = 0; l < 3; l++) {
            snprintf(command, sizeof command,
                     "set -e; for name in packed error_text; do "
                     "%s -std=c11 %s -ffreestanding -fno-stack-protector -Wall -Wextra -Werror "
                     "-Iruntime/include -c runtime/src/edge/$name.c -o %s; "
                     "nm -u %s | grep -v 'attn_' >%s && exit 1; done; test ! -s %s",
                     compilers[i], levels[l], in_dir("edge.o"), in_dir("edge.o"),
                     in_dir("undefined"), in_dir("undefined"));
            cr_assert_eq(system(command), 0, "%s", command);
            tried++;
        }
    }
    cr_assert_gt(tried, 0);
}
