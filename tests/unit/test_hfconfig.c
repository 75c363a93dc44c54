#include "checkpoint/hfconfig.h"

#include "ckpt_files.h"

static char *open_text(struct hfconfig *c, const char *text)
{
    char *d = folder_make();
    struct nyb_err err = {0};
    folder_write_text(d, "config.json", text);
    if (hfconfig_open(c, d, &err) != NYB_OK)
        fail_msg("%s: %s", err.where, err.message);
    return d;
}

/* With quotation marks where there are apostrophes. Caller frees. */
static char *quoted(const char *text)
{
    char *s = mem_strdup(text);
    for (char *p = s; *p; p++)
        *p = *p == '\'' ? '"' : *p;
    return s;
}

static void test_hfconfig_open_names_the_file(void **state)
{
    (void)state;
    static const struct {
        const char *text, *mentions;
    } row[] = {
        {"[]", "not a JSON object"},
        {"{", "JSON"},
        {"{}", "no model_type"},
        {"{\"model_type\":3}", "expected a string"},
        {"{\"model_type\":null}", "no model_type"},
        {"{\"model_type\":\"a\",\"model_type\":\"b\"}", "duplicate"},
    };
    struct hfconfig c;
    struct nyb_err err;
    char *d = folder_make();

    assert_int_equal(hfconfig_open(&c, d, &err), NYB_E_NOT_FOUND);
    assert_non_null(strstr(err.where, "config.json"));
    for (size_t i = 0; i < COUNT_OF(row); i++) {
        folder_write_text(d, "config.json", row[i].text);
        assert_int_equal(hfconfig_open(&c, d, &err), NYB_E_FORMAT);
        assert_non_null(strstr(err.where, "config.json"));
        if (!strstr(err.message, row[i].mentions))
            fail_msg("'%s' does not mention '%s'", err.message, row[i].mentions);
        assert_null(c.root);
    }
    folder_drop(d);
}

static void test_hfconfig_reads_typed_fields(void **state)
{
    (void)state;
    struct hfconfig c;
    char *d = open_text(&c, "{\"model_type\":\"qwen3_moe\",\"i\":7,\"f\":1e-6,\"whole\":1000000,\"b\":true,"
                            "\"s\":\"silu\",\"n\":null,\"one\":2,\"many\":[2,3],\"none\":[]}");
    int64_t i, *list;
    double f;
    bool b;
    const char *s;
    int n;

    assert_string_equal(c.model_type, "qwen3_moe");
    assert_int_equal(hfconfig_int(&c, c.root, "i", 0, 7, &i, NULL), NYB_OK);
    assert_int_equal(i, 7);
    assert_int_equal(hfconfig_int_or(&c, c.root, "n", 0, 9, 5, &i, NULL), NYB_OK);
    assert_int_equal(i, 5);
    assert_int_equal(hfconfig_int_or(&c, c.root, "absent", 0, 9, -1, &i, NULL), NYB_OK);
    assert_int_equal(i, -1);
    assert_int_equal(hfconfig_float_or(&c, c.root, "f", 0, &f, NULL), NYB_OK);
    assert_true(f == 1e-6);
    assert_int_equal(hfconfig_float_or(&c, c.root, "whole", 0, &f, NULL), NYB_OK);
    assert_true(f == 1e6);
    assert_int_equal(hfconfig_float_or(&c, c.root, "n", 2.5, &f, NULL), NYB_OK);
    assert_true(f == 2.5);
    assert_int_equal(hfconfig_bool_or(&c, c.root, "b", false, &b, NULL), NYB_OK);
    assert_true(b);
    assert_int_equal(hfconfig_bool_or(&c, c.root, "absent", true, &b, NULL), NYB_OK);
    assert_true(b);
    assert_int_equal(hfconfig_string_or(&c, c.root, "s", NULL, &s, NULL), NYB_OK);
    assert_string_equal(s, "silu");
    assert_int_equal(hfconfig_string_or(&c, c.root, "absent", NULL, &s, NULL), NYB_OK);
    assert_null(s);
    assert_int_equal(hfconfig_int_list(&c, c.root, "one", &list, &n, NULL), NYB_OK);
    assert_int_equal(n, 1);
    assert_int_equal(list[0], 2);
    free(list);
    assert_int_equal(hfconfig_int_list(&c, c.root, "many", &list, &n, NULL), NYB_OK);
    assert_int_equal(n, 2);
    assert_int_equal(list[1], 3);
    free(list);
    assert_int_equal(hfconfig_int_list(&c, c.root, "none", &list, &n, NULL), NYB_OK);
    assert_int_equal(n, 0);
    free(list);
    hfconfig_close(&c);
    folder_drop(d);
}

