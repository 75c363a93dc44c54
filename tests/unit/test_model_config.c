/* What config.json means to each architecture: every family, every spelling, every refusal. */
#include "model/arch.h"
#include "test.h"

#include "base/mem.h"

/* Parse a config written with ' for ". */
static enum nyb_code parse(struct model_config *c, const char *text, struct nyb_err *err)
{
    char *json = mem_strdup(text), path[] = "config.json";
    for (char *p = json; *p; p++)
        *p = *p == '\'' ? '"' : *p;
    struct hfconfig hf = {.path = path};
    enum nyb_code code = json_parse(&hf.root, json, strlen(json), "config.json", err);
    assert_int_equal(code, NYB_OK);
    hf.model_type = json_string_value(json_object_get(hf.root, "model_type"));
    code = model_config_parse(c, &hf, err);
    json_decref(hf.root);
    free(json);
    return code;
}

static void must(struct model_config *c, const char *text)
{
    struct nyb_err err;
    if (parse(c, text, &err) != NYB_OK)
        fail_msg("%s: %s", err.where, err.message);
}

static void must_fail(const char *text, enum nyb_code want, const char *mention)
{
    struct nyb_err err;
    struct model_config c;
    enum nyb_code code = parse(&c, text, &err);
    if (code != want || !strstr(err.message, mention))
        fail_msg("code %d (expected %d), message \"%s\" (expected %s)", code, want, code ? err.message : "",
                 mention);
    assert_null(c.layer_is_moe);
}

static void assert_layers(const struct model_config *c, const char *want)
{
    assert_int_equal(c->n_layer, strlen(want));
    for (int i = 0; i < c->n_layer; i++)
        assert_int_equal(c->layer_is_moe[i], want[i] == 'm');
}

#define SIZES                                                                                               \
    "'vocab_size':100,'hidden_size':64,'num_attention_heads':4,'intermediate_size':96,'num_hidden_layers':" \
    "6,"                                                                                                    \
    "'max_position_embeddings':512"
#define QWEN3_MOE \
    "'model_type':'qwen3_moe'," SIZES ",'num_experts':8,'num_experts_per_tok':2,'moe_intermediate_size':32"
#define GLM                          \
    "'model_type':'glm4_moe'," SIZES \
    ",'n_routed_experts':16,'num_experts_per_tok':4,'moe_intermediate_size':32"
#define ERNIE "'model_type':'ernie4_5_moe'," SIZES ",'moe_num_experts':8,'moe_k':3,'moe_intermediate_size':32"
#define LLAMA "'model_type':'llama'," SIZES

static void test_config_llama(void **state)
{
    (void)state;
    struct model_config c;
    must(&c, "{" LLAMA "}");
    assert_ptr_equal(c.arch, &arch_llama);
    assert_string_equal(c.model_type, "llama");
    assert_int_equal(c.n_kv_head, 4);
    assert_int_equal(c.head_dim, 16);
    assert_int_equal(c.rope.rotary_dim, 16);
    assert_int_equal(c.rope.style, ROPE_HALF);
    assert_true(c.rope.theta == 10000 && c.norm_eps == 1e-6f && c.attention_scale == 0.25f);
    assert_false(c.tied_head || c.qkv_bias || c.o_bias || c.mlp_bias || c.qk_norm);
    assert_int_equal(c.moe.n_expert, 0);
    assert_layers(&c, "dddddd");
    model_config_free(&c);

    must(&c, "{" LLAMA ",'attention_bias':true,'mlp_bias':true,'head_dim':32,'num_key_value_heads':2,"
             "'tie_word_embeddings':true,'architectures':['LlamaForCausalLM'],'rope_theta':5e5}");
    assert_true(c.qkv_bias && c.o_bias && c.mlp_bias && c.tied_head && c.rope.theta == 5e5);
    assert_int_equal(c.head_dim, 32);
    assert_int_equal(c.n_kv_head, 2);
    model_config_free(&c);
}

