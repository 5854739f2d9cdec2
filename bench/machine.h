/* What the machine can do, measured beside every kernel: FMA peak, an L1-hot product, load
 * bandwidth. machine.c is compiled with an ISA's flags, -DLANES and -DREGISTERS (gen/isa). Every
 * function returns the work it did, in flops or bytes; the caller holds the clock. */
#ifndef ATTNGEN_BENCH_MACHINE_H
#define ATTNGEN_BENCH_MACHINE_H

#include <stddef.h>

enum { MACHINE_SINK = 1024, MACHINE_PRODUCT_FLOATS = 16384 };

/* Nothing but multiply-adds on independent registers; `sink` [MACHINE_SINK] keeps them alive. */
double machine_fma(long turns, float *sink);

/* Share of the FMA peak that the product below reaches in the good state, with a margin. */
extern const double machine_floor;

/* A register-tile matrix product that stays in L1: what any kernel's inner loop looks like. It
 * slows down in machine states that the FMA loop does not notice. `operands` holds
 * MACHINE_PRODUCT_FLOATS floats, `sink` MACHINE_SINK. */
double machine_product(long turns, const float *operands, float *sink);

/* Reads `floats` floats (rounded down to whole turns) once. */
double machine_load(const float *from, size_t floats, float *sink);

#endif
