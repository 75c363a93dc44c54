/* Tokenizers from small files made here, and golden rows of the reference for one that is in the repository.
 */
#include "test.h"

#include <pthread.h>
#include <utf8proc.h>

#include "text/bytelevel.h"
#include "text/nform.h"
#include "text/pattern.h"
#include "text/tok.h"
#include "text/unicode16.h"
#include "tokrows.h"

#define FIXTURE NYBBLE_SOURCE_DIR "/tests/golden/text/stories260K"
#define TALES   NYBBLE_SOURCE_DIR "/models/tales-24m-moe-nvfp4"

static const char PLAIN_BPE[] =
    "\"model\":{\"type\":\"BPE\",\"unk_token\":\"?\",\"vocab\":{\"?\":0,\"a\":1,\"b\":2,"
    "\"c\":3,\" \":4,\"ab\":5,\"abc\":6,\"bc\":7,\"aa\":8,\"x\":9,\"y\":10,\"abab\":11},"
    "\"merges\":[\"a b\",\"ab c\",\"b c\",\"a a\",\"ab ab\"]}";

static enum nyb_code open_text(struct tokenizer **t, const char *json, const char *config,
                               struct nyb_err *err)
{
    json_t *tree = NULL;
    *t = mem_alloc(1, sizeof(**t));
    if (config)
        assert_int_equal(json_parse(&tree, config, strlen(config), "config", NULL), NYB_OK);
    enum nyb_code code = tokload_parse(*t, json, strlen(json), "tokenizer.json", tree, err);
    json_decref(tree);
    if (code != NYB_OK) {
        tok_close(*t);
        *t = NULL;
    }
    return code;
}

/* A tokenizer of the plain model with these members before it. */
static struct tokenizer *open_with(const char *members)
{
    struct tokenizer *t;
    struct nyb_err err;
    char *json = mem_printf("{%s%s%s}", members, *members ? "," : "", PLAIN_BPE);
    if (open_text(&t, json, NULL, &err) != NYB_OK)
        fail_msg("%s", err.message);
    free(json);
    return t;
}

static void assert_ids(const struct tok_ids *ids, const char *want)
{
    struct buf got = {0};
    buf_add(&got, "", 0);
    for (size_t i = 0; i < ids->n; i++)
        buf_printf(&got, "%s%d", i ? " " : "", ids->id[i]);
    assert_string_equal(got.data, want);
    buf_free(&got);
}

/* `want`: ids with spaces between. */
static void assert_encodes(const struct tokenizer *t, const char *text, const char *want)
{
    struct tok_ids ids = {0};
    assert_int_equal(tok_encode(t, text, strlen(text), false, &ids, NULL), NYB_OK);
    assert_ids(&ids, want);
    tok_ids_free(&ids);
}

static void assert_decodes(const struct tokenizer *t, const char *ids_json, bool skip_special,
                           const char *want)
{
    json_t *list;
    struct buf text = {0};
    assert_int_equal(json_parse(&list, ids_json, strlen(ids_json), "ids", NULL), NYB_OK);
    struct tok_ids ids = tokrows_ids(list);
    buf_add(&text, "", 0);
    assert_true(tokrows_decodes(t, &ids, skip_special, &text));
    assert_string_equal(text.data, want);
    buf_free(&text);
    tok_ids_free(&ids);
    json_decref(list);
}

/* --- golden rows
 * -------------------------------------------------------------------------------------------- */

static void test_golden_rows_of_the_fixture(void **state)
{
    struct tokenizer *t;
    json_t *rows = tokrows_read(FIXTURE "/encode.jsonl"), *prefix = json_pack("[i]", 1);
    (void)state;
    assert_non_null(rows);
    assert_int_equal(json_array_size(rows), 60);
    assert_int_equal(tok_open(&t, FIXTURE, NULL), NYB_OK);
    for (size_t pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < json_array_size(rows); i++) {
            const json_t *row = json_array_get(rows, i), *list = json_object_get(row, "ids");
            struct tok_ids ids = tokrows_ids(list);
            struct buf text = {0};
            if (pass == 0) {
                assert_true(tokrows_encodes(t, json_object_get(row, "t"), false, NULL, list));
                assert_true(tokrows_encodes(t, json_object_get(row, "t"), true, prefix, list));
            }
            for (int skip_special = 0; skip_special < 2; skip_special++) {
                buf_clear(&text);
                assert_true(tokrows_decodes(t, &ids, skip_special, &text));
                assert_true(tokrows_same_text(&text, json_object_get(row, skip_special ? "ds" : "d")));
            }
            buf_free(&text);
            tok_ids_free(&ids);
        }
        json_decref(rows);
        rows = pass == 0 ? tokrows_read(FIXTURE "/decode.jsonl") : NULL;
    }
    json_decref(prefix);
    tok_close(t);
}