static void test_config_qwen3(void **state)
{
    (void)state;
    struct model_config c;
    must(&c, "{'model_type':'qwen3'," SIZES
             ",'attention_bias':true,'use_sliding_window':true,'sliding_window':128,"
             "'max_window_layers':4}");
    assert_true(c.qk_norm && c.qkv_bias && c.o_bias);
    assert_int_equal(c.sliding_window, 128);
    model_config_free(&c);
    must(&c, "{'model_type':'qwen3'," SIZES
             ",'use_sliding_window':true,'sliding_window':128,'max_window_layers':6}");
    assert_int_equal(c.sliding_window, 0);
    model_config_free(&c);
    must(&c, "{'model_type':'qwen3'," SIZES ",'use_sliding_window':false,'sliding_window':128}");
    assert_int_equal(c.sliding_window, 0);
    model_config_free(&c);
}

static void test_config_qwen3_moe(void **state)
{
    (void)state;
    struct model_config c;
    must(&c, "{" QWEN3_MOE "}");
    assert_layers(&c, "mmmmmm");
    assert_int_equal(c.moe.n_expert, 8);
    assert_int_equal(c.moe.top_k, 2);
    assert_int_equal(c.moe.intermediate, 32);
    assert_int_equal(c.moe.score, ROUTER_SOFTMAX);
    assert_false(c.moe.normalize || c.moe.softmax_topk || c.moe.has_correction_bias);
    assert_int_equal(c.moe.n_group, 1);
    assert_true(c.moe.scaling == 1 && c.qk_norm);
    model_config_free(&c);
    must(&c, "{" QWEN3_MOE ",'decoder_sparse_step':2,'mlp_only_layers':[3,77],'norm_topk_prob':true}");
    assert_layers(&c, "dmdddm");
    assert_true(c.moe.normalize);
    model_config_free(&c);
    must(&c, "{" QWEN3_MOE ",'mlp_only_layers':[0,1,2,3,4,5]}");
    assert_layers(&c, "dddddd");
    assert_int_equal(c.moe.n_expert, 0);
    model_config_free(&c);
}

static void test_config_mixtral(void **state)
{
    (void)state;
    struct model_config c;
    must(&c, "{'model_type':'mixtral'," SIZES
             ",'num_local_experts':8,'num_experts_per_tok':2,'sliding_window':64}");
    assert_layers(&c, "mmmmmm");
    assert_true(c.moe.softmax_topk && c.rope.theta == 1e6 && c.norm_eps == 1e-5f);
    assert_int_equal(c.moe.intermediate, 96);
    assert_int_equal(c.sliding_window, 64);
    assert_string_equal(c.arch->names.expert_up, "block_sparse_moe.experts.*.w3");
    model_config_free(&c);
}

static void test_config_glm4_moe(void **state)
{
    (void)state;
    struct model_config c;
    must(&c, "{" GLM "}");
    assert_layers(&c, "dmmmmm");
    assert_int_equal(c.rope.rotary_dim, 8);
    assert_int_equal(c.moe.shared_intermediate, 32);
    assert_int_equal(c.moe.score, ROUTER_SIGMOID);
    assert_true(c.moe.normalize && c.moe.norm_add && c.moe.has_correction_bias);
    assert_false(c.qkv_bias || c.qk_norm || c.tied_head);
    model_config_free(&c);
    must(&c, "{" GLM ",'first_k_dense_replace':3,'n_group':4,'topk_group':2,'routed_scaling_factor':2.5,"
             "'n_shared_experts':2,'attention_bias':true,'use_qk_norm':true,'norm_topk_prob':false,"
             "'partial_rotary_factor':1.0,'num_nextn_predict_layers':1}");
    assert_layers(&c, "dddmmm");
    assert_int_equal(c.moe.n_group, 4);
    assert_int_equal(c.moe.top_group, 2);
    assert_int_equal(c.moe.shared_intermediate, 64);
    assert_int_equal(c.rope.rotary_dim, 16);
    assert_true(c.moe.scaling == 2.5f && c.qkv_bias && c.qk_norm);
    assert_false(c.o_bias || c.moe.normalize);
    model_config_free(&c);
}

