/* See samples.h. */
#include "samples.h"

#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

int sample_is_good(const samples *s, const sample *one, double floor)
{
    return !one->disturbed && s->best_gate >= floor * s->best_peak &&
           one->gate >= GATE_SHARE * s->best_gate;
}

size_t samples_count_good(const samples *s, double floor)
{
    size_t count = 0;
    for (size_t i = 0; i < s->count; i++) {
        count += (size_t)sample_is_good(s, &s->all[i], floor);
    }
    return count;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void samples_print(FILE *out, const samples *s, double floor, int good)
{
    static double values[SAMPLES_MAX];
    const char *prefix = good ? "" : "slow_";
    size_t count = 0;
    fprintf(out, "  \"%ssamples_us\": [", prefix);
    for (size_t i = 0; i < s->count; i++) {
        if (sample_is_good(s, &s->all[i], floor) == good) {
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

long count_preemptions(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? usage.ru_nivcsw : 0;
}
