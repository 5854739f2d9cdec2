/* Checkpoint families: every tensor is found under its full name, in its storage order, and nothing
 * is guessed. The files are written here from the layouts' definitions, element by element. */
#include "attngen/mapping.h"
#include "runtime_support.h"

TestSuite(mapping, .init = make_test_dir, .fini = remove_test_dir);

#define MAX_TENSORS 16

/* A file in the making. */
typedef struct maker {
    attn_tensor_source tensors[MAX_TENSORS];
    float *data[MAX_TENSORS];
    size_t count;
} maker;

static float *add(maker *m, const char *name, size_t rows, size_t columns)
{
    cr_assert_lt(m->count, MAX_TENSORS);
    float *data = calloc(rows * (columns == 0 ? 1 : columns), sizeof *data);
    cr_assert_not_null(data);
    m->tensors[m->count] = (attn_tensor_source){.name = name,
                                                .dtype = ATTN_F32,
                                                .rank = columns == 0 ? 1 : 2,
                                                .shape = {rows, columns},
                                                .data = data};
    m->data[m->count++] = data;
    return data;
}

static attn_safetensors *finish(maker *m)
{
    attn_safetensors *file;
    expect_ok(attn_safetensors_write(in_dir("w.safetensors"), m->tensors, m->count));
    expect_ok(attn_safetensors_open(in_dir("w.safetensors"), ATTN_OPEN_READ, &file));
    for (size_t i = 0; i < m->count; i++) {
        free(m->data[i]);
    }
    m->count = 0;
    return file;
}

#define ALL_BIASES (ATTN_T_Q_BIAS | ATTN_T_K_BIAS | ATTN_T_V_BIAS | ATTN_T_O_BIAS)

static attn_kernel make_kernel(size_t d_model, size_t heads, size_t kv_heads, size_t head_dim,
                               uint32_t biases)
{
    return (attn_kernel){.abi = ATTN_KERNEL_ABI,
                         .tensors = ATTN_T_X | ATTN_T_O_WEIGHT | biases,
                         .phases = 1,
                         .name = "layer",
                         .isa = "scalar",
                         .batch = 1,
                         .seq_len = 1,
                         .kv_len = 1,
                         .d_model = d_model,
                         .kv_dim = d_model,
                         .heads = heads,
                         .kv_heads = kv_heads,
                         .head_dim = head_dim,
                         .v_head_dim = head_dim,
                         .packed_bytes = 64,
                         .alignment = 64};
}

/* The value planted at (projection, row, column); column -1 is the bias. */
static float planted(char projection, size_t row, int column)
{
    return (float)(projection * 10000) + (float)row * 100 + (float)column;
}

static void expect_matrix(const float *got, char projection, size_t rows, size_t columns)
{
    cr_assert_not_null(got, "%c", projection);
    for (size_t r = 0; r < rows; r++) {
        for (size_t c = 0; c < columns; c++) {
            cr_assert_eq(got[r * columns + c], planted(projection, r, (int)c), "%c[%zu,%zu] is %g",
                         projection, r, c, (double)got[r * columns + c]);
        }
    }
}

static void expect_vector(const float *got, char projection, size_t rows)
{
    cr_assert_not_null(got, "%c bias", projection);
    for (size_t r = 0; r < rows; r++) {
        cr_assert_eq(got[r], planted(projection, r, -1), "%c bias[%zu]", projection, r);
    }
}

static void expect_layer(const attn_weights *got, const attn_kernel *k)
{
    const size_t q = k->heads * k->head_dim, kv = k->kv_heads * k->head_dim;
    expect_matrix(got->q_weight, 'q', q, k->d_model);
    expect_matrix(got->k_weight, 'k', kv, k->kv_dim);
    expect_matrix(got->v_weight, 'v', kv, k->kv_dim);
    expect_matrix(got->o_weight, 'o', k->d_model, q);
    if ((k->tensors & ALL_BIASES) != 0) {
        expect_vector(got->q_bias, 'q', q);
        expect_vector(got->k_bias, 'k', kv);
        expect_vector(got->v_bias, 'v', kv);
        expect_vector(got->o_bias, 'o', k->d_model);
    } else {
        cr_assert(!got->q_bias && !got->k_bias && !got->v_bias && !got->o_bias);
    }
}

/* ---- the table, against literal names ---- */

/* How the file stores a projection's row: split, or at the place a fused order gives it. */
typedef enum stored { SPLIT, BLOCKS, PER_GROUP } stored;

typedef struct sample {
    const char *family;
    size_t layer, heads, kv_heads;
    stored stored;
    bool is_transposed; /* [in, out] */
    bool has_bias;
    const char *q, *k, *v, *o;     /* full weight names; k and v NULL when fused */
    const char *qb, *kb, *vb, *ob; /* full bias names; kb and vb NULL when fused */
} sample;

