/* CPU features, including what the OS has enabled, and the choice among variants. */
#define _POSIX_C_SOURCE 200809L

#include "attngen/cpu.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

/* CPUID and XCR0 bits, Intel SDM volume 1, chapters 13 to 15. */
#define LEAF1_ECX_FMA (UINT32_C(1) << 12)
#define LEAF1_ECX_OSXSAVE (UINT32_C(1) << 27)
#define LEAF1_ECX_AVX (UINT32_C(1) << 28)
#define LEAF7_EBX_AVX2 (UINT32_C(1) << 5)
#define LEAF7_EBX_AVX512F (UINT32_C(1) << 16)
#define LEAF7_EBX_AVX512DQ (UINT32_C(1) << 17)
#define LEAF7_EBX_AVX512BW (UINT32_C(1) << 30)
#define LEAF7_EBX_AVX512VL (UINT32_C(1) << 31)
#define XCR0_XMM_YMM UINT64_C(0x06)
#define XCR0_OPMASK_ZMM UINT64_C(0xe0)

static bool has_all(uint64_t value, uint64_t wanted)
{
    return (value & wanted) == wanted;
}

uint32_t attn_cpu_features_x86(const attn_cpuid *raw)
{
    uint32_t features = 0;
    const bool has_avx2 =
        raw->max_leaf >= 7 &&
        has_all(raw->leaf1_ecx, LEAF1_ECX_FMA | LEAF1_ECX_OSXSAVE | LEAF1_ECX_AVX) &&
        has_all(raw->leaf7_ebx, LEAF7_EBX_AVX2) && has_all(raw->xcr0, XCR0_XMM_YMM);
    if (has_avx2) {
        features |= ATTN_CPU_AVX2;
        if (has_all(raw->leaf7_ebx, LEAF7_EBX_AVX512F | LEAF7_EBX_AVX512DQ | LEAF7_EBX_AVX512BW |
                                        LEAF7_EBX_AVX512VL) &&
            has_all(raw->xcr0, XCR0_OPMASK_ZMM)) {
            features |= ATTN_CPU_AVX512;
        }
    }
    return features;
}

#if defined(__x86_64__) || defined(__i386__)

