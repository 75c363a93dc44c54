/* Who draws a step's tokens, and from which logits, does not change them: this thread, one row for each
 * thread of a pool, all threads over one long row, or over several together. */
#include "test.h"

#include "base/pool.h"
#include "engine/engine.h"

#define VOCAB     33000 /* long rows, whose passes threads share out */
#define N_REQUEST 6
#define N_PROMPT  5
#define MAX_OUT   8

static enum nyb_code reserve(void *self, int n_block, struct nyb_err *err)
{
    (void)self, (void)n_block, (void)err;
    return NYB_OK;
}

/* Logits that depend on the row's token and position. */
static enum nyb_code forward(void *self, const struct batch *b, float *logits, struct nyb_err *err)
{
    (void)self, (void)err;
    for (int i = 0; i < b->n_out; i++) {
        int row = b->out_row[i];
        uint64_t rng = (uint64_t)b->tok[row] * 1000 + (uint64_t)b->pos[row];
        for (int v = 0; v < VOCAB; v++)
            logits[(size_t)i * VOCAB + (size_t)v] = 6 * test_random_float(&rng);
    }
    return NYB_OK;
}

/* Draws of every kind, what is more than a draw between them, and a prompt that is scored. They end one after
 * the other, so that every number of rows is sampled at once. */
static struct params params_of(int i)
{
    static const int top_k[N_REQUEST] = {0, 0, 40, 0, 0, 0};
    static const float top_p[N_REQUEST] = {1, 0.9f, 1, 1, 0.5f, 1},
                       temperature[N_REQUEST] = {1, 0.8f, 1, 1.2f, 2, 0};
    return (struct params){.temperature = temperature[i],
                           .top_p = top_p[i],
                           .top_k = top_k[i],
                           .repetition = i == 3 ? 1.3f : 1,
                           .seed = 100 + (uint64_t)i,
                           .max_tokens = MAX_OUT - i,
                           .n_logprob = i == 2 ? 1 : -1,
                           .n_prompt_logprob = i == 1 ? 0 : -1};
}

struct answers {
    int32_t token[N_REQUEST][MAX_OUT];
    struct nyb_logprob score[N_PROMPT];
};

static void answer_with(int n_thread, struct answers *a)
{
    struct runner runner = {.vocab = VOCAB, .reserve = reserve, .forward = forward};
    const struct step_options o = {.max_num_seqs = N_REQUEST,
                                   .max_num_batched_tokens = 64,
                                   .max_len = N_PROMPT + MAX_OUT,
                                   .max_live = N_REQUEST,
                                   .max_logprobs = 1,
                                   .n_block = N_REQUEST};
    struct step s;
    struct bell bell = {0};
    struct request *r[N_REQUEST];
    if (n_thread > 0)
        assert_int_equal(pool_open(&runner.pool, n_thread, NULL), NYB_OK);
    assert_int_equal(step_open(&s, &runner, &o, NULL), NYB_OK);
    memset(a, 0, sizeof(*a));
    for (int i = 0; i < N_REQUEST; i++) {
        const int32_t prompt[N_PROMPT] = {i, 7, 3 * i + 1, VOCAB - 1, i};
        r[i] = request_new();
        r[i]->p = params_of(i);
        request_prepare(r[i], prompt, N_PROMPT, VOCAB);
        r[i]->key = i;
        r[i]->attention = &s.attention;
        r[i]->engine_bell = &bell;
        step_add(&s, r[i]);
    }
    while (step_run(&s))
        ;
    for (int i = 0; i < N_REQUEST; i++) {
        assert_true(r[i]->state == REQUEST_DONE && r[i]->n_tok == N_PROMPT + MAX_OUT - i);
        memcpy(a->token[i], r[i]->tok + N_PROMPT, (size_t)(MAX_OUT - i) * sizeof(int32_t));
    }
    memcpy(a->score + 1, r[1]->prompt_logprob + 1, sizeof(a->score) - sizeof(a->score[0]));
    for (int i = 0; i < N_REQUEST; i++)
        request_release(r[i]);
    step_close(&s);
    if (runner.pool)
        pool_close(runner.pool);
}

static void test_tokens_do_not_depend_on_who_draws_them(void **state)
{
    (void)state;
    struct answers alone, shared;
    answer_with(0, &alone);
    static const int n_thread[] = {2, 5,
                                   12}; /* the last more than there are rows, those of scores included */
    for (int i = 0; i < 3; i++) {
        answer_with(n_thread[i], &shared);
        assert_memory_equal(alone.token, shared.token, sizeof(alone.token));
        assert_memory_equal(alone.score, shared.score, sizeof(alone.score));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokens_do_not_depend_on_who_draws_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
