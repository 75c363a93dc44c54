/* Models on the emulated plug-in, and what they say to a few sequences. */
#ifndef NYB_TEST_DEVICE_CASE_H
#define NYB_TEST_DEVICE_CASE_H

#include "golden/emulated.h"
#include "golden/golden_data.h"
#include "golden/workshop.h"

#include "engine/sampler.h"

#define SEQ_MAX 5
#define LEN_MAX 64
#define PROMPT  9
#define STEPS   3

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
    uint64_t seed; /* of random weights; 0: the checkpoint's */
};

static inline struct model *open_on_device(const char *folder, struct how how)
{
    struct nyb_err err;
    struct model *m;
    const struct model_options o = {.folder = folder,
                                    .load_format = how.seed ? LOAD_DUMMY : LOAD_AUTO,
                                    .dummy_seed = how.seed,
                                    .compute = how.backend == DEVICE_BACKEND_CUBLASLT_NVFP4 ? COMPUTE_W4A4
                                                                                            : COMPUTE_BF16,
                                    .n_thread = 2,
                                    .kv_type = how.bf16_cache ? KV_BF16 : MODEL_KV_AUTO,
                                    .device = DEVICE_CUDA,
                                    .moe_backend = how.backend,
                                    .gemm_backend = how.backend,
                                    .max_batched_tokens = how.max_tokens,
                                    .no_graphs = how.no_graphs};
    emulated_blackwell(how.backend == DEVICE_BACKEND_CUBLASLT_NVFP4);
    golden_must(model_open(&m, &o, &err), &err);
    emulated_blackwell(false);
    assert_non_null(model_device_name(m));
    return m;
}

static inline struct model *open_golden(const char *name, struct how how)
{
    char *folder = path_join(GOLDEN, name);
    struct model *m = open_on_device(folder, how);
    free(folder);
    return m;
}

/* A folder in the workshop for random weights, of sizes that the packed kernels take, as golden models with
 * shared experts have not: in the second layer 6 experts and n_shared that all tokens take. */
static inline char *shared_experts_folder(int inner, int n_shared)
{
    char *folder = mem_printf("%s/shared-%d-%d", workshop, inner, n_shared);
    char *text = mem_printf(
        "{\"model_type\": \"glm4_moe\", \"architectures\": [\"Glm4MoeForCausalLM\"], \"vocab_size\": 512,"
        "\"hidden_size\": 128, \"intermediate_size\": 256, \"num_hidden_layers\": 2,"
        "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 32,"
        "\"max_position_embeddings\": 512, \"moe_intermediate_size\": %d, \"num_experts_per_tok\": 2,"
        "\"n_shared_experts\": %d, \"n_routed_experts\": 6, \"first_k_dense_replace\": 1,"
        "\"eos_token_id\": 2, \"quantization_config\": {\"quant_method\": \"modelopt\","
        "\"quant_algo\": \"NVFP4\", \"ignore\": [\"lm_head\", \"model.layers.*.mlp.gate\"]}}",
        inner, n_shared);
    assert_int_equal(mkdir(folder, 0700), 0);
    folder_write_text(folder, "config.json", text);
    free(text);
    return folder;
}

/* ---- sequences ----------------------------------------------------------------------------------------- */

/* n_seq sequences of different lengths, and what the model says to them: logits of every step. */
struct talk {
    int n_seq;
    int32_t id[SEQ_MAX][LEN_MAX];
    int len[SEQ_MAX];
    float *logits; /* (STEPS + 1, n_seq, vocab) */
};

/* Sequence i of a talk is the same whoever else is in it; `only` >= 0: alone. */
static inline void begin_talk(struct talk *t, int vocab, int n_seq, int only)
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
static inline enum nyb_code step(struct model *m, const struct talk *t, const int *first, float *logits,
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

static inline int32_t likeliest(const float *x, int n)
{
    int32_t best = 0;
    for (int i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return best;
}

/* The prompts, then STEPS greedy tokens each. */
static inline void hold_talk(struct model *m, struct talk *t)
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
static inline struct talk talk_on(struct model *m, int n_seq, int only)
{
    struct talk t;
    begin_talk(&t, model_config(m)->vocab, n_seq, only);
    hold_talk(m, &t);
    return t;
}

/* In a new cache, and recorded graphs are forgotten. */
static inline struct talk talk_to(struct model *m, int n_seq, int only)
{
    struct nyb_err err;
    golden_must(model_kv_reserve(m, SEQ_MAX * LEN_MAX / KV_BLOCK, &err), &err);
    return talk_on(m, n_seq, only);
}

static inline size_t talk_bytes(const struct model *m, const struct talk *t)
{
    return (STEPS + 1) * (size_t)t->n_seq * (size_t)model_config(m)->vocab * sizeof(float);
}

/* Of one sequence: nearly the same logits as long as both have taken the same tokens, which at least the
 * second step has. */
static inline void assert_alike(const struct talk *a, const struct talk *b, size_t vocab)
{
    size_t taken = (size_t)a->len[0] - STEPS - 1, s = 0;
    for (; s <= STEPS && !memcmp(a->id[0], b->id[0], (taken + s) * sizeof(int32_t)); s++)
        assert_true(golden_error(a->logits + s * vocab, b->logits + s * vocab, vocab) < 0.03);
    assert_true(s > 1);
}

/* ---- draws --------------------------------------------------------------------------------------------- */

static inline struct draw random_draw(uint64_t *rng)
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

/* A whole step that draws, direct and replayed, beside the same step whose logits come here. */
static inline void check_drawn_steps(struct model *m, int n_seq)
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

#endif