#define WB(q, k, v, o)                                                                             \
    q ".weight", k ".weight", v ".weight", o ".weight", q ".bias", k ".bias", v ".bias", o ".bias"
#define FUSED(qkv, o) qkv ".weight", NULL, NULL, o ".weight", qkv ".bias", NULL, NULL, o ".bias"
#define MHA(p)                                                                                     \
    p "in_proj_weight", NULL, NULL, p "out_proj.weight", p "in_proj_bias", NULL, NULL,             \
        p "out_proj.bias"

/* clang-format off */
static const sample SAMPLES[] = {
    {"plain", 0, 3, 3, SPLIT, false, true, WB("q", "k", "v", "o")},
    {"torch-mha", 0, 3, 3, BLOCKS, false, true, MHA("")},
    {"torch-mha", 0, 3, 3, BLOCKS, false, true, MHA("self_attn.")},
    {"torch-mha-split", 0, 3, 3, SPLIT, false, true,
     "self_attn.q_proj_weight", "self_attn.k_proj_weight", "self_attn.v_proj_weight",
     "self_attn.out_proj.weight", "self_attn.in_proj_bias", NULL, NULL, "self_attn.out_proj.bias"},
    {"torch-encoder", 2, 3, 3, BLOCKS, false, true, MHA("layers.2.self_attn.")},
    {"torch-encoder", 2, 3, 3, BLOCKS, false, true, MHA("encoder.layers.2.self_attn.")},
    {"bert", 3, 3, 3, SPLIT, false, true,
     WB("bert.encoder.layer.3.attention.self.query", "bert.encoder.layer.3.attention.self.key",
        "bert.encoder.layer.3.attention.self.value",
        "bert.encoder.layer.3.attention.output.dense")},
    {"bert", 11, 3, 3, SPLIT, false, true,
     WB("encoder.layer.11.attention.self.query", "encoder.layer.11.attention.self.key",
        "encoder.layer.11.attention.self.value", "encoder.layer.11.attention.output.dense")},
    {"bert", 0, 3, 3, SPLIT, false, true,
     WB("roberta.encoder.layer.0.attention.self.query",
        "roberta.encoder.layer.0.attention.self.key",
        "roberta.encoder.layer.0.attention.self.value",
        "roberta.encoder.layer.0.attention.output.dense")},
    {"distilbert", 1, 3, 3, SPLIT, false, true,
     WB("distilbert.transformer.layer.1.attention.q_lin",
        "distilbert.transformer.layer.1.attention.k_lin",
        "distilbert.transformer.layer.1.attention.v_lin",
        "distilbert.transformer.layer.1.attention.out_lin")},
    {"vit", 1, 3, 3, SPLIT, false, true,
     WB("vit.encoder.layer.1.attention.attention.query",
        "vit.encoder.layer.1.attention.attention.key",
        "vit.encoder.layer.1.attention.attention.value",
        "vit.encoder.layer.1.attention.output.dense")},
    {"timm", 5, 3, 3, BLOCKS, false, true, FUSED("blocks.5.attn.qkv", "blocks.5.attn.proj")},
    {"gpt2", 1, 3, 3, BLOCKS, true, true, FUSED("h.1.attn.c_attn", "h.1.attn.c_proj")},
    {"gpt2", 1, 3, 3, BLOCKS, true, true,
     FUSED("transformer.h.1.attn.c_attn", "transformer.h.1.attn.c_proj")},
    {"gpt-neox", 4, 3, 3, PER_GROUP, false, true,
     FUSED("gpt_neox.layers.4.attention.query_key_value", "gpt_neox.layers.4.attention.dense")},
    {"bloom", 0, 3, 3, PER_GROUP, false, true,
     FUSED("transformer.h.0.self_attention.query_key_value",
           "transformer.h.0.self_attention.dense")},
    {"falcon", 0, 6, 2, PER_GROUP, false, false,
     FUSED("transformer.h.0.self_attention.query_key_value",
           "transformer.h.0.self_attention.dense")},
    {"falcon", 0, 4, 1, PER_GROUP, false, false,
     FUSED("h.0.self_attention.query_key_value", "h.0.self_attention.dense")},
    {"llama", 7, 4, 2, SPLIT, false, false,
     WB("model.layers.7.self_attn.q_proj", "model.layers.7.self_attn.k_proj",
        "model.layers.7.self_attn.v_proj", "model.layers.7.self_attn.o_proj")},
    {"phi3", 0, 4, 2, BLOCKS, false, false,
     FUSED("model.layers.0.self_attn.qkv_proj", "model.layers.0.self_attn.o_proj")},
    {"modernbert", 0, 3, 3, BLOCKS, false, false,
     FUSED("model.layers.0.attn.Wqkv", "model.layers.0.attn.Wo")},
    {"clip-text", 1, 3, 3, SPLIT, false, true,
     WB("text_model.encoder.layers.1.self_attn.q_proj",
        "text_model.encoder.layers.1.self_attn.k_proj",
        "text_model.encoder.layers.1.self_attn.v_proj",
        "text_model.encoder.layers.1.self_attn.out_proj")},
    {"clip-vision", 1, 3, 3, SPLIT, false, true,
     WB("vision_model.encoder.layers.1.self_attn.q_proj",
        "vision_model.encoder.layers.1.self_attn.k_proj",
        "vision_model.encoder.layers.1.self_attn.v_proj",
        "vision_model.encoder.layers.1.self_attn.out_proj")},
    {"t5-encoder", 2, 3, 3, SPLIT, false, false,
     WB("encoder.block.2.layer.0.SelfAttention.q", "encoder.block.2.layer.0.SelfAttention.k",
        "encoder.block.2.layer.0.SelfAttention.v", "encoder.block.2.layer.0.SelfAttention.o")},
    {"t5-decoder", 2, 3, 3, SPLIT, false, false,
     WB("decoder.block.2.layer.0.SelfAttention.q", "decoder.block.2.layer.0.SelfAttention.k",
        "decoder.block.2.layer.0.SelfAttention.v", "decoder.block.2.layer.0.SelfAttention.o")},
    {"t5-cross", 2, 3, 3, SPLIT, false, false,
     WB("decoder.block.2.layer.1.EncDecAttention.q", "decoder.block.2.layer.1.EncDecAttention.k",
        "decoder.block.2.layer.1.EncDecAttention.v", "decoder.block.2.layer.1.EncDecAttention.o")},
};
/* clang-format on */

