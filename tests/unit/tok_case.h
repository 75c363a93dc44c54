/* Tokenizers from a few lines of JSON, and what they make of a text. */
#ifndef NYB_TOK_CASE_H
#define NYB_TOK_CASE_H

#include "test.h"

#include "text/tok.h"
#include "tokrows.h"

#define FIXTURE NYBBLE_SOURCE_DIR "/tests/golden/text/stories260K"

static const char PLAIN_BPE[] =
    "\"model\":{\"type\":\"BPE\",\"unk_token\":\"?\",\"vocab\":{\"?\":0,\"a\":1,\"b\":2,"
    "\"c\":3,\" \":4,\"ab\":5,\"abc\":6,\"bc\":7,\"aa\":8,\"x\":9,\"y\":10,\"abab\":11},"
    "\"merges\":[\"a b\",\"ab c\",\"b c\",\"a a\",\"ab ab\"]}";

static inline enum nyb_code open_text(struct tokenizer **t, const char *json, const char *config,
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
static inline struct tokenizer *open_with(const char *members)
{
    struct tokenizer *t;
    struct nyb_err err;
    char *json = mem_printf("{%s%s%s}", members, *members ? "," : "", PLAIN_BPE);
    if (open_text(&t, json, NULL, &err) != NYB_OK)
        fail_msg("%s", err.message);
    free(json);
    return t;
}

static inline void assert_ids(const struct tok_ids *ids, const char *want)
{
    struct buf got = {0};
    buf_add(&got, "", 0);
    for (size_t i = 0; i < ids->n; i++)
        buf_printf(&got, "%s%d", i ? " " : "", ids->id[i]);
    assert_string_equal(got.data, want);
    buf_free(&got);
}

/* `want`: ids with spaces between. */
static inline void assert_encodes(const struct tokenizer *t, const char *text, const char *want)
{
    struct tok_ids ids = {0};
    assert_int_equal(tok_encode(t, text, strlen(text), false, &ids, NULL), NYB_OK);
    assert_ids(&ids, want);
    tok_ids_free(&ids);
}

#endif
