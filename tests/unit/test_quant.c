#include "checkpoint/quant.h"

#include <math.h>

#include "base/log.h"
#include "checkpoint/glob.h"
#include "checkpoint/hfconfig.h"
#include "ckpt_files.h"

/* Single quotes for double ones keep configs readable here. */
static json_t *json_of(const char *text)
{
    char *copy = mem_strdup(text);
    json_t *root;
    struct nyb_err err;
    for (char *c = copy; *c; c++)
        if (*c == '\'')
            *c = '"';
    if (json_parse(&root, copy, strlen(copy), "test", &err) != NYB_OK)
        fail_msg("%s in %s", err.message, copy);
    free(copy);
    return root;
}

static struct quant *parse(const char *config, const char *folder)
{
    json_t *root = json_of(config);
    struct quant *q;
    struct nyb_err err = {0};
    if (quant_parse(&q, root, folder, &err) != NYB_OK)
        fail_msg("%s: %s", err.where, err.message);
    json_decref(root);
    return q;
}

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

#define CONFIG(body)   "{'quantization_config':{" body "}}"
#define MODELOPT(body) CONFIG("'quant_method':'modelopt'," body)
#define CT(body)       CONFIG("'quant_method':'compressed-tensors'," body)
#define NVFP4_WEIGHTS \
    "'weights':{'num_bits':4,'type':'float','group_size':16,'strategy':'tensor_group','dynamic':false}"
#define NVFP4_INPUTS "'input_activations':{'num_bits':4,'type':'float','group_size':16,'dynamic':'local'}"
#define FP8_WEIGHTS  "'weights':{'num_bits':8,'type':'float','strategy':'tensor'}"

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

/* ---- quant_linear ---- */

struct bench {
    char *folder;
    struct writer w;
    struct quant *q;
    struct ckpt *c;
    struct linear_source s;
};

static void bench_open(struct bench *b)
{
    struct nyb_err err = {0};
    b->folder = folder_make();
    writer_finish(&b->w, b->folder, "model.safetensors");
    b->q = parse(MODELOPT("'quant_algo':'NVFP4'"), NULL);
    if (ckpt_open(&b->c, b->folder, &err) != NYB_OK)
        fail_msg("%s: %s", err.where, err.message);
}

static void bench_close(struct bench *b)
{
    ckpt_close(b->c);
    quant_free(b->q);
    folder_drop(b->folder);
    *b = (struct bench){0};
}

/* Resolve module x of (n, k), which must work, and close. */
static struct linear_source bench_resolve(struct bench *b, int64_t n, int64_t k)
{
    struct nyb_err err = {0};
    struct linear_source s;
    bench_open(b);
    if (quant_linear(b->q, b->c, "x", n, k, &s, &err) != NYB_OK)
        fail_msg("%s: %s", err.where, err.message);
    for (int i = 0; i < b->c->n_tensor; i++)
        assert_true(b->c->tensor[i].used);
    bench_close(b);
    return s;
}

static void bench_refuse(struct bench *b, int64_t n, int64_t k, enum nyb_code code, const char *where,
                         const char *mentions)
{
    struct nyb_err err = {0};
    bench_open(b);
    assert_int_equal(quant_linear(b->q, b->c, "x", n, k, &b->s, &err), code);
    assert_string_equal(err.where, where);
    if (!strstr(err.message, mentions))
        fail_msg("'%s' does not mention '%s'", err.message, mentions);
    if (!strstr(err.message, b->folder))
        fail_msg("'%s' does not name the file", err.message);
    bench_close(b);
}

static void add_modelopt(struct bench *b, float global)
{
    writer_add_2d(&b->w, "x.weight", DTYPE_U8, 4, 16);
    writer_add_2d(&b->w, "x.weight_scale", DTYPE_F8_E4M3, 4, 2);
    writer_add_f32(&b->w, "x.weight_scale_2", global);
}

static void test_quant_linear_modelopt(void **state)
{
    (void)state;
    struct bench b = {0};
    add_modelopt(&b, 0.5F);
    writer_add_f32(&b.w, "x.input_scale", 0.25F);
    struct linear_source s = bench_resolve(&b, 4, 32);
    assert_int_equal(s.kind, LINEAR_NVFP4);
    assert_true(s.global_scale == 0.5F && s.input_scale == 0.25F && s.n == 4 && s.k == 32);

    add_modelopt(&b, 0); /* an all-zero tensor */
    s = bench_resolve(&b, 4, 32);
    assert_true(s.global_scale == 0 && s.input_scale == 0);
}

