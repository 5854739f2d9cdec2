/* One forward pass over a pool of threads: every thread is one part, a barrier ends each phase.
 * The same barrier starts a pass (the workers wait in it between calls) and ends it. */
#define _POSIX_C_SOURCE 200809L

#include "attngen/threads.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "attngen/cpu.h"
#include "attngen/signature.h"
#include "checked.h"

/* Phases of small kernels take microseconds, sleeping and waking takes tens of them: spin that long
 * first. */
#define SPINS 2000

typedef struct barrier {
    atomic_size_t members;
    atomic_size_t arrived;
    atomic_uint generation;
    pthread_mutex_t lock;
    pthread_cond_t wake;
} barrier;

typedef struct job {
    const attn_kernel *kernel;
    const void *packed;
    const attn_args *args;
    void *workspace;
    /* First failure: phase + 1 in the upper half, code in the lower; 0 = none. Keeping the phase
     * lets a slow thread, still leaving phase p, ignore a failure of p+1 that a fast one has met:
     * all threads leave at the same barrier. */
    atomic_uint_fast64_t failure;
} job;

struct attn_pool {
    barrier gate;
    pthread_mutex_t in_use;
    bool stop;
    size_t threads;
    job job;
    struct worker {
        pthread_t thread;
        attn_pool *pool;
        uint32_t part;
    } workers[];
};

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void wait_for_all(barrier *gate)
{
    const unsigned before = atomic_load_explicit(&gate->generation, memory_order_acquire);
    if (atomic_fetch_add(&gate->arrived, 1) + 1 == atomic_load(&gate->members)) {
        atomic_store(&gate->arrived, 0);
        /* Under the lock, so that nobody falls asleep between looking and waiting. */
        pthread_mutex_lock(&gate->lock);
        atomic_store(&gate->generation, before + 1);
        pthread_cond_broadcast(&gate->wake);
        pthread_mutex_unlock(&gate->lock);
        return;
    }
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&gate->generation, memory_order_acquire) != before) {
            return;
        }
        relax();
    }
    pthread_mutex_lock(&gate->lock);
    while (atomic_load(&gate->generation) == before) {
        pthread_cond_wait(&gate->wake, &gate->lock);
    }
    pthread_mutex_unlock(&gate->lock);
}

static void run_part(attn_pool *pool, uint32_t part)
{
    job *work = &pool->job;
    const attn_kernel *kernel = work->kernel;
    const uint32_t phases = kernel->phases;
    for (uint32_t phase = 0; phase < phases; phase++) {
        const int code = kernel->forward_part(work->packed, work->args, work->workspace, phase,
                                              part, (uint32_t)pool->threads);
        if (code != ATTN_OK) {
            uint_fast64_t none = 0;
            atomic_compare_exchange_strong(&work->failure, &none,
                                           (uint_fast64_t)(phase + 1) << 32 | (unsigned)code);
        }
        wait_for_all(&pool->gate);
        if (phase + 1 == phases) {
            return; /* the caller may already be gone, with kernel and arguments */
        }
        const uint64_t failed_phase = atomic_load(&work->failure) >> 32;
        if (failed_phase != 0 && failed_phase <= (uint64_t)phase + 1) {
            wait_for_all(&pool->gate); /* the next call resets `failure`: first all have seen it */
            return;
        }
    }
}

static void *work(void *argument)
{
    const struct worker *self = argument;
    for (;;) {
        wait_for_all(&self->pool->gate);
        if (self->pool->stop) {
            return NULL;
        }
        run_part(self->pool, self->part);
    }
}

/* Lets the first `started` workers out of the gate for good, and frees everything. */
static void end_pool(attn_pool *pool, size_t started)
{
    pool->stop = true;
    atomic_store(&pool->gate.members, started + 1);
    wait_for_all(&pool->gate);
    for (size_t i = 0; i < started; i++) {
        pthread_join(pool->workers[i].thread, NULL);
    }
    pthread_cond_destroy(&pool->gate.wake);
    pthread_mutex_destroy(&pool->gate.lock);
    pthread_mutex_destroy(&pool->in_use);
    free(pool);
}

attn_status attn_pool_create(size_t threads, attn_pool **out)
{
    *out = NULL;
    if (threads == 0 || threads > ATTN_MAX_THREADS) {
        return attn_fail(ATTN_E_ARGUMENT, "%zu threads: allowed are 1 to %d", threads,
                         ATTN_MAX_THREADS);
    }
    attn_pool *pool = malloc(sizeof *pool + (threads - 1) * sizeof pool->workers[0]);
    if (pool == NULL) {
        return attn_fail(ATTN_E_MEMORY, "out of memory");
    }
    pool->stop = false;
    pool->threads = threads;
    atomic_init(&pool->gate.members, threads);
    atomic_init(&pool->gate.arrived, 0);
    atomic_init(&pool->gate.generation, 0);
    atomic_init(&pool->job.failure, 0);
    pthread_mutex_init(&pool->gate.lock, NULL);
    pthread_mutex_init(&pool->in_use, NULL);
    pthread_cond_init(&pool->gate.wake, NULL);

    /* Threads inherit the mask: signals stay with the threads of the program. */
    sigset_t all, previous;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &previous);
    size_t started = 0;
    int reason = 0;
    while (started < threads - 1 && reason == 0) {
        struct worker *next = &pool->workers[started];
        next->pool = pool;
        next->part = (uint32_t)started + 1;
        reason = pthread_create(&next->thread, NULL, work, next);
        started += reason == 0;
    }
    pthread_sigmask(SIG_SETMASK, &previous, NULL);
    if (reason != 0) {
        end_pool(pool, started);
        return attn_fail(ATTN_E_SYSTEM, "cannot start thread %zu of %zu: error %d", started + 2,
                         threads, reason);
    }
    *out = pool;
    return attn_success();
}

