/* The double-precision answer of a case, kept in a file: every candidate kernel of one case is
 * judged by the same one, and the large ones take seconds to compute. */
#ifndef ATTNGEN_BENCH_TRUTH_H
#define ATTNGEN_BENCH_TRUTH_H

#include <stdint.h>

#include "reference/ref_case.h"
#include "reference/reference.h"

/* Reads `path` when it holds the answer for this text and seed; otherwise computes and, unless path
 * is NULL, writes it. 0, or -1 without memory. A file that cannot be written is no error. */
int truth_get(ref_result *r, const ref_case *c, const attn_weights *w, const attn_args *a,
              const char *text, uint64_t seed, const char *path);

#endif
