/* Masks of constraints against the plain truth: every token of the vocabulary, tried byte by byte; what
 * matchers promise (a refused text changes nothing, copies are independent, clearing out loses nothing); the
 * limits; and what a mask costs. The vocabulary is the embedded model's; a folder or tokenizer.json in
 * NYBBLE_TOKENIZER takes its place. tests/golden/grammar_differential.py looks at the texts themselves. */
#include "test.h"

#include <time.h>

#include "base/mem.h"
#include "text/bpe.h"
#include "text/grammar.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

static const char schema[] =
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":40},"
    "\"age\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":150},"
    "\"mood\":{\"enum\":[\"good\",\"bad\",\"so so\"]},"
    "\"friends\":{\"type\":\"array\",\"items\":{\"$ref\":\"#\"},\"maxItems\":3}},"
    "\"required\":[\"name\",\"age\"],\"additionalProperties\":false}";
static const char arithmetic[] =
    "root ::= e\ne ::= t ((\"+\" | \" - \") t)*\nt ::= [0-9]+ | \"(\" e \")\" | word\n"
    "word ::= [a-z]{1,9} | [\xce\xb1-\xcf\x89]+";

static const struct grammar_source sources[] = {
    {.kind = GRAMMAR_JSON_OBJECT},
    {.kind = GRAMMAR_JSON_SCHEMA, .text = schema},
    {.kind = GRAMMAR_JSON_SCHEMA, .text = schema, .whitespace = ""},
    {.kind = GRAMMAR_REGEX, .text = "(The|A) [a-z]+( [a-z]+){2,7}[.!?]"},
    {.kind = GRAMMAR_REGEX, .text = "[^\\n]{5,60}(\\n[^\\n]{5,60}){0,3}"},
    {.kind = GRAMMAR_CHOICE, .text = "[\"yes\",\"no\",\"not yet\",\"\xc3\xa9t\xc3\xa9\"]"},
    {.kind = GRAMMAR_EBNF, .text = arithmetic},
    {.kind = GRAMMAR_JSON_OBJECT, .think_open = "<think>", .think_close = "</think>"},
    {.kind = GRAMMAR_TAGS,
     .text = "{\"triggers\":[\"<f>\"],\"structures\":[{\"begin\":\"<f>\",\"end\":\"</f>\",\"schema\":"
             "{\"type\":\"integer\"}}]}"},
    {.kind = GRAMMAR_TAGS, /* structures, or what content says */
     .text = "{\"triggers\":[\"<f>\"],\"structures\":[{\"begin\":\"<f>\",\"end\":\"</f>\",\"schema\":"
             "{\"type\":\"integer\"}}],\"content\":{\"type\":\"array\",\"items\":{\"enum\":[1,\"<f>\"]}}}"},
};

struct house {
    struct tokenizer *tok;
    struct grammar_vocab *v;
    int32_t n;
};

static int open_house_of(void **state, const char *folder)
{
    struct house *h = mem_alloc(1, sizeof(*h));
    struct nyb_err err;
    assert_int_equal(tok_open(&h->tok, folder, &err), NYB_OK);
    h->n = tok_vocab_size(h->tok) + 40; /* models have more rows than tokens */
    assert_int_equal(grammar_vocab_open(&h->v, h->tok, h->n, &err), NYB_OK);
    *state = h;
    return 0;
}

static int open_house(void **state)
{
    const char *folder = getenv("NYBBLE_TOKENIZER");
    return open_house_of(state, folder ? folder : NYBBLE_SOURCE_DIR "/models/tales-24m-moe-nvfp4");
}

/* Llama's kind: bytes by name, and a text's first space that vanishes. */
static int open_llama(void **state)
{
    return open_house_of(state, NYBBLE_SOURCE_DIR "/tests/golden/text/stories260K");
}

static int close_house(void **state)
{
    struct house *h = *state;
    grammar_vocab_close(h->v);
    tok_close(h->tok);
    free(h);
    return 0;
}

