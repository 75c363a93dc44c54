/* The engine over the embedded model: under batching, chunked prefill, preemption and the prefix cache every
 * request gets the tokens it gets alone; greedy ones are those that Hugging Face transformers computed. */
#include "test.h"

#include <time.h>

#include "base/json.h"
#include "nybble.h"

#define MODEL         NYBBLE_SOURCE_DIR "/models/tales-24m-moe-nvfp4"
#define N_REQUEST     24
#define N_REQUEST_MAX 512 /* NYBBLE_ENGINE_REQUESTS asks for more */
#define MAX_OUT       48

static const char *const opening[] = {
    "Once upon a time there was a little girl who",
    "Once upon a time there was a little girl who lived in a castle by the sea, and every morning",
    "The old king had three sons, and the youngest",
    "Once upon a time",
    "In the middle of the forest stood a house. Nobody knew who had built it, for nobody had ever seen a "
    "light "
    "in its windows. But one winter night, when the snow lay deep and the wolves were hungry, a woodcutter",
    "\"Who are you?\" asked the fox.",
};

struct answer {
    int32_t id[MAX_OUT];
    int n, cached;
    enum nyb_finish finish;
};

static struct nyb_engine *open_engine_kv(enum nyb_compute compute, enum nyb_kv_dtype kv, int seqs, int tokens,
                                         uint64_t kv_bytes, bool cache)
{
    struct nyb_options o;
    struct nyb_engine *e;
    struct nyb_err err;
    nyb_options_init(&o);
    o.model = MODEL;
    o.compute = compute;
    o.kv_dtype = kv;
    o.threads = 2;
    o.max_model_len = 256;
    o.max_num_seqs = seqs;
    o.max_num_batched_tokens = tokens;
    o.kv_cache_bytes = kv_bytes;
    o.prefix_cache = cache;
    if (nyb_open(&e, &o, &err) != NYB_OK)
        fail_msg("%s: %s", err.where, err.message);
    return e;
}

static struct nyb_engine *open_engine(enum nyb_compute compute, int seqs, int tokens, uint64_t kv_bytes,
                                      bool cache)
{
    return open_engine_kv(compute, NYB_KV_AUTO, seqs, tokens, kv_bytes, cache);
}

static struct nyb_stream *submit(struct nyb_engine *e, const int32_t *ids, size_t n, const char *text,
                                 const struct nyb_sampling *s)
{
    struct nyb_stream *stream;
    struct nyb_err err;
    const struct nyb_request r = {.prompt = ids, .n_prompt = n, .text = text, .sampling = s};
    if (nyb_submit(e, &r, &stream, &err) != NYB_OK)
        fail_msg("%s: %s", err.where, err.message);
    return stream;
}

static void finish(struct nyb_stream *stream, struct answer *a)
{
    struct nyb_event ev;
    *a = (struct answer){0};
    while (nyb_next(stream, &ev, 60000)) {
        if (ev.token >= 0)
            a->id[a->n++] = ev.token;
        a->finish = ev.finish;
        a->cached = ev.usage.cached_tokens;
    }
    nyb_stream_free(stream);
}

/* Every third greedy, the others seeded, with all kinds of parameters. */
static struct nyb_sampling mixed(int i)
{
    struct nyb_sampling s;
    nyb_sampling_init(&s);
    s.max_tokens = MAX_OUT - i % 7;
    s.temperature = i % 3 == 0 ? 0 : 0.6 + 0.1 * (i % 5);
    s.seed = 1000 + i;
    if (i % 4 == 1)
        s.top_k = 20;
    if (i % 5 == 2)
        s.repetition_penalty = 1.2;
    if (i % 6 == 4)
        s.min_p = 0.05;
    if (i % 8 == 3)
        s.frequency_penalty = 0.5;
    if (i % 2)
        s.ignore_eos = true;
    return s;
}