static void test_quant_linear_compressed_tensors(void **state)
{
    (void)state;
    struct bench b = {0};
    float global = 4, input = 8;
    writer_add_2d(&b.w, "x.weight_packed", DTYPE_U8, 4, 16);
    writer_add_2d(&b.w, "x.weight_scale", DTYPE_F8_E4M3, 4, 2);
    writer_add(&b.w, "x.weight_global_scale", DTYPE_F32, 1, (int64_t[]){1}, &global);
    writer_add(&b.w, "x.input_global_scale", DTYPE_F32, 1, (int64_t[]){1}, &input);
    struct linear_source s = bench_resolve(&b, 4, 32);
    assert_int_equal(s.kind, LINEAR_NVFP4);
    assert_true(s.global_scale == 0.25F && s.input_scale == 0.125F);
}

static void test_quant_linear_useless_input_scales(void **state)
{
    (void)state;
    static const float useless[] = {INFINITY, -INFINITY, NAN, 0, 1e-40F, -1};
    for (size_t i = 0; i < COUNT_OF(useless); i++) {
        struct bench b = {0};
        add_modelopt(&b, 1);
        writer_add_f32(&b.w, "x.input_scale", useless[i]);
        struct linear_source s = bench_resolve(&b, 4, 32);
        assert_true(s.input_scale == 0);
        writer_add_2d(&b.w, "x.weight_packed", DTYPE_U8, 4, 16);
        writer_add_2d(&b.w, "x.weight_scale", DTYPE_F8_E4M3, 4, 2);
        writer_add_f32(&b.w, "x.weight_global_scale", 1);
        writer_add_f32(&b.w, "x.input_global_scale", useless[i]);
        s = bench_resolve(&b, 4, 32);
        assert_true(s.input_scale == 0);
    }
}

static void test_quant_linear_plain_and_fp8(void **state)
{
    (void)state;
    static const struct {
        enum dtype dtype;
        enum linear_kind kind;
    } row[] = {{DTYPE_BF16, LINEAR_BF16}, {DTYPE_F16, LINEAR_F16}, {DTYPE_F32, LINEAR_F32}};
    struct bench b = {0};
    for (size_t i = 0; i < COUNT_OF(row); i++) {
        writer_add_2d(&b.w, "x.weight", row[i].dtype, 3, 5);
        struct linear_source s = bench_resolve(&b, 3, 5);
        assert_int_equal(s.kind, row[i].kind);
        assert_true(s.global_scale == 1 && !s.scale);
    }
    writer_add_2d(&b.w, "x.weight", DTYPE_F8_E4M3, 3, 5);
    writer_add_f32(&b.w, "x.weight_scale", 0.75F);
    writer_add_f32(&b.w, "x.input_scale", 2);
    struct linear_source s = bench_resolve(&b, 3, 5);
    assert_int_equal(s.kind, LINEAR_FP8);
    assert_true(s.global_scale == 0.75F && s.input_scale == 2);
}

static void test_quant_linear_missing_parts(void **state)
{
    (void)state;
    struct bench b = {0};
    writer_add_2d(&b.w, "y.weight", DTYPE_BF16, 4, 4);
    bench_refuse(&b, 4, 4, NYB_E_FORMAT, "x.weight", "missing");

    writer_add_2d(&b.w, "x.weight", DTYPE_U8, 4, 16);
    writer_add_f32(&b.w, "x.weight_scale_2", 1);
    bench_refuse(&b, 4, 32, NYB_E_FORMAT, "x.weight_scale", "missing");

    writer_add_2d(&b.w, "x.weight", DTYPE_U8, 4, 16);
    writer_add_2d(&b.w, "x.weight_scale", DTYPE_F8_E4M3, 4, 2);
    bench_refuse(&b, 4, 32, NYB_E_FORMAT, "x.weight_scale_2", "missing");

    writer_add_2d(&b.w, "x.weight_packed", DTYPE_U8, 4, 16);
    writer_add_2d(&b.w, "x.weight_scale", DTYPE_F8_E4M3, 4, 2);
    bench_refuse(&b, 4, 32, NYB_E_FORMAT, "x.weight_global_scale", "missing");

    writer_add_2d(&b.w, "x.weight", DTYPE_F8_E4M3, 4, 16);
    bench_refuse(&b, 4, 16, NYB_E_FORMAT, "x.weight_scale", "missing");

    writer_add_2d(&b.w, "x.qweight", DTYPE_I32, 4, 16);
    bench_refuse(&b, 4, 16, NYB_E_UNSUPPORTED, "x.weight", "'x.qweight', a form that is not supported");
}

