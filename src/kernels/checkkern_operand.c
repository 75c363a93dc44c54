/* Checks of prepared activations: rounding, padding, integers and what belongs to them. */
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "fp4/fp4.h"
#include "kernels/checkkern.h"
#include "kernels/checkkern_gemm.h"
#include "kernels/gemm_tile.h"

static const struct i8_block *block_of(const struct operand *op, int row, int i)
{
    return op->i8_block + row * operand_i8_scales(op->k_pad) + i / I8_BLOCK;
}

int checkkern_int8(const struct operand *op, int row, int i)
{
    if (op->i8_block)
        return block_of(op, row, i)->q[i % I8_BLOCK];
    return op->i8[(size_t)row * (size_t)op->k_pad + (size_t)i];
}

int checkkern_int8_bias(const struct operand *op, int row, int i)
{
    if (op->i8_block)
        return block_of(op, row, i)->bias[i % I8_BLOCK / FP4_GROUP];
    return op->i8_group[((size_t)row * (size_t)op->k_pad + (size_t)i) / FP4_GROUP].bias;
}

double checkkern_int8_step(const struct operand *op, int row, int i)
{
    if (op->i8_block) {
        const struct i8_block *b = block_of(op, row, i);
        return ldexp((double)b->scale, I8_SHIFT_MAX - b->finer[i % I8_BLOCK / FP4_GROUP]);
    }
    size_t group = ((size_t)row * (size_t)op->k_pad + (size_t)i) / FP4_GROUP;
    float scale = op->i8_scale[row * operand_i8_scales(op->k_pad) + i / 64];
    return ldexp((double)scale, op->i8_group[group].shift);
}

void checkkern_int8_weights(const struct operand *op, int row, const struct weight *weight, int col, float *w)
{
    int k = weight->k, n_group = k / FP4_GROUP;
    if (!op->i8_block)
        return;
    uint8_t *elements = malloc((size_t)k), *scales = malloc((size_t)n_group);
    weight_read(weight, col, elements, scales);
    for (int g = 0; g < n_group; g++) {
        int most = 1, exponent = scales[g] >> 3 ? scales[g] >> 3 : 1, mantissa = scales[g] - 8 * exponent + 8;
        for (int i = g / 4 * 4; i < n_group && i < g / 4 * 4 + 4; i++)
            most = scales[i] >> 3 > most ? scales[i] >> 3 : most;
        int down = most - exponent, finer = block_of(op, row, g * FP4_GROUP)->finer[g % 4];
        double kept = ldexp(mantissa << 10 >> down >> finer, down + finer - 10);
        for (int i = g * FP4_GROUP; mantissa && i < (g + 1) * FP4_GROUP; i++)
            w[i] *= (float)(kept / mantissa);
    }
    free(elements);
    free(scales);
}

