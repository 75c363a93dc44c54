/* int8 products at the ends of what integers hold: the largest codes, block scales and activations, and the
 * smallest block scales, each with every number of rows that kernels take in a way of their own. */
#include "test.h"

#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/mem.h"
#include "kernels/gemm_tile.h"

enum { ROWS = 40, COLUMNS = 35, K_MOST = 1040 };

/* x is one in even rows and minus one in odd ones, all codes are 6 and all block scales the same: every sum
 * is exact on every level. */
static void check_sums(enum cpu_level level, struct pool *pool, int m, int k, uint8_t scale, float value)
{
    struct arena arena;
    arena_init(&arena, 1 << 20);
    const size_t bytes = (size_t)COLUMNS * (size_t)k / 2;
    uint8_t *codes = mem_alloc(bytes, 1), *scales = mem_alloc(bytes / 8, 1);
    float *x = mem_alloc((size_t)(m * k), sizeof(*x)), *y = mem_alloc(ROWS * COLUMNS, sizeof(*y));
    struct weight w = {.type = WEIGHT_NVFP4, .n = COLUMNS, .k = k, .global_scale = 1};
    w.data = arena_alloc(&arena, weight_data_bytes(w.type, w.n, w.k), 1);
    memset(codes, 0x77, bytes);
    memset(scales, scale, bytes / 8);
    weight_write(&w, 0, w.n, codes, scales);
    for (int i = 0; i < m * k; i++)
        x[i] = i / k % 2 ? -1.0f : 1.0f;
    struct operand op;
    const struct gemm_table *table = gemm_table_for(level);
    gemm_prepare_with(table, pool, &arena, COMPUTE_INT8, x, m, k, &op);
    const struct gemm_job job = {.w = &w, .x = &op, .m = m, .y = y, .ldy = COLUMNS};
    gemm_run_with(table, pool, &arena, COMPUTE_INT8, &job, 1);
    for (int i = 0; i < m * COLUMNS; i++) {
        const float expected = (i / COLUMNS % 2 ? -6.0f : 6.0f) * value * (float)k;
        assert_float_equal(y[i], expected, 1e-6f * 6.0f * value * (float)k);
    }
    free(codes);
    free(scales);
    free(x);
    free(y);
    arena_free(&arena);
}

static void test_int8_largest_and_smallest_sums(void **state)
{
    (void)state;
    static const int rows[] = {1, 2, 3, 7, 8, 9, 12, 31, 32, 33, ROWS}, k[] = {16, 48, 64, 80, K_MOST};
    struct pool *pool;
    assert_int_equal(pool_open(&pool, 2, NULL), NYB_OK);
    for (int level = 0; level <= (int)cpu_level(); level++)
        for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++)
            for (size_t j = 0; j < sizeof(k) / sizeof(*k); j++) {
                check_sums((enum cpu_level)level, pool, rows[i], k[j], 0x7e, 448.0f);
                check_sums((enum cpu_level)level, pool, rows[i], k[j], 0x77, 240.0f); /* 15 * 2^4 */
                check_sums((enum cpu_level)level, pool, rows[i], k[j], 0x01, 0x1p-9f);
                check_sums((enum cpu_level)level, pool, rows[i], k[j], 0x00, 0.0f);
            }
    pool_close(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_int8_largest_and_smallest_sums),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