static void test_embedded_model_round_trip(void **state)
{
    static const char TEXT[] =
        "Once upon a time, the caf\xC3\xA9 had 3 \xF0\x9F\x98\x80 cats.\n\n  It's\ttrue \xE4\xB8\xAD.";
    struct tokenizer *t;
    struct tok_ids ids = {0};
    struct buf text = {0};
    (void)state;
    if (!file_is_dir(TALES))
        skip();
    assert_int_equal(tok_open(&t, TALES, NULL), NYB_OK);
    assert_int_equal(tok_vocab_size(t), 4096);
    assert_int_equal(tok_id_of(t, "<|im_start|>"), 1);
    assert_string_equal(tok_text_of(t, 2), "<|im_end|>");
    assert_true(tok_is_special(t, 2));
    assert_false(tok_is_special(t, 300));
    assert_null(tok_text_of(t, 4096));
    assert_int_equal(tok_encode(t, TEXT, strlen(TEXT), true, &ids, NULL), NYB_OK);
    assert_true(tokrows_decodes(t, &ids, false, &text));
    assert_string_equal(text.data, TEXT);
    buf_free(&text);
    tok_ids_free(&ids);
    tok_close(t);
}

/* --- the model
 * ---------------------------------------------------------------------------------------------- */

static void test_merge_order_and_unknowns(void **state)
{
    struct tokenizer *t = open_with("");
    (void)state;
    assert_encodes(t, "", "");
    assert_encodes(t, "abc", "6");
    assert_encodes(t, "abab", "11");
    assert_encodes(t, "bcab", "7 5");
    assert_encodes(t, "aaab", "8 5"); /* a b merges first */
    assert_encodes(t, "azzb", "1 0 0 2");
    tok_close(t);
}

static void test_pairs_spell_the_same_merges(void **state)
{
    struct tokenizer *t;
    (void)state;
    assert_int_equal(open_text(&t,
                               "{\"model\":{\"vocab\":{\"a\":0,\"b \":1,\"ab \":2,\"\\u00e9\":3},\"merges\":"
                               "[[\"a\",\"b \"]],\"unk_token\":null,\"fuse_unk\":true}}",
                               NULL, NULL),
                     NYB_OK);
    assert_encodes(t, "a\xC3\xA9q", "0 3"); /* without unk_token the unknown is dropped */
    assert_string_equal(tok_text_of(t, 2), "ab ");
    tok_close(t);
}

static void test_fused_unknowns_and_byte_fallback(void **state)
{
    struct tokenizer *t;
    (void)state;
    assert_int_equal(
        open_text(&t,
                  "{\"model\":{\"type\":\"BPE\",\"unk_token\":\"?\",\"fuse_unk\":true,\"byte_fallback\":"
                  "true,\"vocab\":{\"?\":0,\"a\":1,\"<0xC3>\":2,\"<0xA9>\":3},\"merges\":[]}}",
                  NULL, NULL),
        NYB_OK);
    assert_encodes(t, "a\xC3\xA9zza", "1 2 3 0 1");
    tok_close(t);
}

static void test_ignore_merges_takes_whole_pieces(void **state)
{
    struct tokenizer *t;
    (void)state;
    static const char *const JSON[] = {
        "{\"model\":{\"vocab\":{\"a\":0,\"b\":1,\"aba\":2},\"merges\":[],\"ignore_merges\":true}}",
        "{\"model\":{\"vocab\":{\"a\":0,\"b\":1,\"aba\":2},\"merges\":[]}}"};
    assert_int_equal(open_text(&t, JSON[0], NULL, NULL), NYB_OK);
    assert_encodes(t, "aba", "2");
    tok_close(t);
    assert_int_equal(open_text(&t, JSON[1], NULL, NULL), NYB_OK);
    assert_encodes(t, "aba", "0 1 0");
    assert_encodes(t, "aba", "0 1 0"); /* now from memory */
    tok_close(t);
}

/* The pair of least rank, leftmost first, looked for from scratch each time. */
static void merge_naively(struct tok_ids *ids)
{
    static const int32_t MERGE[][3] = {{1, 2, 5}, {5, 3, 6}, {2, 3, 7}, {1, 1, 8}, {5, 5, 11}};
    for (size_t rank = 0; rank < COUNT_OF(MERGE); rank++) {
        for (size_t i = 0; i + 1 < ids->n; i++) {
            if (ids->id[i] != MERGE[rank][0] || ids->id[i + 1] != MERGE[rank][1])
                continue;
            ids->id[i] = MERGE[rank][2];
            memmove(ids->id + i + 1, ids->id + i + 2, (ids->n - i - 2) * sizeof(*ids->id));
            ids->n--;
            rank = (size_t)-1; /* start over */
            break;
        }
    }
}

static void test_long_pieces_merge_as_short_ones(void **state)
{
    struct tokenizer *t = open_with("");
    uint64_t seed = 7;
    (void)state;
    for (size_t len = 1; len < 400; len += 3) {
        char text[400];
        struct tok_ids want = {0}, got = {0};
        for (size_t i = 0; i < len; i++) {
            text[i] = (char)('a' + test_random(&seed) % 3);
            bpe_push(&want, text[i] - 'a' + 1);
        }
        merge_naively(&want);
        assert_int_equal(tok_encode(t, text, len, false, &got, NULL), NYB_OK);
        assert_true(tokrows_same_ids(&got, &want));
        tok_ids_free(&got);
        tok_ids_free(&want);
    }
    tok_close(t);
}

