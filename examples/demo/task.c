#include "task.h"

#include <math.h>

/* SplitMix64. */
static uint64_t next_random(uint64_t *rng)
{
    *rng += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = *rng;
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* 0 .. n-1; the bias of the modulo is far below anything a demo could notice. */
static int random_below(uint64_t *rng, int n)
{
    return (int)(next_random(rng) % (uint64_t)n);
}

void draw_sequence(uint64_t *rng, int pairs, sequence *out)
{
    int keys[KEYS];
    for (int i = 0; i < KEYS; i++) {
        keys[i] = i;
    }
    for (int i = 0; i < pairs; i++) { /* the first steps of a Fisher-Yates shuffle */
        int j = i + random_below(rng, KEYS - i);
        int key = keys[j];
        keys[j] = keys[i];
        keys[i] = key;
        out->tokens[2 * i] = key;
        out->tokens[2 * i + 1] = KEYS + random_below(rng, VALUES);
    }
    int asked = random_below(rng, pairs);
    out->tokens[2 * pairs] = keys[asked];
    out->answer = out->tokens[2 * asked + 1] - KEYS;
    out->length = 2 * pairs + 1;
}

void draw_any_sequence(uint64_t *rng, sequence *out)
{
    draw_sequence(rng, MIN_PAIRS + random_below(rng, MAX_PAIRS - MIN_PAIRS + 1), out);
}

char token_char(int token)
{
    return "abcdefghijklmnopqrstuvwxyz0123456789^"[token];
}

char *sequence_text(const sequence *s, char text[SEQUENCE_TEXT_BYTES])
{
    char *end = text;
    for (int i = 0; i + 1 < s->length; i += 2) {
        *end++ = token_char(s->tokens[i]);
        *end++ = token_char(s->tokens[i + 1]);
        *end++ = ' ';
    }
    *end++ = token_char(s->tokens[s->length - 1]);
    *end++ = '?';
    *end = '\0';
    return text;
}

static attn_status load_table(const attn_safetensors *file, const char *name, size_t rows,
                              float *out)
{
    const attn_tensor *tensor;
    attn_status status = attn_safetensors_get(file, name, &tensor);
    if (status.code != ATTN_OK) {
        return status;
    }
    if (tensor->rank != 2 || tensor->shape[0] != rows || tensor->shape[1] != D_MODEL) {
        return attn_fail(ATTN_E_SHAPE, "%s: expected [%zu,%d]", name, rows, D_MODEL);
    }
    return attn_tensor_read_f32(file, tensor, 0, rows * D_MODEL, out);
}

attn_status load_embeddings(const attn_safetensors *file, embeddings *out)
{
    attn_status status = load_table(file, "token_embedding.weight", VOCABULARY, out->token[0]);
    if (status.code == ATTN_OK) {
        status = load_table(file, "previous_embedding.weight", VOCABULARY, out->previous[0]);
    }
    if (status.code == ATTN_OK) {
        status = load_table(file, "unembedding.weight", VALUES, out->answer[0]);
    }
    return status;
}

void embed_sequence(const embeddings *model, const sequence *s, float *x)
{
    for (int i = 0; i < SEQ_LEN; i++) {
        for (int e = 0; e < D_MODEL; e++) {
            float value = NAN;
            if (i < s->length) {
                int before = i == 0 ? START : s->tokens[i - 1];
                value = model->token[s->tokens[i]][e] + model->previous[before][e];
            }
            x[i * D_MODEL + e] = value;
        }
    }
}

int best_answer(const embeddings *model, const float *y)
{
    int best = 0;
    float best_logit = -INFINITY;
    for (int value = 0; value < VALUES; value++) {
        float logit = 0;
        for (int e = 0; e < D_MODEL; e++) {
            logit += y[e] * model->answer[value][e];
        }
        if (logit > best_logit) {
            best_logit = logit;
            best = value;
        }
    }
    return best;
}
