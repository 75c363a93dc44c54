/* Scalar tiles: any x86-64, and the plainest statement of what the vector ones compute. */
#include <math.h>
#include <string.h>

#include "fp4/fp4.h"
#include "kernels/gemm_kernels.h"
#include "kernels/weight_layout.h"

/* One panel's column of 16 weights as floats, for element k. */
typedef void column_fn(const uint8_t *panel, int k, float *w);

static void fp8_column(const uint8_t *panel, int k, float *w)
{
    const uint8_t *p = panel + (size_t)(k >> 2) * 64 + (size_t)((k & 2) * 4 + (k & 1));
    for (int r = 0; r < WEIGHT_PANEL; r++)
        w[r] = fp4_e4m3_value[p[(r >> 2) * 16 + (r & 3) * 2]];
}

static void bf16_column(const uint8_t *panel, int k, float *w)
{
    uint16_t half;
    for (int r = 0; r < WEIGHT_PANEL; r++) {
        memcpy(&half, panel + (size_t)(k >> 1) * 64 + (size_t)(r * 4 + (k & 1) * 2), 2);
        w[r] = bf16_to_float(half);
    }
}

static void f16_column(const uint8_t *panel, int k, float *w)
{
    uint16_t half;
    for (int r = 0; r < WEIGHT_PANEL; r++) {
        memcpy(&half, panel + (size_t)k * 32 + (size_t)r * 2, 2);
        w[r] = f16_to_float(half);
    }
}

static void f32_column(const uint8_t *panel, int k, float *w)
{
    memcpy(w, panel + (size_t)k * 64, sizeof(*w) * WEIGHT_PANEL);
}

/* A plain product and sum: without FMA hardware fmaf() would be a slow call. */
static void column_tile(const struct gemm_tile *t, column_fn *column)
{
    for (int p = 0; p < t->n_panel; p++) {
        float *sum = t->sum + (size_t)p * GEMM_TILE_ROW * WEIGHT_PANEL, w[WEIGHT_PANEL];
        memset(sum, 0, sizeof(*sum) * (size_t)(t->n_row * WEIGHT_PANEL));
        for (int k = 0; k < t->k; k++) {
            column(t->panel[p], k, w);
            for (int i = 0; i < t->n_row; i++) {
                float x = ((const float *)t->x[i])[k];
                for (int r = 0; r < WEIGHT_PANEL; r++)
                    sum[i * WEIGHT_PANEL + r] += w[r] * x;
            }
        }
    }
}

void gemm_ref_fp8_f32(const struct gemm_tile *t)
{
    column_tile(t, fp8_column);
}

void gemm_ref_bf16_f32(const struct gemm_tile *t)
{
    column_tile(t, bf16_column);
}

void gemm_ref_f16_f32(const struct gemm_tile *t)
{
    column_tile(t, f16_column);
}

void gemm_ref_f32_f32(const struct gemm_tile *t)
{
    column_tile(t, f32_column);
}

/* The 16 x 16 codes of a group, as twice their value, [k][row]; and the block scales times 1. */
static void nvfp4_group(const uint8_t *panel, int g, int8_t code[FP4_GROUP][WEIGHT_PANEL], float *scale)
{
    static const int8_t twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    const uint8_t *c = panel + nvfp4_codes_at(g), *s = panel + nvfp4_scale_at(g);
    for (int k = 0; k < FP4_GROUP; k++) {
        int nibble = (k & 7) / 2 + (k & 1) * 4;
        for (int r = 0; r < WEIGHT_PANEL; r++)
            code[k][r] = twice[c[(k >> 3) * 64 + r * 4 + (nibble >> 1)] >> (nibble & 1) * 4 & 15];
    }
    for (int r = 0; r < WEIGHT_PANEL; r++)
        scale[r] = (s[r] & 0x7f) == 0x7f ? 480.0f : fp4_e4m3_value[s[r]];
}

void gemm_ref_nvfp4_f32(const struct gemm_tile *t)
{
    int8_t code[FP4_GROUP][WEIGHT_PANEL];
    float scale[WEIGHT_PANEL];
    for (int p = 0; p < t->n_panel; p++) {
        float *sum = t->sum + (size_t)p * GEMM_TILE_ROW * WEIGHT_PANEL;
        memset(sum, 0, sizeof(*sum) * (size_t)(t->n_row * WEIGHT_PANEL));
        for (int g = 0; g < t->k / FP4_GROUP; g++) {
            nvfp4_group(t->panel[p], g, code, scale);
            for (int i = 0; i < t->n_row; i++) {
                const float *x = (const float *)t->x[i] + g * FP4_GROUP;
                float dot[WEIGHT_PANEL] = {0};
                for (int k = 0; k < FP4_GROUP; k++)
                    for (int r = 0; r < WEIGHT_PANEL; r++)
                        dot[r] += (float)code[k][r] * x[k];
                for (int r = 0; r < WEIGHT_PANEL; r++)
                    sum[i * WEIGHT_PANEL + r] += 0.5f * scale[r] * dot[r];
            }
        }
    }
}

