/* Whole models against what an independent implementation computed for them. */
#include "golden_data.h"

#include <dirent.h>

#include "base/log.h"
#include "unit/ckpt_files.h"

static const char *const checkpoint[] = {
    "qwen3_moe-modelopt",    "qwen3_moe-compressed-tensors",
    "qwen3-dense-modelopt",  "llama-dense-modelopt",
    "ernie4_5_moe-modelopt", "glm4_moe-modelopt",
    "mixtral-modelopt",      "glm4_moe-compressed-tensors-sharded",
};
#define N_CHECKPOINT COUNT_OF(checkpoint)

static bool open_shared(struct golden_data *g, size_t i)
{
    char *folder = mem_printf("%s/golden/%s", NYBBLE_SHARED_DIR, checkpoint[i]);
    bool there = file_is_dir(folder);
    if (there)
        golden_open(g, folder);
    free(folder);
    return there;
}

#define NEED_SHARED()                                                \
    do {                                                             \
        if (!file_is_dir(NYBBLE_SHARED_DIR "/golden")) {             \
            print_message("no " NYBBLE_SHARED_DIR "/golden here\n"); \
            skip();                                                  \
        }                                                            \
    } while (0)

/* ---- strict: the truth --------------------------------------------------------------------------- */

struct watch {
    const struct golden_data *golden;
    int n_layer, n_seen;
    double worst;
    int32_t *expert; /* (n_layer, n_tok, top_k), -1 where dense; or NULL */
    int top_k;
};

static void watch_hidden(void *arg, int layer, const float *h, int n_tok, int hidden)
{
    struct watch *w = arg;
    const struct golden_data *g = w->golden;
    w->n_seen++;
    if (layer + 1 == w->n_layer) /* the stream before the last norm is not in the file */
        return;
    int index = layer == w->n_layer ? w->n_layer : layer + 1;
    assert_true(index < g->n_hidden);
    double e = golden_error(h, g->state[index], (size_t)n_tok * (size_t)hidden);
    w->worst = e > w->worst ? e : w->worst;
}

static void watch_routing(void *arg, int layer, const int32_t *expert, const float *weight, int n_tok,
                          int top_k)
{
    struct watch *w = arg;
    (void)weight;
    assert_int_equal(top_k, w->top_k);
    memcpy(w->expert + (size_t)layer * (size_t)n_tok * (size_t)top_k, expert,
           (size_t)n_tok * (size_t)top_k * sizeof(*expert));
}

static void test_golden_strict(void **state)
{
    (void)state;
    NEED_SHARED();
    for (size_t i = 0; i < N_CHECKPOINT; i++) {
        struct golden_data g;
        assert_true(open_shared(&g, i));
        struct model *m = golden_model(g.folder, COMPUTE_STRICT, 2);
        struct watch w = {.golden = &g, .n_layer = model_config(m)->n_layer};
        const struct model_probe probe = {.arg = &w, .hidden = watch_hidden};
        float *logits = golden_logits(m, &g.prompt, &probe);
        double e = golden_error(logits, g.logits, (size_t)g.prompt.n * (size_t)g.vocab);
        print_message("%-36s strict: logits %.2e, worst hidden %.2e\n", checkpoint[i], e, w.worst);
        assert_true(e <= 1e-4);
        assert_true(w.worst <= 1e-4);
        assert_int_equal(w.n_seen, w.n_layer + 2);
        golden_greedy(m, &g.prompt, &g.greedy, g.margin);
        free(logits);
        model_close(m);
        golden_close(&g);
    }
}

/* ---- default and w4a4 ---------------------------------------------------------------------------- */

static int32_t *trace_routing(struct model *m, const struct golden_data *g, float **logits)
{
    struct watch w = {.golden = g, .n_layer = model_config(m)->n_layer, .top_k = model_config(m)->moe.top_k};
    size_t n = (size_t)w.n_layer * (size_t)g->prompt.n * (size_t)(w.top_k > 0 ? w.top_k : 1);
    w.expert = mem_alloc(n, sizeof(int32_t));
    memset(w.expert, 0xff, n * sizeof(int32_t));
    const struct model_probe probe = {.arg = &w, .routing = watch_routing};
    *logits = golden_logits(m, &g->prompt, &probe);
    return w.expert;
}

