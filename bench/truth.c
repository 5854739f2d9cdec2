/* See truth.h. The file: a header, then each output and its tolerances as doubles of this machine. */
#include "truth.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct header {
    char magic[8];
    uint64_t hash, y, weights, k_cache, v_cache;
} header;

static uint64_t hash_text(const char *text, uint64_t seed)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325) ^ seed;
    for (; *text != '\0'; text++) {
        hash = (hash ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    }
    return hash;
}

typedef struct block {
    double *at;
    size_t n;
} block;

enum { BLOCKS = 8 };

static void list_blocks(const ref_result *r, block out[BLOCKS])
{
    out[0] = (block){r->y, r->sizes.y};
    out[1] = (block){r->y_tol, r->sizes.y};
    out[2] = (block){r->weights, r->sizes.weights};
    out[3] = (block){r->weights_tol, r->sizes.weights};
    out[4] = (block){r->k_cache, r->sizes.k_cache};
    out[5] = (block){r->k_cache_tol, r->sizes.k_cache};
    out[6] = (block){r->v_cache, r->sizes.v_cache};
    out[7] = (block){r->v_cache_tol, r->sizes.v_cache};
}

static int read_file(ref_result *r, const header *expected, const char *path)
{
    header found;
    block blocks[BLOCKS];
    list_blocks(r, blocks);
    FILE *file = path != NULL ? fopen(path, "rb") : NULL;
    int ok = file != NULL && fread(&found, sizeof found, 1, file) == 1 &&
             memcmp(&found, expected, sizeof found) == 0;
    for (int i = 0; ok && i < BLOCKS; i++) {
        ok = blocks[i].n == 0 ||
             fread(blocks[i].at, sizeof(double), blocks[i].n, file) == blocks[i].n;
    }
    if (file != NULL) {
        fclose(file);
    }
    return ok;
}

/* Complete or not at all: another probe may be reading. */
static void write_file(const ref_result *r, const header *h, const char *path)
{
    const size_t size = strlen(path) + 32;
    char *temporary = malloc(size);
    block blocks[BLOCKS];
    list_blocks(r, blocks);
    if (temporary == NULL) {
        return;
    }
    snprintf(temporary, size, "%s.%ld.tmp", path, (long)getpid());
    FILE *file = fopen(temporary, "wb");
    int ok = file != NULL && fwrite(h, sizeof *h, 1, file) == 1;
    for (int i = 0; ok && i < BLOCKS; i++) {
        ok = blocks[i].n == 0 ||
             fwrite(blocks[i].at, sizeof(double), blocks[i].n, file) == blocks[i].n;
    }
    if (file != NULL) {
        ok = fclose(file) == 0 && ok;
        if (!ok || rename(temporary, path) != 0) {
            remove(temporary);
        }
    }
    free(temporary);
}

int truth_get(ref_result *r, const ref_case *c, const attn_weights *w, const attn_args *a,
              const char *text, uint64_t seed, const char *path)
{
    header h;
    if (ref_alloc(r, c) != 0) {
        return -1;
    }
    memset(&h, 0, sizeof h);
    memcpy(h.magic, "attntrue", sizeof h.magic);
    h.hash = hash_text(text, seed);
    h.y = r->sizes.y;
    h.weights = r->sizes.weights;
    h.k_cache = r->sizes.k_cache;
    h.v_cache = r->sizes.v_cache;
    if (!read_file(r, &h, path)) {
        ref_run(c, w, a, r);
        if (path != NULL) {
            write_file(r, &h, path);
        }
    }
    return 0;
}
