/* What a checkpoint declares: which module is quantized how, and declarations that are refused. */
#include "quant_case.h"

#include "base/log.h"
#include "checkpoint/glob.h"

static void expect_refused(const char *config, const char *folder, enum nyb_code code, const char *mentions)
{
    json_t *root = json_of(config);
    struct quant *q;
    struct nyb_err err = {0};
    char text[1200];

    assert_int_equal(quant_parse(&q, root, folder, &err), code);
    assert_null(q);
    if (!strstr(err_format(&err, text, sizeof text), mentions))
        fail_msg("'%s' does not mention '%s'", text, mentions);
    json_decref(root);
}

static void test_glob_follows_fnmatch(void **state)
{
    (void)state;
    static const struct {
        const char *pattern, *text;
        bool match;
    } row[] = {
        {"lm_head", "lm_head", true},
        {"lm_head", "model.lm_head", false},
        {"model.layers.*.mlp.gate", "model.layers.12.mlp.gate", true},
        {"model.layers.*.mlp.gate", "model.layers.12.mlp.gate_proj", false},
        {"model.layers.1*", "model.layers.17.self_attn.q_proj", true}, /* also 10 to 19: so does fnmatch */
        {"*", "", true},
        {"*", "a.b", true},
        {"", "", true},
        {"", "a", false},
        {"a?c", "abc", true},
        {"a?c", "ac", false},
        {"?", "", false},
        {"[a-c]x", "bx", true},
        {"[a-c]x", "dx", false},
        {"[!a-c]x", "dx", true},
        {"[!a-c]x", "ax", false},
        {"[]]", "]", true},
        {"[!]]", "]", false},
        {"[]", "[]", true}, /* never closed: ordinary characters */
        {"[ab", "[ab", true},
        {"[ab", "a", false},
        {"[a-]", "-", true},
        {"a*b*c", "aXbYbZc", true},
        {"a*b*c", "aXbYbZ", false},
        {"a**", "a", true},
        {"*.mlp.[gu]*_proj", "l.0.mlp.up_proj", true},
    };
    for (size_t i = 0; i < COUNT_OF(row); i++)
        if (glob_match(row[i].pattern, row[i].text) != row[i].match)
            fail_msg("'%s' on '%s'", row[i].pattern, row[i].text);
}

static void test_glob_takes_no_exponential_time(void **state)
{
    (void)state;
    char text[2001], pattern[402];
    memset(text, 'a', 2000);
    text[2000] = 0;
    for (int i = 0; i < 200; i++) {
        pattern[2 * i] = '*';
        pattern[2 * i + 1] = 'a';
    }
    strcpy(pattern + 400, "b");
    assert_false(glob_match(pattern, text));
    pattern[400] = 0;
    assert_true(glob_match(pattern, text));
}

static void test_quant_nothing_declared(void **state)
{
    (void)state;
    struct quant *q = parse("{}", NULL);
    assert_string_equal(quant_describe(q), "not quantized");
    assert_int_equal(quant_scheme_of(q, "model.layers.0.mlp.up_proj"), QUANT_NONE);
    assert_false(quant_kv_is_fp8(q));
    quant_free(q);
    q = parse("{'quantization_config':null}", "/nonexistent");
    assert_string_equal(quant_describe(q), "not quantized");
    quant_free(q);
}

