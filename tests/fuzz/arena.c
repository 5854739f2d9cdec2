/* Guarded buffers of a kernel call; see arena.h. */
#include "fuzz/arena.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz/trap.h"

static unsigned timeout_seconds = 60;

void arena_set_timeout(unsigned seconds)
{
    timeout_seconds = seconds;
}

/* One guarded tensor and the array it is filled from. */
typedef struct source {
    guard *buffer;
    const void *from;
} source;

static int fail(arena *a, const char *what, const char *name)
{
    snprintf(a->fault_text, sizeof a->fault_text, "%s%s%s", what, name[0] ? " " : "", name);
    a->fault = a->fault_text;
    return -1;
}

int arena_open(arena *a, const attn_kernel *kernel, pack_function pack, const input_set *s)
{
    const ref_sizes *n = &s->sizes;
    static const char *const INPUT_NAMES[ARENA_INPUTS] = {
        "x", "context", "q", "k", "v", "kv_lengths", "key_keep", "mask_keep", "mask_add"};
    static const char *const WEIGHT_NAMES[ARENA_WEIGHTS] = {
        "q_weight", "k_weight", "v_weight", "o_weight", "q_bias", "k_bias", "v_bias", "o_bias"};
    const size_t input_bytes[ARENA_INPUTS] = {n->x * 4,    n->context * 4, n->q * 4,
                                              n->k * 4,    n->v * 4,       n->kv_lengths * 4,
                                              n->key_keep, n->mask_keep,   n->mask_add * 4};
    const size_t weight_bytes[ARENA_WEIGHTS] = {n->q_weight * 4, n->k_weight * 4, n->v_weight * 4,
                                                n->o_weight * 4, n->q_bias * 4,   n->k_bias * 4,
                                                n->v_bias * 4,   n->o_bias * 4};
    int bad = 0;
    memset(a, 0, sizeof *a);
    a->kernel = kernel;
    a->pack = pack;
    for (int i = 0; i < ARENA_INPUTS; i++) {
        bad |= guard_open(&a->inputs[i], INPUT_NAMES[i], input_bytes[i]);
    }
    for (int i = 0; i < ARENA_WEIGHTS; i++) {
        bad |= guard_open(&a->source[i], WEIGHT_NAMES[i], weight_bytes[i]);
    }
    bad |= guard_open(&a->caches[0], "k_cache", n->k_cache * 4);
    bad |= guard_open(&a->caches[1], "v_cache", n->v_cache * 4);
    bad |= guard_open(&a->packed, "packed", kernel->packed_bytes);
    a->workspace_bytes = kernel->workspace_bytes;
    bad |= guard_open(&a->workspace, "workspace",
                      kernel->workspace_bytes + (ARENA_MAX_PARTS - 1) * kernel->part_bytes);
    bad |= guard_open(&a->y, "y", n->y * 4);
    bad |= guard_open(&a->weights, "weights", n->weights * 4);
    return bad ? fail(a, "no memory for guarded buffers", "") : 0;
}

void arena_close(arena *a)
{
    for (int i = 0; i < ARENA_INPUTS; i++) {
        guard_close(&a->inputs[i]);
    }
    for (int i = 0; i < ARENA_WEIGHTS; i++) {
        guard_close(&a->source[i]);
    }
    for (int i = 0; i < ARENA_CACHES; i++) {
        guard_close(&a->caches[i]);
    }
    guard_close(&a->packed);
    guard_close(&a->workspace);
    guard_close(&a->y);
    guard_close(&a->weights);
}

static int list_inputs(arena *a, const input_set *s, source out[ARENA_INPUTS])
{
    const void *const from[ARENA_INPUTS] = {
        s->x, s->context, s->q, s->k, s->v, s->kv_lengths, s->key_keep, s->mask_keep, s->mask_add};
    int count = 0;
    for (int i = 0; i < ARENA_INPUTS; i++) {
        if (a->inputs[i].bytes != 0) {
            out[count++] = (source){&a->inputs[i], from[i]};
        }
    }
    return count;
}

static int list_weights(arena *a, const input_set *s, source out[ARENA_WEIGHTS])
{
    const void *const from[ARENA_WEIGHTS] = {s->q_weight, s->k_weight, s->v_weight, s->o_weight,
                                             s->q_bias,   s->k_bias,   s->v_bias,   s->o_bias};
    int count = 0;
    for (int i = 0; i < ARENA_WEIGHTS; i++) {
        if (a->source[i].bytes != 0) {
            out[count++] = (source){&a->source[i], from[i]};
        }
    }
    return count;
}

