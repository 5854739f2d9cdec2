/* Runs a function so that a signal inside it (bad access, illegal instruction, hang) comes back as
 * a value, and tells whether it changed the floating-point control state. */
#ifndef ATTNGEN_TRAP_H
#define ATTNGEN_TRAP_H

typedef struct trap_report {
    int signal;          /* 0: returned normally */
    const void *address; /* faulting address of SIGSEGV and SIGBUS */
    int state_changed;   /* rounding mode, flush-to-zero, exception masks */
} trap_report;

trap_report trap_run(void (*function)(void *), void *data, unsigned timeout_seconds);

#endif