static void test_quant_modelopt_flat_form(void **state)
{
    (void)state;
    struct quant *q = parse(
        MODELOPT("'quant_algo':'NVFP4','ignore':['lm_head','model.layers.*.mlp.gate','*.self_attn*'],"
                 "'config_groups':{'group_0':{" NVFP4_WEIGHTS "," NVFP4_INPUTS ",'targets':['Linear']}},"
                 "'kv_cache_scheme':{'dynamic':false,'num_bits':8,'type':'float'}"),
        NULL);
    assert_string_equal(quant_describe(q), "NVFP4 (modelopt), group 16, KV FP8");
    assert_true(quant_kv_is_fp8(q));
    assert_int_equal(quant_scheme_of(q, "lm_head"), QUANT_NONE);
    assert_int_equal(quant_scheme_of(q, "model.layers.3.mlp.gate"), QUANT_NONE);
    assert_int_equal(quant_scheme_of(q, "model.layers.3.self_attn.q_proj"), QUANT_NONE);
    assert_int_equal(quant_scheme_of(q, "model.layers.3.mlp.gate_proj"), QUANT_NVFP4);
    assert_int_equal(quant_scheme_of(q, "model.embed_tokens"), QUANT_NONE);
    quant_free(q);
    q = parse(MODELOPT("'quant_algo':'W4A16_NVFP4','kv_cache_scheme':'NVFP4'"), NULL);
    assert_string_equal(quant_describe(q), "NVFP4 (modelopt), group 16, KV NVFP4");
    assert_false(quant_kv_is_fp8(q));
    quant_free(q);
    q = parse(MODELOPT("'quant_algo':'FP8'"), NULL);
    assert_string_equal(quant_describe(q), "FP8 (modelopt)");
    assert_int_equal(quant_scheme_of(q, "a"), QUANT_FP8);
    quant_free(q);
}

static void test_quant_modelopt_file(void **state)
{
    (void)state;
    char *d = folder_make();
    folder_write_text(
        d, "hf_quant_config.json",
        "{\"producer\":{\"name\":\"modelopt\",\"version\":\"0.33.0\"},\"quantization\":{"
        "\"quant_algo\":\"nvfp4\",\"kv_cache_quant_algo\":\"FP8\",\"exclude_modules\":[\"gate\"]}}");
    struct quant *q = parse("{}", d);
    assert_string_equal(quant_describe(q), "NVFP4 (modelopt), group 16, KV FP8");
    /* before 0.39 a plain name matches anywhere */
    assert_int_equal(quant_scheme_of(q, "model.layers.0.mlp.gate_proj"), QUANT_NONE);
    assert_int_equal(quant_scheme_of(q, "model.layers.0.mlp.up_proj"), QUANT_NVFP4);
    quant_free(q);

    folder_write_text(d, "hf_quant_config.json",
                      "{\"producer\":{\"version\":\"0.39.1\"},\"quantization\":{\"quant_algo\":\"NVFP4\","
                      "\"exclude_modules\":[\"gate\"]}}");
    q = parse("{}", d);
    assert_int_equal(quant_scheme_of(q, "model.layers.0.mlp.gate_proj"), QUANT_NVFP4);
    quant_free(q);
    folder_drop(d);
}

static void test_quant_two_forms_must_agree(void **state)
{
    (void)state;
    char *d = folder_make();
    folder_write_text(d, "hf_quant_config.json", "{\"quantization\":{\"quant_algo\":\"NVFP4\"}}");
    struct quant *q = parse(MODELOPT("'quant_algo':'NVFP4','ignore':['lm_head']"), d);
    assert_int_equal(quant_scheme_of(q, "lm_head"), QUANT_NONE);
    quant_free(q);
    folder_write_text(d, "hf_quant_config.json",
                      "{\"quantization\":{\"quant_algo\":\"NVFP4\",\"kv_cache_quant_algo\":\"FP8\"}}");
    q = parse(MODELOPT("'quant_algo':'NVFP4'"), d);
    assert_true(quant_kv_is_fp8(q)); /* told by one of them */
    quant_free(q);
    q = parse(MODELOPT("'quant_algo':'W4A16_NVFP4'"), d);
    quant_free(q);
    expect_refused(MODELOPT("'quant_algo':'FP8'"), d, NYB_E_FORMAT, "declares NVFP4");
    folder_write_text(d, "hf_quant_config.json", "{\"quantization\":{\"quant_algo\":\"W4A8_AWQ\"}}");
    expect_refused(MODELOPT("'quant_algo':'NVFP4'"), d, NYB_E_UNSUPPORTED, "W4A8_AWQ");
    folder_write_text(d, "hf_quant_config.json", "{\"quantization\":[]}");
    expect_refused("{}", d, NYB_E_FORMAT, "hf_quant_config.json");
    folder_write_text(d, "hf_quant_config.json", "[");
    expect_refused("{}", d, NYB_E_FORMAT, "hf_quant_config.json");
    folder_drop(d);
}

