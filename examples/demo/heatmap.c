#include "heatmap.h"

/* Dark to bright in the 256-colour palette of terminals, and in ASCII. */
static const int COLOURS[] = {234, 235, 17, 54, 90, 126, 162, 203, 209, 215, 222, 230};
static const char SHADES[] = " .:-=+*#%@";

enum { COLOUR_COUNT = sizeof COLOURS / sizeof COLOURS[0], SHADE_COUNT = sizeof SHADES - 1 };

/* Which of `count` steps stands for a weight in [0, 1]. */
static int step_of(float weight, int count)
{
    int step = (int)(weight * (float)count);
    return step < 0 ? 0 : step < count ? step : count - 1;
}

static float weight_at(const heatmap *map, size_t head, size_t row, size_t column)
{
    return map->weights[(head * map->stride + row) * map->stride + column];
}

/* ---- terminal ---- */

static void print_labels(FILE *out, const heatmap *map)
{
    fprintf(out, "    ");
    for (size_t j = 0; j < map->tokens; j++) {
        fprintf(out, "%c ", map->labels[j]);
    }
}

static void print_row(FILE *out, const heatmap *map, size_t head, size_t row, bool colour)
{
    fprintf(out, "  %c ", map->labels[row]);
    for (size_t j = 0; j < map->tokens; j++) {
        float weight = weight_at(map, head, row, j);
        if (colour) {
            fprintf(out, "\x1b[48;5;%dm  ", COLOURS[step_of(weight, COLOUR_COUNT)]);
        } else {
            char shade = SHADES[step_of(weight, SHADE_COUNT)];
            fprintf(out, "%c%c", shade, shade);
        }
    }
    if (colour) {
        fprintf(out, "\x1b[0m");
    }
}

static void print_scale(FILE *out, bool colour)
{
    fprintf(out, "  weight 0 ");
    for (int i = 0; colour && i < COLOUR_COUNT; i++) {
        fprintf(out, "\x1b[48;5;%dm  ", COLOURS[i]);
    }
    fprintf(out, "%s 1\n", colour ? "\x1b[0m" : SHADES);
}

void heatmap_print(FILE *out, const heatmap *map, bool colour)
{
    fprintf(out, "  %s\n  rows: the token that asks, columns: the token it attends to\n",
            map->caption);
    print_scale(out, colour);
    for (size_t first = 0; first < map->heads; first += 2) {
        size_t end = first + 2 < map->heads ? first + 2 : map->heads;
        fprintf(out, "\n");
        for (size_t h = first; h < end; h++) {
            fprintf(out, "    head %-*zu", (int)(2 * map->tokens - 5), h);
        }
        fprintf(out, "\n");
        for (size_t h = first; h < end; h++) {
            print_labels(out, map);
        }
        fprintf(out, "\n");
        for (size_t i = 0; i < map->tokens; i++) {
            for (size_t h = first; h < end; h++) {
                print_row(out, map, h, i, colour);
            }
            fprintf(out, "\n");
        }
    }
}

/* ---- SVG ---- */

enum {
    CELL = 18,   /* pixels */
    LEFT = 52,   /* of a panel: row labels and axis title */
    ABOVE = 52,  /* of a panel: its title and the column labels */
    GAP = 28,    /* behind a panel */
    HEADER = 64, /* of the picture */
    FOOTER = 56  /* of the picture: the colour scale */
};

/* White to dark blue through equal steps of lightness. */
static void svg_colour(float weight, int rgb[3])
{
    static const float stops[][3] = {
        {247, 251, 255}, {198, 219, 239}, {107, 174, 214}, {33, 113, 181}, {8, 29, 88}};
    float position = weight < 0 ? 0 : weight > 1 ? 4 : 4 * weight;
    int i = position < 4 ? (int)position : 3;
    for (int c = 0; c < 3; c++) {
        float mixed = stops[i][c] + (position - (float)i) * (stops[i + 1][c] - stops[i][c]);
        rgb[c] = (int)(mixed + 0.5F);
    }
}

static void svg_rect(FILE *out, int x, int y, int width, int height, float weight)
{
    int rgb[3];
    svg_colour(weight, rgb);
    fprintf(out, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"#%02x%02x%02x\"", x, y,
            width, height, (unsigned)rgb[0], (unsigned)rgb[1], (unsigned)rgb[2]);
}