/* --- added tokens
 * ------------------------------------------------------------------------------------------- */

static void test_added_tokens_strip_and_stand_alone(void **state)
{
    struct tokenizer *t =
        open_with("\"added_tokens\":[{\"id\":20,\"content\":\"<l>\",\"lstrip\":true,\"normalized\":false,"
                  "\"special\":true},"
                  "{\"id\":21,\"content\":\"<r>\",\"rstrip\":true,\"normalized\":false,\"special\":true},"
                  "{\"id\":23,\"content\":\"<r>b\",\"normalized\":false,\"special\":false}]");
    (void)state;
    assert_encodes(t, "a  <l> b", "1 20 4 2");
    assert_encodes(t, "a <r>  c", "1 4 21 3");
    assert_encodes(t, "a<r>b", "1 23"); /* the longest */
    assert_encodes(t, "<l>  <l>", "20 20");
    tok_close(t);
    t = open_with(
        "\"added_tokens\":[{\"id\":9,\"content\":\"x\",\"single_word\":true,\"normalized\":false}]");
    assert_encodes(t, "x a", "9 4 1");
    assert_encodes(t, "yx", "10 9"); /* as vocabulary: the piece yx, not the token */
    tok_close(t);
}

static void test_normalized_tokens_match_normalized_text(void **state)
{
    struct tokenizer *t =
        open_with("\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"A\"},\"content\":\"a\"},"
                  "\"added_tokens\":[{\"id\":20,\"content\":\"<A>\",\"normalized\":true},"
                  "{\"id\":21,\"content\":\"[A]\",\"normalized\":false}]");
    (void)state;
    assert_encodes(t, "Ab<a><A>", "5 20 20");
    assert_encodes(t, "[A][a]", "21 0 1 0");
    tok_close(t);
}

/* --- spans
 * -------------------------------------------------------------------------------------------------- */

static void assert_spans(const struct tokenizer *t, const struct tok_span *span, size_t n, const char *want)
{
    struct tok_ids ids = {0};
    assert_int_equal(tok_encode_spans(t, span, n, false, &ids, NULL), NYB_OK);
    assert_ids(&ids, want);
    tok_ids_free(&ids);
}

#define TEMPLATE(s)            \
    {                          \
        s, sizeof(s) - 1, true \
    }
#define CONTENT(s)              \
    {                           \
        s, sizeof(s) - 1, false \
    }

static void test_only_template_text_becomes_special(void **state)
{
    struct tokenizer *t =
        open_with("\"added_tokens\":[{\"id\":20,\"content\":\"<ab>\",\"normalized\":false,\"special\":true},"
                  "{\"id\":21,\"content\":\"[b]\",\"normalized\":false,\"special\":false},"
                  "{\"id\":22,\"content\":\"<|c|>\",\"normalized\":true,\"special\":false}]");
    (void)state;
    const struct tok_span hostile[] = {TEMPLATE("<ab>"), CONTENT("<ab>c"), TEMPLATE("<ab>")};
    assert_spans(t, hostile, 3, "20 0 5 0 3 20");
    const struct tok_span straddling[] = {CONTENT("a<a"), TEMPLATE("b>b")};
    assert_spans(t, straddling, 2, "1 0 5 0 2");
    const struct tok_span split_template[] = {TEMPLATE("<a"), TEMPLATE(""), CONTENT(""), TEMPLATE("b>")};
    assert_spans(t, split_template, 4, "20");
    const struct tok_span ordinary[] = {CONTENT("[b]"), TEMPLATE("[b]")};
    assert_spans(t, ordinary, 2, "21 21");
    const struct tok_span by_form[] = {CONTENT("<|c|>"), TEMPLATE("<|c|>")};
    assert_spans(t, by_form, 2, "0 0 3 0 0 22");
    const struct tok_span words[] = {TEMPLATE("a"), CONTENT("b"),
                                     TEMPLATE("c")}; /* borders do not cut words */
    assert_spans(t, words, 3, "6");
    assert_spans(t, NULL, 0, "");
    tok_close(t);
}

/* Flags follow the text through a normalizer that moves it. */
static void test_spans_survive_normalizing(void **state)
{
    struct tokenizer *t = open_with(
        "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"xy\"},"
        "{\"type\":\"NFC\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\"c\"},\"content\":\"aa\"}]},"
        "\"added_tokens\":[{\"id\":20,\"content\":\"<|b|>\",\"normalized\":true,\"special\":true}]");
    (void)state;
    struct tok_ids ids = {0};
    const struct tok_span span[] = {CONTENT("e\xCC\x81<|b|>c"), TEMPLATE("<|b|>")};
    assert_int_equal(tok_encode_spans(t, span, 2, false, &ids, NULL), NYB_OK);
    size_t n_special = 0;
    for (size_t i = 0; i < ids.n; i++)
        n_special += ids.id[i] == 20;
    assert_int_equal(n_special, 0); /* its normalized content is xy<|b|>, as in the reference */
    tok_ids_free(&ids);
    tok_close(t);
    t = open_with(
        "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},"
        "{\"type\":\"Replace\",\"pattern\":{\"String\":\"c\"},\"content\":\"aaaa\"}]},"
        "\"added_tokens\":[{\"id\":20,\"content\":\"<|b|>\",\"normalized\":true,\"special\":true}]");
    const struct tok_span moved[] = {CONTENT("a\xCC\x81<|b|>c"), TEMPLATE("c<|b|>"), CONTENT("<|b|>")};
    assert_spans(t, moved, 3, "0 0 0 2 0 0 8 8 8 8 20 0 0 2 0 0");
    tok_close(t);
}

