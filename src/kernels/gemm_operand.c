/* Activations as products want them: made of fp32 rows, or written by the products before. */
#include "fp4/fp4.h"
#include "kernels/gemm.h"
#include "kernels/gemm_tile.h"

#define GRAIN 4096 /* elements that make a ticket worth drawing */

struct prepare {
    gemm_row_fn *fn;
    const float *x;
    const struct operand *op;
};

static void prepare_row(gemm_row_fn *fn, const struct operand *op, int i, const float *x)
{
    size_t at = (size_t)i * (size_t)op->k_pad;
    struct gemm_row row = {.x = x, .k = op->k, .k_pad = op->k_pad};
    /* The operand's fields are const for its readers; the memory is ours. */
    if (op->f32)
        row.f32 = (float *)(uintptr_t)op->f32 + at;
    if (op->bf16)
        row.bf16 = (uint16_t *)(uintptr_t)op->bf16 + at;
    if (op->i8) {
        row.i8 = (int8_t *)(uintptr_t)op->i8 + at;
        row.i8_scale = (float *)(uintptr_t)op->i8_scale + (size_t)i * (size_t)operand_i8_scales(op->k_pad);
        row.i8_group = (struct i8_group *)(uintptr_t)op->i8_group + at / FP4_GROUP;
    }
    if (op->i8_block)
        row.i8_block =
            (struct i8_block *)(uintptr_t)op->i8_block + (size_t)i * (size_t)operand_i8_scales(op->k_pad);
    if (op->i16) {
        row.i16 = (int16_t *)(uintptr_t)op->i16 + at;
        row.i16_bytes = (int8_t *)(uintptr_t)op->i16_bytes + 2 * at;
        row.i16_group = (struct i16_group *)(uintptr_t)op->i16_group + at / FP4_GROUP;
    }
    fn(&row);
}

static void prepare_rows(void *arg, int begin, int end, int worker)
{
    (void)worker;
    const struct prepare *p = arg;
    for (int i = begin; i < end; i++)
        prepare_row(p->fn, p->op, i, p->x + (size_t)i * (size_t)p->op->k);
}

static int padded(int k)
{
    return ((k + 31) / 32 | 1) * 32;
}

static void open_with(const struct gemm_table *table, struct arena *arena, enum compute mode, int m, int k,
                      struct operand *out)
{
    int k_pad = padded(k);
    size_t n = (size_t)m * (size_t)k_pad;
    *out = (struct operand){.m = m, .k = k, .k_pad = k_pad};
    if (mode == COMPUTE_BF16 || mode == COMPUTE_INT8)
        out->bf16 = arena_alloc(arena, n, sizeof(uint16_t));
    if (!out->bf16 || gemm_form_for(table, WEIGHT_BF16, mode) != GEMM_BF16)
        out->f32 = arena_alloc(arena, n, sizeof(float));
    size_t n_block = (size_t)m * (size_t)operand_i8_scales(k_pad);
    if (gemm_form_for(table, WEIGHT_NVFP4, mode) == GEMM_I8B)
        out->i8_block = arena_alloc(arena, n_block, sizeof(struct i8_block));
    if (gemm_form_for(table, WEIGHT_NVFP4, mode) == GEMM_I8) {
        out->i8 = arena_alloc(arena, n, 1);
        out->i8_scale = arena_alloc(arena, n_block, sizeof(float));
        out->i8_group = arena_alloc(arena, n / FP4_GROUP, sizeof(struct i8_group));
    }
    if (gemm_form_for(table, WEIGHT_NVFP4, mode) == GEMM_I16) {
        out->i16 = arena_alloc(arena, n, sizeof(int16_t));
        out->i16_bytes = arena_alloc(arena, n, 2);
        out->i16_group = arena_alloc(arena, n / FP4_GROUP, sizeof(struct i16_group));
    }
}

void gemm_prepare_with(const struct gemm_table *table, struct pool *pool, struct arena *arena,
                       enum compute mode, const float *x, int m, int k, struct operand *out)
{
    open_with(table, arena, mode, m, k, out);
    struct prepare p = {table->row, x, out};
    int grain = GRAIN / out->k_pad;
    pool_range(pool, m, grain > 0 ? grain : 1, prepare_rows, &p);
}

void gemm_prepare(struct pool *pool, struct arena *arena, enum compute mode, const float *x, int m, int k,
                  struct operand *out)
{
    gemm_prepare_with(gemm_table_for(cpu_level()), pool, arena, mode, x, m, k, out);
}

void gemm_prepare_open(struct arena *arena, enum compute mode, int m, int k, struct operand *out)
{
    open_with(gemm_table_for(cpu_level()), arena, mode, m, k, out);
}

void gemm_prepare_row(const struct operand *op, int i, const float *x)
{
    prepare_row(gemm_table_for(cpu_level())->row, op, i, x);
}

bool gemm_operand_floats(const float *x, int m, int k, struct operand *out)
{
    *out = (struct operand){.m = m, .k = k, .k_pad = k, .f32 = x};
    return k % 32 == 0;
}

bool gemm_operand_open_with(const struct gemm_table *table, struct arena *arena, enum compute mode, int m,
                            int k, struct operand *out)
{
    if (mode != COMPUTE_BF16 || gemm_form_for(table, WEIGHT_BF16, mode) != GEMM_BF16 ||
        gemm_form_for(table, WEIGHT_NVFP4, mode) != GEMM_BF16)
        return false;
    *out = (struct operand){.m = m, .k = k, .k_pad = padded(k)};
    out->bf16 = arena_alloc(arena, (size_t)m * (size_t)out->k_pad, sizeof(uint16_t));
    return true;
}

bool gemm_operand_open(struct arena *arena, enum compute mode, int m, int k, struct operand *out)
{
    return gemm_operand_open_with(gemm_table_for(cpu_level()), arena, mode, m, k, out);
}

/* The operand's fields are const for its readers; the memory is its owner's. */
uint16_t *gemm_operand_row(const struct operand *x, int i)
{
    return (uint16_t *)(uintptr_t)x->bf16 + (size_t)i * (size_t)x->k_pad;
}
