/* The block map: references, the prefix cache, its order of eviction, and a random walk against a plain
 * model. */
#include "test.h"

#include "engine/kv.h"

static struct kv_map *open_map(int n_block)
{
    struct kv_map *m;
    assert_int_equal(kv_open(&m, n_block, true, NULL), NYB_OK);
    return m;
}

/* Tokens of a sequence that is all about `name`. */
static void fill(int32_t *tok, int n, int name)
{
    for (int i = 0; i < n; i++)
        tok[i] = name * 1000 + i;
}

/* Take and seal n blocks along tok. */
static void compute(struct kv_map *m, struct kv_chain *c, const int32_t *tok, int n, int32_t *block)
{
    for (int i = 0; i < n; i++) {
        block[i] = kv_take_block(m);
        assert_true(block[i] >= 0);
        block[i] = kv_seal_block(m, c, block[i], tok + i * KV_BLOCK);
    }
}

static void drop(struct kv_map *m, const int32_t *block, int n)
{
    while (n > 0)
        kv_drop_block(m, block[--n]);
}

static void test_kv_refuses_no_blocks(void **state)
{
    (void)state;
    struct kv_map *m;
    struct nyb_err err;
    assert_int_equal(kv_open(&m, 0, true, &err), NYB_E_MEMORY);
    assert_non_null(strstr(err.message, "at least one block"));
}

static void test_kv_takes_every_block_once(void **state)
{
    (void)state;
    struct kv_map *m = open_map(7);
    bool seen[7] = {false};
    for (int i = 0; i < 7; i++) {
        int32_t b = kv_take_block(m);
        assert_true(b >= 0 && b < 7 && !seen[b]);
        seen[b] = true;
    }
    assert_int_equal(kv_take_block(m), -1);
    assert_int_equal(kv_free_count(m), 0);
    for (int32_t b = 0; b < 7; b++)
        kv_drop_block(m, b);
    assert_int_equal(kv_free_count(m), 7);
    kv_check(m);
    kv_close(m);
}

static void test_kv_matches_the_longest_prefix(void **state)
{
    (void)state;
    struct kv_map *m = open_map(16);
    int32_t tok[5 * KV_BLOCK], block[5], found[5];
    struct kv_chain c;
    fill(tok, 5 * KV_BLOCK, 1);
    kv_chain_start(m, &c);
    compute(m, &c, tok, 3, block);
    drop(m, block, 3);

    kv_chain_start(m, &c);
    assert_int_equal(kv_match_prefix(m, &c, tok, 5 * KV_BLOCK, found, 5), 3);
    assert_memory_equal(found, block, sizeof(int32_t) * 3);
    assert_int_equal(kv_free_count(m), 13);
    drop(m, found, 3);

    kv_chain_start(m, &c); /* one token short of a block */
    assert_int_equal(kv_match_prefix(m, &c, tok, 2 * KV_BLOCK - 1, found, 5), 1);
    drop(m, found, 1);

    tok[KV_BLOCK] ^= 1; /* the second block differs: the third, whose tokens are equal, must not match */
    kv_chain_start(m, &c);
    assert_int_equal(kv_match_prefix(m, &c, tok, 5 * KV_BLOCK, found, 5), 1);
    drop(m, found, 1);
    assert_int_equal(kv_free_count(m), 16);
    kv_check(m);
    kv_close(m);
}

/* The same block of tokens after two different beginnings is two different blocks. */
static void test_kv_same_tokens_after_other_parents_stay_apart(void **state)
{
    (void)state;
    struct kv_map *m = open_map(8);
    int32_t a[2 * KV_BLOCK], b[2 * KV_BLOCK], block_a[2], block_b[2];
    fill(a, 2 * KV_BLOCK, 1);
    fill(b, KV_BLOCK, 2);
    memcpy(b + KV_BLOCK, a + KV_BLOCK, KV_BLOCK * sizeof(*b));
    struct kv_chain c;
    kv_chain_start(m, &c);
    compute(m, &c, a, 2, block_a);
    kv_chain_start(m, &c);
    compute(m, &c, b, 2, block_b);
    assert_int_not_equal(block_a[1], block_b[1]);
    drop(m, block_a, 2);
    drop(m, block_b, 2);
    kv_close(m);
}

