/* Constrained answers of the embedded model through the public interface: complete ones satisfy their
 * constraint, and under batching and preemption every request gets the tokens that it gets alone. */
#include "test.h"

#include <regex.h>

#include "base/json.h"
#include "base/mem.h"
#include "nybble.h"

#define MODEL     NYBBLE_SOURCE_DIR "/models/tales-24m-moe-nvfp4"
#define N_REQUEST 50
#define MAX_OUT   160

static const char schema[] =
    "{\"type\":\"object\",\"properties\":{\"who\":{\"type\":\"string\",\"minLength\":1,\"maxLength\":30},"
    "\"n\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":99},"
    "\"list\":{\"type\":\"array\",\"items\":{\"type\":\"boolean\"},\"maxItems\":4}},\"required\":[\"who\","
    "\"n\"]}";

static struct nyb_engine *open_engine(int seqs, uint64_t kv_bytes)
{
    struct nyb_options o;
    struct nyb_engine *e;
    struct nyb_err err;
    nyb_options_init(&o);
    o.model = MODEL;
    o.threads = 2;
    o.max_model_len = 256;
    o.max_num_seqs = seqs;
    o.kv_cache_bytes = kv_bytes;
    if (nyb_open(&e, &o, &err) != NYB_OK)
        fail_msg("%s: %s", err.where, err.message);
    return e;
}

/* Every other one under the schema, the rest other kinds; some with penalties and min_tokens. */
static struct nyb_stream *submit(struct nyb_engine *e, int i)
{
    struct nyb_sampling s;
    struct nyb_stream *stream;
    struct nyb_err err;
    nyb_sampling_init(&s);
    s.temperature = 1;
    s.top_p = 1;
    s.seed = i;
    s.max_tokens = MAX_OUT;
    s.constraint = NYB_CONSTRAINT_JSON_SCHEMA;
    s.constraint_text = schema;
    if (i % 4 == 1) {
        s.constraint = NYB_CONSTRAINT_REGEX;
        s.constraint_text = "[A-Z][a-z]{2,8}( [a-z]{2,8}){5,20}\\.";
        s.presence_penalty = 0.5;
        s.min_tokens = 10;
    } else if (i % 4 == 3) {
        s.constraint = NYB_CONSTRAINT_GRAMMAR;
        s.constraint_text = "root ::= \"(\" (root | [a-z]{1,5})? (\" \" root)? \")\"";
        s.logprobs = 2;
    }
    const struct nyb_request r = {.text = "Once upon a time there was a king", .sampling = &s};
    if (nyb_submit(e, &r, &stream, &err) != NYB_OK)
        fail_msg("%s: %s", err.where, err.message);
    return stream;
}

static enum nyb_finish collect(struct nyb_stream *stream, struct buf *text)
{
    struct nyb_event ev = {0};
    while (nyb_next(stream, &ev, 60000))
        buf_add(text, ev.text, ev.text_bytes);
    nyb_stream_free(stream);
    return ev.finish;
}

static void check(int i, enum nyb_finish finish, const struct buf *text)
{
    if (i % 2 != 0 || finish != NYB_FINISH_STOP)
        return;
    json_t *v = json_loadb(text->data, text->len, JSON_REJECT_DUPLICATES, NULL);
    json_int_t n = json_integer_value(json_object_get(v, "n"));
    assert_true(json_is_string(json_object_get(v, "who")));
    assert_in_range(n, 1, 99);
    assert_true(json_array_size(json_object_get(v, "list")) <= 4);
    json_decref(v);
}