static void test_config_ernie4_5_moe(void **state)
{
    (void)state;
    struct model_config c;
    must(&c, "{" ERNIE "}");
    assert_layers(&c, "dmmmmm");
    assert_true(c.tied_head && c.moe.normalize && c.moe.has_correction_bias && c.rope.theta == 500000);
    assert_int_equal(c.rope.style, ROPE_INTERLEAVED);
    assert_int_equal(c.moe.shared_intermediate, 0);
    model_config_free(&c);
    must(&c, "{" ERNIE ",'moe_layer_start_index':0,'moe_layer_end_index':3,'moe_layer_interval':2,"
             "'moe_num_shared_experts':2,'use_bias':true,'moe_use_aux_free':false,'moe_norm_min':0.5}");
    assert_layers(&c, "dmdmdd");
    assert_int_equal(c.moe.shared_intermediate, 64);
    assert_true(c.qkv_bias && c.o_bias && c.mlp_bias && c.moe.norm_min == 0.5f);
    assert_false(c.moe.has_correction_bias);
    model_config_free(&c);
    /* as the multimodal configs spell it: text first */
    must(&c, "{'model_type':'ernie4_5_moe'," SIZES ",'moe_num_experts':[8,4],'moe_k':3,"
             "'moe_intermediate_size':[32,16],'moe_layer_start_index':[2,5],'moe_layer_end_index':[4,5]}");
    assert_layers(&c, "ddmmmd");
    assert_int_equal(c.moe.n_expert, 8);
    assert_int_equal(c.moe.intermediate, 32);
    model_config_free(&c);
}

/* ---- rotary embedding ---------------------------------------------------------------------------- */

static void test_config_rope_spellings(void **state)
{
    (void)state;
    static const char *const spelling[] = {
        "{" LLAMA ",'rope_theta':7e5,'rope_scaling':{'type':'llama3','factor':8,'low_freq_factor':1,"
        "'high_freq_factor':4,'original_max_position_embeddings':128}}",
        "{" LLAMA ",'rope_theta':7e5,'rope_scaling':{'rope_type':'llama3','factor':8.0,'low_freq_factor':1.0,"
        "'high_freq_factor':4.0,'original_max_position_embeddings':128}}",
        "{" LLAMA ",'rope_parameters':{'rope_theta':7e5,'rope_type':'llama3','factor':8,'low_freq_factor':1,"
        "'high_freq_factor':4,'original_max_position_embeddings':128}}",
    };
    for (size_t i = 0; i < COUNT_OF(spelling); i++) {
        struct model_config c;
        must(&c, spelling[i]);
        assert_int_equal(c.rope.scaling, ROPE_LLAMA3);
        assert_true(c.rope.theta == 7e5 && c.rope.factor == 8 && c.rope.low_freq_factor == 1 &&
                    c.rope.high_freq_factor == 4);
        assert_int_equal(c.rope.original_max_position, 128);
        assert_int_equal(c.max_position, 512);
        model_config_free(&c);
    }
    struct model_config c;
    must(&c, "{" LLAMA ",'rope_scaling':{'type':'linear','factor':2.5}}");
    assert_true(c.rope.scaling == ROPE_LINEAR && c.rope.factor == 2.5);
    model_config_free(&c);
    must(&c, "{" LLAMA ",'rope_scaling':null,'rope_parameters':{'rope_type':'default','rope_theta':123}}");
    assert_true(c.rope.scaling == ROPE_PLAIN && c.rope.theta == 123);
    model_config_free(&c);
    must(&c, "{" GLM ",'rope_parameters':{'rope_theta':1e6,'partial_rotary_factor':0.25}}");
    assert_int_equal(c.rope.rotary_dim, 4);
    model_config_free(&c);
}