/* --- pre-tokenizers
 * ----------------------------------------------------------------------------------------- */

static void assert_pieces(const char *spec, const char *text, bool at_start, const char *want)
{
    json_t *tree = NULL;
    struct pretok *p;
    struct pretok_work w;
    struct buf got = {0};
    struct nyb_err err;
    if (*spec)
        assert_int_equal(json_parse(&tree, spec, strlen(spec), "spec", NULL), NYB_OK);
    if (pretok_open(&p, tree, &err) != NYB_OK)
        fail_msg("%s", err.message);
    pretok_work_open(&w, p);
    assert_int_equal(pretok_split(&w, text, strlen(text), at_start, NULL), NYB_OK);
    buf_add(&got, "", 0);
    for (size_t i = 0; i < w.n_piece; i++) {
        if (w.piece[i].len == 0)
            continue;
        buf_add_str(&got, got.len ? "|" : "");
        buf_add(&got, w.text + w.piece[i].start, w.piece[i].len);
    }
    assert_string_equal(got.data, want);
    buf_free(&got);
    pretok_work_close(&w);
    pretok_close(p);
    json_decref(tree);
}

static void test_split_behaviors(void **state)
{
    static const char *const CASE[][3] = {
        {"Isolated", "a--b-c", "a|-|-|b|-|c"},         {"Removed", "a--b-c", "a|b|c"},
        {"MergedWithPrevious", "a--b-c", "a-|-|b-|c"}, {"MergedWithNext", "a--b-c", "a|-|-b|-c"},
        {"Contiguous", "a--b-c", "a|--|b|-|c"},        {"MergedWithNext", "-a-", "-a|-"},
        {"MergedWithPrevious", "-a-", "-|a-"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(CASE); i++) {
        char *spec =
            mem_printf("{\"type\":\"Split\",\"pattern\":{\"String\":\"-\"},\"behavior\":\"%s\"}", CASE[i][0]);
        assert_pieces(spec, CASE[i][1], true, CASE[i][2]);
        free(spec);
    }
    assert_pieces(
        "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a-z]+\"},\"behavior\":\"Removed\",\"invert\":true}",
        "ab12cd", true, "ab|cd");
    assert_pieces("{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?=b)\"},\"behavior\":\"Isolated\"}", "abab",
                  true, "a|ba|b");
}

static void test_other_pre_tokenizers(void **state)
{
#define MARK "\xE2\x96\x81"
    (void)state;
    assert_pieces("", "a b", true, "a b");
    assert_pieces("{\"type\":\"Digits\",\"individual_digits\":true}", "a12b", true, "a|1|2|b");
    assert_pieces("{\"type\":\"Digits\"}", "a12b", true, "a|12|b");
    assert_pieces("{\"type\":\"WhitespaceSplit\"}",
                  " a  b\xE2\x80\xA8"
                  "c",
                  true, "a|b|c");
    assert_pieces("{\"type\":\"ByteLevel\",\"add_prefix_space\":true}", "it's 2 b", true, " it|'s| 2| b");
    assert_pieces("{\"type\":\"Metaspace\",\"replacement\":\"" MARK
                  "\",\"prepend_scheme\":\"first\",\"split\":false}",
                  "a b", true, MARK "a" MARK "b");
    assert_pieces("{\"type\":\"Metaspace\",\"replacement\":\"" MARK
                  "\",\"prepend_scheme\":\"first\",\"split\":false}",
                  "a b", false, "a" MARK "b");
    assert_pieces("{\"type\":\"Metaspace\",\"replacement\":\"" MARK "\",\"prepend_scheme\":\"always\"}",
                  " a  b", false, MARK "a|" MARK "|" MARK "b");
}

/* --- Unicode
 * ------------------------------------------------------------------------------------------------ */

static bool class_matches(struct pattern_scan *scan, struct buf *scratch, uint32_t code)
{
    size_t start, end;
    bool found = false;
    buf_clear(scratch);
    buf_add_utf8(scratch, code);
    pattern_scan_text(scan, scratch->data, scratch->len);
    assert_int_equal(pattern_next(scan, &start, &end, &found, NULL), NYB_OK);
    return found;
}

/* Both forms of a pattern: the plain one where unicode16_differs is false, the other everywhere. */
static void check_class(const char *name, const json_t *ranges)
{
    char regex[16];
    struct pattern *p;
    struct buf scratch = {0};
    size_t k = 0, n = json_array_size(ranges);
    if (strcmp(name, "space") == 0)
        snprintf(regex, sizeof(regex), "\\s");
    else
        snprintf(regex, sizeof(regex), "\\p{%s}", name);
    assert_int_equal(pattern_open(&p, regex, strlen(regex), NULL), NYB_OK);
    struct pattern_scan *plain = pattern_scan_open(p, false), *exact = pattern_scan_open(p, true);
    for (uint32_t code = 0; code < 0x110000; code += code < 0x33000 ? 1 : 97) { /* little lives up there */
        if (code >= 0xD800 && code < 0xE000)
            continue;
        while (k < n && json_integer_value(json_array_get(json_array_get(ranges, k), 1)) < code)
            k++;
        bool want = k < n && json_integer_value(json_array_get(json_array_get(ranges, k), 0)) <= code;
        if (class_matches(exact, &scratch, code) != want)
            fail_msg("%s: U+%04X", regex, code);
        if (!unicode16_is_added(code) && class_matches(plain, &scratch, code) != want)
            fail_msg("%s, plain: U+%04X", regex, code);
    }
    pattern_scan_close(plain);
    pattern_scan_close(exact);
    pattern_close(p);
    buf_free(&scratch);
}

static void test_classes_are_unicode_16(void **state)
{
    json_t *tree;
    const char *name;
    json_t *class;
    (void)state;
    if (json_read_file(&tree, NYBBLE_SHARED_DIR "/text/golden/unicode_classes_onig.json", NULL) != NYB_OK)
        skip();
    json_object_foreach(json_object_get(tree, "classes"), name, class)
        check_class(name, json_object_get(class, "ranges"));
    json_decref(tree);
}

static void test_young_characters_are_letters(void **state)
{
    (void)state;
    /* U+31350 (15.0) and U+105C0 (16.0) are letters; U+180E is no space */
    assert_pieces(
        "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\p{L}+|\\\\s\"},\"behavior\":\"Isolated\"}",
        "ab\xF0\xB1\x8D\x90\xF0\x90\x97\x80"
        "c \xE1\xA0\x8E",
        true,
        "ab\xF0\xB1\x8D\x90\xF0\x90\x97\x80"
        "c| |\xE1\xA0\x8E");
    assert_true(unicode16_differs("a \xE1\xA0\x8E", 5));
    assert_false(unicode16_differs("a \xE4\xB8\xAD\xF0\x9F\x98\x80", 9));
}

static void test_patterns_are_refused_by_name(void **state)
{
    static const char *const BAD[][2] = {
        {"a\\w", "\\w"},       {"\\h", "\\h"},          {"[a[b]]", "bracket"},   {"[a&&b]", "&&"},
        {"a{1,2}+", "{n,m}+"}, {"\\p{Greek}", "Greek"}, {"[\\P{L}]", "\\P"},     {"[a", "without an end"},
        {"(", "malformed"},    {"a\\", "backslash"},    {"\\pL", "\\p without"}, {"", "0 bytes"}};
    (void)state;
    for (size_t i = 0; i < COUNT_OF(BAD); i++) {
        struct pattern *p;
        struct nyb_err err;
        assert_int_not_equal(pattern_open(&p, BAD[i][0], strlen(BAD[i][0]), &err), NYB_OK);
        if (!strstr(err.message, BAD[i][1]))
            fail_msg("\"%s\": %s", BAD[i][0], err.message);
    }
}

static void test_normal_forms_agree_with_utf8proc(void **state)
{
    static const uint32_t SOME[] = {'a',    'e',    0x301,  0x323,  0x308,  0xE9,    0x1EBF,
                                    0x1100, 0x1161, 0x11A8, 0xAC00, 0xAC01, 0x212B,  0xFB01,
                                    0x3099, 0x304B, 0x915,  0x93C,  0x958,  0x2F800, 0x1D15E};
    static const int OPTION[] = {UTF8PROC_COMPOSE, UTF8PROC_DECOMPOSE, UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
                                 UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT};
    uint64_t seed = 3;
    (void)state;
    for (int kind = NFORM_NFC; kind <= NFORM_NFKD; kind++) {
        struct nform *f = nform_open((enum nform_kind)kind);
        for (int round = 0; round < 2000; round++) {
            struct buf text = {0}, got = {0};
            uint8_t *want = NULL;
            for (size_t n = 1 + test_random(&seed) % 12; n > 0; n--)
                buf_add_utf8(&text, SOME[test_random(&seed) % COUNT_OF(SOME)]);
            nform_apply(f, text.data, text.len, NULL, &got, NULL);
            utf8proc_ssize_t len = utf8proc_map((const uint8_t *)text.data, (utf8proc_ssize_t)text.len, &want,
                                                (utf8proc_option_t)(OPTION[kind] | UTF8PROC_STABLE));
            assert_int_equal(got.len, len);
            assert_memory_equal(got.data, want, got.len);
            if (nform_is_done(f, text.data, text.len))
                assert_memory_equal(text.data, want, got.len);
            free(want);
            buf_free(&text);
            buf_free(&got);
        }
        nform_close(f);
    }
}

static void test_utf8(void **state)
{
    static const char *const CASE[][2] = {
        {"\xF0\x90\x80", "\xEF\xBF\xBD"},                         /* cut short: one maximal part       */
        {"\xED\xA0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"}, /* a surrogate: no part is valid */
        {"\xC0\xAF", "\xEF\xBF\xBD\xEF\xBF\xBD"},                 /* overlong                          */
        {"a\xE4\xB8z", "a\xEF\xBF\xBDz"},
        {"\xF4\x90\x80\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"\xC3\xA9", "\xC3\xA9"},
    };
    struct tokenizer *t = open_with("");
    struct nyb_err err;
    struct tok_ids ids = {0};
    (void)state;
    for (size_t i = 0; i < COUNT_OF(CASE); i++) {
        struct buf out = {0};
        utf8_add_lossy(&out, CASE[i][0], strlen(CASE[i][0]));
        assert_string_equal(out.data, CASE[i][1]);
        buf_free(&out);
    }
    assert_int_equal(tok_encode(t, "ab\xE4\xB8z", 5, false, &ids, &err), NYB_E_ARG);
    assert_int_equal(err.offset, 2);
    assert_int_equal(ids.n, 0);
    tok_close(t);
}

static void test_byte_alphabet_round_trip(void **state)
{
    struct buf spelled = {0}, raw = {0};
    (void)state;
    for (int byte = 0; byte < 256; byte++)
        buf_add_utf8(&spelled, bytelevel_char((uint8_t)byte));
    assert_true(bytelevel_bytes(spelled.data, spelled.len, &raw));
    assert_int_equal(raw.len, 256);
    for (int byte = 0; byte < 256; byte++)
        assert_int_equal((uint8_t)raw.data[byte], byte);
    assert_int_equal(bytelevel_char(' '), 0x120);
    assert_false(bytelevel_bytes(" ", 1, &raw));
    assert_int_equal(raw.len, 256);
    buf_free(&spelled);
    buf_free(&raw);
}

/* --- decoders
 * ----------------------------------------------------------------------------------------------- */

static void test_byte_fallback_runs(void **state)
{
    struct tokenizer *t;
    (void)state;
    assert_int_equal(
        open_text(
            &t,
            "{\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"ByteFallback\"},{\"type\":"
            "\"Fuse\"},"
            "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":1}]},\"model\":{\"type\":\"BPE\","
            "\"vocab\":{\"<0xC3>\":0,\"<0xA9>\":1,\"a\":2,\"<0xFF>\":3,\" \":4},\"merges\":[]}}",
            NULL, NULL),
        NYB_OK);
    assert_decodes(t, "[0, 1, 2]", false,
                   "\xC3\xA9"
                   "a");
    assert_decodes(t, "[0, 1, 3, 2]", false,
                   "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"
                   "a");
    assert_decodes(t, "[0, 2, 0]", false,
                   "\xEF\xBF\xBD"
                   "a\xEF\xBF\xBD");
    assert_decodes(t, "[4, 4, 2, 4, 2, 4, 4]", false, " a a ");
    assert_decodes(t, "[4]", false, "");
    assert_decodes(t, "[77, -1, 2]", false, "a");
    tok_close(t);
}