static uint32_t ask_cpu(void)
{
    attn_cpuid raw = {0, 0, 0, 0};
    uint32_t eax, ebx, ecx, edx;
    raw.max_leaf = (uint32_t)__get_cpuid_max(0, NULL); /* int in clang's header */
    if (raw.max_leaf >= 1) {
        __cpuid(1, eax, ebx, ecx, edx);
        raw.leaf1_ecx = ecx;
    }
    if (raw.max_leaf >= 7) {
        __cpuid_count(7, 0, eax, ebx, ecx, edx);
        raw.leaf7_ebx = ebx;
    }
    if (raw.leaf1_ecx & LEAF1_ECX_OSXSAVE) { /* else XGETBV itself is an illegal instruction */
        __asm__ volatile("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
        raw.xcr0 = (uint64_t)edx << 32 | eax;
    }
    return attn_cpu_features_x86(&raw);
}

#elif defined(__aarch64__)

static uint32_t ask_cpu(void)
{
#if defined(__linux__)
    const unsigned long asimd = 1ul << 1; /* HWCAP_ASIMD */
    return (getauxval(AT_HWCAP) & asimd) != 0 ? ATTN_CPU_NEON : 0;
#else
    return ATTN_CPU_NEON; /* part of the base architecture */
#endif
}

#else

static uint32_t ask_cpu(void)
{
    return 0;
}

#endif

/* Features are known once this bit is there too; whoever asks first, the answer is the same. */
#define ASKED (UINT32_C(1) << 31)

uint32_t attn_cpu_features(void)
{
    static _Atomic uint32_t answer;
    uint32_t known = atomic_load_explicit(&answer, memory_order_relaxed);
    if ((known & ASKED) == 0) {
        known = ask_cpu() | ASKED;
        atomic_store_explicit(&answer, known, memory_order_relaxed);
    }
    return known & ~ASKED;
}

static const struct {
    uint32_t bit;
    const char *name;
} FEATURES[] = {
    {ATTN_CPU_AVX2, "AVX2 with FMA"},
    {ATTN_CPU_AVX512, "AVX-512 (F, BW, DQ, VL)"},
    {ATTN_CPU_NEON, "AArch64 Advanced SIMD"},
};

attn_status attn_check_features(const attn_kernel *kernel, uint32_t features)
{
    if (kernel == NULL) {
        return attn_fail(ATTN_E_NULL, "kernel is NULL");
    }
    if (kernel->abi != ATTN_KERNEL_ABI) {
        return attn_fail(ATTN_E_ABI, "kernel has interface version %u, this runtime %u",
                         (unsigned)kernel->abi, (unsigned)ATTN_KERNEL_ABI);
    }
    const uint32_t missing = kernel->features & ~features;
    if (missing == 0) {
        return attn_success();
    }
    const char *name = "a feature this runtime does not know";
    for (size_t i = 0; i < sizeof FEATURES / sizeof FEATURES[0]; i++) {
        if (missing & FEATURES[i].bit) {
            name = FEATURES[i].name;
        }
    }
    return attn_fail(ATTN_E_CPU,
                     "kernel \"%s\" (%s) needs %s: the CPU lacks it, or the OS or hypervisor has "
                     "not enabled it",
                     kernel->name, kernel->isa, name);
}

attn_status attn_check_cpu(const attn_kernel *kernel)
{
    return attn_check_features(kernel, attn_cpu_features());
}

/* "avx2, scalar": the variants that `features` can run, or all of them. */
static void list_variants(const attn_kernel *const *variants, size_t n, uint32_t features, bool all,
                          char *text, size_t room)
{
    size_t used = 0;
    snprintf(text, room, "none");
    for (size_t i = 0; i < n; i++) {
        if (used < room && (all || attn_check_features(variants[i], features).code == ATTN_OK)) {
            const int put =
                snprintf(text + used, room - used, "%s%s", used == 0 ? "" : ", ", variants[i]->isa);
            used += put > 0 ? (size_t)put : 0;
        }
    }
}

attn_status attn_select_isa(const attn_kernel *const *variants, size_t n, uint32_t features,
                            const char *isa, const attn_kernel **out)
{
    *out = NULL;
    const bool wished = isa != NULL && isa[0] != '\0';
    bool exists = false;
    for (size_t i = 0; i < n; i++) {
        if (wished && strcmp(variants[i]->isa, isa) != 0) {
            continue;
        }
        exists = true;
        if (attn_check_features(variants[i], features).code == ATTN_OK) {
            *out = variants[i];
            return attn_success();
        }
    }
    char built[128];
    char usable[128];
    list_variants(variants, n, features, true, built, sizeof built);
    list_variants(variants, n, features, false, usable, sizeof usable);
    if (wished && !exists) {
        return attn_fail(ATTN_E_MISSING,
                         "there is no variant \"%s\" (built: %s; usable on this machine: %s)", isa,
                         built, usable);
    }
    return attn_fail(ATTN_E_CPU,
                     "this machine cannot run %s%s%s (built: %s; usable on this machine: %s)",
                     wished ? "variant \"" : "any variant", wished ? isa : "", wished ? "\"" : "",
                     built, usable);
}

attn_status attn_select(const attn_kernel *const *variants, size_t n, uint32_t features,
                        const attn_kernel **out)
{
    const char *wish = getenv("ATTN_ISA");
    attn_status status = attn_select_isa(variants, n, features, wish, out);
    if (status.code != ATTN_OK && wish != NULL && wish[0] != '\0') {
        return attn_fail(status.code, "ATTN_ISA: %s", status.message);
    }
    return status;
}
