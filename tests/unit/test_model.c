/* Models that are written on the spot: element types, biases, what is missing, memory, random weights. */
#include "model/model.h"

#include <math.h>

#include "base/log.h"
#include "fp4/fp4.h"
#include "unit/ckpt_files.h"

/* ---- one sequence -------------------------------------------------------------------------------- */

static void must(enum nyb_code code, const struct nyb_err *err)
{
    if (code != NYB_OK)
        fail_msg("%s: %s", err->where, err->message);
}

static struct model *open_model(const char *folder, enum compute compute, enum load_format format)
{
    struct nyb_err err;
    struct model *m;
    const struct model_options o = {.folder = folder,
                                    .load_format = format,
                                    .dummy_seed = 7,
                                    .compute = compute,
                                    .n_thread = 2,
                                    .kv_type = -1};
    must(model_open(&m, &o, &err), &err);
    return m;
}

/* Logits of all n <= 16 positions; caller frees. */
static float *run(struct model *m, const int32_t *tok, int n, enum nyb_code want)
{
    struct nyb_err err;
    int32_t row[KV_BLOCK], start[2] = {0, n}, table[1] = {0};
    assert_true(n <= KV_BLOCK);
    for (int i = 0; i < n; i++)
        row[i] = i;
    const struct batch b = {.n_seq = 1,
                            .n_tok = n,
                            .n_block_max = 1,
                            .n_out = n,
                            .tok = tok,
                            .pos = row,
                            .slot = row,
                            .seq_start = start,
                            .block_table = table,
                            .out_row = row};
    float *logits = mem_alloc((size_t)n * (size_t)model_config(m)->vocab, sizeof(float));
    must(model_kv_reserve(m, 1, &err), &err);
    assert_int_equal(model_kv_blocks(m), 1);
    assert_int_equal(model_forward(m, &b, logits, NULL, &err), want);
    return logits;
}

/* ---- a Llama of one layer, with every element type and every bias ---------------------------------- */

enum { VOCAB = 24, HIDDEN = 32, HEADS = 2, DIM = 16, INTER = 48, N_TOK = 9 };

static const char llama[] = "{\"model_type\":\"llama\",\"vocab_size\":24,\"hidden_size\":32,\"num_hidden_"
                            "layers\":1,\"num_attention_heads\":2,"
                            "\"num_key_value_heads\":1,\"intermediate_size\":48,\"max_position_embeddings\":"
                            "64,\"attention_bias\":true,"
                            "\"mlp_bias\":true}";

struct matrix {
    double v[64 * 64];
    int n, k;
};

/* A random tensor of that type; the values that were stored come back. */
static void put(struct writer *w, struct matrix *m, const char *name, enum dtype type, int n, int k,
                uint64_t *seed)
{
    uint8_t raw[64 * 64 * 4];
    size_t size = dtype_size(type);
    *m = (struct matrix){.n = n, .k = k};
    for (size_t i = 0; i < (size_t)n * (size_t)(k ? k : 1); i++) {
        float x = 0.4f * test_random_float(seed);
        uint16_t half = type == DTYPE_F16 ? f16_from_float(x) : bf16_from_float(x);
        uint8_t byte = fp4_e4m3_from_float(x / 0.01f);
        memcpy(raw + i * size,
               type == DTYPE_F32       ? (void *)&x
               : type == DTYPE_F8_E4M3 ? (void *)&byte
                                       : (void *)&half,
               size);
        m->v[i] = type == DTYPE_F32       ? (double)x
                  : type == DTYPE_F8_E4M3 ? (double)(fp4_e4m3_value[byte] * 0.01f)
                  : type == DTYPE_F16     ? (double)f16_to_float(half)
                                          : (double)bf16_to_float(half);
    }
    writer_add(w, name, type, k ? 2 : 1, (const int64_t[]){n, k}, raw);
}

struct tiny {
    struct matrix embed, head, q, k, v, o, gate, up, down, bias[7], norm[3];
};