/* 16-bit integers of a group within their step of x, their bytes and bias. */
static void check_i16_group(const struct operand *op, const float *x, size_t at, struct checkkern_report *r)
{
    static const uint8_t order[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    const int16_t *q = op->i16 + at;
    const int8_t *bytes = op->i16_bytes + 2 * at;
    const struct i16_group *g = &op->i16_group[at / FP4_GROUP];
    double most = 0.0;
    int sum = 0;
    for (int i = 0; i < FP4_GROUP; i++)
        most = fmax(most, fabs((double)x[i]));
    for (int i = 0; i < FP4_GROUP; i++) {
        int place = (i & ~7) + order[i & 7];
        double v = q[i] * (double)g->unit, expected = most < (double)I16_LEAST ? 0.0 : (double)x[i];
        sum += q[i];
        checkkern_case(r, checkkern_near(r, v, expected, most / 32000.0 + 1e-300),
                       "i16 of %g is %g, with %g beside it", (double)x[i], v, most);
        checkkern_case(r, 256 * bytes[i] + bytes[FP4_GROUP + i] == q[place], "bytes of i16 %d", q[place]);
    }
    checkkern_case(r, g->bias == -12 * sum, "bias of 16-bit integers that sum up to %d", sum);
}

/* Groups of all sizes, some with one large element, some whose largest would round up to a byte more, three
 * at the least that is kept and at the largest there is; and what is no number stays none. */
static void check_i16(const struct checkkern_env *env, uint64_t *seed, struct checkkern_report *r)
{
    enum { K = 16 * FP4_GROUP };
    float *x = checkkern_make_rows(env->arena, seed, 1, K);
    struct operand op;
    for (int g = 0; g < K / FP4_GROUP; g++) {
        float *group = x + g * FP4_GROUP;
        for (int i = 0; i < FP4_GROUP; i++)
            group[i] = ldexpf(group[i], checkkern_int(seed, -20, 3) + 12 * (g - 6));
        if (g % 4 == 1)
            group[g] = ldexpf(g % 8 == 1 ? 255.99f : -254.01f, 12 * (g - 6));
    }
    x[checkkern_int(seed, 0, FP4_GROUP - 1)] = 0.0f;
    for (int i = 0; i < FP4_GROUP; i++) {
        x[2 * FP4_GROUP + i] = 0.999f * I16_LEAST * checkkern_float(seed);
        x[3 * FP4_GROUP + i] = I16_LEAST * checkkern_float(seed);
        x[4 * FP4_GROUP + i] = FLT_MAX * checkkern_float(seed);
    }
    x[3 * FP4_GROUP + 7] = -I16_LEAST;
    x[4 * FP4_GROUP + 7] = FLT_MAX;
    gemm_prepare_with(gemm_table_for(env->level), env->pool, env->arena, COMPUTE_BF16, x, 1, K, &op);
    for (size_t at = 0; op.i16 && at < K; at += FP4_GROUP)
        check_i16_group(&op, x + at, at, r);
    x[3] = (float)NAN;
    x[FP4_GROUP + 5] = -INFINITY;
    gemm_prepare_with(gemm_table_for(env->level), env->pool, env->arena, COMPUTE_BF16, x, 1, K, &op);
    for (int g = 0; op.i16 && g < 4; g++)
        checkkern_case(r, (op.i16_group[g].unit != op.i16_group[g].unit) == (g < 2), "group %d: unit %g", g,
                       (double)op.i16_group[g].unit);
}

/* Operand forms: exact rounding, zero padding, and integers within half a step. */
bool checkkern_prepare(const struct checkkern_env *env, struct checkkern_report *r)
{
    static const uint8_t order[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    uint64_t seed = env->seed + 3;
    for (int round = 0; round < env->rounds && !r->failed; round++) {
        int m = checkkern_int(&seed, 1, 9), k = checkkern_int(&seed, 1, 150);
        float *x = checkkern_make_rows(env->arena, &seed, m, k);
        for (int i = 0; i < k && i < 16; i++)
            x[i] = 0.0f; /* a group without any scale */
        struct operand op;
        gemm_prepare_with(gemm_table_for(env->level), env->pool, env->arena, COMPUTE_INT8, x, m, k, &op);
        checkkern_case(r, op.k_pad >= k && op.k_pad % 64 == 32, "k=%d: k_pad is %d", k, op.k_pad);
        for (int at = 0; at < m * op.k_pad; at++) {
            int col = at % op.k_pad, q_col = (col & ~7) + order[col & 7], row = at / op.k_pad;
            float v = col < k ? x[row * k + col] : 0.0f, q_v = q_col < k ? x[row * k + q_col] : 0.0f;
            checkkern_case(r, op.bf16[at] == bf16_from_float(v), "k=%d: bf16[%d,%d]", k, row, col);
            if (op.f32)
                checkkern_case(r, op.f32[at] == bf16_to_float(op.bf16[at]), "k=%d: f32[%d,%d]", k, row, col);
            double step = checkkern_int8_step(&op, row, col), q = checkkern_int8(&op, row, col) * step;
            checkkern_case(r, checkkern_near(r, q, (double)q_v, 0.5001 * step + 1e-30),
                           "k=%d: i8[%d,%d] = %g for %g", k, row, col, q, (double)q_v);
            if (col % FP4_GROUP == 0) {
                int sum = 0;
                for (int i = 0; i < FP4_GROUP; i++)
                    sum += checkkern_int8(&op, row, col + i);
                checkkern_case(r, checkkern_int8_bias(&op, row, col) == -12 * sum, "k=%d: bias of group %d",
                               k, at / 16);
            }
        }
        check_i16(env, &seed, r);
        arena_reset(env->arena);
    }
    return !r->failed;
}
