/* Random weights: finite and the same each time, KV types, memory, long prompts in any pieces. */
#include "unit/model_case.h"

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
        cmocka_unit_test(test_model_dummy_is_finite_and_the_same_each_time),
        cmocka_unit_test(test_model_refuses_what_does_not_fit),
        cmocka_unit_test(test_model_kv_types_agree),
        cmocka_unit_test(test_model_long_prompt_in_any_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
