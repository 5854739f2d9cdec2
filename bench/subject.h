/* What the probe measures: a generated kernel, or the same layer on a BLAS. */
#ifndef ATTNGEN_BENCH_SUBJECT_H
#define ATTNGEN_BENCH_SUBJECT_H

#include <attngen/kernel.h>
#include <stddef.h>

#include "reference/ref_case.h"

typedef struct subject {
    char name[128];
    char isa[32];     /* of a kernel */
    char detail[256]; /* of a BLAS: version and what it was built for */
    char core[64];    /* of a BLAS: the core it runs on */
    size_t packed_bytes, workspace_bytes, alignment;
    int (*pack)(const attn_weights *weights, void *packed); /* NULL: nothing to pack */
    int (*forward)(const void *packed, const attn_args *args, void *workspace);
    void *library;
} subject;

typedef struct subject_options {
    const char *kernel; /* shared object, and its symbol prefix */
    const char *prefix;
    const char *blas; /* shared object of a BLAS, and what it puts before its symbols */
    const char *blas_prefix;
    const ref_case *problem;
} subject_options;

/* Finds the subject; 0, or -1 and a message. Two files define it: subject_library.c loads shared
 * objects, subject_linked.c is for a program with one kernel inside. */
int subject_open(subject *s, const subject_options *options, char *message, size_t message_size);

/* Fills the fields of `s` from a kernel's descriptor after comparing it with the case. */
int subject_from_kernel(subject *s, const attn_kernel *kernel, const ref_case *c, char *message,
                        size_t message_size);

#endif