static void svg_labels(FILE *out, const heatmap *map, int x, int y)
{
    int last = (int)map->tokens - 1;
    for (int i = 0; i <= last; i++) {
        const char *row = i == last ? " class=\"hit\"" : "";
        const char *column = i == (int)map->answer_column ? " class=\"hit\"" : "";
        fprintf(out, "<text x=\"%d\" y=\"%d\"%s>%c</text>\n", x - 10, y + i * CELL + CELL - 5, row,
                map->labels[i]);
        fprintf(out, "<text x=\"%d\" y=\"%d\"%s>%c</text>\n", x + i * CELL + CELL / 2, y - 6,
                column, map->labels[i]);
    }
}

/* One head, with its cells' upper left corner at x, y. */
static void svg_panel(FILE *out, const heatmap *map, size_t head, int x, int y)
{
    int size = (int)map->tokens * CELL;
    fprintf(out, "<text class=\"title\" x=\"%d\" y=\"%d\">head %zu</text>\n", x, y - 36, head);
    fprintf(out, "<text class=\"axis\" x=\"%d\" y=\"%d\">attended token</text>\n", x + size / 2,
            y - 22);
    fprintf(out,
            "<text class=\"axis\" transform=\"translate(%d %d) rotate(-90)\">asking token</text>\n",
            x - 24, y + size / 2);
    svg_labels(out, map, x, y);
    for (size_t i = 0; i < map->tokens; i++) {
        for (size_t j = 0; j < map->tokens; j++) {
            float weight = weight_at(map, head, i, j);
            svg_rect(out, x + (int)j * CELL, y + (int)i * CELL, CELL, CELL, weight);
            fprintf(out, "><title>%c attends to %c: %.3f</title></rect>\n", map->labels[i],
                    map->labels[j], (double)weight);
        }
    }
    fprintf(out, "<rect class=\"frame\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>\n", x, y,
            size, size);
    fprintf(out, "<rect class=\"asked\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>\n", x,
            y + size - CELL, size, CELL);
}

static void svg_scale(FILE *out, int x, int y)
{
    fprintf(out, "<text class=\"left\" x=\"%d\" y=\"%d\">weight 0</text>\n", x, y + 12);
    for (int i = 0; i < 64; i++) {
        svg_rect(out, x + 62 + 3 * i, y, 3, 16, (float)i / 63.0F);
        fprintf(out, "/>\n");
    }
    fprintf(out, "<text class=\"left\" x=\"%d\" y=\"%d\">1</text>\n", x + 62 + 3 * 64 + 6, y + 12);
    fprintf(out, "<rect class=\"asked\" x=\"%d\" y=\"%d\" width=\"24\" height=\"16\"/>\n", x + 300,
            y);
    fprintf(out, "<text class=\"left\" x=\"%d\" y=\"%d\">the key in question</text>\n", x + 332,
            y + 12);
}

static void svg_style(FILE *out)
{
    fprintf(out, "<style>\n"
                 "text { font: 13px monospace; text-anchor: middle; fill: #57606a; }\n"
                 ".hit { font-weight: bold; fill: #c2410c; }\n"
                 ".axis { font: 12px sans-serif; }\n"
                 ".left { font: 13px sans-serif; text-anchor: start; }\n"
                 ".title { font: bold 14px sans-serif; text-anchor: start; fill: #1f2328; }\n"
                 ".frame { fill: none; stroke: #8c959f; }\n"
                 ".asked { fill: none; stroke: #c2410c; stroke-width: 2; }\n"
                 "</style>\n");
}

bool heatmap_save_svg(const char *path, const heatmap *map)
{
    FILE *out = fopen(path, "w");
    if (out == NULL) {
        return false;
    }
    int panel_width = LEFT + (int)map->tokens * CELL + GAP;
    int panel_height = ABOVE + (int)map->tokens * CELL + GAP;
    int columns = map->heads > 1 ? 2 : 1;
    int rows = ((int)map->heads + columns - 1) / columns;
    int width = columns * panel_width + GAP;
    int height = HEADER + rows * panel_height + FOOTER;
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
            "viewBox=\"0 0 %d %d\">\n",
            width, height, width, height);
    svg_style(out);
    fprintf(out, "<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n");
    fprintf(out,
            "<text class=\"title\" x=\"%d\" y=\"30\">Attention weights of the demo model</text>\n",
            GAP);
    fprintf(out, "<text class=\"left\" x=\"%d\" y=\"50\">%s</text>\n", GAP, map->caption);
    for (size_t h = 0; h < map->heads; h++) {
        int column = (int)h % columns;
        int row = (int)h / columns;
        svg_panel(out, map, h, column * panel_width + LEFT + GAP / 2,
                  HEADER + row * panel_height + ABOVE);
    }
    svg_scale(out, GAP, height - FOOTER + 20);
    fprintf(out, "</svg>\n");
    bool written = !ferror(out);
    return fclose(out) == 0 && written;
}
