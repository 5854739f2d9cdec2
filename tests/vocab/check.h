/* Judges the vector operations of one instruction set against their meaning for one lane.
 *
 * Included by the programs that tests/vocab/program.lua writes: they define LANES before (and
 * _GNU_SOURCE, on the command line), and give judge() a table of operations after. An operation
 * works on arrays (struct operands) and leaves its result in arrays (struct outcome); its meaning
 * does the same, lane by lane, in plain C. What is judged: every result bit (any NaN for a NaN),
 * all of the memory around, and that nothing outside is touched. Prints one line an operation. */
#ifndef ATTNGEN_VOCAB_CHECK_H
#define ATTNGEN_VOCAB_CHECK_H

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MIXED_LANE 2
#define STRIDE_EXTRA 3 /* floats between two groups in memory */

typedef struct operands {
    float vec[3][LANES];
    int32_t mask[3][LANES];
    float *memory; /* the operand is memory + at */
    size_t at;
    size_t count; /* of elements, or the first lane */
    size_t group; /* floats of a group; count is the number of groups then */
    int constant; /* count is to be a constant in the C text */
    int flag;
    float scalar;
} operands;

typedef struct outcome {
    float vec[LANES];
    int32_t mask[LANES];
    int number;
} outcome;

enum result { RESULT_NONE, RESULT_VEC, RESULT_MASK, RESULT_INT };

/* What a NaN among the operands may do: nothing unusual; anything to its lane; to all lanes. */
enum nan_rule { NAN_EXACT, NAN_ANY, NAN_ANY_LANE };

typedef struct operation operation;
struct operation {
    const char *name;
    void (*run)(const operands *in, outcome *out);
    void (*mean)(const operands *in, outcome *out, size_t lane);
    void (*drive)(const operation *op);
    enum result result;
    int32_t ulp; /* allowed distance, 0: exact */
    enum nan_rule nan;
    int zero_any; /* the sign of a zero result is not specified */
    size_t reach; /* elements of memory it may touch */
};

/* ---- State of the operation being judged ----------------------------------------------------- */

static unsigned long checks, failed_ops;
static int failed; /* the current operation has failed; one message is enough */
static const char *current;

static char *arena, *image; /* a page between two that cannot be touched; what it must hold */
static size_t page;
static sigjmp_buf escape;

static uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static float float_of(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static void fail(const char *what, size_t lane, float got, float want)
{
    if (!failed)
        printf("op %s failed: %s, lane %zu: got %a (%08x), want %a (%08x)\n", current, what, lane,
               (double)got, (unsigned)bits_of(got), (double)want, (unsigned)bits_of(want));
    failed = 1;
}

static void print_operands(const operands *in)
{
    printf("  count %zu flag %d scalar %a\n", in->count, in->flag, (double)in->scalar);
    for (int i = 0; i < 3; i++) {
        printf("  operand %d:", i + 1);
        for (size_t lane = 0; lane < LANES; lane++)
            printf(" %a/%d", (double)in->vec[i][lane], (int)in->mask[i][lane]);
        printf("\n");
    }
}

static void on_fault(int number)
{
    siglongjmp(escape, number);
}

static void set_up(void)
{
    page = (size_t)sysconf(_SC_PAGESIZE);
    char *const pages = mmap(NULL, 3 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    image = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED || image == MAP_FAILED ||
        mprotect(pages + page, page, PROT_READ | PROT_WRITE) != 0) {
        perror("mmap");
        _exit(3);
    }
    arena = pages + page;
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_fault;
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    sigaction(SIGILL, &action, NULL);
}

/* ---- One trial ------------------------------------------------------------------------------- */

/* Distance in units of the last place; floats of one sign order like integers. */
static int64_t ulps_between(float a, float b)
{
    const int64_t x = (int64_t)(bits_of(a) & 0x7fffffffu), y = (int64_t)(bits_of(b) & 0x7fffffffu);
    const int64_t signed_x = signbit(a) ? -x : x, signed_y = signbit(b) ? -y : y;
    return signed_x - signed_y;
}

static int same_float(const operation *op, float got, float want)
{
    if (isnan(want) || isnan(got))
        return isnan(want) && isnan(got);
    if (op->zero_any && got == 0.0f && want == 0.0f)
        return 1;
    if (op->ulp == 0)
        return bits_of(got) == bits_of(want);
    if (bits_of(got) == 0 && want <= 0x1.6a09e8p-126f)
        return 1; /* exp2 up to -141.5 */
    const int64_t distance = ulps_between(got, want);
    return distance <= op->ulp && -distance <= op->ulp;
}

static int any_nan(const operands *in, size_t first, size_t last)
{
    int found = 0;
    for (size_t lane = first; lane <= last; lane++)
        found |= isnan(in->vec[0][lane]) || isnan(in->vec[1][lane]) || isnan(in->vec[2][lane]);
    return found;
}

static void compare_lane(const operation *op, const operands *in, const outcome *got,
                         const outcome *want, size_t lane)
{
    checks++;
    if (op->result == RESULT_VEC) {
        if (op->nan == NAN_ANY && any_nan(in, lane, lane))
            return;
        if (op->nan == NAN_ANY_LANE && any_nan(in, 0, LANES - 1))
            return;
        if (!same_float(op, got->vec[lane], want->vec[lane]))
            fail("wrong value", lane, got->vec[lane], want->vec[lane]);
    } else if (op->result == RESULT_MASK && got->mask[lane] != want->mask[lane]) {
        fail(got->mask[lane] == MIXED_LANE ? "neither all ones nor all zeros" : "wrong mask", lane,
             (float)got->mask[lane], (float)want->mask[lane]);
    }
}

/* Runs the operation and its meaning on `in` and compares everything; the result in *got. */
static void attempt(const operation *op, const operands *in, outcome *got)
{
    outcome want;
    memset(&want, 0, sizeof want);
    memset(got, 0x55, sizeof *got);
    const int was_failed = failed;
    operands expected = *in;
    if (in->memory) {
        memcpy(image, arena, page);
        const ptrdiff_t offset = (char *)in->memory - arena;
        expected.memory = (float *)(void *)(image + offset);
    }
    const int number = sigsetjmp(escape, 1);
    if (number != 0) {
        if (!failed)
            printf("op %s failed: signal %d, touches memory outside its operand\n", op->name,
                   number);
        failed = 1;
        print_operands(in);
        return;
    }
    op->run(in, got);
    /* A meaning that reads lanes beyond the operand's reach would do so in the image: harmless. */
    for (size_t lane = 0; lane < LANES; lane++) {
        op->mean(&expected, &want, lane);
        compare_lane(op, in, got, &want, lane);
    }
    if (op->result == RESULT_INT) {
        checks++;
        if ((got->number != 0) != (want.number != 0))
            fail("wrong answer", 0, (float)got->number, (float)want.number);
    }
    if (in->memory) {
        checks++;
        if (memcmp(image, arena, page) != 0)
            fail("memory differs from what it must hold", 0, 0.0f, 0.0f);
    }
    if (failed && !was_failed)
        print_operands(in);
}

static void try_once(const operation *op, const operands *in)
{
    outcome got;
    attempt(op, in, &got);
}

/* ---- Values ---------------------------------------------------------------------------------- */

static const float edges[] = {
    0.0f,
    -0.0f,
    0x1p-149f,
    -0x1p-149f,
    0x1.fffffcp-127f,
    -0x1.fffffcp-127f,
    FLT_MIN,
    -FLT_MIN,
    1.0f,
    -1.0f,
    0x1.000002p0f,
    0x1.fffffep-1f,
    -0x1.000002p0f,
    0.5f,
    -0.5f,
    0x1.fffffep-2f,
    -0x1.fffffep-2f,
    1.5f,
    -1.5f,
    2.5f,
    -2.5f,
    3.0f,
    0x1.921fb6p1f,
    -100.25f,
    0x1.000001p22f,
    0x1.fffffep21f,
    -0x1.000002p22f,
    0x1.fffffep22f,
    -0x1.fffffep22f,
    0x1p23f,
    -0x1p23f,
    0x1.000002p23f,
    -0x1.000002p23f,
    0x1p24f,
    -0x1p24f,
    0x1.fffffep30f,
    0x1p31f,
    -0x1p31f,
    0x1p32f,
    1e30f,
    -1e30f,
    FLT_MAX,
    -FLT_MAX,
    INFINITY,
    -INFINITY,
    NAN,
    -NAN,
    0x1p-64f,
    0x1p64f,
    -126.0f,
    -127.5f,
    0x1p-23f,
};
#define EDGES (sizeof edges / sizeof edges[0])

/* The edges that three operands are drawn from together. */
static const size_t few[] = {0, 1, 2, 3, 6, 8, 9, 10, 11, 12, 13, 22, 41, 42, 43, 44, 45, 47, 48};
#define FEW (sizeof few / sizeof few[0])

static uint32_t seed;

static uint32_t next_bits(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 17;
    seed ^= seed << 5;
    return seed;
}

/* Any bits, but no signalling NaN: loading one may or may not make it quiet. */
static float any_float(void)
{
    const uint32_t u = next_bits();
    return float_of((u & 0x7f800000u) == 0x7f800000u ? u | 0x00400000u : u);
}

/* A number near 1, so that sums and products round. */
static float near_one(void)
{
    const uint32_t u = next_bits();
    return float_of(0x3f000000u + (u & 0x00ffffffu) + (u & 0x80000000u));
}

static float edge(size_t i)
{
    return edges[i % EDGES];
}

static operands blank(void)
{
    operands in;
    memset(&in, 0, sizeof in);
    return in;
}

/* ---- Drivers, by the operands of an operation ------------------------------------------------ */

static void drive_none(const operation *op)
{
    const operands in = blank();
    try_once(op, &in);
}

static void drive_float(const operation *op)
{
    operands in = blank();
    for (size_t i = 0; i < EDGES && !failed; i++) {
        in.scalar = edges[i];
        try_once(op, &in);
    }
}

static void drive_bool(const operation *op)
{
    operands in = blank();
    for (in.flag = 0; in.flag <= 1 && !failed; in.flag++)
        try_once(op, &in);
}

/* Every edge in every lane, then any bits. */
static void drive_vec(const operation *op)
{
    operands in = blank();
    for (size_t i = 0; i < EDGES + 4000 && !failed; i++) {
        for (size_t lane = 0; lane < LANES; lane++)
            in.vec[0][lane] = i < EDGES ? edge(i + lane) : i % 2 ? any_float() : near_one();
        try_once(op, &in);
    }
    /* one NaN, and everything but one */
    for (size_t at = 0; at < LANES && !failed; at++) {
        for (size_t lane = 0; lane < LANES; lane++)
            in.vec[0][lane] = lane == at ? NAN : 1.0f;
        try_once(op, &in);
    }
}

static void drive_vec_vec(const operation *op)
{
    operands in = blank();
    for (size_t i = 0; i < EDGES * EDGES + 4000 && !failed; i++) {
        for (size_t lane = 0; lane < LANES; lane++) {
            in.vec[0][lane] = i < EDGES * EDGES ? edge(i / EDGES + lane) : near_one();
            in.vec[1][lane] = i < EDGES * EDGES ? edge(i % EDGES) : near_one();
        }
        try_once(op, &in);
    }
}

static void drive_vec_vec_vec(const operation *op)
{
    operands in = blank();
    const size_t all = FEW * FEW * FEW;
    for (size_t i = 0; i < all + 4000 && !failed; i++) {
        for (size_t lane = 0; lane < LANES; lane++) {
            const int edgy = i < all;
            in.vec[0][lane] = edgy ? edges[few[(i + lane) % FEW]] : near_one();
            in.vec[1][lane] = edgy ? edges[few[i / FEW % FEW]] : near_one();
            in.vec[2][lane] = edgy ? edges[few[i / (FEW * FEW)]] : near_one();
        }
        try_once(op, &in);
    }
}

/* Masks: none, all, each lane alone, all but each lane, then any. */
static void fill_mask(int32_t *mask, size_t i)
{
    for (size_t lane = 0; lane < LANES; lane++) {
        if (i < 2)
            mask[lane] = i == 1;
        else if (i < 2 + 2 * LANES)
            mask[lane] = (lane == (i - 2) / 2) == (i % 2 == 0);
        else
            mask[lane] = (int32_t)(next_bits() >> 9 & 1u);
    }
}

static void drive_mask_mask(const operation *op)
{
    operands in = blank();
    const size_t count = 2 + 2 * LANES + 20;
    for (size_t i = 0; i < count * count && !failed; i++) {
        fill_mask(in.mask[0], i / count);
        fill_mask(in.mask[1], i % count);
        try_once(op, &in);
    }
}

static void drive_mask_vec_vec(const operation *op)
{
    operands in = blank();
    for (size_t i = 0; i < 40 * EDGES && !failed; i++) {
        fill_mask(in.mask[0], i % (2 + 2 * LANES + 20));
        for (size_t lane = 0; lane < LANES; lane++) {
            in.vec[1][lane] = i % 3 ? edge(i + lane) : any_float();
            in.vec[2][lane] = i % 3 ? edge(i + 5 * lane + 7) : any_float();
        }
        try_once(op, &in);
    }
}

static void drive_size(const operation *op)
{
    operands in = blank();
    for (in.count = 0; in.count <= LANES + 2 && !failed; in.count++) {
        for (in.constant = 0; in.constant <= 1; in.constant++)
            try_once(op, &in);
    }
    in.constant = 0;
    static const size_t far[] = {100, 255, 256, 65536, SIZE_MAX / 2, SIZE_MAX - 1, SIZE_MAX};
    for (size_t i = 0; i < sizeof far / sizeof far[0] && !failed; i++) {
        in.count = far[i];
        try_once(op, &in);
    }
}

/* The arena full of edges, the operand of `reach` elements at byte `offset`. */
static void place(operands *in, size_t offset, size_t at, size_t turn)
{
    for (size_t i = 0; i < page / sizeof(float); i++) {
        const float value = edge(i + turn);
        memcpy(arena + i * sizeof value, &value, sizeof value);
    }
    in->at = at;
    in->memory = (float *)(void *)(arena + offset) - at;
}

/* At the end and at the start of what may be touched, and in between. */
static void try_places(const operation *op, operands *in, size_t reach)
{
    const size_t middle = page / 2;
    const size_t bytes = reach * sizeof(float);
    for (size_t turn = 0; turn < 12 && !failed; turn++) {
        for (size_t lane = 0; lane < LANES; lane++)
            in->vec[1][lane] = edge(turn * LANES + lane);
        place(in, page - bytes, turn % 4, turn);
        try_once(op, in);
        place(in, 0, 0, turn * 5 + 1);
        try_once(op, in);
        place(in, middle + turn * sizeof(float), turn % 3, turn * 7 + 2);
        try_once(op, in);
    }
}

static void drive_mem(const operation *op)
{
    operands in = blank();
    try_places(op, &in, op->reach);
}

static void drive_mem_vec(const operation *op)
{
    operands in = blank();
    try_places(op, &in, op->reach);
}

static void drive_mem_count(const operation *op)
{
    operands in = blank();
    for (in.count = 1; in.count < LANES && !failed; in.count++) {
        for (in.constant = 0; in.constant <= 1; in.constant++)
            try_places(op, &in, in.count);
    }
}

static void drive_mem_vec_count(const operation *op)
{
    drive_mem_count(op);
}

static void drive_mem_group(const operation *op)
{
    operands in = blank();
    for (in.group = 2; in.group < LANES && !failed; in.group *= 2)
        try_places(op, &in, in.group);
}

static void drive_vec_vec_group(const operation *op)
{
    operands in = blank();
    for (in.group = 2; in.group < LANES && !failed; in.group *= 2) {
        for (size_t i = 0; i < EDGES + 100 && !failed; i++) {
            for (size_t lane = 0; lane < LANES; lane++) {
                in.vec[0][lane] = i < EDGES ? edge(i + lane) : near_one();
                in.vec[1][lane] = i < EDGES ? edge(i + LANES + lane) : near_one();
            }
            try_once(op, &in);
        }
    }
}

static void drive_mem_stride_group_groups(const operation *op)
{
    operands in = blank();
    for (in.group = 2; in.group < LANES; in.group *= 2) {
        for (in.count = 1; in.count <= LANES / in.group && !failed; in.count++) {
            const size_t reach = (in.count - 1) * (in.group + STRIDE_EXTRA) + in.group;
            for (in.constant = 0; in.constant <= 1; in.constant++)
                try_places(op, &in, reach);
        }
    }
}

static void drive_mem_vec_stride_group_groups(const operation *op)
{
    drive_mem_stride_group_groups(op);
}

static void drive_vec_count(const operation *op)
{
    operands in = blank();
    for (size_t count = 1; count < LANES && !failed; count++) {
        in.count = count;
        for (size_t i = 0; i < EDGES + LANES && !failed; i++) {
            for (size_t lane = 0; lane < LANES; lane++)
                in.vec[0][lane] = i < EDGES ? edge(i + lane) : lane == i - EDGES ? NAN : 1.0f;
            for (in.constant = 0; in.constant <= 1; in.constant++)
                try_once(op, &in);
        }
    }
}

/* dst[c * dst_stride + r] = src[r * src_stride + c], nothing else; src may end and start where
 * nothing can be read. */
typedef void transpose_fn(const float *src, size_t src_stride, float *dst, size_t dst_stride);

static int survives_transpose(transpose_fn *transpose, const float *src, size_t src_stride,
                              float *dst, size_t dst_stride)
{
    if (sigsetjmp(escape, 1) != 0)
        return 0;
    transpose(src, src_stride, dst, dst_stride);
    return 1;
}

static void judge_transpose(transpose_fn *transpose)
{
    static const size_t strides[] = {LANES, LANES + 1, LANES + 3, 2 * LANES, 48};
    enum { MOST = 15 * 48 + 16, MARGIN = 8 };
    static float dst[MOST + 2 * MARGIN], want[MOST + 2 * MARGIN];
    const size_t kinds = sizeof strides / sizeof strides[0];
    current = "transpose_block";
    failed = 0;
    for (size_t i = 0; i < 2 * kinds * kinds && !failed; i++) {
        const size_t from = strides[i / 2 / kinds], to = strides[i / 2 % kinds];
        const size_t bytes = ((LANES - 1) * from + LANES) * sizeof(float);
        for (size_t j = 0; j < page / sizeof(float); j++) {
            const float value = (float)j;
            memcpy(arena + j * sizeof value, &value, sizeof value);
        }
        const float *const src = (const float *)(const void *)(arena + (i % 2 ? page - bytes : 0));
        for (size_t j = 0; j < MOST + 2 * MARGIN; j++)
            dst[j] = want[j] = -1.0f - (float)j;
        for (size_t r = 0; r < LANES; r++) {
            for (size_t c = 0; c < LANES; c++)
                want[MARGIN + c * to + r] = src[r * from + c];
        }
        if (!survives_transpose(transpose, src, from, dst + MARGIN, to)) {
            printf("op transpose_block failed: touches memory outside\n");
            failed = 1;
            break;
        }
        checks++;
        for (size_t j = 0; j < MOST + 2 * MARGIN && !failed; j++) {
            if (bits_of(dst[j]) != bits_of(want[j]))
                fail("wrong element", j, dst[j], want[j]);
        }
    }
}

/* Group j of row i becomes group i of row j, nothing else is touched. */
typedef void regroup_fn(const float *src, size_t src_stride, float *dst, size_t dst_stride,
                        size_t group);

static int survives_regroup(regroup_fn *regroup, const float *src, size_t src_stride, float *dst,
                            size_t dst_stride, size_t group)
{
    if (sigsetjmp(escape, 1) != 0)
        return 0;
    regroup(src, src_stride, dst, dst_stride, group);
    return 1;
}

static void judge_regroup(regroup_fn *regroup)
{
    static const size_t strides[] = {LANES, LANES + 3, 2 * LANES};
    enum { MOST = (LANES / 2 + 1) * 2 * LANES, MARGIN = 8 };
    static float dst[MOST + 2 * MARGIN], want[MOST + 2 * MARGIN];
    current = "regroup_block";
    failed = 0;
    for (size_t turn = 0; turn < 18; turn++) {
        const size_t from = strides[turn / 2 % 3], to = strides[turn / 6];
        for (size_t group = 2; group < LANES && !failed; group *= 2) {
            const size_t rows = LANES / group;
            const size_t bytes = ((rows - 1) * from + LANES) * sizeof(float);
            for (size_t j = 0; j < page / sizeof(float); j++) {
                const float value = (float)j;
                memcpy(arena + j * sizeof value, &value, sizeof value);
            }
            const float *const src =
                (const float *)(const void *)(arena + (turn % 2 ? page - bytes : 0));
            for (size_t j = 0; j < MOST + 2 * MARGIN; j++)
                dst[j] = want[j] = -1.0f - (float)j;
            for (size_t r = 0; r < rows; r++) {
                for (size_t c = 0; c < LANES; c++)
                    want[MARGIN + c / group * to + r * group + c % group] = src[r * from + c];
            }
            if (!survives_regroup(regroup, src, from, dst + MARGIN, to, group)) {
                printf("op regroup_block failed: touches memory outside\n");
                failed = 1;
                break;
            }
            checks++;
            for (size_t j = 0; j < MOST + 2 * MARGIN && !failed; j++) {
                if (bits_of(dst[j]) != bits_of(want[j]))
                    fail("wrong element", j, dst[j], want[j]);
            }
        }
    }
}

/* ---- 2^x ------------------------------------------------------------------------------------- */

typedef struct sweep {
    const operation *op;
    operands in;
    size_t filled;
    float filler; /* of lanes that are not judged, within the domain */
    float lowest; /* result so far, x falls */
    int64_t worst, rise;
} sweep;

static void judge_exp2_lane(sweep *s, float x, float got)
{
    if (x == floorf(x) && x > -142.0f && bits_of(got) != bits_of(ldexpf(1.0f, (int)x + 16)))
        fail("not an exact power of two", 0, got, ldexpf(1.0f, (int)x + 16));
    if (x <= -142.0f && bits_of(got) != 0)
        fail("not +0 from -142 down", 0, got, 0.0f);
    if (got > 0x1p80f || (got != 0.0f && got < FLT_MIN))
        fail("above 2^80 or a denormal", 0, got, x);
    const double exact = exp2((double)x + 16.0);
    if (x > -142.0f && (x > -141.5f || got != 0.0f)) {
        const int64_t distance = ulps_between(got, (float)exact);
        if (distance > s->worst || -distance > s->worst)
            s->worst = distance < 0 ? -distance : distance;
    }
    const int64_t rise = ulps_between(got, s->lowest);
    if (rise > s->rise)
        s->rise = rise;
    if (got < s->lowest)
        s->lowest = got;
}

static void flush_sweep(sweep *s)
{
    outcome got;
    for (size_t lane = s->filled; lane < LANES; lane++)
        s->in.vec[0][lane] = s->filler;
    attempt(s->op, &s->in, &got);
    for (size_t lane = 0; lane < s->filled && !failed; lane++)
        judge_exp2_lane(s, s->in.vec[0][lane], got.vec[lane]);
    s->filled = 0;
}

static void push_sweep(sweep *s, float x)
{
    s->in.vec[0][s->filled++] = x;
    if (s->filled == LANES)
        flush_sweep(s);
}

/* Walks from 64 down to `end` in steps of 2^-9, with the 64 floats on either side of every half (there
 * the polynomial's interval ends). */
static void walk_exp2(sweep *s, float end)
{
    for (int i = -64 * 512; i <= -(int)end * 512 && !failed; i++) {
        const float x = -(float)i / 512.0f;
        if (i % 256 != 0) {
            push_sweep(s, x);
            continue;
        }
        const uint32_t u = bits_of(x);
        for (uint32_t d = 0; d <= 128; d++) {
            /* floats beside x from above to below: away from zero where x is negative */
            if (i == 0)
                push_sweep(s, float_of(d < 64 ? 64 - d : 0x80000000u + d - 64));
            else if (i < 0)
                push_sweep(s, fminf(float_of(u + 64 - d), 64.0f));
            else
                push_sweep(s, fmaxf(float_of(u - 64 + d), end));
        }
    }
}

/* Each lane in turn NaN; then what the walk found. */
static void close_exp2(sweep *s)
{
    operands in = blank();
    for (size_t at = 0; at < LANES && !failed; at++) {
        for (size_t lane = 0; lane < LANES; lane++)
            in.vec[0][lane] = lane == at ? (at % 2 ? NAN : -NAN) : -(float)lane;
        try_once(s->op, &in);
    }
    if (s->rise > 1)
        fail("rises by more than an ulp as x falls", (size_t)s->rise, 0.0f, 0.0f);
    printf("note %s: at most %lld ulp from 2^x, rises by %lld ulp\n", s->op->name,
           (long long)s->worst, (long long)s->rise);
}

static sweep open_exp2(const operation *op, float filler)
{
    sweep s;
    memset(&s, 0, sizeof s);
    s.op = op;
    s.filler = filler;
    s.lowest = 0x1p80f;
    return s;
}

/* The smaller domain. */
static void drive_exp2_near(const operation *op)
{
    sweep s = open_exp2(op, -142.0f);
    walk_exp2(&s, -142.0f);
    flush_sweep(&s);
    close_exp2(&s);
}

/* The whole domain: also what is no number, or far below. */
static void drive_exp2(const operation *op)
{
    sweep s = open_exp2(op, -INFINITY);
    walk_exp2(&s, -146.0f);
    static const float far[] = {-147.0f,  -149.0f,  -150.0f, -255.5f,  -1000.0f, -0x1p22f,
                                -0x1p23f, -0x1p31f, -1e30f,  -FLT_MAX, -INFINITY};
    for (size_t i = 0; i < sizeof far / sizeof far[0] && !failed; i++)
        push_sweep(&s, far[i]);
    flush_sweep(&s);
    operands in = blank();
    /* beyond the domain: judged by sums that must not miss it */
    static const float beyond[] = {64.5f,   100.0f,  111.0f,  112.5f,  128.0f,
                                   200.0f,  511.0f,  1024.0f, 0x1p22f, 0x1p23f,
                                   0x1p31f, 0x1p32f, 1e30f,   FLT_MAX, INFINITY};
    for (size_t i = 0; EXP2_GROWS && i < sizeof beyond / sizeof beyond[0] && !failed; i++) {
        outcome got;
        for (size_t lane = 0; lane < LANES; lane++)
            in.vec[0][lane] = beyond[i];
        attempt(op, &in, &got);
        for (size_t lane = 0; lane < LANES && !failed; lane++)
            if (!(got.vec[lane] >= 0x1p80f))
                fail("shrinks beyond its domain", lane, got.vec[lane], beyond[i]);
    }
    close_exp2(&s);
}

/* ---- Trials judged by bits ------------------------------------------------------------------- */

#if TRIAL_BY_BITS

#define TOO_LARGE 0x1p47f /* of a weight: no sum of a row that passes has it */

static void run_exp2_near(const operands *in, outcome *out);
static void run_exp2_near_fast(const operands *in, outcome *out);
static void run_has_high_bits(const operands *in, outcome *out);

/* A logit out of the domain of exp2_near in one lane: bits tell it, or its weights do. */
static void try_stray(const operation *op, float x)
{
    const size_t at = checks % LANES;
    operands logits = blank(), no_bits_yet = blank(), bits = blank();
    outcome got;
    logits.vec[0][at] = no_bits_yet.vec[1][at] = x;
    checks++;
    op->run(&no_bits_yet, &got);
    memcpy(bits.vec[0], got.vec, sizeof got.vec);
    run_has_high_bits(&bits, &got);
    if (got.number)
        return;
    static void (*const weigh[])(const operands *, outcome *) = {run_exp2_near, run_exp2_near_fast};
    for (size_t i = 0; i < 2; i++) {
        weigh[i](&logits, &got);
        if (x > 0.0f ? !(got.vec[at] >= TOO_LARGE) : bits_of(got.vec[at]) != 0)
            fail("neither bits nor the weight tell a stray logit", at, got.vec[at], x);
    }
}

/* Every `step`th float from `first` away from zero to `last`. */
static void walk_strays(const operation *op, float first, float last, uint32_t step)
{
    for (uint32_t u = bits_of(first); u < bits_of(last) && !failed; u += step)
        try_stray(op, float_of(u));
    try_stray(op, last);
}

static void drive_strays(const operation *op)
{
    walk_strays(op, nextafterf(64.0f, 128.0f), 128.0f, 101);
    walk_strays(op, -142.0f, -146.0f, 1);
    walk_strays(op, 128.0f, FLT_MAX, 4999);
    walk_strays(op, -146.0f, -FLT_MAX, 4999);
    static const float others[] = {0x1p22f,  0x1.4p23f, 0x1.8p23f,  INFINITY,  NAN,
                                   -0x1p22f, -0x1p23f,  -0x1.8p23f, -INFINITY, -NAN};
    for (size_t i = 0; i < sizeof others / sizeof others[0] && !failed; i++)
        try_stray(op, others[i]);
}

#else

static void drive_strays(const operation *op)
{
    (void)op;
}

#endif

static void drive_or_stray(const operation *op)
{
    drive_vec_vec(op);
    drive_strays(op);
}

/* ---- The program ----------------------------------------------------------------------------- */

static void close_operation(unsigned long before)
{
    if (failed)
        failed_ops++;
    else if (checks == before)
        printf("op %s empty\n", current);
    else
        printf("op %s ok %lu\n", current, checks - before);
    fflush(stdout);
}

static int judge(const operation *operations, size_t count, transpose_fn *transpose,
                 regroup_fn *regroup)
{
    set_up();
    for (size_t i = 0; i < count; i++) {
        const unsigned long before = checks;
        failed = 0;
        current = operations[i].name;
        seed = 2463534242u;
        operations[i].drive(&operations[i]);
        close_operation(before);
    }
    unsigned long before = checks;
    judge_transpose(transpose);
    close_operation(before);
    before = checks;
    judge_regroup(regroup);
    close_operation(before);
    printf("done %lu comparisons, %lu operations failed\n", checks, failed_ops);
    return failed_ops == 0 ? 0 : 1;
}

#endif
