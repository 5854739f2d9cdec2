/* Checkpoint families as one table, and the loader that reads it.
 *
 * A family names, for each projection, the tensor with its weight and the one with its bias.
 * Projections that name the same tensor are fused in it; `order` says how. Nothing is guessed: the
 * family comes from the caller, and every shape is checked. */
#include "attngen/mapping.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { Q, K, V, O, PROJECTIONS };

typedef enum storage {
    LINEAR, /* [out, in] */
    CONV1D  /* [in, out] */
} storage;

typedef enum order {
    BLOCKS, /* all of Q, then all of K, then all of V */
    GROUPED /* per kv head: its query heads, its key head, its value head */
} order;

typedef struct family {
    const char *name;
    const char *prefixes[4]; /* usual prefixes, "" included; ended by NULL */
    const char *layer;       /* between prefix and tensor; '#' is the layer number */
    storage storage;
    order order;
    const char *weight[PROJECTIONS];
    const char *bias[PROJECTIONS];
    const char *forbidden[4]; /* tensors that change the meaning in a way kernels do not know */
} family;

/* Weight names, then bias names. */
#define SPLIT(q, k, v, o)                                                                          \
    {q ".weight", k ".weight", v ".weight", o ".weight"},                                          \
    {                                                                                              \
        q ".bias", k ".bias", v ".bias", o ".bias"                                                 \
    }
#define FUSED(qkv, o) SPLIT(qkv, qkv, qkv, o)
#define TORCH(q, k, v)                                                                             \
    {q, k, v, "out_proj.weight"},                                                                  \
    {                                                                                              \
        "in_proj_bias", "in_proj_bias", "in_proj_bias", "out_proj.bias"                            \
    }

