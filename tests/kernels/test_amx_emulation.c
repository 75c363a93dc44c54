/* The walk over matrix tiles, run on an emulator of the tile instructions and of the vector work beside them:
 * what it loads, in which order it sums, and that no output depends on the other rows. Where there is a
 * matrix unit, its bits are compared with the emulator's. */
#include <math.h>

#include "test.h"

#include "fp4/fp4.h"
#include "kernels/amx_attention.h"
#include "kernels/amx_unit.h"
#include "kernels/gemm_tile.h"

#include "kernels/cpu/block_bf16_amx.h"
#include "kernels/weight_layout.h"

/* What kernels/cpu/nvfp4_fold.h does, element by element. */
struct fold {
    bool open;
};

static struct fold fold_open(void)
{
    return (struct fold){true};
}

static void fold_ask(const uint8_t *ahead, int g)
{
    (void)ahead;
    (void)g;
}

static void fold_ask_out(const uint8_t *line)
{
    (void)line;
}

static void fold_group(const struct fold *f, const uint8_t *block, int g, uint8_t *line)
{
    assert_true(f->open);
    for (int row = 0; row < WEIGHT_PANEL; row++)
        for (int k = 0; k < FP4_GROUP; k++) {
            static const int nibble_of_k[8] = {0, 4, 1, 5, 2, 6, 3, 7};
            int nibble = nibble_of_k[k % 8];
            uint8_t byte = block[nvfp4_codes_at(g) + (size_t)(64 * (k / 8) + 4 * row + nibble / 2)];
            float w = fp4_e2m1_value[byte >> (nibble % 2 * 4) & 15] *
                      fp4_e4m3_value[block[nvfp4_scale_at(g) + (size_t)row]] * 0x1p-108f;
            uint16_t bits = bf16_from_float(w);
            assert_true(bf16_to_float(bits) == w); /* folding is exact */
            memcpy(line + 64 * (k / 2) + 4 * row + 2 * (k % 2), &bits, sizeof(bits));
        }
}

/* gemm_nvfp4_raise. */
static void emulate_raise(uint16_t *to, const uint16_t *x, int n, size_t step)
{
    for (int i = 0; i < n; i++)
        to[(size_t)(i / GEMM_BLOCK_STEP) * step + (size_t)(i % GEMM_BLOCK_STEP)] =
            bf16_from_float(flush(bf16_to_float(x[i])) * 0x1p64f);
}
#include "kernels/cpu/block_folded_amx.h"

/* ---- cases ------------------------------------------------------------------------------------- */

#define MAX_ROWS 75
#define POISON   0x1.5p100f

struct block_case {
    struct weight w;
    struct gemm_block b;
    uint8_t *decode;
    uint16_t *x;      /* (MAX_ROWS, x_stride) */
    uint16_t *raised; /* the same as blocks of NVFP4 want it */
    uint16_t *tiled;  /* and as they want more than 16 rows: those of the last run */
    float *sum;
};

static void *aligned(size_t bytes)
{
    void *p = NULL;
    assert_int_equal(posix_memalign(&p, 64, (bytes + 63) / 64 * 64), 0);
    return p;
}

static void make_panels(struct block_case *c, uint64_t *seed, enum weight_type type, int k, int n_panel)
{
    const int n = n_panel * WEIGHT_PANEL;
    size_t row_bytes = weight_row_bytes(type, k), n_scale = (size_t)(n * k / FP4_GROUP);
    uint8_t *rows = aligned((size_t)n * row_bytes), *scales = aligned(n_scale + 1);
    c->w = (struct weight){.type = type, .n = n, .k = k, .global_scale = 1.0f};
    c->w.data = aligned(weight_data_bytes(type, n, k));
    for (size_t i = 0; i < (size_t)n * row_bytes; i++)
        rows[i] = (uint8_t)test_random(seed);
    for (size_t i = 0; type == WEIGHT_BF16 && i < (size_t)(n * k); i++) {
        uint16_t bits = bf16_from_float(test_random_float(seed));
        memcpy(rows + 2 * i, &bits, 2);
    }
    for (size_t i = 0; i < n_scale; i++) /* zero and subnormals, too */
        scales[i] = (uint8_t)(test_random(seed) % 0x48);
    weight_write(&c->w, 0, n, rows, scales);
    free(rows);
    free(scales);
    size_t stride = (size_t)((k + 31) / 32 * 32 + 32);
    c->x = aligned(MAX_ROWS * stride * sizeof(*c->x));
    for (size_t i = 0; i < MAX_ROWS * stride; i++)
        c->x[i] = i % stride < (size_t)k ? bf16_from_float(test_random_float(seed)) : 0;
    c->raised = aligned(MAX_ROWS * stride * sizeof(*c->raised));
    emulate_raise(c->raised, c->x, (int)(MAX_ROWS * stride), GEMM_BLOCK_STEP);
    c->tiled = aligned((MAX_ROWS + TILE_ROW) * stride * sizeof(*c->tiled));
    c->decode = aligned(gemm_block_decode_bytes(GEMM_BF16));
    c->sum = aligned(2 * (size_t)GEMM_BLOCK_ROW * WEIGHT_PANEL * sizeof(*c->sum));
    size_t panel = weight_panel_bytes(&c->w);
    c->b = (struct gemm_block){.panel = {c->w.data, c->w.data + panel},
                               .n_panel = 2,
                               .k = k,
                               .x = type == WEIGHT_NVFP4 ? c->raised : c->x,
                               .x_stride = stride,
                               .decode = c->decode,
                               .sum = c->sum};
}