static void assert_all_blocks_come_free(struct nyb_engine *e)
{
    struct nyb_stats s = {.kv_blocks_used = -1};
    for (int i = 0; i < 5000 && s.kv_blocks_used != 0; i++) {
        nyb_engine_stats(e, &s);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    assert_int_equal(s.kv_blocks_used, 0);
    assert_int_equal(s.running + s.waiting + s.stalled, 0);
}

/* Alone with everything off; then eight at once in chunks, with far too few blocks and the prefix cache. */
static void check_batched_equals_alone(enum nyb_kv_dtype kv)
{
    static struct answer alone[N_REQUEST_MAX], batched[N_REQUEST_MAX];
    static struct nyb_stream *stream[N_REQUEST_MAX];
    const char *asked = getenv("NYBBLE_ENGINE_REQUESTS");
    int n = asked ? atoi(asked) : N_REQUEST;
    assert_true(n > 0 && n <= N_REQUEST_MAX);
    struct nyb_engine *e = open_engine_kv(NYB_COMPUTE_BF16, kv, 1, 256, 0, false);
    const struct nyb_info *info = nyb_engine_info(e);
    uint64_t block_bytes = info->kv_bytes / (uint64_t)info->kv_blocks;
    const int n_opening = (int)(sizeof(opening) / sizeof(opening[0]));
    for (int i = 0; i < n; i++) {
        struct nyb_sampling s = mixed(i);
        finish(submit(e, NULL, 0, opening[i % n_opening], &s), &alone[i]);
        assert_true(alone[i].n > 0 && alone[i].finish != NYB_FINISH_ERROR);
    }
    nyb_close(e);

    e = open_engine_kv(NYB_COMPUTE_BF16, kv, 8, 24, 18 * block_bytes, true);
    for (int i = 0; i < n; i++) {
        struct nyb_sampling s = mixed(i);
        stream[i] = submit(e, NULL, 0, opening[i % n_opening], &s);
    }
    int cached = 0;
    for (int i = 0; i < n; i++) {
        finish(stream[i], &batched[i]);
        cached += batched[i].cached;
        assert_int_equal(batched[i].finish, alone[i].finish);
        assert_int_equal(batched[i].n, alone[i].n);
        assert_memory_equal(batched[i].id, alone[i].id, (size_t)alone[i].n * sizeof(int32_t));
    }
    struct nyb_stats stats;
    assert_all_blocks_come_free(e);
    nyb_engine_stats(e, &stats);
    print_message("%d requests: %llu steps, %llu preemptions, %d prompt tokens from the cache\n", n,
                  (unsigned long long)stats.steps, (unsigned long long)stats.preemptions, cached);
    assert_true(stats.preemptions > 0 && cached > 0);
    nyb_close(e);
}

static void test_engine_batched_equals_alone(void **state)
{
    (void)state;
    check_batched_equals_alone(NYB_KV_BF16);
}

static void test_engine_batched_equals_alone_over_fp8(void **state)
{
    (void)state;
    check_batched_equals_alone(NYB_KV_FP8);
}

static void test_engine_greedy_equals_transformers(void **state)
{
    (void)state;
    json_t *root;
    assert_int_equal(json_read_file(&root, MODEL "/golden.json", NULL), NYB_OK);
    const json_t *rows = json_object_get(root, "greedy");
    struct nyb_engine *e = open_engine(NYB_COMPUTE_STRICT, 4, 32, 0, true);
    struct nyb_stream *stream[16];
    size_t n_row = json_array_size(rows);
    assert_true(n_row > 0);
    n_row = n_row > 16 ? 16 : n_row;
    for (size_t i = 0; i < n_row; i++) {
        const json_t *row = json_array_get(rows, i), *ids = json_object_get(row, "prompt_ids");
        int32_t prompt[128];
        size_t n = json_array_size(ids);
        assert_true(n > 0 && n <= 128);
        for (size_t k = 0; k < n; k++)
            prompt[k] = (int32_t)json_integer_value(json_array_get(ids, k));
        struct nyb_sampling s;
        nyb_sampling_init(&s);
        s.temperature = 0;
        s.ignore_eos = true;
        size_t n_out = json_array_size(json_object_get(row, "greedy_ids"));
        s.max_tokens = n_out < MAX_OUT ? (int)n_out : MAX_OUT;
        stream[i] = submit(e, prompt, n, NULL, &s);
    }
    for (size_t i = 0; i < n_row; i++) {
        struct answer a;
        finish(stream[i], &a);
        const json_t *want = json_object_get(json_array_get(rows, i), "greedy_ids");
        assert_true(a.n > 0);
        for (int k = 0; k < a.n; k++)
            assert_int_equal(a.id[k], json_integer_value(json_array_get(want, (size_t)k)));
    }
    nyb_close(e);
    json_decref(root);
}

static void test_engine_cancel_in_flight_frees_all_blocks(void **state)
{
    (void)state;
    struct nyb_engine *e = open_engine(NYB_COMPUTE_BF16, 8, 24, 0, true);
    struct nyb_stream *stream[N_REQUEST];
    struct nyb_sampling s;
    nyb_sampling_init(&s);
    s.ignore_eos = true; /* to the end of the context, were it not cancelled */
    for (int i = 0; i < N_REQUEST; i++)
        stream[i] = submit(e, NULL, 0, opening[i % 6], &s);
    struct nyb_event ev;
    for (int i = 0; i < N_REQUEST; i += 2) { /* half of them after some tokens, half unread */
        for (int k = 0; k < 3; k++)
            assert_true(nyb_next(stream[i], &ev, 60000));
        nyb_cancel(stream[i]);
    }
    for (int i = 0; i < N_REQUEST; i += 2) {
        while (ev.finish = NYB_FINISH_NONE, nyb_next(stream[i], &ev, 60000) && ev.finish == NYB_FINISH_NONE)
            ;
        assert_int_equal(ev.finish, NYB_FINISH_ABORT);
    }
    for (int i = 0; i < N_REQUEST; i++)
        nyb_stream_free(stream[i]);
    assert_all_blocks_come_free(e);
    nyb_close(e);
}

static void test_engine_second_turn_uses_the_prefix_cache(void **state)
{
    (void)state;
    struct nyb_engine *e = open_engine(NYB_COMPUTE_BF16, 2, 64, 0, true);
    struct nyb_sampling s = mixed(4);
    struct answer first, second;
    finish(submit(e, NULL, 0, opening[4], &s), &first);
    finish(submit(e, NULL, 0, opening[4], &s), &second);
    assert_int_equal(first.cached, 0);
    assert_true(second.cached >= nyb_engine_info(e)->kv_block_tokens);
    assert_int_equal(first.n, second.n);
    assert_memory_equal(first.id, second.id, sizeof(first.id));
    nyb_close(e);
}

static void test_engine_open_refuses_what_cannot_be(void **state)
{
    (void)state;
    struct nyb_options o;
    struct nyb_engine *e;
    struct nyb_err err;
    nyb_options_init(&o);
    assert_int_equal(nyb_open(&e, &o, &err), NYB_E_ARG);
    o.model = MODEL "/nowhere";
    assert_int_not_equal(nyb_open(&e, &o, &err), NYB_OK);
    assert_null(e);
    o.model = MODEL;
    o.max_num_seqs = 64;
    o.max_num_batched_tokens = 63;
    assert_int_equal(nyb_open(&e, &o, &err), NYB_E_RANGE);
    assert_string_equal(err.where, "max_num_batched_tokens");
    nyb_options_init(&o);
    o.model = MODEL;
    o.max_model_len = 512;
    o.kv_cache_bytes = 1 << 16;
    assert_int_equal(nyb_open(&e, &o, &err), NYB_E_MEMORY);
    assert_non_null(strstr(err.message, "512 tokens"));
}

#define INT_OPTION(name) #name, offsetof(struct nyb_options, name)

/* Tokens a step, where none are asked for. */
static void test_engine_step_tokens(void **state)
{
    (void)state;
    static const int asked[][3] = {{0, 64, 512}, {0, 600, 600}, {-1, 64, 512}, {100, 64, 100}};
    for (size_t i = 0; i < sizeof(asked) / sizeof(asked[0]); i++) {
        struct nyb_engine *e;
        struct nyb_options o;
        struct nyb_err err;
        nyb_options_init(&o);
        o.model = MODEL;
        o.max_model_len = 64;
        o.max_num_batched_tokens = asked[i][0];
        o.max_num_seqs = asked[i][1];
        assert_int_equal(nyb_open(&e, &o, &err), NYB_OK);
        assert_int_equal(nyb_engine_info(e)->max_num_batched_tokens, asked[i][2]);
        nyb_close(e);
    }
}

static void test_engine_open_refuses_options_out_of_range(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        size_t at; /* of an int, or an enumeration */
        int low, high;
        bool of_experts; /* only where expert_parallel is on */
    } row[] = {
        {INT_OPTION(max_num_seqs), 0, 4097, false},
        {INT_OPTION(max_num_batched_tokens), 63, (1 << 20) + 1, false}, /* at least max_num_seqs, or 0 */
        {INT_OPTION(max_waiting), -1, (1 << 20) + 1, false},
        {INT_OPTION(max_logprobs), -1, 1001, false},
        {INT_OPTION(stuck_ms), 0, -1, false},
        {INT_OPTION(tensor_parallel_size), -1, 65, false},
        {INT_OPTION(num_redundant_experts), -1, INT16_MAX + 1, true},
        {INT_OPTION(expert_rebalance_interval), -1, INT32_MIN, true},
        {INT_OPTION(dispatch_dtype), -1, NYB_DISPATCH_NVFP4 + 1, true},
        {INT_OPTION(load_format), -1, NYB_LOAD_DUMMY + 1, false},
        {INT_OPTION(compute), -1, NYB_COMPUTE_W4A4 + 1, false},
        {INT_OPTION(kv_dtype), -2, NYB_KV_FP8 + 1, false},
        {INT_OPTION(device), -1, NYB_DEVICE_AUTO + 1, false},
        {INT_OPTION(moe_backend), -1, NYB_BACKEND_REFERENCE + 1, false},
        {INT_OPTION(gemm_backend), -1, NYB_BACKEND_REFERENCE + 1, false},
    };
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++)
        for (int turn = 0; turn < 2; turn++) {
            struct nyb_options o;
            struct nyb_engine *e;
            struct nyb_err err;
            char got[32];
            int value = turn ? row[i].high : row[i].low;
            nyb_options_init(&o);
            o.model = MODEL;
            o.max_num_seqs = 64;
            memcpy((char *)&o + row[i].at, &value, sizeof(value));
            assert_int_equal(nyb_open(&e, &o, &err), NYB_E_RANGE);
            assert_null(e);
            assert_string_equal(err.where, row[i].name);
            snprintf(got, sizeof(got), "got %d", value);
            assert_non_null(strstr(err.message, got));
            value = 1; /* within the range, but there are no experts to share out */
            memcpy((char *)&o + row[i].at, &value, sizeof(value));
            if (row[i].of_experts) {
                assert_int_equal(nyb_open(&e, &o, &err), NYB_E_ARG);
                assert_string_equal(err.where, row[i].name);
            }
        }
}

