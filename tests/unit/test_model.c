/* A Llama of one layer against the same arithmetic in double; bad steps and options; what is missing. */
#include "unit/model_case.h"

/* ---- a Llama of one layer, with every element type and every bias ---------------------------------- */

enum { HEADS = 2, DIM = 16, INTER = 48, N_TOK = 9 };

static const char llama[] = "{\"model_type\":\"llama\",\"vocab_size\":24,\"hidden_size\":32,\"num_hidden_"
                            "layers\":1,\"num_attention_heads\":2,"
                            "\"num_key_value_heads\":1,\"intermediate_size\":48,\"max_position_embeddings\":"
                            "64,\"attention_bias\":true,"
                            "\"mlp_bias\":true}";

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

int main(void)
{
    log_set_level(LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model_types_and_biases),
        cmocka_unit_test(test_model_refuses_bad_batches),
        cmocka_unit_test(test_model_length_and_window),
        cmocka_unit_test(test_model_names_all_that_is_missing_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