/* Whether some layer sent the token to other experts. As sets: order does not matter. */
static bool routed_otherwise(const int32_t *a, const int32_t *b, const struct model_config *c, int n_tok,
                             int tok)
{
    for (int layer = 0; layer < c->n_layer; layer++) {
        size_t at = ((size_t)layer * (size_t)n_tok + (size_t)tok) * (size_t)c->moe.top_k;
        for (int i = 0; i < c->moe.top_k; i++) {
            bool found = false;
            for (int j = 0; j < c->moe.top_k; j++)
                found = found || a[at + (size_t)i] == b[at + (size_t)j];
            if (!found)
                return true;
        }
    }
    return false;
}

/* Whether position t may be off: some router chose otherwise for it, or for one before, whose values it
 * attends to and which is further off. */
static bool tipped(const double *error, const bool *otherwise, int t)
{
    if (otherwise[t])
        return true;
    for (int before = 0; before < t; before++)
        if (otherwise[before] && error[t] <= error[before])
            return true;
    return false;
}

static void test_golden_default(void **state)
{
    (void)state;
    NEED_SHARED();
    for (size_t i = 0; i < N_CHECKPOINT; i++) {
        struct golden_data g;
        float *logits, *truth;
        assert_true(open_shared(&g, i));
        struct model *m = golden_model(g.folder, COMPUTE_BF16, 2);
        struct model *strict = golden_model(g.folder, COMPUTE_STRICT, 2);
        int32_t *route = trace_routing(m, &g, &logits), *true_route = trace_routing(strict, &g, &truth);
        double median = golden_median(logits, g.logits, g.prompt.n, g.vocab);
        double *error = mem_alloc((size_t)g.prompt.n, sizeof(*error));
        bool *otherwise = mem_alloc((size_t)g.prompt.n, sizeof(*otherwise));
        int n_far = 0;
        for (int t = 0; t < g.prompt.n; t++) {
            size_t at = (size_t)t * (size_t)g.vocab;
            error[t] = golden_error(logits + at, g.logits + at, (size_t)g.vocab);
            otherwise[t] = routed_otherwise(route, true_route, model_config(m), g.prompt.n, t);
            n_far += error[t] > 0.1;
            assert_true(error[t] <= 0.1 || tipped(error, otherwise, t));
        }
        print_message("%-36s default: median %.2e, %d positions routed otherwise, or attending to such\n",
                      checkpoint[i], median, n_far);
        assert_true(median <= 3.5e-2);
        free(error);
        free(otherwise);
        free(route);
        free(true_route);
        free(logits);
        free(truth);
        model_close(m);
        model_close(strict);
        golden_close(&g);
    }
}

static void test_golden_w4a4(void **state)
{
    (void)state;
    NEED_SHARED();
    int n_good = 0;
    for (size_t i = 0; i < N_CHECKPOINT; i++) {
        struct golden_data g;
        assert_true(open_shared(&g, i));
        struct model *m = golden_model(g.folder, COMPUTE_W4A4, 2);
        float *logits = golden_logits(m, &g.prompt, NULL);
        double median = golden_median(logits, g.logits_w4a4, g.prompt.n, g.vocab);
        print_message("%-36s w4a4: median %.2e\n", checkpoint[i], median);
        n_good += median <= 1e-3;
        free(logits);
        model_close(m);
        golden_close(&g);
    }
    assert_true(n_good >= 6);
}

/* ---- the same bits, however the work is cut ------------------------------------------------------- */

