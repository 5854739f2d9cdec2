/* Judges one compiled kernel: many input sets against the reference, and the promises of the
 * kernel contract (memory, alignment, determinism, parts, floating-point state, errors). */
#ifndef ATTNGEN_CHECK_H
#define ATTNGEN_CHECK_H

#include <stdint.h>
#include <stdio.h>

#include "attngen/kernel.h"
#include "reference/ref_case.h"

typedef struct check_job {
    char label[128];  /* names the kernel in messages */
    char group[32];   /* kernels of one Criterion test, e.g. "avx2-gcc" */
    char object[512]; /* shared object */
    char prefix[128]; /* symbol prefix */
    char isa[16];     /* what the descriptor must say */
    size_t sets;      /* input sets to run */
    uint64_t seed;
    int mutant; /* > 0: plant this fault (naive kernel only) */
    ref_case problem;
} check_job;

typedef struct check_result {
    size_t sets;                 /* input sets judged */
    size_t cross_checked;        /* of these, reference confirmed by OpenBLAS */
    double worst;                /* largest error / tolerance */
    double kernel_rms, blas_rms; /* relative to the output's scale, over the finite sets */
    uint64_t hash;               /* of every output bit (NaN payloads aside) */
    int oracle_fault;            /* the two references disagree: no verdict on the kernel */
    char message[512];           /* empty when the kernel passed */
} check_result;

/* Parses "label group object prefix isa sets seed | key=value ...". 0, or -1 with a message. */
int check_parse(check_job *job, const char *line, char *message, size_t message_size);

/* Runs the job. Returns 0 when the kernel passed. Installs signal handlers while it runs, so a
 * fault inside the kernel is a failed check and not the end of the process. */
int check_run(const check_job *job, check_result *result);

/* Prints one line: "ok LABEL sets=.. ..." or "FAIL LABEL set-up and message". */
void check_print(FILE *out, const check_job *job, const check_result *result);

#endif
