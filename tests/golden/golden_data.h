/* The answers beside a golden checkpoint, and a sequence to compare with them. Tests only: a broken file ends
 * the test. */
#ifndef NYB_TEST_GOLDEN_DATA_H
#define NYB_TEST_GOLDEN_DATA_H

#include <fcntl.h>
#include <math.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/safetensors.h"
#include "model/model.h"
#include "test.h"

struct golden_ids {
    int32_t *id;
    int n;
};

struct golden_data {
    char *folder;
    struct golden_ids prompt, greedy;
    double *margin; /* (greedy.n) */
    int vocab, hidden, n_hidden;
    float *logits, *logits_w4a4; /* (prompt.n, vocab)           */
    float **state;               /* (n_hidden) (prompt.n, hidden) */
};

static inline void golden_must(enum nyb_code code, const struct nyb_err *err)
{
    if (code != NYB_OK)
        fail_msg("%s: %s", err->where, err->message);
}

static inline struct golden_ids golden_int_list(const json_t *list)
{
    struct golden_ids ids = {.n = (int)json_array_size(list)};
    ids.id = mem_alloc((size_t)ids.n + 1, sizeof(int32_t));
    for (int i = 0; i < ids.n; i++)
        ids.id[i] = (int32_t)json_integer_value(json_array_get(list, (size_t)i));
    return ids;
}

static inline json_t *golden_json(const char *folder)
{
    struct nyb_err err;
    json_t *root;
    char *path = path_join(folder, "golden.json");
    golden_must(json_read_file(&root, path, &err), &err);
    free(path);
    return root;
}

static inline float *golden_tensor(const struct safetensors *st, int fd, const char *name, int rows,
                                   int *cols)
{
    struct nyb_err err;
    for (int i = 0; i < st->n_tensor; i++) {
        const struct ckpt_tensor *t = &st->tensor[i];
        if (strcmp(t->name, name))
            continue;
        assert_int_equal(t->dtype, DTYPE_F32);
        assert_int_equal(t->dim[0], rows);
        float *x = mem_alloc((size_t)(t->dim[0] * t->dim[1]), sizeof(float));
        golden_must(file_read_at(fd, name, t->offset, x, (size_t)t->bytes, &err), &err);
        *cols = (int)t->dim[1];
        return x;
    }
    return NULL;
}

static inline void golden_open(struct golden_data *g, const char *folder)
{
    struct nyb_err err;
    *g = (struct golden_data){.folder = mem_strdup(folder)};
    json_t *root = golden_json(folder);
    g->prompt = golden_int_list(json_object_get(root, "prompt_ids"));
    g->greedy = golden_int_list(json_object_get(root, "greedy_ids"));
    g->margin = mem_alloc((size_t)g->greedy.n + 1, sizeof(double));
    for (int i = 0; i < g->greedy.n; i++)
        g->margin[i] = json_number_value(json_array_get(json_object_get(root, "greedy_margin"), (size_t)i));
    json_decref(root);

    char *path = path_join(folder, "golden.safetensors");
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    struct safetensors st;
    golden_must(safetensors_read(&st, fd, path, (uint64_t)lseek(fd, 0, SEEK_END), 0, &err), &err);
    g->logits = golden_tensor(&st, fd, "logits", g->prompt.n, &g->vocab);
    g->logits_w4a4 = golden_tensor(&st, fd, "logits_w4a4", g->prompt.n, &g->vocab);
    g->state = mem_alloc((size_t)st.n_tensor, sizeof(*g->state));
    for (char name[32]; snprintf(name, sizeof(name), "hidden.%d", g->n_hidden) > 0; g->n_hidden++)
        if (!(g->state[g->n_hidden] = golden_tensor(&st, fd, name, g->prompt.n, &g->hidden)))
            break;
    assert_non_null(g->logits);
    assert_true(g->n_hidden >= 2);
    safetensors_free(&st);
    close(fd);
    free(path);
}

static inline void golden_close(struct golden_data *g)
{
    for (int i = 0; i < g->n_hidden; i++)
        free(g->state[i]);
    free(g->state);
    free(g->logits);
    free(g->logits_w4a4);
    free(g->margin);
    free(g->prompt.id);
    free(g->greedy.id);
    free(g->folder);
}

/* ||a - b|| / ||b|| */
static inline double golden_error(const float *a, const float *b, size_t n)
{
    double d2 = 0, b2 = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)a[i] - (double)b[i];
        d2 += d * d;
        b2 += (double)b[i] * (double)b[i];
    }
    return sqrt(d2 / b2);
}