/* clang-format off */
static const family FAMILIES[] = {
    {"plain", {""}, "", LINEAR, BLOCKS,
     SPLIT("q", "k", "v", "o"),
     {"sink", "bias_k", "q_norm.weight", "k_norm.weight"}},
    {"torch-mha", {"", "self_attn."}, "", LINEAR, BLOCKS,
     TORCH("in_proj_weight", "in_proj_weight", "in_proj_weight"),
     {"bias_k", "bias_v"}},
    {"torch-mha-split", {"", "self_attn."}, "", LINEAR, BLOCKS,
     TORCH("q_proj_weight", "k_proj_weight", "v_proj_weight"),
     {"bias_k", "bias_v"}},
    {"torch-encoder", {"", "encoder."}, "layers.#.self_attn.", LINEAR, BLOCKS,
     TORCH("in_proj_weight", "in_proj_weight", "in_proj_weight"),
     {"bias_k", "bias_v"}},
    {"bert", {"", "bert.", "roberta."}, "encoder.layer.#.attention.", LINEAR, BLOCKS,
     SPLIT("self.query", "self.key", "self.value", "output.dense"),
     {"self.distance_embedding.weight"}},
    {"distilbert", {"", "distilbert."}, "transformer.layer.#.attention.", LINEAR, BLOCKS,
     SPLIT("q_lin", "k_lin", "v_lin", "out_lin"),
     {NULL}},
    {"vit", {"", "vit.", "deit."}, "encoder.layer.#.attention.", LINEAR, BLOCKS,
     SPLIT("attention.query", "attention.key", "attention.value", "output.dense"),
     {NULL}},
    {"timm", {""}, "blocks.#.attn.", LINEAR, BLOCKS,
     FUSED("qkv", "proj"),
     {"q_norm.weight", "k_norm.weight", "norm.weight"}},
    /* the buffers attn.bias and attn.masked_bias of old files are no biases and not touched */
    {"gpt2", {"", "transformer."}, "h.#.attn.", CONV1D, BLOCKS,
     FUSED("c_attn", "c_proj"),
     {NULL}},
    {"gpt2-cross", {"", "transformer."}, "h.#.crossattention.", CONV1D, BLOCKS,
     SPLIT("q_attn", "c_attn", "c_attn", "c_proj"),
     {NULL}},
    /* one value head per kv head; with kv_heads = heads this is (head, q|k|v, row) */
    {"gpt-neox", {"", "gpt_neox."}, "layers.#.attention.", LINEAR, GROUPED,
     FUSED("query_key_value", "dense"),
     {NULL}},
    {"bloom", {"", "transformer."}, "h.#.self_attention.", LINEAR, GROUPED,
     FUSED("query_key_value", "dense"),
     {NULL}},
    {"falcon", {"", "transformer."}, "h.#.self_attention.", LINEAR, GROUPED,
     FUSED("query_key_value", "dense"),
     {NULL}},
    /* also Mistral, Qwen2, Gemma */
    {"llama", {"", "model."}, "layers.#.self_attn.", LINEAR, BLOCKS,
     SPLIT("q_proj", "k_proj", "v_proj", "o_proj"),
     {"q_norm.weight", "k_norm.weight", "sinks"}},
    {"phi3", {"", "model."}, "layers.#.self_attn.", LINEAR, BLOCKS,
     FUSED("qkv_proj", "o_proj"),
     {NULL}},
    {"modernbert", {"", "model."}, "layers.#.attn.", LINEAR, BLOCKS,
     FUSED("Wqkv", "Wo"),
     {NULL}},
    {"clip-text", {"", "clip."}, "text_model.encoder.layers.#.self_attn.", LINEAR, BLOCKS,
     SPLIT("q_proj", "k_proj", "v_proj", "out_proj"),
     {NULL}},
    {"clip-vision", {"", "clip."}, "vision_model.encoder.layers.#.self_attn.", LINEAR, BLOCKS,
     SPLIT("q_proj", "k_proj", "v_proj", "out_proj"),
     {NULL}},
    {"whisper-encoder", {"", "model."}, "encoder.layers.#.self_attn.", LINEAR, BLOCKS,
     SPLIT("q_proj", "k_proj", "v_proj", "out_proj"),
     {NULL}},
    {"whisper-decoder", {"", "model."}, "decoder.layers.#.self_attn.", LINEAR, BLOCKS,
     SPLIT("q_proj", "k_proj", "v_proj", "out_proj"),
     {NULL}},
    {"whisper-cross", {"", "model."}, "decoder.layers.#.encoder_attn.", LINEAR, BLOCKS,
     SPLIT("q_proj", "k_proj", "v_proj", "out_proj"),
     {NULL}},
    {"t5-encoder", {"", "transformer."}, "encoder.block.#.layer.0.SelfAttention.", LINEAR, BLOCKS,
     SPLIT("q", "k", "v", "o"),
     {NULL}},
    {"t5-decoder", {"", "transformer."}, "decoder.block.#.layer.0.SelfAttention.", LINEAR, BLOCKS,
     SPLIT("q", "k", "v", "o"),
     {NULL}},
    {"t5-cross", {"", "transformer."}, "decoder.block.#.layer.1.EncDecAttention.", LINEAR, BLOCKS,
     SPLIT("q", "k", "v", "o"),
     {NULL}},
};
/* clang-format on */

#define FAMILY_COUNT (sizeof FAMILIES / sizeof FAMILIES[0])
#define NAME_BYTES 256

const char *attn_family_name(size_t i)
{
    return i < FAMILY_COUNT ? FAMILIES[i].name : NULL;
}

static const family *find_family(const char *name)
{
    for (size_t i = 0; i < FAMILY_COUNT; i++) {
        if (strcmp(name, FAMILIES[i].name) == 0) {
            return &FAMILIES[i];
        }
    }
    return NULL;
}

static attn_status refuse_family(const char *name)
{
    char names[400] = "";
    size_t used = 0;
    for (size_t i = 0; i < FAMILY_COUNT && used < sizeof names; i++) {
        const int put = snprintf(names + used, sizeof names - used, "%s%s", i == 0 ? "" : ", ",
                                 FAMILIES[i].name);
        used += put > 0 ? (size_t)put : 0;
    }
    return attn_fail(ATTN_E_MISSING, "no family \"%.40s\" (there are %s)", name, names);
}