static void test_kv_shared_block_survives_first_owner(void **state)
{
    (void)state;
    struct kv_map *m = open_map(4);
    int32_t tok[KV_BLOCK], first, second;
    fill(tok, KV_BLOCK, 1);
    struct kv_chain c;
    kv_chain_start(m, &c);
    compute(m, &c, tok, 1, &first);
    kv_chain_start(m, &c);
    assert_int_equal(kv_match_prefix(m, &c, tok, KV_BLOCK, &second, 1), 1);
    assert_int_equal(first, second);
    kv_drop_block(m, first);
    assert_int_equal(kv_free_count(m), 3);
    for (int i = 0; i < 3; i++)
        assert_int_not_equal(kv_take_block(m), second);
    assert_int_equal(kv_take_block(m), -1);
    kv_check(m);
    kv_close(m);
}

/* Two sequences that computed the same block at the same time end up with one. */
static void test_kv_sealing_an_equal_block_merges(void **state)
{
    (void)state;
    struct kv_map *m = open_map(4);
    int32_t tok[KV_BLOCK], a, b;
    fill(tok, KV_BLOCK, 1);
    struct kv_chain c, d;
    kv_chain_start(m, &c);
    kv_chain_start(m, &d);
    compute(m, &c, tok, 1, &a);
    compute(m, &d, tok, 1, &b);
    assert_int_equal(a, b);
    assert_int_equal(kv_free_count(m), 3);
    assert_memory_equal(&c, &d, sizeof(c));
    kv_drop_block(m, a);
    kv_drop_block(m, b);
    assert_int_equal(kv_free_count(m), 4);
    kv_close(m);
}

static void test_kv_evicts_the_least_recently_used(void **state)
{
    (void)state;
    struct kv_map *m = open_map(4);
    int32_t tok[3][KV_BLOCK], block[3], found;
    struct kv_chain c;
    for (int i = 0; i < 3; i++) {
        fill(tok[i], KV_BLOCK, i + 1);
        kv_chain_start(m, &c);
        compute(m, &c, tok[i], 1, &block[i]);
    }
    for (int i = 0; i < 3; i++)
        kv_drop_block(m, block[i]);
    kv_chain_start(m, &c); /* use the first again: the second is now the oldest */
    assert_int_equal(kv_match_prefix(m, &c, tok[0], KV_BLOCK, &found, 1), 1);
    kv_drop_block(m, found);
    assert_int_equal(kv_take_block(m), 3); /* never sealed: goes first */
    assert_int_equal(kv_take_block(m), block[1]);
    const int expected[3] = {1, 0, 1};
    for (int i = 0; i < 3; i++) {
        kv_chain_start(m, &c);
        assert_int_equal(kv_match_prefix(m, &c, tok[i], KV_BLOCK, &found, 1), expected[i]);
        if (expected[i])
            kv_drop_block(m, found);
    }
    kv_check(m);
    kv_close(m);
}

static void test_kv_new_generation_never_matches_the_old(void **state)
{
    (void)state;
    struct kv_map *m = open_map(4);
    int32_t tok[2 * KV_BLOCK], block[2], found[2];
    fill(tok, 2 * KV_BLOCK, 1);
    struct kv_chain old, c;
    kv_chain_start(m, &old);
    compute(m, &old, tok, 1, block);
    kv_set_generation(m, 1);
    kv_chain_start(m, &c);
    assert_int_equal(kv_match_prefix(m, &c, tok, 2 * KV_BLOCK, found, 2), 0);
    compute(m, &old, tok + KV_BLOCK, 1, block + 1); /* begun under the old weights: not entered */
    drop(m, block, 2);
    kv_set_generation(m, 0);
    kv_chain_start(m, &c);
    assert_int_equal(kv_match_prefix(m, &c, tok, 2 * KV_BLOCK, found, 2), 1);
    kv_drop_block(m, found[0]);
    kv_check(m);
    kv_close(m);
}

