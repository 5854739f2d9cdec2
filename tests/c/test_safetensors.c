/* The safetensors reader and writer: every way a file can lie, and every value it can hold. */
#include <float.h>
#include <math.h>
#include <pthread.h>
#include <sys/stat.h>
#include <time.h>

#include "../../runtime/src/host/bytes.h"
#include "attngen/safetensors.h"
#include "runtime_support.h"

TestSuite(safetensors, .init = make_test_dir, .fini = remove_test_dir);

static const attn_open_mode MODES[] = {ATTN_OPEN_READ, ATTN_OPEN_MAP};

static attn_status open_bytes(const void *bytes, size_t n)
{
    attn_safetensors *file;
    const attn_status status = attn_safetensors_open_memory(bytes, n, &file);
    cr_assert_eq(status.code == ATTN_OK, file != NULL);
    attn_safetensors_close(file);
    return status;
}

/* The same answer from memory, by read and by mmap. */
static attn_status open_everywhere(const void *bytes, size_t n)
{
    const attn_status status = open_bytes(bytes, n);
    const char *path = write_file("everywhere.safetensors", bytes, n);
    for (size_t m = 0; m < 2; m++) {
        attn_safetensors *file;
        const attn_status other = attn_safetensors_open(path, MODES[m], &file);
        cr_assert_eq(other.code, status.code, "mode %zu: %s", m, other.message);
        cr_assert_eq(other.code == ATTN_OK, file != NULL);
        /* with the path in front, a long message is cut earlier */
        cr_assert(status.code == ATTN_OK || strlen(status.message) > ATTN_MESSAGE_BYTES / 2 ||
                  strstr(other.message, status.message) != NULL);
        attn_safetensors_close(file);
    }
    return status;
}

static attn_status open_header(const char *header, size_t data_bytes)
{
    unsigned char data[256] = {0};
    cr_assert_leq(data_bytes, sizeof data);
    const file_bytes file = make_file(header, data, data_bytes);
    const attn_status status = open_everywhere(file.bytes, file.n);
    free(file.bytes);
    return status;
}

/* ---- what a file may look like ---- */

Test(safetensors, empty_and_scalar_tensors_are_legal)
{
    expect_ok(open_header("{}", 0));
    expect_ok(open_header("{}   ", 0));
    expect_ok(
        open_header("{ \"s\" : {\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]} }", 4));
    expect_ok(open_header("{\"e\":{\"dtype\":\"F32\",\"shape\":[0,3],\"data_offsets\":[0,0]},"
                          "\"z\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                          "\"f\":{\"dtype\":\"U8\",\"shape\":[2,0],\"data_offsets\":[4,4]}}",
                          4));
    expect_ok(open_header("{\"__metadata__\":{\"format\":\"pt\",\"\":\"\"},"
                          "\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
                          8));
    /* the order in the header is free; what other writers add to an entry is not our business */
    expect_ok(open_header("{\"b\":{\"data_offsets\":[4,6],\"shape\":[2],\"dtype\":\"BOOL\"},"
                          "\"a\":{\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}",
                          6));
    expect_ok(open_header("{\"a\":{\"dtype\":\"F4\",\"shape\":[4],\"data_offsets\":[0,2]}}", 2));
}

Test(safetensors, tensors_are_listed_in_order_of_their_names)
{
    const file_bytes bytes =
        make_file("{\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
                  "\"a\\u00e9\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[2,3]},"
                  "\"a\":{\"dtype\":\"BF16\",\"shape\":[1,2],\"data_offsets\":[3,7]}}",
                  "\1\2\3\4\5\6\7", 7);
    attn_safetensors *file;
    expect_ok(attn_safetensors_open_memory(bytes.bytes, bytes.n, &file));
    cr_assert_eq(attn_safetensors_count(file), 3);
    cr_assert_str_eq(attn_safetensors_at(file, 0)->name, "a");
    cr_assert_str_eq(attn_safetensors_at(file, 1)->name, "a\xc3\xa9");
    cr_assert_str_eq(attn_safetensors_at(file, 2)->name, "b");
    cr_assert_null(attn_safetensors_at(file, 3));
    const attn_tensor *a = attn_safetensors_find(file, "a");
    cr_assert(a->dtype == ATTN_BF16 && strcmp(a->dtype_name, "BF16") == 0);
    cr_assert(a->rank == 2 && a->shape[0] == 1 && a->shape[1] == 2 && a->elements == 2);
    cr_assert_null(attn_safetensors_find(file, "c"));
    attn_safetensors_close(file);
    attn_safetensors_close(NULL);
    free(bytes.bytes);
}

/* ---- lengths: BC-62, BC-67, BC-74 ---- */

static void put_length(unsigned char *bytes, uint64_t n)
{
    attn_put_le(bytes, 8, n);
}

Test(safetensors, absurd_header_lengths)
{
    unsigned char bytes[64] = {0};
    const uint64_t n = sizeof bytes;
    struct {
        uint64_t length;
        const char *text;
    } const cases[] = {
        {0, "header length 0"},
        {1, "header length 1"},
        {UINT64_MAX, "header length 18446744073709551615 exceeds the file"},
        {UINT64_C(1) << 63, "header length 9223372036854775808 exceeds the file"},
        {UINT64_MAX - 7, "exceeds the file"},
        {100000001, "limit"},
        {n - 8 + 1, "header length 57 exceeds the file"},
    };
    const clock_t start = clock();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        put_length(bytes, cases[i].length);
        expect_fail(open_everywhere(bytes, sizeof bytes), ATTN_E_FORMAT, cases[i].text);
    }
    cr_expect_lt((double)(clock() - start) / CLOCKS_PER_SEC, 0.1, "refusing takes too long");
    expect_fail(open_everywhere("", 0), ATTN_E_FORMAT, "file too short: 0 bytes");
    expect_fail(open_everywhere(bytes, 7), ATTN_E_FORMAT, "file too short: 7 bytes");
}

