/* Two-batch overlap on emulated GPUs: steps that are cut say what those say that are not, directly and as
 * graphs, whose two streams the emulator replays in every order that their events allow; what is seen of both
 * lanes. */
#include "comm/comm.h"
#include "golden/emulated.h"
#include "golden/golden_data.h"

#define GOLDEN    NYBBLE_SHARED_DIR "/golden/"
#define SEQS      18 /* that decode: two halves of 8 rows or more */
#define LEN_MAX   128
#define ROW_MAX   256
#define N_BLOCK   (LEN_MAX / KV_BLOCK)
#define REPLAYS   3 /* one of each order */
#define OF_TOKENS 16

#define NEED_DEVICE                                  \
    do {                                             \
        if (!emulated_use() || !file_is_dir(GOLDEN)) \
            skip();                                  \
    } while (0)

static int make_ready(void **state)
{
    (void)state;
    setenv("NYBBLE_NCCL", "/nowhere", 1);
    return 0;
}

/* A model over n processes, each with an emulated GPU of its own: this one is rank 0. */
static struct model *open_ranks(const char *name, int n_rank, bool no_fusion)
{
    const struct comm_options ranks = {.slot_bytes = 256 << 10, .timeout_ms = 20000};
    char *folder = path_join(GOLDEN, name);
    struct nyb_err err;
    struct comm *comm = NULL;
    struct model *m;
    if (n_rank > 1)
        golden_must(comm_fork(&comm, n_rank, &ranks, &err), &err);
    const struct model_options o = {.folder = folder,
                                    .compute = COMPUTE_BF16,
                                    .n_thread = 1,
                                    .kv_type = MODEL_KV_AUTO,
                                    .device = DEVICE_CUDA,
                                    .overlap = {.mode = OVERLAP_ALWAYS},
                                    .no_fusion = no_fusion,
                                    .comm = comm};
    enum nyb_code code = model_open(&m, &o, &err);
    if (comm && comm_rank(comm) > 0) {
        code = code == NYB_OK ? model_follow(m, &err) : code;
        model_close(m);
        _exit(code != NYB_OK);
    }
    golden_must(code, &err);
    golden_must(model_kv_reserve(m, SEQS * N_BLOCK, &err), &err);
    free(folder);
    return m;
}

struct step {
    struct batch b;
    int32_t tok[ROW_MAX], pos[ROW_MAX], slot[ROW_MAX], start[SEQS + 1], out[SEQS], table[SEQS * N_BLOCK];
};

/* The next n_row[i] tokens of each sequence, which has past[i] behind it. */
static void make_step(struct step *s, const int *n_row, const int *past, int n_seq)
{
    int n = 0;
    for (int i = 0; i < n_seq; i++) {
        for (int b = 0; b < N_BLOCK; b++)
            s->table[i * N_BLOCK + b] = b * SEQS + (7 * i + b) % SEQS;
        for (int j = past[i]; j < past[i] + n_row[i]; j++, n++) {
            assert_true(n < ROW_MAX && j < LEN_MAX);
            s->tok[n] = (3 + 11 * j + 5 * i) % OF_TOKENS + 20;
            s->pos[n] = j;
            s->slot[n] = s->table[i * N_BLOCK + j / KV_BLOCK] * KV_BLOCK + j % KV_BLOCK;
        }
        s->start[i + 1] = n;
        s->out[i] = n - 1;
    }
    s->b = (struct batch){.n_seq = n_seq,
                          .n_tok = n,
                          .n_block_max = N_BLOCK,
                          .n_out = n_seq,
                          .tok = s->tok,
                          .pos = s->pos,
                          .slot = s->slot,
                          .seq_start = s->start,
                          .block_table = s->table,
                          .out_row = s->out};
}

/* ---- what is seen -------------------------------------------------------------------------------- */

struct seen {
    int n[3][2]; /* by half, -1 first, and lane */
    uint64_t end[2];
    int n_layer, wrong;
};

static void see(void *arg, int half, int layer, const char *name, bool communication, uint64_t begin,
                uint64_t end)
{
    struct seen *s = arg;
    s->n[half + 1][communication]++;
    s->wrong += end < begin || !name || layer < -1 || layer > s->n_layer;
    if (half >= 0) { /* a half is in order */
        s->wrong += begin < s->end[half];
        s->end[half] = end;
    }
}

