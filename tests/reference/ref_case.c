/* Reads a ref_case from its text line and derives the tensor sizes. */
#include "reference/ref_case.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum field_kind { SIZE, FLAG, LONG, REAL, WORD, SHAPE } field_kind;

typedef struct field {
    const char *key;
    field_kind kind;
    size_t offset;
    const char *words; /* WORD: the spellings, in the order of the enum, separated by '|' */
} field;

#define AT(member) offsetof(ref_case, member)

static const field FIELDS[] = {
    {"op", WORD, AT(sdpa), "mha|sdpa"},
    {"batch", SIZE, AT(batch), NULL},
    {"seq_len", SIZE, AT(seq_len), NULL},
    {"kv_len", SIZE, AT(kv_len), NULL},
    {"heads", SIZE, AT(heads), NULL},
    {"kv_heads", SIZE, AT(kv_heads), NULL},
    {"head_dim", SIZE, AT(head_dim), NULL},
    {"v_head_dim", SIZE, AT(v_head_dim), NULL},
    {"d_model", SIZE, AT(d_model), NULL},
    {"kv_dim", SIZE, AT(kv_dim), NULL},
    {"cross", FLAG, AT(cross), NULL},
    {"output_projection", FLAG, AT(output_projection), NULL},
    {"queries", WORD, AT(queries), "all|first|last"},
    {"bias_q", FLAG, AT(q_bias), NULL},
    {"bias_k", FLAG, AT(k_bias), NULL},
    {"bias_v", FLAG, AT(v_bias), NULL},
    {"bias_o", FLAG, AT(o_bias), NULL},
    {"scale", REAL, AT(scale), NULL},
    {"causal", FLAG, AT(causal), NULL},
    {"lengths", FLAG, AT(lengths), NULL},
    {"padding", FLAG, AT(padding), NULL},
    {"bool", FLAG, AT(bool_mask), NULL},
    {"additive", FLAG, AT(additive), NULL},
    {"causal_align", WORD, AT(align), "top_left|bottom_right|lengths|offset"},
    {"offset", LONG, AT(offset), NULL},
    {"mask_shape", SHAPE, AT(mask_shape), NULL},
    {"padded_queries", WORD, AT(zero_padded_queries), "compute|zero"},
    {"empty_row", WORD, AT(empty_row), "zero|uniform|nan"},
    {"return_weights", WORD, AT(return_weights), "none|per_head|mean"},
    {"kv_cache", WORD, AT(cache), "none|append|static"},
    {"accuracy", WORD, AT(fast), "exact|fast"},
    {"keys", WORD, AT(keys), "projected|folded|lifted"},
    {"values", WORD, AT(values), "projected|folded|deferred"},
};

static int word_index(const char *words, const char *value)
{
    const size_t length = strlen(value);
    int index = 0;
    for (const char *at = words; at != NULL; index++) {
        const char *bar = strchr(at, '|');
        const size_t here = bar != NULL ? (size_t)(bar - at) : strlen(at);
        if (here == length && memcmp(at, value, length) == 0) {
            return index;
        }
        at = bar != NULL ? bar + 1 : NULL;
    }
    return -1;
}

static int parse_size(const char *value, size_t *out)
{
    char *end = NULL;
    errno = 0;
    const unsigned long long n = strtoull(value, &end, 10);
    if (errno != 0 || end == value || *end != '\0' || value[0] == '-') {
        return -1;
    }
    *out = (size_t)n;
    return 0;
}

static int parse_shape(const char *value, size_t shape[4])
{
    for (int i = 0; i < 4; i++) {
        char *end = NULL;
        shape[i] = (size_t)strtoull(value, &end, 10);
        if (end == value || *end != (i < 3 ? ',' : '\0')) {
            return -1;
        }
        value = end + 1;
    }
    return 0;
}

static int parse_field(ref_case *out, const field *f, const char *value)
{
    char *const at = (char *)out + f->offset;
    char *end = NULL;
    size_t size = 0;
    int word = 0;
    long number = 0;
    double real = 0.0;
    switch (f->kind) {
    case SIZE:
        if (parse_size(value, &size) != 0) {
            return -1;
        }
        memcpy(at, &size, sizeof size);
        return 0;
    case FLAG:
        if ((value[0] != '0' && value[0] != '1') || value[1] != '\0') {
            return -1;
        }
        word = value[0] - '0';
        memcpy(at, &word, sizeof word);
        return 0;
    case LONG:
        number = strtol(value, &end, 10);
        memcpy(at, &number, sizeof number);
        return end == value || *end != '\0' ? -1 : 0;
    case REAL:
        real = strtod(value, &end);
        memcpy(at, &real, sizeof real);
        return end == value || *end != '\0' ? -1 : 0;
    case WORD:
        word = word_index(f->words, value);
        memcpy(at, &word, sizeof word);
        return word < 0 ? -1 : 0;
    case SHAPE:
        return parse_shape(value, out->mask_shape);
    }
    return -1;
}