static void test_decoder_without_and_with_metaspace(void **state)
{
    struct tokenizer *t = open_with("");
    (void)state;
    assert_decodes(t, "[1, 2]", false, "a b"); /* no decoder: joined with spaces */
    tok_close(t);
    t = open_with("\"decoder\":{\"type\":\"Metaspace\",\"replacement\":\"a\",\"prepend_scheme\":\"always\"}");
    assert_decodes(t, "[5, 5]", false, "b b");
    tok_close(t);
}

static void test_special_tokens_are_skipped(void **state)
{
    struct tokenizer *t =
        open_with("\"decoder\":{\"type\":\"Fuse\"},\"added_tokens\":[{\"id\":20,\"content\":\"<s>\","
                  "\"special\":true,\"normalized\":false}]");
    (void)state;
    assert_int_equal(tok_vocab_size(t), 21);
    assert_decodes(t, "[20, 1, 20]", true, "a");
    assert_decodes(t, "[20, 1, 20]", false, "<s>a<s>");
    tok_close(t);
}

/* --- frames
 * ------------------------------------------------------------------------------------------------- */

static void test_template_and_config_frame_the_text(void **state)
{
    static const char *const TEMPLATE_SPEC =
        "\"post_processor\":{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"},{\"type\":"
        "\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\",\"type_id\":0}},{\"Sequence\":{"
        "\"id\":\"A\","
        "\"type_id\":0}},{\"SpecialToken\":{\"id\":\"y\",\"type_id\":0}}],\"special_tokens\":{\"x\":{\"id\":"
        "\"x\","
        "\"ids\":[9]},\"y\":{\"id\":\"y\",\"ids\":[10]}}}]}";
    static const struct {
        bool template;
        const char *config, *want;
    } CASE[] = {
        {true, NULL, "9 1 10"},
        {false, NULL, "1"},
        {false, "{\"add_bos_token\":true,\"bos_token\":\"x\"}", "9 1"},
        {false,
         "{\"add_bos_token\":true,\"bos_token\":{\"content\":\"x\"},\"add_eos_token\":true,\"eos_token\":"
         "\"y\"}",
         "9 1 10"},
        {true, "{\"add_bos_token\":true,\"bos_token\":\"x\"}", "9 1 10"},
        {true, "{\"tokenizer_class\":\"LlamaTokenizer\",\"bos_token\":\"x\",\"eos_token\":\"y\"}", "9 1"},
        {true, "{\"tokenizer_class\":\"LlamaTokenizer\",\"bos_token\":\"x\",\"add_bos_token\":false}", "1"},
        {false, "{\"add_bos_token\":true,\"bos_token\":null}", "1"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(CASE); i++) {
        struct tokenizer *t;
        struct tok_ids ids = {0};
        char *json = mem_printf("{%s%s%s}", CASE[i].template ? TEMPLATE_SPEC : "",
                                CASE[i].template ? "," : "", PLAIN_BPE);
        assert_int_equal(open_text(&t, json, CASE[i].config, NULL), NYB_OK);
        assert_int_equal(tok_encode(t, "a", 1, true, &ids, NULL), NYB_OK);
        assert_ids(&ids, CASE[i].want);
        tok_ids_free(&ids);
        tok_close(t);
        free(json);
    }
}

static void test_config_brings_further_tokens(void **state)
{
    struct tokenizer *t;
    char *json = mem_printf("{%s}", PLAIN_BPE);
    (void)state;
    assert_int_equal(open_text(&t, json,
                               "{\"added_tokens_decoder\":{\"12\":{\"content\":\"<z>\",\"special\":true}}}",
                               NULL),
                     NYB_OK);
    assert_encodes(t, "a<z>", "1 12");
    assert_true(tok_is_special(t, 12));
    tok_close(t);
    free(json);
}

/* --- bad files
 * ---------------------------------------------------------------------------------------------- */

static void test_what_is_unknown_is_named(void **state)
{
    static const char *const CASE[][2] = {
        {"\"normalizer\":{\"type\":\"Precompiled\"}", "Precompiled"},
        {"\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Lowercase\"}]}", "Lowercase"},
        {"\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"}", "UnicodeScripts"},
        {"\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\"},{\"type\":"
         "\"Digits\"}]}",
         "Digits"},
        {"\"decoder\":{\"type\":\"WordPiece\"}", "WordPiece"},
        {"\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":\"ByteFallback\"}]}",
         "ByteFallback"},
        {"\"post_processor\":{\"type\":\"Odd\"}", "Odd"},
        {"\"normalizer\":{\"kind\":1}", "type"},
        {"\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{},\"behavior\":\"Isolated\"}", "pattern"},
        {"\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"-\"},\"behavior\":\"Odd\"}", "Odd"},
        {"\"added_tokens\":[{\"id\":3,\"content\":\"a\"}]", "\"a\" has id 3"},
        {"\"added_tokens\":[{\"id\":3,\"content\":\"new\"}]", "takes id 3"},
        {"\"added_tokens\":[{\"id\":99999999,\"content\":\"new\"}]", "no id"},
        {"\"added_tokens\":[{\"id\":20,\"content\":\"n\"},{\"id\":21,\"content\":\"n\"}]", "clashes"},
        {"\"added_tokens\":7", "added_tokens"},
        {"\"model\":{}", "twice"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(CASE); i++) {
        struct tokenizer *t;
        struct nyb_err err;
        char *json = mem_printf("{%s,%s}", CASE[i][0], PLAIN_BPE);
        assert_int_not_equal(open_text(&t, json, NULL, &err), NYB_OK);
        if (!strstr(err.message, CASE[i][1]))
            fail_msg("%s: %s", CASE[i][0], err.message);
        free(json);
    }
}

static void test_bad_models_are_refused(void **state)
{
    static const char *const CASE[][2] = {
        {"", "ends"},
        {"[]", "object"},
        {"{}", "no \"model\""},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}", "Unigram"},
        {"{\"model\":{\"vocab\":{},\"merges\":[]}}", "empty"},
        {"{\"model\":{\"vocab\":[],\"merges\":[]}}", "object"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":{}}}", "array"},
        {"{\"model\":{\"vocab\":{\"a\":-1},\"merges\":[]}}", "an id"},
        {"{\"model\":{\"vocab\":{\"a\":4194304},\"merges\":[]}}", "beyond"},
        {"{\"model\":{\"vocab\":{\"a\":0,\"a\":1},\"merges\":[]}}", "twice"},
        {"{\"model\":{\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}", "two tokens"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a b\"]}}", "right one"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a a\"]}}", "what they make"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"aa\"]}}", "one space"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]}}", "second token"},
        {"{\"model\":{\"vocab\":{\"\\ud800\":0},\"merges\":[]}}", "surrogate"},
        {"{\"model\":{\"vocab\":{\"\\q\":0},\"merges\":[]}}", "escape"},
        {"{\"model\":{\"vocab\":{\"a\":0,\"merges\":[]}}", "ends"},
        {"{\"model\":{\"type\":\"WordLevel\",\"vocab\":{\"a\":0},\"merges\":[]}}", "WordLevel"},
        {"{\"model\":{\"dropout\":0.1,\"vocab\":{\"a\":0},\"merges\":[]}}", "dropout"},
        {"{\"model\":{\"end_of_word_suffix\":\"</w>\",\"vocab\":{\"a\":0},\"merges\":[]}}",
         "end_of_word_suffix"},
        {"{\"model\":{\"unk_token\":\"?\",\"vocab\":{\"a\":0},\"merges\":[]}}", "unk_token"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[]},\"x\":}", "JSON"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[]}} {", "JSON"},
        {"{\"model\":{\"vocab\":{\"\xFF\":0},\"merges\":[]}}", "UTF-8"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(CASE); i++) {
        struct tokenizer *t;
        struct nyb_err err;
        assert_int_not_equal(open_text(&t, CASE[i][0], NULL, &err), NYB_OK);
        if (!strstr(err.message, CASE[i][1]))
            fail_msg("%s: %s", CASE[i][0], err.message);
    }
}

