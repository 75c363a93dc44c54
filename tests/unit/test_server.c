/* Parts of the server that need no socket: parameters, messages, the parts of a chat's answer, routes. */
#include "test.h"

#ifdef NYBBLE_SERVER
#include <math.h>
#include <stdlib.h>

#include "server/answer.h"
#include "server/choice.h"
#include "server/config.h"
#include "server/messages.h"
#include "server/near.h"
#include "server/params_json.h"
#include "server/route.h"

static json_t *from_text(const char *text)
{
    json_t *v = json_loads(text, 0, NULL);
    assert_non_null(v);
    return v;
}

static void test_params_read_all(void **state)
{
    (void)state;
    struct nyb_sampling s;
    struct arena a;
    struct nyb_err err;
    json_t *body =
        from_text("{\"temperature\": 1, \"top_k\": 5, \"seed\": 9007199254740993, \"stop\": \"x\","
                  " \"max_completion_tokens\": 7, \"stop_token_ids\": [1, 2], \"ignore_eos\": true,"
                  " \"logit_bias\": {\"3\": -1.5}, \"skip_special_tokens\": false, \"min_p\": null}");
    arena_init(&a, 256);
    assert_int_equal(params_read(&s, body, &a, &err), NYB_OK);
    assert_true(s.temperature == 1 && isnan(s.min_p) && s.top_k == 5 && s.max_tokens == 7);
    assert_true(s.seed == 9007199254740993 && s.ignore_eos && s.keep_special_tokens);
    assert_true(s.n_stop == 1 && !strcmp(s.stop[0], "x"));
    assert_true(s.n_stop_token == 2 && s.stop_token[1] == 2);
    assert_true(s.n_logit_bias == 1 && s.logit_bias[0].token == 3 && s.logit_bias[0].bias == -1.5);
    arena_free(&a);
    json_decref(body);
}

static void check_wrong(const char *fields, enum nyb_code code, const char *message)
{
    struct nyb_sampling s;
    struct arena a;
    struct nyb_err err;
    json_t *body = from_text(fields);
    arena_init(&a, 256);
    assert_int_equal(params_read(&s, body, &a, &err), code);
    assert_string_equal(err.message, message);
    assert_non_null(strstr(fields, err.where));
    arena_free(&a);
    json_decref(body);
}

static void test_params_name_the_parameter(void **state)
{
    (void)state;
    check_wrong("{\"top_k\": \"many\"}", NYB_E_ARG,
                "top_k must be an integer, got a string. (parameter=top_k, value=\"many\")");
    check_wrong("{\"seed\": 7.5}", NYB_E_ARG,
                "seed must be an integer, got a number. (parameter=seed, value=7.5)");
}

/* Of integers the range. */
static void test_params_say_which_integers(void **state)
{
    (void)state;
    check_wrong(
        "{\"seed\": 1e17}", NYB_E_RANGE,
        "seed must be within 64 bits, or within 2^53 where it is written with a point or an exponent, "
        "got 1e17. (parameter=seed, value=1e17)");
    check_wrong("{\"top_k\": -1e18}", NYB_E_RANGE,
                "top_k must be within 32 bits, got -1e18. (parameter=top_k, value=-1e18)");
    check_wrong("{\"top_k\": 4294967296}", NYB_E_RANGE,
                "top_k must be within 32 bits, got 4294967296. (parameter=top_k, value=4294967296)");
}

static void test_metadata_fills_gaps(void **state)
{
    (void)state;
    json_t *body = from_text(
        "{\"max_tokens\": 3, \"metadata\": {\"max_tokens\": 9, \"min_tokens\": 2, \"seed\": \"a\"}}");
    params_merge_metadata(body);
    assert_int_equal(json_integer_value(json_object_get(body, "max_tokens")), 3);
    assert_int_equal(json_integer_value(json_object_get(body, "min_tokens")), 2);
    assert_null(json_object_get(body, "seed"));
    json_decref(body);
}

static void test_messages_normalize(void **state)
{
    (void)state;
    struct nyb_err err;
    json_t *m =
        from_text("[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}, \"b\"]},"
                  " {\"role\": \"assistant\", \"content\": null, \"reasoning\": \"r\", \"tool_calls\":"
                  "  [{\"function\": {\"name\": \"f\", \"arguments\": \"{\\\"x\\\": 1}\"}}]}]");
    assert_int_equal(messages_normalize(m, &err), NYB_OK);
    assert_string_equal(json_string_value(json_object_get(json_array_get(m, 0), "content")), "a\nb");
    const json_t *second = json_array_get(m, 1);
    assert_string_equal(json_string_value(json_object_get(second, "reasoning_content")), "r");
    const json_t *call = json_array_get(json_object_get(second, "tool_calls"), 0);
    assert_true(json_is_object(json_object_get(json_object_get(call, "function"), "arguments")));
    json_decref(m);
}

