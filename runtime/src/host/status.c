/* Builds status values; every message ends up as one clean line. */
#include "attngen/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

attn_status attn_success(void)
{
    attn_status status;
    status.code = ATTN_OK;
    status.message[0] = '\0';
    return status;
}

/* Drops a UTF-8 sequence that the buffer's end has cut in two. */
static void trim_partial_character(char *text, size_t length)
{
    size_t start = length;
    while (start > 0 && ((unsigned char)text[start - 1] & 0xc0) == 0x80) {
        start--;
    }
    if (start == 0) {
        return;
    }
    const unsigned char lead = (unsigned char)text[start - 1];
    const size_t wanted = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;
    if (length - (start - 1) < wanted) {
        text[start - 1] = '\0';
    }
}

attn_status attn_fail(int code, const char *format, ...)
{
    attn_status status;
    status.code = code;
    va_list arguments;
    va_start(arguments, format);
    /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): clang-tidy 14 misses the va_start */
    const int length = vsnprintf(status.message, sizeof status.message, format, arguments);
    va_end(arguments);
    if (length < 0) {
        memcpy(status.message, "?", 2);
    } else if ((size_t)length >= sizeof status.message) {
        trim_partial_character(status.message, sizeof status.message - 1);
    }
    for (char *at = status.message; *at != '\0'; at++) {
        if ((unsigned char)*at < 0x20 || *at == 0x7f) {
            *at = '?'; /* names come from files and end up on terminals */
        }
    }
    return status;
}
