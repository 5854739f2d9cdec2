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

/* A sample is good when nothing else had the core, the product beside it ran at GATE_SHARE of the
 * run's best, and that best at `floor` of the FMA peak; all others are slow and never mixed with the
 * good ones. */
#define GATE_SHARE 0.98
int sample_is_good(const samples *s, const sample *one, double floor);

size_t samples_count_good(const samples *s, double floor);

/* Prints `"NAME": [t, t, …]`, the samples of one kind in microseconds in the order they were taken,
 * and `"NAME_best": t, "NAME_median": t` (null without samples). */
void samples_print(FILE *out, const samples *s, double floor, int good);

double seconds_now(void);

/* How often the scheduler has taken the core from this process. */
long count_preemptions(void);

#endif
