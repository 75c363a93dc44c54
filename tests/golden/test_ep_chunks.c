/* Experts shared out over processes where the rows of a step do not go through a layer's experts at once but
 * in chunks: the same logits, to the bit, as one process has, with shared experts and without, in halves that
 * overlap and not. */
#include "comm/comm.h"
#include "golden/device_case.h"

static struct model *open_chunks(const char *folder, int n_rank, int rows, bool overlap)
{
    const struct comm_options ranks = {.slot_bytes = 256 << 10, .timeout_ms = 20000};
    struct nyb_err err;
    struct comm *comm = NULL;
    struct model *m;
    if (n_rank > 1)
        golden_must(comm_fork(&comm, n_rank, &ranks, &err), &err);
    const struct model_options o = {
        .folder = folder,
        .compute = COMPUTE_BF16,
        .n_thread = 1,
        .kv_type = MODEL_KV_AUTO,
        .comm = comm,
        .expert_parallel = n_rank > 1,
        .dispatch_rows = rows,
        .overlap = {.mode = overlap ? OVERLAP_ALWAYS : OVERLAP_OFF, .prefill_min = 2, .decode_min = 2}};
    enum nyb_code code = model_open(&m, &o, &err);
    if (comm && comm_rank(comm) > 0) {
        code = code == NYB_OK ? model_follow(m, &err) : code;
        model_close(m);
        _exit(code != NYB_OK);
    }
    golden_must(code, &err);
    return m;
}

/* Steps of 9, 12 and 15 rows and more of five sequences, then of one row each. */
static void check(const char *name, int n_rank, int rows, bool overlap)
{
    char *folder = path_join(GOLDEN, name);
    struct model *one = open_chunks(folder, 1, 0, false), *m = open_chunks(folder, n_rank, rows, overlap);
    struct talk want = talk_to(one, SEQ_MAX, -1), have = talk_to(m, SEQ_MAX, -1);
    size_t vocab = (size_t)model_config(m)->vocab;
    for (int s = 0; s < SEQ_MAX; s++)
        assert_memory_equal(have.id[s], want.id[s], (size_t)want.len[s] * sizeof(int32_t));
    if (memcmp(have.logits, want.logits, (STEPS + 1) * SEQ_MAX * vocab * sizeof(float)))
        fail_msg("%s, %d ranks, %d rows at once%s: other logits than one rank's", name, n_rank, rows,
                 overlap ? ", overlap" : "");
    free(want.logits);
    free(have.logits);
    model_close(one);
    model_close(m);
    free(folder);
}

static void test_chunks_say_what_one_rank_says(void **state)
{
    (void)state;
    if (!file_is_dir(GOLDEN))
        skip();
    check("glm4_moe-modelopt", 2, 1, false); /* shared experts */
    check("glm4_moe-modelopt", 3, 4, true);
    check("ernie4_5_moe-modelopt", 2, 5, true);
    check("qwen3_moe-modelopt", 3, 7, false);
    check("qwen3_moe-modelopt", 2, 1000, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_chunks_say_what_one_rank_says)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