/* Row of the fused tensor that holds row r of a projection, by the definition of the order. */
static size_t fused_row(const sample *s, size_t d, char projection, size_t r)
{
    const size_t shared = s->heads / s->kv_heads;
    if (s->stored == BLOCKS) {
        return projection == 'q'   ? r
               : projection == 'k' ? s->heads * d + r
                                   : (s->heads + s->kv_heads) * d + r;
    }
    const size_t head = r / d;
    const size_t group = projection == 'q' ? head / shared : head;
    const size_t within = projection == 'q'   ? head % shared
                          : projection == 'k' ? shared
                                              : shared + 1;
    return (group * (shared + 2) + within) * d + r % d;
}

static void plant_weight(float *to, bool is_transposed, size_t rows, size_t columns, size_t at_row,
                         size_t at_column, float value)
{
    to[is_transposed ? at_column * rows + at_row : at_row * columns + at_column] = value;
}

static void add_matrix(maker *m, const char *name, bool is_transposed, size_t rows, size_t columns,
                       char projection)
{
    float *data = is_transposed ? add(m, name, columns, rows) : add(m, name, rows, columns);
    for (size_t r = 0; r < rows; r++) {
        for (size_t c = 0; c < columns; c++) {
            plant_weight(data, is_transposed, rows, columns, r, c, planted(projection, r, (int)c));
        }
    }
}

static void add_vector(maker *m, const char *name, size_t rows, char projection)
{
    float *data = add(m, name, rows, 0);
    for (size_t r = 0; r < rows; r++) {
        data[r] = planted(projection, r, -1);
    }
}

static void add_fused(maker *m, const sample *s, const char *name, size_t d, size_t columns)
{
    const size_t rows = (s->heads + 2 * s->kv_heads) * d;
    float *data = columns == 0       ? add(m, name, rows, 0)
                  : s->is_transposed ? add(m, name, columns, rows)
                                     : add(m, name, rows, columns);
    for (size_t p = 0; p < 3; p++) {
        const char projection = "qkv"[p];
        const size_t count = (p == 0 ? s->heads : s->kv_heads) * d;
        for (size_t r = 0; r < count; r++) {
            const size_t row = fused_row(s, d, projection, r);
            if (columns == 0) {
                data[row] = planted(projection, r, -1);
            }
            for (size_t c = 0; c < columns; c++) {
                plant_weight(data, s->is_transposed, rows, columns, row, c,
                             planted(projection, r, (int)c));
            }
        }
    }
}

static attn_safetensors *make_sample(const sample *s, size_t d, size_t e)
{
    maker m = {.count = 0};
    const size_t q = s->heads * d, kv = s->kv_heads * d;
    if (s->k == NULL) {
        add_fused(&m, s, s->q, d, e);
    } else {
        add_matrix(&m, s->q, s->is_transposed, q, e, 'q');
        add_matrix(&m, s->k, s->is_transposed, kv, e, 'k');
        add_matrix(&m, s->v, s->is_transposed, kv, e, 'v');
    }
    add_matrix(&m, s->o, s->is_transposed, e, q, 'o');
    if (s->has_bias && s->kb == NULL) {
        sample blocks = *s;
        blocks.stored = s->stored == SPLIT ? BLOCKS : s->stored;
        add_fused(&m, &blocks, s->qb, d, 0);
    } else if (s->has_bias) {
        add_vector(&m, s->qb, q, 'q');
        add_vector(&m, s->kb, kv, 'k');
        add_vector(&m, s->vb, kv, 'v');
    }
    if (s->has_bias) {
        add_vector(&m, s->ob, e, 'o');
    }
    add_vector(&m, "unrelated.tensor", 3, 'x');
    add_vector(&m, "h.1.attn.bias", 4, 'x'); /* GPT-2's causal table is no bias */
    return finish(&m);
}

