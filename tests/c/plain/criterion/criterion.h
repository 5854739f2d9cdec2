/* A stand-in for Criterion that runs every test in one process: Criterion's shared arena and
 * ThreadSanitizer do not go together. Holds only what test_threads.c and test_safetensors.c use.
 *   clang -fsanitize=thread -D_GNU_SOURCE -Itests/c/plain -Iruntime/include \
 *       tests/c/test_threads.c runtime/src/edge/ *.c runtime/src/host/ *.c -ljansson -lpthread -ldl */
#ifndef PLAIN_CRITERION_H
#define PLAIN_CRITERION_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct plain_test {
    const char *name;
    void (*run)(void);
    struct plain_test *next;
} plain_test;

static plain_test *plain_tests;
static void (*plain_init)(void), (*plain_fini)(void);

#define Test(suite, title)                                                                         \
    static void title(void);                                                                       \
    __attribute__((constructor)) static void title##_add(void)                                     \
    {                                                                                              \
        static plain_test test = {#title, title, NULL};                                            \
        test.next = plain_tests;                                                                   \
        plain_tests = &test;                                                                       \
    }                                                                                              \
    static void title(void)

typedef struct plain_suite {
    void (*init)(void), (*fini)(void);
} plain_suite;

#define TestSuite(suite, ...)                                                                      \
    __attribute__((constructor)) static void suite##_set(void)                                     \
    {                                                                                              \
        const plain_suite given = {__VA_ARGS__};                                                   \
        plain_init = given.init;                                                                   \
        plain_fini = given.fini;                                                                   \
    }                                                                                              \
    extern int plain_semicolon

#define plain_check(condition, ...)                                                                \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                        \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
#define cr_assert plain_check
#define cr_assert_eq(a, b, ...) plain_check((a) == (b))
#define cr_assert_neq(a, b, ...) plain_check((a) != (b))
#define cr_assert_lt(a, b, ...) plain_check((a) < (b))
#define cr_assert_gt(a, b, ...) plain_check((a) > (b))
#define cr_assert_leq(a, b, ...) plain_check((a) <= (b))
#define cr_assert_null(a, ...) plain_check((a) == NULL)
#define cr_assert_not_null(a, ...) plain_check((a) != NULL)
#define cr_assert_str_eq(a, b, ...) plain_check(strcmp((a), (b)) == 0)
#define cr_assert_arr_eq(a, b, n, ...) plain_check(memcmp((a), (b), (n)) == 0)
#define cr_expect_eq cr_assert_eq
#define cr_expect_lt cr_assert_lt
#define cr_expect_not_null cr_assert_not_null

int main(void)
{
    size_t count = 0;
    for (const plain_test *test = plain_tests; test != NULL; test = test->next, count++) {
        if (plain_init != NULL) {
            plain_init();
        }
        test->run();
        if (plain_fini != NULL) {
            plain_fini();
        }
    }
    printf("%zu tests passed\n", count);
    return 0;
}

#endif /* PLAIN_CRITERION_H */
