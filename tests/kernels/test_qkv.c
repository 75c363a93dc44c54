/* The KV cache, and the way of queries, keys and values through norm and rotation, of every CPU level that
 * this machine has. */
#include "fp4/fp4.h"
#include "kernels/attention_case.h"

/* ---- kv cache ------------------------------------------------------------------------------------ */

static void test_kv_every_element_has_its_own_place(void **state)
{
    (void)state;
    for (int type = KV_F32; type <= KV_I16; type++)
        for (int d = 8; d <= 264; d += 8) {
            const size_t region[] = {kv_key_bytes((enum kv_type)type, d),
                                     kv_value_bytes((enum kv_type)type, d)};
            size_t size = type == KV_F32 ? 4 : type == KV_FP8 ? 1 : 2;
            size_t pad = (size_t)kv_pad((enum kv_type)type, d);
            assert_int_equal(region[0] - region[1], type == KV_I16 ? KV_I16_UNITS : 0);
            assert_int_equal(kv_block_key_bytes((enum kv_type)type, 3, d), 3 * region[0]);
            assert_int_equal(kv_block_value_bytes((enum kv_type)type, 3, d), 3 * region[1]);
            for (int value = 0; value < 2; value++) {
                uint8_t *seen = calloc(region[value], 1);
                assert_int_equal(region[value] % 64, 0);
                for (size_t i = 0; i < (size_t)d; i++)
                    for (size_t j = 0; j < KV_BLOCK; j++) {
                        size_t at = value ? kv_value_index((enum kv_type)type, pad, i, j)
                                          : kv_key_index((enum kv_type)type, i, j);
                        assert_true(at < region[1] / size);
                        assert_int_equal(seen[at]++, 0);
                    }
                free(seen);
            }
        }
}

static void test_kv_load_returns_what_was_stored(void **state)
{
    (void)state;
    enum { D = 24, HEADS = 2, BLOCKS = 3 };
    for (int type = KV_F32; type <= KV_FP8; type++) {
        size_t keys = kv_block_key_bytes((enum kv_type)type, HEADS, D) * BLOCKS,
               values = kv_block_value_bytes((enum kv_type)type, HEADS, D) * BLOCKS;
        struct kv_layer kv = {(enum kv_type)type, malloc(keys), malloc(values), BLOCKS, HEADS, D, 0.5f, 2.0f};
        memset(kv.k, 0xff, keys);
        memset(kv.v, 0xff, values);
        for (int pass = 0; pass < 2; pass++) { /* store everything, then look at everything */
            uint64_t seed = 9;
            for (int slot = 0; slot < BLOCKS * KV_BLOCK; slot++)
                for (int h = 0; h < HEADS; h++) {
                    float *k = random_floats(&seed, D, 4), *v = random_floats(&seed, D, 4), gk[D], gv[D];
                    k[3] = 1e6f;
                    if (!pass)
                        kv_store(&kv, slot, h, k, v);
                    else
                        kv_load(&kv, slot, h, gk, gv);
                    for (int i = 0; pass && i < D; i++) {
                        float want_k = type == KV_F32 ? k[i]
                                       : type == KV_BF16
                                           ? bf16_to_float(bf16_from_float(k[i]))
                                           : 0.5f * fp4_e4m3_value[fp4_e4m3_from_float(k[i] / 0.5f)];
                        float want_v = type == KV_F32 ? v[i]
                                       : type == KV_BF16
                                           ? bf16_to_float(bf16_from_float(v[i]))
                                           : 2.0f * fp4_e4m3_value[fp4_e4m3_from_float(v[i] / 2.0f)];
                        assert_true(gk[i] == want_k && gv[i] == want_v);
                    }
                    free(k);
                    free(v);
                }
        }
        free(kv.k);
        free(kv.v);
    }
}

/* Each element within half a unit, of which the key's norm is KV_I16_NORM; a key of zeros is zeros. */
static void test_kv_keys_as_integers(void **state)
{
    (void)state;
    enum { D = 40, HEADS = 2, BLOCKS = 3 };
    size_t keys = kv_block_key_bytes(KV_I16, HEADS, D) * BLOCKS,
           values = kv_block_value_bytes(KV_I16, HEADS, D) * BLOCKS;
    struct kv_layer kv = {KV_I16, malloc(keys), malloc(values), BLOCKS, HEADS, D, 1, 1};
    memset(kv.k, 0xff, keys);
    memset(kv.v, 0xff, values);
    for (int pass = 0; pass < 2; pass++) {
        uint64_t seed = 9;
        for (int at = 0; at < BLOCKS * KV_BLOCK * HEADS; at++) {
            float *k = random_floats(&seed, D, at % 7 ? 4 : 0), *v = random_floats(&seed, D, 4), gk[D], gv[D];
            double norm = 0;
            if (!pass)
                kv_store(&kv, at / HEADS, at % HEADS, k, v);
            else
                kv_load(&kv, at / HEADS, at % HEADS, gk, gv);
            for (int i = 0; i < D; i++)
                norm += (double)k[i] * (double)k[i];
            for (int i = 0; pass && i < D; i++) {
                assert_true(fabs((double)gk[i] - (double)k[i]) <= 0.501 * sqrt(norm) / KV_I16_NORM);
                assert_true(gv[i] == bf16_to_float(bf16_from_float(v[i])));
            }
            free(k);
            free(v);
        }
    }
    free(kv.k);
    free(kv.v);
}