static attn_weights placed_weights(const arena *a)
{
    const guard *g = a->source;
    return (attn_weights){(const void *)g[0].data, (const void *)g[1].data, (const void *)g[2].data,
                          (const void *)g[3].data, (const void *)g[4].data, (const void *)g[5].data,
                          (const void *)g[6].data, (const void *)g[7].data};
}

static attn_args placed_args(const arena *a)
{
    const guard *g = a->inputs;
    attn_args args;
    memset(&args, 0, sizeof args);
    args.x = (const void *)g[0].data;
    args.context = (const void *)g[1].data;
    args.q = (const void *)g[2].data;
    args.k = (const void *)g[3].data;
    args.v = (const void *)g[4].data;
    args.kv_lengths = (const void *)g[5].data;
    args.key_keep = g[6].data;
    args.mask_keep = g[7].data;
    args.mask_add = (const void *)g[8].data;
    args.y = (void *)a->y.data;
    args.weights = (void *)a->weights.data;
    args.k_cache = (void *)a->caches[0].data;
    args.v_cache = (void *)a->caches[1].data;
    return args;
}

static void place_all(source *list, int count, const call_plan *plan)
{
    for (int i = 0; i < count; i++) {
        guard_protect(list[i].buffer, 0);
        guard_place(list[i].buffer, plan->place, 1, plan->offset);
        memcpy(list[i].buffer->data, list[i].from, list[i].buffer->bytes);
        guard_protect(list[i].buffer, plan->place == GUARD_END);
    }
}

/* Caches as the set has them, to be written. */
static void place_caches(arena *a, const input_set *s, const call_plan *plan)
{
    const void *const from[ARENA_CACHES] = {s->k_cache, s->v_cache};
    for (int i = 0; i < ARENA_CACHES; i++) {
        if (a->caches[i].bytes != 0) {
            guard_place(&a->caches[i], plan->place, 1, plan->offset);
            memcpy(a->caches[i].data, from[i], a->caches[i].bytes);
        }
    }
}

static void place_poisoned(guard *g, const call_plan *plan, size_t alignment, size_t offset)
{
    if (g->bytes != 0) {
        guard_place(g, plan->place, alignment, offset);
        memset(g->data, plan->poison, g->bytes);
    }
}

/* The call itself, as trap_run wants it. */
typedef struct call {
    const arena *a;
    const attn_args *args;
    const attn_weights *weights;
    unsigned parts;
    int status;
} call;

static void do_pack(void *data)
{
    call *c = data;
    c->status = c->a->pack(c->weights, c->a->packed.data);
}

static void do_forward(void *data)
{
    call *c = data;
    const attn_kernel *k = c->a->kernel;
    if (c->parts == 0) {
        c->status = k->forward(c->a->packed.data, c->args, c->a->workspace.data);
        return;
    }
    c->status = ATTN_OK;
    for (uint32_t phase = 0; phase < k->phases && c->status == ATTN_OK; phase++) {
        /* Any order of the parts must do: odd part counts run backwards. */
        for (uint32_t n = 0; n < c->parts && c->status == ATTN_OK; n++) {
            const uint32_t part = c->parts % 2 ? c->parts - 1 - n : n;
            c->status = k->forward_part(c->a->packed.data, c->args, c->a->workspace.data, phase,
                                        part, c->parts);
        }
    }
}

static int run_trapped(arena *a, void (*function)(void *), call *c, const char *what)
{
    const trap_report report = trap_run(function, c, timeout_seconds);
    if (report.signal != 0) {
        guard *const all[6] = {&a->packed,  &a->workspace, &a->y,
                               &a->weights, &a->caches[0], &a->caches[1]};
        const char *owner = "an unknown place";
        for (int i = 0; i < ARENA_INPUTS; i++) {
            owner = guard_owns(&a->inputs[i], report.address) ? a->inputs[i].name : owner;
        }
        for (int i = 0; i < ARENA_WEIGHTS; i++) {
            owner = guard_owns(&a->source[i], report.address) ? a->source[i].name : owner;
        }
        for (int i = 0; i < 6; i++) {
            owner = guard_owns(all[i], report.address) ? all[i]->name : owner;
        }
        char text[96];
        snprintf(text, sizeof text, "signal %d in %s: access outside of", report.signal, what);
        return fail(a, text, owner);
    }
    if (report.state_changed) {
        return fail(a, "floating-point control state changed by", what);
    }
    return 0;
}

