/* What the machine does on average: what is counted is what is done. */
#include <stdatomic.h>

#include "test.h"

#include "kernels/checkkern_peak.h"

#define PIECES_MAX 64

static const uint8_t *memory;
static size_t piece_bytes;
static atomic_int times_read[PIECES_MAX];

/* In place of the loop that reads: which piece it was. */
static uint64_t note_piece(const uint64_t *data, size_t n)
{
    size_t at = (size_t)((const uint8_t *)data - memory);
    assert_int_equal(n * sizeof(uint64_t), piece_bytes);
    assert_int_equal(at % piece_bytes, 0);
    assert_true(at / piece_bytes < PIECES_MAX);
    atomic_fetch_add(&times_read[at / piece_bytes], 1);
    return 1;
}

static void forget(void)
{
    for (int i = 0; i < PIECES_MAX; i++)
        atomic_store(&times_read[i], 0);
}

static void test_rate_counts_each_piece_that_is_read(void **state)
{
    (void)state;
    enum { PIECES = 5 };
    const size_t bytes = (PIECES << 17) + 1000; /* what is left over is not read */
    memory = calloc(bytes, 1);
    piece_bytes = 1 << 17;
    for (int n_thread = 1; n_thread <= 3; n_thread++) {
        struct pool *pool;
        struct checkkern_stream s;
        struct checkkern_rate rate = {0};
        assert_int_equal(pool_open(&pool, n_thread, NULL), NYB_OK);
        assert_true(checkkern_stream_open(&s, memory, bytes, n_thread));
        assert_int_equal(s.n_piece, PIECES);
        s.read = note_piece;
        forget();
        for (int round = 0; round < 7; round++) { /* one goes on where the last has stopped */
            checkkern_rate_read(pool, &s, round == 6 ? 1e-3 : 0, &rate);
            int all = 0;
            for (int i = 0; i < PIECES; i++) {
                int n = atomic_load(&times_read[i]), first = atomic_load(&times_read[0]);
                assert_in_range(n, first - 1, first);
                all += n;
            }
            assert_true(rate.done == (double)all * (double)piece_bytes);
            assert_true(rate.seconds > 0);
        }
        assert_true(rate.seconds >= 1e-3);
        uint64_t noted = 0;
        for (int i = 0; i < n_thread; i++)
            noted += s.sink[i];
        assert_true((double)noted * (double)piece_bytes == rate.done);
        checkkern_stream_close(&s);
        pool_close(pool);
    }
    free((void *)memory);
}

/* Whichever word changes, so does what they are folded into. */
static void test_rate_reads_every_word(void **state)
{
    (void)state;
    enum { N = 512 };
    static uint64_t data[N + 64];
    uint64_t seed = 5;
    for (int i = 0; i < N; i++)
        data[i] = test_random(&seed);
    checkkern_read_fn *const form[] = {checkkern_read_scalar, checkkern_read_avx2, checkkern_read_avx2_alone};
    for (int f = 0; f < (cpu_detect() >= CPU_AVX2 ? 3 : 1); f++) {
        checkkern_read_fn *read = form[f];
        const uint64_t whole = read(data, N);
        for (int i = 0; i < N; i++) {
            data[i]++;
            assert_true(read(data, N) != whole);
            data[i]--;
        }
        data[N]++;
        assert_true(read(data, N) == whole);
    }
}

static void test_rate_of_little_memory(void **state)
{
    (void)state;
    static const uint64_t data[128];
    struct checkkern_stream s;
    struct checkkern_rate rate = {0};
    struct pool *pool;
    assert_int_equal(pool_open(&pool, 2, NULL), NYB_OK);
    assert_false(checkkern_stream_open(&s, data, 255, 2));
    assert_true(checkkern_stream_open(&s, data, sizeof(data) - 8, 2));
    assert_int_equal(s.piece, 768);
    assert_int_equal(s.n_piece, 1);
    checkkern_rate_read(pool, &s, 0, &rate);
    assert_true(rate.done > 0 && rate.seconds > 0);
    checkkern_stream_close(&s);
    pool_close(pool);
}

/* Long pieces, but enough of them for every thread; nothing is read to find out. */
static void test_rate_pieces_are_long_where_there_is_much(void **state)
{
    (void)state;
    static const uint64_t data[1];
    static const struct {
        size_t bytes, piece;
        int n_thread;
    } row[] = {
        {(size_t)2 << 30, (size_t)1 << 20, 1},      {(size_t)256 << 20, (size_t)1 << 20, 2},
        {(size_t)256 << 20, (size_t)512 << 10, 4},  {(size_t)250 << 20, (size_t)384 << 10, 4},
        {(size_t)256 << 20, (size_t)128 << 10, 64}, {(size_t)1 << 20, (size_t)128 << 10, 1},
        {(size_t)128 << 10, (size_t)128 << 10, 9},  {((size_t)128 << 10) - 1, ((size_t)128 << 10) - 256, 9},
    };
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        struct checkkern_stream s;
        assert_true(checkkern_stream_open(&s, data, row[i].bytes, row[i].n_thread));
        assert_int_equal(s.piece, row[i].piece);
        assert_int_equal(s.n_piece, row[i].bytes / row[i].piece);
        checkkern_stream_close(&s);
    }
}

static void test_rate_of_every_unit_that_there_is(void **state)
{
    (void)state;
    struct pool *pool;
    assert_int_equal(pool_open(&pool, 1, NULL), NYB_OK);
    for (int level = 0; level <= (int)cpu_detect(); level++)
        for (int unit = CHECKKERN_F32; unit <= CHECKKERN_TILE; unit++) {
            struct checkkern_rate rate = {0};
            bool some = level == CPU_SCALAR      ? unit == CHECKKERN_F32
                        : unit == CHECKKERN_TILE ? level == CPU_AMX
                                                 : true;
            assert_int_equal(
                checkkern_rate_peak(pool, (enum cpu_level)level, (enum checkkern_unit)unit, 1e-3, &rate),
                some);
            assert_int_equal(rate.seconds >= 1e-3, some);
            assert_int_equal(rate.done > 0, some);
        }
    pool_close(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rate_counts_each_piece_that_is_read),
        cmocka_unit_test(test_rate_reads_every_word),
        cmocka_unit_test(test_rate_of_little_memory),
        cmocka_unit_test(test_rate_pieces_are_long_where_there_is_much),
        cmocka_unit_test(test_rate_of_every_unit_that_there_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