Test(mapping, every_family_finds_its_tensors)
{
    for (size_t i = 0; i < sizeof SAMPLES / sizeof SAMPLES[0]; i++) {
        const sample *s = &SAMPLES[i];
        for (size_t e = 5; e <= 9; e += 4) { /* never square, and e = 9 = 3 heads of 3 */
            const size_t d = e == 9 ? 3 : 2;
            const attn_kernel kernel =
                make_kernel(e, s->heads, s->kv_heads, d, s->has_bias ? ALL_BIASES : 0);
            attn_safetensors *file = make_sample(s, d, e);
            const attn_layer layer = {.family = s->family, .layer = s->layer};
            attn_loaded_weights loaded;
            const attn_status status = attn_weights_load(file, &layer, &kernel, &loaded);
            cr_assert_eq(status.code, ATTN_OK, "%s: %s", s->family, status.message);
            expect_layer(&loaded.weights, &kernel);
            attn_weights_free(&loaded);
            cr_assert_null(loaded.weights.q_weight);
            attn_safetensors_close(file);
        }
    }
}

Test(mapping, every_family_is_sampled)
{
    /* covered by tests of their own below */
    const char *const others[] = {"whisper-encoder", "whisper-decoder", "whisper-cross",
                                  "gpt2-cross"};
    for (size_t f = 0; attn_family_name(f) != NULL; f++) {
        bool is_found = false;
        for (size_t i = 0; i < sizeof SAMPLES / sizeof SAMPLES[0]; i++) {
            is_found = is_found || strcmp(SAMPLES[i].family, attn_family_name(f)) == 0;
        }
        for (size_t i = 0; i < 4; i++) {
            is_found = is_found || strcmp(others[i], attn_family_name(f)) == 0;
        }
        cr_expect(is_found, "family %s has no sample", attn_family_name(f));
    }
}

/* ---- BC-55, BC-56: the same bytes under two layouts ---- */

/* What a layer of one token answers: y = Wo · Wv · x with Wo = I. */
static void answer(const attn_weights *w, const float x[2], float y[2])
{
    for (size_t r = 0; r < 2; r++) {
        y[r] = w->v_weight[r * 2] * x[0] + w->v_weight[r * 2 + 1] * x[1];
    }
}

static void fill_identity(float *to)
{
    to[0] = to[3] = 1;
}

Test(mapping, linear_and_conv1d_differ)
{
    const attn_kernel kernel = make_kernel(2, 1, 1, 2, 0);
    const float x[2] = {1, 0};
    float y[2];
    maker m = {.count = 0};
    fill_identity(add(&m, "q.weight", 2, 2));
    fill_identity(add(&m, "k.weight", 2, 2));
    memcpy(add(&m, "v.weight", 2, 2), (float[4]){1, 2, 3, 4}, 16);
    fill_identity(add(&m, "o.weight", 2, 2));
    attn_safetensors *file = finish(&m);
    attn_loaded_weights loaded;
    expect_ok(attn_weights_load(file, &(attn_layer){.family = "plain"}, &kernel, &loaded));
    answer(&loaded.weights, x, y);
    cr_assert(y[0] == 1 && y[1] == 3, "[%g,%g]", (double)y[0], (double)y[1]);
    attn_weights_free(&loaded);
    attn_safetensors_close(file);

    float *fused = add(&m, "h.0.attn.c_attn.weight", 2, 6); /* columns Q, K, V */
    fused[4] = 1;
    fused[5] = 2;
    fused[10] = 3;
    fused[11] = 4;
    fill_identity(add(&m, "h.0.attn.c_proj.weight", 2, 2));
    file = finish(&m);
    expect_ok(attn_weights_load(file, &(attn_layer){.family = "gpt2"}, &kernel, &loaded));
    answer(&loaded.weights, x, y);
    cr_assert(y[0] == 1 && y[1] == 2, "[%g,%g]", (double)y[0], (double)y[1]);
    attn_weights_free(&loaded);
    attn_safetensors_close(file);
}

