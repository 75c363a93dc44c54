/* Grouped matrix products: the one entry through which every linear layer goes.
 *
 * A call carries any number of jobs (q, k and v; or the gate and up of all active experts), cut into
 * (job, panel range) items that the pool's workers draw by ticket.
 *
 * Contract: an output row depends on its own input row, the weight and the compute mode alone, bit for bit,
 * whatever m, the other jobs and the number of threads are: sums over K run in one fixed order that the
 * one-row and the many-row kernels share. */
#ifndef NYB_KERNELS_GEMM_H
#define NYB_KERNELS_GEMM_H

#include "base/arena.h"
#include "base/pool.h"
#include "kernels/weight.h"

/* How operands are rounded before they are multiplied; sums are fp32 (int32 within a group of 16 for int8).
 */
enum compute {
    COMPUTE_BF16,   /* activations to bf16, or to 16 bits that err less: the default           */
    COMPUTE_STRICT, /* fp32 throughout: the truth for tests                                    */
    COMPUTE_INT8,   /* activations to int8, a power of two for each 16: faster, under 1 % error */
    COMPUTE_W4A4,   /* strict, but the input of every NVFP4 matrix goes through fp4_round_trip_row */
    COMPUTE_COUNT
};
const char *compute_name(enum compute c);

/* 16 elements of an int8 operand. */
struct i8_group {
    int32_t bias;  /* -12 * their sum, as unsigned weights need it */
    int32_t shift; /* 0 .. 8                                       */
};

/* 64 elements of an int8 operand with all that belongs to them, as AVX-512 reads them: one stream a row.
 * x = q * 2^-finer * amax / 127. */
struct i8_block {
    int8_t q[64];      /* each 8 in the order k = 0 4 1 5 2 6 3 7                      */
    int32_t bias[4];   /* of each 16: -12 * their sum                                  */
    uint16_t finer[4]; /* of each 16: 0 .. 8                                           */
    float scale;       /* of all 64: amax / 127 * 2^-8                                 */
};

/* 16 elements of an operand of 16-bit integers. */
struct i16_group {
    float unit;   /* x = integer * unit, a power of two; NaN where an element is infinite or no number */
    int32_t bias; /* -12 * the sum of the integers                                                     */
};

/* Activations, prepared once and used by several jobs. Made by gemm_prepare. Rows are k_pad elements apart
 * and zero from k on. */
struct operand {
    int m, k;
    int k_pad;            /* a multiple of 32; of what is made an odd one, so that rows do not meet in one
                           * cache set */
    const float *f32;     /* (m, k_pad); its values are bf16 unless strict or w4a4. NULL where weights of BF16
                           * are multiplied with bf16: gemm_run makes floats of those if it needs them */
    const uint16_t *bf16; /* (m, k_pad): bf16 and int8 modes                                       */
    const int8_t *i8;     /* (m, k_pad): int8 mode; each 8 in the order k = 0 4 1 5 2 6 3 7. NULL where
                           * the same is in blocks                                                 */
    /* x = i8 * 2^shift * i8_scale: a scale for each 64, in which each 16 have a power of two of their own
     */
    const float *i8_scale;           /* (m, operand_i8_scales(k_pad)) */
    const struct i8_group *i8_group; /* (m, k_pad / 16)               */
    const struct i8_block *i8_block; /* (m, operand_i8_scales(k_pad)) */
    /* bf16 mode where the processor multiplies 16-bit integers faster than floats, for NVFP4 in place of
     * bf16: each 16 with a power of two of their own as unit, so that none is off by more than 1/32000 of the
     * largest of them (bf16: 1/512 of itself). Groups whose largest is below I16_LEAST are zero. */
    const int16_t *i16; /* (m, k_pad)                                                                    */
    const int8_t
        *i16_bytes; /* (m, k_pad / 16, 2, 16): the same as 256 * first + second, in the order of i8 */
    const struct i16_group *i16_group; /* (m, k_pad / 16)                                              */
};

#define I16_LEAST 0x1p-80f

static inline int operand_i8_scales(int k_pad)
{
    return (k_pad + 63) / 64;
}

struct gemm_job {
    const struct weight *w;  /* (n, k)                                                     */
    const struct weight *up; /* NULL; or (n, k): y = silu(w x + bias) * (up x), gate is w  */
    const struct operand *x;
    const int32_t *row; /* (m) rows of x; NULL: rows 0..m-1                           */
    int m;
    float *y;          /* (m, ldy) fp32                                              */
    uint16_t *rounded; /* NULL; or rows of a gemm_operand_open, instead of y                */
    int ldy;           /* of rounded: the operand's k_pad                                   */
    const float *bias; /* (n) or NULL; not with `up`                                 */
    bool accumulate;   /* y += instead of y =                                        */
};

/* x (m, k) to the operand form of `mode`; memory comes from the arena, work runs on the pool. */
void gemm_prepare(struct pool *pool, struct arena *arena, enum compute mode, const float *x, int m, int k,
                  struct operand *out);
/* The same for rows as they become known: the memory, and then row i of x (k). */
void gemm_prepare_open(struct arena *arena, enum compute mode, int m, int k, struct operand *out);
void gemm_prepare_row(const struct operand *op, int i, const float *x);
/* Rows of floats (m, k) as an operand of strict products, in place; false where k is no multiple of 32. */
bool gemm_operand_floats(const float *x, int m, int k, struct operand *out);
/* An operand whose rows products write themselves (gemm_job.rounded), as gemm_prepare would make them of y:
 * false, and none, where `mode` wants more of an operand on this machine than bf16. */
bool gemm_operand_open(struct arena *arena, enum compute mode, int m, int k, struct operand *out);
/* Row i of it, to be written. */
uint16_t *gemm_operand_row(const struct operand *x, int i);
void gemm_run(struct pool *pool, struct arena *scratch, enum compute mode, const struct gemm_job *job,
              int n_job);

#endif
