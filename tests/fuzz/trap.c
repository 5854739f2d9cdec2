/* Signals and floating-point control state around a call; see trap.h. */
#include "fuzz/trap.h"

#include <fenv.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

static sigjmp_buf jump;
static volatile sig_atomic_t caught;
static const void *volatile caught_at;

static const int SIGNALS[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGALRM};
enum { SIGNAL_COUNT = sizeof SIGNALS / sizeof SIGNALS[0] };

static void on_signal(int number, siginfo_t *info, void *context)
{
    (void)context;
    caught = number;
    caught_at = info->si_addr;
    siglongjmp(jump, 1);
}

/* Control bits only: sticky exception flags may change. */
static uint64_t float_state(void)
{
#if defined(__x86_64__)
    uint16_t x87 = 0;
    __asm__ volatile("fnstcw %0" : "=m"(x87));
    return ((uint64_t)x87 << 32) | (_mm_getcsr() & ~0x3FU);
#elif defined(__aarch64__)
    uint64_t fpcr = 0;
    __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
    return fpcr;
#else
    return (uint64_t)fegetround();
#endif
}

trap_report trap_run(void (*function)(void *), void *data, unsigned timeout_seconds)
{
    static unsigned char stack[65536];
    trap_report report = {0, NULL, 0};
    struct sigaction action, old[SIGNAL_COUNT];
    const stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack, .ss_flags = 0};
    stack_t old_stack;
    fenv_t environment;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    sigaltstack(&alternate, &old_stack);
    for (int i = 0; i < SIGNAL_COUNT; i++) {
        sigaction(SIGNALS[i], &action, &old[i]);
    }
    fegetenv(&environment);
    caught = 0;
    const uint64_t before = float_state();
    alarm(timeout_seconds);
    if (sigsetjmp(jump, 1) == 0) {
        function(data);
    }
    alarm(0);
    report.state_changed = float_state() != before;
    report.signal = caught;
    report.address = caught_at;
    fesetenv(&environment);
    for (int i = 0; i < SIGNAL_COUNT; i++) {
        sigaction(SIGNALS[i], &old[i], NULL);
    }
    sigaltstack(&old_stack, NULL);
    return report;
}
