/* Loads the kernels of tests/cases/list.lua; see case_kernel.h. */
#include "c/case_kernel.h"

#include <criterion/criterion.h>
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz/inputs.h"

const char *const *case_isas(void)
{
    static char text[128];
    static const char *list[8];
    const char *from = getenv("ATTNGEN_CASE_ISAS");
    cr_assert(from != NULL && from[0] != '\0', "run through tests/run.lua");
    snprintf(text, sizeof text, "%s", from);
    size_t n = 0;
    char *rest = text;
    for (char *isa = strtok_r(text, ",", &rest); isa != NULL && n < 7;
         isa = strtok_r(NULL, ",", &rest)) {
        list[n++] = isa;
    }
    list[n] = NULL;
    return list;
}

static void *allocate(size_t bytes, size_t alignment)
{
    void *p = NULL;
    cr_assert_eq(
        posix_memalign(&p, alignment < sizeof(void *) ? sizeof(void *) : alignment, bytes + 1), 0,
        "no memory");
    memset(p, 0xFF, bytes);
    return p;
}

case_kernel case_open(const char *name, const char *isa)
{
    case_kernel k;
    char path[1024], symbol[256];
    const char *dir = getenv("ATTNGEN_CASES");
    memset(&k, 0, sizeof k);
    cr_assert(dir != NULL, "run through tests/run.lua");
    for (int i = 0; i < 2 && k.handle == NULL; i++) {
        snprintf(path, sizeof path, "%s/%s-%s/%s-%s.so", dir, name, isa, isa,
                 i == 0 ? "gcc" : "clang");
        k.handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    cr_assert(k.handle != NULL, "%s for %s: %s", name, isa, dlerror());
    snprintf(symbol, sizeof symbol, "%s_kernel", name);
    k.kernel = dlsym(k.handle, symbol);
    cr_assert(k.kernel != NULL, "no symbol %s", symbol);
    snprintf(symbol, sizeof symbol, "%s_pack", name);
    void *const pack = dlsym(k.handle, symbol);
    memcpy(&k.pack, &pack, sizeof k.pack);
    k.packed = allocate(k.kernel->packed_bytes, k.kernel->alignment);
    k.workspace = allocate(k.kernel->workspace_bytes, k.kernel->alignment);
    k.args.y = allocate(k.kernel->y_elements * sizeof(float), 64);
    k.args.weights = allocate(k.kernel->weights_elements * sizeof(float), 64);
    return k;
}

void case_close(case_kernel *k)
{
    free(k->packed);
    free(k->workspace);
    free(k->args.y);
    free(k->args.weights);
    dlclose(k->handle);
}

void case_run(case_kernel *k, const attn_weights *weights)
{
    if (k->pack != NULL) {
        cr_assert_eq(k->pack(weights, k->packed), ATTN_OK, "%s: pack", k->kernel->name);
    }
    cr_assert_eq(k->kernel->forward(k->packed, &k->args, k->workspace), ATTN_OK, "%s: forward",
                 k->kernel->name);
}

void case_expect(const char *what, const char *isa, const float *got, const double *want, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const double g = (double)got[i];
        const int good =
            isnan(want[i]) ? isnan(g) : fabs(g - want[i]) <= 1e-6 + 1e-5 * fabs(want[i]);
        cr_expect(good, "%s, %s: [%zu] is %.9g, expected %.9g", what, isa, i, g, want[i]);
    }
}

void case_fill(float *at, size_t n, float scale, unsigned long seed)
{
    rng r = {seed};
    for (size_t i = 0; i < n; i++) {
        at[i] = scale * rng_normal(&r);
    }
}