/* Everything one load needs to know. */
typedef struct request {
    const attn_safetensors *file;
    const family *family;
    const attn_kernel *kernel;
    char base[NAME_BYTES]; /* prefix and layer */
} request;

/* ---- names ---- */

static bool join(char out[NAME_BYTES], const char *left, const char *right)
{
    const int length = snprintf(out, NAME_BYTES, "%s%s", left, right);
    return length >= 0 && length < NAME_BYTES;
}

static bool build_base(char out[NAME_BYTES], const char *prefix, const char *layer, size_t number)
{
    const char *hash = strchr(layer, '#');
    const int length = hash == NULL ? snprintf(out, NAME_BYTES, "%s%s", prefix, layer)
                                    : snprintf(out, NAME_BYTES, "%s%.*s%zu%s", prefix,
                                               (int)(hash - layer), layer, number, hash + 1);
    return length >= 0 && length < NAME_BYTES;
}

static const attn_tensor *find_under(const request *r, const char *name)
{
    char full[NAME_BYTES];
    return join(full, r->base, name) ? attn_safetensors_find(r->file, full) : NULL;
}

/* Sets r->base: the prefix asked for, or the only usual one under which the file has the query
 * weight, or, when there is none, the first (the load then fails with that name). */
static attn_status choose_base(request *r, const attn_layer *layer)
{
    if (layer->prefix != NULL) {
        return build_base(r->base, layer->prefix, r->family->layer, layer->layer)
                   ? attn_success()
                   : attn_fail(ATTN_E_ARGUMENT, "the prefix is too long");
    }
    const char *chosen = NULL;
    for (size_t i = 0; i < 4 && r->family->prefixes[i] != NULL; i++) {
        const char *prefix = r->family->prefixes[i];
        if (!build_base(r->base, prefix, r->family->layer, layer->layer) ||
            find_under(r, r->family->weight[Q]) == NULL) {
            continue;
        }
        if (chosen != NULL) {
            return attn_fail(ATTN_E_ARGUMENT,
                             "family %s: the file has this layer under the prefixes \"%s\" and "
                             "\"%s\": name one",
                             r->family->name, chosen, prefix);
        }
        chosen = prefix;
    }
    build_base(r->base, chosen != NULL ? chosen : r->family->prefixes[0], r->family->layer,
               layer->layer);
    return attn_success();
}

/* Is `name` equal to `tail`, or does it end with it behind a dot? */
static bool is_called(const char *name, const char *tail)
{
    const size_t length = strlen(name);
    const size_t tail_length = strlen(tail);
    return length >= tail_length && strcmp(name + length - tail_length, tail) == 0 &&
           (length == tail_length || name[length - tail_length - 1] == '.');
}

/* A missing tensor: perhaps another family's fused one is there instead. */
static attn_status explain_missing(const request *r, attn_status missing)
{
    for (size_t i = 0; i < attn_safetensors_count(r->file); i++) {
        const char *name = attn_safetensors_at(r->file, i)->name;
        for (size_t f = 0; f < FAMILY_COUNT; f++) {
            const family *other = &FAMILIES[f];
            if (other != r->family && strcmp(other->weight[Q], other->weight[K]) == 0 &&
                strcmp(other->weight[Q], r->family->weight[Q]) != 0 &&
                is_called(name, other->weight[Q])) {
                return attn_fail(missing.code,
                                 "family %s: %s; the file has the fused tensor \"%.100s\", as in "
                                 "family %s",
                                 r->family->name, missing.message, name, other->name);
            }
        }
    }
    return attn_fail(missing.code, "family %s: %s", r->family->name, missing.message);
}

/* ---- what must not be there ---- */

