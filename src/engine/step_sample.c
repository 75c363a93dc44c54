#include "engine/step_sample.h"

#define LONG_ROW     32768 /* logits of one row whose passes are worth sharing out */
#define MANY_THREADS 4     /* that may share several rows                          */

static float *logits_row(struct step *s, int out)
{
    return s->logits + (size_t)out * (size_t)s->runner.vocab;
}

struct nyb_logprob *step_sample_logprob(struct step *s, int row)
{
    return s->logprob + (size_t)row * (size_t)(1 + s->option.max_logprobs);
}

static void score(struct step *s, int item, const struct sched_row *row, int i, int worker)
{
    struct request *r = row->r;
    int at = r->n_scored + i, n = r->p.n_prompt_logprob;
    if (!sampler_logprobs(s->sampler, worker, logits_row(s, row->out_first + i), r->tok[at], n,
                          r->prompt_logprob + (size_t)at * (size_t)(1 + n)))
        atomic_store_explicit(&s->unscorable[item], true, memory_order_relaxed);
}

static struct sampler_input input_of(struct step *s, const struct sched_row *row, int out)
{
    const struct request *r = row->r;
    return (struct sampler_input){.p = &r->p,
                                  .history = r->history,
                                  .out = r->tok + r->n_prompt,
                                  .n_out = r->n_tok - r->n_prompt,
                                  .constraint = r->constraint,
                                  .logits = logits_row(s, out)};
}

/* Whether the runner draws this row of logits itself. */
static bool runner_draws(struct step *s, const struct sched_row *row, int out)
{
    s->draw[out].wanted = false;
    if (out - row->out_first < row->n_score)
        return false;
    const struct sampler_input in = input_of(s, row, out);
    return sampler_draw(&in, s->runner.most_top_k, &s->draw[out]);
}

/* Before the forward pass: whose rows of logits will be which, and what is to be done with each and by whom.
 */
void step_sample_plan(struct step *s)
{
    int n_out = 0;
    s->n_todo = s->n_draw = 0;
    for (int i = 0; i < s->sched.n_row; i++) {
        const struct sched_row *row = &s->sched.row[i];
        s->sampled[i] = -1;
        atomic_store_explicit(&s->unscorable[i], false, memory_order_relaxed);
        for (int k = 0; k < row->n_score + row->sample; k++, n_out++) {
            s->out_owner[n_out] = i;
            if (s->runner.draw && runner_draws(s, row, n_out))
                s->n_draw++;
            else
                s->todo[s->n_todo++] = n_out;
        }
    }
}

/* A row of logits, to score a token of a prompt or to sample the next one; by this thread, or with a pool's
 * help. */
static void sample_row(struct step *s, int at, int worker, struct pool *help)
{
    int out = s->todo[at], item = s->out_owner[out];
    const struct sched_row *row = &s->sched.row[item];
    if (out - row->out_first < row->n_score) {
        score(s, item, row, out - row->out_first, worker);
        return;
    }
    struct sampler_input in = input_of(s, row, out);
    in.pool = help;
    int32_t token = sampler_row(s->sampler, worker, &in, step_sample_logprob(s, item));
    s->sampled[item] = token >= 0 ? token : -2;
}

static void sample_item(void *arg, int at, int worker)
{
    sample_row(arg, at, worker, NULL);
}

/* Rows of which nothing but a draw is wanted are drawn by all threads together, where they are long and fewer
 * than threads. The others stay to be done. */
static void draw_together(struct step *s)
{
    struct pool *pool = s->runner.pool;
    int n = 0, left = 0;
    if (!pool || pool_size(pool) < MANY_THREADS || s->runner.vocab < LONG_ROW || s->n_todo < 2 ||
        s->n_todo >= pool_size(pool))
        return;
    for (int i = 0; i < s->n_todo; i++) {
        int out = s->todo[i];
        const struct sched_row *row = &s->sched.row[s->out_owner[out]];
        const struct sampler_input in = input_of(s, row, out);
        if (out - row->out_first < row->n_score || !sampler_draw(&in, 0, &s->draw[out])) {
            s->todo[left++] = out;
            continue;
        }
        s->together[n++] =
            (struct sampler_drawn){.draw = &s->draw[out], .logits = in.logits, .owner = s->out_owner[out]};
    }
    s->n_todo = left;
    if (n > 0)
        sampler_choose_together(s->sampler, pool, n, s->together);
    for (int i = 0; i < n; i++)
        s->sampled[s->together[i].owner] = s->together[i].token >= 0 ? s->together[i].token : -2;
}

void step_sample_run(struct step *s, int n_out)
{
    for (int i = 0; i < n_out && s->n_draw > 0; i++)
        if (s->draw[i].wanted)
            s->sampled[s->out_owner[i]] = s->drawn[i] >= 0 ? s->drawn[i] : -2;
    struct pool *pool = s->runner.pool;
    draw_together(s);
    /* One row: its passes over all logits are shared out. Several: the rows are, since much of a row (top_k,
     * log probabilities, constraints) is one thread's work. */
    if (pool && s->n_todo == 1 && s->runner.vocab >= LONG_ROW)
        sample_row(s, 0, 0, pool);
    else if (pool)
        pool_run(pool, s->n_todo, sample_item, s);
    else
        for (int i = 0; i < s->n_todo; i++)
            sample_row(s, i, 0, NULL);
    for (int i = 0; i < s->sched.n_row; i++)
        if (atomic_load_explicit(&s->unscorable[i], memory_order_relaxed))
            s->sampled[i] = -2;
}
