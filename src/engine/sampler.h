/* From logits to a token.
 *
 * Order, as vLLM has it: logprobs of the raw logits; the constraint; allowed tokens; bad words; logit_bias;
 * min_tokens; penalties; then greedy, or temperature, min_p, top_k, top_p and one draw. Ties go to the lowest
 * id everywhere. The draw uses one uniform number that depends on the seed and the position in the answer
 * alone (rng.h).
 *
 * No step sorts the vocabulary: top_k keeps a heap of k, top_p finds its threshold by bisection (nucleus.h).
 *
 * Every pass over the row is compiled for each CPU level from one source whose 16 running sums do not depend
 * on the width of the vectors (sampler_lanes.h): a row's token and logprobs are the same, bit for bit, on
 * every level, for any number of threads and in any batch. */
#ifndef NYB_ENGINE_SAMPLER_H
#define NYB_ENGINE_SAMPLER_H

#include "base/cpu.h"
#include "base/pool.h"
#include "engine/constraint.h"
#include "engine/history.h"
#include "engine/params.h"
#include "kernels/kernels.h" /* struct draw */

struct sampler;

/* n_worker: how many threads may call sampler_row at once. */
enum nyb_code sampler_open(struct sampler **out, int vocab, int n_worker, struct nyb_err *err) NYB_MUST_CHECK;
void sampler_close(struct sampler *s);

/* The passes of another level than cpu_level(), at most cpu_detect(): for tests. */
void sampler_use(struct sampler *s, enum cpu_level level);

struct sampler_input {
    const struct params *p;
    const struct history *history; /* NULL where no penalty is on */
    const int32_t *out;            /* (n_out) the answer so far   */
    int n_out;
    float *logits;                 /* (vocab) may be overwritten */
    struct constraint *constraint; /* NULL: none */
    struct pool *pool;             /* NULL, or threads that have nothing else to do: passes are shared out */
};

/* Whether these parameters need a history. */
bool sampler_wants_history(const struct params *p);

/* What a draw means: the token of these logits (vocab), which may be overwritten; -1: none of them is finite.
 */
int32_t sampler_choose(struct sampler *s, int worker, const struct draw *d, float *logits);

/* The same of n rows by all threads of a pool, none of whose draws has a top_k: rows are cut into pieces, so
 * that a slow thread takes fewer of them. */
struct sampler_drawn {
    const struct draw *draw;
    const float *logits;
    int owner;     /* of the caller's */
    int32_t token; /* the result      */
};
void sampler_choose_together(struct sampler *s, struct pool *pool, int n, struct sampler_drawn *row);

/* Whether sampler_row would do nothing with these logits but choose so, with a top_k of at most most_top_k,
 * and give no logprobs; then *out is that draw, and in->logits need not be there. */
bool sampler_draw(const struct sampler_input *in, int most_top_k, struct draw *out);

/* The token, and with n_logprob >= 0 its logprob and the n_logprob most likely ones into logprob
 * (1 + n_logprob). -1: the logits leave nothing to choose (none is finite). */
int32_t sampler_row(struct sampler *s, int worker, const struct sampler_input *in,
                    struct nyb_logprob *logprob);

/* logprob[0]: of `token`; then the n most likely. Returns false where no logit is finite. */
bool sampler_logprobs(struct sampler *s, int worker, const float *logits, int32_t token, int n,
                      struct nyb_logprob *logprob);

#endif