static attn_status refuse_extras(const request *r)
{
    static const uint32_t bias_flag[PROJECTIONS] = {ATTN_T_Q_BIAS, ATTN_T_K_BIAS, ATTN_T_V_BIAS,
                                                    ATTN_T_O_BIAS};
    for (size_t i = 0; i < 4 && r->family->forbidden[i] != NULL; i++) {
        const attn_tensor *tensor = find_under(r, r->family->forbidden[i]);
        if (tensor != NULL) {
            return attn_fail(
                ATTN_E_ARGUMENT,
                "tensor \"%s\" is part of this layer, but kernel \"%s\" has no use for "
                "it: the result would be wrong",
                tensor->name, r->kernel->name);
        }
    }
    for (size_t p = 0; p < PROJECTIONS; p++) {
        const attn_tensor *tensor = find_under(r, r->family->bias[p]);
        const bool is_used = p == O   ? (r->kernel->tensors & ATTN_T_O_WEIGHT) != 0
                             : p == Q ? true
                                      : (r->kernel->tensors & ATTN_T_KV) == 0;
        if (tensor != NULL && is_used && (r->kernel->tensors & bias_flag[p]) == 0) {
            return attn_fail(
                ATTN_E_ARGUMENT,
                "tensor \"%s\" is in the file, but kernel \"%s\" was generated without "
                "the bias of %c",
                tensor->name, r->kernel->name, "qkvo"[p]);
        }
    }
    return attn_success();
}

/* ---- one tensor ---- */

/* Where the rows of one projection stand in the tensor that holds it: `runs` runs of `run` rows,
 * the first at `start`, `stride` apart; `total` rows in all. */
typedef struct placement {
    size_t start, run, stride, runs, total;
} placement;

static placement place(const request *r, const char *const names[PROJECTIONS], size_t projection)
{
    const attn_kernel *kernel = r->kernel;
    const size_t rows[PROJECTIONS] = {
        kernel->heads * kernel->head_dim, kernel->kv_heads * kernel->head_dim,
        kernel->kv_heads * kernel->v_head_dim, kernel->d_model}; /* products checked by the slots */
    placement at = {0, rows[projection], 0, 1, rows[projection]};
    if (projection == O) {
        return at;
    }
    at.total = 0;
    for (size_t p = Q; p <= V; p++) {
        if (strcmp(names[p], names[projection]) == 0) {
            at.start += p < projection ? rows[p] : 0;
            at.total += rows[p];
        }
    }
    if (r->family->order == GROUPED) {
        const size_t shared = kernel->heads / kernel->kv_heads;
        const size_t head = kernel->head_dim;
        at.run = projection == Q ? shared * head : head;
        at.start = projection == Q ? 0 : (shared + projection - K) * head;
        at.stride = (shared + 2) * head;
        at.runs = kernel->kv_heads;
    }
    return at;
}

static attn_status check_shape(const request *r, const attn_tensor *tensor, const uint64_t *wanted,
                               size_t rank)
{
    if (tensor->rank == rank && memcmp(tensor->shape, wanted, rank * sizeof *wanted) == 0) {
        return attn_success();
    }
    char found_text[ATTN_SHAPE_TEXT_BYTES];
    char wanted_text[ATTN_SHAPE_TEXT_BYTES];
    const bool is_transposed = tensor->rank == 2 && rank == 2 && tensor->shape[0] == wanted[1] &&
                               tensor->shape[1] == wanted[0];
    return attn_fail(ATTN_E_SHAPE,
                     "tensor \"%s\": shape %s, wanted %s%s (family %s, kernel \"%s\")",
                     tensor->name, attn_shape_text(tensor->shape, tensor->rank, found_text),
                     attn_shape_text(wanted, rank, wanted_text),
                     is_transposed ? ": it is stored the other way round" : "", r->family->name,
                     r->kernel->name);
}

/* Rows `from` .. from+rows-1 of the wanted matrix out of columns of a stored [in, out] matrix. */
static attn_status read_transposed(const attn_safetensors *file, const attn_tensor *tensor,
                                   size_t from, size_t rows, size_t columns, float *out)
{
    const uint64_t stored_columns = tensor->shape[1];
    float piece[512];
    attn_status status = attn_success();
    for (size_t c = 0; c < columns; c++) {
        for (size_t done = 0; done < rows && status.code == ATTN_OK;) {
            const size_t left = rows - done;
            const size_t now = left < 512 ? left : 512;
            status =
                attn_tensor_read_f32(file, tensor, c * stored_columns + from + done, now, piece);
            for (size_t i = 0; i < now && status.code == ATTN_OK; i++) {
                out[(done + i) * columns + c] = piece[i];
            }
            done += now;
        }
    }
    return status;
}