static void write_tiny(struct tiny *t, const char *folder)
{
    struct writer w = {0};
    uint64_t seed = 1;
#define L "model.layers.0."
    put(&w, &t->embed, "model.embed_tokens.weight", DTYPE_F16, VOCAB, HIDDEN, &seed);
    put(&w, &t->head, "lm_head.weight", DTYPE_F32, VOCAB, HIDDEN, &seed);
    put(&w, &t->q, L "self_attn.q_proj.weight", DTYPE_BF16, HEADS * DIM, HIDDEN, &seed);
    put(&w, &t->k, L "self_attn.k_proj.weight", DTYPE_F16, DIM, HIDDEN, &seed);
    put(&w, &t->v, L "self_attn.v_proj.weight", DTYPE_F32, DIM, HIDDEN, &seed);
    put(&w, &t->o, L "self_attn.o_proj.weight", DTYPE_F8_E4M3, HIDDEN, HEADS * DIM, &seed);
    writer_add_f32(&w, L "self_attn.o_proj.weight_scale", 0.01f);
    put(&w, &t->gate, L "mlp.gate_proj.weight", DTYPE_BF16, INTER, HIDDEN, &seed);
    put(&w, &t->up, L "mlp.up_proj.weight", DTYPE_F32, INTER, HIDDEN, &seed); /* cannot be fused with gate */
    put(&w, &t->down, L "mlp.down_proj.weight", DTYPE_F16, HIDDEN, INTER, &seed);
    static const struct {
        const char *name;
        int n;
    } bias[7] = {{L "self_attn.q_proj.bias", HEADS * DIM}, {L "self_attn.k_proj.bias", DIM},
                 {L "self_attn.v_proj.bias", DIM},         {L "self_attn.o_proj.bias", HIDDEN},
                 {L "mlp.gate_proj.bias", INTER},          {L "mlp.up_proj.bias", INTER},
                 {L "mlp.down_proj.bias", HIDDEN}};
    for (int i = 0; i < 7; i++)
        put(&w, &t->bias[i], bias[i].name, i % 2 ? DTYPE_F32 : DTYPE_BF16, bias[i].n, 0, &seed);
    static const char *const norm[3] = {L "input_layernorm.weight", L "post_attention_layernorm.weight",
                                        "model.norm.weight"};
    for (int i = 0; i < 3; i++)
        put(&w, &t->norm[i], norm[i], DTYPE_BF16, HIDDEN, 0, &seed);
#undef L
    writer_finish(&w, folder, "model.safetensors");
    folder_write_text(folder, "config.json", llama);
}

/* The same arithmetic in double, one token at a time. */
static void times(double *y, const struct matrix *m, const double *x, const struct matrix *bias)
{
    for (int i = 0; i < m->n; i++) {
        y[i] = bias ? bias->v[i] : 0;
        for (int j = 0; j < m->k; j++)
            y[i] += m->v[i * m->k + j] * x[j];
    }
}

static void norm(double *y, const double *x, const struct matrix *weight)
{
    double sum = 0;
    for (int i = 0; i < HIDDEN; i++)
        sum += x[i] * x[i];
    for (int i = 0; i < HIDDEN; i++)
        y[i] = x[i] / sqrt(sum / HIDDEN + 1e-6) * weight->v[i];
}

static void rotate(double *x, int pos)
{
    for (int i = 0; i < DIM / 2; i++) {
        double angle = pos * pow(10000, -2.0 * i / DIM), a = x[i], b = x[i + DIM / 2];
        x[i] = a * cos(angle) - b * sin(angle);
        x[i + DIM / 2] = b * cos(angle) + a * sin(angle);
    }
}

static void attend(double *y, const double *q, double key[][DIM], double value[][DIM], int pos)
{
    double p[N_TOK], sum = 0;
    for (int j = 0; j <= pos; j++) {
        p[j] = 0;
        for (int i = 0; i < DIM; i++)
            p[j] += q[i] * key[j][i] / sqrt(DIM);
        sum += p[j] = exp(p[j]);
    }
    for (int i = 0; i < DIM; i++) {
        y[i] = 0;
        for (int j = 0; j <= pos; j++)
            y[i] += p[j] / sum * value[j][i];
    }
}

static void token(const struct tiny *t, int tok, int pos, double key[][DIM], double value[][DIM],
                  double *logits)
{
    double h[HIDDEN], x[HIDDEN], q[HEADS * DIM], a[HEADS * DIM], y[HIDDEN], gate[INTER], up[INTER];
    memcpy(h, t->embed.v + tok * HIDDEN, sizeof(h));
    norm(x, h, &t->norm[0]);
    times(q, &t->q, x, &t->bias[0]);
    times(key[pos], &t->k, x, &t->bias[1]);
    times(value[pos], &t->v, x, &t->bias[2]);
    rotate(key[pos], pos);
    for (int i = 0; i < HEADS; i++) {
        rotate(q + i * DIM, pos);
        attend(a + i * DIM, q + i * DIM, key, value, pos);
    }
    times(y, &t->o, a, &t->bias[3]);
    for (int i = 0; i < HIDDEN; i++)
        h[i] += y[i];
    norm(x, h, &t->norm[1]);
    times(gate, &t->gate, x, &t->bias[4]);
    times(up, &t->up, x, &t->bias[5]);
    for (int i = 0; i < INTER; i++)
        gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
    times(y, &t->down, gate, &t->bias[6]);
    for (int i = 0; i < HIDDEN; i++)
        h[i] += y[i];
    norm(x, h, &t->norm[2]);
    times(logits, &t->head, x, NULL);
}