static void test_kv_without_cache_matches_nothing(void **state)
{
    (void)state;
    struct kv_map *m;
    assert_int_equal(kv_open(&m, 4, false, NULL), NYB_OK);
    int32_t tok[KV_BLOCK], block, found;
    fill(tok, KV_BLOCK, 1);
    struct kv_chain c;
    kv_chain_start(m, &c);
    compute(m, &c, tok, 1, &block);
    kv_drop_block(m, block);
    kv_chain_start(m, &c);
    assert_int_equal(kv_match_prefix(m, &c, tok, KV_BLOCK, &found, 1), 0);
    kv_close(m);
}

/* A shadow of what each block holds: a match must give exactly the tokens asked for, from the start. */
static void test_kv_random_walk(void **state)
{
    (void)state;
    enum { N_BLOCK = 24, N_SEQ = 6, LEN = 5 };
    struct kv_map *m = open_map(N_BLOCK);
    struct {
        int32_t tok[LEN * KV_BLOCK], block[LEN];
        int n;
        bool live;
        struct kv_chain c;
    } seq[N_SEQ] = {0};
    int32_t holds[N_BLOCK][LEN * KV_BLOCK]; /* all tokens up to and with the block's own */
    int depth[N_BLOCK] = {0};               /* blocks of them; 0: nothing sealed */
    uint64_t rng = 7;
    int hits = 0;
    for (int round = 0; round < 20000; round++) {
        int i = (int)(test_random(&rng) % N_SEQ);
        if (!seq[i].live) {
            for (int b = 0; b < LEN; b++) /* few distinct blocks, so that prefixes repeat */
                fill(seq[i].tok + b * KV_BLOCK, KV_BLOCK, (int)(test_random(&rng) % 3));
            kv_chain_start(m, &seq[i].c);
            seq[i].n = kv_match_prefix(m, &seq[i].c, seq[i].tok, LEN * KV_BLOCK, seq[i].block, LEN);
            for (int b = 0; b < seq[i].n; b++) {
                assert_int_equal(depth[seq[i].block[b]], b + 1);
                assert_memory_equal(holds[seq[i].block[b]], seq[i].tok,
                                    (size_t)(b + 1) * KV_BLOCK * sizeof(int32_t));
            }
            hits += seq[i].n;
            seq[i].live = true;
        } else if (seq[i].n == LEN || test_random(&rng) % 4 == 0) {
            drop(m, seq[i].block, seq[i].n);
            seq[i].live = false;
        } else {
            int32_t b = kv_take_block(m);
            if (b < 0)
                continue;
            depth[b] = 0;
            int32_t sealed = kv_seal_block(m, &seq[i].c, b, seq[i].tok + seq[i].n * KV_BLOCK);
            memcpy(holds[sealed], seq[i].tok, (size_t)(seq[i].n + 1) * KV_BLOCK * sizeof(int32_t));
            depth[sealed] = seq[i].n + 1;
            seq[i].block[seq[i].n++] = sealed;
        }
        if (round % 64 == 0)
            kv_check(m);
    }
    assert_true(hits > 1000);
    for (int i = 0; i < N_SEQ; i++)
        if (seq[i].live)
            drop(m, seq[i].block, seq[i].n);
    assert_int_equal(kv_free_count(m), N_BLOCK);
    kv_check(m);
    kv_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kv_refuses_no_blocks),
        cmocka_unit_test(test_kv_takes_every_block_once),
        cmocka_unit_test(test_kv_matches_the_longest_prefix),
        cmocka_unit_test(test_kv_same_tokens_after_other_parents_stay_apart),
        cmocka_unit_test(test_kv_shared_block_survives_first_owner),
        cmocka_unit_test(test_kv_sealing_an_equal_block_merges),
        cmocka_unit_test(test_kv_evicts_the_least_recently_used),
        cmocka_unit_test(test_kv_new_generation_never_matches_the_old),
        cmocka_unit_test(test_kv_without_cache_matches_nothing),
        cmocka_unit_test(test_kv_random_walk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