static void test_quant_unsupported_algorithms_are_named(void **state)
{
    (void)state;
    static const char *const algo[] = {"W4A8_AWQ",
                                       "W4A16_AWQ",
                                       "NVFP4_AWQ",
                                       "NVFP4_SVD",
                                       "MXFP8",
                                       "W4A8_MXFP4_FP8",
                                       "W8A16",
                                       "W4A8_NVFP4_FP8",
                                       "fp8_pb_wo",
                                       "W8A8_SQ_PER_CHANNEL",
                                       "FP8_PER_CHANNEL_PER_TOKEN"};
    char text[200];
    for (size_t i = 0; i < COUNT_OF(algo); i++) {
        snprintf(text, sizeof text, MODELOPT("'quant_algo':'%s'"), algo[i]);
        expect_refused(text, NULL, NYB_E_UNSUPPORTED, algo[i]);
    }
    expect_refused(
        MODELOPT("'quant_algo':'W4A16_AWQ','config_groups':{'g':{'weights':{'num_bits':4,'type':'int'}}}"),
        NULL, NYB_E_UNSUPPORTED, "W4A16_AWQ");
    snprintf(text, sizeof text, "%s",
             MODELOPT("'quant_algo':'MIXED_PRECISION','quantized_layers':{'a.b':{'quant_algo':'MXFP8'}}"));
    expect_refused(text, NULL, NYB_E_UNSUPPORTED, "'MXFP8' of module a.b");
}