static attn_status load_slot(const request *r, const attn_slot *slot, float *out)
{
    const size_t projection = (size_t)(strchr("qkvo", slot->name[0]) - "qkvo");
    const bool is_weight = slot->rank == 2;
    const char *const *names = is_weight ? r->family->weight : r->family->bias;
    const size_t columns = is_weight ? (size_t)slot->shape[1] : 1;
    const placement at = place(r, names, projection);
    const bool is_transposed = is_weight && r->family->storage == CONV1D;

    char name[NAME_BYTES];
    if (!join(name, r->base, names[projection])) {
        return attn_fail(ATTN_E_ARGUMENT, "the prefix is too long");
    }
    const attn_tensor *tensor;
    attn_status status = attn_safetensors_get(r->file, name, &tensor);
    if (status.code != ATTN_OK) {
        return explain_missing(r, status);
    }
    const uint64_t linear[2] = {at.total, columns};
    const uint64_t transposed[2] = {columns, at.total};
    status = check_shape(r, tensor, is_transposed ? transposed : linear, slot->rank);
    for (size_t i = 0; i < at.runs && status.code == ATTN_OK; i++) {
        const size_t from = at.start + i * at.stride;
        float *rows = out + i * at.run * columns;
        status = is_transposed ? read_transposed(r->file, tensor, from, at.run, columns, rows)
                               : attn_tensor_read_f32(r->file, tensor, (uint64_t)from * columns,
                                                      at.run * columns, rows);
    }
    return status;
}

/* ---- the layer ---- */

static attn_status load_layer(const request *r, const attn_slot *slots, size_t count,
                              attn_loaded_weights *out)
{
    attn_status status = attn_weights_allocate(slots, count, out);
    for (size_t i = 0; i < count && status.code == ATTN_OK; i++) {
        if (slots[i].role == ATTN_WEIGHT) {
            /* The weights point into out->storage. */
            const void *data = attn_slot_get(&slots[i], &out->weights, NULL);
            status = load_slot(r, &slots[i], (float *)(uintptr_t)data);
        }
    }
    return status;
}

static attn_status load(request *r, const attn_layer *layer, const attn_slot *slots, size_t count,
                        attn_loaded_weights *out)
{
    const attn_kernel *kernel = r->kernel;
    if ((kernel->tensors & ATTN_T_X) == 0) {
        return attn_fail(ATTN_E_ARGUMENT, "kernel \"%s\" has no weights", kernel->name);
    }
    if (r->family->order == GROUPED && kernel->head_dim != kernel->v_head_dim) {
        return attn_fail(ATTN_E_SHAPE,
                         "family %s wants head_dim = v_head_dim, kernel \"%s\" has %zu and %zu",
                         r->family->name, kernel->name, kernel->head_dim, kernel->v_head_dim);
    }
    attn_status status = choose_base(r, layer);
    if (status.code == ATTN_OK) {
        status = refuse_extras(r);
    }
    return status.code == ATTN_OK ? load_layer(r, slots, count, out) : status;
}

attn_status attn_weights_load(const attn_safetensors *file, const attn_layer *layer,
                              const attn_kernel *kernel, attn_loaded_weights *out)
{
    *out = (attn_loaded_weights){.storage = {NULL, 0}};
    attn_slot slots[ATTN_MAX_SLOTS];
    size_t count;
    attn_status status = attn_kernel_slots(kernel, slots, &count);
    if (status.code != ATTN_OK) {
        return status;
    }
    const char *name = layer->family == NULL ? "plain" : layer->family;
    request r = {.file = file, .family = find_family(name), .kernel = kernel};
    if (r.family == NULL) {
        return refuse_family(name);
    }
    status = load(&r, layer, slots, count, out);
    if (status.code != ATTN_OK) {
        attn_weights_free(out);
    }
    return status;
}
