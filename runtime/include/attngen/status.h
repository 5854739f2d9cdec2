/* Status of every runtime call: a code and a message for people. */
#ifndef ATTNGEN_STATUS_H
#define ATTNGEN_STATUS_H

#include "attngen/kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Codes of the runtime; 0 .. 15 are the kernel's own (kernel.h). */
enum {
    ATTN_E_ARGUMENT = 16,  /* the call itself makes no sense */
    ATTN_E_IO = 17,        /* the operating system refused to open, read or write */
    ATTN_E_MEMORY = 18,    /* out of memory, or a size beyond the address space */
    ATTN_E_FORMAT = 19,    /* the file or blob is damaged, truncated or something else */
    ATTN_E_MISSING = 20,   /* a tensor, symbol or family of that name does not exist */
    ATTN_E_SHAPE = 21,     /* a tensor has another shape than wanted */
    ATTN_E_DTYPE = 22,     /* a tensor's dtype cannot be converted to the wanted one */
    ATTN_E_RANGE = 23,     /* a value lies outside its range */
    ATTN_E_CPU = 24,       /* the CPU, or the OS on it, lacks a feature the kernel executes */
    ATTN_E_ABI = 25,       /* made for another version of the interface */
    ATTN_E_LAYOUT = 26,    /* a packed blob of another kernel */
    ATTN_E_CHECKSUM = 27,  /* a packed blob whose bytes have changed */
    ATTN_E_SYSTEM = 28,    /* a thread or process could not be started, or failed */
    ATTN_E_BYTE_ORDER = 29 /* little-endian data asked to be used in place on a big-endian host */
};

#define ATTN_MESSAGE_BYTES 512

typedef struct attn_status {
    int code;                         /* ATTN_OK or ATTN_E_* */
    char message[ATTN_MESSAGE_BYTES]; /* one line, no control characters; empty when ATTN_OK */
} attn_status;

/* One constant sentence per code, never NULL. Freestanding (src/edge). */
const char *attn_error_text(int code);

/* The status of success. */
attn_status attn_success(void);

/* A failure with a printf-style message; control characters become '?'. A message that is too long
 * is cut at a character border. */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
attn_status
attn_fail(int code, const char *format, ...);

#ifdef __cplusplus
}
#endif

#endif /* ATTNGEN_STATUS_H */