/* An answer of a model that reasons and calls, cut into pieces of `step` bytes, as one message or as a delta.
 */
static char *parse_answer(const char *text, size_t step, bool stream)
{
    struct server s = {.format = parse_format_find("qwen3")};
    struct exchange x = {.s = &s};
    json_t *request = from_text("{\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]}");
    struct gen g = {.x = &x, .api = GEN_CHAT, .stream = stream, .request = request};
    struct choice c = {.g = &g};
    struct buf b = {0};
    choice_open_parser(&c);
    for (size_t i = 0, n = strlen(text); i < n; i += step)
        parse_push(c.parser, text + i, n - i < step ? n - i : step);
    parse_finish(c.parser);
    c.finish = NYB_FINISH_STOP;
    c.done = true;
    answer_add_parts(&c, &b, stream);
    assert_string_equal(gen_finish_reason(&c), c.n_call ? "tool_calls" : "stop");
    choice_close(&c);
    json_decref(request);
    return buf_steal(&b);
}

static void test_reasoning_and_calls(void **state)
{
    (void)state;
    const char *text =
        "<think>\nwell \"so\"\n</think>\n\nAnswer.\n<tool_call>\n{\"name\": \"f\", \"arguments\": "
        "{\"x\": \"é\"}}\n</tool_call>";
    for (size_t step = 1; step < 40; step += 6) {
        char *out = parse_answer(text, step, false);
        json_t *m = from_text(out);
        assert_string_equal(json_string_value(json_object_get(m, "role")), "assistant");
        assert_string_equal(json_string_value(json_object_get(m, "content")), "Answer.");
        assert_string_equal(json_string_value(json_object_get(m, "reasoning")), "well \"so\"");
        assert_string_equal(json_string_value(json_object_get(m, "reasoning_content")), "well \"so\"");
        const json_t *call = json_array_get(json_object_get(m, "tool_calls"), 0);
        const json_t *f = json_object_get(call, "function");
        assert_null(json_object_get(call, "index"));
        assert_non_null(json_string_value(json_object_get(call, "id")));
        assert_string_equal(json_string_value(json_object_get(f, "name")), "f");
        json_t *arguments = from_text(json_string_value(json_object_get(f, "arguments")));
        assert_string_equal(json_string_value(json_object_get(arguments, "x")), "é");
        json_decref(arguments);
        json_decref(m);
        free(out);
    }
    char *delta = parse_answer("<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>", 5, true);
    json_t *d = from_text(delta);
    const json_t *call = json_array_get(json_object_get(d, "tool_calls"), 0);
    assert_int_equal(json_integer_value(json_object_get(call, "index")), 0);
    assert_null(json_object_get(d, "content"));
    json_decref(d);
    free(delta);
}

static void test_routes(void **state)
{
    (void)state;
    const char *allow;
    assert_true(route_find("POST", "/v1/completions", &allow)->run == api_completions);
    assert_true(route_find("HEAD", "/health", &allow)->run == api_health);
    assert_true(route_find("GET", "/v1/models/a/b", &allow)->run == api_model);
    assert_null(route_find("GET", "/v1/completions", &allow));
    assert_string_equal(allow, "POST");
    assert_null(route_find("GET", "/v1/models/", &allow));
    assert_null(allow);
}

