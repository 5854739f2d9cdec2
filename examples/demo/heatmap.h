/* Attention weights as pictures: one square per head, a row per asking token, a column per attended
 * token; for a terminal, for plain text and as SVG. */
#ifndef DEMO_HEATMAP_H
#define DEMO_HEATMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

typedef struct heatmap {
    size_t heads;
    size_t tokens;        /* rows and columns to show */
    size_t stride;        /* rows and columns of one head in `weights` */
    const float *weights; /* [heads, stride, stride] */
    const char *labels;   /* one character per token */
    size_t answer_column; /* where the last row should look */
    const char *caption;  /* plain text, one line */
} heatmap;

/* Prints two heads side by side; with ANSI colours or with ASCII shades. */
void heatmap_print(FILE *out, const heatmap *map, bool colour);

/* Writes an SVG picture that needs no other file. Returns false when that failed. */
bool heatmap_save_svg(const char *path, const heatmap *map);

#endif /* DEMO_HEATMAP_H */