static void test_golden_threads_and_chunks_do_not_matter(void **state)
{
    (void)state;
    NEED_SHARED();
    for (size_t i = 0; i < N_CHECKPOINT; i++) {
        struct golden_data g;
        assert_true(open_shared(&g, i));
        size_t n = (size_t)g.prompt.n * (size_t)g.vocab;
        for (int compute = 0; compute < COMPUTE_COUNT; compute++) {
            struct model *one = golden_model(g.folder, (enum compute)compute, 1);
            struct model *two = golden_model(g.folder, (enum compute)compute, 3);
            float *whole = golden_logits(one, &g.prompt, NULL),
                  *threads = golden_logits(two, &g.prompt, NULL);
            assert_memory_equal(whole, threads, n * sizeof(float));
            memset(threads, 0, n * sizeof(float));
            golden_reserve(two, g.prompt.n);
            static const int cut[] = {17, 1, 1, 6};
            int done = 0;
            for (size_t c = 0; c <= COUNT_OF(cut); c++) {
                int step = c < COUNT_OF(cut) ? cut[c] : g.prompt.n - done;
                golden_step(two, g.prompt.id + done, done, step, step,
                            threads + (size_t)done * (size_t)g.vocab, NULL);
                done += step;
            }
            assert_memory_equal(whole, threads, n * sizeof(float));
            free(whole);
            free(threads);
            model_close(one);
            model_close(two);
        }
        golden_close(&g);
    }
}

/* Two sequences in one step give what each gives alone. */
static void test_golden_batch_does_not_matter(void **state)
{
    (void)state;
    NEED_SHARED();
    struct golden_data g;
    struct nyb_err err;
    assert_true(open_shared(&g, 0));
    struct model *m = golden_model(g.folder, COMPUTE_BF16, 2);
    int n = g.prompt.n, vocab = g.vocab, half = n / 2, n_block = (n + KV_BLOCK - 1) / KV_BLOCK;
    const struct golden_ids tail = {g.prompt.id + half, n - half};
    float *a = golden_logits(m, &g.prompt, NULL), *b = golden_logits(m, &tail, NULL);
    golden_reserve(m, 2 * n_block * KV_BLOCK);
    int32_t tok[256], pos[256], slot[256], table[64], start[3] = {0, n, n + tail.n},
                                                      out[2] = {n - 1, n + tail.n - 1};
    assert_true(start[2] <= 256 && 2 * n_block <= 64);
    for (int i = 0; i < 2 * n_block; i++)
        table[i] = i;
    for (int i = 0; i < start[2]; i++) {
        bool second = i >= n;
        tok[i] = second ? tail.id[i - n] : g.prompt.id[i];
        pos[i] = second ? i - n : i;
        slot[i] = (second ? n_block * KV_BLOCK : 0) + pos[i];
    }
    const struct batch batch = {.n_seq = 2,
                                .n_tok = start[2],
                                .n_block_max = n_block,
                                .n_out = 2,
                                .tok = tok,
                                .pos = pos,
                                .slot = slot,
                                .seq_start = start,
                                .block_table = table,
                                .out_row = out};
    float *both = mem_alloc(2 * (size_t)vocab, sizeof(float));
    golden_must(model_forward(m, &batch, both, NULL, &err), &err);
    size_t row = (size_t)vocab;
    assert_memory_equal(both, a + (size_t)(n - 1) * row, row * sizeof(float));
    assert_memory_equal(both + row, b + (size_t)(tail.n - 1) * row, row * sizeof(float));
    free(a);
    free(b);
    free(both);
    model_close(m);
    golden_close(&g);
}

/* ---- story models -------------------------------------------------------------------------------- */

/* Some files repeat the prompt at the head of the continuation. */
static void check_case(struct model *m, const json_t *entry)
{
    struct golden_ids prompt = golden_int_list(json_object_get(entry, "prompt_ids"));
    struct golden_ids greedy = golden_int_list(json_object_get(entry, "greedy_ids")), rest = greedy;
    assert_true(prompt.n > 0);
    if (greedy.n > prompt.n && !memcmp(greedy.id, prompt.id, (size_t)prompt.n * sizeof(int32_t))) {
        rest.id += prompt.n;
        rest.n -= prompt.n;
    }
    assert_true(rest.n > 10);
    golden_greedy(m, &prompt, &rest, NULL);
    free(prompt.id);
    free(greedy.id);
}

