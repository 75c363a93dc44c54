/* Answers into content, reasoning and calls: one table of examples, each read in every cut; malformed calls;
 * hostile text; detection from chat templates. */
#include "test.h"

#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "text/parse.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

#define CALL_MARK "\x01" /* between the calls of a trace */

static const char weather_tools[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"weather\", \"parameters\": {\"type\": \"object\","
    " \"properties\": {\"city\": {\"type\": \"string\"}, \"days\": {\"type\": \"integer\"},"
    " \"scale\": {\"type\": \"number\"}, \"wind\": {\"type\": \"boolean\"}, \"where\": {\"type\": "
    "\"object\"},"
    " \"list\": {\"type\": [\"array\", \"null\"]}, \"maybe\": {\"anyOf\": [{\"type\": \"integer\"},"
    " {\"type\": \"null\"}]}, \"unit\": {\"enum\": [\"c\", \"f\"]}, \"any\": {}}}}}]";

struct example {
    const char *format;
    bool opened, tools;
    const char *text;
    const char *reasoning, *content;
    const char *calls; /* name(arguments), each followed by CALL_MARK */
};

/* clang-format off */
static const struct example examples[] = {
    {"qwen3", 0, 0, "Hello, world!\n", "", "Hello, world!\n", ""},
    {"qwen3", 0, 0, "", "", "", ""},
    {"qwen3", 0, 0, "<think>\nHm.\n\nYes.\n</think>\n\nHello", "Hm.\n\nYes.", "Hello", ""},
    {"qwen3", 0, 0, "<think>\n\n</think>\n\nHello\n\nthere", "", "Hello\n\nthere", ""},
    {"qwen3", 1, 0, "Hm.\n</think>\n\nHello", "Hm.", "Hello", ""},
    {"qwen3", 1, 0, "<think>\nHm.</think>Hello", "Hm.", "Hello", ""},
    {"qwen3", 1, 0, "a <think> b</think>c", "a <think> b", "c", ""},
    {"qwen3", 0, 0, "<think><think>a</think>b", "<think>a", "b", ""},
    {"qwen3", 0, 0, "\xf0\x9f\x9a\x80 caf\xc3\xa9<\xe6\x9d\xb1", "", "\xf0\x9f\x9a\x80 caf\xc3\xa9<\xe6\x9d\xb1", ""},
    {"qwen3", 0, 0, "<<tool_call>{\"name\":\"f\"}</tool_call>", "", "<", "f({})" CALL_MARK},
    {"qwen3", 0, 0, "<tool_call><tool_call>{\"name\":\"f\"}</tool_call>", "", "<tool_call>", "f({})" CALL_MARK},
    {"qwen3", 1, 0, "unfinished thought\n", "unfinished thought\n", "", ""},
    {"qwen3", 0, 0, "\n\n<think>a</think>b", "a", "b", ""},
    {"qwen3", 0, 0, "The tag <think> opens it, </think> closes it.", "", "The tag <think> opens it, </think> closes it.", ""},
    {"qwen3", 0, 0, "<think>a <thin </thin> <tool_call></think>b</think>", "a <thin </thin> <tool_call>", "b</think>", ""},
    {"qwen3", 0, 0, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>", "", "", "f({\"a\": 1})" CALL_MARK},
    {"qwen3", 0, 0, "<think>r</think>\n\nSure.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"</tool_call>\\n\"}}\n</tool_call>\n<tool_call>\n{\"arguments\": {}, \"name\": \"g\"}\n</tool_call>\nDone",
     "r", "Sure.\nDone", "f({\"a\": \"</tool_call>\\n\"})" CALL_MARK "g({})" CALL_MARK},
    {"hermes", 0, 0, "<tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": [1, 2]}\"}</tool_call>", "", "", "f({\"a\": [1, 2]})" CALL_MARK},
    {"hermes", 0, 0, "<tool_call>{\"name\":\"f\"}</tool_call><tool_call>{\"name\":\"g\",\"parameters\":null}</tool_call>", "", "", "f({})" CALL_MARK "g({})" CALL_MARK},
    {"hermes", 0, 0, "<tool_call>{\"name\":\"caf\\u00e9\",\"arguments\":{\"x\":12345678901234567890.10,\"y\":{\"z\":[{},[],\"\\\"}\"]}}}</tool_call>", "", "",
     "caf\xc3\xa9({\"x\":12345678901234567890.10,\"y\":{\"z\":[{},[],\"\\\"}\"]}})" CALL_MARK},
    {"qwen3_coder", 0, 1, "I look.\n\n<tool_call>\n<function=weather>\n<parameter=city>\nS\xc3\xa3o \"Paulo\"\n</parameter>\n<parameter=days>\n3\n</parameter>\n<parameter=scale>\n.5\n</parameter>\n<parameter=wind>\nTrue\n</parameter>\n</function>\n</tool_call>",
     "", "I look.", "weather({\"city\": \"S\xc3\xa3o \\\"Paulo\\\"\", \"days\": 3, \"scale\": 0.5, \"wind\": true})" CALL_MARK},
    {"qwen3_coder", 0, 1, "<tool_call><function=weather><parameter=where>{\"x\": [1]}</parameter><parameter=list>null</parameter><parameter=maybe>null</parameter><parameter=city>null</parameter><parameter=unit>f</parameter><parameter=any>7</parameter><parameter=other>8</parameter></function></tool_call>",
     "", "", "weather({\"where\": {\"x\": [1]}, \"list\": null, \"maybe\": null, \"city\": \"null\", \"unit\": \"f\", \"any\": \"7\", \"other\": \"8\"})" CALL_MARK},
    {"qwen3_coder", 0, 1, "<tool_call><function=weather><parameter=days>many</parameter><parameter=where>{broken</parameter><parameter=wind>perhaps</parameter></function></tool_call>",
     "", "", "weather({\"days\": \"many\", \"where\": \"{broken\", \"wind\": \"perhaps\"})" CALL_MARK},
    {"qwen3_coder", 0, 0, "<tool_call><function=run><parameter=code>\n\nif a < b:\n    x = \"</p\"\n\n</parameter></function></tool_call>",
     "", "", "run({\"code\": \"\\nif a < b:\\n    x = \\\"</p\\\"\\n\"})" CALL_MARK},
    {"qwen3_coder", 0, 0, "<tool_call>\n<function=now>\n</function>\n</tool_call>", "", "", "now({})" CALL_MARK},
    {"qwen3_coder", 1, 0, "I must call.\n<tool_call>\n<function=now>\n</function>\n</tool_call>", "I must call.", "", "now({})" CALL_MARK},
    {"qwen3_coder", 1, 0, "A <tool_call> is a tag.</think>Yes", "A <tool_call> is a tag.", "Yes", ""},
    {"glm45", 0, 1, "\n<think>Look.</think>\nLooking.\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>12</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
     "Look.", "Looking.", "weather({\"city\": \"12\", \"days\": 3})" CALL_MARK},
    {"glm47", 1, 0, "Look.</think><tool_call>f<arg_key>a</arg_key><arg_value>[1, {\"b\": null}]</arg_value><arg_key>c</arg_key><arg_value> x <y>\n</arg_value></tool_call><tool_call>g</tool_call>",
     "Look.", "", "f({\"a\": [1, {\"b\": null}], \"c\": \" x <y>\\n\"})" CALL_MARK "g({})" CALL_MARK},
    {"mistral", 0, 0, "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": \"]\"}, \"id\": \"abcdefghi\"}, {\"name\": \"g\", \"arguments\": {}}]",
     "", "", "f({\"a\": \"]\"})" CALL_MARK "g({})" CALL_MARK},
    {"mistral", 0, 0, "Yes. [TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {}}]", "", "Yes. ", "f({})" CALL_MARK},
    {"mistral", 0, 0, "[TOOL_CALLS]f[ARGS]{\"a\": {\"b\": 1}}[TOOL_CALLS]g{\"c\": 2}[TOOL_CALLS]h[CALL_ID]abc123def[ARGS] {}",
     "", "", "f({\"a\": {\"b\": 1}})" CALL_MARK "g({\"c\": 2})" CALL_MARK "h({})" CALL_MARK},
    {"mistral", 0, 0, "[THINK]why[/THINK]because [1]", "why", "because [1]", ""},
    {"ernie45", 1, 0, "abc\n</think>\n\n\n<response>\ndef\n</response>\n", "abc", "def", ""},
    {"ernie45", 1, 0, "abc\n</think>\n\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>\n", "abc", "", "f({\"a\": 1})" CALL_MARK},
    {"ernie45", 0, 0, "<think>\nabc\n</think>\n\ndef <response> ghi</response>", "abc", "def <response> ghi</response>", ""},
    {"think", 0, 0, "<think>a</think>\n<tool_call>{\"name\": \"f\"}</tool_call>", "a", "<tool_call>{\"name\": \"f\"}</tool_call>", ""},
    {"plain", 0, 0, "<think>a</think>\n<tool_call>[TOOL_CALLS]\n", "", "<think>a</think>\n<tool_call>[TOOL_CALLS]\n", ""},
};

/* The answer is the text itself. */
static const struct { const char *format, *text; } malformed[] = {
    {"qwen3", "a\n<tool_call>\nnot JSON\n</tool_call>\nb"},
    {"qwen3", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}\n</tool_call>"},
    {"qwen3", "<tool_call>{\"name\": \"f\", \"arguments\": {}}"},
    {"qwen3", "<tool_call>{\"name\": \"f\", \"arguments\": {}} and more </tool_call>"},
    {"qwen3", "<tool_call>{\"name\": 1, \"arguments\": {}}</tool_call>"},
    {"qwen3", "<tool_call>{\"name\": \"\", \"arguments\": {}}</tool_call>"},
    {"qwen3", "<tool_call>{\"arguments\": {}}</tool_call>\n"},
    {"qwen3", "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>"},
    {"qwen3", "<tool_call>{\"name\": \"f\", \"arguments\": \"{\"}</tool_call>"},
    {"qwen3", "<tool_call>{\"name\": \"f\\u0000\", \"arguments\": {}}</tool_call>"},
    {"qwen3", "<tool_call>{\"name\": \"\\ud800\", \"arguments\": {}}</tool_call>"},
    {"qwen3", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 01}}</tool_call>"},
    {"qwen3", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"\n\"}}</tool_call>"},
    {"qwen3", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"\xff\"}}</tool_call>"},
    {"qwen3", "<tool_call>{'name': 'f'}</tool_call>"},
    {"qwen3", "<tool_call><tool_call><tool_cal"},
    {"qwen3", "</tool_call> < <t <to </think>"},
    {"qwen3_coder", "<tool_call>\n<function=>\n</function>\n</tool_call>"},
    {"qwen3_coder", "<tool_call>\n<function=f g>\n</function>\n</tool_call>"},
    {"qwen3_coder", "<tool_call>\n<function=f>\n<parameter=a>\n1\n</function>\n</tool_call>"},
    {"qwen3_coder", "<tool_call>\n<function=f>\n<parameter=a>1</parameter>\n</tool_call>"},
    {"qwen3_coder", "<tool_call>\n<function=f>\ntext\n</function>\n</tool_call>"},
    {"qwen3_coder", "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>"},
    {"glm45", "<tool_call></tool_call>"},
    {"glm45", "<tool_call>f\n<arg_key>a</arg_key>\n</tool_call>"},
    {"glm45", "<tool_call>f\n<arg_key></arg_key>\n<arg_value>1</arg_value></tool_call>"},
    {"glm45", "<tool_call>f and g</tool_call>"},
    {"glm45", "<tool_call>f\n<arg_value>a</arg_value>\n</tool_call>"},
    {"mistral", "[TOOL_CALLS]"},
    {"mistral", "[TOOL_CALLS] [] and"},
    {"mistral", "[TOOL_CALLS][1]"},
    {"mistral", "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}, 2]"},
    {"mistral", "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}, {}]"},
    {"mistral", "[TOOL_CALLS]hello world"},
    {"mistral", "[TOOL_CALLS]f[ARGS]hello"},
    {"mistral", "[TOOL_CALLS]f[ARGS]{\"a\": }"},
    {"mistral", "[TOOL_CALLS]f[CALL_ID]a b[ARGS]{}"},
    {"ernie45", "<tool_call>\ndef\n</tool_call>\n"},
};
/* clang-format on */

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

static void test_parse_sees_whether_the_prompt_opened_the_reasoning(void **state)
{
    (void)state;
    const struct parse_format *f = parse_format_find("qwen3");
    static const char open[] = "<|im_start|>assistant\n<think>\n",
                      shut[] = "assistant\n<think>\n\n</think>\n\n";
    assert_true(parse_format_opens(f, open, strlen(open)));
    assert_false(parse_format_opens(f, shut, strlen(shut)));
    assert_false(parse_format_opens(f, "think>", 6));
    assert_false(parse_format_opens(parse_format_plain(), open, strlen(open)));
    assert_true(parse_format_was_opened(f, "a</think>b", 10));
    assert_false(parse_format_was_opened(f, "<think>a</think>b", 17));
    assert_false(parse_format_was_opened(f, "ab", 2));
}

static void write_file(const char *folder, const char *name, const char *text)
{
    char *path = path_join(folder, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    assert_int_equal(fclose(f), 0);
    free(path);
}

static void check_folder(const char *folder, const char *override, const char *format)
{
    const struct parse_format *f;
    struct nyb_err err;
    if (parse_format_for_folder(&f, folder, override, &err) != NYB_OK)
        fail_msg("%s", err.message);
    assert_string_equal(f->name, format);
}

static void test_parse_detects_the_format_from_a_folder(void **state)
{
    (void)state;
    char folder[] = "/tmp/test_parse_XXXXXX";
    assert_non_null(mkdtemp(folder));
    char *config = path_join(folder, "tokenizer_config.json"),
         *jinja = path_join(folder, "chat_template.jinja");
    const struct parse_format *f;
    struct nyb_err err;
    check_folder(folder, NULL, "plain");
    write_file(folder, "tokenizer_config.json",
               "{\"model_max_length\": 1000000000000000019884624838656, \"chat_template\": \"<arg_key> "
               "<arg_value>\"}");
    check_folder(folder, NULL, "glm45");
    write_file(folder, "tokenizer_config.json",
               "{\"chat_template\": [{\"name\": \"default\", \"template\": \"x\"}, {\"name\": \"tool_use\","
               " \"template\": \"[TOOL_CALLS]\"}]}");
    check_folder(folder, NULL, "mistral");
    write_file(folder, "chat_template.jinja", "<tool_call>");
    check_folder(folder, NULL, "qwen3");
    check_folder(NULL, jinja, "qwen3");
    unlink(jinja);
    write_file(folder, "tokenizer_config.json", "{");
    assert_int_equal(parse_format_for_folder(&f, folder, NULL, &err), NYB_E_FORMAT);
    unlink(config);
    rmdir(folder);
    assert_int_not_equal(parse_format_for_folder(&f, NULL, jinja, &err), NYB_OK);
    free(config);
    free(jinja);
}

static void test_parse_knows_when_a_marker_is_a_special_token(void **state)
{
    (void)state;
    static const char json[] = "{\"added_tokens\": [{\"id\": 1, \"content\": \"[TOOL_CALLS]\", "
                               "\"single_word\": false, \"lstrip\": false,"
                               " \"rstrip\": false, \"normalized\": false, \"special\": true}, {\"id\": 2, "
                               "\"content\": \"<tool_call>\","
                               " \"single_word\": false, \"lstrip\": false, \"rstrip\": false, "
                               "\"normalized\": false, \"special\": false}],"
                               " \"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": []}}";
    char path[] = "/tmp/test_parse_XXXXXX.json";
    int fd = mkstemps(path, 5);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, json, sizeof(json) - 1), sizeof(json) - 1);
    close(fd);
    struct tokenizer *tok;
    struct nyb_err err;
    if (tok_open(&tok, path, &err) != NYB_OK)
        fail_msg("%s", err.message);
    unlink(path);
    assert_true(parse_format_needs_special(parse_format_find("mistral"), tok));
    assert_false(parse_format_needs_special(parse_format_find("qwen3"), tok));
    assert_false(parse_format_needs_special(parse_format_plain(), tok));
    tok_close(tok);
}