static void test_alone_and_together(void **state)
{
    (void)state;
    struct buf alone[N_REQUEST] = {{0}}, together[N_REQUEST] = {{0}};
    struct nyb_stream *stream[N_REQUEST];
    struct nyb_stats stats;
    int complete = 0;
    struct nyb_engine *e = open_engine(1, 0);
    for (int i = 0; i < N_REQUEST; i++) {
        enum nyb_finish finish = collect(submit(e, i), &alone[i]);
        complete += finish == NYB_FINISH_STOP;
        check(i, finish, &alone[i]);
    }
    const struct nyb_info *info = nyb_engine_info(e);
    uint64_t block = info->kv_bytes / (uint64_t)info->kv_blocks;
    nyb_close(e);
    assert_in_range(complete, N_REQUEST / 2, N_REQUEST);
    e = open_engine(16, 17 * block); /* too few for 16 answers at once */
    assert_int_equal(nyb_pause(e, NYB_PAUSE_IN_PLACE, NULL, NULL), NYB_OK); /* so that all begin at once */
    for (int i = 0; i < N_REQUEST; i++)
        stream[i] = submit(e, i);
    assert_int_equal(nyb_resume(e, NULL), NYB_OK);
    for (int i = 0; i < N_REQUEST; i++) {
        (void)collect(stream[i], &together[i]);
        assert_int_equal(alone[i].len, together[i].len);
        assert_memory_equal(alone[i].data, together[i].data, alone[i].len);
    }
    nyb_engine_stats(e, &stats);
    assert_true(stats.preemptions > 0);
    nyb_close(e);
    for (int i = 0; i < N_REQUEST; i++) {
        buf_free(&alone[i]);
        buf_free(&together[i]);
    }
}

/* Compiled constraints are kept; those that differ in one thing are never taken for each other. */
static void test_constraints_are_told_apart(void **state)
{
    (void)state;
    static const char words[] = "[\"king\",\"queen\"]";
    static const char object[] =
        "{\"type\":\"object\",\"properties\":{\"a\":{\"const\":1}},\"required\":[\"a\"],"
        "\"additionalProperties\":false}";
    static const struct {
        enum nyb_constraint kind;
        const char *text, *whitespace, *open, *close, *want; /* want: what stands behind close, for regcomp */
    } row[] = {
        {NYB_CONSTRAINT_CHOICE, words, NULL, NULL, NULL, "^(king|queen)$"},
        {NYB_CONSTRAINT_REGEX, words, NULL, NULL, NULL, "^.$"}, /* one of these characters */
        {NYB_CONSTRAINT_JSON_SCHEMA, object, "", NULL, NULL, "^\\{\"a\":1\\}$"},
        {NYB_CONSTRAINT_JSON_SCHEMA, object, "  ", NULL, NULL, "^\\{  \"a\":  1  \\}$"},
        {NYB_CONSTRAINT_REGEX, "[a-z]{2}!", NULL, NULL, NULL, "^[a-z]{2}!$"},
        {NYB_CONSTRAINT_REGEX, "[a-z]{2}!", NULL, NULL, ",", "^[a-z]{2}!$"},
        {NYB_CONSTRAINT_REGEX, "[a-z]{2}!", NULL, NULL, ".", "^[a-z]{2}!$"},
        {NYB_CONSTRAINT_REGEX, "[a-z]{2}!", NULL, " ", ".", "^[a-z]{2}!$"},
        {NYB_CONSTRAINT_REGEX, "[a-z]{2}!", NULL, "'", ".", "^[a-z]{2}!$"},
    };
    struct nyb_engine *e = open_engine(1, 0);
    for (int turn = 0; turn < 2; turn++)
        for (size_t i = 0; i < COUNT_OF(row); i++) {
            struct nyb_sampling s;
            struct nyb_stream *stream;
            struct nyb_err err;
            struct buf text = {0};
            nyb_sampling_init(&s);
            s.temperature = 1;
            s.seed = 1;
            s.max_tokens = 200;
            s.constraint = row[i].kind;
            s.constraint_text = row[i].text;
            s.constraint_whitespace = row[i].whitespace;
            s.constraint_think_open = row[i].open;
            s.constraint_think_close = row[i].close;
            const struct nyb_request r = {.text = "Once upon a time there was a king", .sampling = &s};
            if (nyb_submit(e, &r, &stream, &err) != NYB_OK)
                fail_msg("%zu: %s: %s", i, err.where, err.message);
            assert_int_equal(collect(stream, &text), NYB_FINISH_STOP);
            buf_add_byte(&text, '\0');
            const char *rest = text.data;
            if (row[i].open ? *rest == *row[i].open : row[i].close != NULL) {
                rest = strstr(rest, row[i].close);
                assert_non_null(rest);
                rest += strlen(row[i].close);
            }
            regex_t want;
            assert_int_equal(regcomp(&want, row[i].want, REG_EXTENDED | REG_NOSUB), 0);
            if (regexec(&want, rest, 0, NULL, 0))
                fail_msg("%zu: %s", i, text.data);
            regfree(&want);
            buf_free(&text);
        }
    nyb_close(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_alone_and_together),
                                       cmocka_unit_test(test_constraints_are_told_apart)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
