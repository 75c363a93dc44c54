/* How a text is cut before it is encoded: pre-tokenizers, patterns and their classes of characters, normal
 * forms. */
#include "tok_case.h"

#include <utf8proc.h>

#include "text/bytelevel.h"
#include "text/nform.h"
#include "text/pattern.h"
#include "text/unicode16.h"

/* ---- pre-tokenizers --------------------------------------------------------------------------------------
 */

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

/* ---- Unicode ---------------------------------------------------------------------------------------------
 */

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split_behaviors),
        cmocka_unit_test(test_other_pre_tokenizers),
        cmocka_unit_test(test_classes_are_unicode_16),
        cmocka_unit_test(test_young_characters_are_letters),
        cmocka_unit_test(test_patterns_are_refused_by_name),
        cmocka_unit_test(test_normal_forms_agree_with_utf8proc),
        cmocka_unit_test(test_utf8),
        cmocka_unit_test(test_byte_alphabet_round_trip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