static void test_hfconfig_wrong_types_are_errors(void **state)
{
    (void)state;
    struct hfconfig c;
    char *d = open_text(
        &c, "{\"model_type\":\"x\",\"i\":1.0,\"f\":\"1\",\"b\":1,\"s\":[],\"list\":[1,\"2\"],\"big\":9,"
            "\"nul\":\"a\\u0000b\"}");
    struct nyb_err err;
    int64_t i, *list;
    double f;
    bool b;
    const char *s;
    int n;

    assert_int_equal(hfconfig_int(&c, c.root, "absent", 0, 1, &i, &err), NYB_E_FORMAT);
    assert_non_null(strstr(err.message, "no absent"));
    assert_int_equal(hfconfig_int(&c, c.root, "i", 0, 1, &i, &err), NYB_E_FORMAT);
    assert_non_null(strstr(err.message, "i is 1, expected an integer from 0 to 1"));
    assert_non_null(strstr(err.where, "config.json"));
    assert_int_equal(hfconfig_int_or(&c, c.root, "big", 0, 8, 0, &i, &err), NYB_E_FORMAT);
    assert_non_null(strstr(err.message, "big is 9, expected an integer from 0 to 8"));
    assert_int_equal(hfconfig_int_or(&c, c.root, "big", 10, INT64_MAX, 0, &i, &err), NYB_E_FORMAT);
    assert_non_null(strstr(err.message, "at least 10"));
    assert_int_equal(hfconfig_float_or(&c, c.root, "f", 0, &f, &err), NYB_E_FORMAT);
    assert_non_null(strstr(err.message, "f is '1', expected a number"));
    assert_int_equal(hfconfig_bool_or(&c, c.root, "b", false, &b, &err), NYB_E_FORMAT);
    assert_int_equal(hfconfig_string_or(&c, c.root, "s", NULL, &s, &err), NYB_E_FORMAT);
    assert_int_equal(hfconfig_string_or(&c, c.root, "nul", NULL, &s, &err), NYB_E_FORMAT);
    assert_int_equal(hfconfig_int_list(&c, c.root, "list", &list, &n, &err), NYB_E_FORMAT);
    assert_null(list);
    assert_non_null(strstr(err.message, "list is '2'"));
    hfconfig_close(&c);
    folder_drop(d);
}

static void test_hfconfig_generation_defaults(void **state)
{
    (void)state;
    struct hfconfig c;
    struct hfconfig_generation g;
    char *d = open_text(&c, "{\"model_type\":\"x\",\"eos_token_id\":2,\"bos_token_id\":1}");

    assert_int_equal(hfconfig_generation_read(&g, &c, d, NULL), NYB_OK);
    assert_false(g.has_temperature || g.has_top_p || g.has_top_k || g.has_min_p || g.has_repetition_penalty);
    assert_false(g.do_sample);
    assert_int_equal(g.n_eos, 1);
    assert_int_equal(g.eos[0], 2);
    assert_int_equal(g.bos, 1);
    hfconfig_generation_free(&g);
    hfconfig_close(&c);
    folder_drop(d);
}

static void test_hfconfig_generation_merges_eos(void **state)
{
    (void)state;
    struct hfconfig c;
    struct hfconfig_generation g;
    char *d = open_text(&c, "{\"model_type\":\"x\",\"eos_token_id\":[5,2]}");

    folder_write_text(
        d, "generation_config.json",
        "{\"eos_token_id\":[2,3,-1],\"bos_token_id\":null,\"temperature\":0.6,\"top_k\":20,\"top_p\":"
        "0.95,\"min_p\":0,\"do_sample\":true,\"repetition_penalty\":1,\"pad_token_id\":0}");
    assert_int_equal(hfconfig_generation_read(&g, &c, d, NULL), NYB_OK);
    assert_true(g.has_temperature && g.temperature == 0.6);
    assert_true(g.has_top_p && g.top_p == 0.95);
    assert_true(g.has_top_k && g.top_k == 20);
    assert_true(g.has_min_p && g.min_p == 0);
    assert_true(g.has_repetition_penalty && g.repetition_penalty == 1);
    assert_true(g.do_sample);
    assert_int_equal(g.bos, -1);
    assert_int_equal(g.n_eos, 3);
    assert_true(g.eos[0] == 2 && g.eos[1] == 3 && g.eos[2] == 5);
    hfconfig_generation_free(&g);
    hfconfig_close(&c);
    folder_drop(d);
}

