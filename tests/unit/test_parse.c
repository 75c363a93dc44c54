/* Answers into content, reasoning and calls: one table of examples (parse_examples.h), each read in every
 * cut; malformed calls; hostile text. */
#include "test.h"

#include <time.h>

#include "base/mem.h"
#include "parse_examples.h"
#include "text/parse.h"
#include "text/utf8.h"

/* What the parser said, with pieces of the same part joined. */
struct trace {
    struct buf content, reasoning, calls, order, pieces;
    bool in_call;
};

static void on_event(void *arg, const struct parse_event *e)
{
    struct trace *t = arg;
    char kind = "crbae"[e->kind];
    if (e->kind > PARSE_REASONING || t->order.len == 0 || t->order.data[t->order.len - 1] != kind)
        buf_add_byte(&t->order, kind);
    switch (e->kind) {
    case PARSE_CONTENT:
        buf_add(&t->content, e->text, e->len);
        break;
    case PARSE_REASONING:
        buf_add(&t->reasoning, e->text, e->len);
        break;
    case PARSE_CALL_BEGIN:
        assert_false(t->in_call);
        t->in_call = true;
        buf_printf(&t->calls, "%s(", e->name);
        break;
    case PARSE_CALL_ARGUMENTS:
        assert_true(t->in_call);
        buf_add(&t->calls, e->text, e->len);
        break;
    case PARSE_CALL_END:
        assert_true(t->in_call);
        t->in_call = false;
        buf_add_str(&t->calls, ")" CALL_MARK);
        break;
    }
    if (e->kind == PARSE_CONTENT || e->kind == PARSE_REASONING) {
        assert_true(e->len > 0);
        if (utf8_valid_prefix(e->text, e->len) != e->len)
            buf_add_byte(&t->pieces, '!'); /* a piece that is not whole characters */
    }
}

static void trace_free(struct trace *t)
{
    buf_free(&t->content);
    buf_free(&t->reasoning);
    buf_free(&t->calls);
    buf_free(&t->order);
    buf_free(&t->pieces);
}

static const char *str(const struct buf *b)
{
    return b->data ? b->data : "";
}

static struct parse_options options_of(const char *format, bool opened, const json_t *tools)
{
    const struct parse_format *f = parse_format_find(format);
    assert_non_null(f);
    return (struct parse_options){.format = f, .starts_in_reasoning = opened, .tools = tools, .id_seed = 7};
}

static void run_cut(struct trace *t, const struct parse_options *o, const char *text, size_t len,
                    const bool *cut)
{
    *t = (struct trace){0};
    struct parser *p = parse_open(o, on_event, t);
    for (size_t from = 0, to; from < len; from = to) {
        for (to = from + 1; to < len && !cut[to]; to++)
            ;
        parse_push(p, text + from, to - from);
    }
    parse_finish(p);
    parse_close(p);
}

static void assert_same_trace(const struct trace *a, const struct trace *b)
{
    assert_string_equal(str(&a->order), str(&b->order));
    assert_int_equal(a->content.len, b->content.len);
    assert_memory_equal(str(&a->content), str(&b->content), a->content.len);
    assert_int_equal(a->reasoning.len, b->reasoning.len);
    assert_memory_equal(str(&a->reasoning), str(&b->reasoning), a->reasoning.len);
    assert_string_equal(str(&a->calls), str(&b->calls));
}

/* The text whole, cut at each pair of places, and cut everywhere: the same. *whole: what it was. */
static void run_every_cut(struct trace *whole, const struct parse_options *o, const char *text, size_t len)
{
    bool *cut = mem_alloc(len, sizeof(*cut));
    bool valid = utf8_valid_prefix(text, len) == len;
    run_cut(whole, o, text, len, cut);
    for (size_t a = 1; a < len; a++)
        for (size_t b = a; b < len; b += 1 + len / 64) {
            struct trace t;
            cut[a] = cut[b] = true;
            run_cut(&t, o, text, len, cut);
            cut[a] = cut[b] = false;
            assert_same_trace(whole, &t);
            trace_free(&t);
        }
    struct trace t;
    memset(cut, 1, len);
    run_cut(&t, o, text, len, cut);
    assert_same_trace(whole, &t);
    assert_true(!valid || t.pieces.len == 0);
    trace_free(&t);
    free(cut);
}