static void test_model_types_and_biases(void **state)
{
    (void)state;
    static const int32_t tok[N_TOK] = {3, 1, 4, 1, 5, 9, 2, 23, 0};
    struct tiny *t = mem_alloc(1, sizeof(*t));
    char *folder = folder_make();
    write_tiny(t, folder);
    struct model *m = open_model(folder, COMPUTE_STRICT, LOAD_AUTO);
    float *got = run(m, tok, N_TOK, NYB_OK);
    double key[N_TOK][DIM], value[N_TOK][DIM], want[VOCAB];
    for (int i = 0; i < N_TOK; i++) {
        token(t, tok[i], i, key, value, want);
        for (int v = 0; v < VOCAB; v++)
            if (fabs((double)got[i * VOCAB + v] - want[v]) > 2e-6)
                fail_msg("position %d, id %d: %g, expected %g", i, v, (double)got[i * VOCAB + v], want[v]);
    }
    free(got);
    model_close(m);
    folder_drop(folder);
    free(t);
}

/* ---- bad steps and options ----------------------------------------------------------------------- */

static void test_model_refuses_bad_batches(void **state)
{
    (void)state;
    struct tiny *t = mem_alloc(1, sizeof(*t));
    char *folder = folder_make();
    write_tiny(t, folder);
    struct model *m = open_model(folder, COMPUTE_BF16, LOAD_AUTO);
    free(run(m, (const int32_t[]){3, VOCAB}, 2, NYB_E_RANGE));
    free(run(m, (const int32_t[]){-1}, 1, NYB_E_RANGE));
    struct nyb_err err;
    assert_int_equal(model_kv_reserve(m, 0, &err), NYB_E_RANGE);
    assert_int_equal(model_kv_reserve(m, -3, &err), NYB_E_RANGE);
    model_close(m);
    folder_drop(folder);
    free(t);
}

static enum nyb_code open_with_length(const char *folder, int64_t length, int64_t *got, struct nyb_err *err)
{
    struct model *m;
    const struct model_options o = {
        .folder = folder, .load_format = LOAD_DUMMY, .n_thread = 1, .kv_type = -1, .max_model_len = length};
    enum nyb_code code = model_open(&m, &o, err);
    *got = code == NYB_OK ? model_config(m)->max_position : 0;
    model_close(m);
    return code;
}

static void test_model_length_and_window(void **state)
{
    (void)state;
    char *folder = folder_make();
    struct nyb_err err;
    int64_t got;
    folder_write_text(
        folder, "config.json",
        "{\"model_type\":\"mixtral\",\"vocab_size\":24,\"hidden_size\":32,\"num_hidden_layers\":1,"
        "\"num_attention_heads\":2,\"intermediate_size\":48,\"max_position_embeddings\":64,"
        "\"num_local_experts\":4,\"num_experts_per_tok\":2,\"sliding_window\":40}");
    assert_int_equal(open_with_length(folder, 30, &got, &err), NYB_OK);
    assert_int_equal(got, 30);
    assert_int_equal(open_with_length(folder, 0, &got, &err), NYB_OK);
    assert_int_equal(got, 40); /* the window cannot bind */
    assert_int_equal(open_with_length(folder, 41, &got, &err), NYB_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "sliding_window"));
    assert_int_equal(open_with_length(folder, 65, &got, &err), NYB_E_RANGE);
    folder_drop(folder);
}

/* ---- what is missing ----------------------------------------------------------------------------- */

static void test_model_names_all_that_is_missing_at_once(void **state)
{
    (void)state;
    char *folder = folder_make(), text[1200];
    struct writer w = {0};
    struct nyb_err err;
    struct model *m;
    writer_add_2d(&w, "model.embed_tokens.weight", DTYPE_BF16, VOCAB, HIDDEN);
    writer_finish(&w, folder, "model.safetensors");
    folder_write_text(folder, "config.json", llama);
    const struct model_options o = {.folder = folder, .n_thread = 1, .kv_type = -1};
    assert_int_equal(model_open(&m, &o, &err), NYB_E_FORMAT);
    assert_null(m);
    err_format(&err, text, sizeof(text));
    assert_non_null(strstr(text, "model.layers.0.input_layernorm.weight"));
    assert_non_null(strstr(text, "18 parameters are missing"));
    assert_non_null(strstr(text, "lm_head"));
    folder_drop(folder);
}

