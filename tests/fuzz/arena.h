/* The guarded buffers of one kernel call, and the calls themselves. */
#ifndef ATTNGEN_ARENA_H
#define ATTNGEN_ARENA_H

#include <stdint.h>

#include "attngen/kernel.h"
#include "fuzz/guard.h"
#include "fuzz/inputs.h"

enum { ARENA_INPUTS = 9, ARENA_WEIGHTS = 8, ARENA_CACHES = 2, ARENA_MAX_PARTS = 5 };

typedef int (*pack_function)(const attn_weights *, void *packed);

/* How one call is made. */
typedef struct call_plan {
    enum guard_place place;
    size_t offset;        /* bytes, multiple of 4, for GUARD_MIDDLE */
    unsigned char poison; /* fills outputs and workspace before the call */
    unsigned parts;       /* 0: forward; 1..5: forward_part for every phase and part */
} call_plan;

typedef struct arena {
    const attn_kernel *kernel;
    pack_function pack; /* NULL when the kernel has no packed weights */
    guard inputs[ARENA_INPUTS];
    guard source[ARENA_WEIGHTS];
    guard caches[ARENA_CACHES]; /* k_cache and v_cache: read and written */
    guard packed, workspace, y, weights;
    size_t workspace_bytes;
    const char *fault; /* what broke, NULL while all is well */
    char fault_text[256];
} arena;

int arena_open(arena *a, const attn_kernel *kernel, pack_function pack, const input_set *s);
void arena_close(arena *a);

/* Packs the set's weights and calls the kernel as planned. Afterwards y, weights and
 * caches hold the outputs. Returns the kernel's status, or -1 with a->fault: a signal, a broken canary, a changed
 * input, changed floating-point state, a failing pack. */
int arena_call(arena *a, const input_set *s, const call_plan *plan);

/* Calls forward and every forward_part shape once with spoilt arguments; each must return its
 * error and leave the outputs alone. Returns 0, or -1 with a->fault. */
int arena_check_errors(arena *a, const input_set *s);

/* Seconds until a hanging kernel is stopped and reported. */
void arena_set_timeout(unsigned seconds);

#endif
