/* The layout inside a KV cache block, and the access to it that is not speed-critical.
 *
 * A block holds a region of keys and one of values for each KV head. With i the dimension and j the token of
 * the block (0..15), keys are laid out so that 16 tokens fill the lanes of a vector, values so that the
 * dimensions do; bf16 and FP8 put the two terms of one vdpbf16ps lane side by side:
 *
 *          key region                            value region (pad = kv_pad(), never read as output)
 *   f32    [d][16]                               [16][pad]
 *   bf16   [d/2][16][2]    2 dimensions a lane   [8][pad][2]   2 tokens a lane
 *   fp8    the same order in bytes, but each 64 bytes are shuffled so that unpacking the low and the high
 *          bytes of every 128-bit lane gives two vectors in order: see kv_fp8_shuffle
 *   i16    as bf16, and behind it [16] floats    as bf16
 *
 * Keys as integers are multiples of a unit of their own, of which the whole key has KV_I16_NORM: so a dot
 * product with a query that is kept alike fits 32 bits, for any number of dimensions, and no element is
 * further off than half a unit: bf16 is further off by a factor of ten, taken over a key of 128 normal
 * numbers. */
#ifndef NYB_KERNELS_KV_H
#define NYB_KERNELS_KV_H

#include "kernels/kernels.h"

#define KV_HEAD_DIM_MAX  1024
#define KV_HEAD_DIM_STEP 8                          /* a head has a multiple of this many dimensions */
#define KV_I16_NORM      32766                      /* below 2^15, and what rounding adds */
#define KV_I16_LEAST     1e-30                      /* a row with a lesser norm is zeros */
#define KV_I16_UNITS     (KV_BLOCK * sizeof(float)) /* bytes at the end of a key region */

int kv_pad(enum kv_type type, int head_dim);            /* value dimensions with padding       */
size_t kv_key_bytes(enum kv_type type, int head_dim);   /* a region of keys                   */
size_t kv_value_bytes(enum kv_type type, int head_dim); /* of values                          */
double kv_norm(const float *x, size_t d);               /* of a row of a head                  */
const char *kv_type_name(enum kv_type type);

/* One token's key and value of one head, (head_dim) each, rounded to the cache's type. */
void kv_store(const struct kv_layer *kv, int32_t slot, int head, const float *k, const float *v);
/* The logical values back: stored * scale. */
void kv_load(const struct kv_layer *kv, int32_t slot, int head, float *k, float *v);

/* Place in a 64-byte group of the element that comes e-th (0..63) after unpacking: 16-bit pairs 4L..4L+3 of
 * the first vector are the low half of lane L, those of the second vector the high half. */
static inline size_t kv_fp8_shuffle(size_t e)
{
    size_t vector = e / 32, lane = e % 32 / 8, byte = e % 8;
    return lane * 16 + vector * 8 + byte;
}

/* Element index of dimension i, token j in a key region. */
static inline size_t kv_key_index(enum kv_type type, size_t i, size_t j)
{
    if (type == KV_F32)
        return i * KV_BLOCK + j;
    size_t e = i / 2 * (2 * KV_BLOCK) + j * 2 + i % 2;
    return type != KV_FP8 ? e : e / 64 * 64 + kv_fp8_shuffle(e % 64);
}

/* Element index of dimension i, token j in a value region. */
static inline size_t kv_value_index(enum kv_type type, size_t pad, size_t i, size_t j)
{
    if (type == KV_F32)
        return j * pad + i;
    size_t e = j / 2 * (2 * pad) + i * 2 + j % 2;
    return type != KV_FP8 ? e : e / 64 * 64 + kv_fp8_shuffle(e % 64);
}

#endif