static void make_case(struct block_case *c, uint64_t *seed, enum weight_type type, int k)
{
    make_panels(c, seed, type, k, 2);
}

static void free_case(struct block_case *c)
{
    free(c->w.data);
    free(c->x);
    free(c->raised);
    free(c->tiled);
    free(c->decode);
    free(c->sum);
}

/* Rows of the case from `first` on; blocks of NVFP4 take many in tiles. */
static void set_rows(struct block_case *c, int first, int n_row, bool tiled)
{
    const size_t stride = c->b.x_stride;
    c->b.x = (c->w.type == WEIGHT_NVFP4 ? c->raised : c->x) + (size_t)first * stride;
    c->b.n_row = n_row;
    c->b.x_tiled = tiled;
    if (!tiled)
        return;
    memset(c->tiled, 0, (size_t)(MAX_ROWS + TILE_ROW) * stride * sizeof(*c->tiled));
    for (int r = 0; r < n_row; r++)
        emulate_raise(c->tiled + (size_t)(r / TILE_ROW * TILE_ROW) * stride + (size_t)(r % TILE_ROW * TILE_K),
                      c->x + (size_t)(first + r) * stride, (int)stride, TILE_ROW * TILE_K);
    c->b.x = c->tiled;
}

static void poison_sums(struct block_case *c)
{
    for (int i = 0; i < 2 * GEMM_BLOCK_ROW * WEIGHT_PANEL; i++)
        c->sum[i] = POISON;
}

static void run_block(struct block_case *c, int first, int n_row, bool tiled)
{
    set_rows(c, first, n_row, tiled);
    poison_sums(c);
    if (c->w.type == WEIGHT_NVFP4)
        block_folded(&c->b);
    else
        block_bf16(&c->b);
    assert_false(unit.configured);
}

/* Sum of (panel, row) in lane i. */
static float sum_of(const struct block_case *c, int panel, int row, int i)
{
    return c->sum[(size_t)(panel * GEMM_BLOCK_ROW + row) * WEIGHT_PANEL + (size_t)i];
}

/* Values of one row of weights, block scales included. */
static void read_row(const struct block_case *c, int col, float *w)
{
    uint8_t *codes = aligned((size_t)c->w.k), *scales = aligned((size_t)c->w.k);
    if (c->w.type == WEIGHT_BF16) {
        weight_row_to_float(&c->w, col, w);
    } else {
        weight_read(&c->w, col, codes, scales);
        for (int k = 0; k < c->w.k; k++)
            w[k] = fp4_e2m1_value[codes[k / 2] >> (k % 2 * 4) & 15] * fp4_e4m3_value[scales[k / FP4_GROUP]];
    }
    free(codes);
    free(scales);
}

/* Two chains of fma within each 32 of K, their sum into the whole. */
static float expected(const struct block_case *c, const float *w, const uint16_t *x)
{
    float sum = 0.0f;
    for (int k = 0; k < c->w.k; k += TILE_K) {
        float chain[2] = {0.0f, 0.0f};
        for (int i = k; i < k + TILE_K && i < c->w.k; i++)
            chain[i % 2] = fmaf(bf16_to_float(x[i]), w[i], chain[i % 2]);
        sum += chain[0] + chain[1];
    }
    return sum;
}