static void test_quant_linear_wrong_shapes_and_types(void **state)
{
    (void)state;
    struct bench b = {0};
    writer_add_2d(&b.w, "x.weight", DTYPE_U8, 4, 16);
    writer_add_2d(&b.w, "x.weight_scale", DTYPE_F8_E4M3, 4, 1);
    writer_add_f32(&b.w, "x.weight_scale_2", 1);
    bench_refuse(&b, 4, 32, NYB_E_FORMAT, "x.weight_scale", "shape [4, 1], expected [4, 2]");

    writer_add_2d(&b.w, "x.weight", DTYPE_U8, 4, 16);
    writer_add_2d(&b.w, "x.weight_scale", DTYPE_U8, 4, 2);
    writer_add_f32(&b.w, "x.weight_scale_2", 1);
    bench_refuse(&b, 4, 32, NYB_E_FORMAT, "x.weight_scale", "dtype U8, expected F8_E4M3");

    add_modelopt(&b, 1);
    bench_refuse(&b, 4, 16, NYB_E_FORMAT, "x.weight", "shape [4, 16], expected [4, 8]");
    add_modelopt(&b, 1);
    bench_refuse(&b, 4, 24, NYB_E_UNSUPPORTED, "x.weight", "24");
    writer_add_2d(&b.w, "x.weight", DTYPE_BF16, 4, 16);
    bench_refuse(&b, 4, 17, NYB_E_FORMAT, "x.weight", "shape [4, 16], expected [4, 17]");
    writer_add_2d(&b.w, "x.weight", DTYPE_I32, 4, 16);
    bench_refuse(&b, 4, 16, NYB_E_UNSUPPORTED, "x.weight", "I32");
    writer_add_2d(&b.w, "x.weight_packed", DTYPE_BF16, 4, 16);
    bench_refuse(&b, 4, 32, NYB_E_FORMAT, "x.weight_packed", "dtype BF16, expected U8");
    writer_add_2d(&b.w, "x.weight_packed", DTYPE_U8, 4, 16);
    writer_add_2d(&b.w, "x.weight", DTYPE_U8, 4, 16);
    bench_refuse(&b, 4, 32, NYB_E_FORMAT, "x.weight", "weight_packed");
}

static void test_quant_linear_bad_global_scales(void **state)
{
    (void)state;
    static const float bad[] = {INFINITY, NAN, -1};
    struct bench b = {0};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        add_modelopt(&b, bad[i]);
        bench_refuse(&b, 4, 32, NYB_E_FORMAT, "x.weight_scale_2", "non-negative");
    }
    static const float bad_inverse[] = {INFINITY, NAN, -1, 0, 1e-40F};
    for (size_t i = 0; i < COUNT_OF(bad_inverse); i++) {
        writer_add_2d(&b.w, "x.weight_packed", DTYPE_U8, 4, 16);
        writer_add_2d(&b.w, "x.weight_scale", DTYPE_F8_E4M3, 4, 2);
        writer_add_f32(&b.w, "x.weight_global_scale", bad_inverse[i]);
        bench_refuse(&b, 4, 32, NYB_E_FORMAT, "x.weight_global_scale", "positive");
    }
    writer_add_2d(&b.w, "x.weight", DTYPE_U8, 4, 16);
    writer_add_2d(&b.w, "x.weight_scale", DTYPE_F8_E4M3, 4, 2);
    writer_add_2d(&b.w, "x.weight_scale_2", DTYPE_F32, 4, 1);
    bench_refuse(&b, 4, 32, NYB_E_FORMAT, "x.weight_scale_2", "[] or [1]");
}

static void test_quant_linear_refused_forms(void **state)
{
    (void)state;
    struct bench b = {0};
    add_modelopt(&b, 1);
    writer_add(&b.w, "x.pre_quant_scale", DTYPE_BF16, 1, (int64_t[]){32}, NULL);
    bench_refuse(&b, 4, 32, NYB_E_UNSUPPORTED, "x.pre_quant_scale", "NVFP4_AWQ");
    add_modelopt(&b, 1);
    writer_add_2d(&b.w, "x.svdquant_lora_a", DTYPE_BF16, 4, 32);
    bench_refuse(&b, 4, 32, NYB_E_UNSUPPORTED, "x.svdquant_lora_a", "NVFP4_SVD");
    writer_add_2d(&b.w, "x.weight", DTYPE_F8_E4M3, 4, 32);
    writer_add_2d(&b.w, "x.weight_scale", DTYPE_F32, 4, 1);
    bench_refuse(&b, 4, 32, NYB_E_UNSUPPORTED, "x.weight_scale", "a scale a channel");
    writer_add_2d(&b.w, "x.weight", DTYPE_F8_E4M3, 4, 32);
    writer_add_2d(&b.w, "x.weight_scale", DTYPE_F32, 1, 2);
    bench_refuse(&b, 4, 32, NYB_E_UNSUPPORTED, "x.weight_scale", "a scale a block");
    writer_add_2d(&b.w, "x.weight", DTYPE_F8_E4M3, 4, 32);
    writer_add_2d(&b.w, "x.weight_scale_inv", DTYPE_F32, 1, 1);
    bench_refuse(&b, 4, 32, NYB_E_UNSUPPORTED, "x.weight_scale_inv", "block-scaled FP8");
}