static void test_config_units(void **state)
{
    (void)state;
    struct serve_config c = {0};
    struct nyb_err err;
    assert_int_equal(config_set(&c, "kv_cache_memory", "1.5GiB", NULL, &err), NYB_OK);
    assert_true(c.kv_cache_bytes == 3ull << 29);
    assert_int_equal(config_set(&c, "max-body", "64k", NULL, &err), NYB_OK);
    assert_true(c.max_body == 65536);
    assert_int_equal(config_set(&c, "max-body", "64kX", NULL, &err), NYB_E_ARG);
    assert_int_equal(config_set(&c, "kv-cache-dtype", "fp8", NULL, &err), NYB_OK);
    assert_int_equal(c.kv_dtype, NYB_KV_FP8 + 1);
    assert_int_equal(config_set(&c, "ssl-certfile", "x", NULL, &err), NYB_OK);
    assert_string_equal(c.tls_cert, "x");
    assert_int_equal(config_set(&c, "tensor-parallel-size", "2", NULL, &err), NYB_OK);
    assert_int_equal(c.tensor_parallel_size, 2);
    assert_int_equal(config_set(&c, "tensor-parallel-size", "65", NULL, &err), NYB_E_ARG);
    assert_int_equal(config_set(&c, "max-model-len", "32k", NULL, &err), NYB_OK);
    assert_int_equal(c.max_model_len, 32000);
    assert_int_equal(config_set(&c, "max-model-len", "32K", NULL, &err), NYB_OK);
    assert_int_equal(c.max_model_len, 32768);
    assert_int_equal(config_set(&c, "max-model-len", "25.6k", NULL, &err), NYB_OK);
    assert_int_equal(c.max_model_len, 25600);
    assert_int_equal(config_set(&c, "max-model-len", "1.001m", NULL, &err), NYB_OK);
    assert_int_equal(c.max_model_len, 1001000);
    assert_int_equal(config_set(&c, "max-model-len", "32M", NULL, &err), NYB_OK);
    assert_int_equal(c.max_model_len, 32 << 20);
    static const char *const none[] = {"auto", "-1", "0"};
    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++) {
        c.max_model_len = 5;
        assert_int_equal(config_set(&c, "max-model-len", none[i], NULL, &err), NYB_OK);
        assert_int_equal(c.max_model_len, 0);
    }
    static const char *const bad[] = {"k",   "32kk", "32T",    "3000000k", "9223372036854775807K",
                                      "-1k", "1.5K", "1.5",    "+5",       " 5",
                                      "5 ",  "0x10", "1e3",    "nan",      "1.0005k",
                                      "-2",  "",     "2.5.1k", "inf",      "3g",
                                      "k5"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(config_set(&c, "max-model-len", bad[i], NULL, &err), NYB_E_ARG);
    assert_int_equal(config_set(&c, "pipeline-parallel-size", "2", NULL, &err), NYB_E_ARG);
    assert_int_equal(config_set(&c, "tool-parser-plugin", "", NULL, &err), NYB_OK);
    assert_int_equal(config_set(&c, "tool-parser-plugin", "x.py", NULL, &err), NYB_E_ARG);
    assert_non_null(strstr(err.message, "can only be empty"));
    config_free(&c);
}

/* Other servers' switches that are on where ours are off. */
static void test_config_opposites(void **state)
{
    (void)state;
    static const struct {
        const char *flag[2];
        bool cache, log;
    } row[] = {
        {{"--disable-radix-cache", NULL}, false, true},
        {{"--disable_radix_cache=true", NULL}, false, true},
        {{"--disable-radix-cache", "false"}, true, true},
        {{"--no-disable-radix-cache", NULL}, true, true},
        {{"--no-enable-prefix-caching", "--disable-radix-cache=off"}, true, true},
        {{"--disable-uvicorn-access-log", NULL}, true, false},
        {{"--context-length=77", "--max-running-requests=5"}, true, true},
        {{"--no-enable-log-requests", NULL}, true, true}, /* a switch that can only be off */
    };
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        char *argv[] = {(char *)(uintptr_t) "serve", (char *)(uintptr_t)row[i].flag[0],
                        (char *)(uintptr_t)row[i].flag[1]};
        struct serve_config c;
        struct nyb_err err;
        bool help;
        assert_int_equal(config_read(&c, row[i].flag[1] ? 3 : 2, argv, &help, &err), NYB_OK);
        assert_int_equal(c.prefix_cache, row[i].cache);
        assert_int_equal(c.access_log, row[i].log);
        assert_int_equal(c.max_model_len, i == 6 ? 77 : 0);
        assert_int_equal(c.max_num_seqs, i == 6 ? 5 : 64);
        config_free(&c);
    }
}

