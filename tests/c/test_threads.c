/* The pool over forward_part, driven by hand-written kernels that check how they are called. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>

#include "attngen/buffer.h"
#include "attngen/threads.h"
#include "runtime_support.h"

#define ROWS 37 /* no multiple of any number of parts below */
#define PHASES 3
#define MAX_PARTS 16

/* What the kernel saw, in its workspace: one log per call, so that calls may overlap. */
typedef struct call_log {
    atomic_uint done[PHASES]; /* parts that have finished this phase */
    atomic_uint calls;
    atomic_uint faults;
    float middle[ROWS]; /* written by phase 0, read by other parts in phase 1 */
} call_log;

/* Phase 0 fills `middle`, phase 1 reads its neighbours' part of it, phase 2 finishes y in place. */
static int forward_part(const void *packed, const attn_args *args, void *workspace, uint32_t phase,
                        uint32_t part, uint32_t parts)
{
    call_log *log = workspace;
    const float *bias = packed;
    atomic_fetch_add(&log->calls, 1);
    if (args->kv_lengths != NULL && (args->kv_lengths[0] < 0 || args->kv_lengths[0] > 8)) {
        return ATTN_E_LENGTH;
    }
    if (args->x == NULL || args->y == NULL) {
        return ATTN_E_NULL;
    }
    if (phase >= PHASES || part >= parts) {
        return ATTN_E_PART;
    }
    if (phase > 0 && atomic_load(&log->done[phase - 1]) != parts) {
        atomic_fetch_add(&log->faults, 1); /* a part has not finished the phase before */
    }
    for (size_t row = ROWS * part / parts; row < ROWS * (part + 1) / parts; row++) {
        if (phase == 0) {
            log->middle[row] = args->x[row] * 3 + bias[0];
        } else if (phase == 1) {
            args->y[row] = log->middle[ROWS - 1 - row];
        } else {
            args->y[row] += log->middle[row] / 7;
        }
    }
    atomic_fetch_add(&log->done[phase], 1);
    return ATTN_OK;
}

static int forward(const void *packed, const attn_args *args, void *workspace)
{
    for (uint32_t phase = 0; phase < PHASES; phase++) {
        const int code = forward_part(packed, args, workspace, phase, 0, 1);
        if (code != ATTN_OK) {
            return code;
        }
    }
    return ATTN_OK;
}

static const attn_kernel KERNEL = {.abi = ATTN_KERNEL_ABI,
                                   .tensors = ATTN_T_X | ATTN_T_KV_LENGTHS,
                                   .phases = PHASES,
                                   .name = "fake",
                                   .isa = "scalar",
                                   .batch = 1,
                                   .seq_len = ROWS,
                                   .kv_len = 8,
                                   .d_model = 1,
                                   .kv_dim = 1,
                                   .heads = 1,
                                   .kv_heads = 1,
                                   .head_dim = 1,
                                   .v_head_dim = 1,
                                   .packed_bytes = sizeof(float),
                                   .workspace_bytes = sizeof(call_log),
                                   .part_bytes = 64,
                                   .alignment = 64,
                                   .cycles = ATTN_POOL_MIN_CYCLES,
                                   .forward = forward,
                                   .forward_part = forward_part};

static const float BIAS[1] = {0.1f};

static void fill(float x[ROWS], unsigned seed)
{
    for (unsigned i = 0; i < ROWS; i++) {
        x[i] = (float)((i * 2654435761u + seed * 40503u) % 1000u) / 37;
    }
}

static void compute(float y[ROWS], const float x[ROWS])
{
    call_log log = {.calls = 0};
    const int32_t length[1] = {8};
    const attn_args args = {.x = x, .y = y, .kv_lengths = length};
    cr_assert_eq(forward(BIAS, &args, &log), ATTN_OK);
}