static void test_quant_linear_fused_experts_are_hinted(void **state)
{
    (void)state;
    struct bench b = {0};
    struct nyb_err err = {0};
    writer_add(&b.w, "m.experts.gate_up_proj", DTYPE_BF16, 3, (int64_t[]){2, 4, 8}, NULL);
    bench_open(&b);
    assert_int_equal(quant_linear(b.q, b.c, "m.experts.1.up_proj", 4, 4, &b.s, &err), NYB_E_UNSUPPORTED);
    assert_string_equal(err.where, "m.experts.1.up_proj.weight");
    assert_non_null(strstr(err.message, "m.experts.gate_up_proj"));
    bench_close(&b);
}

/* Every matrix of a published checkpoint resolves to what it is. */
static int resolve_folder(const char *folder)
{
    struct hfconfig config;
    struct quant *q;
    struct ckpt *c;
    struct nyb_err err = {0};
    int n = 0;

    assert_int_equal(hfconfig_open(&config, folder, &err), NYB_OK);
    assert_int_equal(quant_parse(&q, config.root, folder, &err), NYB_OK);
    assert_int_equal(ckpt_open(&c, folder, &err), NYB_OK);
    assert_null(ckpt_find(c, "logits"));
    for (int i = 0; i < c->n_tensor; i++) {
        const struct ckpt_tensor *t = &c->tensor[i];
        const char *end = strstr(t->name, ".weight");
        if (t->n_dim != 2 || !end || (strcmp(end, ".weight") && strcmp(end, ".weight_packed")))
            continue;
        char *module = mem_strndup(t->name, (size_t)(end - t->name));
        struct linear_source s;
        if (quant_linear(q, c, module, t->dim[0], t->dim[1] * (t->dtype == DTYPE_U8 ? 2 : 1), &s, &err) !=
            NYB_OK)
            fail_msg("%s: %s", err.where, err.message);
        assert_int_equal(s.kind == LINEAR_NVFP4, t->dtype == DTYPE_U8);
        if (s.kind == LINEAR_NVFP4)
            assert_true(s.global_scale > 0 && s.input_scale > 0);
        n++;
        free(module);
    }
    ckpt_close(c);
    quant_free(q);
    hfconfig_close(&config);
    return n;
}

static void test_quant_golden_checkpoints(void **state)
{
    (void)state;
    static const char *const name[] = {"ernie4_5_moe-modelopt",
                                       "glm4_moe-compressed-tensors-sharded",
                                       "glm4_moe-modelopt",
                                       "llama-dense-modelopt",
                                       "mixtral-modelopt",
                                       "qwen3-dense-modelopt",
                                       "qwen3_moe-compressed-tensors",
                                       "qwen3_moe-modelopt"};
    if (!file_is_dir(NYBBLE_SHARED_DIR "/golden")) {
        print_message("no golden checkpoints here\n");
        skip();
    }
    log_set_level(LOG_WARN);
    for (size_t i = 0; i < COUNT_OF(name); i++) {
        char *folder = mem_printf("%s/golden/%s", NYBBLE_SHARED_DIR, name[i]);
        assert_true(resolve_folder(folder) > 10);
        free(folder);
    }
    log_set_level(LOG_INFO);
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
        cmocka_unit_test(test_quant_linear_modelopt),
        cmocka_unit_test(test_quant_linear_compressed_tensors),
        cmocka_unit_test(test_quant_linear_useless_input_scales),
        cmocka_unit_test(test_quant_linear_plain_and_fp8),
        cmocka_unit_test(test_quant_linear_missing_parts),
        cmocka_unit_test(test_quant_linear_wrong_shapes_and_types),
        cmocka_unit_test(test_quant_linear_bad_global_scales),
        cmocka_unit_test(test_quant_linear_refused_forms),
        cmocka_unit_test(test_quant_linear_fused_experts_are_hinted),
        cmocka_unit_test(test_quant_golden_checkpoints),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