void attn_pool_destroy(attn_pool *pool)
{
    if (pool != NULL) {
        end_pool(pool, pool->threads - 1);
    }
}

size_t attn_pool_threads(const attn_pool *pool)
{
    return pool == NULL ? 1 : pool->threads;
}

attn_status attn_workspace_bytes(const attn_kernel *kernel, size_t parts, size_t *bytes)
{
    *bytes = 0;
    if (kernel == NULL || parts == 0) {
        return attn_fail(ATTN_E_ARGUMENT, "attn_workspace_bytes: no kernel, or 0 parts");
    }
    size_t more;
    if (!attn_mul_size(parts - 1, kernel->part_bytes, &more) ||
        !attn_add_size(kernel->workspace_bytes, more, bytes)) {
        return attn_fail(ATTN_E_MEMORY,
                         "workspace of kernel \"%s\" for %zu parts exceeds the "
                         "address space",
                         kernel->name, parts);
    }
    return attn_success();
}

/* The kernel says only which rule was broken; find the argument that broke it. */
static attn_status explain(int code, const attn_kernel *kernel, const void *packed,
                           const attn_args *args, const void *workspace)
{
    attn_slot slots[ATTN_MAX_SLOTS];
    size_t count;
    const attn_status status = attn_kernel_slots(kernel, slots, &count);
    if (status.code != ATTN_OK) {
        return status;
    }
    if (code == ATTN_E_NULL && args != NULL) {
        for (size_t i = 0; i < count; i++) {
            if (slots[i].role != ATTN_WEIGHT && attn_slot_get(&slots[i], NULL, args) == NULL) {
                return attn_fail(code, "kernel \"%s\": args.%s is NULL", kernel->name,
                                 slots[i].name);
            }
        }
    }
    if (code == ATTN_E_NULL) {
        return attn_fail(code, "kernel \"%s\": %s is NULL", kernel->name,
                         args == NULL                                        ? "args"
                         : packed == NULL && kernel->packed_bytes != 0       ? "packed"
                         : workspace == NULL && kernel->workspace_bytes != 0 ? "workspace"
                                                                             : "a pointer");
    }
    if (code == ATTN_E_ALIGN) {
        return attn_fail(code, "kernel \"%s\": %s is not aligned to %zu bytes", kernel->name,
                         (uintptr_t)packed % kernel->alignment != 0 ? "packed" : "workspace",
                         kernel->alignment);
    }
    if (code == ATTN_E_LENGTH && args != NULL && args->kv_lengths != NULL) {
        for (size_t b = 0; b < kernel->batch; b++) {
            const int32_t length = args->kv_lengths[b];
            const size_t least = attn_least_length(kernel);
            if (length < 0 || (uint64_t)length < least || (uint64_t)length > kernel->kv_len) {
                return attn_fail(code,
                                 "kernel \"%s\": kv_lengths[%zu] is %d, allowed is %zu to %zu",
                                 kernel->name, b, (int)length, least, kernel->kv_len);
            }
        }
    }
    return attn_fail(code, "kernel \"%s\": %s", kernel->name, attn_error_text(code));
}

attn_status attn_forward(attn_pool *pool, const attn_kernel *kernel, const void *packed,
                         const attn_args *args, void *workspace)
{
    const attn_status status = attn_check_features(kernel, attn_cpu_features());
    if (status.code != ATTN_OK) {
        return status;
    }
    int code;
    if (pool == NULL) {
        code = kernel->forward(packed, args, workspace);
    } else if (pool->threads == 1 || kernel->cycles < ATTN_POOL_MIN_CYCLES) {
        pthread_mutex_lock(&pool->in_use);
        code = kernel->forward(packed, args, workspace);
        pthread_mutex_unlock(&pool->in_use);
    } else {
        pthread_mutex_lock(&pool->in_use);
        pool->job.kernel = kernel;
        pool->job.packed = packed;
        pool->job.args = args;
        pool->job.workspace = workspace;
        atomic_store(&pool->job.failure, 0);
        wait_for_all(&pool->gate);
        run_part(pool, 0);
        code = (int)(atomic_load(&pool->job.failure) & 0xffffffff);
        pthread_mutex_unlock(&pool->in_use);
    }
    return code == ATTN_OK ? attn_success() : explain(code, kernel, packed, args, workspace);
}