static void test_config_rope_yarn(void **state)
{
    (void)state;
    struct model_config c;
    must(&c,
         "{" LLAMA ",'rope_scaling':{'rope_type':'yarn','factor':4,'original_max_position_embeddings':256}}");
    assert_int_equal(c.rope.scaling, ROPE_YARN);
    assert_true(c.rope.beta_fast == 32 && c.rope.beta_slow == 1 && c.rope.truncate &&
                c.rope.attention_factor == 0);
    assert_int_equal(c.max_position, 1024); /* 4 * 256, though the file says 512 */
    model_config_free(&c);
    must(&c, "{" LLAMA ",'rope_parameters':{'rope_type':'yarn','rope_theta':1e4,'beta_fast':16,'beta_slow':2,"
             "'original_max_position_embeddings':128,'mscale':1.0,'mscale_all_dim':0.5,'truncate':false,"
             "'attention_factor':1.5}}");
    assert_true(c.rope.factor == 4); /* 512 / 128 */
    assert_true(c.rope.beta_fast == 16 && c.rope.beta_slow == 2 && !c.rope.truncate);
    assert_true(c.rope.mscale == 1 && c.rope.mscale_all_dim == 0.5 && c.rope.attention_factor == 1.5);
    assert_int_equal(c.max_position, 512);
    model_config_free(&c);
}

/* ---- refusals ------------------------------------------------------------------------------------ */

static void test_config_unknown_architectures(void **state)
{
    (void)state;
    must_fail("{'model_type':'hal9000'," SIZES "}", NYB_E_UNSUPPORTED, "hal9000");
    must_fail("{'model_type':'hal9000'," SIZES "}", NYB_E_UNSUPPORTED,
              "qwen3_moe (Qwen3MoeForCausalLM), ernie4_5_moe (Ernie4_5_MoeForCausalLM), glm4_moe "
              "(Glm4MoeForCausalLM), mixtral (MixtralForCausalLM), qwen3 (Qwen3ForCausalLM), llama "
              "(LlamaForCausalLM)");
    must_fail("{" LLAMA ",'architectures':['LlamaForSequenceClassification']}", NYB_E_UNSUPPORTED,
              "LlamaForSequenceClassification");
}

