/* The execution half of `attngen run` as a program of its own: needs libc, pthread and dlopen only,
 * so that it can be cross-compiled and run under an emulator.
 *   attn_exec KERNEL.so PREFIX describe DESCRIPTOR
 *   attn_exec KERNEL.so PREFIX run JOB RESULT THREADS
 * The three raw files are explained in attngen/run.h. Exit: 0 ok, 1 failure, 2 usage. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attngen/run.h"

static attn_status run_job(const attn_library *library, const char *job_path,
                           const char *result_path, size_t threads)
{
    attn_job job;
    attn_status status = attn_job_create(library->kernel, &job);
    if (status.code == ATTN_OK) {
        status = attn_job_read(job_path, &job);
    }
    if (status.code == ATTN_OK) {
        status = attn_job_run(&job, library, threads);
    }
    if (status.code == ATTN_OK) {
        status = attn_result_write(result_path, &job);
    }
    attn_job_free(&job);
    return status;
}

int main(int argc, char **argv)
{
    const int is_describe = argc == 5 && strcmp(argv[3], "describe") == 0;
    const int is_run = argc == 7 && strcmp(argv[3], "run") == 0;
    if (!is_describe && !is_run) {
        fprintf(stderr, "usage: attn_exec KERNEL.so PREFIX describe DESCRIPTOR\n"
                        "       attn_exec KERNEL.so PREFIX run JOB RESULT THREADS\n");
        return 2;
    }
    attn_library library;
    attn_status status = attn_library_open(argv[1], argv[2], &library);
    if (status.code == ATTN_OK) {
        status = is_describe
                     ? attn_descriptor_write(argv[4], library.kernel)
                     : run_job(&library, argv[4], argv[5], (size_t)strtoul(argv[6], NULL, 10));
    }
    attn_library_close(&library);
    if (status.code != ATTN_OK) {
        fprintf(stderr, "attn_exec: %s\n", status.message);
        return 1;
    }
    return 0;
}
