/* CPU features from crafted registers, the choice among variants, and what a kernel this machine
 * cannot run gets told. */
#include "attngen/cpu.h"
#include "attngen/threads.h"
#include "runtime_support.h"

TestSuite(cpu, .init = make_test_dir, .fini = remove_test_dir);

#define FMA (UINT32_C(1) << 12)
#define OSXSAVE (UINT32_C(1) << 27)
#define AVX (UINT32_C(1) << 28)
#define AVX2 (UINT32_C(1) << 5)
#define F (UINT32_C(1) << 16)
#define DQ (UINT32_C(1) << 17)
#define BW (UINT32_C(1) << 30)
#define VL (UINT32_C(1) << 31)
#define LEAF1 (FMA | OSXSAVE | AVX)
#define LEAF7 (AVX2 | F | DQ | BW | VL)
#define BOTH (ATTN_CPU_AVX2 | ATTN_CPU_AVX512)

Test(cpu, features_need_the_operating_system)
{
    struct {
        const char *what;
        attn_cpuid raw;
        uint32_t wanted;
    } const cases[] = {
        {"everything on", {7, LEAF1, LEAF7, 0xe7}, BOTH},
        {"everything and more", {0x20, UINT32_MAX, UINT32_MAX, UINT64_MAX}, BOTH},
        {"AVX-512 in the CPU, not in the OS", {7, LEAF1, LEAF7, 0x07}, ATTN_CPU_AVX2},
        {"opmask state missing", {7, LEAF1, LEAF7, 0xc7}, ATTN_CPU_AVX2},
        {"upper halves of zmm0-15 missing", {7, LEAF1, LEAF7, 0xa7}, ATTN_CPU_AVX2},
        {"zmm16-31 missing", {7, LEAF1, LEAF7, 0x67}, ATTN_CPU_AVX2},
        {"AVX2 in the CPU, YMM not in the OS", {7, LEAF1, LEAF7, 0x03}, 0},
        {"YMM without XMM", {7, LEAF1, LEAF7, 0xe4}, 0},
        {"no XSAVE at all", {7, FMA | AVX, LEAF7, 0}, 0},
        {"OSXSAVE off, stale XCR0", {7, FMA | AVX, LEAF7, 0xe7}, 0},
        {"no FMA", {7, OSXSAVE | AVX, LEAF7, 0xe7}, 0},
        {"no AVX", {7, OSXSAVE | FMA, LEAF7, 0xe7}, 0},
        {"no AVX2", {7, LEAF1, LEAF7 & ~AVX2, 0xe7}, 0},
        {"no AVX-512", {7, LEAF1, AVX2, 0xe7}, ATTN_CPU_AVX2},
        {"no F", {7, LEAF1, LEAF7 & ~F, 0xe7}, ATTN_CPU_AVX2},
        {"no DQ", {7, LEAF1, LEAF7 & ~DQ, 0xe7}, ATTN_CPU_AVX2},
        {"no BW", {7, LEAF1, LEAF7 & ~BW, 0xe7}, ATTN_CPU_AVX2},
        {"no VL", {7, LEAF1, LEAF7 & ~VL, 0xe7}, ATTN_CPU_AVX2},
        {"leaf 7 not there", {6, LEAF1, LEAF7, 0xe7}, 0},
        {"nothing", {0, 0, 0, 0}, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cr_expect_eq(attn_cpu_features_x86(&cases[i].raw), cases[i].wanted, "%s", cases[i].what);
    }
}

/* The kernel's list of flags leaves out what it has not enabled itself. */
Test(cpu, this_machine_agrees_with_its_kernel)
{
    FILE *info = fopen("/proc/cpuinfo", "r");
    if (info == NULL) {
        printf("skipped: comparison with /proc/cpuinfo: there is none\n");
        return;
    }
    char *line = NULL;
    size_t room = 0;
    uint32_t wanted = 0;
    while (getline(&line, &room, info) > 0) {
        if (strncmp(line, "flags", 5) == 0) {
            const bool avx2 = strstr(line, " avx2") != NULL && strstr(line, " fma") != NULL;
            const bool avx512 = avx2 && strstr(line, " avx512f") && strstr(line, " avx512dq") &&
                                strstr(line, " avx512bw") && strstr(line, " avx512vl");
            wanted = (avx2 ? ATTN_CPU_AVX2 : 0) | (avx512 ? ATTN_CPU_AVX512 : 0);
        } else if (strncmp(line, "Features", 8) == 0 && strstr(line, " asimd") != NULL) {
            wanted = ATTN_CPU_NEON;
        }
    }
    free(line);
    fclose(info);
    cr_assert_eq(attn_cpu_features(), wanted);
}

static int never_called;

static int forward(const void *packed, const attn_args *args, void *workspace)
{
    (void)packed;
    (void)args;
    (void)workspace;
    never_called = 1;
    return ATTN_OK;
}

static attn_kernel make_kernel(const char *name, const char *isa, uint32_t features)
{
    return (attn_kernel){.abi = ATTN_KERNEL_ABI,
                         .name = name,
                         .isa = isa,
                         .features = features,
                         .phases = 1,
                         .alignment = 64,
                         .forward = forward};
}

Test(cpu, what_is_missing_is_named)
{
    attn_kernel kernel = make_kernel("deep", "avx512", ATTN_CPU_AVX512);
    expect_ok(attn_check_features(&kernel, BOTH));
    expect_fail(attn_check_features(&kernel, ATTN_CPU_AVX2), ATTN_E_CPU,
                "\"deep\" (avx512) needs AVX-512 (F, BW, DQ, VL)");
    kernel.features = ATTN_CPU_AVX2;
    expect_fail(attn_check_features(&kernel, 0), ATTN_E_CPU, "AVX2 with FMA");
    kernel.features = ATTN_CPU_NEON;
    expect_fail(attn_check_features(&kernel, BOTH), ATTN_E_CPU, "Advanced SIMD");
    kernel.features = 0;
    expect_ok(attn_check_cpu(&kernel));
    kernel.abi = 3;
    expect_fail(attn_check_cpu(&kernel), ATTN_E_ABI, "interface version 3, this runtime 2");
    expect_fail(attn_check_features(NULL, 0), ATTN_E_NULL, "kernel");
}

/* Never SIGILL: a kernel beyond this machine is refused before its first instruction. */
Test(cpu, a_kernel_beyond_this_machine_is_not_called)
{
    attn_kernel kernel = make_kernel("future", "next", UINT32_C(1) << 31);
    const attn_args args = {0};
    attn_pool *pool;
    expect_fail(attn_check_cpu(&kernel), ATTN_E_CPU, "a feature this runtime does not know");
    expect_fail(attn_forward(NULL, &kernel, NULL, &args, NULL), ATTN_E_CPU, "\"future\"");
    expect_ok(attn_pool_create(2, &pool));
    expect_fail(attn_forward(pool, &kernel, NULL, &args, NULL), ATTN_E_CPU, "\"future\"");
    attn_pool_destroy(pool);
    cr_assert_eq(never_called, 0);
}

Test(cpu, the_best_runnable_variant_is_selected)
{
    const attn_kernel wide = make_kernel("k_avx512", "avx512", ATTN_CPU_AVX512);
    const attn_kernel middle = make_kernel("k_avx2", "avx2", ATTN_CPU_AVX2);
    const attn_kernel plain = make_kernel("k_scalar", "scalar", 0);
    const attn_kernel *const variants[] = {&wide, &middle, &plain};
    const attn_kernel *chosen;
    cr_assert_eq(unsetenv("ATTN_ISA"), 0);
    expect_ok(attn_select(variants, 3, BOTH, &chosen));
    cr_assert_eq(chosen, &wide);
    expect_ok(attn_select(variants, 3, ATTN_CPU_AVX2, &chosen));
    cr_assert_eq(chosen, &middle);
    expect_ok(attn_select(variants, 3, 0, &chosen));
    cr_assert_eq(chosen, &plain);
    expect_fail(attn_select(variants, 2, 0, &chosen), ATTN_E_CPU,
                "cannot run any variant (built: avx512, avx2; usable on this machine: none)");
    cr_assert_null(chosen);
    expect_fail(attn_select(variants, 0, BOTH, &chosen), ATTN_E_CPU, "built: none");

    expect_ok(attn_select_isa(variants, 3, BOTH, "scalar", &chosen));
    cr_assert_eq(chosen, &plain);
    expect_ok(attn_select_isa(variants, 3, ATTN_CPU_AVX2, "", &chosen));
    cr_assert_eq(chosen, &middle);
    expect_fail(attn_select_isa(variants, 3, ATTN_CPU_AVX2, "avx512", &chosen), ATTN_E_CPU,
                "cannot run variant \"avx512\" (built: avx512, avx2, scalar; usable on this "
                "machine: avx2, scalar)");
    expect_fail(attn_select_isa(variants, 3, BOTH, "AVX2", &chosen), ATTN_E_MISSING,
                "no variant \"AVX2\" (built: avx512, avx2, scalar;");
    cr_assert_null(chosen);
}

Test(cpu, the_environment_overrides)
{
    const attn_kernel middle = make_kernel("k_avx2", "avx2", ATTN_CPU_AVX2);
    const attn_kernel plain = make_kernel("k_scalar", "scalar", 0);
    const attn_kernel *const variants[] = {&middle, &plain};
    const attn_kernel *chosen;
    setenv("ATTN_ISA", "scalar", 1);
    expect_ok(attn_select(variants, 2, ATTN_CPU_AVX2, &chosen));
    cr_assert_eq(chosen, &plain);
    setenv("ATTN_ISA", "avx2", 1);
    expect_fail(attn_select(variants, 2, 0, &chosen), ATTN_E_CPU, "ATTN_ISA: ");
    setenv("ATTN_ISA", "sse9", 1);
    expect_fail(attn_select(variants, 2, ATTN_CPU_AVX2, &chosen), ATTN_E_MISSING,
                "ATTN_ISA: there is no variant \"sse9\" (built: avx2, scalar; usable on this "
                "machine: avx2, scalar)");
    setenv("ATTN_ISA", "", 1);
    expect_ok(attn_select(variants, 2, ATTN_CPU_AVX2, &chosen));
    cr_assert_eq(chosen, &middle);
}