static void test_config_refusals(void **state)
{
    (void)state;
    must_fail("{" LLAMA ",'hidden_act':'gelu'}", NYB_E_UNSUPPORTED, "hidden_act is 'gelu'");
    must_fail("{" LLAMA ",'num_key_value_heads':3}", NYB_E_FORMAT, "num_key_value_heads");
    must_fail("{" LLAMA ",'head_dim':0}", NYB_E_FORMAT, "head_dim");
    must_fail("{" LLAMA ",'head_dim':15}", NYB_E_UNSUPPORTED, "head_dim is 15");
    must_fail("{" LLAMA ",'head_dim':12}", NYB_E_UNSUPPORTED, "head_dim is 12, expected a multiple of 8");
    must_fail("{" LLAMA ",'head_dim':2048}", NYB_E_FORMAT, "1 to 1024");
    must_fail("{" GLM ",'head_dim':24,'partial_rotary_factor':0.3}", NYB_E_FORMAT, "7 of 24 dimensions");
    must_fail("{" LLAMA ",'rms_norm_eps':-1}", NYB_E_FORMAT, "rms_norm_eps");
    must_fail("{" LLAMA ",'partial_rotary_factor':0.5}", NYB_E_UNSUPPORTED,
              "partial_rotary_factor is 0.5, expected 1 for this architecture");
    must_fail("{" GLM ",'partial_rotary_factor':1.5}", NYB_E_UNSUPPORTED,
              "partial_rotary_factor is 1.5, expected at most 1");
    must_fail("{'model_type':'llama'}", NYB_E_FORMAT, "vocab_size");
    must_fail("{" LLAMA ",'rope_theta':0}", NYB_E_FORMAT, "rope_theta");
    must_fail("{" LLAMA ",'rope_scaling':{'type':'dynamic','factor':2}}", NYB_E_UNSUPPORTED, "dynamic");
    must_fail("{" LLAMA ",'rope_scaling':{'type':'linear'}}", NYB_E_FORMAT, "factor");
    must_fail("{" LLAMA ",'rope_scaling':{'type':'linear','factor':-2}}", NYB_E_FORMAT, "factor");
    must_fail("{" LLAMA ",'rope_scaling':{'type':'llama3','factor':2}}", NYB_E_FORMAT, "low_freq_factor");
    must_fail("{" LLAMA ",'rope_scaling':[1]}", NYB_E_FORMAT, "rope_scaling");
    must_fail("{" LLAMA ",'rope_parameters':{'full_attention':{'rope_type':'default'}}}", NYB_E_UNSUPPORTED,
              "full_attention");
    must_fail("{'model_type':'qwen3_moe'," SIZES ",'num_experts':8,'num_experts_per_tok':9,"
              "'moe_intermediate_size':32}",
              NYB_E_FORMAT, "9 experts");
    must_fail("{" GLM ",'n_group':3,'topk_group':2}", NYB_E_FORMAT, "n_group 3");
    must_fail("{" GLM ",'n_group':8,'topk_group':1}", NYB_E_FORMAT, "n_group 8");
    must_fail("{'model_type':'ernie4_5_moe'," SIZES ",'moe_k':3,'moe_intermediate_size':32}", NYB_E_FORMAT,
              "moe_num_experts");
}

/* A field that is there and wrong, one at a time: the message names it. Each would otherwise be what its
 * default is, or what lay in memory. */