static void check_sums(const struct block_case *c, int first, int n_row)
{
    float *w = aligned((size_t)c->w.k * sizeof(*w)), unit_of_sums = 1.0f;
    if (c->w.type == WEIGHT_NVFP4)
        unit_of_sums = FOLDED_UNIT;
    for (int col = 0; col < c->b.n_panel * WEIGHT_PANEL; col++) {
        read_row(c, col, w);
        for (int row = 0; row < n_row; row++) {
            float want = expected(c, w, c->x + (size_t)(first + row) * c->b.x_stride);
            float found = unit_of_sums * sum_of(c, col / WEIGHT_PANEL, row, col % WEIGHT_PANEL);
            if (memcmp(&found, &want, sizeof(want)))
                fail_msg("k=%d rows %d..%d: sum[%d,%d] is %a, expected %a", c->w.k, first, first + n_row - 1,
                         row, col, (double)found, (double)want);
        }
    }
    int touched = (n_row + TILE_ROW - 1) / TILE_ROW * TILE_ROW; /* a whole tile may be */
    for (int panel = 0; panel < 2; panel++)
        for (int row = panel < c->b.n_panel ? touched : 0; row < GEMM_BLOCK_ROW; row++)
            for (int i = 0; i < WEIGHT_PANEL; i++)
                assert_true(sum_of(c, panel, row, i) == POISON);
    free(w);
}

static void check_type(enum weight_type type, int k_unit)
{
    static const int n_row[] = {1, 2, 15, 16, 17, 31, 32, 33, 48, 50, 64, MAX_ROWS};
    uint64_t seed = 7;
    for (int round = 0; round < 24; round++) {
        struct block_case c;
        make_case(&c, &seed, type, k_unit * (1 + (int)(test_random(&seed) % (uint64_t)(320 / k_unit))));
        c.b.n_panel = 1 + round % 2;
        int n = n_row[round / 2], first = (int)(test_random(&seed) % (uint64_t)(MAX_ROWS - n + 1));
        run_block(&c, first, n, type == WEIGHT_NVFP4 && (n > TILE_ROW || round % 3 == 0));
        check_sums(&c, first, n);
        free_case(&c);
    }
}

/* The sums of panels that went through the unit one after another. */
#define STREAMED 6
struct streamed {
    const struct block_case *c;
    float sum[STREAMED][MAX_ROWS][WEIGHT_PANEL];
    int n_done;
};

static void take_sums(void *own, int i)
{
    struct streamed *s = own;
    const struct block_case *c = s->c;
    assert_int_equal(i, s->n_done++);
    for (int p = 0; p < c->b.n_panel; p++)
        for (int row = 0; row < c->b.n_row; row++)
            memcpy(s->sum[i * c->b.n_panel + p][row],
                   c->sum + (size_t)(p * GEMM_BLOCK_ROW + row) * WEIGHT_PANEL, sizeof(s->sum[0][0]));
    poison_sums((struct block_case *)(uintptr_t)c);
}

/* Panels in one call have the bits of a call for each. */
static void test_nvfp4_streams(void **state)
{
    (void)state;
    static const int n_row[] = {1, 5, 16, 17, 33, 48, 50, MAX_ROWS},
                     k[] = {16, 48, 64, 128, 160, 192, 320, 384, 512};
    static struct streamed alone, together;
    uint64_t seed = 23;
    for (size_t at = 0; at < sizeof(k) / sizeof(k[0]); at++)
        for (size_t r = 0; r < sizeof(n_row) / sizeof(n_row[0]); r++) {
            struct block_case c;
            make_panels(&c, &seed, WEIGHT_NVFP4, k[at], STREAMED);
            size_t bytes = weight_panel_bytes(&c.w);
            c.b.n_panel = 1 + (int)(r + at) % 2;
            c.b.next = (size_t)c.b.n_panel * bytes;
            alone.c = together.c = &c;
            alone.n_done = together.n_done = 0;
            for (int i = 0; i < STREAMED / c.b.n_panel; i++) {
                c.b.panel[0] = c.w.data + (size_t)i * c.b.next;
                c.b.panel[1] = c.b.panel[0] + bytes;
                run_block(&c, 0, n_row[r], n_row[r] > TILE_ROW || at % 2);
                take_sums(&alone, i);
            }
            c.b.panel[0] = c.w.data;
            c.b.panel[1] = c.w.data + bytes;
            c.b.n_more = STREAMED / c.b.n_panel - 1;
            c.b.done = take_sums;
            c.b.own = &together;
            run_block(&c, 0, n_row[r], n_row[r] > TILE_ROW || at % 2);
            assert_int_equal(together.n_done, c.b.n_more + 1);
            for (int p = 0; p < STREAMED; p++)
                for (int row = 0; row < n_row[r]; row++)
                    assert_memory_equal(together.sum[p][row], alone.sum[p][row], sizeof(alone.sum[p][row]));
            free_case(&c);
        }
}

