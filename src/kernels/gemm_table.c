#include <pthread.h>
#include <assert.h>

#include "kernels/gemm_kernels.h"

static struct gemm_table table[CPU_LEVEL_COUNT];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void fill(struct gemm_table *t, enum cpu_level level)
{
#define GEMM_TILE(min, type, form, fn, one, two)                              \
    if (level >= CPU_##min) {                                                 \
        t->tile[WEIGHT_##type][GEMM_##form] = fn;                             \
        t->max_row[WEIGHT_##type][GEMM_##form][1] = (one);                    \
        t->max_row[WEIGHT_##type][GEMM_##form][2] = (two);                    \
        static_assert((one) <= GEMM_TILE_ROW && (two) <= GEMM_TILE_ROW, #fn); \
    }
#define GEMM_BLOCK(min, type, form, block_fn, least)                                    \
    if (level >= CPU_##min) {                                                           \
        t->block[WEIGHT_##type][GEMM_##form] =                                          \
            (struct gemm_blocks){.fn = (block_fn), .least_row = (least), .unit = 1.0f}; \
    }
#define GEMM_BLOCK_COPY(min, type, form, copy_fn, of_sums)     \
    if (level >= CPU_##min) {                                  \
        t->block[WEIGHT_##type][GEMM_##form].copy = (copy_fn); \
        t->block[WEIGHT_##type][GEMM_##form].unit = (of_sums); \
    }
#define GEMM_BLOCK_STREAM(min, type, form)                  \
    if (level >= CPU_##min) {                               \
        t->block[WEIGHT_##type][GEMM_##form].stream = true; \
    }
#define GEMM_NO_BLOCK(min, type, form)                                  \
    if (level >= CPU_##min) {                                           \
        t->block[WEIGHT_##type][GEMM_##form] = (struct gemm_blocks){0}; \
    }
#define GEMM_FINISH(min, fn)  \
    if (level >= CPU_##min) { \
        t->finish = fn;       \
    }
#define GEMM_ROW(min, fn)     \
    if (level >= CPU_##min) { \
        t->row = fn;          \
    }
#include "kernels/gemm_kernels.def"
#undef GEMM_TILE
#undef GEMM_BLOCK
#undef GEMM_BLOCK_COPY
#undef GEMM_BLOCK_STREAM
#undef GEMM_NO_BLOCK
#undef GEMM_FINISH
#undef GEMM_ROW
}

static void fill_all(void)
{
    for (int level = 0; level < CPU_LEVEL_COUNT; level++)
        fill(&table[level], (enum cpu_level)level);
}

const struct gemm_table *gemm_table_for(enum cpu_level level)
{
    pthread_once(&once, fill_all);
    return &table[level];
}

enum gemm_form gemm_form_for(const struct gemm_table *t, enum weight_type type, enum compute mode)
{
    if (mode == COMPUTE_INT8 && t->tile[type][GEMM_I8B])
        return GEMM_I8B;
    if (mode == COMPUTE_INT8 && t->tile[type][GEMM_I8])
        return GEMM_I8;
    if ((mode == COMPUTE_INT8 || mode == COMPUTE_BF16) && t->tile[type][GEMM_BF16])
        return GEMM_BF16;
    if (mode == COMPUTE_BF16 && t->tile[type][GEMM_I16])
        return GEMM_I16;
    return GEMM_F32;
}
