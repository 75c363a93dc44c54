/* The NVFP4 number formats, exact and scalar: the truth that every kernel is tested against.
 *
 * e2m1: sign (bit 3), magnitude index (bits 0-2) of 0 .5 1 1.5 2 3 4 6. Two codes a byte,
 * element 2i in the low nibble. e4m3: the "FN" form, 0x7f and 0xff NaN, no infinity.
 * A weight is value(code) * value(block scale of its 16 elements along K) * global scale (fp32).
 * Sources: OCP Microscaling Formats 1.0 (e2m1), OCP FP8 (e4m3), NVIDIA Model-Optimizer nvfp4_tensor.py. */
#ifndef NYB_FP4_FP4_H
#define NYB_FP4_FP4_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define FP4_GROUP 16 /* elements that share a block scale */

extern const float fp4_e2m1_value[16];  /* code -> value                        */
extern const float fp4_e4m3_value[256]; /* byte -> value, NaN at 0x7f and 0xff  */

uint8_t
fp4_e2m1_from_float(float x); /* nearest, ties to even code, saturates at 6; -0.1 gives code 8; NaN 7 */
uint8_t fp4_e4m3_from_float(float x); /* nearest even, saturates at 448; NaN -> 0x7f                   */

/* codes (n/2) and scales (n/16) of one row of n elements to floats; n a multiple of 16. */
void fp4_dequantize_row(float *dst, const uint8_t *codes, const uint8_t *scales, float global, size_t n);

/* One row, ModelOpt's rule: scale = e4m3(clamp(amax / (6 * global), 2^-9, 448)), an all-zero block gets 1.0.
 */
void fp4_quantize_row(uint8_t *codes, uint8_t *scales, const float *src, float global, size_t n);
/* amax / (6 * 448) over n elements: the global scale of a tensor. 1.0 for all zeros. */
float fp4_global_scale(const float *src, size_t n);

/* What W4A4 hardware does to an activation row: quantize under a fixed input scale, and back.
 * SF = e4m3(min(amax / (6 * input_scale), 448)), q = SF == 0 ? 0 : e2m1(clamp(x / (SF * input_scale))).
 * n may have a tail shorter than 16: it forms a block of its own. */
void fp4_round_trip_row(float *dst, const float *src, float input_scale, size_t n);

/* False when a block scale is NaN over a code that is not zero: such a row has no value. Exporters do leave
 * NaN scales on all-zero blocks (codes 0 and 8), which are fine. *bad_group: the first offending block. n is
 * a multiple of 16. Negative scales pass: their product is well defined. */
bool fp4_row_scales_ok(const uint8_t *codes, const uint8_t *scales, size_t n, size_t *bad_group);

/* bf16 and f16 as bit patterns. */
static inline float bf16_to_float(uint16_t b)
{
    uint32_t u = (uint32_t)b << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
/* Nearest even; NaN stays NaN. */
static inline uint16_t bf16_from_float(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
float f16_to_float(uint16_t h);
uint16_t f16_from_float(float f);

#endif
