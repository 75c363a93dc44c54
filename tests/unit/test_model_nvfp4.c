/* NVFP4 weights in odd but lawful forms, what W4A4 needs, and progress while loading. */
#include "unit/model_case.h"

static const char *const module[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                                     "self_attn.o_proj", "mlp.gate_proj",    "mlp.up_proj",
                                     "mlp.down_proj"};

struct nvfp4 {
    uint8_t scale_bit;  /* exclusive or on every block scale */
    uint8_t code_bits;  /* exclusive or on every code byte   */
    uint8_t zero_scale; /* over the first block, whose codes are zero */
    int no_input_scale; /* of this module, -1: all have one  */
};

static void put_bytes(struct writer *w, const char *name, enum dtype type, int n, int k, const uint8_t *data)
{
    writer_add(w, name, type, 2, (const int64_t[]){n, k}, data);
}

static void put_module(struct writer *w, size_t i, const struct nvfp4 *f, uint64_t *seed)
{
    uint8_t code[48 * 32], scale[48 * 4];
    char name[128];
    int n = i == 4 || i == 5 ? 48 : 32, k = i == 6 ? 48 : 32;
    for (int b = 0; b < n * k / 2; b++)
        code[b] = (uint8_t)(test_random(seed) ^ f->code_bits);
    for (int b = 0; b < n * k / 16; b++)
        scale[b] = (uint8_t)((0x20 + test_random(seed) % 16) ^ f->scale_bit);
    memset(code, 0, 8);
    scale[0] = f->zero_scale;
    snprintf(name, sizeof(name), "model.layers.0.%s.weight", module[i]);
    put_bytes(w, name, DTYPE_U8, n, k / 2, code);
    snprintf(name, sizeof(name), "model.layers.0.%s.weight_scale", module[i]);
    put_bytes(w, name, DTYPE_F8_E4M3, n, k / 16, scale);
    snprintf(name, sizeof(name), "model.layers.0.%s.weight_scale_2", module[i]);
    writer_add_f32(w, name, 0.5f);
    snprintf(name, sizeof(name), "model.layers.0.%s.input_scale", module[i]);
    writer_add_f32(w, name, (int)i == f->no_input_scale ? 0.0f : 0.01f);
}

static char *write_nvfp4(struct nvfp4 f)
{
    static const char *const norms[] = {"model.norm.weight", "model.layers.0.input_layernorm.weight",
                                        "model.layers.0.post_attention_layernorm.weight"};
    char *folder = folder_make();
    struct writer w = {0};
    uint64_t seed = 5;
    double one[32];
    struct matrix ignored;
    folder_write_text(
        folder, "config.json",
        "{\"model_type\":\"llama\",\"vocab_size\":24,\"hidden_size\":32,\"num_hidden_layers\":1,"
        "\"num_attention_heads\":2,\"intermediate_size\":48,\"max_position_embeddings\":64}");
    for (size_t i = 0; i < COUNT_OF(module); i++)
        put_module(&w, i, &f, &seed);
    put(&w, &ignored, "model.embed_tokens.weight", DTYPE_BF16, VOCAB, HIDDEN, &seed);
    put(&w, &ignored, "lm_head.weight", DTYPE_BF16, VOCAB, HIDDEN, &seed);
    for (size_t i = 0; i < COUNT_OF(one); i++)
        one[i] = 1;
    for (size_t i = 0; i < COUNT_OF(norms); i++)
        writer_add(&w, norms[i], DTYPE_F64, 1, (const int64_t[]){32}, one);
    writer_finish(&w, folder, "model.safetensors");
    return folder;
}

static float *run_nvfp4(struct nvfp4 f)
{
    char *folder = write_nvfp4(f);
    struct model *m = open_model(folder, COMPUTE_STRICT, LOAD_AUTO);
    float *logits = run(m, (const int32_t[]){1, 2, 3}, 3, NYB_OK);
    model_close(m);
    folder_drop(folder);
    return logits;
}

static void test_model_negative_and_nan_block_scales(void **state)
{
    (void)state;
    float *plain = run_nvfp4((struct nvfp4){.zero_scale = 0x38, .no_input_scale = -1});
    float *negative = run_nvfp4((struct nvfp4){0x80, 0x88, 0x38, -1});
    float *nan = run_nvfp4((struct nvfp4){.zero_scale = 0x7f, .no_input_scale = -1});
    assert_true(isfinite(plain[0]) && plain[0] != 0);
    assert_memory_equal(plain, negative, 3 * VOCAB * sizeof(float));
    assert_memory_equal(plain, nan, 3 * VOCAB * sizeof(float));
    free(plain);
    free(negative);
    free(nan);
}

static void test_model_w4a4_needs_input_scales(void **state)
{
    (void)state;
    char *folder = write_nvfp4((struct nvfp4){.zero_scale = 0x38, .no_input_scale = 5});
    struct nyb_err err;
    struct model *m;
    const struct model_options o = {.folder = folder, .n_thread = 1, .kv_type = -1, .compute = COMPUTE_W4A4};
    assert_int_equal(model_open(&m, &o, &err), NYB_E_UNSUPPORTED);
    assert_string_equal(err.where, "model.layers.0.mlp.up_proj");
    for (int compute = 0; compute < COMPUTE_W4A4; compute++) { /* nobody else cares */
        m = open_model(folder, (enum compute)compute, LOAD_AUTO);
        free(run(m, (const int32_t[]){1, 2}, 2, NYB_OK));
        model_close(m);
    }
    folder_drop(folder);
}

/* ---- progress ------------------------------------------------------------------------------------ */

struct seen {
    uint64_t done, total;
    int n;
};

static void see(void *arg, uint64_t done, uint64_t total)
{
    struct seen *s = arg;
    assert_true(done >= s->done && done <= total);
    *s = (struct seen){done, total, s->n + 1};
}

static void test_model_reports_progress_to_the_end(void **state)
{
    (void)state;
    char *folder = write_nvfp4((struct nvfp4){.zero_scale = 0x38, .no_input_scale = -1});
    struct nyb_err err;
    struct model *m;
    struct seen s = {0};
    const struct model_options o = {
        .folder = folder, .n_thread = 2, .kv_type = -1, .progress = see, .progress_arg = &s};
    must(model_open(&m, &o, &err), &err);
    assert_true(s.n >= 1 && s.total > 0 && s.done == s.total);
    assert_true(model_weight_bytes(m) > 0);
    model_close(m);
    folder_drop(folder);
}

int main(void)
{
    log_set_level(LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model_negative_and_nan_block_scales),
        cmocka_unit_test(test_model_w4a4_needs_input_scales),
        cmocka_unit_test(test_model_reports_progress_to_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