static void test_parse_examples_in_every_cut(void **state)
{
    (void)state;
    json_t *tools = json_loads(weather_tools, 0, NULL);
    assert_non_null(tools);
    for (size_t i = 0; i < COUNT_OF(examples); i++) {
        const struct example *e = &examples[i];
        struct parse_options o = options_of(e->format, e->opened, e->tools ? tools : NULL);
        struct trace whole;
        run_every_cut(&whole, &o, e->text, strlen(e->text));
        assert_string_equal(str(&whole.reasoning), e->reasoning);
        assert_string_equal(str(&whole.content), e->content);
        assert_string_equal(str(&whole.calls), e->calls);
        trace_free(&whole);
    }
    json_decref(tools);
}

static void test_parse_malformed_calls_are_text_in_every_cut(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(malformed); i++) {
        struct parse_options o = options_of(malformed[i].format, false, NULL);
        struct trace whole;
        run_every_cut(&whole, &o, malformed[i].text, strlen(malformed[i].text));
        assert_string_equal(str(&whole.content), malformed[i].text);
        assert_string_equal(str(&whole.reasoning), "");
        assert_string_equal(str(&whole.calls), "");
        trace_free(&whole);
    }
}

/* A call that breaks early does not hide the good one behind it. */
static void test_parse_recovers_after_a_malformed_call(void **state)
{
    (void)state;
    static const char text[] = "<tool_call>oops<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
    struct parse_options o = options_of("hermes", false, NULL);
    struct trace whole;
    run_every_cut(&whole, &o, text, strlen(text));
    assert_string_equal(str(&whole.content), "<tool_call>oops");
    assert_string_equal(str(&whole.calls), "f({})" CALL_MARK);
    trace_free(&whole);
}

/* Random strings of markers, their pieces and other text, in random cuts. */
static void test_parse_random_text_in_random_cuts(void **state)
{
    (void)state;
    static const char *const parts[] = {
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "<function=f>",
        "</function>",
        "<parameter=k>",
        "</parameter>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "[THINK]",
        "[/THINK]",
        "<response>",
        "</response>",
        "{\"name\": \"f\", \"arguments\": {\"a\": 1}}",
        "{",
        "}",
        "[",
        "]",
        "\"",
        "\n",
        "\n\n",
        " ",
        "f",
        "<",
        "</",
        "\xc3\xa9",
        "\xf0\x9f\x9a\x80",
        "\xff",
        "\\",
        "word",
        "1",
        "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>",
        "<tool_call><function=g><parameter=k>\nv\n</parameter></function></tool_call>",
        "<tool_call>h<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>",
        "[TOOL_CALLS]f[ARGS]{\"a\":[]}",
    };
    uint64_t seed = 3;
    int n_call = 0, n_reasoning = 0;
    for (int round = 0; round < 6000; round++) {
        struct buf text = {0};
        for (size_t n = test_random(&seed) % 16; n > 0; n--)
            buf_add_str(&text, parts[test_random(&seed) % COUNT_OF(parts)]);
        const struct parse_format *f = parse_format_at(test_random(&seed) % 6);
        assert_non_null(f);
        struct parse_options o = options_of(f->name, test_random(&seed) % 3 == 0, NULL);
        bool *cut = mem_alloc(text.len, sizeof(*cut));
        struct trace whole, t;
        run_cut(&whole, &o, str(&text), text.len, cut);
        unsigned often = 1 + (unsigned)(test_random(&seed) % 6);
        for (size_t i = 0; i < text.len; i++)
            cut[i] = test_random(&seed) % often == 0;
        run_cut(&t, &o, str(&text), text.len, cut);
        assert_same_trace(&whole, &t);
        n_call += whole.calls.len > 0;
        n_reasoning += whole.reasoning.len > 0;
        trace_free(&whole);
        trace_free(&t);
        buf_free(&text);
        free(cut);
    }
    assert_true(n_call > 100 && n_reasoning > 100);
}