Test(mapping, block_and_per_head_order_differ)
{
    const attn_kernel kernel = make_kernel(2, 2, 2, 1, 0);
    const struct {
        const char *family, *qkv, *o;
        float y[2];
    } cases[] = {
        {"timm", "blocks.0.attn.qkv.weight", "blocks.0.attn.proj.weight", {5, 6}},
        {"bloom",
         "h.0.self_attention.query_key_value.weight",
         "h.0.self_attention.dense.weight",
         {3, 6}},
    };
    for (size_t i = 0; i < 2; i++) {
        maker m = {.count = 0};
        float *fused = add(&m, cases[i].qkv, 6, 2);
        for (size_t r = 0; r < 6; r++) {
            fused[2 * r] = (float)r + 1;
        }
        fill_identity(add(&m, cases[i].o, 2, 2));
        attn_safetensors *file = finish(&m);
        attn_loaded_weights loaded;
        expect_ok(
            attn_weights_load(file, &(attn_layer){.family = cases[i].family}, &kernel, &loaded));
        float y[2];
        answer(&loaded.weights, (float[2]){1, 0}, y);
        cr_assert(y[0] == cases[i].y[0] && y[1] == cases[i].y[1], "%s", cases[i].family);
        attn_weights_free(&loaded);
        attn_safetensors_close(file);
    }
}

/* ---- cross-attention: two widths ---- */

Test(mapping, cross_attention_has_its_own_width)
{
    attn_kernel kernel = make_kernel(6, 3, 3, 2, 0);
    kernel.tensors |= ATTN_T_CONTEXT;
    kernel.kv_dim = 4;
    attn_loaded_weights loaded;
    maker m = {.count = 0};
    add_matrix(&m, "q_proj_weight", false, 6, 6, 'q');
    add_matrix(&m, "k_proj_weight", false, 6, 4, 'k');
    add_matrix(&m, "v_proj_weight", false, 6, 4, 'v');
    add_matrix(&m, "out_proj.weight", false, 6, 6, 'o');
    attn_safetensors *file = finish(&m);
    expect_ok(
        attn_weights_load(file, &(attn_layer){.family = "torch-mha-split"}, &kernel, &loaded));
    expect_layer(&loaded.weights, &kernel);
    attn_weights_free(&loaded);
    attn_safetensors_close(file);

    kernel = make_kernel(6, 3, 3, 2, ALL_BIASES);
    kernel.tensors |= ATTN_T_CONTEXT;
    add_matrix(&m, "h.3.crossattention.q_attn.weight", true, 6, 6, 'q');
    float *kv = add(&m, "h.3.crossattention.c_attn.weight", 6, 12); /* columns K, V */
    add_matrix(&m, "h.3.crossattention.c_proj.weight", true, 6, 6, 'o');
    add_vector(&m, "h.3.crossattention.q_attn.bias", 6, 'q');
    float *kv_bias = add(&m, "h.3.crossattention.c_attn.bias", 12, 0);
    add_vector(&m, "h.3.crossattention.c_proj.bias", 6, 'o');
    for (size_t r = 0; r < 6; r++) {
        for (size_t c = 0; c < 6; c++) {
            kv[c * 12 + r] = planted('k', r, (int)c);
            kv[c * 12 + 6 + r] = planted('v', r, (int)c);
        }
        kv_bias[r] = planted('k', r, -1);
        kv_bias[6 + r] = planted('v', r, -1);
    }
    file = finish(&m);
    const attn_layer layer = {.family = "gpt2-cross", .layer = 3};
    expect_ok(attn_weights_load(file, &layer, &kernel, &loaded));
    expect_layer(&loaded.weights, &kernel);
    attn_weights_free(&loaded);
    attn_safetensors_close(file);
}

Test(mapping, value_heads_may_be_wider)
{
    attn_kernel kernel = make_kernel(5, 4, 2, 3, 0);
    kernel.v_head_dim = 7;
    attn_loaded_weights loaded;
    maker m = {.count = 0};
    add_matrix(&m, "q.weight", false, 12, 5, 'q');
    add_matrix(&m, "k.weight", false, 6, 5, 'k');
    add_matrix(&m, "v.weight", false, 14, 5, 'v');
    add_matrix(&m, "o.weight", false, 5, 28, 'o');
    attn_safetensors *file = finish(&m);
    expect_ok(attn_weights_load(file, &(attn_layer){.family = NULL}, &kernel, &loaded));
    expect_matrix(loaded.weights.v_weight, 'v', 14, 5);
    expect_matrix(loaded.weights.o_weight, 'o', 5, 28);
    attn_weights_free(&loaded);
    expect_fail(attn_weights_load(file, &(attn_layer){.family = "falcon"}, &kernel, &loaded),
                ATTN_E_SHAPE, "head_dim = v_head_dim");
    attn_safetensors_close(file);
}

/* ---- BC-58: optional biases ---- */

static attn_safetensors *make_whisper(const char *const names[7])
{
    maker m = {.count = 0};
    for (size_t p = 0; p < 4; p++) {
        add_matrix(&m, names[p], false, 6, 6, "qkvo"[p]);
    }
    add_vector(&m, names[4], 6, 'q');
    add_vector(&m, names[5], 6, 'v');
    add_vector(&m, names[6], 6, 'o');
    return finish(&m);
}

