/* Ranges and defaults of the sampling parameters. */
#include "test.h"

#include <math.h>

#include "engine/params.h"

static const int32_t eos_ids[] = {0, 7};

static struct params_context context(void)
{
    struct params_context c;
    params_context_init(&c);
    c.vocab = 100;
    c.max_len = 64;
    c.eos = eos_ids;
    c.n_eos = 2;
    return c;
}

struct fixture {
    struct arena arena;
    struct params_context c;
    struct nyb_sampling s;
    struct params p;
    struct nyb_err err;
};

static void begin(struct fixture *f)
{
    memset(f, 0, sizeof(*f));
    arena_init(&f->arena, 4096);
    f->c = context();
    nyb_sampling_init(&f->s);
}

static enum nyb_code resolve(struct fixture *f, size_t n_prompt)
{
    return params_resolve(&f->p, &f->arena, &f->s, &f->c, n_prompt, &f->err);
}

static void test_params_unset_takes_the_checkpoint_s_defaults(void **state)
{
    (void)state;
    struct fixture f;
    begin(&f);
    assert_int_equal(resolve(&f, 10), NYB_OK);
    assert_true(f.p.temperature == 1 && f.p.top_p == 1 && f.p.top_k == 0 && f.p.repetition == 1);
    assert_int_equal(f.p.max_tokens, 54);
    assert_int_equal(f.p.n_logprob, -1);
    assert_false(f.p.has_seed);
    f.c.temperature = 0.6;
    f.c.top_p = 0.95;
    f.c.top_k = 20;
    f.c.repetition_penalty = 1.05;
    assert_int_equal(resolve(&f, 10), NYB_OK);
    assert_true(f.p.temperature == 0.6f && f.p.top_p == 0.95f && f.p.top_k == 20 && f.p.repetition == 1.05f);
    f.s.top_k = -1; /* said to be off, which is not unset */
    f.s.temperature = 0;
    assert_int_equal(resolve(&f, 10), NYB_OK);
    assert_true(f.p.top_k == 0 && f.p.temperature == 0);
    assert_int_equal(params_resolve(&f.p, &f.arena, NULL, &f.c, 10, &f.err), NYB_OK);
    assert_int_equal(f.p.top_k, 20);
    arena_free(&f.arena);
}

static void test_params_small_temperatures(void **state)
{
    (void)state;
    struct fixture f;
    begin(&f);
    f.s.temperature = 9e-6;
    assert_int_equal(resolve(&f, 1), NYB_OK);
    assert_true(f.p.temperature == 0);
    f.s.temperature = 0.005;
    assert_int_equal(resolve(&f, 1), NYB_OK);
    assert_true(f.p.temperature == 0.01f);
    arena_free(&f.arena);
}

static void test_params_the_message_names_parameter_value_and_range(void **state)
{
    (void)state;
    struct fixture f;
    begin(&f);
    f.s.top_p = 1.5;
    assert_int_equal(resolve(&f, 1), NYB_E_RANGE);
    assert_string_equal(f.err.message, "top_p must be in (0, 1], got 1.5. (parameter=top_p, value=1.5)");
    assert_string_equal(f.err.where, "top_p");
    arena_free(&f.arena);
}

static void test_params_every_range(void **state)
{
    (void)state;
    enum { TEMPERATURE, TOP_P, MIN_P, REPETITION, PRESENCE, FREQUENCY };
    const struct {
        int field;
        double value;
        bool fine;
    } row[] = {
        {TEMPERATURE, 0, true},
        {TEMPERATURE, 2, true},
        {TEMPERATURE, 2.01, false},
        {TEMPERATURE, -0.1, false},
        {TEMPERATURE, INFINITY, false},
        {TOP_P, 0, false},
        {TOP_P, 1e-6, true},
        {TOP_P, 1, true},
        {TOP_P, 1.001, false},
        {MIN_P, 0, true},
        {MIN_P, 1, true},
        {MIN_P, -0.01, false},
        {MIN_P, 1.01, false},
        {REPETITION, 0, false},
        {REPETITION, 0.1, true},
        {REPETITION, INFINITY, false},
        {PRESENCE, -2, true},
        {PRESENCE, 2.5, false},
        {FREQUENCY, 2, true},
        {FREQUENCY, -2.5, false},
    };
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        struct fixture f;
        begin(&f);
        double *field[] = {
            &f.s.temperature,      &f.s.top_p, &f.s.min_p, &f.s.repetition_penalty, &f.s.presence_penalty,
            &f.s.frequency_penalty};
        *field[row[i].field] = row[i].value;
        assert_int_equal(resolve(&f, 1), row[i].fine ? NYB_OK : NYB_E_RANGE);
        arena_free(&f.arena);
    }
}