static void test_routes_that_are_near(void **state)
{
    (void)state;
    assert_string_equal(near_path("/chat/completions"), "/v1/chat/completions");
    assert_string_equal(near_path("/v1/v1/models"), "/v1/models");
    assert_string_equal(near_path("/v1/models/"), "/v1/models");
    assert_string_equal(near_path("/completions//"), "/v1/completions");
    assert_string_equal(near_path("/v1/health"), "/health");
    assert_string_equal(near_path("//v1/chat/completions"), "/v1/chat/completions");
    assert_string_equal(near_path("//chat/completions/"), "/v1/chat/completions");
    /* slips */
    assert_string_equal(near_path("/v1/modles"), "/v1/models");
    assert_string_equal(near_path("/v1//models"), "/v1/models");
    assert_string_equal(near_path("/V1/Chat/Completion"), "/v1/chat/completions");
    assert_string_equal(near_path("/v1/chat/complete"), "/v1/chat/completions");
    assert_string_equal(near_path("/flush-cache"), "/flush_cache");
    /* other servers' */
    assert_string_equal(near_path("/"), "/v1/models");
    assert_string_equal(near_path("/healthz"), "/health");
    assert_string_equal(near_path("/api/chat"), "/v1/chat/completions");
    assert_string_equal(near_path("/messages/"), "/v1/messages");
    assert_string_equal(near_path("/responses/input_tokens"), "/v1/responses/input_tokens");
    assert_string_equal(near_path("//v1//is_sleeping//"), "/v1/is_paused");
    assert_string_equal(near_path("//"), "/v1/models");
    /* a base address that is another server's */
    assert_string_equal(near_path("/openai/v1/chat/completions"), "/v1/chat/completions");
    assert_string_equal(near_path("/openai/deployments/m/chat/completions/"), "/v1/chat/completions");
    assert_string_equal(near_path("/v1/engines/m/completions"), "/v1/completions");
    assert_string_equal(near_path("/api/v0/models"), "/v1/models");
    assert_string_equal(near_path("/api/version"), "/version");
    static const char *const none[] = {"",
                                       "/x",
                                       "x",
                                       "/favicon.ico",
                                       "/v1/embeddings/",
                                       "/v1/files/7",
                                       "//docs",
                                       "/v1x",
                                       "/v1/audio/x/completions"};
    for (size_t i = 0; i < sizeof(none) / sizeof(*none); i++)
        assert_null(near_path(none[i]));
    char longest[5000] = {0};
    memset(longest, '/', sizeof(longest) - 1);
    assert_string_equal(near_path(longest), "/v1/models");
    memset(longest + 1, 'x', sizeof(longest) - 2);
    assert_null(near_path(longest));
    assert_non_null(strstr(near_reason("/v1/embeddings"), "embeds none"));
    assert_non_null(strstr(near_reason("/v1/responses/resp_1"), "stored"));
    assert_non_null(strstr(near_reason("//v1/responses//resp_1/"), "stored"));
    assert_non_null(strstr(near_reason("/embeddings"), "embeds none"));
    assert_null(near_reason("/v1/responses"));
    assert_non_null(strstr(near_reason("/v1/responses/compact"), "shortened"));
    assert_null(near_reason("/x"));
    assert_null(near_reason(longest));
}

static void check_refusal(enum nyb_code code, const char *where, const char *message, const char *want_where,
                          const char *want)
{
    struct nyb_err err;
    assert_int_equal(err_at(&err, code, where, -1, "%s", message), code);
    messages_say_who_refuses(code, &err);
    assert_string_equal(err.where, want_where);
    assert_string_equal(err.message, want);
}

static void test_templates_that_refuse_are_named(void **state)
{
    (void)state;
    check_refusal(NYB_E_TEMPLATE, "", "No user query.", "messages",
                  "The model's chat template refuses these messages: No user query.");
    check_refusal(NYB_E_TEMPLATE, "chat template, line 7", "a dict has no items", "messages",
                  "The model's chat template refuses these messages: line 7: a dict has no items");
    check_refusal(NYB_E_TEMPLATE, "/models/x", "no chat template", "/models/x", "no chat template");
    check_refusal(NYB_E_ARG, "", "odd", "", "odd");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_params_read_all),
        cmocka_unit_test(test_params_name_the_parameter),
        cmocka_unit_test(test_params_say_which_integers),
        cmocka_unit_test(test_metadata_fills_gaps),
        cmocka_unit_test(test_messages_normalize),
        cmocka_unit_test(test_reasoning_and_calls),
        cmocka_unit_test(test_routes),
        cmocka_unit_test(test_routes_that_are_near),
        cmocka_unit_test(test_config_units),
        cmocka_unit_test(test_config_opposites),
        cmocka_unit_test(test_templates_that_refuse_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
int main(void)
{
    return 0; /* built without the server */
}
#endif
