/* Tensors of an open safetensors file: by number, by name, and what a missing name may mean. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "safetensors_file.h"

static int by_name(const void *a, const void *b)
{
    return strcmp(((const attn_tensor *)a)->name, ((const attn_tensor *)b)->name);
}

size_t attn_safetensors_count(const attn_safetensors *file)
{
    return file->count;
}

const attn_tensor *attn_safetensors_at(const attn_safetensors *file, size_t i)
{
    return i < file->count ? &file->tensors[i] : NULL;
}

const attn_tensor *attn_safetensors_find(const attn_safetensors *file, const char *name)
{
    if (file->count == 0) {
        return NULL;
    }
    const attn_tensor key = {.name = name};
    return bsearch(&key, file->tensors, file->count, sizeof key, by_name);
}

static bool ends_with(const char *text, size_t length, const char *tail, size_t tail_length)
{
    return tail_length <= length && memcmp(text + length - tail_length, tail, tail_length) == 0;
}

#define NAME_LIMIT 128 /* longer names are not compared by edit distance */

/* Edits that turn a into b, or `limit` when it takes that many or more. */
static size_t edit_distance(const char *a, size_t a_length, const char *b, size_t b_length,
                            size_t limit)
{
    size_t row[NAME_LIMIT + 1];
    const size_t gap = a_length > b_length ? a_length - b_length : b_length - a_length;
    if (a_length > NAME_LIMIT || b_length > NAME_LIMIT || gap >= limit) {
        return limit;
    }
    for (size_t j = 0; j <= b_length; j++) {
        row[j] = j;
    }
    for (size_t i = 1; i <= a_length; i++) {
        size_t diagonal = row[0];
        size_t least = row[0] = i;
        for (size_t j = 1; j <= b_length; j++) {
            const size_t swap = diagonal + (a[i - 1] != b[j - 1]);
            const size_t step = 1 + (row[j] < row[j - 1] ? row[j] : row[j - 1]);
            diagonal = row[j];
            row[j] = swap < step ? swap : step;
            least = row[j] < least ? row[j] : least;
        }
        if (least >= limit) {
            return limit;
        }
    }
    return row[b_length] < limit ? row[b_length] : limit;
}

#define SUGGESTIONS 3

typedef struct suggestion {
    const char *name;
    size_t distance;
} suggestion;

/* The names nearest to a missing one, best first. */
static size_t find_nearest(const attn_safetensors *file, const char *name,
                           suggestion best[SUGGESTIONS + 1])
{
    const size_t length = strlen(name);
    size_t found = 0;
    for (size_t i = 0; i < file->count; i++) {
        const char *other = file->tensors[i].name;
        const size_t other_length = strlen(other);
        const size_t limit = found == SUGGESTIONS ? best[found - 1].distance : length / 3 + 1;
        /* More or fewer prefixes are nearer than any misspelling. */
        const bool is_tail = ends_with(other, other_length, name, length) ||
                             ends_with(name, length, other, other_length);
        const size_t distance =
            is_tail ? 0 : edit_distance(name, length, other, other_length, limit);
        if (distance >= limit) {
            continue;
        }
        size_t at = found; /* one slot more than is kept */
        for (; at > 0 && best[at - 1].distance > distance; at--) {
            best[at] = best[at - 1];
        }
        best[at] = (suggestion){other, distance};
        found += found < SUGGESTIONS;
    }
    return found;
}

attn_status attn_safetensors_get(const attn_safetensors *file, const char *name,
                                 const attn_tensor **tensor)
{
    *tensor = attn_safetensors_find(file, name);
    if (*tensor != NULL) {
        return attn_success();
    }
    suggestion best[SUGGESTIONS + 1];
    const size_t found = find_nearest(file, name, best);
    char text[300] = "";
    size_t used = 0;
    for (size_t i = 0; i < found && used < sizeof text; i++) {
        const int put = snprintf(text + used, sizeof text - used, "%s\"%.90s\"",
                                 i == 0 ? "; near: " : ", ", best[i].name);
        used += put > 0 ? (size_t)put : 0;
    }
    return attn_fail(ATTN_E_MISSING, "no tensor \"%.128s\" among the %zu of the file%s", name,
                     file->count, text);
}

char *attn_shape_text(const uint64_t *shape, size_t rank, char text[ATTN_SHAPE_TEXT_BYTES])
{
    size_t used = 1;
    text[0] = '[';
    text[1] = '\0';
    for (size_t i = 0; i < rank && used < ATTN_SHAPE_TEXT_BYTES - 1; i++) {
        const int put = snprintf(text + used, ATTN_SHAPE_TEXT_BYTES - used, "%s%llu",
                                 i == 0 ? "" : ",", (unsigned long long)shape[i]);
        used += put > 0 ? (size_t)put : 0;
    }
    if (used < ATTN_SHAPE_TEXT_BYTES - 1) {
        memcpy(text + used, "]", 2);
    }
    return text;
}
