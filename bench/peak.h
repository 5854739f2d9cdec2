/* FMA peak, measured beside every kernel. */
#ifndef ATTNGEN_BENCH_PEAK_H
#define ATTNGEN_BENCH_PEAK_H

/* Runs `turns` turns of a loop of nothing but fused multiply-adds and returns their flops; `sink`
 * holds 16 floats and keeps the loop from being dropped. */
double fma_peak_flops(long turns, float *sink);

#endif
