/* Models over several processes, each with an emulated GPU: beside one GPU, updated, and with one that is
 * killed. */
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>

#include "comm/comm.h"
#include "golden/device_update.h"

static pid_t *last_rank;          /* its process, in memory that all ranks share */
static bool ranks_have_sequences; /* of the next group: sequences and experts are on one rank each */
static struct how how_ranks;      /* of the next group: its seed and backend                        */

/* A model over n processes, each with an emulated GPU of its own: this one is rank 0. */
static struct model *open_ranks(const char *folder, int n_rank, bool no_fusion)
{
    const struct comm_options ranks = {.slot_bytes = 256 << 10, .timeout_ms = 20000};
    struct nyb_err err;
    struct comm *comm;
    struct model *m;
    if (!last_rank)
        last_rank = mmap(NULL, sizeof(*last_rank), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(last_rank, MAP_FAILED);
    golden_must(comm_fork(&comm, n_rank, &ranks, &err), &err);
    const struct model_options o = {.folder = folder,
                                    .load_format = how_ranks.seed ? LOAD_DUMMY : LOAD_AUTO,
                                    .dummy_seed = how_ranks.seed,
                                    .moe_backend = how_ranks.backend,
                                    .gemm_backend = how_ranks.backend,
                                    .compute = COMPUTE_BF16,
                                    .n_thread = 1,
                                    .kv_type = MODEL_KV_AUTO,
                                    .device = DEVICE_CUDA,
                                    .no_fusion = no_fusion,
                                    .expert_parallel = ranks_have_sequences,
                                    .comm = comm};
    int rank = comm_rank(comm);
    if (rank == n_rank - 1)
        *last_rank = getpid();
    enum nyb_code code = model_open(&m, &o, &err);
    if (rank > 0) {
        code = code == NYB_OK ? model_follow(m, &err) : code;
        model_close(m);
        _exit(code != NYB_OK);
    }
    golden_must(code, &err);
    assert_non_null(model_device_name(m));
    return m;
}

static struct model *open_golden_ranks(const char *name, int n_rank, bool no_fusion)
{
    char *folder = path_join(GOLDEN, name);
    struct model *m = open_ranks(folder, n_rank, no_fusion);
    free(folder);
    return m;
}

/* The first step of three sequences once more, watched, and for ids alone: the logits that it had in the
 * talk, and the likeliest of them. */
static void check_first_step(struct model *m, const struct talk *had)
{
    const struct model_probe watching = {0};
    const size_t vocab = (size_t)model_config(m)->vocab;
    struct nyb_err err;
    struct talk t;
    int first[SEQ_MAX] = {0};
    int32_t best[SEQ_MAX];
    begin_talk(&t, (int)vocab, 3, -1);
    probe_of_step = &watching;
    golden_must(step(m, &t, first, t.logits, NULL, &err), &err);
    probe_of_step = NULL;
    assert_memory_equal(t.logits, had->logits, 3 * vocab * sizeof(float));
    golden_must(step(m, &t, first, NULL, best, &err), &err);
    for (int s = 0; s < 3; s++)
        assert_int_equal(best[s], likeliest(t.logits + (size_t)s * vocab, (int)vocab));
    free(t.logits);
}

/* The likeliest tokens are those of one GPU, whose sums have another order. Graphs,
 * direct runs and runs that are watched must each be the same launches on all ranks, or they would hang. */
static void test_ranks_say_what_one_says(void **state)
{
    (void)state;
    NEED_DEVICE;
    static const struct {
        const char *model;
        int n_rank;
        bool no_fusion;
    } group[] = {{"qwen3_moe-modelopt", 2, false}, {"llama-dense-modelopt", 3, true}};
    for (size_t i = 0; i < COUNT_OF(group); i++) {
        struct model *one = open_golden(group[i].model, (struct how){0}),
                     *m = open_golden_ranks(group[i].model, group[i].n_rank, group[i].no_fusion);
        struct talk want = talk_to(one, 3, -1), a = talk_to(m, 3, -1);
        size_t vocab = (size_t)model_config(m)->vocab;
        for (int s = 0; s < 3; s++) {
            assert_int_equal(a.len[s], want.len[s]);
            assert_memory_equal(a.id[s], want.id[s], (size_t)a.len[s] * sizeof(int32_t));
        }
        assert_true(golden_error(a.logits, want.logits, 3 * vocab) < 0.02);
        check_first_step(m, &a);
        if (i == 0)
            check_drawn_steps(m, 3);
        free(want.logits);
        free(a.logits);
        model_close(one);
        model_close(m);
    }
}

/* n_out rows of logits, more than there are rows, or all of one row: sequences of `each` rows, all but the
 * last at home on rank 0. */
static float *odd_logits(struct model *m, int each, int n_out, size_t *bytes)
{
    enum { EACH_MAX = 4, ROWS = 5 * EACH_MAX, OUT_MAX = 300 };
    static const int32_t home[5] = {0, 0, 0, 0, 1};
    int32_t tok[ROWS], pos[ROWS], slot[ROWS], out[OUT_MAX], start[6], table[5];
    int vocab = model_config(m)->vocab;
    struct nyb_err err;
    for (int i = 0; i < 5 * each; i++) {
        tok[i] = (7 + 13 * i) % vocab;
        pos[i] = i % each;
        slot[i] = i / each * KV_BLOCK + pos[i];
    }
    for (int i = 0; i < n_out; i++) /* the last sequence's only among the last */
        out[i] = each == 1 ? 2 : i < 256 ? i % (4 * each) : i % (5 * each);
    for (int i = 0; i < 6; i++)
        start[i] = i * each;
    for (int i = 0; i < 5; i++)
        table[i] = i;
    const struct batch b = {.n_seq = 5,
                            .n_tok = 5 * each,
                            .n_block_max = 1,
                            .n_out = n_out,
                            .tok = tok,
                            .pos = pos,
                            .slot = slot,
                            .seq_start = start,
                            .block_table = table,
                            .out_row = out,
                            .home = home};
    *bytes = (size_t)n_out * (size_t)vocab * sizeof(float);
    float *logits = mem_alloc(*bytes, 1);
    golden_must(model_forward(m, &b, logits, NULL, &err), &err);
    return logits;
}

static void check_odd_logits(struct model *one, struct model *m, int each, int n_out)
{
    size_t bytes;
    float *want = odd_logits(one, each, n_out, &bytes), *found = odd_logits(m, each, n_out, &bytes);
    assert_memory_equal(found, want, bytes);
    free(want);
    free(found);
}

/* Every number is that of one GPU, bit for bit, wherever rows and experts are, as long as the same kernels
 * take the rows: those of packed weights do here, of the prompts of five sequences and of fewer than 32 rows.
 */
static void test_sequences_of_ranks_have_the_bits_of_one(void **state)
{
    (void)state;
    NEED_DEVICE;
    static const char name[] = "qwen3_moe-modelopt";
    ranks_have_sequences = true;
    struct model *one = open_golden(name, (struct how){0}), *m = open_golden_ranks(name, 2, false);
    ranks_have_sequences = false;
    struct talk want = talk_to(one, SEQ_MAX, -1), a = talk_to(m, SEQ_MAX, -1), three = talk_to(m, 3, -1);
    assert_memory_equal(a.logits, want.logits, talk_bytes(m, &a));
    check_first_step(m, &three);
    check_odd_logits(one, m, 4, 300);
    check_odd_logits(one, m, 1, 5); /* a graph */
    free(want.logits);
    free(a.logits);
    free(three.logits);
    model_close(one);
    model_close(m);
}

/* Weights that are not packed, a tied head and shared experts; one sequence alone, whose home is rank 1. */
static void test_sequences_of_ranks_say_what_one_says(void **state)
{
    (void)state;
    NEED_DEVICE;
    ranks_have_sequences = true;
    struct model *one = open_golden("ernie4_5_moe-modelopt", (struct how){0}),
                 *m = open_golden_ranks("ernie4_5_moe-modelopt", 2, false);
    ranks_have_sequences = false;
    for (int only = -1; only < 1; only++) {
        struct talk want = talk_to(one, 2, only), a = talk_to(m, 2, only);
        for (int s = 0; s < a.n_seq; s++) {
            assert_int_equal(a.len[s], want.len[s]);
            assert_memory_equal(a.id[s], want.id[s], (size_t)a.len[s] * sizeof(int32_t));
        }
        assert_true(golden_error(a.logits, want.logits, (size_t)a.n_seq * (size_t)model_config(m)->vocab) <
                    0.02);
        free(want.logits);
        free(a.logits);
    }
    check_drawn_steps(m, 2);
    model_close(one);
    model_close(m);
}

/* Shared experts behind the others, of which each rank has its part of every one, beside kernels that run
 * them apart: random weights depend on how they are shared out. With experts on one rank each they are apart.
 */
static void test_joined_shared_experts_of_ranks(void **state)
{
    (void)state;
    NEED_DEVICE;
    char *folder = shared_experts_folder(128, 2);
    struct model *m[2], *one = open_on_device(folder, (struct how){.seed = 1});
    struct talk t[2], alone[2];
    size_t n = 3 * (size_t)model_config(one)->vocab; /* of the prompts */
    for (int i = 0; i < 2; i++) {
        how_ranks = (struct how){.seed = 1, .backend = i ? DEVICE_BACKEND_REFERENCE : DEVICE_BACKEND_AUTO};
        m[i] = open_ranks(folder, 2, false);
        t[i] = talk_to(m[i], 3, -1);
        alone[i] = talk_on(m[i], 1, -1);
        model_close(m[i]);
    }
    assert_true(golden_error(t[0].logits, t[1].logits, n) < 0.02);
    assert_alike(&alone[0], &alone[1], n / 3);
    for (int i = 0; i < 2; i++) {
        free(t[i].logits);
        free(alone[i].logits);
    }
    how_ranks = (struct how){.seed = 1};
    ranks_have_sequences = true;
    m[1] = open_ranks(folder, 2, false);
    ranks_have_sequences = false;
    how_ranks = (struct how){0};
    t[0] = talk_to(one, 3, -1);
    t[1] = talk_to(m[1], 3, -1);
    assert_true(golden_error(t[1].logits, t[0].logits, n) < 0.02);
    free(t[0].logits);
    free(t[1].logits);
    model_close(m[1]);
    model_close(one);
    free(folder);
}

static void test_updates_of_ranks_keep_graphs(void **state)
{
    (void)state;
    NEED_DEVICE;
    if (!twins_are_possible())
        skip();
    static const char a[] = GOLDEN "qwen3_moe-modelopt";
    char *b = twin(a, "ranks", "--perturb 5");
    struct model *fresh = open_ranks(b, 2, false), *m = open_ranks(a, 2, false);
    check_update(m, fresh, a, b);
    model_close(m);
    model_close(fresh);
    free(b);
}

static void *kill_soon(void *arg)
{
    (void)arg;
    usleep(50000);
    kill(*last_rank, SIGKILL);
    return NULL;
}

/* Whenever rank 1 is killed, in a step or between two, rank 0 gets an error that says so, and no hang. */
static void test_a_rank_is_killed(void **state)
{
    (void)state;
    NEED_DEVICE;
    struct nyb_err err;
    struct model *m = open_golden_ranks("llama-dense-modelopt", 2, false);
    struct talk t = talk_to(m, 3, -1);
    pthread_t killer;
    assert_int_equal(pthread_create(&killer, NULL, kill_soon, NULL), 0);
    int first[SEQ_MAX] = {0};
    enum nyb_code code = NYB_OK;
    time_t end = time(NULL) + 60;
    while (code == NYB_OK && time(NULL) < end)
        code = step(m, &t, first, t.logits, NULL, &err);
    pthread_join(killer, NULL);
    assert_int_equal(code, NYB_E_RANK);
    assert_non_null(strstr(err.message, "rank 1"));
    free(t.logits);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_say_what_one_says),
        cmocka_unit_test(test_sequences_of_ranks_have_the_bits_of_one),
        cmocka_unit_test(test_sequences_of_ranks_say_what_one_says),
        cmocka_unit_test(test_joined_shared_experts_of_ranks),
        cmocka_unit_test(test_updates_of_ranks_keep_graphs),
        cmocka_unit_test(test_a_rank_is_killed),
    };
    return cmocka_run_group_tests(tests, make_workshop, drop_workshop);
}
