/* Whole models on the emulated plug-in: replayed graphs beside direct runs, one sequence beside many,
 * checksums and values of the weights there, updates under recorded graphs, and what a GPU that is too small
 * makes of it.
 */
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>

#include "comm/comm.h"
#include "golden/golden_data.h"
#include "unit/ckpt_files.h"

#include "model/checksum.h"
#include "model/readback.h"
#include "model/update.h"

#define GOLDEN  NYBBLE_SHARED_DIR "/golden/"
#define EXPERT  "model.layers.1.mlp.experts.2."
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
    /* For cublaslt-nvfp4: such a GPU, and a library that computes on this CPU. */
    path = mem_printf("%s/../libnybble_fake_cublaslt.so", self);
    setenv("NYBBLE_SIMT_CAPABILITY", "10", 1);
    setenv("NYBBLE_CUBLASLT", path, 1);
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
    enum device_backend backend; /* cublaslt-nvfp4 computes w4a4 */
    bool bf16_cache;
};

static struct model *open_on_device(const char *folder, struct how how)
{
    struct nyb_err err;
    struct model *m;
    const struct model_options o = {.folder = folder,
                                    .compute = how.backend == DEVICE_BACKEND_CUBLASLT_NVFP4 ? COMPUTE_W4A4
                                                                                            : COMPUTE_BF16,
                                    .n_thread = 2,
                                    .kv_type = how.bf16_cache ? KV_BF16 : MODEL_KV_AUTO,
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

static const struct model_probe *probe_of_step; /* who watches the next steps, or NULL */

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
    return best ? model_forward_best(m, &b, best, err) : model_forward(m, &b, logits, probe_of_step, err);
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

/* ---- checksums and values ------------------------------------------------------------------------ */

static char *make_twin(const char *from, const char *name, const char *edits)
{
    char *to = path_join(workshop, name);
    char *line = mem_printf("rm -rf '%s' && python3 '%s/tests/tools/twin.py' '%s' '%s' %s", to,
                            NYBBLE_SOURCE_DIR, from, to, edits);
    assert_int_equal(system(line), 0);
    free(line);
    return to;
}

static void show_difference(void *arg, const char *name)
{
    (void)arg;
    print_error("differs: %s\n", name);
}

static void assert_same(const struct checksum *a, const char *folder)
{
    struct checksum b;
    struct nyb_err err;
    golden_must(checksum_folder(&b, folder, 2, &err), &err);
    assert_int_equal(checksum_compare(a, &b, show_difference, NULL), 0);
    assert_memory_equal(&a->total, &b.total, sizeof(b.total));
    checksum_free(&b);
}

static void assert_checksum(struct model *m, const char *folder)
{
    struct checksum a;
    struct nyb_err err;
    golden_must(checksum_model(&a, m, 2, &err), &err);
    assert_same(&a, folder);
    checksum_free(&a);
}

/* Of every parameter, from the GPU and from this process's memory. */
static void assert_values(struct model *m, const char *folder, size_t max)
{
    struct nyb_err err;
    struct checksum all;
    struct model *cpu;
    const struct model_options o = {
        .folder = folder, .compute = COMPUTE_BF16, .n_thread = 1, .kv_type = MODEL_KV_AUTO};
    golden_must(model_open(&cpu, &o, &err), &err);
    golden_must(checksum_folder(&all, folder, 1, &err), &err);
    for (int i = 0; i < all.n_tensor; i++) {
        struct readback a, b;
        if (!strcmp(all.tensor[i].name, "kv_scales"))
            continue;
        golden_must(readback_values(&a, m, all.tensor[i].name, max, &err), &err);
        golden_must(readback_values(&b, cpu, all.tensor[i].name, max, &err), &err);
        assert_string_equal(a.type, b.type);
        assert_true(a.n == b.n && a.rows == b.rows && a.columns == b.columns);
        assert_memory_equal(a.value, b.value, a.n * sizeof(*a.value));
        free(a.value);
        free(b.value);
    }
    checksum_free(&all);
    model_close(cpu);
}

static void check_weights(const char *folder, struct how how)
{
    struct model *m = open_on_device(folder, how);
    assert_checksum(m, folder);
    assert_values(m, folder, how.backend == DEVICE_BACKEND_AUTO ? SIZE_MAX : 1234);
    model_close(m);
}

/* What lies on the GPU is the checkpoint: packed, in pairs, row-major, dense and experts. */
static void test_checksums_and_values(void **state)
{
    (void)state;
    NEED_DEVICE;
    static const char *const name[] = {"ernie4_5_moe-modelopt",
                                       "glm4_moe-compressed-tensors-sharded",
                                       "glm4_moe-modelopt",
                                       "llama-dense-modelopt",
                                       "mixtral-modelopt",
                                       "qwen3-dense-modelopt",
                                       "qwen3_moe-compressed-tensors",
                                       "qwen3_moe-modelopt"};
    for (size_t i = 0; i < COUNT_OF(name); i++) {
        char *folder = path_join(GOLDEN, name[i]);
        check_weights(folder, (struct how){0});
        if (i % 4 == 3)
            check_weights(folder, (struct how){.backend = DEVICE_BACKEND_REFERENCE});
        if (i == 1 || i == 3)
            check_weights(folder, (struct how){.backend = DEVICE_BACKEND_CUBLASLT_NVFP4});
        free(folder);
    }
}

/* Block scales of zero, of both signs, NaN over zeros, and negative ones. */
static void test_checksums_of_odd_scales(void **state)
{
    (void)state;
    NEED_DEVICE;
    if (system("python3 -c '' >&2") != 0)
        skip();
    char *odd =
        make_twin(GOLDEN "qwen3_moe-modelopt", "odd",
                  "--hide " EXPERT "gate_proj 1 --hide " EXPERT "up_proj 2 --hide " EXPERT "down_proj 3 "
                  "--hide model.layers.1.self_attn.k_proj 4 --negate " EXPERT "up_proj.weight_scale");
    check_weights(odd, (struct how){0});
    check_weights(odd, (struct how){.backend = DEVICE_BACKEND_REFERENCE});
    check_weights(odd, (struct how){.backend = DEVICE_BACKEND_CUBLASLT_NVFP4});
    free(odd);
}

/* Steps, and the recording of graphs, go on while other threads read the weights. */
static void test_checksums_beside_steps(void **state)
{
    (void)state;
    NEED_DEVICE;
    struct nyb_err err;
    struct model *m = open_golden("qwen3_moe-modelopt", (struct how){0});
    struct talk before = talk_to(m, 3, -1);
    for (int i = 0; i < 2; i++) {
        struct checksum sum;
        bool done = false;
        checksum_start(m, 2);
        struct talk beside = talk_to(m, 3, -1);
        while (!done)
            golden_must(checksum_poll(m, &done, &err), &err);
        golden_must(checksum_finish(&sum, m, &err), &err);
        assert_same(&sum, GOLDEN "qwen3_moe-modelopt");
        assert_memory_equal(beside.logits, before.logits, talk_bytes(m, &before));
        checksum_free(&sum);
        free(beside.logits);
    }
    free(before.logits);
    model_close(m);
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
    for (size_t i = 0; i < 3; i++) {
        const char *name = i < 2 ? models[i] : "llama-dense-modelopt";
        struct how how = {.backend = i < 2 ? DEVICE_BACKEND_AUTO : DEVICE_BACKEND_CUBLASLT_NVFP4};
        char *a = path_join(GOLDEN, name), *b = make_twin(a, name, "--perturb 5");
        struct model *m = open_on_device(a, how), *fresh = open_on_device(b, how);
        struct talk before = talk_to(m, 2, -1);
        for (enum update_point point = UPDATE_AT_READ; point <= UPDATE_AT_COMMIT; point++) {
            assert_int_equal(update_to(m, b, &point, &err), NYB_E_IO);
            struct talk same = talk_to(m, 2, -1);
            assert_memory_equal(same.logits, before.logits, talk_bytes(m, &same));
            assert_checksum(m, a);
            free(same.logits);
        }
        golden_must(update_to(m, b, NULL, &err), &err);
        assert_checksum(m, b);
        struct talk after = talk_to(m, 2, -1), want = talk_to(fresh, 2, -1);
        assert_memory_equal(after.logits, want.logits, talk_bytes(m, &after));
        assert_memory_not_equal(after.logits, before.logits, talk_bytes(m, &after));
        free(before.logits);
        free(after.logits);
        free(want.logits);
        model_close(m);
        model_close(fresh);
        free(a);
        free(b);
    }
}

/* ---- several ranks ------------------------------------------------------------------------------- */

static pid_t *last_rank; /* its process, in memory that all ranks share */

/* A model over n processes, each with an emulated GPU of its own: this one is rank 0. */
static struct model *open_ranks(const char *name, int n_rank, bool no_fusion)
{
    const struct comm_options ranks = {.slot_bytes = 256 << 10, .timeout_ms = 20000};
    char *folder = path_join(GOLDEN, name);
    struct nyb_err err;
    struct comm *comm;
    struct model *m;
    if (!last_rank)
        last_rank = mmap(NULL, sizeof(*last_rank), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(last_rank, MAP_FAILED);
    golden_must(comm_fork(&comm, n_rank, &ranks, &err), &err);
    const struct model_options o = {.folder = folder,
                                    .compute = COMPUTE_BF16,
                                    .n_thread = 1,
                                    .kv_type = MODEL_KV_AUTO,
                                    .device = DEVICE_CUDA,
                                    .no_fusion = no_fusion,
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
    free(folder);
    return m;
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
    const struct model_probe watching = {0};
    for (size_t i = 0; i < COUNT_OF(group); i++) {
        struct model *one = open_golden(group[i].model, (struct how){0}),
                     *m = open_ranks(group[i].model, group[i].n_rank, group[i].no_fusion);
        struct talk want = talk_to(one, 3, -1), a = talk_to(m, 3, -1), t;
        struct nyb_err err;
        size_t vocab = (size_t)model_config(m)->vocab;
        int first[SEQ_MAX] = {0};
        int32_t best[SEQ_MAX];
        for (int s = 0; s < 3; s++) {
            assert_int_equal(a.len[s], want.len[s]);
            assert_memory_equal(a.id[s], want.id[s], (size_t)a.len[s] * sizeof(int32_t));
        }
        assert_true(golden_error(a.logits, want.logits, 3 * vocab) < 0.02);
        begin_talk(&t, (int)vocab, 3, -1);
        probe_of_step = &watching;
        golden_must(step(m, &t, first, t.logits, NULL, &err), &err);
        probe_of_step = NULL;
        assert_memory_equal(t.logits, a.logits, 3 * vocab * sizeof(float));
        golden_must(step(m, &t, first, NULL, best, &err), &err);
        for (int s = 0; s < 3; s++)
            assert_int_equal(best[s], likeliest(t.logits + (size_t)s * vocab, (int)vocab));
        free(t.logits);
        free(want.logits);
        free(a.logits);
        model_close(one);
        model_close(m);
    }
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
    struct model *m = open_ranks("llama-dense-modelopt", 2, false);
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
        cmocka_unit_test(test_graphs_equal_direct_runs),   cmocka_unit_test(test_alone_as_among_others),
        cmocka_unit_test(test_longer_steps_than_expected), cmocka_unit_test(test_best_is_the_likeliest),
        cmocka_unit_test(test_reference_backend_agrees),   cmocka_unit_test(test_checksums_and_values),
        cmocka_unit_test(test_checksums_of_odd_scales),    cmocka_unit_test(test_checksums_beside_steps),
        cmocka_unit_test(test_updates_keep_graphs),        cmocka_unit_test(test_ranks_say_what_one_says),
        cmocka_unit_test(test_a_rank_is_killed),           cmocka_unit_test(test_memory_runs_out),
    };
    return cmocka_run_group_tests(tests, make_workshop, drop_workshop);
}
