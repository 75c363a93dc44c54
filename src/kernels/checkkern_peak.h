/* Register-only loops that show the arithmetic peak of one core. Each does `rounds` rounds and returns the
 * floating-point operations done (a multiply-add is two); the result of the arithmetic goes to *sink. */
#ifndef NYB_KERNELS_CHECKKERN_PEAK_H
#define NYB_KERNELS_CHECKKERN_PEAK_H

#include <stddef.h>
#include <stdint.h>

typedef double checkkern_peak_fn(long rounds, float *sink);

checkkern_peak_fn checkkern_peak_f32_scalar, checkkern_peak_f32_avx2;
/* Products of integers with the additions that they need; 16 bits stand for bf16 (struct operand). */
checkkern_peak_fn checkkern_peak_i16_avx2, checkkern_peak_i8_avx2;
checkkern_peak_fn checkkern_peak_f32_avx512, checkkern_peak_bf16_avx512, checkkern_peak_i8_avx512;
checkkern_peak_fn checkkern_peak_bf16_amx;

/* Read n words, a multiple of 32, and fold them into one. */
typedef uint64_t checkkern_read_fn(const uint64_t *data, size_t n);
checkkern_read_fn checkkern_read_scalar, checkkern_read_avx2;

#endif