static void test_config_names_the_field_that_is_wrong(void **state)
{
    static const struct {
        const char *text, *mention;
    } bad[] = {
        {"{" LLAMA ",'rms_norm_eps':'small'}", "rms_norm_eps"},
        {"{" LLAMA ",'rms_norm_eps':1.5}", "rms_norm_eps is 1.5, expected a number from 0 to 1"},
        {"{" LLAMA ",'tie_word_embeddings':1}", "tie_word_embeddings"},
        {"{" LLAMA ",'hidden_act':3}", "hidden_act"},
        {"{" LLAMA ",'num_key_value_heads':'4'}", "num_key_value_heads"},
        {"{" LLAMA ",'rope_theta':'1e4'}", "rope_theta"},
        {"{" LLAMA ",'partial_rotary_factor':'1'}", "partial_rotary_factor"},
        {"{" LLAMA ",'rope_parameters':{'rope_theta':-1}}", "rope_theta in rope_parameters is -1"},
        {"{" LLAMA ",'rope_parameters':{'rope_theta':'1e4'}}", "rope_theta"},
        {"{" LLAMA ",'rope_parameters':{'type':7}}", "type"},
        {"{" LLAMA ",'rope_parameters':{'rope_type':7}}", "rope_type"},
        {"{" GLM ",'rope_parameters':{'partial_rotary_factor':-0.5}}",
         "partial_rotary_factor in rope_parameters is -0.5, expected a positive number"},
        {"{" LLAMA ",'rope_scaling':{'type':'linear','factor':'2'}}", "factor"},
        {"{" LLAMA ",'rope_scaling':{'type':'llama3','factor':2,'low_freq_factor':1}}",
         "rope_scaling has no high_freq_factor, expected a number"},
        {"{" LLAMA ",'rope_scaling':{'type':'llama3','low_freq_factor':1,'high_freq_factor':4}}",
         "rope_scaling has no factor, expected a number"},
        {"{" LLAMA ",'rope_scaling':{'type':'llama3','factor':2,'low_freq_factor':4,'high_freq_factor':4}}",
         "high_freq_factor in rope_scaling is 4, expected more than low_freq_factor, which is 4"},
        {"{" LLAMA ",'rope_scaling':{'type':'llama3','factor':2,'low_freq_factor':1,'high_freq_factor':4}}",
         "has no original_max_position_embeddings"},
        {"{" LLAMA ",'rope_theta':1,'rope_scaling':{'type':'yarn'}}",
         "rope_theta is 1, yarn needs more than 1"},
        {"{" LLAMA ",'rope_scaling':{'type':'yarn','original_max_position_embeddings':0}}",
         "original_max_position_embeddings"},
        {"{" LLAMA ",'rope_scaling':{'type':'yarn','factor':0}}", "factor"},
        {"{" LLAMA ",'rope_scaling':{'type':'yarn','beta_fast':0}}", "beta_fast"},
        {"{" LLAMA ",'rope_scaling':{'type':'yarn','beta_slow':-1}}", "beta_slow"},
        {"{" LLAMA ",'rope_scaling':{'type':'yarn','attention_factor':-1}}",
         "attention_factor in rope_scaling is -1, expected a number of at least 0"},
        {"{" LLAMA ",'rope_scaling':{'type':'yarn','mscale':-1}}", "mscale"},
        {"{" LLAMA ",'rope_scaling':{'type':'yarn','mscale':'1'}}", "mscale"},
        {"{" LLAMA ",'rope_scaling':{'type':'yarn','mscale_all_dim':-1}}", "mscale_all_dim"},
        {"{" LLAMA ",'rope_scaling':{'type':'yarn','truncate':0}}", "truncate"},
        {"{'model_type':'qwen3_moe'," SIZES ",'num_experts':8,'num_experts_per_tok':2}",
         "moe_intermediate_size"},
        {"{'model_type':'llama','vocab_size':100,'hidden_size':64,'num_attention_heads':4,"
         "'intermediate_size':96,'num_hidden_layers':6}",
         "has no max_position_embeddings"},
        {"{" GLM ",'n_group':4,'topk_group':5}", "n_group 4, topk_group 5, 16 experts and 4 for each token"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        must_fail(bad[i].text, NYB_E_FORMAT, bad[i].mention);
}

/* What is just within a limit is a model like any other. */
static void test_config_takes_what_is_just_within_its_limits(void **state)
{
    static const char *const good[] = {
        "{" LLAMA ",'rms_norm_eps':0}",
        "{" LLAMA ",'rms_norm_eps':1}",
        "{" LLAMA ",'head_dim':1024}",
        "{" GLM ",'n_group':4,'topk_group':1}", /* 4 for each token, all of one group */
        "{" GLM ",'n_group':4,'topk_group':4}",
        "{'model_type':'glm4_moe'," SIZES ",'n_routed_experts':16,'num_experts_per_tok':8,"
        "'moe_intermediate_size':32,'n_group':4,'topk_group':2}",
        "{'model_type':'glm4_moe'," SIZES ",'n_routed_experts':16,'num_experts_per_tok':16,"
        "'moe_intermediate_size':32}",
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(good); i++) {
        struct model_config c;
        must(&c, good[i]);
        model_config_free(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config_llama),
        cmocka_unit_test(test_config_qwen3),
        cmocka_unit_test(test_config_qwen3_moe),
        cmocka_unit_test(test_config_mixtral),
        cmocka_unit_test(test_config_glm4_moe),
        cmocka_unit_test(test_config_ernie4_5_moe),
        cmocka_unit_test(test_config_rope_spellings),
        cmocka_unit_test(test_config_rope_yarn),
        cmocka_unit_test(test_config_unknown_architectures),
        cmocka_unit_test(test_config_refusals),
        cmocka_unit_test(test_config_names_the_field_that_is_wrong),
        cmocka_unit_test(test_config_takes_what_is_just_within_its_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