static void test_quant_malformed_declarations(void **state)
{
    (void)state;
    static const struct {
        const char *config, *mentions;
        enum nyb_code code;
    } row[] = {
        {"{'quantization_config':7}", "not an object", NYB_E_FORMAT},
        {CONFIG(""), "quant_method", NYB_E_FORMAT},
        {CONFIG("'quant_method':'gptq'"), "gptq", NYB_E_UNSUPPORTED},
        {CONFIG("'quant_method':'mxfp4'"), "mxfp4", NYB_E_UNSUPPORTED},
        {CONFIG("'quant_method':3"), "quant_method is not a string", NYB_E_FORMAT},
        {CONFIG("'quant_method':'fp8','weight_block_size':[128,128]"), "weight_block_size",
         NYB_E_UNSUPPORTED},
        {MODELOPT("'x':1"), "neither quant_algo nor config_groups", NYB_E_FORMAT},
        {MODELOPT("'quant_algo':4"), "quant_algo is not a string", NYB_E_FORMAT},
        {MODELOPT("'quant_algo':'NVFP4','group_size':32"), "32", NYB_E_UNSUPPORTED},
        {MODELOPT("'quant_algo':'NVFP4','group_size':'16'"), "not an integer", NYB_E_FORMAT},
        {MODELOPT("'quant_algo':'NVFP4','ignore':'lm_head'"), "ignore is not a list", NYB_E_FORMAT},
        {MODELOPT("'quant_algo':'NVFP4','ignore':[1]"), "entry 0 of ignore", NYB_E_FORMAT},
        {MODELOPT("'quant_algo':'NVFP4','kv_cache_scheme':[]"), "kv_cache_scheme", NYB_E_FORMAT},
        {MODELOPT("'quant_algo':'NVFP4','config_groups':{'g':{" FP8_WEIGHTS "}}"), "other weights",
         NYB_E_FORMAT},
        {MODELOPT("'quant_algo':'NVFP4','config_groups':[]"), "config_groups", NYB_E_FORMAT},
        {MODELOPT("'quant_algo':'NVFP4','config_groups':{'g':1}"), "group g", NYB_E_FORMAT},
        {MODELOPT("'quant_algo':'MIXED_PRECISION'"), "MIXED_PRECISION", NYB_E_FORMAT},
        {MODELOPT("'quant_algo':'MIXED_PRECISION','quantized_layers':[]"), "quantized_layers", NYB_E_FORMAT},
        {MODELOPT("'quant_algo':'MIXED_PRECISION','quantized_layers':{'a':3}"), "'a'", NYB_E_FORMAT},
        {CT("'x':1"), "config_groups", NYB_E_FORMAT},
        {CT("'format':'mixed-precision'"), "config_groups", NYB_E_FORMAT},
        {CT("'format':'pack-quantized'"), "pack-quantized", NYB_E_UNSUPPORTED},
        {CT("'format':'mxfp4-pack-quantized'"), "mxfp4-pack-quantized", NYB_E_UNSUPPORTED},
        {CT("'format':'nvfp4-pack-quantized','sparsity_config':{'format':'sparse-24-bitmask'}"), "sparse-24",
         NYB_E_UNSUPPORTED},
        {CT("'format':'nvfp4-pack-quantized','transform_config':{'config_groups':{'R1':{}}}"),
         "transform_config", NYB_E_UNSUPPORTED},
        {CT("'config_groups':{'g':{'weights':{'num_bits':4,'type':'int'}}}"), "4-bit 'int'",
         NYB_E_UNSUPPORTED},
        {CT("'config_groups':{'g':{'weights':{'num_bits':4,'type':'float','strategy':'group','group_size':32}"
            "}}"),
         "strategy 'group'", NYB_E_UNSUPPORTED},
        {CT("'config_groups':{'g':{'weights':{'num_bits':4,'type':'float','group_size':32}}}"), "32",
         NYB_E_UNSUPPORTED},
        {CT("'config_groups':{'g':{'weights':{'num_bits':8,'type':'float','strategy':'channel'}}}"),
         "channel", NYB_E_UNSUPPORTED},
        {CT("'config_groups':{'g':{" NVFP4_WEIGHTS ",'input_activations':{'num_bits':8,'type':'int'}}}"),
         "input activations", NYB_E_UNSUPPORTED},
        {CT("'config_groups':{'g':{" NVFP4_WEIGHTS ",'format':'pack-quantized'}}"), "pack-quantized",
         NYB_E_UNSUPPORTED},
        {CT("'format':'nvfp4-pack-quantized','ignore':['re:(']"), "regular expression '('", NYB_E_FORMAT},
    };
    for (size_t i = 0; i < COUNT_OF(row); i++)
        expect_refused(row[i].config, NULL, row[i].code, row[i].mentions);
}

static void test_quant_compressed_tensors(void **state)
{
    (void)state;
    struct quant *q = parse(CT("'format':'nvfp4-pack-quantized','config_groups':{'group_0':{" NVFP4_WEIGHTS
                               "," NVFP4_INPUTS ",'targets':['Linear']}},"
                               "'ignore':['lm_head','re:.*mlp.gate$','re:model\\\\.layers\\\\.0']"),
                            NULL);
    assert_string_equal(quant_describe(q), "NVFP4 (compressed-tensors), group 16");
    assert_int_equal(quant_scheme_of(q, "lm_head"), QUANT_NONE);
    assert_int_equal(quant_scheme_of(q, "model.layers.1.mlp.gate"), QUANT_NONE);
    assert_int_equal(quant_scheme_of(q, "model.layers.1.mlp.gate_proj"), QUANT_NVFP4);
    /* re.match: anchored at the start, open at the end */
    assert_int_equal(quant_scheme_of(q, "model.layers.0.mlp.up_proj"), QUANT_NONE);
    assert_int_equal(quant_scheme_of(q, "x.model.layers.0.mlp.up_proj"), QUANT_NVFP4);
    quant_free(q);

    q = parse(CONFIG("'format':'nvfp4-pack-quantized','ignore':['lm_head']"),
              NULL); /* nothing but a format */
    assert_int_equal(quant_scheme_of(q, "a"), QUANT_NVFP4);
    assert_int_equal(quant_scheme_of(q, "lm_head"), QUANT_NONE);
    quant_free(q);
}