int ref_case_parse(ref_case *out, const char *text, char *message, size_t message_size)
{
    const size_t count = sizeof FIELDS / sizeof FIELDS[0];
    unsigned long seen = 0;
    char word[128];
    memset(out, 0, sizeof *out);
    while (*text != '\0') {
        const size_t skip = strspn(text, " \t\r\n");
        const size_t length = strcspn(text + skip, " \t\r\n");
        text += skip;
        if (length == 0) {
            break;
        }
        if (length >= sizeof word) {
            snprintf(message, message_size, "case text: word too long");
            return -1;
        }
        memcpy(word, text, length);
        word[length] = '\0';
        text += length;
        char *value = strchr(word, '=');
        size_t i = count;
        if (value != NULL) {
            *value++ = '\0';
            for (i = 0; i < count && strcmp(FIELDS[i].key, word) != 0; i++) {
            }
        }
        if (i == count || parse_field(out, &FIELDS[i], value) != 0) {
            snprintf(message, message_size, "case text: bad \"%s\"", word);
            return -1;
        }
        seen |= 1UL << i;
    }
    if (seen != (1UL << count) - 1) {
        for (size_t i = 0; i < count; i++) {
            if ((seen & (1UL << i)) == 0) {
                snprintf(message, message_size, "case text: \"%s\" missing", FIELDS[i].key);
                return -1;
            }
        }
    }
    return 0;
}

size_t ref_x_rows(const ref_case *c)
{
    return c->queries == REF_QUERIES_ALL ? c->seq_len : c->kv_len;
}

size_t ref_x_row(const ref_case *c, size_t i)
{
    return c->queries == REF_QUERIES_LAST ? c->kv_len - c->seq_len + i : i;
}

ref_sizes ref_case_sizes(const ref_case *c)
{
    ref_sizes n;
    memset(&n, 0, sizeof n);
    const size_t hd = c->heads * c->head_dim, gd = c->kv_heads * c->head_dim;
    const size_t gv = c->kv_heads * c->v_head_dim, hv = c->heads * c->v_head_dim;
    if (c->sdpa) {
        n.q = c->batch * c->seq_len * hd;
        n.k = c->batch * c->kv_len * gd;
        n.v = c->batch * c->kv_len * gv;
        n.y_row = c->v_head_dim;
        n.y = c->batch * c->heads * c->seq_len * n.y_row;
    } else {
        n.x = c->batch * ref_x_rows(c) * c->d_model;
        n.context = c->cross ? c->batch * c->kv_len * c->kv_dim : 0;
        n.q_weight = hd * c->d_model;
        const int given = c->cache == REF_CACHE_STATIC, appends = c->cache == REF_CACHE_APPEND;
        n.k = given ? c->batch * c->kv_len * gd : 0;
        n.v = given ? c->batch * c->kv_len * gv : 0;
        n.k_cache = appends ? c->batch * c->kv_len * gd : 0;
        n.v_cache = appends ? c->batch * c->kv_len * gv : 0;
        n.k_weight = given ? 0 : gd * c->kv_dim;
        n.v_weight = given ? 0 : gv * c->kv_dim;
        n.o_weight = c->output_projection ? c->d_model * hv : 0;
        n.q_bias = c->q_bias ? hd : 0;
        n.k_bias = c->k_bias ? gd : 0;
        n.v_bias = c->v_bias ? gv : 0;
        n.o_bias = c->o_bias ? c->d_model : 0;
        n.y_row = c->output_projection ? c->d_model : hv;
        n.y = c->batch * c->seq_len * n.y_row;
    }
    const size_t mask = c->mask_shape[0] * c->mask_shape[1] * c->mask_shape[2] * c->mask_shape[3];
    n.kv_lengths = c->lengths ? c->batch : 0;
    n.key_keep = c->padding ? c->batch * c->kv_len : 0;
    n.mask_keep = c->bool_mask ? mask : 0;
    n.mask_add = c->additive ? mask : 0;
    if (c->return_weights == REF_WEIGHTS_PER_HEAD) {
        n.weights = c->batch * c->heads * c->seq_len * c->kv_len;
    } else if (c->return_weights == REF_WEIGHTS_MEAN) {
        n.weights = c->batch * c->seq_len * c->kv_len;
    }
    return n;
}
