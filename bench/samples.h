/* Timed samples, each with the state the machine was in. */
#ifndef ATTNGEN_BENCH_SAMPLES_H
#define ATTNGEN_BENCH_SAMPLES_H

#include <stddef.h>
#include <stdio.h>

enum { SAMPLES_MAX = 2000 };

typedef struct sample {
    double seconds; /* of one call */
    double gate;    /* flops per second of the product beside it, the slower of before and after */
    int disturbed;  /* another program had the core meanwhile */
} sample;

typedef struct samples {
    sample all[SAMPLES_MAX];
    size_t count;
    double best_gate; /* of the run */
    double best_peak; /* of the FMA loop */
} samples;

/* A sample is good when the product beside it ran at GATE_SHARE of the run's best, and that best at
 * `floor` of the FMA peak, else slow. Where another program had the core it is neither: disturbed.
 * The three are never mixed; only where nothing else exists disturbed samples stand in for slow. */
#define GATE_SHARE 0.98
typedef enum sample_kind { SAMPLE_GOOD, SAMPLE_SLOW, SAMPLE_DISTURBED } sample_kind;

sample_kind sample_kind_of(const samples *s, const sample *one, double floor);

size_t samples_count(const samples *s, double floor, sample_kind kind);

/* Prints `"PREFIXsamples_us": [t, t, …]`, the samples of one kind in microseconds in the order they
 * were taken, and `"PREFIXbest_us": t, "PREFIXmedian_us": t` (null without samples). */
void samples_print(FILE *out, const samples *s, double floor, sample_kind kind, const char *prefix);

double seconds_now(void);

/* Who had the core: taken before and after, the two tell whether another program did. */
typedef struct core_use {
    double wall, own; /* seconds */
    long preemptions;
} core_use;

core_use core_use_now(void);
int core_was_shared(core_use before, core_use after);

#endif