#define WHISPER(p)                                                                                 \
    {                                                                                              \
        p "q_proj.weight", p "k_proj.weight", p "v_proj.weight", p "out_proj.weight",              \
            p "q_proj.bias", p "v_proj.bias", p "out_proj.bias"                                    \
    }

Test(mapping, whisper_has_no_k_bias)
{
    const struct {
        const char *family;
        const char *names[7];
    } cases[] = {
        {"whisper-encoder", WHISPER("model.encoder.layers.2.self_attn.")},
        {"whisper-decoder", WHISPER("model.decoder.layers.2.self_attn.")},
        {"whisper-cross", WHISPER("decoder.layers.2.encoder_attn.")},
    };
    for (size_t i = 0; i < 3; i++) {
        const uint32_t without_k = ALL_BIASES & ~ATTN_T_K_BIAS;
        attn_kernel kernel = make_kernel(6, 3, 3, 2, without_k);
        attn_safetensors *file = make_whisper(cases[i].names);
        const attn_layer layer = {.family = cases[i].family, .layer = 2};
        attn_loaded_weights loaded;
        expect_ok(attn_weights_load(file, &layer, &kernel, &loaded));
        expect_vector(loaded.weights.q_bias, 'q', 6);
        expect_vector(loaded.weights.v_bias, 'v', 6);
        cr_assert_null(loaded.weights.k_bias);
        attn_weights_free(&loaded);
        /* asked for all the same: an error that names the tensor */
        kernel.tensors |= ATTN_T_K_BIAS;
        expect_fail(attn_weights_load(file, &layer, &kernel, &loaded), ATTN_E_MISSING,
                    "k_proj.bias");
        cr_assert_null(loaded.storage.data);
        cr_assert_null(loaded.weights.q_weight);
        attn_safetensors_close(file);
    }
}

Test(mapping, biases_must_match_the_kernel)
{
    attn_loaded_weights loaded;
    maker m = {.count = 0};
    for (size_t p = 0; p < 4; p++) {
        static const char *const names[] = {"q.weight", "k.weight", "v.weight", "o.weight"};
        add_matrix(&m, names[p], false, 4, 4, "qkvo"[p]);
    }
    add_vector(&m, "q.bias", 4, 'q');
    add_vector(&m, "o.bias", 4, 'o');
    attn_safetensors *file = finish(&m);
    const attn_layer layer = {.family = "plain"};
    attn_kernel kernel = make_kernel(4, 2, 2, 2, ATTN_T_Q_BIAS | ATTN_T_O_BIAS);
    expect_ok(attn_weights_load(file, &layer, &kernel, &loaded));
    attn_weights_free(&loaded);
    kernel.tensors |= ATTN_T_V_BIAS; /* the kernel wants it, the file lacks it */
    expect_fail(attn_weights_load(file, &layer, &kernel, &loaded), ATTN_E_MISSING, "\"v.bias\"");
    kernel.tensors = ATTN_T_X | ATTN_T_O_WEIGHT | ATTN_T_O_BIAS; /* the other way round */
    expect_fail(
        attn_weights_load(file, &layer, &kernel, &loaded), ATTN_E_ARGUMENT,
        "\"q.bias\" is in the file, but kernel \"layer\" was generated without the bias of q");
    kernel.tensors = ATTN_T_X | ATTN_T_Q_BIAS; /* no output projection: o is not looked at */
    expect_ok(attn_weights_load(file, &layer, &kernel, &loaded));
    cr_assert(loaded.weights.o_weight == NULL && loaded.weights.o_bias == NULL);
    attn_weights_free(&loaded);
    attn_safetensors_close(file);
}

/* ---- BC-59: names ---- */

static void add_llama(maker *m, const char *const names[4], float first)
{
    for (size_t p = 0; p < 4; p++) {
        add(m, names[p], 4, 4)[0] = first;
    }
}

#define LLAMA(p)                                                                                   \
    {                                                                                              \
        p "q_proj.weight", p "k_proj.weight", p "v_proj.weight", p "o_proj.weight"                 \
    }

