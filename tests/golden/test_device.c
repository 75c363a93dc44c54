/* Whole models on the emulated plug-in: replayed graphs beside direct runs, one sequence beside many, updates
 * under recorded graphs, and what a GPU that is too small makes of it. */
#include "golden/golden_data.h"
#include "unit/ckpt_files.h"

#include "model/update.h"

#define GOLDEN  NYBBLE_SHARED_DIR "/golden/"
#define SEQ_MAX 5
#define LEN_MAX 64
#define PROMPT  9
#define STEPS   3

static char *workshop;

static int make_workshop(void **state)
{
    (void)state;
    workshop = folder_make();
    return 0;
}

static int drop_workshop(void **state)
{
    (void)state;
    folder_drop(workshop);
    return 0;
}

/* The plug-in lies above the tests in the build folder. */
static bool use_emulated(void)
{
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    assert_true(n > 0);
    self[n] = 0;
    *strrchr(self, '/') = 0;
    char *path = mem_printf("%s/../libnybble_cuda_emu.so", self);
    bool there = file_exists(path);
    setenv("NYBBLE_CUDA_PLUGIN", path, 1);
    free(path);
    return there && file_is_dir(GOLDEN);
}

#define NEED_DEVICE          \
    do {                     \
        if (!use_emulated()) \
            skip();          \
    } while (0)

struct how {
    bool no_graphs;
    int max_tokens;
    enum device_backend backend;
};

static struct model *open_on_device(const char *folder, struct how how)
{
    struct nyb_err err;
    struct model *m;
    const struct model_options o = {.folder = folder,
                                    .compute = COMPUTE_BF16,
                                    .n_thread = 2,
                                    .kv_type = MODEL_KV_AUTO,
                                    .device = DEVICE_CUDA,
                                    .moe_backend = how.backend,
                                    .gemm_backend = how.backend,
                                    .max_batched_tokens = how.max_tokens,
                                    .no_graphs = how.no_graphs};
    golden_must(model_open(&m, &o, &err), &err);
    assert_non_null(model_device_name(m));
    return m;
}

static struct model *open_golden(const char *name, struct how how)
{
    char *folder = path_join(GOLDEN, name);
    struct model *m = open_on_device(folder, how);
    free(folder);
    return m;
}

/* ---- sequences ----------------------------------------------------------------------------------- */

/* n_seq sequences of different lengths, and what the model says to them: logits of every step. */
struct talk {
    int n_seq;
    int32_t id[SEQ_MAX][LEN_MAX];
    int len[SEQ_MAX];
    float *logits; /* (STEPS + 1, n_seq, vocab) */
};

/* Sequence i of a talk is the same whoever else is in it; `only` >= 0: alone. */
static void begin_talk(struct talk *t, int vocab, int n_seq, int only)
{
    *t = (struct talk){.n_seq = only >= 0 ? 1 : n_seq};
    for (int i = 0; i < t->n_seq; i++) {
        int who = only >= 0 ? only : i;
        t->len[i] = PROMPT + 3 * who;
        for (int j = 0; j < t->len[i]; j++)
            t->id[i][j] = (5 + 11 * j + 17 * who) % vocab;
    }
    t->logits = mem_alloc((STEPS + 1) * (size_t)t->n_seq * (size_t)vocab, sizeof(float));
}

/* Tokens [first[i], len[i]) of each sequence as one step. Blocks of a sequence are scattered. */
static enum nyb_code step(struct model *m, const struct talk *t, const int *first, float *logits,
                          int32_t *best, struct nyb_err *err)
{
    static int32_t tok[SEQ_MAX * LEN_MAX], pos[SEQ_MAX * LEN_MAX], slot[SEQ_MAX * LEN_MAX];
    int32_t start[SEQ_MAX + 1] = {0}, out[SEQ_MAX], table[SEQ_MAX * LEN_MAX / KV_BLOCK];
    int n = 0, n_block = LEN_MAX / KV_BLOCK;
    for (int i = 0; i < t->n_seq; i++) {
        for (int b = 0; b < n_block; b++)
            table[i * n_block + b] = (b * SEQ_MAX + 3 * i + 1) % (SEQ_MAX * n_block);
        for (int j = first[i]; j < t->len[i]; j++, n++) {
            tok[n] = t->id[i][j];
            pos[n] = j;
            slot[n] = table[i * n_block + j / KV_BLOCK] * KV_BLOCK + j % KV_BLOCK;
        }
        start[i + 1] = n;
        out[i] = n - 1;
    }
    const struct batch b = {.n_seq = t->n_seq,
                            .n_tok = n,
                            .n_block_max = n_block,
                            .n_out = t->n_seq,
                            .tok = tok,
                            .pos = pos,
                            .slot = slot,
                            .seq_start = start,
                            .block_table = table,
                            .out_row = out};
    return best ? model_forward_best(m, &b, best, err) : model_forward(m, &b, logits, NULL, err);
}

