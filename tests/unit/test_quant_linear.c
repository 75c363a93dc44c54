/* What a module's tensors say: each form of a matrix, and forms that are refused by name. */
#include "quant_case.h"

#include <math.h>

#include "base/log.h"

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
    if (ckpt_open(&b->c, b->folder, 0, &err) != NYB_OK)
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
    assert_int_equal(ckpt_open(&c, folder, 0, &err), NYB_OK);
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
