/* What a tokenizer's files say: decoders, frames of special tokens, and what is refused. */
#include "tok_case.h"

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

/* ---- decoders --------------------------------------------------------------------------------------------
 */

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

/* A token by itself, as constraints and log probabilities see it. */
static void test_bytes_of_single_tokens(void **state)
{
    static const struct {
        const char *decoder;
        int32_t id;
        const char *bytes;
    } row[] = {
        {"{\"type\":\"Metaspace\",\"replacement\":\"a\",\"prepend_scheme\":\"always\"}", 11, " b b"},
        {"{\"type\":\"Metaspace\",\"replacement\":\"a\",\"prepend_scheme\":\"always\"}", 7, "bc"},
        {"{\"type\":\"Replace\",\"pattern\":{\"String\":\"b\"},\"content\":\"xy\"}", 11, "axyaxy"},
        {"{\"type\":\"Replace\",\"pattern\":{\"String\":\"ab\"},\"content\":\"\"}", 6, "c"},
        {"{\"type\":\"Strip\",\"content\":\"a\",\"start\":1,\"stop\":0}", 8, "a"},
        {"{\"type\":\"Strip\",\"content\":\"a\",\"start\":3,\"stop\":0}", 8, ""},
        {"{\"type\":\"Strip\",\"content\":\"a\",\"start\":1,\"stop\":0}", 11, "bab"},
        {"{\"type\":\"Strip\",\"content\":\"b\",\"start\":1,\"stop\":1}", 11, "aba"},
        {"{\"type\":\"Strip\",\"content\":\"c\",\"start\":0,\"stop\":2}", 6, "ab"},
        {"{\"type\":\"ByteFallback\"}", 6, "abc"},
        {"{\"type\":\"Fuse\"}", 6, "abc"},
        {"{\"type\":\"ByteLevel\"}", 4, " "}, /* not spelled in the alphabet: its own bytes */
        {"{\"type\":\"ByteLevel\"}", 6, "abc"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        struct buf text = {0};
        char *members = mem_printf("\"decoder\":%s", row[i].decoder);
        struct tokenizer *t = open_with(members);
        assert_true(tok_token_bytes(t, row[i].id, &text));
        buf_add_byte(&text, '\0');
        assert_string_equal(text.data, row[i].bytes);
        struct buf both = {0}, want = {0};
        const int32_t id[] = {3, row[i].id}; /* behind another, the same */
        tok_decode(t, id, 2, false, &both);
        buf_add_byte(&both, '\0');
        assert_true(tok_token_bytes(t, id[0], &want));
        buf_add_str(&want, text.data);
        buf_add_byte(&want, '\0');
        assert_int_equal(both.len, want.len);
        assert_string_equal(both.data, want.data);
        buf_free(&want);
        buf_free(&both);
        buf_free(&text);
        tok_close(t);
        free(members);
    }
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

/* ---- frames ----------------------------------------------------------------------------------------------
 */

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

/* ---- bad files -------------------------------------------------------------------------------------------
 */

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_byte_fallback_runs),
        cmocka_unit_test(test_decoder_without_and_with_metaspace),
        cmocka_unit_test(test_bytes_of_single_tokens),
        cmocka_unit_test(test_special_tokens_are_skipped),
        cmocka_unit_test(test_template_and_config_frame_the_text),
        cmocka_unit_test(test_config_brings_further_tokens),
        cmocka_unit_test(test_what_is_unknown_is_named),
        cmocka_unit_test(test_bad_models_are_refused),
        cmocka_unit_test(test_truncated_files_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