static void test_nvfp4(void **state)
{
    (void)state;
    check_type(WEIGHT_NVFP4, 16);
}

static void test_bf16(void **state)
{
    (void)state;
    check_type(WEIGHT_BF16, 1);
}

static void never_called(const struct gemm_tile *t)
{
    (void)t;
    fail_msg("a tile of few rows, where blocks take any number");
}

/* Through the grouped product: rows picked by index, more of them than a block has, gate with up; and each
 * row alone, to the same bits. */
static void check_grouped(const struct gemm_table *table, int n_thread, int n_round, int k_most)
{
    enum { N = 40 };
    uint64_t seed = 5;
    struct pool *pool;
    struct arena arena;
    assert_int_equal(pool_open(&pool, n_thread, NULL), NYB_OK);
    arena_init(&arena, 1 << 20);
    for (int round = 0; round < n_round; round++) {
        const int K = 16 * (1 + (int)(test_random(&seed) % (uint64_t)(k_most / 16)));
        /* The last block: in tiles, whole or not; or so few rows that each item copies them. */
        const int M = round % 5 == 4 ? 90 - round : GEMM_BLOCK_ROW + (round % 4 < 2 ? 37 : 5);
        struct block_case c;
        make_case(&c, &seed, round % 2 ? WEIGHT_BF16 : WEIGHT_NVFP4, K);
        float *x = arena_alloc(&arena, (size_t)M * (size_t)K, sizeof(*x));
        int32_t *row = arena_alloc(&arena, (size_t)M, sizeof(*row));
        for (int i = 0; i < M * K; i++)
            x[i] = test_random_float(&seed);
        for (int i = 0; i < M; i++)
            row[i] = round & 4 ? (i * 5 + 3) % M : i;
        struct operand op;
        gemm_prepare_with(table, pool, &arena, COMPUTE_BF16, x, M, K, &op);
        float *y[2], *again = arena_alloc(&arena, (size_t)M * N, sizeof(*again));
        for (int pass = 0; pass < 2; pass++) { /* all rows at once, for two jobs; each alone */
            y[pass] = arena_alloc(&arena, (size_t)M * N, sizeof(**y));
            for (int i = 0; i < (pass ? M : 1); i++) {
                struct gemm_job job[2] = {{.w = &c.w, .up = round & 2 ? &c.w : NULL, .x = &op, .ldy = N}};
                job[0].row = row + i;
                job[0].m = pass ? 1 : M;
                job[0].y = y[pass] + i * N;
                job[1] = job[0];
                job[1].y = again;
                gemm_run_with(table, pool, &arena, COMPUTE_BF16, job, pass ? 1 : 2);
            }
        }
        for (int i = 0; i < M; i++) {
            assert_memory_equal(y[0] + i * N, y[1] + i * N, (size_t)c.w.n * sizeof(**y));
            assert_memory_equal(again + i * N, y[1] + i * N, (size_t)c.w.n * sizeof(**y));
        }
        free_case(&c);
        arena_reset(&arena);
    }
    arena_free(&arena);
    pool_close(pool);
}

static void test_grouped(void **state)
{
    (void)state;
    struct gemm_table table = *gemm_table_for(cpu_level() < CPU_AVX512 ? cpu_level() : CPU_AVX512);
    table.tile[WEIGHT_NVFP4][GEMM_BF16] = table.tile[WEIGHT_BF16][GEMM_BF16] = never_called;
    table.block[WEIGHT_NVFP4][GEMM_BF16] = (struct gemm_blocks){
        .fn = block_folded, .least_row = 1, .copy = emulate_raise, .unit = FOLDED_UNIT, .stream = true};
    table.block[WEIGHT_BF16][GEMM_BF16] =
        (struct gemm_blocks){.fn = block_bf16, .least_row = 1, .unit = 1.0f};
    check_grouped(&table, 1, 16, 48); /* there is one emulated unit */
}