Test(safetensors, header_over_the_limit_in_a_file_that_long)
{
    unsigned char prefix[8];
    put_length(prefix, 100000001);
    const char *path = write_file("long.safetensors", prefix, sizeof prefix);
    cr_assert_eq(truncate(path, 8 + 100000001), 0); /* sparse: takes no room */
    attn_safetensors *file;
    expect_fail(attn_safetensors_open(path, ATTN_OPEN_READ, &file), ATTN_E_FORMAT,
                "header length 100000001 exceeds the limit of 100000000");
}

Test(safetensors, other_kinds_of_files_are_named)
{
    const char pointer[] = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n";
    expect_fail(open_everywhere(pointer, strlen(pointer)), ATTN_E_FORMAT, "git-LFS pointer");
    expect_fail(open_everywhere("PK\3\4 and so on", 14), ATTN_E_FORMAT, "zip");
    expect_fail(open_everywhere("<!DOCTYPE html>", 15), ATTN_E_FORMAT, "web page");
    expect_fail(open_everywhere("GGUF", 4), ATTN_E_FORMAT, "GGUF");
}

static file_bytes two_tensors(void)
{
    const float data[6] = {1, 2, 3, 4, 5, 6};
    return make_file("{\"w\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]},"
                     "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[16,24]}}",
                     data, sizeof data);
}

Test(safetensors, every_truncation_is_refused)
{
    const file_bytes whole = two_tensors();
    expect_ok(open_everywhere(whole.bytes, whole.n));
    for (size_t n = 0; n < whole.n; n++) {
        unsigned char *cut = malloc(n + 1); /* exact size: AddressSanitizer sees any overrun */
        cr_assert_not_null(cut);
        unsigned char *exact = realloc(cut, n == 0 ? 1 : n);
        memcpy(exact, whole.bytes, n);
        const attn_status status = open_everywhere(exact, n);
        cr_assert_eq(status.code, ATTN_E_FORMAT, "cut at %zu: %s", n, status.message);
        cr_assert(strstr(status.message, n < 8 ? "too short" : "incomplete file") != NULL,
                  "cut at %zu: %s", n, status.message);
        free(exact);
    }
    free(whole.bytes);
}

Test(safetensors, trailing_bytes_are_refused)
{
    const file_bytes whole = two_tensors();
    const size_t extra[] = {1, 4, 4096};
    for (size_t i = 0; i < 3; i++) {
        unsigned char *longer = calloc(1, whole.n + extra[i]);
        memcpy(longer, whole.bytes, whole.n);
        char text[64];
        snprintf(text, sizeof text, "%zu bytes behind the last tensor", extra[i]);
        expect_fail(open_everywhere(longer, whole.n + extra[i]), ATTN_E_FORMAT, text);
        free(longer);
    }
    free(whole.bytes);
}

Test(safetensors, a_file_that_shrinks_after_opening_gives_an_error)
{
    const file_bytes whole = two_tensors();
    const char *path = write_file("shrinking.safetensors", whole.bytes, whole.n);
    attn_safetensors *file;
    const attn_tensor *tensor;
    float out[4];
    expect_ok(attn_safetensors_open(path, ATTN_OPEN_READ, &file));
    expect_ok(attn_safetensors_get(file, "w", &tensor));
    expect_ok(attn_tensor_read_f32(file, tensor, 0, 4, out));
    cr_assert_eq(truncate(path, (off_t)whole.n - 12), 0);
    expect_ok(attn_tensor_read_f32(file, tensor, 0, 3, out));
    expect_fail(attn_tensor_read_f32(file, tensor, 0, 4, out), ATTN_E_IO, "\"w\"");
    attn_safetensors_close(file);
    free(whole.bytes);
}

Test(safetensors, header_sizes_around_powers_and_limits)
{
    const size_t sizes[] = {4095, 4096, 4097, 65535, 65536, 65537, 99992, 100000, 100008};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char *header = malloc(sizes[i] + 1);
        memset(header, ' ', sizes[i]);
        header[sizes[i]] = '\0';
        const char *text = "{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                           "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}";
        memcpy(header, text, strlen(text));
        const float data[2] = {1.5f, -2};
        const file_bytes bytes = make_file(header, data, sizeof data);
        expect_ok(open_everywhere(bytes.bytes, bytes.n));
        attn_safetensors *file;
        float value;
        expect_ok(attn_safetensors_open_memory(bytes.bytes, bytes.n, &file));
        expect_ok(attn_tensor_read_f32(file, attn_safetensors_find(file, "b"), 0, 1, &value));
        cr_assert_eq(value, -2);
        attn_safetensors_close(file);
        free(bytes.bytes);
        free(header);
    }
}

/* Time limits hold for what users run. */
static double sanitizer_slowdown(void)
{
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
    return 10;
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return 10;
#else
    return 1;
#endif
}

