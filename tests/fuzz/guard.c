/* Guarded buffers on mmap; see guard.h. */
#include "fuzz/guard.h"

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { CANARY = 0xA5, SLACK = 256 }; /* SLACK: room for offsets, alignment and canaries */

static size_t page_size(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

int guard_open(guard *g, const char *name, size_t bytes)
{
    const size_t page = page_size();
    memset(g, 0, sizeof *g);
    g->name = name;
    g->bytes = bytes;
    if (bytes == 0) {
        return 0;
    }
    g->page_bytes = (bytes + SLACK + page - 1) / page * page;
    unsigned char *all =
        mmap(NULL, g->page_bytes + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) {
        return -1;
    }
    g->pages = all + page;
    return mprotect(g->pages, g->page_bytes, PROT_READ | PROT_WRITE);
}

void guard_close(guard *g)
{
    if (g->pages != NULL) {
        munmap(g->pages - page_size(), g->page_bytes + 2 * page_size());
    }
    memset(g, 0, sizeof *g);
}

void *guard_place(guard *g, enum guard_place where, size_t alignment, size_t offset)
{
    if (g->bytes == 0) {
        return NULL;
    }
    size_t at = 0;
    if (where == GUARD_END) {
        at = (g->page_bytes - g->bytes) / alignment * alignment;
    } else if (where == GUARD_MIDDLE) {
        at = 64 + offset;
    }
    memset(g->pages, CANARY, at);
    memset(g->pages + at + g->bytes, CANARY, g->page_bytes - at - g->bytes);
    g->data = g->pages + at;
    return g->data;
}

void guard_protect(guard *g, int read_only)
{
    if (g->bytes != 0) {
        mprotect(g->pages, g->page_bytes, read_only ? PROT_READ : PROT_READ | PROT_WRITE);
    }
}

static int all_canary(const unsigned char *at, size_t n)
{
    return n == 0 || (at[0] == CANARY && memcmp(at, at + 1, n - 1) == 0);
}

int guard_intact(const guard *g)
{
    if (g->bytes == 0) {
        return 1;
    }
    const size_t before = (size_t)(g->data - g->pages);
    return all_canary(g->pages, before) &&
           all_canary(g->data + g->bytes, g->page_bytes - before - g->bytes);
}

int guard_owns(const guard *g, const void *address)
{
    if (g->bytes == 0) {
        return 0;
    }
    const uintptr_t at = (uintptr_t)address, first = (uintptr_t)g->pages - page_size();
    return at >= first && at < (uintptr_t)g->pages + g->page_bytes + page_size();
}