/* ---- NVFP4 --------------------------------------------------------------------------------------- */

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

/* ---- random weights and memory ------------------------------------------------------------------- */

#define QUANT                                                                                           \
    "\"quantization_config\":{\"quant_method\":\"modelopt\",\"quant_algo\":\"NVFP4\",\"ignore\":[\"lm_" \
    "head\","                                                                                           \
    "\"*.mlp.gate\"],\"config_groups\":{\"group_0\":{\"weights\":{\"num_bits\":4,\"type\":\"float\","   \
    "\"group_size\":16},"                                                                               \
    "\"targets\":[\"Linear\"]}}}"

static const char *const shape[] = {
    "{\"model_type\":\"qwen3_moe\",\"vocab_size\":50,\"hidden_size\":64,\"num_hidden_layers\":3,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"intermediate_size\":96,\"max_position_"
    "embeddings\":64,"
    "\"num_experts\":8,\"num_experts_per_tok\":2,\"moe_intermediate_size\":48," QUANT "}",
    "{\"model_type\":\"ernie4_5_moe\",\"vocab_size\":50,\"hidden_size\":64,\"num_hidden_layers\":3,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"intermediate_size\":96,\"max_position_"
    "embeddings\":64,"
    "\"moe_num_experts\":8,\"moe_k\":2,\"moe_intermediate_size\":48,\"moe_num_shared_experts\":2,\"use_"
    "bias\":true," QUANT "}",
    "{\"model_type\":\"glm4_moe\",\"vocab_size\":50,\"hidden_size\":64,\"num_hidden_layers\":3,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"intermediate_size\":96,\"max_position_"
    "embeddings\":64,"
    "\"n_routed_experts\":8,\"num_experts_per_tok\":2,\"moe_intermediate_size\":48,\"attention_bias\":"
    "true," QUANT "}",
    "{\"model_type\":\"qwen3\",\"vocab_size\":50,\"hidden_size\":64,\"num_hidden_layers\":3,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"intermediate_size\":96,\"max_position_"
    "embeddings\":64,"
    "\"quantization_config\":{\"quant_method\":\"modelopt\",\"quant_algo\":\"FP8\"}}",
};

static void test_model_dummy_is_finite_and_the_same_each_time(void **state)
{
    (void)state;
    static const int32_t tok[] = {1, 2, 3, 49, 0};
    for (size_t i = 0; i < COUNT_OF(shape); i++)
        for (int compute = 0; compute < COMPUTE_COUNT; compute++) {
            char *folder = folder_make();
            folder_write_text(folder, "config.json", shape[i]);
            float *got[2];
            for (int n = 0; n < 2; n++) {
                struct model *m;
                struct nyb_err err;
                const struct model_options o = {.folder = folder,
                                                .load_format = LOAD_DUMMY,
                                                .dummy_seed = 3,
                                                .compute = (enum compute)compute,
                                                .n_thread = 1 + n,
                                                .kv_type = -1};
                must(model_open(&m, &o, &err), &err);
                got[n] = run(m, tok, 5, NYB_OK);
                model_close(m);
            }
            double spread = 0;
            for (int v = 0; v < 5 * 50; v++) {
                assert_true(isfinite(got[0][v]));
                spread += (double)got[0][v] * (double)got[0][v] / 250;
            }
            assert_true(spread > 0.01 && spread < 100);
            assert_memory_equal(got[0], got[1], 5 * 50 * sizeof(float));
            free(got[0]);
            free(got[1]);
            folder_drop(folder);
        }
}

static void test_model_refuses_what_does_not_fit(void **state)
{
    (void)state;
    char *folder = folder_make();
    struct nyb_err err;
    struct model *m;
    folder_write_text(folder, "config.json",
                      "{\"model_type\":\"llama\",\"vocab_size\":1000000,\"hidden_size\":65536,"
                      "\"num_hidden_layers\":200,\"num_attention_heads\":512,\"intermediate_size\":262144,"
                      "\"max_position_embeddings\":4096}");
    const struct model_options o = {
        .folder = folder, .load_format = LOAD_DUMMY, .n_thread = 1, .kv_type = -1};
    assert_int_equal(model_open(&m, &o, &err), NYB_E_MEMORY);
    assert_non_null(strstr(err.message, "GB of memory are needed"));
    assert_non_null(strstr(err.message, "GB are available"));
    folder_drop(folder);
}

