/* What this CPU and its operating system can execute, and the choice among a kernel's variants. */
#ifndef ATTNGEN_CPU_H
#define ATTNGEN_CPU_H

#include "attngen/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The x86 registers the decision rests on. Fields a CPU cannot answer are 0. */
typedef struct attn_cpuid {
    uint32_t max_leaf;  /* CPUID 0: EAX */
    uint32_t leaf1_ecx; /* CPUID 1: ECX */
    uint32_t leaf7_ebx; /* CPUID 7.0: EBX */
    uint64_t xcr0;      /* XGETBV 0; only read when CPUID 1 reports OSXSAVE */
} attn_cpuid;

/* ATTN_CPU_* for these register values. Pure. A feature counts only when the OS (or hypervisor)
 * saves its registers; ATTN_CPU_AVX512 implies ATTN_CPU_AVX2. */
uint32_t attn_cpu_features_x86(const attn_cpuid *raw);

/* ATTN_CPU_* of this machine. Asks the CPU once: under a hypervisor that takes some 25 us. Safe from
 * any thread. */
uint32_t attn_cpu_features(void);

/* ATTN_E_CPU, naming what is missing, when `features` do not cover kernel->features;
 * ATTN_E_ABI when the kernel is of another interface version. */
attn_status attn_check_features(const attn_kernel *kernel, uint32_t features);

/* attn_check_features for this machine. */
attn_status attn_check_cpu(const attn_kernel *kernel);

/* The first of `n` variants (best first) that `features` can run. `isa` (NULL or "" = no wish)
 * forces the variant of that name; ATTN_E_MISSING or ATTN_E_CPU, naming what there is, when it does
 * not exist or cannot run. On failure *out is NULL. */
attn_status attn_select_isa(const attn_kernel *const *variants, size_t n, uint32_t features,
                            const char *isa, const attn_kernel **out);

/* attn_select_isa with the wish taken from the environment variable ATTN_ISA. */
attn_status attn_select(const attn_kernel *const *variants, size_t n, uint32_t features,
                        const attn_kernel **out);

#ifdef __cplusplus
}
#endif

#endif /* ATTNGEN_CPU_H */
