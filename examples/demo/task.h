/* Associative recall: the task of the demo, and the model around its attention layer.
 *
 * A sequence is n pairs of a key (a letter, each at most once) and a value (a digit), then one of
 * the keys again: "k 3 d 7 q 0 d" asks for 7. The constants are those of train.py. */
#ifndef DEMO_TASK_H
#define DEMO_TASK_H

#include "attngen/safetensors.h"

enum {
    KEYS = 26,
    VALUES = 10,
    START = KEYS + VALUES, /* what stands before the first token */
    VOCABULARY = START + 1,
    MIN_PAIRS = 4,
    MAX_PAIRS = 16,
    SEQ_LEN = 2 * MAX_PAIRS + 1,
    D_MODEL = 64
};

typedef struct sequence {
    int tokens[SEQ_LEN];
    int32_t length; /* 2 * pairs + 1 */
    int answer;     /* the value of the key at the end, 0 .. VALUES-1 */
} sequence;

/* What surrounds the attention layer. */
typedef struct embeddings {
    float token[VOCABULARY][D_MODEL];
    float previous[VOCABULARY][D_MODEL];
    float answer[VALUES][D_MODEL];
} embeddings;

/* A random sequence of `pairs` pairs; *rng is any seed and moves on. */
void draw_sequence(uint64_t *rng, int pairs, sequence *out);

/* The same with a random number of pairs. */
void draw_any_sequence(uint64_t *rng, sequence *out);

/* A letter or a digit. */
char token_char(int token);

/* "k3 d7 q0 d?" into text; returns text. */
enum { SEQUENCE_TEXT_BYTES = 3 * MAX_PAIRS + 3 };
char *sequence_text(const sequence *s, char text[SEQUENCE_TEXT_BYTES]);

attn_status load_embeddings(const attn_safetensors *file, embeddings *out);

/* The layer's input x [SEQ_LEN, D_MODEL]. Padding is NaN: whoever reads it cannot hide it. */
void embed_sequence(const embeddings *model, const sequence *s, float *x);

/* The value that the layer's output at the last token, y [D_MODEL], stands for. */
int best_answer(const embeddings *model, const float *y);

#endif /* DEMO_TASK_H */