Test(mapping, the_layer_asked_for_is_the_layer_loaded)
{
    static const char *const zero[4] = LLAMA("model.layers.0.self_attn.");
    static const char *const one[4] = LLAMA("model.layers.1.self_attn.");
    static const char *const eleven[4] = LLAMA("model.layers.11.self_attn.");
    const attn_kernel kernel = make_kernel(4, 2, 2, 2, 0);
    maker m = {.count = 0};
    add_llama(&m, zero, 100);
    add_llama(&m, one, 101);
    add_llama(&m, eleven, 111);
    attn_safetensors *file = finish(&m);
    attn_loaded_weights loaded;
    const size_t layers[] = {0, 1, 11};
    for (size_t i = 0; i < 3; i++) {
        const attn_layer layer = {.family = "llama", .layer = layers[i]};
        expect_ok(attn_weights_load(file, &layer, &kernel, &loaded));
        cr_assert_eq(loaded.weights.k_weight[0], (float)(100 + layers[i]));
        attn_weights_free(&loaded);
    }
    expect_fail(
        attn_weights_load(file, &(attn_layer){.family = "llama", .layer = 2}, &kernel, &loaded),
        ATTN_E_MISSING, "\"layers.2.self_attn.q_proj.weight\"");
    expect_fail(attn_weights_load(file, &(attn_layer){.family = "plain"}, &kernel, &loaded),
                ATTN_E_MISSING, "\"q.weight\"");
    attn_layer layer = {.family = "llama", .prefix = "model.", .layer = 1};
    expect_ok(attn_weights_load(file, &layer, &kernel, &loaded));
    cr_assert_eq(loaded.weights.q_weight[0], 101);
    attn_weights_free(&loaded);
    layer.prefix = "";
    expect_fail(attn_weights_load(file, &layer, &kernel, &loaded), ATTN_E_MISSING,
                "near: \"model.layers.1.self_attn.q_proj.weight\"");
    attn_safetensors_close(file);
}

Test(mapping, two_prefixes_that_fit_are_an_error)
{
    static const char *const bare[4] = LLAMA("layers.0.self_attn.");
    static const char *const prefixed[4] = LLAMA("model.layers.0.self_attn.");
    const attn_kernel kernel = make_kernel(4, 2, 2, 2, 0);
    maker m = {.count = 0};
    add_llama(&m, bare, 1);
    add_llama(&m, prefixed, 2);
    attn_safetensors *file = finish(&m);
    attn_loaded_weights loaded;
    attn_layer layer = {.family = "llama"};
    expect_fail(attn_weights_load(file, &layer, &kernel, &loaded), ATTN_E_ARGUMENT,
                "under the prefixes \"\" and \"model.\": name one");
    layer.prefix = "model.";
    expect_ok(attn_weights_load(file, &layer, &kernel, &loaded));
    cr_assert_eq(loaded.weights.q_weight[0], 2);
    attn_weights_free(&loaded);
    attn_safetensors_close(file);
}

Test(mapping, a_missing_tensor_leaves_nothing)
{
    const attn_kernel kernel = make_kernel(4, 2, 2, 2, 0);
    static const char *const names[4] = LLAMA("layers.0.self_attn.");
    for (size_t missing = 0; missing < 4; missing++) {
        maker m = {.count = 0};
        for (size_t p = 0; p < 4; p++) {
            if (p != missing) {
                add(&m, names[p], 4, 4);
            }
        }
        attn_safetensors *file = finish(&m);
        attn_loaded_weights loaded;
        expect_fail(attn_weights_load(file, &(attn_layer){.family = "llama"}, &kernel, &loaded),
                    ATTN_E_MISSING, names[missing]);
        cr_assert_null(loaded.storage.data);
        cr_assert_null(loaded.weights.q_weight);
        attn_safetensors_close(file);
    }
}

Test(mapping, a_fused_tensor_found_instead_is_named)
{
    const attn_kernel kernel = make_kernel(4, 2, 2, 2, 0);
    maker m = {.count = 0};
    add(&m, "blocks.0.attn.qkv.weight", 12, 4);
    attn_safetensors *file = finish(&m);
    attn_loaded_weights loaded;
    const attn_status status =
        attn_weights_load(file, &(attn_layer){.family = "plain"}, &kernel, &loaded);
    expect_fail(status, ATTN_E_MISSING, "\"q.weight\"");
    expect_fail(status, ATTN_E_MISSING,
                "the file has the fused tensor \"blocks.0.attn.qkv.weight\", as in family timm");
    attn_safetensors_close(file);
}

/* ---- shapes, dtypes, families ---- */

Test(mapping, shapes_that_do_not_fit_are_both_named)
{
    const attn_kernel kernel = make_kernel(768, 12, 12, 64, 0);
    attn_loaded_weights loaded;
    maker m = {.count = 0};
    add(&m, "blocks.0.attn.qkv.weight", 768, 2304);
    add(&m, "blocks.0.attn.proj.weight", 768, 768);
    attn_safetensors *file = finish(&m);
    expect_fail(
        attn_weights_load(file, &(attn_layer){.family = "timm"}, &kernel, &loaded), ATTN_E_SHAPE,
        "\"blocks.0.attn.qkv.weight\": shape [768,2304], wanted [2304,768]: it is stored the "
        "other way round");
    attn_safetensors_close(file);

    const attn_kernel small = make_kernel(4, 2, 2, 2, 0);
    add(&m, "q.weight", 16, 0);
    file = finish(&m);
    expect_fail(attn_weights_load(file, &(attn_layer){.family = "plain"}, &small, &loaded),
                ATTN_E_SHAPE, "\"q.weight\": shape [16], wanted [4,4] (family plain");
    attn_safetensors_close(file);
}