/* Of fused sums: the first norm has nothing to add up, and the head has one sum and a gather. */
static void check_seen(const struct seen *s, bool cut)
{
    assert_int_equal(s->wrong, 0);
    for (int half = 0; half < 2; half++) {
        assert_int_equal(s->n[1 + half][1], cut ? 2 * s->n_layer - 1 : 0);
        assert_true(cut ? s->n[1 + half][0] >= 5 * s->n_layer : s->n[1 + half][0] == 0);
    }
    assert_int_equal(s->n[0][1], cut ? 2 : 2 * s->n_layer + 1);
}

/* ---- the same with and without ------------------------------------------------------------------- */

static void run(struct model *m, const struct step *s, enum overlap_mode mode, bool watch, float *logits)
{
    struct nyb_err err;
    struct seen seen = {.n_layer = model_config(m)->n_layer};
    const struct model_probe probe = {.arg = &seen, .span = see};
    model_set_overlap(m, mode);
    golden_must(model_forward(m, &s->b, logits, watch ? &probe : NULL, &err), &err);
    if (watch)
        check_seen(&seen, mode == OVERLAP_ALWAYS);
}

/* Bit for bit: of these models 8 rows and 16 go through the same kernels. */
static void check_step(struct model *m, const struct step *s, bool watch, int times)
{
    size_t n = (size_t)s->b.n_out * (size_t)model_config(m)->vocab;
    float *want = mem_alloc(n, sizeof(*want)), *got = mem_alloc(n, sizeof(*got));
    run(m, s, OVERLAP_OFF, watch, want);
    for (int i = 0; i < times; i++) {
        run(m, s, OVERLAP_ALWAYS, watch, got);
        assert_memory_equal(got, want, n * sizeof(*got));
    }
    free(want);
    free(got);
}

/* Prompts that are cut within a sequence, then steps of one row each. */
static void check_model(struct model *m, bool watch)
{
    static struct step s;
    static const int none[SEQS], prompts[] = {9, 7};
    int one[SEQS], past[SEQS] = {9, 7};
    make_step(&s, prompts, none, 2);
    check_step(m, &s, watch, 1);
    for (int i = 0; i < SEQS; i++)
        one[i] = 1;
    make_step(&s, one, past, SEQS);
    check_step(m, &s, false, REPLAYS);
}

static void test_the_same_with_and_without(void **state)
{
    (void)state;
    NEED_DEVICE;
    struct model *m = open_ranks("ernie4_5_moe-modelopt", 2, false);
    check_model(m, true);
    model_close(m);
    m = open_ranks("llama-dense-modelopt", 2, true);
    check_model(m, false);
    model_close(m);
}

struct kinds {
    int n, n_sum;
    bool fine;
};

static void add_kind(void *arg, const char *name, int n, double seconds)
{
    struct kinds *k = arg;
    k->n++;
    k->n_sum += strcmp(name, "sum, norm") == 0 ? n : 0;
    k->fine = k->fine && n > 0 && seconds > 0;
}

/* Every kind of kernel is timed on all ranks at once, and steps go on afterwards. */
static void test_ranks_are_profiled(void **state)
{
    (void)state;
    NEED_DEVICE;
    static struct step s;
    static const int none[SEQS], prompts[] = {1};
    struct nyb_err err;
    struct model *m = open_ranks("llama-dense-modelopt", 2, false);
    struct kinds kinds = {.fine = true};
    float *logits = mem_alloc((size_t)model_config(m)->vocab, sizeof(*logits));
    make_step(&s, prompts, none, 1);
    golden_must(model_device_profile(m, &s.b, add_kind, &kinds, &err), &err);
    assert_true(kinds.fine && kinds.n >= 6);
    assert_int_equal(kinds.n_sum, 2 * model_config(m)->n_layer); /* the last is the head's */
    run(m, &s, OVERLAP_OFF, false, logits);
    free(logits);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_same_with_and_without),
        cmocka_unit_test(test_ranks_are_profiled),
    };
    return cmocka_run_group_tests(tests, make_ready, NULL);
}