static int check_memory(arena *a, source *list, int count)
{
    guard *const written[6] = {&a->packed,  &a->workspace, &a->y,
                               &a->weights, &a->caches[0], &a->caches[1]};
    for (int i = 0; i < count; i++) {
        if (memcmp(list[i].buffer->data, list[i].from, list[i].buffer->bytes) != 0) {
            return fail(a, "input changed:", list[i].buffer->name);
        }
        if (!guard_intact(list[i].buffer)) {
            return fail(a, "write outside of", list[i].buffer->name);
        }
    }
    for (int i = 0; i < 6; i++) {
        if (!guard_intact(written[i])) {
            return fail(a, "write outside of", written[i]->name);
        }
    }
    return 0;
}

/* Places everything and packs. */
static int prepare(arena *a, const input_set *s, const call_plan *plan)
{
    const size_t alignment = a->kernel->alignment;
    /* Packed and workspace keep their alignment whatever the inputs do. */
    const size_t offset = plan->place == GUARD_MIDDLE ? alignment : 0;
    source list[ARENA_WEIGHTS];
    const int count = list_weights(a, s, list);
    const unsigned parts = plan->parts == 0 ? 1 : plan->parts;
    if (a->workspace.pages != NULL) {
        /* Offer exactly the advertised size for this number of parts. */
        a->workspace.bytes = a->workspace_bytes + (parts - 1) * a->kernel->part_bytes;
        place_poisoned(&a->workspace, plan, alignment, offset);
        if (a->workspace.bytes == 0) {
            a->workspace.data = a->workspace.pages;
        }
    }
    place_caches(a, s, plan);
    place_poisoned(&a->y, plan, 1, plan->offset);
    place_poisoned(&a->weights, plan, 1, plan->offset);
    guard_protect(&a->packed, 0);
    place_poisoned(&a->packed, plan, alignment, offset);
    if (a->pack == NULL) {
        return 0;
    }
    place_all(list, count, plan);
    const attn_weights weights = placed_weights(a);
    call c = {a, NULL, &weights, 0, ATTN_OK};
    if (run_trapped(a, do_pack, &c, "pack") != 0 || check_memory(a, list, count) != 0) {
        return -1;
    }
    if (c.status != ATTN_OK) {
        char text[64];
        snprintf(text, sizeof text, "pack returned %d", c.status);
        return fail(a, text, "");
    }
    guard_protect(&a->packed, plan->place == GUARD_END);
    return 0;
}

int arena_call(arena *a, const input_set *s, const call_plan *plan)
{
    source list[ARENA_INPUTS];
    const int count = list_inputs(a, s, list);
    if (prepare(a, s, plan) != 0) {
        return -1;
    }
    place_all(list, count, plan);
    const attn_args args = placed_args(a);
    call c = {a, &args, NULL, plan->parts, ATTN_OK};
    if (run_trapped(a, do_forward, &c, plan->parts ? "forward_part" : "forward") != 0 ||
        check_memory(a, list, count) != 0) {
        return -1;
    }
    return c.status;
}

static int all_poison(const guard *g, unsigned char poison)
{
    for (size_t i = 0; i < g->bytes; i++) {
        if (g->data[i] != poison) {
            return 0;
        }
    }
    return 1;
}

static int caches_unchanged(const arena *a, const input_set *s)
{
    const void *const from[ARENA_CACHES] = {s->k_cache, s->v_cache};
    for (int i = 0; i < ARENA_CACHES; i++) {
        if (a->caches[i].bytes != 0 &&
            memcmp(a->caches[i].data, from[i], a->caches[i].bytes) != 0) {
            return 0;
        }
    }
    return 1;
}

/* One call that must fail with one of two statuses and leave the outputs alone. */
static int expect_error(arena *a, const input_set *s, call *c, const call_plan *plan, int status,
                        const char *what)
{
    c->status = ATTN_OK;
    if (run_trapped(a, do_forward, c, what) != 0) {
        return -1;
    }
    if (c->status != status) {
        char text[160];
        snprintf(text, sizeof text, "%s: status %d, expected %d", what, c->status, status);
        return fail(a, text, "");
    }
    if (!all_poison(&a->y, plan->poison) || !all_poison(&a->weights, plan->poison) ||
        !caches_unchanged(a, s)) {
        return fail(a, "output written in spite of an error:", what);
    }
    return 0;
}