static void test_hfconfig_generation_errors(void **state)
{
    (void)state;
    static const struct {
        const char *text, *mentions;
    } row[] = {
        {"[]", "not a JSON object"},
        {"{", "JSON"},
        {"{\"temperature\":-1}", "temperature is -1, expected a number from 0 to 100"},
        {"{\"temperature\":\"hot\"}", "temperature is 'hot'"},
        {"{\"top_p\":1.5}", "top_p is 1.5"},
        {"{\"top_k\":1.5}", "top_k is 1.5"},
        {"{\"repetition_penalty\":0}", "repetition_penalty is 0"},
        {"{\"do_sample\":1}", "do_sample is 1, expected true or false"},
        {"{\"eos_token_id\":\"</s>\"}", "eos_token_id is '</s>'"},
    };
    struct hfconfig c;
    struct hfconfig_generation g;
    struct nyb_err err;
    char *d = open_text(&c, "{\"model_type\":\"x\"}");

    for (size_t i = 0; i < COUNT_OF(row); i++) {
        folder_write_text(d, "generation_config.json", row[i].text);
        assert_int_equal(hfconfig_generation_read(&g, &c, d, &err), NYB_E_FORMAT);
        assert_non_null(strstr(err.where, "generation_config.json"));
        if (!strstr(err.message, row[i].mentions))
            fail_msg("'%s' does not mention '%s'", err.message, row[i].mentions);
    }
    hfconfig_close(&c);
    folder_drop(d);
}

static void test_hfconfig_overrides(void **state)
{
    (void)state;
    static const struct {
        const char *file, *overrides, *after; /* "'" stands for a quotation mark */
    } row[] = {
        {"{'model_type':'a','n':1,'k':{'x':1,'y':2}}", "{'n':2,'m':[3],'k':{'x':5}}",
         "{'model_type':'a','n':2,'k':{'x':5},'m':[3]}"},
        {"{'model_type':'a','rope_theta':5,'rope_scaling':null}",
         "{'rope_scaling':{'rope_type':'yarn','factor':4}}",
         "{'model_type':'a','rope_theta':5,'rope_scaling':{'rope_type':'yarn','factor':4}}"},
        {"{'model_type':'a','rope_parameters':{'rope_type':'default','rope_theta':5,'partial_rotary_factor':"
         "0.5}}",
         "{'rope_scaling':{'type':'yarn','factor':4}}",
         "{'model_type':'a','rope_parameters':{'type':'yarn','factor':4,'rope_theta':5,'partial_rotary_"
         "factor':0.5}}"},
        {"{'model_type':'a','rope_parameters':{'rope_type':'yarn','factor':4,'rope_theta':5}}",
         "{'rope_parameters':{'rope_type':'linear','factor':2,'rope_theta':7}}",
         "{'model_type':'a','rope_parameters':{'rope_type':'linear','factor':2,'rope_theta':7}}"},
        {"{'model_type':'a','rope_parameters':{'rope_type':'yarn','factor':4,'rope_theta':5}}",
         "{'rope_scaling':null}", "{'model_type':'a','rope_parameters':{'rope_theta':5}}"},
        {"{'model_type':'a','rope_scaling':{'type':'yarn','factor':4}}", "{'rope_scaling':null}",
         "{'model_type':'a','rope_scaling':null}"},
        {"{'model_type':'a'}", "{'model_type':'b'}", "{'model_type':'b'}"},
    };
    static const char *const bad[] = {"", "[]", "3", "{'n':", "{'n':1,'n':2}", "yarn"};
    struct hfconfig c;
    struct nyb_err err;
    for (size_t i = 0; i < COUNT_OF(row); i++) {
        char *file = quoted(row[i].file), *overrides = quoted(row[i].overrides),
             *after = quoted(row[i].after);
        char *d = folder_make();
        folder_write_text(d, "config.json", file);
        if (hfconfig_open_with(&c, d, overrides, &err) != NYB_OK)
            fail_msg("%s: %s", err.where, err.message);
        json_t *want = json_loads(after, 0, NULL);
        if (!json_equal(c.root, want))
            fail_msg("%s with %s is not %s", file, overrides, after);
        assert_string_equal(c.overrides, overrides);
        assert_string_equal(c.model_type, json_string_value(json_object_get(want, "model_type")));
        json_decref(want);
        hfconfig_close(&c);
        folder_drop(d);
        free(file);
        free(overrides);
        free(after);
    }
    char *d = folder_make();
    folder_write_text(d, "config.json", "{\"model_type\":\"a\"}");
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        char *overrides = quoted(bad[i]);
        assert_int_equal(hfconfig_open_with(&c, d, overrides, &err), NYB_E_ARG);
        assert_string_equal(err.where, "hf_overrides");
        assert_non_null(strstr(err.message, "JSON object"));
        free(overrides);
    }
    folder_drop(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hfconfig_open_names_the_file),
        cmocka_unit_test(test_hfconfig_reads_typed_fields),
        cmocka_unit_test(test_hfconfig_wrong_types_are_errors),
        cmocka_unit_test(test_hfconfig_overrides),
        cmocka_unit_test(test_hfconfig_generation_defaults),
        cmocka_unit_test(test_hfconfig_generation_merges_eos),
        cmocka_unit_test(test_hfconfig_generation_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