/* Pushes of one byte: what must be out after each. */
static void test_parse_holds_back_no_more_than_a_marker_may_need(void **state)
{
    (void)state;
    static const struct {
        const char *push, *out;
    } steps[] = {
        {"Hello", "Hello"},
        {" <", "Hello "},
        {"t", "Hello "},
        {"h", "Hello <th"},
        {"\n", "Hello <th"},
        {"x", "Hello <th\nx"},
        {"<tool_call", "Hello <th\nx"},
        {">", "Hello <th\nx"},
        {" ", "Hello <th\nx"},
        {"f", "Hello <th\nx<tool_call> f"},
        {"<tool_call>{\"name\": ", "Hello <th\nx<tool_call> f"},
        {"x", "Hello <th\nx<tool_call> f<tool_call>{\"name\": x"},
    };
    struct parse_options o = options_of("qwen3", false, NULL);
    struct trace t = {0};
    struct parser *p = parse_open(&o, on_event, &t);
    for (size_t i = 0; i < COUNT_OF(steps); i++) {
        parse_push(p, steps[i].push, strlen(steps[i].push));
        assert_string_equal(str(&t.content), steps[i].out);
    }
    parse_finish(p);
    parse_close(p);
    trace_free(&t);
}

/* n times `unit` after `head`: comes back unchanged as content (nothing in it is a call), in linear time. */
static void check_hostile(const char *format, const char *head, const char *unit, size_t total)
{
    struct buf text = {0};
    buf_add_str(&text, head);
    while (text.len < total)
        buf_add_str(&text, unit);
    struct parse_options o = options_of(format, false, NULL);
    struct parse_result r;
    struct timespec a, b;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    parse_all(&o, text.data, text.len, &r);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    double seconds = (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
    assert_true(seconds < 2); /* measured: 0.01 to 0.2 with sanitizers */
    assert_int_equal(r.n_call, 0);
    assert_int_equal(r.content.len, text.len);
    assert_memory_equal(r.content.data, text.data, text.len);
    parse_result_free(&r);
    buf_free(&text);
}

static void test_parse_is_linear_in_hostile_text(void **state)
{
    (void)state;
    static const char *const units[] = {
        "<",
        "\n",
        "<t",
        "<tool_call",
        "<tool_call>",
        "<tool_call>{\"",
        "<tool_call>[",
        "\n<tool_call>\n",
        "[TOOL_CALLS]",
        "[TOOL_CALLS][",
        "[TOOL_CALLS][[",
        "[TOOL_CALLS]f[ARGS]{\"a\":",
        "[TOOL_CALLS][{\"a\":",
        "<tool_call><function=f><parameter=k>",
        "<tool_call>f<arg_key>",
        "<response",
        "\xf0\x9f\x9a",
        "\"",
        "\\",
        "[",
        "{",
    };
    static const char *const formats[] = {"qwen3", "qwen3_coder", "glm45", "mistral", "ernie45", "plain"};
    for (size_t f = 0; f < COUNT_OF(formats); f++) {
        for (size_t u = 0; u < COUNT_OF(units); u++)
            check_hostile(formats[f], "", units[u], u == 0 ? 1u << 20 : 1u << 18);
        check_hostile(formats[f], "<tool_call>{\"name\": \"", "x<tool_call>", (1u << 20) + 5000);
        check_hostile(formats[f], "<tool_call><function=f><parameter=k>", "x<tool_call>", (1u << 20) + 5000);
        check_hostile(formats[f], "<tool_call>f<arg_key>", "\n", (1u << 20) + 5000);
        check_hostile(formats[f], "[TOOL_CALLS]f{\"a\": \"", "\n", (1u << 20) + 5000);
    }
}

/* A well-formed call of exactly so many bytes between its markers, the closing one included. */
static size_t calls_of_size(size_t size)
{
    static const char head[] = "{\"name\": \"f\", \"arguments\": {\"a\": \"", tail[] = "\"}}</tool_call>";
    struct buf text = {0};
    buf_add_str(&text, "<tool_call>");
    buf_add_str(&text, head);
    for (size_t n = size - strlen(head) - strlen(tail); n > 0; n--)
        buf_add_byte(&text, 'x');
    buf_add_str(&text, tail);
    struct parse_options o = options_of("qwen3", false, NULL);
    struct parse_result r;
    parse_all(&o, text.data, text.len, &r);
    assert_int_equal(r.content.len, r.n_call ? 0 : text.len);
    size_t n_call = r.n_call;
    parse_result_free(&r);
    buf_free(&text);
    return n_call;
}

static void test_parse_bounds_the_length_of_a_call(void **state)
{
    (void)state;
    assert_int_equal(calls_of_size(PARSE_CALL_MAX), 1);
    assert_int_equal(calls_of_size(PARSE_CALL_MAX + 1), 0);
}

static void test_parse_ids_depend_on_seed_and_index_alone(void **state)
{
    (void)state;
    static const char text[] = "[TOOL_CALLS]f{}[TOOL_CALLS]f{}",
                      json[] = "<tool_call>{\"name\":\"f\"}</tool_call>";
    struct parse_options o = options_of("mistral", false, NULL);
    struct parse_result a, b;
    parse_all(&o, text, strlen(text), &a);
    parse_all(&o, text, strlen(text), &b);
    assert_int_equal(a.n_call, 2);
    assert_int_equal(strlen(a.call[0].id), 9);
    assert_string_equal(a.call[0].id, b.call[0].id);
    assert_string_not_equal(a.call[0].id, a.call[1].id);
    parse_result_free(&b);
    o.id_seed++;
    parse_all(&o, text, strlen(text), &b);
    assert_string_not_equal(a.call[0].id, b.call[0].id);
    parse_result_free(&a);
    parse_result_free(&b);
    o.format = parse_format_find("hermes");
    parse_all(&o, json, strlen(json), &a);
    assert_int_equal(a.n_call, 1);
    assert_int_equal(strlen(a.call[0].id), 5 + 24);
    parse_result_free(&a);
}

static void test_parse_leaves_calls_alone_when_told(void **state)
{
    (void)state;
    static const char text[] = "<think>a</think><tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>";
    struct parse_options o = options_of("qwen3", false, NULL);
    o.ignore_calls = true;
    struct parse_result r;
    parse_all(&o, text, strlen(text), &r);
    assert_int_equal(r.n_call, 0);
    assert_string_equal(r.content.data, text + strlen("<think>a</think>"));
    parse_result_free(&r);
}

/* The parser's restart rule rests on this. */
static void test_parse_markers_do_not_repeat_their_first_byte(void **state)
{
    (void)state;
    const struct parse_format *f;
    for (size_t i = 0; (f = parse_format_at(i)); i++) {
        const char *const markers[] = {f->think_open,   f->think_close, f->answer_open,
                                       f->answer_close, f->call_open,   f->call_close};
        for (size_t m = 0; m < COUNT_OF(markers); m++)
            assert_true(!markers[m] || (markers[m][0] && !strchr(markers[m] + 1, markers[m][0])));
        assert_true(!f->syntax == !f->call_open && !f->think_open == !f->think_close);
        assert_ptr_equal(parse_format_find(f->name), f);
    }
    assert_null(parse_format_find("no such format"));
    assert_null(parse_format_find(""));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse_examples_in_every_cut),
        cmocka_unit_test(test_parse_malformed_calls_are_text_in_every_cut),
        cmocka_unit_test(test_parse_recovers_after_a_malformed_call),
        cmocka_unit_test(test_parse_random_text_in_random_cuts),
        cmocka_unit_test(test_parse_holds_back_no_more_than_a_marker_may_need),
        cmocka_unit_test(test_parse_is_linear_in_hostile_text),
        cmocka_unit_test(test_parse_bounds_the_length_of_a_call),
        cmocka_unit_test(test_parse_ids_depend_on_seed_and_index_alone),
        cmocka_unit_test(test_parse_leaves_calls_alone_when_told),
        cmocka_unit_test(test_parse_markers_do_not_repeat_their_first_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