Test(mapping, tensors_that_change_the_meaning_are_refused)
{
    const attn_kernel kernel = make_kernel(4, 2, 2, 2, 0);
    static const char *const names[4] = LLAMA("layers.0.self_attn.");
    static const char *const extra[] = {"layers.0.self_attn.q_norm.weight",
                                        "layers.0.self_attn.k_norm.weight",
                                        "layers.0.self_attn.sinks"};
    for (size_t i = 0; i < 3; i++) {
        maker m = {.count = 0};
        add_llama(&m, names, 1);
        add(&m, extra[i], 2, 0);
        attn_safetensors *file = finish(&m);
        attn_loaded_weights loaded;
        expect_fail(attn_weights_load(file, &(attn_layer){.family = "llama"}, &kernel, &loaded),
                    ATTN_E_ARGUMENT, extra[i]);
        attn_safetensors_close(file);
    }
}

Test(mapping, wrong_dtypes_are_named)
{
    const attn_kernel kernel = make_kernel(1, 1, 1, 1, 0);
    const file_bytes bytes = make_file(
        "{\"q.weight\":{\"dtype\":\"F8_E4M3\",\"shape\":[1,1],\"data_offsets\":[0,1]}}", "\1", 1);
    attn_safetensors *file;
    attn_loaded_weights loaded;
    expect_ok(attn_safetensors_open_memory(bytes.bytes, bytes.n, &file));
    expect_fail(attn_weights_load(file, &(attn_layer){.family = "plain"}, &kernel, &loaded),
                ATTN_E_DTYPE, "\"q.weight\" has dtype F8_E4M3");
    attn_safetensors_close(file);
    free(bytes.bytes);
}

Test(mapping, half_precision_checkpoints_are_converted)
{
    const attn_kernel kernel = make_kernel(1, 1, 1, 1, 0);
    /* 1.0 as BF16, F16, F64 and F32: a mix of dtypes in one file */
    const unsigned char data[] = {0x80, 0x3f, 0,    0x3c, 0, 0, 0,    0,
                                  0,    0,    0xf0, 0x3f, 0, 0, 0x80, 0x3f};
    const file_bytes bytes =
        make_file("{\"q.weight\":{\"dtype\":\"BF16\",\"shape\":[1,1],\"data_offsets\":[0,2]},"
                  "\"k.weight\":{\"dtype\":\"F16\",\"shape\":[1,1],\"data_offsets\":[2,4]},"
                  "\"v.weight\":{\"dtype\":\"F64\",\"shape\":[1,1],\"data_offsets\":[4,12]},"
                  "\"o.weight\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[12,16]}}",
                  data, sizeof data);
    attn_safetensors *file;
    attn_loaded_weights loaded;
    expect_ok(attn_safetensors_open_memory(bytes.bytes, bytes.n, &file));
    expect_ok(attn_weights_load(file, &(attn_layer){.family = "plain"}, &kernel, &loaded));
    const attn_weights *w = &loaded.weights;
    cr_assert(w->q_weight[0] == 1 && w->k_weight[0] == 1 && w->v_weight[0] == 1 &&
              w->o_weight[0] == 1);
    attn_weights_free(&loaded);
    attn_safetensors_close(file);
    free(bytes.bytes);
}

Test(mapping, unknown_families_and_kernels_without_weights)
{
    attn_kernel kernel = make_kernel(4, 2, 2, 2, 0);
    attn_safetensors *file;
    attn_loaded_weights loaded;
    expect_ok(attn_safetensors_open_memory("\2\0\0\0\0\0\0\0{}", 10, &file));
    expect_fail(attn_weights_load(file, &(attn_layer){.family = "gpt3"}, &kernel, &loaded),
                ATTN_E_MISSING, "no family \"gpt3\" (there are plain, torch-mha,");
    char longest[300];
    memset(longest, 'p', sizeof longest);
    longest[299] = '\0';
    expect_fail(attn_weights_load(file, &(attn_layer){.family = "bert", .prefix = longest}, &kernel,
                                  &loaded),
                ATTN_E_ARGUMENT, "prefix is too long");
    kernel.tensors = ATTN_T_QKV;
    kernel.d_model = kernel.kv_dim = 0;
    expect_fail(attn_weights_load(file, &(attn_layer){.family = "plain"}, &kernel, &loaded),
                ATTN_E_ARGUMENT, "has no weights");
    kernel = make_kernel(SIZE_MAX / 2, 2, 2, 2, 0);
    expect_fail(attn_weights_load(file, &(attn_layer){.family = "plain"}, &kernel, &loaded),
                ATTN_E_MEMORY, "address space");
    attn_safetensors_close(file);
}
