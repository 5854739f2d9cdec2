/* Every built kernel of the fuzz list, judged by tests/fuzz/check.c: one Criterion test per group of
 * kernels, which loops over the group (starting a process costs more than checking a kernel).
 *
 * Environment: ATTNGEN_LIST, the list of jobs; ATTNGEN_RESULTS, a folder for result lines. Both are
 * set by tests/run.lua; without them the suite fails. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz/check.h"
#include "reference/blas_path.h"

static void run_group(const char *group)
{
    const char *list_path = getenv("ATTNGEN_LIST"), *results = getenv("ATTNGEN_RESULTS");
    cr_assert(list_path != NULL && results != NULL, "run through tests/run.lua");
    char path[1024], line[2048], message[256];
    snprintf(path, sizeof path, "%s/%s.txt", results, group);
    FILE *list = fopen(list_path, "r"), *out = fopen(path, "w");
    cr_assert(list != NULL && out != NULL, "cannot open %s or %s", list_path, path);
    size_t kernels = 0;
    while (fgets(line, sizeof line, list) != NULL) {
        check_job job;
        check_result result;
        cr_assert_eq(check_parse(&job, line, message, sizeof message), 0, "%s", message);
        if (strcmp(job.group, group) != 0) {
            continue;
        }
        kernels++;
        const int bad = check_run(&job, &result);
        check_print(out, &job, &result);
        fflush(out);
        cr_expect_eq(bad, 0, "%s: %s", job.label, result.message);
    }
    fclose(list);
    fclose(out);
    if (kernels == 0) {
        cr_skip("no %s kernel in the list", group);
    }
}

Test(kernels, scalar_gcc)
{
    run_group("scalar-gcc");
}

Test(kernels, scalar_clang)
{
    run_group("scalar-clang");
}

Test(kernels, avx2_gcc)
{
    run_group("avx2-gcc");
}

Test(kernels, avx2_clang)
{
    run_group("avx2-clang");
}

Test(kernels, avx512_gcc)
{
    run_group("avx512-gcc");
}

Test(kernels, avx512_clang)
{
    run_group("avx512-clang");
}

Test(kernels, neon_gcc)
{
    run_group("neon-gcc");
}

Test(kernels, neon_clang)
{
    run_group("neon-clang");
}

/* The same configs at other optimisation levels. */
Test(kernels, levels)
{
    run_group("levels");
}

Test(kernels, the_judge_introduces_itself)
{
    char text[512];
    blas_describe(text, sizeof text);
    printf("reference: double, checked against %s\n", text);
    cr_expect(strstr(text, "1 thread") != NULL, "%s", text);
}
