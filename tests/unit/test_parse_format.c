/* Which format a model's answers have, from its files: templates, special tokens, the prompt's end. */
#include "test.h"

#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "text/parse.h"
#include "text/tokenizer.h"

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
        cmocka_unit_test(test_parse_sees_whether_the_prompt_opened_the_reasoning),
        cmocka_unit_test(test_parse_detects_the_format_from_a_folder),
        cmocka_unit_test(test_parse_knows_when_a_marker_is_a_special_token),
        cmocka_unit_test(test_parse_detects_the_format_from_a_template),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
