/* Running a kernel, on one thread or on a pool of the caller. */
#ifndef ATTNGEN_THREADS_H
#define ATTNGEN_THREADS_H

#include "attngen/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ATTN_MAX_THREADS 1024

/* Kernels planned for fewer cycles than this run on the calling thread alone: waking the others takes
 * tens of microseconds, as long as such a call. */
#define ATTN_POOL_MIN_CYCLES UINT64_C(250000)

typedef struct attn_pool attn_pool;

/* A pool of `threads` (1 .. ATTN_MAX_THREADS), the caller of attn_forward being one of them; the
 * others sleep between calls and block all signals. On failure *pool is NULL and no thread is left
 * running. */
attn_status attn_pool_create(size_t threads, attn_pool **pool);

/* Ends and joins the threads. No attn_forward may be running on the pool. NULL is fine. */
void attn_pool_destroy(attn_pool *pool);

/* Threads of the pool, the caller included; 1 for NULL. */
size_t attn_pool_threads(const attn_pool *pool);

/* Workspace bytes for `parts` parts: workspace_bytes + (parts - 1) * part_bytes. ATTN_E_MEMORY when
 * that overflows, ATTN_E_ARGUMENT for 0 parts. */
attn_status attn_workspace_bytes(const attn_kernel *kernel, size_t parts, size_t *bytes);

/* One forward pass, checked: interface version, CPU features, then the kernel's own checks, with
 * the argument at fault named in the message. `pool` NULL runs on the calling thread, and so does a
 * kernel of fewer than ATTN_POOL_MIN_CYCLES. `workspace`
 * holds attn_workspace_bytes(kernel, attn_pool_threads(pool)) bytes at attn_kernel.alignment.
 * The result has the same bits for any number of threads. Calls on one pool wait for each other;
 * calls on different pools, or without one, run at the same time (each with its own workspace).
 * Without a pool the CPU is asked on every call: in a hot loop call attn_check_cpu once and then
 * kernel->forward. */
attn_status attn_forward(attn_pool *pool, const attn_kernel *kernel, const void *packed,
                         const attn_args *args, void *workspace);

#ifdef __cplusplus
}
#endif

#endif /* ATTNGEN_THREADS_H */