Test(threads, bits_do_not_depend_on_the_number_of_threads)
{
    const size_t counts[] = {1, 2, 3, 5, 8, 16};
    float x[ROWS], wanted[ROWS];
    const int32_t length[1] = {8};
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        attn_pool *pool;
        expect_ok(attn_pool_create(counts[c], &pool));
        cr_assert_eq(attn_pool_threads(pool), counts[c]);
        for (unsigned round = 0; round < 200; round++) {
            float y[ROWS];
            call_log log = {.calls = 0};
            const attn_args args = {.x = x, .y = y, .kv_lengths = length};
            fill(x, round);
            compute(wanted, x);
            memset(y, 0xff, sizeof y);
            expect_ok(attn_forward(pool, &KERNEL, BIAS, &args, &log));
            cr_assert_arr_eq(y, wanted, sizeof y);
            cr_assert_eq(atomic_load(&log.faults), 0);
            cr_assert_eq(atomic_load(&log.calls), PHASES * counts[c]);
        }
        attn_pool_destroy(pool);
    }
}

Test(threads, without_a_pool_the_caller_works_alone)
{
    float x[ROWS], y[ROWS], wanted[ROWS];
    const int32_t length[1] = {0};
    call_log log = {.calls = 0};
    const attn_args args = {.x = x, .y = y, .kv_lengths = length};
    fill(x, 1);
    compute(wanted, x);
    expect_ok(attn_forward(NULL, &KERNEL, BIAS, &args, &log));
    cr_assert_arr_eq(y, wanted, sizeof y);
    cr_assert_eq(attn_pool_threads(NULL), 1);
    attn_pool_destroy(NULL);
}

Test(threads, short_kernels_stay_on_the_calling_thread)
{
    attn_kernel kernel = KERNEL;
    float x[ROWS], y[ROWS], wanted[ROWS];
    const int32_t length[1] = {8};
    const attn_args args = {.x = x, .y = y, .kv_lengths = length};
    attn_pool *pool;
    fill(x, 1);
    compute(wanted, x);
    expect_ok(attn_pool_create(3, &pool));
    for (int is_short = 0; is_short < 2; is_short++) {
        call_log log = {.calls = 0};
        kernel.cycles = ATTN_POOL_MIN_CYCLES - (is_short ? 1 : 0);
        expect_ok(attn_forward(pool, &kernel, BIAS, &args, &log));
        cr_assert_arr_eq(y, wanted, sizeof y);
        cr_assert_eq(atomic_load(&log.calls), is_short ? PHASES : 3 * PHASES);
    }
    attn_pool_destroy(pool);
}

/* ---- failures ---- */

Test(threads, a_failed_call_says_why_and_the_pool_lives_on)
{
    float x[ROWS] = {0}, y[ROWS];
    int32_t length[1] = {9};
    attn_pool *pool;
    expect_ok(attn_pool_create(4, &pool));
    for (int round = 0; round < 100; round++) {
        for (int alone = 0; alone < 2; alone++) {
            call_log log = {.calls = 0};
            attn_args args = {.x = x, .y = y, .kv_lengths = length};
            attn_pool *with = alone ? NULL : pool;
            length[0] = round % 2 ? 9 : -1;
            expect_fail(attn_forward(with, &KERNEL, BIAS, &args, &log), ATTN_E_LENGTH,
                        round % 2 ? "kv_lengths[0] is 9, allowed is 0 to 8"
                                  : "kv_lengths[0] is -1");
            cr_assert_eq(atomic_load(&log.calls), alone ? 1 : 4); /* no further phase */
            length[0] = 8;
            args.x = NULL;
            expect_fail(attn_forward(with, &KERNEL, BIAS, &args, &log), ATTN_E_NULL,
                        "args.x is NULL");
            args.x = x;
            expect_ok(attn_forward(with, &KERNEL, BIAS, &args, &(call_log){.calls = 0}));
        }
    }
    attn_pool_destroy(pool);
}

