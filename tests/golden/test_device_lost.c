/* An emulated GPU that is lost at any call of a step. */
#include "golden/checksums.h"
#include "golden/device_case.h"

static char *lost; /* as long as this file is there (simt_lost.cc) */

/* From that call of the plug-in on; < 0: it is back. */
static void lose_gpu(int call)
{
    FILE *f = call < 0 ? NULL : fopen(lost, "w");
    if (f) {
        fprintf(f, "%d", call);
        fclose(f);
    } else {
        unlink(lost);
    }
}

/* At whichever call of a step it goes, the step is an error that says so, and when it is back steps are right
 * again. */
static void check_lost_steps(struct model *m, bool draws)
{
    struct nyb_err err = {0};
    uint64_t rng = 3;
    int first[SEQ_MAX] = {0}, n_failed = 0;
    int32_t token[SEQ_MAX], want[SEQ_MAX];
    struct draw draw[SEQ_MAX];
    for (int i = 0; i < SEQ_MAX; i++)
        draw[i] = random_draw(&rng);
    golden_must(model_kv_reserve(m, SEQ_MAX * LEN_MAX / KV_BLOCK, &err), &err);
    struct talk t = talk_on(m, 2, -1);
    size_t bytes = 2 * (size_t)model_config(m)->vocab * sizeof(float);
    float *now = mem_alloc(bytes, 1), *then = mem_alloc(bytes, 1);
    for (int i = 0; i < 2; i++)
        first[i] = t.len[i] - 1; /* one row each: a graph */
    draws_of_step = draws ? draw : NULL;
    golden_must(step(m, &t, first, then, draws ? want : NULL, &err), &err);
    enum nyb_code code = NYB_E_INTERNAL;
    for (int call = 0; code != NYB_OK && call < 50; call++) {
        lose_gpu(call);
        code = step(m, &t, first, now, draws ? token : NULL, &err);
        lose_gpu(-1);
        n_failed += code != NYB_OK;
        assert_true(code == NYB_OK || strstr(err.message, "the device is lost"));
        golden_must(step(m, &t, first, now, draws ? token : NULL, &err), &err);
        for (int i = 0; i < 2 && draws; i++)
            assert_true(!draw[i].wanted || token[i] == want[i]);
        assert_true(draws || !memcmp(now, then, bytes));
    }
    draws_of_step = NULL;
    assert_true(code == NYB_OK && n_failed >= 3);
    free(now);
    free(then);
    free(t.logits);
}

static void test_a_gpu_is_lost(void **state)
{
    (void)state;
    NEED_DEVICE;
    struct nyb_err err;
    lost = path_join(workshop, "lost");
    setenv("NYBBLE_SIMT_LOST", lost, 1);
    struct model *m = open_golden("qwen3_moe-modelopt", (struct how){0});
    check_lost_steps(m, false);
    check_lost_steps(m, true);
    lose_gpu(0);
    assert_true(model_kv_reserve(m, 9, &err) != NYB_OK && strstr(err.message, "the device is lost"));
    lose_gpu(-1);
    assert_checksum(m, GOLDEN "qwen3_moe-modelopt");
    model_close(m);
    unsetenv("NYBBLE_SIMT_LOST");
    free(lost);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_gpu_is_lost),
    };
    return cmocka_run_group_tests(tests, make_workshop, drop_workshop);
}