static int check_lengths(arena *a, const input_set *s, call *c, const call_plan *plan)
{
    guard *lengths = &a->inputs[5];
    /* with a cache that grows, a length below the new tokens is bad as well */
    const int32_t short_by_one =
        s->sizes.k_cache != 0 ? (int32_t)a->kernel->seq_len - 1 : INT32_MIN + 1;
    const int32_t bad[5] = {-1, INT32_MIN, INT32_MAX, (int32_t)a->kernel->kv_len + 1, short_by_one};
    for (int i = 0; lengths->bytes != 0 && i < 5; i++) {
        const int32_t value = bad[i];
        const size_t last = lengths->bytes - sizeof value;
        int32_t keep = 0;
        memcpy(&keep, lengths->data + last, sizeof keep);
        memcpy(lengths->data + last, &value, sizeof value);
        for (c->parts = 0; c->parts < 3; c->parts += 2) {
            if (expect_error(a, s, c, plan, ATTN_E_LENGTH, "kv_lengths out of range") != 0) {
                return -1;
            }
        }
        memcpy(lengths->data + last, &keep, sizeof keep);
    }
    c->parts = 0;
    return 0;
}

static int check_nulls(arena *a, const input_set *s, const attn_args *good, const call_plan *plan)
{
    const size_t fields[] = {offsetof(attn_args, x),        offsetof(attn_args, context),
                             offsetof(attn_args, q),        offsetof(attn_args, k),
                             offsetof(attn_args, v),        offsetof(attn_args, kv_lengths),
                             offsetof(attn_args, key_keep), offsetof(attn_args, mask_keep),
                             offsetof(attn_args, mask_add), offsetof(attn_args, y),
                             offsetof(attn_args, weights),  offsetof(attn_args, k_cache),
                             offsetof(attn_args, v_cache)};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        attn_args bad = *good;
        void *old = NULL;
        void *const none = NULL;
        memcpy(&old, (const char *)good + fields[i], sizeof old);
        if (old == NULL) {
            continue;
        }
        memcpy((char *)&bad + fields[i], &none, sizeof none);
        call c = {a, &bad, NULL, 0, ATTN_OK};
        if (expect_error(a, s, &c, plan, ATTN_E_NULL, "NULL tensor") != 0) {
            return -1;
        }
    }
    call c = {a, NULL, NULL, 0, ATTN_OK};
    return expect_error(a, s, &c, plan, ATTN_E_NULL, "NULL args");
}

static int check_pointer(arena *a, const input_set *s, guard *g, call *c, const call_plan *plan,
                         const char *what)
{
    unsigned char *const good = g->data;
    int bad = 0;
    if (g->bytes == 0 || (g == &a->workspace && a->workspace_bytes == 0)) {
        return 0;
    }
    g->data = NULL;
    bad = expect_error(a, s, c, plan, ATTN_E_NULL, what);
    for (size_t off = 4; bad == 0 && off < a->kernel->alignment; off *= 2) {
        g->data = good + off;
        bad = expect_error(a, s, c, plan, ATTN_E_ALIGN, what);
    }
    g->data = good;
    return bad;
}

int arena_check_errors(arena *a, const input_set *s)
{
    const call_plan plan = {GUARD_MIDDLE, 0, 0x5A, 0};
    source list[ARENA_INPUTS];
    const int count = list_inputs(a, s, list);
    if (prepare(a, s, &plan) != 0) {
        return -1;
    }
    place_all(list, count, &plan);
    const attn_args args = placed_args(a);
    call c = {a, &args, NULL, 0, ATTN_OK};
    if (check_lengths(a, s, &c, &plan) != 0 || check_nulls(a, s, &args, &plan) != 0 ||
        check_pointer(a, s, &a->packed, &c, &plan, "packed NULL or misaligned") != 0 ||
        check_pointer(a, s, &a->workspace, &c, &plan, "workspace NULL or misaligned") != 0) {
        return -1;
    }
    const attn_kernel *k = a->kernel;
    const uint32_t bad[3][3] = {{k->phases, 0, 1}, {0, 1, 1}, {0, 0, 0}};
    for (int i = 0; i < 3; i++) {
        const int status = k->forward_part(a->packed.data, &args, a->workspace.data, bad[i][0],
                                           bad[i][1], bad[i][2]);
        if (status != ATTN_E_PART) {
            return fail(a, "forward_part accepts a phase or part out of range", "");
        }
    }
    if (!all_poison(&a->y, plan.poison) || !all_poison(&a->weights, plan.poison) ||
        !caches_unchanged(a, s)) {
        return fail(a, "forward_part out of range wrote an output", "");
    }
    return 0;
}
