/* A kernel in a shared library. */
#define _POSIX_C_SOURCE 200809L

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "attngen/run.h"

#define PATH_BYTES 4096
#define SYMBOL_BYTES 256

static const char *dl_reason(void)
{
    const char *reason = dlerror();
    return reason == NULL ? "unknown reason" : reason;
}

static attn_status find_symbols(const char *prefix, attn_library *library)
{
    char name[SYMBOL_BYTES];
    const int length = snprintf(name, sizeof name, "%s_kernel", prefix);
    if (length < 0 || length >= (int)sizeof name) {
        return attn_fail(ATTN_E_ARGUMENT, "the prefix is too long");
    }
    library->kernel = dlsym(library->handle, name);
    if (library->kernel == NULL) {
        return attn_fail(ATTN_E_MISSING, "no symbol %s: %s", name, dl_reason());
    }
    const attn_status status = attn_check_kernel(library->kernel);
    if (status.code != ATTN_OK) {
        return status;
    }
    if (library->kernel->forward == NULL || library->kernel->forward_part == NULL) {
        return attn_fail(ATTN_E_ARGUMENT, "kernel \"%s\" has no forward functions",
                         library->kernel->name);
    }
    if (library->kernel->packed_bytes != 0) {
        snprintf(name, sizeof name, "%s_pack", prefix);
        void *function = dlsym(library->handle, name);
        if (function == NULL) {
            return attn_fail(ATTN_E_MISSING, "no symbol %s: %s", name, dl_reason());
        }
        /* ISO C knows no cast between object and function pointers; POSIX promises this works. */
        memcpy(&library->pack, &function, sizeof function);
    }
    return attn_success();
}

attn_status attn_library_open(const char *path, const char *prefix, attn_library *library)
{
    *library = (attn_library){NULL, NULL, NULL};
    char file[PATH_BYTES];
    /* Without a slash dlopen would search the system's directories. */
    const int length =
        snprintf(file, sizeof file, "%s%s", strchr(path, '/') == NULL ? "./" : "", path);
    if (length < 0 || length >= (int)sizeof file) {
        return attn_fail(ATTN_E_ARGUMENT, "the path is too long");
    }
    library->handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (library->handle == NULL) {
        return attn_fail(ATTN_E_IO, "%s: %s", path, dl_reason());
    }
    const attn_status status = find_symbols(prefix, library);
    if (status.code != ATTN_OK) {
        attn_library_close(library);
        return attn_fail(status.code, "%s: %s", path, status.message);
    }
    return status;
}

void attn_library_close(attn_library *library)
{
    if (library->handle != NULL) {
        dlclose(library->handle);
    }
    *library = (attn_library){NULL, NULL, NULL};
}
