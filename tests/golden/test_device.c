/* Whole models on the emulated plug-in: replayed graphs beside direct runs, one sequence beside many, and
 * what a GPU that is too small makes of it. */
#include "golden/device_case.h"

static const char *const models[] = {"qwen3_moe-modelopt", "ernie4_5_moe-modelopt", "glm4_moe-modelopt",
                                     "llama-dense-modelopt"};

static void check_graphs(const char *name, struct how how)
{
    struct how without = how;
    without.no_graphs = true;
    struct model *m = open_golden(name, how), *direct = open_golden(name, without);
    /* three sequences: a graph of four rows, one of which is padding */
    struct talk a = talk_to(m, 3, -1), b = talk_to(direct, 3, -1), again = talk_to(m, 3, -1);
    assert_memory_equal(a.logits, b.logits, talk_bytes(m, &a));
    assert_memory_equal(a.logits, again.logits, talk_bytes(m, &a));
    free(a.logits);
    free(b.logits);
    free(again.logits);
    model_close(m);
    model_close(direct);
}

static void test_graphs_equal_direct_runs(void **state)
{
    (void)state;
    NEED_DEVICE;
    for (size_t i = 0; i < COUNT_OF(models); i++)
        check_graphs(models[i], (struct how){0});
    check_graphs("llama-dense-modelopt", (struct how){.backend = DEVICE_BACKEND_CUBLASLT_NVFP4});
    check_graphs("qwen3_moe-modelopt",
                 (struct how){.backend = DEVICE_BACKEND_CUBLASLT_NVFP4, .bf16_cache = true});
}

static void test_alone_as_among_others(void **state)
{
    (void)state;
    NEED_DEVICE;
    struct model *m = open_golden("llama-dense-modelopt", (struct how){0});
    struct talk all = talk_to(m, SEQ_MAX, -1);
    for (int i = 0; i < SEQ_MAX; i++) {
        struct talk one = talk_to(m, SEQ_MAX, i);
        assert_int_equal(one.len[0], all.len[i]);
        assert_memory_equal(one.id[0], all.id[i], (size_t)one.len[0] * sizeof(int32_t));
        free(one.logits);
    }
    free(all.logits);
    model_close(m);
}

/* The room is made for eight rows; the prompts have more. */
static void test_longer_steps_than_expected(void **state)
{
    (void)state;
    NEED_DEVICE;
    struct model *m = open_golden("qwen3_moe-modelopt", (struct how){.max_tokens = 8});
    struct model *roomy = open_golden("qwen3_moe-modelopt", (struct how){0});
    struct talk a = talk_to(m, 3, -1), b = talk_to(roomy, 3, -1);
    assert_memory_equal(a.logits, b.logits, talk_bytes(m, &a));
    free(a.logits);
    free(b.logits);
    model_close(m);
    model_close(roomy);
}

static void test_best_is_the_likeliest(void **state)
{
    (void)state;
    NEED_DEVICE;
    struct nyb_err err;
    struct model *m = open_golden("qwen3-dense-modelopt", (struct how){0});
    int vocab = model_config(m)->vocab, first[SEQ_MAX] = {0};
    int32_t best[SEQ_MAX];
    struct talk t;
    golden_must(model_kv_reserve(m, SEQ_MAX * LEN_MAX / KV_BLOCK, &err), &err);
    begin_talk(&t, vocab, 3, -1);
    for (int s = 0; s < 3; s++) { /* a direct run, then graphs */
        golden_must(step(m, &t, first, t.logits, NULL, &err), &err);
        golden_must(step(m, &t, first, NULL, best, &err), &err);
        for (int i = 0; i < t.n_seq; i++) {
            assert_int_equal(best[i], likeliest(t.logits + (size_t)i * (size_t)vocab, vocab));
            first[i] = t.len[i];
            t.id[i][t.len[i]++] = best[i];
        }
    }
    free(t.logits);
    model_close(m);
}