static void test_model_kv_types_agree(void **state)
{
    (void)state;
    static const int32_t tok[] = {1, 2, 3, 49, 0};
    char *folder = folder_make();
    folder_write_text(folder, "config.json", shape[3]);
    float *got[3];
    for (int type = KV_F32; type <= KV_FP8; type++) {
        struct model *m;
        struct nyb_err err;
        const struct model_options o = {
            .folder = folder, .load_format = LOAD_DUMMY, .dummy_seed = 3, .n_thread = 2, .kv_type = type};
        must(model_open(&m, &o, &err), &err);
        got[type] = run(m, tok, 5, NYB_OK);
        model_close(m);
    }
    for (int type = KV_BF16; type <= KV_FP8; type++) {
        double d2 = 0, b2 = 0;
        for (int v = 0; v < 5 * 50; v++) {
            d2 += pow((double)got[type][v] - (double)got[0][v], 2);
            b2 += pow((double)got[0][v], 2);
        }
        assert_true(sqrt(d2 / b2) < (type == KV_BF16 ? 0.02 : 0.1));
    }
    for (int type = 0; type < 3; type++)
        free(got[type]);
    folder_drop(folder);
}

/* ---- long prompts -------------------------------------------------------------------------------- */

enum { LONG = 1100 };

/* Tokens [begin, end) of one sequence, logits of the last. */
static void run_part(struct model *m, int begin, int end, float *logits)
{
    struct nyb_err err;
    static int32_t tok[LONG], row[LONG], table[LONG / KV_BLOCK + 1];
    for (int i = begin; i < end; i++) {
        tok[i] = i * 7 % 50;
        row[i] = i;
    }
    for (int i = 0; i <= LONG / KV_BLOCK; i++)
        table[i] = i;
    const int32_t start[2] = {0, end - begin}, out[1] = {end - begin - 1};
    const struct batch b = {.n_seq = 1,
                            .n_tok = end - begin,
                            .n_block_max = LONG / KV_BLOCK + 1,
                            .n_out = 1,
                            .tok = tok + begin,
                            .pos = row + begin,
                            .slot = row + begin,
                            .seq_start = start,
                            .block_table = table,
                            .out_row = out};
    must(model_forward(m, &b, logits, NULL, &err), &err);
}

/* The experts take a prompt of this length in two pieces; attention has three splits. */
static void test_model_long_prompt_in_any_pieces(void **state)
{
    (void)state;
    char *folder = folder_make();
    struct nyb_err err;
    folder_write_text(
        folder, "config.json",
        "{\"model_type\":\"glm4_moe\",\"vocab_size\":50,\"hidden_size\":32,\"num_hidden_layers\":2,"
        "\"num_attention_heads\":4,\"num_key_value_heads\":1,\"head_dim\":32,\"intermediate_size\":64,"
        "\"max_position_embeddings\":2048,\"n_routed_experts\":9,\"num_experts_per_tok\":8,"
        "\"moe_intermediate_size\":2048,\"n_shared_experts\":1," QUANT "}");
    struct model *m = open_model(folder, COMPUTE_BF16, LOAD_DUMMY);
    float whole[50], parts[50];
    must(model_kv_reserve(m, LONG / KV_BLOCK + 1, &err), &err);
    run_part(m, 0, LONG, whole);
    must(model_kv_reserve(m, LONG / KV_BLOCK + 1, &err), &err);
    run_part(m, 0, 300, parts);
    run_part(m, 300, LONG - 1, parts);
    run_part(m, LONG - 1, LONG, parts);
    assert_memory_equal(whole, parts, sizeof(whole));
    model_close(m);
    folder_drop(folder);
}

int main(void)
{
    log_set_level(LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model_types_and_biases),
        cmocka_unit_test(test_model_refuses_bad_batches),
        cmocka_unit_test(test_model_length_and_window),
        cmocka_unit_test(test_model_names_all_that_is_missing_at_once),
        cmocka_unit_test(test_model_negative_and_nan_block_scales),
        cmocka_unit_test(test_model_w4a4_needs_input_scales),
        cmocka_unit_test(test_model_reports_progress_to_the_end),
        cmocka_unit_test(test_model_dummy_is_finite_and_the_same_each_time),
        cmocka_unit_test(test_model_refuses_what_does_not_fit),
        cmocka_unit_test(test_model_kv_types_agree),
        cmocka_unit_test(test_model_long_prompt_in_any_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