/* Without a context asked for, it is as long as the cache that was; never longer than the model's. */
static void test_engine_context_is_what_the_cache_holds(void **state)
{
    (void)state;
    struct nyb_options o;
    struct nyb_engine *e;
    struct nyb_err err;
    nyb_options_init(&o);
    o.model = MODEL;
    o.threads = 2;
    o.max_num_seqs = 2;
    assert_int_equal(nyb_open(&e, &o, &err), NYB_OK);
    int full = (int)nyb_engine_info(e)->max_model_len, n_block = nyb_engine_info(e)->kv_blocks;
    uint64_t block = nyb_engine_info(e)->kv_bytes / (uint64_t)n_block;
    nyb_close(e);
    assert_int_equal(n_block, 2 * ((full + 15) / 16)); /* what the limits can use */
    o.kv_cache_bytes = 7 * block + block / 2;
    assert_int_equal(nyb_open(&e, &o, &err), NYB_OK);
    assert_int_equal(nyb_engine_info(e)->kv_blocks, 7);
    assert_int_equal(nyb_engine_info(e)->max_model_len, 7 * 16);
    nyb_close(e);
    o.kv_cache_bytes = 3 * (uint64_t)n_block * block;
    assert_int_equal(nyb_open(&e, &o, &err), NYB_OK);
    assert_int_equal(nyb_engine_info(e)->kv_blocks, 3 * n_block);
    assert_int_equal(nyb_engine_info(e)->max_model_len, full);
    nyb_close(e);
    o.kv_cache_bytes = block - 1;
    assert_int_equal(nyb_open(&e, &o, &err), NYB_E_MEMORY);
}

