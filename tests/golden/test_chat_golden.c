/* Every conversation through every chat template, against Python's jinja2. The project's own few rows run
 * always, the full vectors where ../shared is. */
#include "test.h"

#include "jsonrows.h"
#include "text/chat.h"
#include "text/jinja.h"

#define TEXT   NYBBLE_SHARED_DIR "/text/"
#define GOLDEN TEXT "golden/"
#define NOW    1754397296 /* 2025-08-05 12:34:56, the clock of the vectors */

static void check_unit(const char *path, size_t at_least)
{
    struct rows r;
    struct jinja_var var[64];
    size_t n_var = 0, n = 0, bad = 0;
    const char *key;
    json_t *row, *value;
    if (!rows_open(&r, path)) {
        print_message("no %s\n", path);
        skip();
    }
    json_t *meta = json_incref(rows_next(&r));
    json_object_foreach(json_object_get(meta, "ctx"), key, value) var[n_var++] =
        (struct jinja_var){.name = key, .value = value, .input = true};
    for (; (row = rows_next(&r)); n++) {
        const char *source = rows_str(row, "t"), *out = rows_str(row, "out"), *kind = rows_str(row, "kind");
        struct jinja_template *t = NULL;
        struct jinja_output o = {0};
        struct nyb_err err;
        enum nyb_code code = jinja_open(&t, source, strlen(source), &err);
        if (code == NYB_OK)
            code = jinja_render(t, var, n_var, NOW, &o, &err);
        bool ok = out ? code == NYB_OK && o.text.len == strlen(out) && !memcmp(o.text.data, out, o.text.len)
                      : code == NYB_E_TEMPLATE &&
                            (strcmp(kind, "TemplateError") || !strcmp(err.message, rows_str(row, "err")));
        if (!ok) {
            bad++;
            print_error("%s\n  expected %s\n  got      %s\n", source, out ? out : rows_str(row, "err"),
                        code == NYB_OK ? o.text.data : err.message);
        }
        jinja_output_free(&o);
        jinja_close(t);
    }
    json_decref(meta);
    rows_close(&r);
    print_message("%zu rows, %zu differ\n", n, bad);
    assert_true(n >= at_least);
    assert_int_equal(bad, 0);
}

static void test_jinja_unit_rows_of_the_project(void **state)
{
    (void)state;
    check_unit(NYBBLE_SOURCE_DIR "/tests/golden/text/jinja_unit.jsonl", 40);
}

static void test_jinja_unit_rows_all(void **state)
{
    (void)state;
    check_unit(GOLDEN "public_jinja_unit.jsonl", 200);
}

/* {c: conversation} */
static json_t *load_conversations(void)
{
    struct rows r;
    json_t *all = json_object(), *row;
    assert_true(rows_open(&r, GOLDEN "public_conversations.jsonl"));
    while ((row = rows_next(&r)))
        json_object_set(all, rows_str(row, "c"), row);
    rows_close(&r);
    return all;
}

static bool check_row(const struct chat_template *t, const json_t *conversation, const json_t *row,
                      const char *name)
{
    struct nyb_err err;
    struct chat_prompt p;
    json_t *kwargs = json_object(); /* the conversation's own, and those of the row */
    json_object_update(kwargs, json_object_get(conversation, "kw"));
    json_object_update(kwargs, json_object_get(row, "kw"));
    const struct chat_input in = {
        .messages = json_object_get(conversation, "messages"),
        .tools = json_object_get(conversation, "tools"),
        .kwargs = kwargs,
        .add_generation_prompt = json_integer_value(json_object_get(row, "agp")) != 0,
        .now = NOW,
        .verbatim = true,
    };
    const char *out = rows_str(row, "out"), *kind = rows_str(row, "kind");
    enum nyb_code code = chat_render(t, &in, &p, &err);
    size_t spans = 0;
    for (size_t i = 0; code == NYB_OK && i < p.n_span; i++)
        spans += p.span[i].len;
    bool ok = out ? code == NYB_OK && p.text.len == strlen(out) && spans == p.text.len &&
                        (p.text.len == 0 || !memcmp(p.text.data, out, p.text.len))
                  : code == NYB_E_TEMPLATE &&
                        (strcmp(kind, "TemplateError") || !strcmp(err.message, rows_str(row, "err")));
    if (!ok)
        print_error("%s %s\n  expected %s\n  got      %s\n", name, rows_str(row, "c"),
                    out ? out : rows_str(row, "err"), code == NYB_OK ? p.text.data : err.message);
    chat_prompt_free(&p);
    json_decref(kwargs);
    return ok;
}

static void check_template(const char *name, const json_t *conversations)
{
    struct rows r;
    struct nyb_err err;
    struct chat_template *t;
    size_t n = 0, equal = 0;
    json_t *row;
    char *path = mem_printf(GOLDEN "public_chat_%s.jsonl", name), *folder = rows_folder();
    assert_true(rows_open(&r, path));
    const json_t *meta = rows_next(&r);
    char *vars = json_dumps(json_object_get(meta, "vars"), 0),
         *source = mem_printf(TEXT "%s", rows_str(meta, "template"));
    rows_write(folder, "tokenizer_config.json", vars);
    if (chat_open(&t, folder, source, &err) != NYB_OK)
        fail_msg("%s: %s: %s", name, err.where, err.message);
    for (; (row = rows_next(&r)); n++)
        equal += check_row(t, json_object_get(conversations, rows_str(row, "c")), row, name);
    print_message("%-20s %3zu of %3zu rows\n", name, equal, n);
    chat_close(t);
    rows_close(&r);
    rows_folder_remove(folder);
    free(folder);
    free(vars);
    free(source);
    free(path);
    assert_true(n > 20);
    assert_int_equal(n, equal);
}

static void test_chat_rows_all(void **state)
{
    static const char *const names[] = {
        "deepseek_v3",  "deepseek_v31_ik",  "ernie45",        "glm45_air",
        "glm46",        "glm47_flash",      "gptoss",         "kimi_k2",
        "mistral_nemo", "mixtral",          "qwen2.5",        "qwen3",
        "qwen3.5",      "qwen3_2507hybrid", "qwen3_coder_hf", "qwen3_thinking2507",
    };
    (void)state;
    if (!file_exists(GOLDEN "public_conversations.jsonl")) {
        print_message("no " GOLDEN "\n");
        skip();
    }
    json_t *conversations = load_conversations();
    for (size_t i = 0; i < COUNT_OF(names); i++)
        check_template(names[i], conversations);
    json_decref(conversations);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_jinja_unit_rows_of_the_project),
        cmocka_unit_test(test_jinja_unit_rows_all),
        cmocka_unit_test(test_chat_rows_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