Test(safetensors, two_hundred_thousand_entries_in_two_seconds)
{
    const size_t count = 200000;
    char *header = malloc(count * 80);
    size_t used = (size_t)sprintf(header, "{");
    for (size_t i = 0; i < count; i++) {
        used += (size_t)sprintf(
            header + used, "%s\"t%zu\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%zu,%zu]}",
            i == 0 ? "" : ",", i, i, i + 1);
    }
    strcpy(header + used, "}");
    unsigned char *data = calloc(1, count);
    const file_bytes bytes = make_file(header, data, count);
    attn_safetensors *file;
    const clock_t start = clock();
    expect_ok(attn_safetensors_open_memory(bytes.bytes, bytes.n, &file));
    const double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    cr_assert_eq(attn_safetensors_count(file), count);
    cr_expect_lt(seconds, sanitizer_slowdown() * 2.0, "%.2f s", seconds);
    const attn_tensor *tensor;
    expect_ok(attn_safetensors_get(file, "t199999", &tensor));
    cr_assert_eq(tensor->begin, 199999);
    expect_fail(attn_safetensors_get(file, "t200000", &tensor), ATTN_E_MISSING, "near:");
    attn_safetensors_close(file);
    free(bytes.bytes);
    free(header);
    free(data);
}

Test(safetensors, not_a_regular_file)
{
    attn_safetensors *file;
    cr_assert_eq(mkfifo(in_dir("fifo"), 0600), 0);
    for (size_t m = 0; m < 2; m++) {
        expect_fail(attn_safetensors_open(in_dir("none"), MODES[m], &file), ATTN_E_IO, "none");
        expect_fail(attn_safetensors_open(test_dir, MODES[m], &file), ATTN_E_IO, "not a regular");
        expect_fail(attn_safetensors_open(in_dir("fifo"), MODES[m], &file), ATTN_E_IO,
                    "not a regular");
        cr_assert_null(file);
    }
    expect_fail(attn_safetensors_open_memory(NULL, 0, &file), ATTN_E_NULL, "");
}

/* ---- lying headers: BC-63, BC-65 ---- */