/* `answers`: the folder whose golden.json is meant. */
static bool check_stories(const char *folder, const char *answers)
{
    if (!file_is_dir(folder))
        return false;
    json_t *root = golden_json(answers), *list = json_object_get(root, "greedy"), *entry;
    struct model *m = golden_model(folder, COMPUTE_STRICT, 2);
    size_t i;
    if (!list)
        check_case(m, root);
    json_array_foreach(list, i, entry) check_case(m, entry);
    model_close(m);
    json_decref(root);
    return true;
}

/* The second is the first with its MLP cut into eight experts that are all the same. */
static void test_golden_stories(void **state)
{
    (void)state;
    NEED_SHARED();
    const char *dense = NYBBLE_SHARED_DIR "/models/stories260K";
    assert_true(check_stories(dense, dense));
    assert_true(check_stories(NYBBLE_SHARED_DIR "/models/stories260K_mixtral8x", dense));
}

static void test_golden_tales(void **state)
{
    (void)state;
    const char *folder = NYBBLE_SOURCE_DIR "/models/tales-24m-moe-nvfp4";
    assert_true(check_stories(folder, folder));
}

/* ---- checkpoints with one fault each ------------------------------------------------------------- */

static void check_fault(const char *folder, const struct golden_data *g)
{
    struct nyb_err err;
    struct model *m;
    json_t *expect, *word;
    size_t i;
    char *path = path_join(folder, "expect.json"), text[1200];
    golden_must(json_read_file(&expect, path, &err), &err);
    free(path);
    bool same = !strcmp(json_string_value(json_object_get(expect, "outcome")), "same");
    const struct model_options o = {
        .folder = folder, .compute = COMPUTE_STRICT, .n_thread = 2, .kv_type = -1};
    enum nyb_code code = model_open(&m, &o, &err);
    if (same) {
        golden_must(code, &err);
        float *logits = golden_logits(m, &g->prompt, NULL);
        double e = golden_error(logits, g->logits, (size_t)g->prompt.n * (size_t)g->vocab);
        if (!(e <= 1e-4))
            fail_msg("%s: logits are off by %g", folder, e);
        free(logits);
        model_close(m);
    } else {
        if (code == NYB_OK)
            fail_msg("%s: was loaded", folder);
        assert_null(m);
        err_format(&err, text, sizeof(text));
        json_array_foreach(json_object_get(expect, "mentions"), i,
                           word) if (!strstr(text, json_string_value(word)))
            fail_msg("%s: \"%s\" does not mention %s", folder, text, json_string_value(word));
    }
    json_decref(expect);
}

static void test_golden_faults(void **state)
{
    (void)state;
    NEED_SHARED();
    char *out = folder_make();
    struct buf make = {0};
    buf_printf(&make, "python3 '%s/tools/make_faults.py' '%s/golden/%s' ", NYBBLE_SHARED_DIR,
               NYBBLE_SHARED_DIR, checkpoint[0]);
    buf_add_str(&make, out);
    buf_add_str(&make, " >/dev/null");
    if (system(make.data) != 0) {
        print_message("cannot make the faults: no python3?\n");
        buf_free(&make);
        folder_drop(out);
        skip();
    }
    buf_free(&make);
    struct golden_data g;
    assert_true(open_shared(&g, 0));
    DIR *d = opendir(out);
    assert_non_null(d);
    int n = 0;
    for (struct dirent *entry; (entry = readdir(d));) {
        if (entry->d_name[0] == '.')
            continue;
        char *folder = path_join(out, entry->d_name);
        check_fault(folder, &g);
        free(folder);
        n++;
    }
    closedir(d);
    assert_int_equal(n, 18);
    golden_close(&g);
    folder_drop(out);
}

int main(void)
{
    log_set_level(LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_strict),
        cmocka_unit_test(test_golden_default),
        cmocka_unit_test(test_golden_w4a4),
        cmocka_unit_test(test_golden_threads_and_chunks_do_not_matter),
        cmocka_unit_test(test_golden_batch_does_not_matter),
        cmocka_unit_test(test_golden_stories),
        cmocka_unit_test(test_golden_tales),
        cmocka_unit_test(test_golden_faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