/* Where no weight of BF16 needs floats, operands have none: weights of F32 get them from the bf16. */
static void test_floats_on_demand(void **state)
{
    (void)state;
    enum { N = 40, K = 50, M = 70 };
    const struct gemm_table plain = *gemm_table_for(cpu_level() < CPU_AVX2 ? cpu_level() : CPU_AVX2);
    struct gemm_table without = plain;
    without.tile[WEIGHT_BF16][GEMM_BF16] = never_called;
    const struct gemm_table *table[2] = {&plain, &without};
    uint64_t seed = 17;
    struct pool *pool;
    struct arena arena;
    assert_int_equal(pool_open(&pool, 3, NULL), NYB_OK);
    arena_init(&arena, 1 << 20);
    struct weight w = {.type = WEIGHT_F32, .n = N, .k = K, .global_scale = 1.0f};
    w.data = aligned(weight_data_bytes(w.type, N, K));
    float *rows = arena_alloc(&arena, N * K, sizeof(*rows)), *x = arena_alloc(&arena, M * K, sizeof(*x));
    float *y[2][2];
    int32_t row[M];
    for (int i = 0; i < N * K; i++)
        rows[i] = test_random_float(&seed);
    for (int i = 0; i < M * K; i++)
        x[i] = test_random_float(&seed);
    for (int i = 0; i < M; i++)
        row[i] = (i * 3 + 1) % M;
    weight_write(&w, 0, N, (const uint8_t *)rows, NULL);
    for (int t = 0; t < 2; t++) {
        struct operand op;
        struct gemm_job job[2];
        gemm_prepare_with(table[t], pool, &arena, COMPUTE_BF16, x, M, K, &op);
        assert_int_equal(op.f32 != NULL, t == 0);
        for (int i = 0; i < 2; i++) {
            y[t][i] = arena_alloc(&arena, M * N, sizeof(float));
            job[i] =
                (struct gemm_job){.w = &w, .x = &op, .row = i ? row : NULL, .m = M, .y = y[t][i], .ldy = N};
        }
        gemm_run_with(table[t], pool, &arena, COMPUTE_BF16, job, 2);
        assert_int_equal(op.f32 != NULL, t == 0); /* the caller's is as it was */
    }
    assert_memory_equal(y[0][0], y[1][0], M * N * sizeof(float));
    assert_memory_equal(y[0][1], y[1][1], M * N * sizeof(float));
    assert_true(y[0][0][N] == y[0][1][0]); /* row 1 of x comes first in the second job */
    free(w.data);
    arena_free(&arena);
    pool_close(pool);
}

static void test_grouped_hardware(void **state)
{
    (void)state;
    if (cpu_level() < CPU_AMX)
        skip();
    check_grouped(gemm_table_for(CPU_AMX), 4, 16, 1024);
}

/* The real unit rounds as the emulator does, so that what holds here holds there. */
static void test_hardware(void **state)
{
    (void)state;
    if (cpu_level() < CPU_AMX)
        skip();
    uint64_t seed = 11;
    const struct gemm_table *table = gemm_table_for(CPU_AMX);
    for (int round = 0; round < 40; round++) {
        enum weight_type type = round % 2 ? WEIGHT_BF16 : WEIGHT_NVFP4;
        struct block_case c;
        make_case(&c, &seed, type, 16 * (1 + (int)(test_random(&seed) % 40)));
        int n = 1 + (int)(test_random(&seed) % MAX_ROWS);
        set_rows(&c, 0, n, type == WEIGHT_NVFP4 && n > TILE_ROW);
        poison_sums(&c);
        table->block[type][GEMM_BF16].fn(&c.b);
        check_sums(&c, 0, c.b.n_row);
        free_case(&c);
    }
}

int main(void)
{
    const struct CMUnitTest test[] = {
        cmocka_unit_test(test_nvfp4),
        cmocka_unit_test(test_nvfp4_streams),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_grouped),
        cmocka_unit_test(test_floats_on_demand),
        cmocka_unit_test(test_attention_bf16),
        cmocka_unit_test(test_attention_fp8),
        cmocka_unit_test(test_attention_odd_values),
        cmocka_unit_test(test_hardware),
        cmocka_unit_test(test_grouped_hardware),
    };
    return cmocka_run_group_tests(test, NULL, NULL);
}