#define ENTRY(dtype, shape, offsets)                                                               \
    "{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define ONE(dtype, shape, offsets) "{\"w\":" ENTRY(dtype, shape, offsets) "}"
#define F32 "\"F32\""

Test(safetensors, lying_headers_are_refused)
{
    struct {
        const char *header;
        size_t data_bytes;
        int code;
        const char *text;
    } const cases[] = {
        /* the same name twice */
        {"{\"w\":" ENTRY(F32, "[4]", "[0,16]") ",\"w\":" ENTRY(F32, "[4]", "[16,32]") "}", 32,
         ATTN_E_FORMAT, "duplicate key \"w\""},
        {"{\"w\":" ENTRY(F32, "[4]", "[0,16]") ",\"\\u0077\":" ENTRY(F32, "[4]", "[16,32]") "}", 32,
         ATTN_E_FORMAT, "duplicate key \"w\""},
        {"{\"w\":{\"dtype\":\"F32\",\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
         ATTN_E_FORMAT, "duplicate"},
        {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, ATTN_E_FORMAT,
         "duplicate key \"__metadata__\""},
        {"{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0, ATTN_E_FORMAT, "duplicate"},
        /* bytes and shape disagree */
        {ONE(F32, "[4,4]", "[0,16]"), 16, ATTN_E_FORMAT,
         "\"w\": F32 [4,4] needs 64 bytes, data_offsets give 16"},
        {ONE(F32, "[2,2]", "[0,20]"), 20, ATTN_E_FORMAT, "needs 16 bytes, data_offsets give 20"},
        {ONE("\"F16\"", "[2,2]", "[0,16]"), 16, ATTN_E_FORMAT,
         "\"w\": F16 [2,2] needs 8 bytes, data_offsets give 16"},
        {ONE(F32, "[2,2]", "[1,17]"), 16, ATTN_E_FORMAT, "starts at data byte 1"},
        {ONE("\"U8\"", "[17]", "[0,17]"), 16, ATTN_E_FORMAT,
         "\"w\" ends at data byte 17: need 17 bytes of data, have 16"},
        {ONE("\"F4\"", "[3]", "[0,1]"), 1, ATTN_E_FORMAT, "fraction"},
        /* gaps and overlaps */
        {"{\"a\":" ENTRY(F32, "[1]", "[0,4]") ",\"b\":" ENTRY(F32, "[1]", "[8,12]") "}", 12,
         ATTN_E_FORMAT, "\"b\" starts at data byte 8, leaving a gap behind 4"},
        {"{\"a\":" ENTRY(F32, "[2]", "[0,8]") ",\"b\":" ENTRY(F32, "[2]", "[4,12]") "}", 12,
         ATTN_E_FORMAT, "\"b\" starts at data byte 4, inside"},
        {"{\"a\":" ENTRY(F32, "[1]", "[0,4]") ",\"b\":" ENTRY(F32, "[1]", "[0,4]") "}", 4,
         ATTN_E_FORMAT, "inside"},
        /* numbers */
        {ONE(F32, "[1]", "[4,0]"), 4, ATTN_E_FORMAT, "ascending"},
        {ONE(F32, "[1]", "[-4,0]"), 4, ATTN_E_FORMAT, "ascending"},
        {ONE(F32, "[1]", "[0,4,8]"), 4, ATTN_E_FORMAT, "data_offsets"},
        {ONE(F32, "[1]", "[0]"), 4, ATTN_E_FORMAT, "data_offsets"},
        {ONE(F32, "[1]", "[0,4.0]"), 4, ATTN_E_FORMAT, "data_offsets"},
        {ONE(F32, "[1]", "\"04\""), 4, ATTN_E_FORMAT, "data_offsets"},
        {ONE(F32, "[1]", "[0,18446744073709551616]"), 4, ATTN_E_FORMAT, "not JSON"},
        {ONE(F32, "[-1]", "[0,4]"), 4, ATTN_E_FORMAT, "shape[0]"},
        {ONE(F32, "[1,1.5]", "[0,4]"), 4, ATTN_E_FORMAT, "shape[1]"},
        {ONE(F32, "[\"1\"]", "[0,4]"), 4, ATTN_E_FORMAT, "shape[0]"},
        {ONE(F32, "1", "[0,4]"), 4, ATTN_E_FORMAT, "shape"},
        {ONE(F32, "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4, ATTN_E_FORMAT, "at most 8"},
        {ONE(F32, "[4294967296,4294967296]", "[0,0]"), 0, ATTN_E_FORMAT, "overflows"},
        {ONE(F32, "[4294967296,4294967295]", "[0,0]"), 0, ATTN_E_FORMAT, "overflows"},
        {ONE("\"U8\"", "[2305843009213693952]", "[0,0]"), 0, ATTN_E_FORMAT, "overflows"},
        /* an exabyte tensor in a small file */
        {ONE("\"U8\"", "[1152921504606846976]", "[0,1152921504606846976]"), 4, ATTN_E_FORMAT,
         "incomplete file"},
        /* dtypes: never reinterpreted */
        {ONE("\"F33\"", "[1]", "[0,4]"), 4, ATTN_E_DTYPE, "\"w\": unknown dtype \"F33\""},
        {ONE("\"f32\"", "[1]", "[0,4]"), 4, ATTN_E_DTYPE, "\"w\": unknown dtype \"f32\""},
        {ONE("32", "[1]", "[0,4]"), 4, ATTN_E_FORMAT, "dtype"},
        {"{\"w\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, ATTN_E_FORMAT, "dtype"},
        {"{\"w\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, ATTN_E_FORMAT, "shape"},
        {"{\"w\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, ATTN_E_FORMAT, "data_offsets"},
        {"{\"w\":[1]}", 0, ATTN_E_FORMAT, "\"w\""},
        {"{\"w\":null}", 0, ATTN_E_FORMAT, "\"w\""},
        /* metadata */
        {"{\"__metadata__\":[\"a\"]}", 0, ATTN_E_FORMAT, "__metadata__"},
        {"{\"__metadata__\":{\"a\":1}}", 0, ATTN_E_FORMAT, "__metadata__"},
        {"{\"__metadata__\":{\"a\":{\"b\":\"c\"}}}", 0, ATTN_E_FORMAT, "__metadata__"},
        {"{\"__metadata__\":null}", 0, ATTN_E_FORMAT, "__metadata__"},
        /* JSON */
        {" {}", 0, ATTN_E_FORMAT, "'{'"},
        {"[]", 0, ATTN_E_FORMAT, "'{'"},
        {"{}{}", 0, ATTN_E_FORMAT, "behind the closing"},
        {"{} x", 0, ATTN_E_FORMAT, "behind the closing"},
        {"{,}", 0, ATTN_E_FORMAT, "a name"},
        {"{\"a\"}", 0, ATTN_E_FORMAT, "':'"},
        {"{\"a\":}", 0, ATTN_E_FORMAT, "not JSON"},
        {"{a:1}", 0, ATTN_E_FORMAT, "a name"},
        {"{1:1}", 0, ATTN_E_FORMAT, "a name"},
        {"{\"a\":" ENTRY(F32, "[]", "[0,4]") ",}", 4, ATTN_E_FORMAT, "a name"},
        {"{\"a\":" ENTRY(F32, "[]", "[0,4]"), 4, ATTN_E_FORMAT, "'}'"},
        {"{\"a\":" ENTRY(F32, "[]", "[0,4]") "]", 4, ATTN_E_FORMAT, "'}'"},
        {"{\"a", 0, ATTN_E_FORMAT, "not JSON"},
        {"{\"\\", 0, ATTN_E_FORMAT, "not JSON"},
        {"{\"a\\u0000\":1}", 0, ATTN_E_FORMAT, "not JSON"},
        {"{\"\xff\":1}", 0, ATTN_E_FORMAT, "not JSON"},
        {"{\"\xed\xa0\x80\":1}", 0, ATTN_E_FORMAT, "not JSON"},
        {"{\"a\":{\"b\":[[1]]}}", 0, ATTN_E_FORMAT, "nested too deeply"},
        {"{\"a\":{\"b\":{\"c\":{}}}}", 0, ATTN_E_FORMAT, "nested too deeply"},
        {ONE(F32, "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "[0,4]"), 4, ATTN_E_FORMAT, "too many"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const attn_status status = open_header(cases[i].header, cases[i].data_bytes);
        cr_expect_eq(status.code, cases[i].code, "%s: code %d: %s", cases[i].header, status.code,
                     status.message);
        cr_expect_not_null(strstr(status.message, cases[i].text), "%s: %s", cases[i].header,
                           status.message);
    }
}

static void *open_deep_header(void *result)
{
    const size_t n = 1000000;
    unsigned char *bytes = malloc(8 + n);
    put_length(bytes, n);
    memset(bytes + 8, '[', n);
    memcpy(bytes + 8, "{\"a\":", 5);
    *(attn_status *)result = open_bytes(bytes, 8 + n);
    free(bytes);
    return NULL;
}

Test(safetensors, deep_nesting_does_not_exhaust_a_small_stack)
{
    attn_status status;
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 128 * 1024);
    cr_assert_eq(pthread_create(&thread, &attributes, open_deep_header, &status), 0);
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attributes);
    expect_fail(status, ATTN_E_FORMAT, "nested too deeply");
}

Test(safetensors, every_byte_of_a_header_changed_does_no_harm)
{
    const file_bytes whole = two_tensors();
    for (size_t at = 0; at < whole.n - 24; at++) {
        const unsigned char kept = whole.bytes[at];
        for (unsigned value = 0; value < 256; value++) {
            whole.bytes[at] = (unsigned char)value;
            attn_safetensors *file;
            if (attn_safetensors_open_memory(whole.bytes, whole.n, &file).code == ATTN_OK) {
                float out[8];
                for (size_t i = 0; i < attn_safetensors_count(file); i++) {
                    const attn_tensor *tensor = attn_safetensors_at(file, i);
                    cr_assert_leq(tensor->elements, 24);
                    attn_tensor_read_f32(file, tensor, 0, tensor->elements > 8 ? 8 : 4, out);
                }
            }
            attn_safetensors_close(file);
        }
        whole.bytes[at] = kept;
    }
    free(whole.bytes);
}

Test(safetensors, messages_are_one_clean_line)
{
    const attn_status status = open_header("{\"a\\n\\u001b[31m\":1}", 0);
    cr_assert_not_null(strstr(status.message, "\"a??[31m\""), "%s", status.message);
    char header[2000];
    memset(header, 'x', sizeof header);
    memcpy(header, "{\"", 2);
    strcpy(header + sizeof header - 5, "\":1}");
    const attn_status longer = open_header(header, 0);
    cr_assert_eq(longer.code, ATTN_E_FORMAT);
    cr_assert_lt(strlen(longer.message), ATTN_MESSAGE_BYTES);
    for (size_t i = 2; i < sizeof header - 7; i += 2) { /* cut inside a character */
        memcpy(header + i, "\xc3\xa9", 2);
    }
    const attn_status accents = open_header(header, 0);
    const size_t length = strlen(accents.message);
    cr_assert_eq((unsigned char)accents.message[length - 1], 0xa9, "%s", accents.message);
}

/* ---- values: BC-69, BC-71, BC-72 ---- */

Test(safetensors, byte_order_helpers)
{
    const unsigned char bytes[9] = {0xff, 0x00, 0x00, 0x80, 0x3f, 0x00, 0x00, 0xf0, 0x3f};
    cr_assert_eq(attn_le16(bytes + 3), 0x3f80);
    cr_assert_eq(attn_le32(bytes + 1), 0x3f800000);
    cr_assert_eq(attn_float_of_bits(attn_le32(bytes + 1)), 1.0f);
    cr_assert_eq(attn_le64(bytes + 1), UINT64_C(0x3ff000003f800000));
    const unsigned char one[8] = {0, 0, 0, 0, 0, 0, 0xf0, 0x3f};
    cr_assert_eq(attn_float_of_f64(attn_le64(one)), 1.0f);
    unsigned char put[8];
    attn_put_le(put, 8, UINT64_C(0x0102030405060708));
    for (size_t i = 0; i < 8; i++) {
        cr_assert_eq(put[i], 8 - i);
    }
}

Test(safetensors, all_half_precision_values)
{
    for (uint32_t bits = 0; bits < 65536; bits++) {
        const int exponent = (int)(bits >> 10 & 31);
        const double fraction = (double)(bits & 1023) / 1024;
        const double magnitude =
            exponent == 0 ? ldexp(fraction, -14) : ldexp(1 + fraction, exponent - 15);
        const double wanted = bits & 0x8000 ? -magnitude : magnitude;
        const float got = attn_float_of_f16((uint16_t)bits);
        if (exponent == 31) {
            cr_assert(bits & 1023 ? isnan(got) : isinf(got) && (got < 0) == (bits >> 15 != 0));
        } else {
            cr_assert((double)got == wanted && !signbit(got) == !(bits & 0x8000), "%04x", bits);
        }
        const float brain = attn_float_of_bf16((uint16_t)bits);
        uint32_t back;
        memcpy(&back, &brain, sizeof back);
        cr_assert_eq(back, bits << 16);
    }
}

Test(safetensors, dtypes_are_converted_or_refused_by_name)
{
    const unsigned char data[] = {
        0x80, 0x3f, 0x7f, 0x7f,                         /* bf: 1, max */
        0x00, 0x3c, 0x01, 0x00, 0xff, 0x7b, 0x00, 0x7c, /* f16: 1, least, max, inf */
        0,    0,    0,    0,    0,    0,    0xf8, 0xbf, /* f64: -1.5 */
        1,    0,    0,    0,    0,    0,    0,    0,    /* i64 */
        7,    1,    9                                   /* u8, bool, f8 */
    };
    /* clang-format off */
    static const char header[] =
        "{\"bf\":" ENTRY("\"BF16\"", "[2]", "[0,4]")
        ",\"f16\":" ENTRY("\"F16\"", "[4]", "[4,12]")
        ",\"f64\":" ENTRY("\"F64\"", "[1]", "[12,20]")
        ",\"i64\":" ENTRY("\"I64\"", "[1]", "[20,28]")
        ",\"u8\":" ENTRY("\"U8\"", "[1]", "[28,29]")
        ",\"bool\":" ENTRY("\"BOOL\"", "[1]", "[29,30]")
        ",\"f8\":" ENTRY("\"F8_E4M3\"", "[1]", "[30,31]") "}";
    /* clang-format on */
    const file_bytes bytes = make_file(header, data, sizeof data);
    const char *path = write_file("dtypes.safetensors", bytes.bytes, bytes.n);
    for (size_t m = 0; m < 2; m++) {
        attn_safetensors *file;
        float out[4];
        expect_ok(attn_safetensors_open(path, MODES[m], &file));
        expect_ok(attn_tensor_read_f32(file, attn_safetensors_find(file, "bf"), 0, 2, out));
        cr_assert(out[0] == 1.0f && out[1] == 3.3895314e38f);
        expect_ok(attn_tensor_read_f32(file, attn_safetensors_find(file, "f16"), 0, 4, out));
        cr_assert(out[0] == 1.0f && out[1] == 5.9604645e-8f && out[2] == 65504 && isinf(out[3]));
        expect_ok(attn_tensor_read_f32(file, attn_safetensors_find(file, "f64"), 0, 1, out));
        cr_assert_eq(out[0], -1.5f);
        const char *const refused[] = {"i64", "u8", "bool", "f8"};
        const char *const dtypes[] = {"I64", "U8", "BOOL", "F8_E4M3"};
        for (size_t i = 0; i < 4; i++) {
            const attn_tensor *tensor = attn_safetensors_find(file, refused[i]);
            char text[80];
            snprintf(text, sizeof text, "\"%s\" has dtype %s", refused[i], dtypes[i]);
            expect_fail(attn_tensor_read_f32(file, tensor, 0, 1, out), ATTN_E_DTYPE, text);
        }
        uint8_t byte;
        expect_ok(attn_tensor_read_u8(file, attn_safetensors_find(file, "bool"), 0, 1, &byte));
        cr_assert_eq(byte, 1);
        expect_ok(attn_tensor_read_u8(file, attn_safetensors_find(file, "u8"), 0, 1, &byte));
        cr_assert_eq(byte, 7);
        expect_fail(attn_tensor_read_u8(file, attn_safetensors_find(file, "f8"), 0, 1, &byte),
                    ATTN_E_DTYPE, "F8_E4M3");
        attn_safetensors_close(file);
    }
    free(bytes.bytes);
}

Test(safetensors, unaligned_data_are_read_right)
{
    const unsigned char data[] = {9,    8,    7,                                  /* 3 bytes U8 */
                                  0x00, 0x00, 0x80, 0x3f, 0x00, 0x00, 0x20, 0xc1, /* 1, -10 */
                                  1,                                              /* U8 */
                                  0x00, 0x3c, 0x80, 0x3f};                        /* f16 1, bf 1 */
    /* clang-format off */
    static const char entries[] =
        "{\"a\":" ENTRY("\"U8\"", "[3]", "[0,3]")
        ",\"w\":" ENTRY("\"F32\"", "[2]", "[3,11]")
        ",\"c\":" ENTRY("\"U8\"", "[1]", "[11,12]")
        ",\"h\":" ENTRY("\"F16\"", "[1]", "[12,14]")
        ",\"b\":" ENTRY("\"BF16\"", "[1]", "[14,16]") "}";
    /* clang-format on */
    for (size_t pad = 0; pad < 8; pad++) {
        char header[512];
        snprintf(header, sizeof header, "%s%*s", entries, (int)pad, "");
        const file_bytes bytes = make_file(header, data, sizeof data);
        const char *path = write_file("unaligned.safetensors", bytes.bytes, bytes.n);
        for (size_t m = 0; m < 3; m++) {
            attn_safetensors *file;
            float out[2];
            expect_ok(m < 2 ? attn_safetensors_open(path, MODES[m], &file)
                            : attn_safetensors_open_memory(bytes.bytes, bytes.n, &file));
            expect_ok(attn_tensor_read_f32(file, attn_safetensors_find(file, "w"), 0, 2, out));
            cr_assert(out[0] == 1 && out[1] == -10);
            expect_ok(attn_tensor_read_f32(file, attn_safetensors_find(file, "w"), 1, 1, out));
            cr_assert_eq(out[0], -10);
            expect_ok(attn_tensor_read_f32(file, attn_safetensors_find(file, "h"), 0, 1, out));
            expect_ok(attn_tensor_read_f32(file, attn_safetensors_find(file, "b"), 0, 1, out + 1));
            cr_assert(out[0] == 1 && out[1] == 1);
            attn_safetensors_close(file);
        }
        free(bytes.bytes);
    }
}

Test(safetensors, integers_are_checked_against_their_range)
{
    const unsigned char data[] = {5,    0,    0,    0,    0xff, 0xff, 0xff, 0xff,  /* i32: 5, -1 */
                                  3,    0,    0,    0,    0,    0,    0,    0,     /* i64: 3 */
                                  0,    0,    0,    0,    1,    0,    0,    0,     /* 2^32 */
                                  0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}; /* -1 */
    /* clang-format off */
    static const char header[] =
        "{\"i\":" ENTRY("\"I32\"", "[2]", "[0,8]")
        ",\"l\":" ENTRY("\"I64\"", "[3]", "[8,32]") "}";
    /* clang-format on */
    const file_bytes bytes = make_file(header, data, sizeof data);
    attn_safetensors *file;
    int32_t out[3];
    expect_ok(attn_safetensors_open_memory(bytes.bytes, bytes.n, &file));
    const attn_tensor *narrow = attn_safetensors_find(file, "i");
    const attn_tensor *wide = attn_safetensors_find(file, "l");
    expect_ok(attn_tensor_read_i32(file, narrow, 0, 2, -1, 5, out));
    cr_assert(out[0] == 5 && out[1] == -1);
    expect_fail(attn_tensor_read_i32(file, narrow, 0, 2, 0, 5, out), ATTN_E_RANGE,
                "\"i\": element 1 is -1, allowed is 0 to 5");
    expect_fail(attn_tensor_read_i32(file, narrow, 0, 2, -1, 4, out), ATTN_E_RANGE,
                "element 0 is 5");
    expect_ok(attn_tensor_read_i32(file, wide, 0, 1, 0, 3, out));
    cr_assert_eq(out[0], 3);
    expect_fail(attn_tensor_read_i32(file, wide, 1, 1, INT32_MIN, INT32_MAX, out), ATTN_E_RANGE,
                "element 1 is 4294967296");
    expect_ok(attn_tensor_read_i32(file, wide, 2, 1, INT32_MIN, INT32_MAX, out));
    cr_assert_eq(out[0], -1);
    expect_fail(attn_tensor_read_f32(file, narrow, 0, 1, (float[1]){0}), ATTN_E_DTYPE, "I32");
    expect_fail(attn_tensor_read_i32(file, wide, 2, 2, 0, 1, out), ATTN_E_ARGUMENT, "2 to 4 of 3");
    expect_fail(attn_tensor_read_i32(file, wide, UINT64_MAX, 1, 0, 1, out), ATTN_E_ARGUMENT,
                "of 3");
    attn_safetensors_close(file);
    free(bytes.bytes);
}

Test(safetensors, long_tensors_are_read_in_pieces)
{
    const size_t n = 100003; /* no multiple of any piece */
    float *data = malloc(n * sizeof *data);
    float *out = malloc(n * sizeof *out);
    for (size_t i = 0; i < n; i++) {
        data[i] = (float)i;
    }
    const attn_tensor_source source = {
        .name = "t", .dtype = ATTN_F32, .rank = 1, .shape = {n}, .data = data};
    expect_ok(attn_safetensors_write(in_dir("long"), &source, 1));
    for (size_t m = 0; m < 2; m++) {
        attn_safetensors *file;
        memset(out, 0, n * sizeof *out);
        expect_ok(attn_safetensors_open(in_dir("long"), MODES[m], &file));
        expect_ok(attn_tensor_read_f32(file, attn_safetensors_at(file, 0), 1, n - 1, out + 1));
        cr_assert_arr_eq(out, data, n * sizeof *out);
        attn_safetensors_close(file);
    }
    free(data);
    free(out);
}

/* ---- names: BC-59 ---- */

Test(safetensors, missing_tensors_bring_near_names)
{
    /* clang-format off */
    static const char header[] =
        "{\"model.layers.0.self_attn.q_proj.weight\":" ENTRY("\"U8\"", "[1]", "[0,1]")
        ",\"model.layers.1.self_attn.q_proj.weight\":" ENTRY("\"U8\"", "[1]", "[1,2]")
        ",\"k_proj.weight\":" ENTRY("\"U8\"", "[1]", "[2,3]")
        ",\"unrelated\":" ENTRY("\"U8\"", "[1]", "[3,4]") "}";
    /* clang-format on */
    const file_bytes bytes = make_file(header, "\1\2\3\4", 4);
    attn_safetensors *file;
    const attn_tensor *tensor;
    expect_ok(attn_safetensors_open_memory(bytes.bytes, bytes.n, &file));
    attn_status status = attn_safetensors_get(file, "q_proj.weight", &tensor);
    cr_assert_null(tensor);
    expect_fail(status, ATTN_E_MISSING,
                "no tensor \"q_proj.weight\" among the 4 of the file; near: "
                "\"model.layers.0.self_attn.q_proj.weight\", "
                "\"model.layers.1.self_attn.q_proj.weight\", \"k_proj.weight\"");
    status = attn_safetensors_get(file, "bert.unrelated", &tensor);
    expect_fail(status, ATTN_E_MISSING, "near: \"unrelated\"");
    status = attn_safetensors_get(file, "k_proj.wieght", &tensor);
    expect_fail(status, ATTN_E_MISSING, "near: \"k_proj.weight\"");
    status = attn_safetensors_get(file, "zzz", &tensor);
    cr_assert_null(strstr(status.message, "near"), "%s", status.message);
    attn_safetensors_close(file);
    free(bytes.bytes);

    expect_ok(attn_safetensors_open_memory("\2\0\0\0\0\0\0\0{}", 10, &file));
    expect_fail(attn_safetensors_get(file, "w", &tensor), ATTN_E_MISSING, "among the 0");
    attn_safetensors_close(file);
}

/* ---- writing ---- */

Test(safetensors, what_is_written_is_read_back)
{
    const uint8_t bytes[3] = {1, 0, 2};
    const float floats[4] = {1, -0.0f, FLT_MIN / 2, INFINITY};
    const int64_t wide[1] = {-5};
    const int32_t narrow[2] = {7, -8};
    const attn_tensor_source sources[] = {
        {.name = "keep", .dtype = ATTN_BOOL, .rank = 2, .shape = {1, 3}, .data = bytes},
        {.name = "y \"\xc3\xa9\"\n", .dtype = ATTN_F32, .rank = 2, .shape = {2, 2}, .data = floats},
        {.name = "none", .dtype = ATTN_F32, .rank = 1, .shape = {0}, .data = NULL},
        {.name = "wide", .dtype = ATTN_I64, .rank = 0, .data = wide},
        {.name = "n", .dtype = ATTN_I32, .rank = 1, .shape = {2}, .data = narrow},
        {.name = "u", .dtype = ATTN_U8, .rank = 1, .shape = {3}, .data = bytes},
    };
    expect_ok(attn_safetensors_write(in_dir("out"), sources, 6));
    attn_safetensors *file;
    expect_ok(attn_safetensors_open(in_dir("out"), ATTN_OPEN_READ, &file));
    cr_assert_eq(attn_safetensors_count(file), 6);
    float f[4];
    int32_t i[2];
    uint8_t u[3];
    const attn_tensor *y = attn_safetensors_find(file, "y \"\xc3\xa9\"\n");
    expect_ok(attn_tensor_read_f32(file, y, 0, 4, f));
    cr_assert_arr_eq(f, floats, sizeof f);
    cr_assert(y->rank == 2 && y->shape[1] == 2 && y->begin % 4 == 0);
    cr_assert_eq(attn_safetensors_find(file, "wide")->begin % 8, 0);
    expect_ok(attn_tensor_read_i32(file, attn_safetensors_find(file, "wide"), 0, 1, -5, -5, i));
    expect_ok(attn_tensor_read_i32(file, attn_safetensors_find(file, "n"), 0, 2, -8, 7, i));
    cr_assert_arr_eq(i, narrow, sizeof i);
    expect_ok(attn_tensor_read_u8(file, attn_safetensors_find(file, "keep"), 0, 3, u));
    cr_assert_arr_eq(u, bytes, sizeof u);
    attn_safetensors_close(file);

    FILE *raw = fopen(in_dir("out"), "rb");
    unsigned char prefix[8];
    cr_assert_eq(fread(prefix, 1, 8, raw), 8);
    fclose(raw);
    cr_assert_eq(attn_le64(prefix) % 8, 0); /* the data start aligned */
    cr_assert_eq(count_files(), 1);         /* nothing temporary left */
}

Test(safetensors, a_write_that_fails_leaves_nothing)
{
    const float value = 1;
    attn_tensor_source source = {.name = "w", .dtype = ATTN_F32, .rank = 0, .data = &value};
    const attn_tensor_source twice[] = {source, source};
    write_file("kept", "before", 6);
    expect_fail(attn_safetensors_write(in_dir("kept"), twice, 2), ATTN_E_ARGUMENT, "taken");
    source.name = "__metadata__";
    expect_fail(attn_safetensors_write(in_dir("kept"), &source, 1), ATTN_E_ARGUMENT, "taken");
    source.name = "\xff";
    expect_fail(attn_safetensors_write(in_dir("kept"), &source, 1), ATTN_E_ARGUMENT, "UTF-8");
    source.name = "w";
    source.dtype = ATTN_BF16;
    expect_fail(attn_safetensors_write(in_dir("kept"), &source, 1), ATTN_E_DTYPE, "\"w\"");
    source.dtype = ATTN_F32;
    source.rank = 2;
    source.shape[0] = source.shape[1] = UINT64_C(1) << 40;
    expect_fail(attn_safetensors_write(in_dir("kept"), &source, 1), ATTN_E_MEMORY, "overflows");
    source.rank = 0;
    expect_fail(attn_safetensors_write(in_dir("no/such/dir"), &source, 1), ATTN_E_IO,
                "no/such/dir");
    expect_fail(attn_safetensors_write(test_dir, &source, 1), ATTN_E_IO, test_dir);
    char content[7] = {0};
    FILE *kept = fopen(in_dir("kept"), "rb");
    cr_assert_eq(fread(content, 1, 6, kept), 6);
    fclose(kept);
    cr_assert_str_eq(content, "before");
    cr_assert_eq(count_files(), 1);
    expect_ok(attn_safetensors_write(in_dir("kept"), &source, 1)); /* replaces */
    cr_assert_eq(count_files(), 1);
}

/* ---- several threads: BC-88 ---- */

typedef struct load {
    char path[1024];
    float value;
    int failures;
} load;

static void *load_often(void *argument)
{
    load *mine = argument;
    for (int round = 0; round < 50; round++) {
        attn_safetensors *file;
        const attn_tensor *tensor;
        float out[2] = {0, 0};
        if (attn_safetensors_open(mine->path, MODES[round % 2], &file).code != ATTN_OK) {
            mine->failures++;
            continue;
        }
        if (attn_safetensors_get(file, "w", &tensor).code != ATTN_OK ||
            attn_tensor_read_f32(file, tensor, 0, 2, out).code != ATTN_OK ||
            out[0] != mine->value || out[1] != 2) {
            mine->failures++;
        }
        attn_safetensors_close(file);
    }
    return NULL;
}

Test(safetensors, four_threads_load_four_files)
{
    load loads[4];
    pthread_t threads[4];
    for (size_t i = 0; i < 4; i++) {
        loads[i].value = (float)i;
        loads[i].failures = 0;
        snprintf(loads[i].path, sizeof loads[i].path, "%s/%zu", test_dir, i);
        const float data[2] = {(float)i, 2};
        const attn_tensor_source source = {
            .name = "w", .dtype = ATTN_F32, .rank = 1, .shape = {2}, .data = data};
        expect_ok(attn_safetensors_write(loads[i].path, &source, 1));
    }
    for (size_t i = 0; i < 4; i++) {
        cr_assert_eq(pthread_create(&threads[i], NULL, load_often, &loads[i]), 0);
    }
    for (size_t i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        cr_assert_eq(loads[i].failures, 0);
    }
}