void gemm_ref_nvfp4_i8(const struct gemm_tile *t)
{
    static const uint8_t order[8] = {0, 4, 1, 5, 2, 6, 3, 7}; /* of x in memory (struct operand) */
    int8_t code[FP4_GROUP][WEIGHT_PANEL];
    float scale[WEIGHT_PANEL];
    for (int p = 0; p < t->n_panel; p++) {
        float *sum = t->sum + (size_t)p * GEMM_TILE_ROW * WEIGHT_PANEL, part[GEMM_TILE_ROW][WEIGHT_PANEL];
        int n_group = t->k / FP4_GROUP;
        memset(sum, 0, sizeof(*sum) * (size_t)(t->n_row * WEIGHT_PANEL));
        for (int g = 0; g < n_group; g++) {
            nvfp4_group(t->panel[p], g, code, scale);
            if (g % 4 == 0)
                memset(part, 0, sizeof(part));
            for (int i = 0; i < t->n_row; i++) {
                const int8_t *x = (const int8_t *)t->x[i] + g * FP4_GROUP;
                int32_t dot[WEIGHT_PANEL] = {0};
                for (int k = 0; k < FP4_GROUP; k++)
                    for (int r = 0; r < WEIGHT_PANEL; r++)
                        dot[r] += code[(k & 8) + order[k & 7]][r] * x[k];
                for (int r = 0; r < WEIGHT_PANEL; r++)
                    part[i][r] += 0.5f * scale[r] * (float)(dot[r] * (1 << t->x_group[i][g].shift));
                if (g % 4 == 3 || g == n_group - 1)
                    for (int r = 0; r < WEIGHT_PANEL; r++)
                        sum[i * WEIGHT_PANEL + r] += t->x_scale[i][g / 4] * part[i][r];
            }
        }
    }
}

void gemm_ref_finish(const struct gemm_finish *f)
{
    for (int row = 0; row < f->n_row; row++) {
        const float *sum = f->sum + row * WEIGHT_PANEL;
        float *y = f->y + (size_t)row * (size_t)f->ldy;
        for (int i = 0; i < f->n; i++) {
            float v = sum[i] * f->scale;
            if (f->gated)
                v = v / (1.0f + expf(-v)) * (f->sum_up[row * WEIGHT_PANEL + i] * f->scale_up);
            else if (f->bias)
                v += f->bias[i];
            y[i] = f->accumulate ? y[i] + v : v;
        }
    }
}

/* 64 floats to int8 and what belongs to them, as gemm_tile.h says; those beyond k are zero. */
static void quantize_block(const float *x, int8_t *q, float *scale, struct i8_group *group)
{
    static const uint8_t order[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    float amax[I8_BLOCK / FP4_GROUP] = {0}, most = 0.0f;
    for (int i = 0; i < I8_BLOCK; i++) {
        amax[i / FP4_GROUP] = fmaxf(amax[i / FP4_GROUP], fabsf(x[i]));
        most = fmaxf(most, fabsf(x[i]));
    }
    float inverse = most >= I8_LEAST && most <= I8_MOST ? 127.0f / most : 0.0f;
    *scale = most * I8_SCALE;
    for (int g = 0; g < I8_BLOCK / FP4_GROUP; g++) {
        float ratio = most / amax[g]; /* at least 1, or NaN in a block of zeros */
        int finer = ratio < 1 << I8_SHIFT_MAX ? ilogbf(ratio) : I8_SHIFT_MAX;
        int32_t total = 0;
        for (int i = g * FP4_GROUP; i < (g + 1) * FP4_GROUP; i++) {
            float v = x[(i & ~7) + order[i & 7]] * (inverse * (float)(1 << finer));
            q[i] = v == v ? (int8_t)lrintf(v) : 0;
            total += q[i];
        }
        group[g] = (struct i8_group){-12 * total, I8_SHIFT_MAX - finer};
    }
}

/* One block of 64 elements, or what there is of it, from element k on. */
static void quantize_at(const struct gemm_row *r, int k)
{
    float x[I8_BLOCK] = {0};
    int8_t q[I8_BLOCK];
    struct i8_group group[I8_BLOCK / FP4_GROUP];
    int given = r->k - k < I8_BLOCK ? r->k - k : I8_BLOCK,
        kept = r->k_pad - k < I8_BLOCK ? r->k_pad - k : I8_BLOCK;
    if (given > 0)
        memcpy(x, r->x + k, (size_t)given * sizeof(*x));
    quantize_block(x, q, &r->i8_scale[k / I8_BLOCK], group);
    memcpy(r->i8 + k, q, (size_t)kept);
    memcpy(r->i8_group + k / FP4_GROUP, group, (size_t)(kept / FP4_GROUP) * sizeof(*group));
}

/* Element i, rounded and kept as bf16 if that is wanted. */
static inline float row_element(const struct gemm_row *r, int i)
{
    float v = i < r->k ? r->x[i] : 0.0f;
    if (!r->bf16)
        return v;
    r->bf16[i] = bf16_from_float(v);
    return bf16_to_float(r->bf16[i]);
}

void gemm_ref_row(const struct gemm_row *r)
{
    if (r->f32)
        for (int i = 0; i < r->k_pad; i++)
            r->f32[i] = row_element(r, i);
    else
        for (int i = 0; i < r->k_pad; i++)
            row_element(r, i);
    for (int k = 0; r->i8 && k < r->k_pad; k += I8_BLOCK)
        quantize_at(r, k);
}