static int32_t likeliest(const float *x, int n)
{
    int32_t best = 0;
    for (int i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return best;
}

/* The prompts, then STEPS greedy tokens each. */
static void hold_talk(struct model *m, struct talk *t)
{
    struct nyb_err err;
    int vocab = model_config(m)->vocab, first[SEQ_MAX] = {0};
    for (int s = 0; s <= STEPS; s++) {
        float *logits = t->logits + (size_t)s * (size_t)t->n_seq * (size_t)vocab;
        golden_must(step(m, t, first, logits, NULL, &err), &err);
        for (int i = 0; i < t->n_seq; i++) {
            first[i] = t->len[i];
            t->id[i][t->len[i]++] = likeliest(logits + (size_t)i * (size_t)vocab, vocab);
        }
    }
}

static struct talk talk_to(struct model *m, int n_seq, int only)
{
    struct nyb_err err;
    struct talk t;
    golden_must(model_kv_reserve(m, SEQ_MAX * LEN_MAX / KV_BLOCK, &err), &err);
    begin_talk(&t, model_config(m)->vocab, n_seq, only);
    hold_talk(m, &t);
    return t;
}

static size_t talk_bytes(const struct model *m, const struct talk *t)
{
    return (STEPS + 1) * (size_t)t->n_seq * (size_t)model_config(m)->vocab * sizeof(float);
}

static const char *const models[] = {"qwen3_moe-modelopt", "ernie4_5_moe-modelopt", "glm4_moe-modelopt",
                                     "llama-dense-modelopt"};

/* ---- tests --------------------------------------------------------------------------------------- */

static void test_graphs_equal_direct_runs(void **state)
{
    (void)state;
    NEED_DEVICE;
    for (size_t i = 0; i < COUNT_OF(models); i++) {
        struct model *m = open_golden(models[i], (struct how){0});
        struct model *direct = open_golden(models[i], (struct how){.no_graphs = true});
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

/* ---- updates ------------------------------------------------------------------------------------- */

static enum nyb_code fault_at(void *arg, enum update_point point, int64_t count)
{
    (void)count;
    return point == *(const enum update_point *)arg ? NYB_E_IO : NYB_OK;
}

static enum nyb_code update_to(struct model *m, const char *folder, const enum update_point *fault,
                               struct nyb_err *err)
{
    struct update *u;
    struct update_facts facts;
    struct update_options o = {.folder = folder, .staging = UPDATE_STAGING_AUTO};
    if (fault) {
        o.fault = fault_at;
        o.fault_arg = (void *)(uintptr_t)fault;
    }
    TRY(update_prepare(&u, m, &o, &facts, err));
    enum nyb_code code = update_stage(u, err);
    if (code == NYB_OK)
        code = update_commit(u, err);
    assert_int_equal(update_state(u), code == NYB_OK ? UPDATE_NEW : UPDATE_OLD);
    update_close(u);
    return code;
}

/* Graphs that were recorded before an update compute with the weights after it, and a failed one leaves all
 * as it was. */
static void test_updates_keep_graphs(void **state)
{
    (void)state;
    NEED_DEVICE;
    if (system("python3 -c '' >&2") != 0)
        skip();
    struct nyb_err err;
    for (size_t i = 0; i < 2; i++) {
        char *a = path_join(GOLDEN, models[i]), *b = path_join(workshop, models[i]);
        char *line = mem_printf("rm -rf '%s' && python3 '%s/tests/tools/twin.py' '%s' '%s' --perturb 5", b,
                                NYBBLE_SOURCE_DIR, a, b);
        assert_int_equal(system(line), 0);
        struct model *m = open_on_device(a, (struct how){0}), *fresh = open_on_device(b, (struct how){0});
        struct talk before = talk_to(m, 2, -1);
        for (enum update_point point = UPDATE_AT_READ; point <= UPDATE_AT_COMMIT; point++) {
            assert_int_equal(update_to(m, b, &point, &err), NYB_E_IO);
            struct talk same = talk_to(m, 2, -1);
            assert_memory_equal(same.logits, before.logits, talk_bytes(m, &same));
            free(same.logits);
        }
        golden_must(update_to(m, b, NULL, &err), &err);
        struct talk after = talk_to(m, 2, -1), want = talk_to(fresh, 2, -1);
        assert_memory_equal(after.logits, want.logits, talk_bytes(m, &after));
        assert_memory_not_equal(after.logits, before.logits, talk_bytes(m, &after));
        free(before.logits);
        free(after.logits);
        free(want.logits);
        model_close(m);
        model_close(fresh);
        free(line);
        free(a);
        free(b);
    }
}

/* ---- too little memory --------------------------------------------------------------------------- */

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
        cmocka_unit_test(test_reference_backend_agrees),
        cmocka_unit_test(test_updates_keep_graphs),
        cmocka_unit_test(test_memory_runs_out),
    };
    return cmocka_run_group_tests(tests, make_workshop, drop_workshop);
}
