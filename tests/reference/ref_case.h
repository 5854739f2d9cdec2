/* One attention problem as the reference sees it: dimensions and options, read from a text line.
 *
 * The test harness writes the line from the config; nothing here comes from a generated kernel, so
 * a wrong descriptor cannot mislead the reference. */
#ifndef ATTNGEN_REF_CASE_H
#define ATTNGEN_REF_CASE_H

#include <stddef.h>

enum ref_align { REF_TOP_LEFT, REF_BOTTOM_RIGHT, REF_LENGTHS, REF_OFFSET };
enum ref_empty { REF_EMPTY_ZERO, REF_EMPTY_UNIFORM, REF_EMPTY_NAN };
enum ref_queries { REF_QUERIES_ALL, REF_QUERIES_FIRST, REF_QUERIES_LAST };
enum ref_cache { REF_CACHE_NONE, REF_CACHE_APPEND, REF_CACHE_STATIC };
/* Where the kernel applies Wk and Wv: to the keys and values, in Wq and Wo, or between them. */
enum ref_form { REF_PROJECTED, REF_FOLDED, REF_BETWEEN };
enum ref_weights { REF_WEIGHTS_NONE, REF_WEIGHTS_PER_HEAD, REF_WEIGHTS_MEAN };

typedef struct ref_case {
    size_t batch, seq_len, kv_len, heads, kv_heads, head_dim, v_head_dim;
    size_t d_model, kv_dim; /* 0 for sdpa */
    int sdpa, cross, output_projection;
    enum ref_queries queries; /* which rows of x */
    int q_bias, k_bias, v_bias, o_bias;
    double scale;
    int causal, lengths, padding, bool_mask, additive;
    enum ref_align align;
    long offset; /* causal_align as an integer */
    size_t mask_shape[4];
    int zero_padded_queries;
    enum ref_empty empty_row;
    enum ref_weights return_weights;
    enum ref_cache cache;
    int fast; /* accuracy = "fast" */
    /* Equal in exact arithmetic, so these decide rounding errors and the meaning of infinities. */
    enum ref_form keys, values;
} ref_case;

/* Element counts of every tensor of a case; 0 for a tensor the case does not have. */
typedef struct ref_sizes {
    size_t x, context, q, k, v, k_cache, v_cache, kv_lengths, key_keep, mask_keep, mask_add, y,
        weights;
    size_t q_weight, k_weight, v_weight, o_weight, q_bias, k_bias, v_bias, o_bias;
    size_t y_row; /* elements of one query row of y (of one head for sdpa) */
} ref_sizes;

/* Parses "key=value key=value ...". Returns 0, or -1 with a message naming the key. */
int ref_case_parse(ref_case *out, const char *text, char *message, size_t message_size);

ref_sizes ref_case_sizes(const ref_case *c);

/* Rows of x of one item, and which of them is query i. */
size_t ref_x_rows(const ref_case *c);
size_t ref_x_row(const ref_case *c, size_t i);

#endif