static void test_params_integers(void **state)
{
    (void)state;
    struct fixture f;
    begin(&f);
    const struct {
        int *field;
        int value;
        const char *name; /* NULL: fine */
    } row[] = {
        {&f.s.top_k, -2, "top_k"},
        {&f.s.top_k, 1, NULL},
        {&f.s.max_tokens, 0, "max_tokens"},
        {&f.s.max_tokens, 1000000, NULL},
        {&f.s.min_tokens, -1, "min_tokens"},
        {&f.s.min_tokens, 1000001, "min_tokens"},
        {&f.s.logprobs, 21, "logprobs"},
        {&f.s.logprobs, -5, "logprobs"},
        {&f.s.logprobs, 0, NULL},
        {&f.s.prompt_logprobs, 21, "prompt_logprobs"},
        {&f.s.prompt_logprobs, 20, NULL},
    };
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        int before = *row[i].field;
        *row[i].field = row[i].value;
        assert_int_equal(resolve(&f, 4), row[i].name ? NYB_E_RANGE : NYB_OK);
        if (row[i].name) {
            assert_string_equal(f.err.where, row[i].name);
            *row[i].field = before;
        }
    }
    assert_int_equal(f.p.max_tokens, 60); /* cut to what the context leaves */
    f.s.seed = -2;
    assert_int_equal(resolve(&f, 4), NYB_E_RANGE);
    f.s.seed = 0;
    assert_int_equal(resolve(&f, 4), NYB_OK);
    assert_true(f.p.has_seed);
    arena_free(&f.arena);
}

static void test_params_min_tokens_above_max_tokens(void **state)
{
    (void)state;
    struct fixture f;
    begin(&f);
    f.s.max_tokens = 5;
    f.s.min_tokens = 6;
    assert_int_equal(resolve(&f, 1), NYB_E_RANGE);
    assert_string_equal(f.err.message,
                        "min_tokens must be at most max_tokens (5), got 6. (parameter=min_tokens, value=6)");
    arena_free(&f.arena);
}

static void test_params_prompt_length(void **state)
{
    (void)state;
    struct fixture f;
    begin(&f);
    assert_int_equal(resolve(&f, 0), NYB_E_ARG);
    assert_int_equal(resolve(&f, 63), NYB_OK);
    assert_int_equal(f.p.max_tokens, 1);
    assert_int_equal(resolve(&f, 64), NYB_E_TOO_LONG);
    assert_non_null(strstr(f.err.message, "maximum context length is 64 tokens"));
    assert_non_null(strstr(f.err.message, "64 tokens: the prompt is too long"));
    arena_free(&f.arena);
}

static void test_params_lists(void **state)
{
    (void)state;
    struct fixture f;
    begin(&f);
    const char *stop[PARAMS_STOP_MAX + 1];
    for (size_t i = 0; i < sizeof(stop) / sizeof(*stop); i++)
        stop[i] = "a";
    stop[PARAMS_STOP_MAX - 1] = "d";
    const char *empty[] = {""};
    const int32_t ids[] = {5, 100};
    const struct nyb_logit_bias bias[] = {{3, 250}, {4, -1e9}, {5, NAN}, {-1, 0}};
    f.s.stop = stop;
    f.s.n_stop = PARAMS_STOP_MAX + 1;
    assert_int_equal(resolve(&f, 1), NYB_E_RANGE);
    f.s.n_stop = PARAMS_STOP_MAX;
    assert_int_equal(resolve(&f, 1), NYB_OK);
    assert_string_equal(f.p.stop[PARAMS_STOP_MAX - 1], "d");
    f.s.stop = empty;
    f.s.n_stop = 1;
    assert_int_equal(resolve(&f, 1), NYB_E_RANGE);
    f.s.n_stop = 0;
    f.s.bad_words = empty;
    f.s.n_bad_words = 1;
    assert_int_equal(resolve(&f, 1), NYB_E_RANGE);
    f.s.n_bad_words = 0;
    f.s.stop_token = ids;
    f.s.n_stop_token = 2;
    assert_int_equal(resolve(&f, 1), NYB_E_RANGE);
    f.s.n_stop_token = 1;
    f.s.logit_bias = bias;
    f.s.n_logit_bias = 2;
    assert_int_equal(resolve(&f, 1), NYB_OK);
    assert_true(f.p.bias[0].bias == 100 && f.p.bias[1].bias == -100);
    assert_true(params_is_stop_token(&f.p, 5) && !params_is_stop_token(&f.p, 6));
    assert_true(params_is_eos(&f.p, 7) && !params_is_eos(&f.p, 5));
    f.s.ignore_eos = true;
    f.s.n_logit_bias = 3;
    assert_int_equal(resolve(&f, 1), NYB_E_RANGE);
    f.s.logit_bias = bias + 3;
    f.s.n_logit_bias = 1;
    assert_int_equal(resolve(&f, 1), NYB_E_RANGE);
    f.s.n_logit_bias = 0;
    assert_int_equal(resolve(&f, 1), NYB_OK);
    assert_false(params_is_eos(&f.p, 7));
    arena_free(&f.arena);
}

