/* See samples.h. */
#include "samples.h"

#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

static const double SHARED_TIME = 0.005; /* what kernel threads take does no harm */

sample_kind sample_kind_of(const samples *s, const sample *one, double floor)
{
    if (one->disturbed) {
        return SAMPLE_DISTURBED;
    }
    return s->best_gate >= floor * s->best_peak && one->gate >= GATE_SHARE * s->best_gate
               ? SAMPLE_GOOD
               : SAMPLE_SLOW;
}

size_t samples_count(const samples *s, double floor, sample_kind kind)
{
    size_t count = 0;
    for (size_t i = 0; i < s->count; i++) {
        count += (size_t)(sample_kind_of(s, &s->all[i], floor) == kind);
    }
    return count;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void samples_print(FILE *out, const samples *s, double floor, sample_kind kind, const char *prefix)
{
    static double values[SAMPLES_MAX];
    size_t count = 0;
    fprintf(out, "  \"%ssamples_us\": [", prefix);
    for (size_t i = 0; i < s->count; i++) {
        if (sample_kind_of(s, &s->all[i], floor) == kind) {
            fprintf(out, "%s%.9g", count > 0 ? ", " : "", s->all[i].seconds * 1e6);
            values[count++] = s->all[i].seconds * 1e6;
        }
    }
    fprintf(out, "],\n");
    if (count == 0) {
        fprintf(out, "  \"%sbest_us\": null,\n  \"%smedian_us\": null,\n", prefix, prefix);
        return;
    }
    qsort(values, count, sizeof values[0], by_value);
    const double median = (values[(count - 1) / 2] + values[count / 2]) / 2.0;
    fprintf(out, "  \"%sbest_us\": %.9g,\n  \"%smedian_us\": %.9g,\n", prefix, values[0], prefix,
            median);
}

double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

core_use core_use_now(void)
{
    struct rusage usage;
    struct timespec own = {0, 0};
    core_use u = {.preemptions = getrusage(RUSAGE_SELF, &usage) == 0 ? usage.ru_nivcsw : 0};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &own);
    u.own = (double)own.tv_sec + 1e-9 * (double)own.tv_nsec;
    u.wall = seconds_now();
    return u;
}

int core_was_shared(core_use before, core_use after)
{
    const double wall = after.wall - before.wall;
    return after.preemptions != before.preemptions &&
           wall - (after.own - before.own) > SHARED_TIME * wall;
}
