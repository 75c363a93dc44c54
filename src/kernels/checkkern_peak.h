/* Register-only loops that show the arithmetic peak of one core, and one that reads memory; all of a pool's
 * threads in them for a moment. Of such moments checkkern_roof.c takes the best, checkkern_rate.c all. */
#ifndef NYB_KERNELS_CHECKKERN_PEAK_H
#define NYB_KERNELS_CHECKKERN_PEAK_H

#include "kernels/checkkern_rate.h"

/* Does `rounds` rounds and returns the operations done (a multiply-add is two); the result of the arithmetic
 * goes to *sink. */
typedef double checkkern_peak_fn(long rounds, float *sink);

checkkern_peak_fn checkkern_peak_f32_scalar, checkkern_peak_f32_avx2;
/* Products of integers with the additions that they need; 16 bits stand for bf16 (struct operand). */
checkkern_peak_fn checkkern_peak_i16_avx2, checkkern_peak_i8_avx2;
checkkern_peak_fn checkkern_peak_f32_avx512, checkkern_peak_bf16_avx512, checkkern_peak_i8_avx512;
checkkern_peak_fn checkkern_peak_bf16_amx;

/* "alone" asks for nothing ahead, and leaves that to memory's own prefetcher. */
checkkern_read_fn checkkern_read_scalar, checkkern_read_avx2, checkkern_read_avx2_alone;

/* NULL: the level has no such instructions. */
checkkern_peak_fn *checkkern_peak_of(enum cpu_level level, enum checkkern_unit unit);
/* A short round by all threads, those included that sit out: the operations done, and *ns that it took. */
double checkkern_peak_round(struct pool *pool, checkkern_peak_fn *fn, uint64_t *ns);
/* The next n pieces of the stream by all threads, likewise: nanoseconds. */
uint64_t checkkern_stream_read(struct pool *pool, struct checkkern_stream *s, int n);

#endif