static void test_params_lists_have_a_length(void **state)
{
    (void)state;
    static const int32_t ids[PARAMS_STOP_TOKEN_MAX + 1];
    static const struct nyb_logit_bias bias[PARAMS_LOGIT_BIAS_MAX + 1];
    static const char *words[PARAMS_BAD_WORDS_MAX + 1];
    static struct nyb_run runs[PARAMS_BAD_RUN_MAX + 1];
    struct fixture f;
    begin(&f);
    for (int i = 0; i <= PARAMS_BAD_WORDS_MAX; i++)
        words[i] = "w";
    for (int i = 0; i <= PARAMS_BAD_RUN_MAX; i++)
        runs[i] = (struct nyb_run){ids, 1};
    f.s.stop = f.s.bad_words = words;
    f.s.stop_token = ids;
    f.s.logit_bias = bias;
    f.s.bad_run = runs;
    const struct {
        const char *name;
        int *n, most;
    } row[] = {
        {"stop", &f.s.n_stop, PARAMS_STOP_MAX},
        {"stop_token_ids", &f.s.n_stop_token, PARAMS_STOP_TOKEN_MAX},
        {"logit_bias", &f.s.n_logit_bias, PARAMS_LOGIT_BIAS_MAX},
        {"bad_words", &f.s.n_bad_words, PARAMS_BAD_WORDS_MAX},
        {"bad_words_token_ids", &f.s.n_bad_run, PARAMS_BAD_RUN_MAX},
    };
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        const int n[] = {-1, row[i].most + 1, row[i].most};
        char said[64];
        for (int k = 0; k < 3; k++) {
            *row[i].n = n[k];
            assert_int_equal(resolve(&f, 1), k < 2 ? NYB_E_RANGE : NYB_OK);
            if (k == 2)
                break;
            assert_string_equal(f.err.where, row[i].name);
            snprintf(said, sizeof(said), "must be at most %d ", row[i].most);
            assert_non_null(strstr(f.err.message, said));
        }
        *row[i].n = 0;
    }
    arena_free(&f.arena);
}

/* Wherever ids are given, they are of the vocabulary, and a run of them has a length. */
static void test_params_ids_are_of_the_vocabulary(void **state)
{
    (void)state;
    static const int32_t many[PARAMS_RUN_TOKEN_MAX + 1];
    const int32_t fine[] = {99, 0, 5}, high[] = {0, 100}, low[] = {0, -1};
    const struct {
        const int32_t *token;
        int n;
        bool run_fine, list_fine;
    } row[] = {
        {fine, 3, true, true},
        {high, 2, false, false},
        {low, 2, false, false},
        {fine, 0, false, false},
        {many, PARAMS_RUN_TOKEN_MAX, true, true},
        {many, PARAMS_RUN_TOKEN_MAX + 1, false, true},
    };
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        const struct nyb_run run = {row[i].token, row[i].n};
        struct fixture f;
        begin(&f);
        f.s.bad_run = &run;
        f.s.n_bad_run = 1;
        assert_int_equal(resolve(&f, 1), row[i].run_fine ? NYB_OK : NYB_E_RANGE);
        assert_true(row[i].run_fine || !strcmp(f.err.where, "bad_words_token_ids"));
        f.s.n_bad_run = 0;
        f.s.allowed_token = row[i].token;
        f.s.n_allowed_token = row[i].n;
        assert_int_equal(resolve(&f, 1), row[i].list_fine ? NYB_OK : NYB_E_RANGE);
        assert_true(row[i].list_fine || !strcmp(f.err.where, "allowed_token_ids"));
        for (int k = 1; row[i].list_fine && k < f.p.n_allowed; k++)
            assert_true(f.p.allowed[k - 1] <= f.p.allowed[k]);
        f.s.allowed_token = NULL;
        f.s.think_max = 1;
        f.s.think_close = row[i].token;
        f.s.n_think_close = row[i].n;
        assert_int_equal(resolve(&f, 1), row[i].run_fine ? NYB_OK : NYB_E_RANGE);
        f.s.think_open = row[i].token;
        f.s.n_think_open = row[i].n;
        f.s.think_close = fine;
        f.s.n_think_close = 3; /* a beginning may be left out, an end may not */
        assert_int_equal(resolve(&f, 1), row[i].run_fine || row[i].n == 0 ? NYB_OK : NYB_E_RANGE);
        assert_true(f.p.think_max == 1);
        f.s.think_max = 0;
        assert_int_equal(resolve(&f, 1), NYB_E_RANGE);
        assert_string_equal(f.err.where, "reasoning_max_tokens");
        arena_free(&f.arena);
    }
}

