/* Whole models on the emulated plug-in: replayed graphs beside direct runs, one sequence beside many,
 * checksums and values of the weights there, updates under recorded graphs, and what a GPU that is too small
 * makes of it.
 */
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>

#include "comm/comm.h"
#include "golden/emulated.h"
#include "golden/golden_data.h"
#include "unit/ckpt_files.h"

#include "engine/sampler.h"
#include "kernels/cuda/cuda_load.h"
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

#define NEED_DEVICE                                  \
    do {                                             \
        if (!emulated_use() || !file_is_dir(GOLDEN)) \
            skip();                                  \
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
static const struct draw *draws_of_step;        /* what is drawn in the next steps into `best`, or NULL */

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
    if (draws_of_step)
        return model_forward_draw(m, &b, draws_of_step, best, logits, err);
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

/* In the cache that is there, with the graphs that are. */
static struct talk talk_on(struct model *m, int n_seq, int only)
{
    struct talk t;
    begin_talk(&t, model_config(m)->vocab, n_seq, only);
    hold_talk(m, &t);
    return t;
}

/* In a new cache, and recorded graphs are forgotten. */
static struct talk talk_to(struct model *m, int n_seq, int only)
{
    struct nyb_err err;
    golden_must(model_kv_reserve(m, SEQ_MAX * LEN_MAX / KV_BLOCK, &err), &err);
    return talk_on(m, n_seq, only);
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

/* ---- draws --------------------------------------------------------------------------------------- */

static struct draw random_draw(uint64_t *rng)
{
    static const float temperature[] = {0, 0.2f, 0.6f, 1, 1, 1.7f}, top_p[] = {1, 0.9f, 0.95f, 0.3f},
                       min_p[] = {0, 0, 0.02f};
    static const int top_k[] = {0, 0, 0, 1, 20, 50, 1000};
    float t = temperature[test_random(rng) % 6];
    return (struct draw){.uniform = (double)(test_random(rng) >> 11) * 0x1p-53,
                         .scale = t > 0 ? 1 / t : 0,
                         .top_p = top_p[test_random(rng) % 4],
                         .min_p = min_p[test_random(rng) % 3],
                         .top_k = top_k[test_random(rng) % 7],
                         .wanted = test_random(rng) % 5 > 0};
}

/* The kernel on n_row random rows of n logits: the very tokens of the CPU's sampler. */
static void check_draws(const struct cuda_plugin *p, struct cuda_gpu *g, int n_row, int n, uint64_t *rng)
{
    struct nyb_err err;
    struct sampler *sampler;
    size_t bytes = (size_t)n_row * (size_t)n * sizeof(float);
    float *x = mem_alloc((size_t)n_row * (size_t)n, sizeof(*x)), *row = mem_alloc((size_t)n, sizeof(*row));
    struct draw draw[8];
    struct cuda_draw there[8];
    int32_t id[8];
    float spread = (float)(1 + test_random(rng) % 12), step = test_random(rng) % 2 ? 0 : 0.125f;
    golden_must(sampler_open(&sampler, n, 1, &err), &err);
    for (int i = 0; i < n_row * n; i++) {
        x[i] = spread * (test_random_float(rng) + test_random_float(rng));
        if (step > 0) /* many equals, as logits of bf16 have them */
            x[i] = step * floorf(x[i] / step);
        if (n > 4 && test_random(rng) % 64 == 0)
            x[i] = test_random(rng) % 2 ? -INFINITY : NAN;
    }
    for (int i = 0; i < n_row; i++) {
        draw[i] = random_draw(rng);
        there[i] = (struct cuda_draw){.uniform = draw[i].uniform,
                                      .scale = draw[i].scale,
                                      .top_p = draw[i].top_p,
                                      .min_p = draw[i].min_p,
                                      .top_k = draw[i].top_k,
                                      .wanted = draw[i].wanted};
    }
    float *device_x = p->alloc(g, bytes);
    struct cuda_draw *device_draw = p->alloc(g, sizeof(there));
    int32_t *device_id = p->alloc(g, sizeof(id));
    const struct cuda_op op = {.kind = CUDA_OP_SAMPLE,
                               .n_row = n_row,
                               .as.sample = {.x = device_x, .draw = device_draw, .id = device_id, .n = n}};
    assert_true(p->write(g, device_x, x, bytes) && p->write(g, device_draw, there, sizeof(there)));
    assert_true(p->run(g, &op, 1) && p->read(g, id, device_id, sizeof(id)));
    for (int i = 0; i < n_row; i++) {
        memcpy(row, x + (size_t)i * (size_t)n, (size_t)n * sizeof(*row));
        int32_t token = sampler_choose(sampler, 0, &draw[i], row);
        if (draw[i].wanted && id[i] != token)
            fail_msg(
                "row of %d: %d on the GPU, %d here (uniform %.17g, scale %g, top_k %d, top_p %g, min_p %g)",
                n, id[i], token, draw[i].uniform, (double)draw[i].scale, draw[i].top_k, (double)draw[i].top_p,
                (double)draw[i].min_p);
    }
    p->release(g, device_x);
    p->release(g, device_draw);
    p->release(g, device_id);
    sampler_close(sampler);
    free(x);
    free(row);
}

static void test_draws_are_the_samplers(void **state)
{
    (void)state;
    NEED_DEVICE;
    struct nyb_err err;
    char why[256];
    const struct cuda_plugin *p = cuda_load(&err);
    assert_non_null(p);
    struct cuda_gpu *g = p->open(0, why, sizeof(why));
    assert_non_null(g);
    uint64_t rng = 77;
    for (int i = 0; i < 60; i++)
        check_draws(p, g, 1 + i % 8, i % 10 == 9 ? 40000 : 1 + (int)(test_random(&rng) % (i % 3 ? 3000 : 40)),
                    &rng);
    p->close(g);
}

/* A whole step that draws, direct and replayed, beside the same step whose logits come here. */
static void check_drawn_steps(struct model *m, int n_seq)
{
    struct nyb_err err;
    struct sampler *sampler;
    struct talk t;
    int vocab = model_config(m)->vocab, first[SEQ_MAX] = {0};
    size_t n = (size_t)vocab;
    float *left = mem_alloc((size_t)n_seq * n, sizeof(*left)), *row = mem_alloc(n, sizeof(*row));
    uint64_t rng = 5;
    golden_must(model_kv_reserve(m, SEQ_MAX * LEN_MAX / KV_BLOCK, &err), &err);
    golden_must(sampler_open(&sampler, vocab, 1, &err), &err);
    assert_true(model_can_draw(m) > 0);
    begin_talk(&t, vocab, n_seq, -1);
    for (int s = 0; s < 5; s++) {
        struct draw draw[SEQ_MAX];
        int32_t token[SEQ_MAX];
        for (int i = 0; i < n_seq; i++)
            draw[i] = random_draw(&rng);
        for (size_t i = 0; i < (size_t)n_seq * n; i++)
            left[i] = -7;
        golden_must(step(m, &t, first, t.logits, NULL, &err), &err);
        draws_of_step = draw;
        golden_must(step(m, &t, first, left, token, &err), &err);
        draws_of_step = NULL;
        for (int i = 0; i < n_seq; i++) {
            const float *there = t.logits + (size_t)i * n, *here = left + (size_t)i * n;
            memcpy(row, there, n * sizeof(*row));
            if (draw[i].wanted)
                assert_int_equal(token[i], sampler_choose(sampler, 0, &draw[i], row));
            else
                assert_memory_equal(here, there, n * sizeof(*here));
            assert_true(!draw[i].wanted || here[0] == -7);
            first[i] = t.len[i];
            t.id[i][t.len[i]++] = likeliest(there, vocab);
        }
    }
    sampler_close(sampler);
    free(left);
    free(row);
    free(t.logits);
}

static void test_steps_draw(void **state)
{
    (void)state;
    NEED_DEVICE;
    struct model *m = open_golden("qwen3_moe-modelopt", (struct how){0});
    check_drawn_steps(m, 3);
    check_drawn_steps(m, 1);
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
 * as it was. `m` holds a and `fresh` its twin b. */
static void check_update(struct model *m, struct model *fresh, const char *a, const char *b)
{
    struct nyb_err err;
    struct talk before = talk_to(m, 2, -1);
    for (enum update_point point = UPDATE_AT_READ; point <= UPDATE_AT_COMMIT; point++) {
        assert_int_equal(update_to(m, b, &point, &err), NYB_E_IO);
        struct talk same = talk_on(m, 2, -1);
        assert_memory_equal(same.logits, before.logits, talk_bytes(m, &same));
        assert_checksum(m, a);
        free(same.logits);
    }
    golden_must(update_to(m, b, NULL, &err), &err);
    assert_checksum(m, b);
    struct talk after = talk_on(m, 2, -1), want = talk_to(fresh, 2, -1);
    assert_memory_equal(after.logits, want.logits, talk_bytes(m, &after));
    assert_memory_not_equal(after.logits, before.logits, talk_bytes(m, &after));
    free(before.logits);
    free(after.logits);
    free(want.logits);
}

static void test_updates_keep_graphs(void **state)
{
    (void)state;
    NEED_DEVICE;
    if (system("python3 -c '' >&2") != 0)
        skip();
    for (size_t i = 0; i < 3; i++) {
        const char *name = i < 2 ? models[i] : "llama-dense-modelopt";
        struct how how = {.backend = i < 2 ? DEVICE_BACKEND_AUTO : DEVICE_BACKEND_CUBLASLT_NVFP4};
        char *a = path_join(GOLDEN, name), *b = make_twin(a, name, "--perturb 5");
        struct model *m = open_on_device(a, how), *fresh = open_on_device(b, how);
        check_update(m, fresh, a, b);
        model_close(m);
        model_close(fresh);
        free(a);
        free(b);
    }
}

/* What a GPU holds from an upload is in no file: an update over it keeps a copy here, and puts it back. */
static void test_updates_over_an_upload(void **state)
{
    (void)state;
    NEED_DEVICE;
    if (system("python3 -c '' >&2") != 0)
        skip();
    static const enum device_backend backend[] = {DEVICE_BACKEND_AUTO, DEVICE_BACKEND_CUBLASLT_NVFP4,
                                                  DEVICE_BACKEND_REFERENCE};
    static const char a[] = GOLDEN "qwen3_moe-modelopt";
    char *b = make_twin(a, "uploaded", "--perturb 5"), *file = path_join(b, "model.safetensors"), *bytes;
    size_t n;
    struct nyb_err err;
    golden_must(file_read_all(file, 1u << 30, &bytes, &n, &err), &err);
    for (size_t i = 0; i < COUNT_OF(backend); i++) {
        struct model *m = open_on_device(a, (struct how){.backend = backend[i]});
        struct update_upload *up;
        struct update_facts facts;
        struct update *u;
        golden_must(upload_open(&up, NULL, n, &err), &err);
        golden_must(upload_write(up, bytes, n, &err), &err);
        const struct update_options o = {.upload = up};
        golden_must(update_prepare(&u, m, &o, &facts, &err), &err);
        golden_must(update_stage(u, &err), &err);
        golden_must(update_commit(u, &err), &err);
        update_close(u);
        upload_close(up);
        assert_checksum(m, b);
        for (enum update_point point = UPDATE_AT_READ; point <= UPDATE_AT_COMMIT; point++) {
            assert_int_equal(update_to(m, a, &point, &err), NYB_E_IO);
            assert_checksum(m, b);
        }
        golden_must(update_to(m, a, NULL, &err), &err);
        assert_checksum(m, a);
        model_close(m);
    }
    free(bytes);
    free(file);
    free(b);
}

/* ---- several ranks ------------------------------------------------------------------------------- */

static pid_t *last_rank;          /* its process, in memory that all ranks share */
static bool ranks_have_sequences; /* of the next group: sequences and experts are on one rank each */

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
                     *m = open_golden_ranks(group[i].model, group[i].n_rank, group[i].no_fusion);
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
        if (i == 0)
            check_drawn_steps(m, 3);
        free(t.logits);
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
 * take the rows: those of packed weights do here. */
static void test_sequences_of_ranks_have_the_bits_of_one(void **state)
{
    (void)state;
    NEED_DEVICE;
    static const char name[] = "qwen3_moe-modelopt";
    const struct model_probe watching = {0};
    struct nyb_err err;
    struct talk t;
    int first[SEQ_MAX] = {0};
    int32_t best[SEQ_MAX];
    ranks_have_sequences = true;
    struct model *one = open_golden(name, (struct how){0}), *m = open_golden_ranks(name, 2, false);
    size_t vocab = (size_t)model_config(m)->vocab;
    ranks_have_sequences = false;
    struct talk want = talk_to(one, 3, -1), a = talk_to(m, 3, -1);
    assert_memory_equal(a.logits, want.logits, talk_bytes(m, &a));
    begin_talk(&t, (int)vocab, 3, -1);
    probe_of_step = &watching;
    golden_must(step(m, &t, first, t.logits, NULL, &err), &err);
    probe_of_step = NULL;
    assert_memory_equal(t.logits, a.logits, 3 * vocab * sizeof(float));
    golden_must(step(m, &t, first, NULL, best, &err), &err);
    for (int s = 0; s < 3; s++)
        assert_int_equal(best[s], likeliest(t.logits + (size_t)s * vocab, (int)vocab));
    check_odd_logits(one, m, 4, 300);
    check_odd_logits(one, m, 1, 5); /* a graph */
    free(t.logits);
    free(want.logits);
    free(a.logits);
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

static void test_updates_of_ranks_keep_graphs(void **state)
{
    (void)state;
    NEED_DEVICE;
    if (system("python3 -c '' >&2") != 0)
        skip();
    static const char a[] = GOLDEN "qwen3_moe-modelopt";
    char *b = make_twin(a, "ranks", "--perturb 5");
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

/* ---- a GPU that is lost -------------------------------------------------------------------------- */

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
        cmocka_unit_test(test_draws_are_the_samplers),
        cmocka_unit_test(test_steps_draw),
        cmocka_unit_test(test_expert_load),
        cmocka_unit_test(test_reference_backend_agrees),
        cmocka_unit_test(test_checksums_and_values),
        cmocka_unit_test(test_checksums_of_odd_scales),
        cmocka_unit_test(test_checksums_beside_steps),
        cmocka_unit_test(test_updates_keep_graphs),
        cmocka_unit_test(test_ranks_say_what_one_says),
        cmocka_unit_test(test_sequences_of_ranks_have_the_bits_of_one),
        cmocka_unit_test(test_sequences_of_ranks_say_what_one_says),
        cmocka_unit_test(test_updates_over_an_upload),
        cmocka_unit_test(test_updates_of_ranks_keep_graphs),
        cmocka_unit_test(test_a_rank_is_killed),
        cmocka_unit_test(test_a_gpu_is_lost),
        cmocka_unit_test(test_memory_runs_out),
    };
    return cmocka_run_group_tests(tests, make_workshop, drop_workshop);
}
