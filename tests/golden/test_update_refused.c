/* Updates of weights that are refused, before anything is read or while it is: nothing changes. */
#include "golden/update_case.h"

struct refusal {
    const char *edits, *phase, *text; /* text: in the error or in a difference */
    int n_difference;                 /* -1: more than are shown */
    enum nyb_code code;
};

static void check_refusal(struct model *m, const char *from, const struct refusal *r,
                          enum update_staging staging)
{
    char *bad = twin(from, "bad", r->edits);
    const struct update_options o = {.folder = bad, .staging = staging};
    struct attempt a;
    uint64_t generation = model_weights_generation(m);
    enum nyb_code code = try_update(m, &o, &a);
    bool found = strstr(a.err.message, r->text) || strstr(a.err.where, r->text);
    for (int i = 0; i < a.facts.n_shown; i++)
        found = found || strstr(a.facts.difference[i], r->text);
    if (code != r->code || !found || strcmp(a.phase, r->phase))
        fail_msg("%s: code %d in %s: %s: %s", r->edits, code, a.phase, a.err.where, a.err.message);
    if (r->n_difference >= 0)
        assert_int_equal(a.facts.n_difference, r->n_difference);
    else
        assert_true(a.facts.n_difference > UPDATE_SHOWN && a.facts.n_shown == UPDATE_SHOWN);
    assert_int_equal(model_weights_generation(m), generation);
    assert_false(model_weights_inconsistent(m));
    free(bad);
}

#define Q "model.layers.0.self_attn.q_proj"
#define E "model.layers.1.mlp.experts.2.up_proj"

static void test_update_refuses(void **state)
{
    (void)state;
    static const struct refusal refusal[] = {
        {"--drop " Q ".weight", "prepare", Q ".weight: is missing", 1, NYB_E_ARG},
        {"--drop " E ".weight_scale", "prepare", E ".weight_scale: is missing", 1, NYB_E_ARG},
        {"--drop model.norm.weight", "prepare", "model.norm.weight: is missing", 1, NYB_E_ARG},
        {"--shape " E ".weight", "prepare", "expected [", 1, NYB_E_ARG},
        {"--shape " E ".weight_scale", "prepare", "expected [", 1, NYB_E_ARG},
        {"--shape model.norm.weight", "prepare", "model.norm.weight", 1, NYB_E_ARG},
        {"--add model.layers.1.mlp.surprise.weight", "prepare", "no such tensor", 1, NYB_E_ARG},
        {"--add lm_head.weight", "prepare", "lm_head.weight", 1, NYB_E_ARG},
        {"--dtype model.embed_tokens.weight", "prepare", "is f16, the served model has bf16", 1, NYB_E_ARG},
        {"--config rms_norm_eps 1e-5", "prepare", "norm_eps", 1, NYB_E_ARG},
        {"--config rope_theta 20000.0", "prepare", "rope.theta", 1, NYB_E_ARG},
        {"--config num_experts_per_tok 2", "prepare", "moe.top_k is 2", 1, NYB_E_ARG},
        {"--config eos_token_id 3", "prepare", "eos_token_id", 1, NYB_E_ARG},
        {"--config hidden_size 768", "prepare", "hidden is 768", 1, NYB_E_ARG},
        {"--config num_hidden_layers 5", "prepare", "n_layer is 5", 1, NYB_E_ARG},
        {"--config model_type '\"mixtral\"'", "prepare", "architectures", 0, NYB_E_UNSUPPORTED},
        {"--drop 'model.layers.4.*'", "prepare", "model.layers.4.input_layernorm.weight: is missing", -1,
         NYB_E_ARG},
        {"--only 'model.layers.[0-4].*'", "prepare", "config.json", 0, NYB_E_NOT_FOUND},
        {"--truncate 1", "prepare", "truncated", 0, NYB_E_FORMAT},
        {"--truncate 5000000", "prepare", "truncated", 0, NYB_E_FORMAT},
    };
    NEED(TALES);
    struct model *m = golden_model(TALES, COMPUTE_BF16, 2);
    for (size_t i = 0; i < COUNT_OF(refusal); i++)
        check_refusal(m, TALES, &refusal[i], i % 2 ? UPDATE_STAGING_ON : UPDATE_STAGING_OFF);
    assert_is_folder(m, TALES);
    model_close(m);
}

/* Not to be seen in a header: found while reading. */
static void test_update_refuses_nan_scales(void **state)
{
    (void)state;
    static const struct refusal staged = {"--perturb 51 --nan " E ".weight_scale", "stage", "is NaN", 0,
                                          NYB_E_FORMAT},
                                in_place = {"--perturb 51 --nan " E ".weight_scale", "commit", "is NaN", 0,
                                            NYB_E_FORMAT};
    NEED(TALES);
    struct model *m = golden_model(TALES, COMPUTE_BF16, 2);
    check_refusal(m, TALES, &staged, UPDATE_STAGING_ON);
    assert_is_folder(m, TALES);
    check_refusal(m, TALES, &in_place, UPDATE_STAGING_OFF);
    assert_is_folder(m, TALES);
    model_close(m);
}

static void test_update_refuses_names(void **state)
{
    (void)state;
    static const struct {
        const char *glob, *text;
    } row[] = {
        {"*.no_such_thing", "matches no tensor"},
        {Q ".weight", "go together"},
        {E ".weight_scale", "go together"},
    };
    NEED(TALES);
    struct model *m = golden_model(TALES, COMPUTE_BF16, 2);
    for (size_t i = 0; i < COUNT_OF(row); i++) {
        const struct update_options o = {.folder = TALES, .names = &row[i].glob, .n_names = 1};
        struct attempt a;
        assert_int_equal(try_update(m, &o, &a), NYB_E_ARG);
        assert_non_null(strstr(a.facts.difference[0], row[i].text));
    }
    model_close(m);
}

static void test_update_one_at_a_time(void **state)
{
    (void)state;
    NEED(TALES);
    struct model *m = golden_model(TALES, COMPUTE_BF16, 2);
    const struct update_options o = {.folder = TALES};
    struct update_facts facts, other;
    struct update *u, *v;
    struct nyb_err err;
    golden_must(update_prepare(&u, m, &o, &facts, &err), &err);
    assert_int_equal(update_prepare(&v, m, &o, &other, &err), NYB_E_BUSY);
    assert_null(v);
    update_close(u);
    golden_must(update_prepare(&v, m, &o, &other, &err), &err);
    update_close(v);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_update_refuses),
        cmocka_unit_test(test_update_refuses_nan_scales),
        cmocka_unit_test(test_update_refuses_names),
        cmocka_unit_test(test_update_one_at_a_time),
    };
    return cmocka_run_group_tests(tests, make_workshop, drop_workshop);
}