/* ---- norm and rotation --------------------------------------------------------------------------- */

/* row.h promises the same bits on every level. */
static void test_rotation_agrees_between_levels(void **state)
{
    (void)state;
    float *first = NULL;
    FOR_EACH_LEVEL(level)
    {
        struct world world;
        world_open(&world, &shapes[1]);
        world_run(&world, level, pools[1], 9, true);
        size_t bytes = (size_t)(world.max_len * 4 * 32) * 4;
        if (first)
            assert_memory_equal(first, world.rotated, (size_t)shapes[1].len[0] * 4 * 32 * 4);
        else
            memcpy(first = malloc(bytes), world.rotated, bytes);
        world_close(&world);
    }
    free(first);
}

/* A query and the cache's content by hand: norm, then rotation, then rounding. */
static void check_qkv_head(const struct world *w, int level, const float *raw, const float *norm, int p,
                           const float *got, double tolerance)
{
    const struct shape *s = w->s;
    double x[KV_HEAD_DIM_MAX], sum = 0;
    size_t d = (size_t)s->head_dim, half = (size_t)s->rotary_dim / 2;
    for (size_t i = 0; i < d; i++)
        sum += (double)raw[i] * (double)raw[i];
    for (size_t i = 0; i < d; i++)
        x[i] = norm ? (double)raw[i] / sqrt(sum / (double)d + 1e-6) * (double)norm[i] : (double)raw[i];
    for (size_t i = 0; i < half; i++) {
        size_t a = s->style == ROPE_HALF ? i : 2 * i, b = s->style == ROPE_HALF ? i + half : 2 * i + 1;
        double c = (double)w->cosine[(size_t)p * half + i], n = (double)w->sine[(size_t)p * half + i];
        double xa = x[a], xb = x[b];
        x[a] = xa * c - xb * n;
        x[b] = xb * c + xa * n;
    }
    for (size_t i = 0; i < d; i++)
        assert_close("qkv", level, got[i], x[i], tolerance * (1 + fabs(x[i])));
}

static void test_qkv_matches_double(void **state)
{
    (void)state;
    FOR_EACH_LEVEL(level)
    for (size_t n = 0; n < 11; n++) {
        struct world w;
        const struct shape *s = &shapes[n];
        world_open(&w, s);
        world_run(&w, level, pools[1], 50, true);
        size_t d = (size_t)s->head_dim;
        double rounding = s->type == KV_F32 ? 4e-6 : 0x1p-8;
        double cached = s->type == KV_FP8 ? 0x1p-3 : rounding;
        for (int p = 0; p < s->len[0]; p++) {
            for (int h = 0; h < s->n_head; h++) {
                size_t at = ((size_t)p * (size_t)s->n_head + (size_t)h) * d;
                check_qkv_head(&w, level, w.q + at, s->norm ? w.q_norm : NULL, p, w.rotated + at, rounding);
            }
            for (int h = 0; h < s->n_kv_head; h++) {
                size_t at = ((size_t)p * (size_t)s->n_kv_head + (size_t)h) * d;
                float k[KV_HEAD_DIM_MAX], v[KV_HEAD_DIM_MAX];
                kv_load(&w.kv, w.table[p / KV_BLOCK] * KV_BLOCK + p % KV_BLOCK, h, k, v);
                check_qkv_head(&w, level, w.k + at, s->norm ? w.k_norm : NULL, p, k, cached);
                for (size_t i = 0; i < d; i++)
                    assert_close("v", level, v[i], (double)w.v[at + i], cached * 2);
            }
        }
        world_close(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kv_every_element_has_its_own_place),
        cmocka_unit_test(test_kv_load_returns_what_was_stored),
        cmocka_unit_test(test_kv_keys_as_integers),
        cmocka_unit_test(test_rotation_agrees_between_levels),
        cmocka_unit_test(test_qkv_matches_double),
    };
    return cmocka_run_group_tests(tests, open_pools, close_pools);
}