/* The embedded model with a generation_config.json of our own. */
static void check_defaults(const char *text, double temperature, double top_p, double min_p,
                           double repetition, int top_k, int n_eos)
{
    static const char *const name[] = {"config.json",    "hf_quant_config.json",  "model.safetensors",
                                       "tokenizer.json", "tokenizer_config.json", "generation_config.json"};
    char folder[] = "/tmp/nybble-test-XXXXXX", from[512], to[512];
    assert_non_null(mkdtemp(folder));
    for (int i = 0; i < 6; i++) {
        snprintf(from, sizeof(from), "%s/%s", MODEL, name[i]);
        snprintf(to, sizeof(to), "%s/%s", folder, name[i]);
        if (i < 5)
            assert_int_equal(symlink(from, to), 0);
    }
    FILE *f = fopen(to, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    struct nyb_options o;
    struct nyb_engine *e;
    struct nyb_err err;
    nyb_options_init(&o);
    o.model = folder;
    o.threads = 1;
    o.max_model_len = 64;
    if (nyb_open(&e, &o, &err) != NYB_OK)
        fail_msg("%s: %s", err.where, err.message);
    const struct nyb_info *info = nyb_engine_info(e);
    assert_float_equal(info->temperature, temperature, 1e-6);
    assert_float_equal(info->top_p, top_p, 1e-6);
    assert_float_equal(info->min_p, min_p, 1e-6);
    assert_float_equal(info->repetition_penalty, repetition, 1e-6);
    assert_int_equal(info->top_k, top_k);
    assert_int_equal(info->n_eos, n_eos);
    for (int i = 0; i < n_eos; i++)
        assert_int_equal(info->eos[i], i == n_eos - 1 ? 0 : i + 3); /* the last one is config.json's */
    nyb_close(e);
    for (int i = 0; i < 6; i++) {
        snprintf(to, sizeof(to), "%s/%s", folder, name[i]);
        unlink(to);
    }
    rmdir(folder);
}

static void test_engine_defaults_are_the_checkpoints(void **state)
{
    (void)state;
    /* Ids that the model does not have cannot end an answer. */
    check_defaults(
        "{\"temperature\":0.5,\"top_p\":0.25,\"min_p\":0.125,\"repetition_penalty\":1.5,\"top_k\":7,"
        "\"eos_token_id\":[3,4,100000,5]}",
        0.5, 0.25, 0.125, 1.5, 7, 4);
    check_defaults("{\"top_k\":-1,\"eos_token_id\":[3]}", 1, 1, 0, 1, 0, 2);
}

struct heard {
    int n;
    bool cache; /* the line about the KV cache */
    enum nyb_log_level worst;
};

static void hear(void *arg, enum nyb_log_level level, const char *text)
{
    struct heard *h = arg;
    h->n++;
    h->cache = h->cache || (level == NYB_LOG_INFO && !strncmp(text, "KV cache: ", 10));
    h->worst = level > h->worst ? level : h->worst;
}

/* What is said goes to the caller, as far as he wants to hear it. */
static void test_engine_log_goes_to_the_caller(void **state)
{
    (void)state;
    struct heard all = {0}, none = {0};
    nyb_set_log(NYB_LOG_INFO, hear, &all);
    nyb_close(open_engine(NYB_COMPUTE_BF16, 1, 16, 0, false));
    assert_true(all.n > 0 && all.cache && all.worst <= NYB_LOG_INFO);
    nyb_set_log(NYB_LOG_ERROR, hear, &none);
    nyb_close(open_engine(NYB_COMPUTE_BF16, 1, 16, 0, false));
    assert_int_equal(none.n, 0);
    nyb_set_log(NYB_LOG_INFO, NULL, NULL);
    int before = all.n;
    nyb_close(open_engine(NYB_COMPUTE_BF16, 1, 16, 0, false));
    assert_int_equal(all.n, before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_engine_batched_equals_alone),
        cmocka_unit_test(test_engine_batched_equals_alone_over_fp8),
        cmocka_unit_test(test_engine_greedy_equals_transformers),
        cmocka_unit_test(test_engine_cancel_in_flight_frees_all_blocks),
        cmocka_unit_test(test_engine_second_turn_uses_the_prefix_cache),
        cmocka_unit_test(test_engine_open_refuses_what_cannot_be),
        cmocka_unit_test(test_engine_step_tokens),
        cmocka_unit_test(test_engine_open_refuses_options_out_of_range),
        cmocka_unit_test(test_engine_context_is_what_the_cache_holds),
        cmocka_unit_test(test_engine_defaults_are_the_checkpoints),
        cmocka_unit_test(test_engine_log_goes_to_the_caller),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