/* Every prefix of a good file is refused, without harm. */
static void test_truncated_files_are_refused(void **state)
{
    char *text;
    size_t len;
    (void)state;
    assert_int_equal(file_read_all(FIXTURE "/tokenizer.json", 1u << 20, &text, &len, NULL), NYB_OK);
    while (len > 0 && text[len - 1] != '}')
        len--;
    for (size_t n = 0; n < len; n += n < 300 ? 1 : 97) {
        struct tokenizer *t = mem_alloc(1, sizeof(*t));
        char *copy = mem_alloc(n + 1, 1);
        memcpy(copy, text, n);
        assert_int_not_equal(tokload_parse(t, copy, n, "cut", NULL, NULL), NYB_OK);
        tok_close(t);
        free(copy);
    }
    free(text);
    struct tokenizer *none;
    assert_int_not_equal(tok_open(&none, "/nonexistent/folder", NULL), NYB_OK);
    assert_null(none);
}

/* --- threads
 * ------------------------------------------------------------------------------------------------ */

static void *encode_many(void *arg)
{
    static const char TEXT[] = "Once upon a time there was a little girl. She liked to play in the park!";
    const struct tokenizer *t = arg;
    struct tok_ids first = {0}, ids = {0};
    bool same = tok_encode(t, TEXT, strlen(TEXT), true, &first, NULL) == NYB_OK;
    for (int i = 0; i < 50 && same; i++) {
        ids.n = 0;
        same =
            tok_encode(t, TEXT, strlen(TEXT), true, &ids, NULL) == NYB_OK && tokrows_same_ids(&first, &ids);
    }
    tok_ids_free(&first);
    tok_ids_free(&ids);
    return same ? arg : NULL;
}