static struct grammar *open_grammar(struct house *h, const struct grammar_source *s)
{
    struct grammar *g;
    struct nyb_err err;
    if (grammar_open(&g, s, h ? h->v : NULL, &err) != NYB_OK)
        fail_msg("%s", err.message);
    return g;
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- masks ----------------------------------------------------------------------------------------- */

static bool bit(const uint32_t *mask, int32_t t)
{
    return mask[t >> 5] >> (t & 31) & 1;
}

/* Each token taken by a copy of the matcher. */
static void check_mask(struct house *h, struct grammar_matcher *m, const uint32_t *mask)
{
    for (int32_t t = 0; t < h->n; t++) {
        struct grammar_matcher copy;
        grammar_matcher_clone(&copy, m);
        bool fits = grammar_take(&copy, t);
        grammar_matcher_close(&copy);
        if (fits != bit(mask, t)) {
            size_t len;
            const char *bytes = grammar_vocab_bytes(h->v, t, &len);
            fail_msg("token %d \"%.*s\": the mask says %d", t, (int)len, bytes ? bytes : "", bit(mask, t));
        }
    }
}

/* A token that the mask allows, evenly. -1: none. */
static int32_t pick(const struct house *h, const uint32_t *mask, uint64_t *seed)
{
    int32_t n = 0, chosen = -1;
    for (int32_t t = 0; t < h->n; t++)
        if (bit(mask, t) && test_random(seed) % (uint64_t)++n == 0)
            chosen = t;
    return chosen;
}

/* The text of the tokens is what the grammar took. Free text may hold bytes that are no characters: decoding
 * changes those, so such texts are left out. */
static int check_text(const struct house *h, struct grammar *g, const struct tok_ids *ids,
                      const struct grammar_matcher *m)
{
    struct grammar_matcher again;
    struct buf text = {0}, raw = {0};
    for (size_t i = 0; i < ids->n; i++) {
        size_t len;
        const char *bytes = grammar_vocab_bytes(h->v, ids->id[i], &len);
        buf_add(&raw, bytes, len);
    }
    bool whole = utf8_valid_prefix(raw.data, raw.len) == raw.len;
    tok_decode(h->tok, ids->id, ids->n, false, &text);
    grammar_matcher_open(&again, g);
    if (whole && !grammar_advance(&again, text.data, text.len))
        fail_msg("the grammar refuses \"%.*s\"", (int)text.len, text.data);
    assert_true(!whole || grammar_may_end(&again) == grammar_may_end(m));
    grammar_matcher_close(&again);
    buf_free(&text);
    buf_free(&raw);
    return whole;
}

/* Walks of random tokens; at each place the mask, and at some of them the truth. */
static void test_mask_is_the_truth(void **state)
{
    struct house *h = *state;
    uint32_t *mask = mem_alloc(grammar_vocab_words(h->v), sizeof(*mask));
    uint64_t seed = 7;
    int checks = h->n > 50000 ? 2 : 8, n_text = 0;
    for (size_t i = 0; i < COUNT_OF(sources); i++) {
        struct grammar *g = open_grammar(h, &sources[i]);
        for (int walk = 0; walk < 3; walk++) {
            struct grammar_matcher m;
            struct tok_ids ids = {0};
            grammar_matcher_open(&m, g);
            for (int step = 0; step < 40 && !grammar_must_end(&m); step++) {
                bool any = grammar_mask(&m, mask);
                if (step < 3 || test_random(&seed) % 40 < (uint64_t)checks)
                    check_mask(h, &m, mask);
                int32_t t = pick(h, mask, &seed);
                assert_int_equal(t >= 0, any);
                assert_true(t >= 0 || grammar_may_end(&m));
                if (t < 0)
                    break;
                assert_false(tok_is_special(h->tok, t));
                assert_true(grammar_take(&m, t));
                bpe_push(&ids, t);
            }
            n_text += check_text(h, g, &ids, &m);
            tok_ids_free(&ids);
            grammar_matcher_close(&m);
        }
        grammar_release(g);
    }
    assert_true(n_text > 2 * (int)COUNT_OF(sources)); /* of three each */
    free(mask);
}

/* Byte tokens: each text of them is what the bytes say, and the one of the special tokens' mark is none. */
static void test_bytes_do_not_make_special_tokens(void **state)
{
    struct house *h = *state;
    uint32_t *mask = mem_alloc(grammar_vocab_words(h->v), sizeof(*mask));
    struct buf bytes = {0};
    int n_byte = 0;
    for (size_t i = 0; i < COUNT_OF(sources); i++) {
        struct grammar *g = open_grammar(h, &sources[i]);
        struct grammar_matcher m;
        grammar_matcher_open(&m, g);
        (void)grammar_mask(&m, mask);
        for (int32_t t = 0; t < tok_vocab_size(h->tok); t++) {
            buf_clear(&bytes);
            if (tok_is_special(h->tok, t) || !tok_token_bytes(h->tok, t, &bytes) || bytes.len != 1)
                continue;
            n_byte += (bytes.data[0] & 0x80) != 0;
            assert_true(bytes.data[0] != '\xff' || !bit(mask, t));
        }
        grammar_matcher_close(&m);
        grammar_release(g);
    }
    assert_true(n_byte > 0);
    buf_free(&bytes);
    free(mask);
}

/* ---- matchers -------------------------------------------------------------------------------------- */

static bool feed(struct grammar_matcher *m, const char *text)
{
    return grammar_advance(m, text, strlen(text));
}

static void test_matchers(void **state)
{
    (void)state;
    struct grammar *g = open_grammar(NULL, &sources[1]);
    struct grammar_matcher m, copy;
    grammar_matcher_open(&m, g);
    assert_false(grammar_may_end(&m));
    assert_true(feed(&m, "{\"name\": \"x"));
    assert_false(feed(&m, "y\", \"age\": 999")); /* nothing of it counts */
    assert_true(feed(&m, "\", \"age\": 15"));
    grammar_matcher_clone(&copy, &m);
    assert_true(feed(&copy, "0}"));
    assert_true(grammar_must_end(&copy) && grammar_may_end(&copy));
    assert_false(feed(&copy, " "));
    assert_true(feed(&m, ", \"mood\": \"so so\"}"));
    assert_true(grammar_must_end(&m));
    grammar_matcher_close(&m);
    grammar_matcher_close(&copy);
    grammar_matcher_close(&copy); /* a closed one is fine */
    grammar_release(g);
}

/* So many places that they cannot all be kept, under two matchers that stay. */
static void test_clearing_out(void **state)
{
    (void)state;
    const struct grammar_source s = {.kind = GRAMMAR_EBNF,
                                     .text = "root ::= pair \";\" root | \".\"\n"
                                             "pair ::= \"a\" pair \"a\" | \"b\" pair \"b\" | \"c\""};
    struct grammar *g = open_grammar(NULL, &s);
    struct grammar_matcher stay, m;
    struct grammar_size size;
    char there[64], back[64];
    uint64_t seed = 3;
    grammar_matcher_open(&stay, g);
    assert_true(feed(&stay, "abbac"));
    grammar_matcher_open(&m, g);
    for (int round = 0; round < 2000; round++) {
        int n = 1 + (int)(test_random(&seed) % 60);
        for (int i = 0; i < n; i++)
            there[i] = "ab"[test_random(&seed) & 1];
        for (int i = 0; i < n; i++)
            back[i] = there[n - 1 - i];
        assert_true(grammar_advance(&m, there, (size_t)n) && feed(&m, "c"));
        assert_false(feed(&m, back[0] == 'a' ? "b" : "a"));
        assert_true(grammar_advance(&m, back, (size_t)n) && feed(&m, ";"));
        grammar_size(g, &size);
        assert_true(size.configs < 10000);
    }
    assert_true(feed(&m, ".") && grammar_must_end(&m));
    assert_true(feed(&stay, "abba;."));
    assert_true(grammar_must_end(&stay));
    grammar_matcher_close(&stay);
    grammar_matcher_close(&m);
    grammar_release(g);
}

/* JSON nests as deep as the limit, then only closes. */
static void test_depth(void **state)
{
    (void)state;
    struct grammar *g = open_grammar(NULL, &sources[0]);
    struct grammar_matcher m;
    int depth = 0;
    grammar_matcher_open(&m, g);
    assert_true(feed(&m, "{\"a\":"));
    while (depth < 5000 && feed(&m, "["))
        depth++;
    assert_in_range(depth, 200, 300);
    for (int i = 0; i < depth; i++)
        assert_true(feed(&m, "]"));
    assert_true(feed(&m, "}") && grammar_must_end(&m));
    grammar_matcher_close(&m);
    grammar_release(g);
}

static void test_limits(void **state)
{
    (void)state;
    static const struct {
        enum grammar_kind kind;
        const char *text, *says;
    } row[] = {
        {GRAMMAR_REGEX, "((((a{1,1000}b?){1,1000}c?){1,1000}d?){1,1000}e?){1,1000}(x|y)*", NULL},
        {GRAMMAR_REGEX, "(a|b)*a(a|b){30}", NULL}, /* 2^30 states if it were made deterministic */
        {GRAMMAR_REGEX, "([a-z]{100000}|[0-9]{100000}|[A-Z]{100000})", "too large"},
        {GRAMMAR_CHOICE, "[]", "choices"},
        {GRAMMAR_CHOICE, "[1]", "choices"},
        {GRAMMAR_JSON_SCHEMA, "{\"type\":", "not valid JSON"},
    };
    for (size_t i = 0; i < COUNT_OF(row); i++) {
        const struct grammar_source s = {.kind = row[i].kind, .text = row[i].text};
        struct grammar *g = NULL;
        struct nyb_err err = {0};
        enum nyb_code code = grammar_open(&g, &s, NULL, &err);
        assert_int_equal(code == NYB_OK, row[i].says == NULL);
        if (row[i].says)
            assert_non_null(strstr(err.message, row[i].says));
        grammar_release(g);
    }
    struct buf deep = {0};
    for (int i = 0; i < 100; i++)
        buf_add_str(&deep, "{\"type\":\"array\",\"items\":");
    buf_add_str(&deep, "{}");
    for (int i = 0; i < 100; i++)
        buf_add_str(&deep, "}");
    struct nyb_err err;
    struct grammar *g;
    assert_int_equal(grammar_open(&g,
                                  &(struct grammar_source){.kind = GRAMMAR_JSON_SCHEMA, .text = deep.data},
                                  NULL, &err),
                     NYB_E_RANGE);
    assert_non_null(strstr(err.message, "deeper"));
    buf_free(&deep);
}

/* A fault at byte 400 of 600, in each kind that has bytes: 100 around it are repeated, of whole characters.
 */
static void test_errors_show_the_place(void **state)
{
    (void)state;
    static const struct {
        enum grammar_kind kind;
        const char *begin, *fault, *says;
    } row[] = {
        {GRAMMAR_REGEX, "", "**",
         "a repetition of a repetition at byte 401 of the regular expression \"...\u00e4"},
        {GRAMMAR_REGEX, "", "\\u00", "an escape without its hexadecimal digits at byte 402 of \"...\u00e4"},
        {GRAMMAR_EBNF, "root ::= \"", "\" ]", "at byte 402 of the grammar (line 1) \"...\u00e4"},
    };
    for (size_t i = 0; i < COUNT_OF(row); i++) {
        struct nyb_err err = {0};
        struct grammar *g = NULL;
        struct buf text = {0};
        buf_add_str(&text, row[i].begin);
        while (text.len < 399)
            buf_add_str(&text, "\u00e4");
        while (text.len < 400)
            buf_add_byte(&text, 'b');
        buf_add_str(&text, row[i].fault);
        for (int j = 0; j < 100; j++)
            buf_add_str(&text, "\u00f6");
        const struct grammar_source s = {.kind = row[i].kind, .text = text.data};
        assert_int_not_equal(grammar_open(&g, &s, NULL, &err), NYB_OK);
        const char *says = strstr(err.message, row[i].says), *shown = says ? strchr(says, '"') : NULL;
        if (!says || !strstr(shown, row[i].fault) || strcmp(shown + strlen(shown) - 6, "\u00f6...\""))
            fail_msg("%s", err.message);
        assert_in_range(strlen(shown), 100, 108);
        assert_int_equal(utf8_valid_prefix(shown, strlen(shown)), strlen(shown));
        buf_free(&text);
    }
}

/* ---- cost ------------------------------------------------------------------------------------------ */

static void measure(struct house *h, const char *name, const struct grammar_source *s, const char *begin)
{
    uint32_t *mask = mem_alloc(grammar_vocab_words(h->v), sizeof(*mask));
    uint64_t seed = 1, t0 = now_ns(), cold = 0, warm = 0, worst = 0;
    struct grammar *g = open_grammar(h, s);
    uint64_t open_ns = now_ns() - t0;
    int n = 0;
    for (int walk = 0; walk < 4; walk++) {
        struct grammar_matcher m;
        grammar_matcher_open(&m, g);
        assert_true(feed(&m, begin));
        for (int step = 0; step < 50 && !grammar_must_end(&m); step++) {
            t0 = now_ns();
            bool any = grammar_mask(&m, mask);
            uint64_t t1 = now_ns();
            (void)grammar_mask(&m, mask);
            warm += now_ns() - t1;
            cold += t1 - t0;
            worst = t1 - t0 > worst ? t1 - t0 : worst;
            n++;
            int32_t t = any ? pick(h, mask, &seed) : -1;
            if (t < 0 || !grammar_take(&m, t))
                break;
        }
        grammar_matcher_close(&m);
    }
    print_message("%-28s open %7.2f ms; a mask: mean %6.0f us, worst %6.0f us, known %5.1f us\n", name,
                  (double)open_ns * 1e-6, (double)cold * 1e-3 / n, (double)worst * 1e-3,
                  (double)warm * 1e-3 / n);
    grammar_release(g);
    free(mask);
}

static void test_cost(void **state)
{
    struct house *h = *state;
    struct grammar_vocab *again;
    uint64_t t0 = now_ns();
    assert_int_equal(grammar_vocab_open(&again, h->tok, h->n, NULL), NYB_OK);
    print_message("vocabulary of %d: %.1f ms\n", h->n, (double)(now_ns() - t0) * 1e-6);
    grammar_vocab_close(again);
    measure(h, "any JSON object", &sources[0], "");
    measure(h, "a schema", &sources[1], "");
    measure(h, "string of 200 characters",
            &(struct grammar_source){.kind = GRAMMAR_JSON_SCHEMA,
                                     .text = "{\"type\":\"string\",\"maxLength\":200}"},
            "\"");
    measure(h, "words", &sources[3], "The ");
    measure(h, "lines", &sources[4], "");
    measure(h, "anything, to a marker", &sources[8], "");
    measure(h, "a palindrome (adversarial)",
            &(struct grammar_source){
                .kind = GRAMMAR_EBNF,
                .text = "root ::= \"a\" root \"a\" | \"b\" root \"b\" | \"e\" root \"e\" | "
                        "\"r\" root \"r\" | \"s\" root \"s\" | \"t\" root \"t\" | [c-z ] root "
                        "\"x\" | \".\""},
            "");
    measure(h, "ambiguous (adversarial)",
            &(struct grammar_source){.kind = GRAMMAR_EBNF,
                                     .text =
                                         "root ::= x x? x? x? x? x? x? x?\nx ::= [a-z ] x? x? | [a-m] y y? | "
                                         "[n-z]\ny ::= [a-z] x? y?"},
            "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mask_is_the_truth),
        cmocka_unit_test_setup_teardown(test_mask_is_the_truth, open_llama, close_house),
        cmocka_unit_test(test_bytes_do_not_make_special_tokens),
        cmocka_unit_test_setup_teardown(test_bytes_do_not_make_special_tokens, open_llama, close_house),
        cmocka_unit_test(test_matchers),
        cmocka_unit_test(test_clearing_out),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_errors_show_the_place),
        cmocka_unit_test(test_cost),
    };
    return cmocka_run_group_tests(tests, open_house, close_house);
}
