/* What the suites of the runtime share: a folder of their own for each test, files made of bytes,
 * safetensors files made of a header text and data, and checks of a failed status. */
#ifndef RUNTIME_SUPPORT_H
#define RUNTIME_SUPPORT_H

#include <criterion/criterion.h>
#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "attngen/status.h"

static char test_dir[512];

/* Criterion runs each test in a process of its own: .init and .fini of every suite here. */
static inline void make_test_dir(void)
{
    const char pattern[] = {'X', 'X', 'X', 'X', 'X', 'X', '\0'}; /* mkdtemp replaces it */
    const char *root = getenv("TMPDIR");
    snprintf(test_dir, sizeof test_dir, "%s/attngen-test.%s", root != NULL ? root : "/tmp",
             pattern);
    cr_assert_not_null(mkdtemp(test_dir));
}

static inline size_t count_files(void)
{
    size_t count = 0;
    DIR *dir = opendir(test_dir);
    cr_assert_not_null(dir);
    for (const struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    }
    closedir(dir);
    return count;
}

static inline void remove_test_dir(void)
{
    DIR *dir = opendir(test_dir);
    for (const struct dirent *entry; dir != NULL && (entry = readdir(dir)) != NULL;) {
        char path[1024];
        snprintf(path, sizeof path, "%s/%s", test_dir, entry->d_name);
        unlink(path);
    }
    if (dir != NULL) {
        closedir(dir);
    }
    rmdir(test_dir);
}

/* A path in the test's folder; valid until the fourth call after this one. */
static inline const char *in_dir(const char *name)
{
    static char paths[4][1024];
    static unsigned next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", test_dir, name);
    return path;
}

static inline const char *write_file(const char *name, const void *bytes, size_t n)
{
    const char *path = in_dir(name);
    FILE *file = fopen(path, "wb");
    cr_assert_not_null(file);
    cr_assert_eq(fwrite(bytes, 1, n, file), n);
    cr_assert_eq(fclose(file), 0);
    return path;
}

typedef struct file_bytes {
    unsigned char *bytes;
    size_t n;
} file_bytes;

/* Length, header and data of a safetensors file; the caller frees .bytes. */
static inline file_bytes make_file(const char *header, const void *data, size_t data_bytes)
{
    const size_t length = strlen(header);
    file_bytes made = {malloc(8 + length + data_bytes + 1), 8 + length + data_bytes};
    cr_assert_not_null(made.bytes);
    for (size_t i = 0; i < 8; i++) {
        made.bytes[i] = (unsigned char)((unsigned long long)length >> (8 * i) & 0xff);
    }
    memcpy(made.bytes + 8, header, length);
    if (data_bytes > 0) {
        memcpy(made.bytes + 8 + length, data, data_bytes);
    }
    return made;
}

#define expect_ok(call)                                                                            \
    do {                                                                                           \
        const attn_status status_ = (call);                                                        \
        cr_assert_eq(status_.code, ATTN_OK, "%s: %s", #call, status_.message);                     \
    } while (0)

/* The call fails with this code, and with a message that contains this text. */
#define expect_fail(call, wanted_code, text)                                                       \
    do {                                                                                           \
        const attn_status status_ = (call);                                                        \
        cr_assert_eq(status_.code, (wanted_code), "%s: code %d, wanted %d: %s", #call,             \
                     status_.code, (wanted_code), status_.message);                                \
        cr_assert_not_null(strstr(status_.message, (text)), "%s: \"%s\" lacks \"%s\"", #call,      \
                           status_.message, (text));                                               \
    } while (0)

#endif /* RUNTIME_SUPPORT_H */