static inline int golden_by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median over positions of the error of their logits. */
static inline double golden_median(const float *a, const float *b, int n_tok, int vocab)
{
    double *e = mem_alloc((size_t)n_tok, sizeof(double));
    for (int t = 0; t < n_tok; t++)
        e[t] = golden_error(a + (size_t)t * (size_t)vocab, b + (size_t)t * (size_t)vocab, (size_t)vocab);
    qsort(e, (size_t)n_tok, sizeof(double), golden_by_value);
    double median = (e[n_tok / 2] + e[(n_tok - 1) / 2]) / 2;
    free(e);
    return median;
}

/* ---- one sequence -------------------------------------------------------------------------------- */

static inline struct model *golden_model(const char *folder, enum compute compute, int n_thread)
{
    struct nyb_err err;
    struct model *m;
    const struct model_options o = {
        .folder = folder, .compute = compute, .n_thread = n_thread, .kv_type = -1};
    golden_must(model_open(&m, &o, &err), &err);
    return m;
}

/* n tokens after n_past, logits of the last n_out; blocks of the cache are in reverse order, since any order
 * must do. */
static inline void golden_step(struct model *m, const int32_t *id, int n_past, int n, int n_out,
                               float *logits, const struct model_probe *probe)
{
    struct nyb_err err;
    int n_block = model_kv_blocks(m);
    int32_t *pos = mem_alloc(3 * (size_t)n + (size_t)n_block, sizeof(int32_t));
    int32_t *slot = pos + n, *out = slot + n, *table = out + n;
    for (int i = 0; i < n_block; i++)
        table[i] = n_block - 1 - i;
    for (int i = 0; i < n; i++) {
        pos[i] = n_past + i;
        slot[i] = table[pos[i] / KV_BLOCK] * KV_BLOCK + pos[i] % KV_BLOCK;
        out[i] = n - n_out + i;
    }
    const int32_t seq_start[2] = {0, n};
    const struct batch b = {.n_seq = 1,
                            .n_tok = n,
                            .n_block_max = n_block,
                            .n_out = n_out,
                            .tok = id,
                            .pos = pos,
                            .slot = slot,
                            .seq_start = seq_start,
                            .block_table = table,
                            .out_row = out};
    golden_must(model_forward(m, &b, logits, probe, &err), &err);
    free(pos);
}

static inline void golden_reserve(struct model *m, int n_tok)
{
    struct nyb_err err;
    golden_must(model_kv_reserve(m, (n_tok + KV_BLOCK - 1) / KV_BLOCK, &err), &err);
}

/* All positions of a prompt in one pass; caller frees. */
static inline float *golden_logits(struct model *m, const struct golden_ids *ids,
                                   const struct model_probe *probe)
{
    float *logits = mem_alloc((size_t)ids->n * (size_t)model_config(m)->vocab, sizeof(float));
    golden_reserve(m, ids->n);
    golden_step(m, ids->id, 0, ids->n, ids->n, logits, probe);
    return logits;
}

/* Greedy continuation against the expected ids; each step follows the expected history. margin may be NULL.
 */
static inline void golden_greedy(struct model *m, const struct golden_ids *prompt,
                                 const struct golden_ids *greedy, const double *margin)
{
    int vocab = model_config(m)->vocab;
    float *logits = mem_alloc((size_t)vocab, sizeof(float));
    golden_reserve(m, prompt->n + greedy->n);
    golden_step(m, prompt->id, 0, prompt->n, 1, logits, NULL);
    for (int i = 0; i < greedy->n; i++) {
        int best = 0;
        for (int v = 1; v < vocab; v++)
            best = logits[v] > logits[best] ? v : best;
        if (best != greedy->id[i] && !(margin && margin[i] < 1e-3))
            fail_msg("step %d: greedy id %d, expected %d", i, best, greedy->id[i]);
        golden_step(m, &greedy->id[i], prompt->n + i, 1, 1, logits, NULL);
    }
    free(logits);
}

#define GOLDEN_ANSWER_IDS 24

/* A model's logits for ids that any vocabulary has, (GOLDEN_ANSWER_IDS, vocab): for comparing models that
 * have no golden answers. */
static inline float *golden_answer(struct model *m)
{
    int32_t id[GOLDEN_ANSWER_IDS];
    const struct golden_ids ids = {id, GOLDEN_ANSWER_IDS};
    for (int i = 0; i < GOLDEN_ANSWER_IDS; i++)
        id[i] = (7 + 13 * i) % model_config(m)->vocab;
    return golden_logits(m, &ids, NULL);
}

static inline size_t golden_answer_bytes(const struct model *m)
{
    return GOLDEN_ANSWER_IDS * (size_t)model_config(m)->vocab * sizeof(float);
}

/* Of n places, faults are planned at every third; at all of them where they are few, or in the long run. */
static inline int golden_fault_stride(int n)
{
    return n <= 9 || test_is_long() ? 1 : 3;
}

#endif
