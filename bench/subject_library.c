/* A kernel in a shared object, or a BLAS; see subject.h. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "blas_layer.h"
#include "subject.h"

static int open_kernel(subject *s, const subject_options *options, char *message,
                       size_t message_size)
{
    char symbol[192];
    snprintf(symbol, sizeof symbol, "%s_kernel", options->prefix);
    const attn_kernel *kernel = dlsym(s->library, symbol);
    if (kernel == NULL) {
        snprintf(message, message_size, "%s has no symbol %s", options->kernel, symbol);
        return -1;
    }
    snprintf(symbol, sizeof symbol, "%s_pack", options->prefix);
    void *const pack = dlsym(s->library, symbol);
    memcpy(&s->pack, &pack, sizeof s->pack);
    return subject_from_kernel(s, kernel, options->problem, message, message_size);
}

int subject_open(subject *s, const subject_options *options, char *message, size_t message_size)
{
    const char *path = options->kernel != NULL ? options->kernel : options->blas;
    memset(s, 0, sizeof *s);
    if (path == NULL) {
        snprintf(message, message_size, "neither --kernel nor --blas is given");
        return -1;
    }
    s->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (s->library == NULL) {
        snprintf(message, message_size, "%s", dlerror());
        return -1;
    }
    return options->kernel != NULL ? open_kernel(s, options, message, message_size)
                                   : blas_layer_open(s, options, message, message_size);
}
