/* Checksums and values of parameters that several processes hold a part of each. */
#include "golden/checksums.h"
#include "golden/rank_group.h"
#include "golden/workshop.h"

#include "model/readback.h"
#include "model/weights.h"

static void test_checksums_on_any_ranks(void **state)
{
    (void)state;
    static const char *const folder[] = {TALES, GOLDEN "glm4_moe-modelopt", GOLDEN "llama-dense-modelopt"};
    NEED(GOLDEN);
    for (size_t i = 0; i < COUNT_OF(folder); i++)
        for (int n_rank = 2; n_rank <= 4; n_rank++)
            for (int experts = 0; experts < (n_rank < 4 ? 2 : 1); experts++) {
                struct model *m = open_group(folder[i], n_rank, experts);
                assert_checksum(m, folder[i]);
                close_group(m);
            }
}

/* Adding up fails, twice: whoever asked may still say that it is over, and the ranks go on. */
static void test_ranks_that_differ(void **state)
{
    (void)state;
    followers_differ = true;
    struct model *m = open_group(TALES, 2, false);
    followers_differ = false;
    for (int i = 0; i < 2; i++) {
        struct checksum sum;
        struct nyb_err err;
        bool done = false;
        checksum_start(m, 1);
        while (!done)
            golden_must(checksum_poll(m, &done, &err), &err);
        assert_int_equal(checksum_finish(&sum, m, &err), NYB_E_INTERNAL);
        assert_non_null(strstr(err.message, "do not hold the same numbers"));
        assert_non_null(strstr(err.where, "norm"));
        checksum_drop(m);
        free(golden_answer(m));
    }
    close_group(m);
}

static void assert_values(struct model *m, struct model *one, const char *name, size_t max)
{
    struct readback a, b;
    struct nyb_err err;
    golden_must(readback_values(&a, one, name, max, &err), &err);
    golden_must(readback_values(&b, m, name, max, &err), &err);
    assert_int_equal(a.n, b.n);
    assert_int_equal(a.rows, b.rows);
    assert_int_equal(a.columns, b.columns);
    assert_string_equal(a.type, b.type);
    assert_memory_equal(a.value, b.value, a.n * sizeof(*a.value));
    free(a.value);
    free(b.value);
}

static void test_values_on_any_ranks(void **state)
{
    (void)state;
    static const char folder[] = GOLDEN "glm4_moe-modelopt";
    struct nyb_err err;
    NEED(GOLDEN);
    struct model *one = golden_model(folder, COMPUTE_BF16, 1);
    for (int n_rank = 2; n_rank <= 4; n_rank++) {
        struct model *m = open_group(folder, n_rank, n_rank == 3);
        const struct slots *s = &model_weights(one)->slots;
        for (int k = 0; k < s->n; k++) {
            assert_values(m, one, s->slot[k].name, 1234);
            assert_values(m, one, s->slot[k].name, SIZE_MAX);
        }
        struct readback r;
        assert_int_equal(readback_values(&r, m, "nobody", 9, &err), NYB_E_NOT_FOUND);
        close_group(m);
    }
    model_close(one);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checksums_on_any_ranks),
        cmocka_unit_test(test_ranks_that_differ),
        cmocka_unit_test(test_values_on_any_ranks),
    };
    return cmocka_run_group_tests(tests, make_workshop, drop_workshop);
}
