/* Text to ids: golden rows of the reference for a tokenizer that is in the repository, and small ones made
 * here. */
#include "tok_case.h"

#include <pthread.h>

#define TALES NYBBLE_SOURCE_DIR "/models/tales-24m-moe-nvfp4"

/* ---- golden rows -----------------------------------------------------------------------------------------
 */

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

/* ---- the model -------------------------------------------------------------------------------------------
 */

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

/* ---- added tokens ----------------------------------------------------------------------------------------
 */

static void test_added_tokens_strip(void **state)
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
}

/* What comes before and behind a single word must not be \w of Unicode: letters, marks, decimal digits and
 * letter numbers, connectors, joiners, and the letters among the symbols. */
static void test_added_tokens_of_single_words(void **state)
{
    static const char *const row[][2] = {
        {"xy", "20"},
        {"xy a", "20 4 1"},
        {"a xy", "1 4 20"},
        {"a xy b", "1 4 20 4 2"},
        {"xy xy", "20 4 20"},
        {"-xy.", "0 20 0"},
        {"axy", "1 9 10"},
        {"xya", "9 10 1"},
        {"xyxy", "9 10 9 10"},
        {"_xy", "0 9 10"},
        {"xy_", "9 10 0"},
        {"7xy", "0 9 10"},
        {"\u00c9xy", "0 9 10"},
        {"xy\u01c5", "9 10 0"},
        {"\u02b0xy", "0 9 10"},
        {"xy\u4e2d", "9 10 0"},
        {"\u0301xy", "0 9 10"},
        {"xy\u0903", "9 10 0"},
        {"xy\u20dd", "9 10 0"},
        {"\u0660xy", "0 9 10"},
        {"\u2160xy", "0 9 10"},
        {"xy\u203f", "9 10 0"},
        {"xy\u200d", "9 10 0"},
        {"\u200cxy", "0 9 10"},
        {"\u24b6xy", "0 9 10"},
        {"xy\u24e9", "9 10 0"},
        {"\U0001f130xy", "0 9 10"},
        {"\U0001f149xy", "0 9 10"},
        {"\U0001f150xy", "0 9 10"},
        {"\U0001f169xy", "0 9 10"},
        {"\U0001f170xy", "0 9 10"},
        {"\U0001f189xy", "0 9 10"},
        /* what is beside those */
        {"\u24b5xy", "0 20"},
        {"\u24eaxy", "0 20"},
        {"\U0001f12fxy", "0 20"},
        {"\U0001f14axy", "0 20"},
        {"\U0001f16axy", "0 20"},
        {"\U0001f18axy", "0 20"},
        {"\u00bdxy", "0 20"},
        {"xy\u200b", "20 0"},
        {"\U0001f600xy\U0001f600", "0 20 0"},
    };
    struct tokenizer *t = open_with(
        "\"added_tokens\":[{\"id\":20,\"content\":\"xy\",\"single_word\":true,\"normalized\":false}]");
    (void)state;
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++)
        assert_encodes(t, row[i][0], row[i][1]);
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

/* ---- spans -----------------------------------------------------------------------------------------------
 */

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

/* ---- threads ---------------------------------------------------------------------------------------------
 */

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
        cmocka_unit_test(test_added_tokens_strip),
        cmocka_unit_test(test_added_tokens_of_single_words),
        cmocka_unit_test(test_normalized_tokens_match_normalized_text),
        cmocka_unit_test(test_only_template_text_becomes_special),
        cmocka_unit_test(test_spans_survive_normalizing),
        cmocka_unit_test(test_many_threads_encode_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
