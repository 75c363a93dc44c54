/* Every feature and every query head belongs to exactly one rank, and every query head finds its KV head. */
#include "base/mem.h"
#include "model/shard.h"
#include "test.h"

static void test_features_are_shared_out_once_on_group_borders(void **state)
{
    static const int n[] = {1, 15, 16, 48, 100, 704, 768, 1408, 151936, 2048};
    (void)state;
    for (size_t i = 0; i < COUNT_OF(n); i++)
        for (int size = 1; size <= 8; size++) {
            int at = 0, least = n[i], most = 0;
            for (int rank = 0; rank < size; rank++) {
                struct shard_range r = shard_units_of(rank, size, n[i]);
                assert_true(r.count == 0 || r.begin == at);
                assert_true(r.begin % SHARD_UNIT == 0 || r.begin == n[i]);
                at += r.count;
                least = r.count < least ? r.count : least;
                most = r.count > most ? r.count : most;
            }
            assert_int_equal(at, n[i]);
            assert_true(most - least <= 2 * SHARD_UNIT);
        }
}

/* Where every rank can have whole tiles of a GPU's weights, it does; elsewhere it is as for the CPU. */
static void test_wide_features(void **state)
{
    static const int n[] = {768, 1408, 1536, 64, 100, 704};
    (void)state;
    for (size_t i = 0; i < COUNT_OF(n); i++)
        for (int size = 1; size <= 8; size++) {
            int at = 0;
            for (int rank = 0; rank < size; rank++) {
                const struct shard s = {.rank = rank, .size = size, .wide = true};
                struct shard_range r = shard_features(&s, n[i]);
                bool wide = n[i] % SHARD_WIDE == 0 && n[i] >= SHARD_WIDE * size;
                assert_true(r.count == 0 || r.begin == at);
                assert_true(!wide || (r.count >= SHARD_WIDE && r.count % SHARD_WIDE == 0));
                at += r.count;
            }
            assert_int_equal(at, n[i]);
        }
}

static void check_heads(int n_head, int n_kv, int size)
{
    int at = 0, per_kv = n_head / n_kv;
    for (int rank = 0; rank < size; rank++) {
        struct shard s;
        shard_set(&s, rank, size, n_head, n_kv);
        assert_true(s.kv_head.count >= 1 && s.kv_head.begin + s.kv_head.count <= n_kv);
        assert_true(s.head.count == 0 || s.head.begin == at);
        for (int h = 0; h < s.head.count;
             h++) { /* as a kernel finds it, which knows the local counts alone */
            int local = s.kv_head.count == 1 ? 0 : h / (s.head.count / s.kv_head.count);
            assert_int_equal(s.kv_head.begin + local, (s.head.begin + h) / per_kv);
        }
        at += s.head.count;
    }
    assert_int_equal(at, n_head);
}

static void test_heads_are_shared_out_once_beside_their_keys(void **state)
{
    static const int shape[][2] = {{4, 2}, {4, 4}, {32, 4}, {96, 8}, {20, 4},
                                   {8, 1}, {3, 3}, {1, 1},  {12, 2}};
    (void)state;
    for (size_t i = 0; i < COUNT_OF(shape); i++)
        for (int size = 1; size <= 12; size++)
            check_heads(shape[i][0], shape[i][1], size);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_features_are_shared_out_once_on_group_borders),
        cmocka_unit_test(test_wide_features),
        cmocka_unit_test(test_heads_are_shared_out_once_beside_their_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