/* As many candidates as there are tokens, where more are asked for and allowed. */
static void test_params_logprobs_beyond_the_vocabulary(void **state)
{
    (void)state;
    struct fixture f;
    begin(&f);
    f.c.max_logprobs = 1000;
    f.s.logprobs = 101;
    f.s.prompt_logprobs = 1000;
    assert_int_equal(resolve(&f, 1), NYB_OK);
    assert_true(f.p.n_logprob == 100 && f.p.n_prompt_logprob == 100);
    arena_free(&f.arena);
}

/* A server's own defaults lie between the checkpoint's and a request's. */
static void test_params_defaults_of_a_server(void **state)
{
    (void)state;
    struct fixture f;
    struct nyb_sampling own;
    begin(&f);
    f.c.temperature = 0.6;
    f.c.top_k = 20;
    nyb_sampling_init(&own);
    assert_int_equal(params_context_set(&f.c, &own, &f.err), NYB_OK);
    assert_true(f.c.temperature == 0.6 && f.c.top_k == 20 && f.c.max_tokens == NYB_UNSET);
    own.temperature = 0.25;
    own.top_p = 0.75;
    own.min_p = 0.125;
    own.repetition_penalty = 1.5;
    own.presence_penalty = 1.25;
    own.frequency_penalty = -0.5;
    own.top_k = -1;
    own.max_tokens = 12;
    assert_int_equal(params_context_set(&f.c, &own, &f.err), NYB_OK);
    assert_int_equal(resolve(&f, 10), NYB_OK);
    assert_true(f.p.temperature == 0.25f && f.p.top_p == 0.75f && f.p.min_p == 0.125f &&
                f.p.repetition == 1.5f);
    assert_true(f.p.presence == 1.25f && f.p.frequency == -0.5f && f.p.top_k == 0 && f.p.max_tokens == 12);
    f.s.min_tokens = 13; /* of the answer that the defaults cut */
    assert_int_equal(resolve(&f, 10), NYB_E_RANGE);
    f.s.max_tokens = 14;
    f.s.temperature = 1;
    f.s.presence_penalty = 0;
    f.s.top_k = 7;
    assert_int_equal(resolve(&f, 10), NYB_OK);
    assert_true(f.p.temperature == 1 && f.p.presence == 0 && f.p.top_k == 7 && f.p.max_tokens == 14);
    assert_true(f.p.frequency == -0.5f);
    const struct params_context before = f.c;
    own.temperature = 3;
    assert_int_equal(params_context_set(&f.c, &own, &f.err), NYB_E_RANGE);
    assert_string_equal(f.err.where, "temperature");
    own.temperature = NAN;
    own.max_tokens = 0;
    assert_int_equal(params_context_set(&f.c, &own, &f.err), NYB_E_RANGE);
    assert_string_equal(f.err.where, "max_tokens");
    own.max_tokens = 5;
    own.top_k = -2;
    assert_int_equal(params_context_set(&f.c, &own, &f.err), NYB_E_RANGE);
    assert_string_equal(f.err.where, "top_k");
    assert_memory_equal(&before, &f.c, sizeof(before)); /* a refusal changes nothing */
    arena_free(&f.arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_params_unset_takes_the_checkpoint_s_defaults),
        cmocka_unit_test(test_params_defaults_of_a_server),
        cmocka_unit_test(test_params_small_temperatures),
        cmocka_unit_test(test_params_the_message_names_parameter_value_and_range),
        cmocka_unit_test(test_params_every_range),
        cmocka_unit_test(test_params_integers),
        cmocka_unit_test(test_params_min_tokens_above_max_tokens),
        cmocka_unit_test(test_params_prompt_length),
        cmocka_unit_test(test_params_lists),
        cmocka_unit_test(test_params_lists_have_a_length),
        cmocka_unit_test(test_params_ids_are_of_the_vocabulary),
        cmocka_unit_test(test_params_logprobs_beyond_the_vocabulary),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