/* Counters of routers' choices are right at any moment. */
static void test_expert_load(void **state)
{
    (void)state;
    NEED_DEVICE;
    struct model *m = open_golden("qwen3_moe-modelopt", (struct how){0});
    const struct model_config *c = model_config(m);
    uint64_t *count = mem_alloc((size_t)c->moe.n_expert, sizeof(*count));
    uint64_t rows = 0;
    for (int i = 0; i < 2; i++) {
        struct talk t = talk_to(m, 3, -1);
        for (int s = 0; s < t.n_seq; s++)
            rows += (uint64_t)t.len[s] - 1; /* the last token is no input yet */
        free(t.logits);
        for (int l = 0; l < c->n_layer; l++) {
            uint64_t all = 0;
            if (!model_expert_load(m, l, count))
                continue;
            for (int e = 0; e < c->moe.n_expert; e++)
                all += count[e];
            assert_int_equal(all, rows * (uint64_t)c->moe.top_k);
        }
    }
    free(count);
    model_close(m);
}

/* The row-major kernels and those of the packed layout: other sums, the same model. */
static void test_reference_backend_agrees(void **state)
{
    (void)state;
    NEED_DEVICE;
    struct model *m = open_golden("qwen3_moe-modelopt", (struct how){0});
    struct model *plain =
        open_golden("qwen3_moe-modelopt", (struct how){.backend = DEVICE_BACKEND_REFERENCE});
    struct talk a = talk_to(m, 2, -1), b = talk_to(plain, 2, -1);
    size_t n = 2 * (size_t)model_config(m)->vocab; /* of the prompts */
    assert_true(golden_error(a.logits, b.logits, n) < 0.05);
    free(a.logits);
    free(b.logits);
    model_close(m);
    model_close(plain);
}

/* ---- too little memory --------------------------------------------------------------------------------- */

/* A step of 4000 rows beside a cache that has taken nearly all memory is an error, and the next one works. */
static void check_long_step_fails(struct model *m)
{
    enum { ROWS = 4000 };
    struct nyb_err err;
    struct talk t;
    int first[SEQ_MAX] = {0}, vocab = model_config(m)->vocab, n_block = LEN_MAX / KV_BLOCK;
    static int32_t zeros[ROWS];
    const int32_t start[2] = {0, ROWS}, out[1] = {0};
    size_t n_kv = (size_t)model_kv_room(m) / model_kv_block_bytes(m);
    assert_true(n_kv > (size_t)(SEQ_MAX * n_block) && n_kv < 1 << 20);
    golden_must(model_kv_reserve(m, (int)n_kv, &err), &err);
    const struct batch b = {.n_seq = 1,
                            .n_tok = ROWS,
                            .n_block_max = 1,
                            .tok = zeros,
                            .pos = zeros,
                            .slot = zeros,
                            .seq_start = start,
                            .block_table = zeros,
                            .out_row = out};
    assert_int_equal(model_forward(m, &b, NULL, NULL, &err), NYB_E_MEMORY);
    assert_non_null(strstr(err.message, "the room of a step"));
    begin_talk(&t, vocab, 1, -1);
    t.len[0] = 8;
    golden_must(step(m, &t, first, t.logits, NULL, &err), &err);
    free(t.logits);
}

static void test_memory_runs_out(void **state)
{
    (void)state;
    NEED_DEVICE;
    struct nyb_err err;
    setenv("NYBBLE_SIMT_MEMORY", "64", 1);
    struct model *m = open_golden("qwen3_moe-modelopt", (struct how){.max_tokens = 32});
    struct talk before = talk_to(m, 2, -1);
    assert_int_equal(model_kv_reserve(m, 1 << 20, &err), NYB_E_MEMORY);
    assert_non_null(strstr(err.message, "the KV cache"));
    struct talk after = talk_to(m, 2, -1); /* reserves a cache that fits */
    assert_memory_equal(before.logits, after.logits, talk_bytes(m, &before));
    free(before.logits);
    free(after.logits);
    check_long_step_fails(m);
    model_close(m);
    unsetenv("NYBBLE_SIMT_MEMORY");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_graphs_equal_direct_runs),
        cmocka_unit_test(test_alone_as_among_others),
        cmocka_unit_test(test_longer_steps_than_expected),
        cmocka_unit_test(test_best_is_the_likeliest),
        cmocka_unit_test(test_expert_load),
        cmocka_unit_test(test_reference_backend_agrees),
        cmocka_unit_test(test_memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
