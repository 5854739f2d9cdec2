/* Buffers between inaccessible pages: any access outside the buffer faults or breaks a canary. */
#ifndef ATTNGEN_GUARD_H
#define ATTNGEN_GUARD_H

#include <stddef.h>

enum guard_place {
    GUARD_END,   /* the buffer ends exactly at an inaccessible page */
    GUARD_START, /* the buffer starts right after one */
    GUARD_MIDDLE /* the buffer lies at a chosen offset, canaries on both sides */
};

typedef struct guard {
    const char *name;
    unsigned char *pages; /* accessible part */
    size_t page_bytes;
    unsigned char *data; /* current placement; NULL when the buffer is empty */
    size_t bytes;
} guard;

/* Reserves room for bytes (0: an absent tensor, data stays NULL). 0, or -1 without memory. */
int guard_open(guard *g, const char *name, size_t bytes);
void guard_close(guard *g);

/* Places the buffer and fills everything around it with canaries. Alignment is a power of two;
 * GUARD_END keeps it by leaving canaries behind the buffer; offset is for GUARD_MIDDLE. */
void *guard_place(guard *g, enum guard_place where, size_t alignment, size_t offset);

/* Write-protects or reopens the buffer. */
void guard_protect(guard *g, int read_only);

/* Whether all canaries are intact. */
int guard_intact(const guard *g);

/* Whether the address lies in or next to this buffer's pages. */
int guard_owns(const guard *g, const void *address);

#endif
