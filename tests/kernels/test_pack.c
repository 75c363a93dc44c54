/* Fast packers write what the plain ones do, every byte of the panel and none beyond it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test.h"

#include "base/clock.h"
#include "base/cpu.h"
#include "kernels/weight_layout.h"
#include "kernels/weight_pack.h"

#define GUARD 64

static uint64_t random_state = 88172645463325252u;

static void fill_random(uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        random_state ^= random_state << 13;
        random_state ^= random_state >> 7;
        random_state ^= random_state << 17;
        p[i] = (uint8_t)(random_state >> 24);
    }
}

static void check_panel(enum weight_type type, enum cpu_level level, int k, int n_row)
{
    const struct weight_layout *layout = &weight_layout_table[type];
    size_t bytes = layout->panel_bytes(k), row_bytes = layout->row_bytes(k), n = (size_t)n_row;
    uint8_t *plain = aligned_alloc(64, bytes + GUARD), *fast = aligned_alloc(64, bytes + GUARD);
    uint8_t *rows = malloc(n * row_bytes), *scales = malloc(n * (size_t)k / 16 + 1); /* exact: ASan looks */
    fill_random(rows, n * row_bytes);
    fill_random(scales, n * (size_t)k / 16);
    memset(plain, 0xa5, bytes + GUARD);
    memset(fast, 0x5a, bytes);
    memset(fast + bytes, 0xa5, GUARD);
    layout->pack(plain, k, n_row, rows, scales);
    weight_pack_for(type, level)(fast, k, n_row, rows, scales);
    if (memcmp(plain, fast, bytes + GUARD))
        fail_msg("%s, %s: k = %d, %d rows differ", layout->name, cpu_level_name(level), k, n_row);
    free(plain);
    free(fast);
    free(rows);
    free(scales);
}

static void test_pack_every_level_writes_the_same(void **state)
{
    (void)state;
    const int row[] = {1, 2, 7, 8, 9, 15, 16};
    for (int level = CPU_AVX2; level <= (int)cpu_detect(); level++)
        for (int type = 0; type < WEIGHT_TYPE_COUNT; type++)
            for (int i = 0; i < 7; i++)
                for (int k = 1; k <= 200; k++) {
                    int step = type == WEIGHT_NVFP4 ? 16 : 1;
                    check_panel((enum weight_type)type, (enum cpu_level)level, k * step, row[i]);
                }
}

/* Not a bound: a figure to look at. */
static void test_pack_speed(void **state)
{
    (void)state;
    enum { K = 2048, PANELS = 64 };
    for (int type = 0; type < WEIGHT_TYPE_COUNT; type++) {
        const struct weight_layout *layout = &weight_layout_table[type];
        size_t panel = layout->panel_bytes(K), rows = 16 * layout->row_bytes(K);
        uint8_t *from = calloc(1, rows + K), *to = aligned_alloc(64, PANELS * panel);
        for (int level = CPU_SCALAR; level <= (int)cpu_detect(); level++) {
            uint64_t best = UINT64_MAX;
            for (int i = 0; i < 5; i++) {
                uint64_t begin = clock_ns();
                for (size_t p = 0; p < PANELS; p++)
                    weight_pack_for((enum weight_type)type, (enum cpu_level)level)(to + p * panel, K, 16,
                                                                                   from, from + rows);
                uint64_t ns = clock_ns() - begin;
                best = ns < best ? ns : best;
            }
            printf("%s %s: %.1f GB/s\n", layout->name, cpu_level_name((enum cpu_level)level),
                   (double)(PANELS * panel) / (double)best);
        }
        free(from);
        free(to);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pack_every_level_writes_the_same),
        cmocka_unit_test(test_pack_speed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