/* One part fails in one phase; the others learn of it at the end of that phase, whichever way the
 * threads overtake each other. packed holds {phase, part}. */
static int fail_in_one_part(const void *packed, const attn_args *args, void *workspace,
                            uint32_t phase, uint32_t part, uint32_t parts)
{
    const uint32_t *when = packed;
    call_log *log = workspace;
    (void)args;
    (void)parts;
    atomic_fetch_add(&log->done[phase], 1);
    return phase == when[0] && part == when[1] ? ATTN_E_ALIGN : ATTN_OK;
}

Test(threads, one_failing_part_ends_all_of_them_together)
{
    attn_kernel kernel = KERNEL;
    kernel.forward_part = fail_in_one_part;
    const attn_args args = {.x = NULL};
    attn_pool *pool;
    expect_ok(attn_pool_create(5, &pool));
    for (unsigned round = 0; round < 3000; round++) {
        const uint32_t when[2] = {round % (PHASES + 1), round % 5};
        call_log log = {.calls = 0};
        const attn_status status = attn_forward(pool, &kernel, when, &args, &log);
        cr_assert_eq(status.code, when[0] < PHASES ? ATTN_E_ALIGN : ATTN_OK);
        for (uint32_t phase = 0; phase < PHASES; phase++) {
            cr_assert_eq(atomic_load(&log.done[phase]), phase <= when[0] ? 5 : 0);
        }
    }
    attn_pool_destroy(pool);
}

static int always(const void *packed, const attn_args *args, void *workspace)
{
    (void)args;
    (void)workspace;
    return *(const int *)packed;
}

Test(threads, messages_name_the_argument)
{
    attn_kernel kernel = KERNEL;
    kernel.forward = always;
    const int32_t length[1] = {1};
    float value = 0;
    static const _Alignas(64) int codes[] = {ATTN_E_NULL, ATTN_E_ALIGN, ATTN_E_PART};
    const attn_args args = {.x = &value, .y = &value, .kv_lengths = length};
    expect_fail(attn_forward(NULL, &kernel, &codes[0], &args, NULL), ATTN_E_NULL,
                "workspace is NULL");
    expect_fail(attn_forward(NULL, &kernel, &codes[0], NULL, &value), ATTN_E_NULL, "args is NULL");
    expect_fail(attn_forward(NULL, &kernel, &codes[1], &args, NULL), ATTN_E_ALIGN,
                "packed is not aligned to 64");
    expect_fail(attn_forward(NULL, &kernel, &codes[2], &args, NULL), ATTN_E_PART, "phase or part");
    expect_fail(attn_forward(NULL, NULL, NULL, &args, NULL), ATTN_E_NULL, "kernel is NULL");
}

Test(threads, senseless_pools_are_refused)
{
    attn_pool *pool;
    expect_fail(attn_pool_create(0, &pool), ATTN_E_ARGUMENT, "0 threads");
    expect_fail(attn_pool_create(ATTN_MAX_THREADS + 1, &pool), ATTN_E_ARGUMENT, "1 to 1024");
    cr_assert_null(pool);
}

Test(threads, pools_come_and_go)
{
    for (size_t round = 0; round < 300; round++) {
        attn_pool *pool;
        expect_ok(attn_pool_create(1 + round % 7, &pool));
        if (round % 3 == 0) {
            float x[ROWS] = {0}, y[ROWS];
            const int32_t length[1] = {1};
            call_log log = {.calls = 0};
            const attn_args args = {.x = x, .y = y, .kv_lengths = length};
            expect_ok(attn_forward(pool, &KERNEL, BIAS, &args, &log));
        }
        attn_pool_destroy(pool);
    }
}