static void test_quant_mixed_groups(void **state)
{
    (void)state;
    struct quant *q =
        parse(CT("'format':'mixed-precision','config_groups':{"
                 "'all':{" FP8_WEIGHTS ",'targets':['Linear'],'format':'float-quantized'},"
                 "'mlp':{" NVFP4_WEIGHTS ",'targets':['re:.*experts.*'],'format':'nvfp4-pack-quantized'},"
                 "'one':{" FP8_WEIGHTS ",'targets':['m.experts.3.w1']}},'ignore':['lm_head']"),
              NULL);
    assert_string_equal(quant_describe(q), "MIXED_PRECISION (compressed-tensors), group 16");
    assert_int_equal(quant_scheme_of(q, "m.attn.q_proj"), QUANT_FP8);
    assert_int_equal(quant_scheme_of(q, "m.experts.2.w1"), QUANT_NVFP4);
    assert_int_equal(quant_scheme_of(q, "m.experts.3.w1"), QUANT_FP8);
    assert_int_equal(quant_scheme_of(q, "lm_head"), QUANT_NONE);
    quant_free(q);
}

static void test_quant_mixed_layers(void **state)
{
    (void)state;
    struct quant *q = parse(MODELOPT("'quant_algo':'MIXED_PRECISION','quantized_layers':{"
                                     "'m.0.q_proj':{'quant_algo':'FP8'},"
                                     "'m.0.mlp.experts':{'quant_algo':'W4A16_NVFP4','group_size':16},"
                                     "'m.0.mlp.experts.1.up_proj':{'quant_algo':'FP8'}},"
                                     "'ignore':['mtp*']"),
                            NULL);
    assert_int_equal(quant_scheme_of(q, "m.0.q_proj"), QUANT_FP8);
    assert_int_equal(quant_scheme_of(q, "m.0.mlp.experts.0.up_proj"), QUANT_NVFP4);
    assert_int_equal(quant_scheme_of(q, "m.0.mlp.experts.1.up_proj"), QUANT_FP8);
    assert_int_equal(quant_scheme_of(q, "m.0.mlp.experts2.up_proj"), QUANT_NONE);
    assert_int_equal(quant_scheme_of(q, "lm_head"), QUANT_NONE);
    quant_free(q);
}

static void test_quant_catastrophic_regex_ends(void **state)
{
    (void)state;
    struct quant *q = parse(CT("'format':'nvfp4-pack-quantized','ignore':['re:(a+)+$']"), NULL);
    assert_int_equal(quant_scheme_of(q, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!"), QUANT_NVFP4);
    quant_free(q);
}

int main(void)
{
    log_set_level(LOG_WARN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_glob_follows_fnmatch),
        cmocka_unit_test(test_glob_takes_no_exponential_time),
        cmocka_unit_test(test_quant_nothing_declared),
        cmocka_unit_test(test_quant_modelopt_flat_form),
        cmocka_unit_test(test_quant_modelopt_file),
        cmocka_unit_test(test_quant_two_forms_must_agree),
        cmocka_unit_test(test_quant_unsupported_algorithms_are_named),
        cmocka_unit_test(test_quant_malformed_declarations),
        cmocka_unit_test(test_quant_compressed_tensors),
        cmocka_unit_test(test_quant_mixed_groups),
        cmocka_unit_test(test_quant_mixed_layers),
        cmocka_unit_test(test_quant_catastrophic_regex_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