static void test_parse_detects_the_format_from_a_template(void **state)
{
    (void)state;
    static const struct {
        const char *file, *format;
    } known[] = {
        {"qwen2.5", "qwen3"},
        {"qwen3", "qwen3"},
        {"qwen3_2507hybrid", "qwen3"},
        {"qwen3_thinking2507", "qwen3"},
        {"qwq", "qwen3"},
        {"qwen3.5", "qwen3_coder"},
        {"qwen3_coder", "qwen3_coder"},
        {"qwen3_coder_hf", "qwen3_coder"},
        {"glm45_air", "glm45"},
        {"glm46", "glm45"},
        {"glm47_flash", "glm45"},
        {"mistral_nemo", "mistral"},
        {"mixtral", "plain"},
        {"ernie45", "plain"},
        {"deepseek_v31_ik", "think"},
    };
    assert_string_equal(parse_format_for_template(NULL)->name, "plain");
    assert_string_equal(parse_format_for_template("{{ messages[0].content }}")->name, "plain");
    assert_string_equal(parse_format_for_template("<response> .. <tool_call>")->name, "ernie45");
    assert_string_equal(parse_format_for_template("<tool_call>{json}")->name, "qwen3");
    if (!file_is_dir(NYBBLE_SHARED_DIR "/text/templates"))
        skip();
    for (size_t i = 0; i < COUNT_OF(known); i++) {
        char *path = mem_printf("%s/text/templates/%s.jinja", NYBBLE_SHARED_DIR, known[i].file), *source;
        size_t len;
        assert_int_equal(file_read_all(path, 1u << 20, &source, &len, NULL), NYB_OK);
        assert_string_equal(parse_format_for_template(source)->name, known[i].format);
        free(source);
        free(path);
    }
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
        cmocka_unit_test(test_parse_sees_whether_the_prompt_opened_the_reasoning),
        cmocka_unit_test(test_parse_detects_the_format_from_a_folder),
        cmocka_unit_test(test_parse_knows_when_a_marker_is_a_special_token),
        cmocka_unit_test(test_parse_detects_the_format_from_a_template),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