Test(threads, workspace_size)
{
    size_t bytes;
    attn_kernel kernel = KERNEL;
    kernel.workspace_bytes = 1000;
    kernel.part_bytes = 64;
    expect_ok(attn_workspace_bytes(&kernel, 1, &bytes));
    cr_assert_eq(bytes, 1000);
    expect_ok(attn_workspace_bytes(&kernel, 5, &bytes));
    cr_assert_eq(bytes, 1000 + 4 * 64);
    expect_fail(attn_workspace_bytes(&kernel, 0, &bytes), ATTN_E_ARGUMENT, "0 parts");
    kernel.part_bytes = SIZE_MAX / 4;
    expect_fail(attn_workspace_bytes(&kernel, 6, &bytes), ATTN_E_MEMORY, "6 parts");
    kernel.part_bytes = SIZE_MAX / 4 - 100;
    expect_fail(attn_workspace_bytes(&kernel, 5, &bytes), ATTN_E_MEMORY, "5 parts");
    cr_assert_eq(bytes, 0);
}

/* ---- callers at the same time: BC-88 ---- */

typedef struct caller {
    attn_pool *pool;
    unsigned seed;
    unsigned failures;
} caller;

static void *call_often(void *argument)
{
    caller *mine = argument;
    float x[ROWS], y[ROWS], wanted[ROWS];
    const int32_t length[1] = {3};
    fill(x, mine->seed);
    compute(wanted, x);
    for (int round = 0; round < 300; round++) {
        call_log log = {.calls = 0};
        const attn_args args = {.x = x, .y = y, .kv_lengths = length};
        memset(y, 0, sizeof y);
        const attn_status status = attn_forward(mine->pool, &KERNEL, BIAS, &args, &log);
        mine->failures += status.code != ATTN_OK || memcmp(y, wanted, sizeof y) != 0 ||
                          atomic_load(&log.faults) != 0;
    }
    return NULL;
}

static void run_callers(caller *callers, size_t n)
{
    pthread_t threads[8];
    for (size_t i = 0; i < n; i++) {
        callers[i].seed = (unsigned)i;
        callers[i].failures = 0;
        cr_assert_eq(pthread_create(&threads[i], NULL, call_often, &callers[i]), 0);
    }
    for (size_t i = 0; i < n; i++) {
        pthread_join(threads[i], NULL);
        cr_assert_eq(callers[i].failures, 0);
    }
}

Test(threads, eight_callers_without_a_pool)
{
    caller callers[8] = {{.pool = NULL}};
    run_callers(callers, 8);
}

Test(threads, three_callers_share_one_pool)
{
    attn_pool *pool;
    expect_ok(attn_pool_create(3, &pool));
    caller callers[3] = {{.pool = pool}, {.pool = pool}, {.pool = pool}};
    run_callers(callers, 3);
    attn_pool_destroy(pool);
}

Test(threads, two_pools_work_side_by_side)
{
    caller callers[2];
    expect_ok(attn_pool_create(2, &callers[0].pool));
    expect_ok(attn_pool_create(3, &callers[1].pool));
    run_callers(callers, 2);
    attn_pool_destroy(callers[0].pool);
    attn_pool_destroy(callers[1].pool);
}

/* ---- signals stay with the program ---- */

static int check_signals(const void *packed, const attn_args *args, void *workspace, uint32_t phase,
                         uint32_t part, uint32_t parts)
{
    (void)packed;
    (void)args;
    (void)phase;
    (void)parts;
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    ((int *)workspace)[part] = sigismember(&blocked, SIGTERM);
    return ATTN_OK;
}

Test(threads, workers_block_signals_and_the_caller_does_not)
{
    attn_kernel kernel = KERNEL;
    kernel.forward_part = check_signals;
    attn_pool *pool;
    int blocked[3] = {-1, -1, -1};
    const attn_args args = {.x = NULL};
    expect_ok(attn_pool_create(3, &pool));
    expect_ok(attn_forward(pool, &kernel, BIAS, &args, blocked));
    attn_pool_destroy(pool);
    cr_assert(blocked[0] == 0 && blocked[1] == 1 && blocked[2] == 1);
}