static void test_many_threads_encode_at_once(void **state)
{
    struct tokenizer *t;
    pthread_t thread[4];
    (void)state;
    assert_int_equal(tok_open(&t, FIXTURE "/tokenizer.json", NULL), NYB_OK);
    for (size_t i = 0; i < COUNT_OF(thread); i++)
        assert_int_equal(pthread_create(&thread[i], NULL, encode_many, t), 0);
    for (size_t i = 0; i < COUNT_OF(thread); i++) {
        void *result;
        assert_int_equal(pthread_join(thread[i], &result), 0);
        assert_ptr_equal(result, t);
    }
    tok_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_rows_of_the_fixture),
        cmocka_unit_test(test_embedded_model_round_trip),
        cmocka_unit_test(test_merge_order_and_unknowns),
        cmocka_unit_test(test_pairs_spell_the_same_merges),
        cmocka_unit_test(test_fused_unknowns_and_byte_fallback),
        cmocka_unit_test(test_ignore_merges_takes_whole_pieces),
        cmocka_unit_test(test_long_pieces_merge_as_short_ones),
        cmocka_unit_test(test_added_tokens_strip_and_stand_alone),
        cmocka_unit_test(test_normalized_tokens_match_normalized_text),
        cmocka_unit_test(test_only_template_text_becomes_special),
        cmocka_unit_test(test_spans_survive_normalizing),
        cmocka_unit_test(test_split_behaviors),
        cmocka_unit_test(test_other_pre_tokenizers),
        cmocka_unit_test(test_classes_are_unicode_16),
        cmocka_unit_test(test_young_characters_are_letters),
        cmocka_unit_test(test_patterns_are_refused_by_name),
        cmocka_unit_test(test_normal_forms_agree_with_utf8proc),
        cmocka_unit_test(test_utf8),
        cmocka_unit_test(test_byte_alphabet_round_trip),
        cmocka_unit_test(test_byte_fallback_runs),
        cmocka_unit_test(test_decoder_without_and_with_metaspace),
        cmocka_unit_test(test_special_tokens_are_skipped),
        cmocka_unit_test(test_template_and_config_frame_the_text),
        cmocka_unit_test(test_config_brings_further_tokens),
        cmocka_unit_test(test_what_is_unknown_is_named),
        cmocka_unit_test(test_bad_models_are_refused),
        cmocka_unit_test(test_truncated_files_are_refused),
        cmocka_unit_test(test_many_threads_encode_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
