/* Rows of random logits, and draws from them. */
#ifndef NYB_SAMPLER_CASE_H
#define NYB_SAMPLER_CASE_H

#include <math.h>

#include "engine/nucleus.h"
#include "engine/sampler.h"
#include "test.h"

#define VOCAB_MAX 4096

static const struct params plain = {
    .temperature = 1, .top_p = 1, .repetition = 1, .n_logprob = -1, .n_prompt_logprob = -1};

static inline void random_logits(float *x, int n, float spread, uint64_t *rng)
{
    for (int i = 0; i < n; i++)
        x[i] = spread * (test_random_float(rng) + test_random_float(rng));
}

static inline int32_t draw(struct sampler *s, const struct params *p, const float *logits, int vocab,
                           int n_out)
{
    static float row[VOCAB_MAX];
    static int32_t out[1 << 17];
    memcpy(row, logits, (size_t)vocab * sizeof(*row));
    const struct sampler_input in = {.p = p, .out = out, .n_out = n_out, .logits = row};
    return sampler_row(s, 0, &in, NULL);
}

#endif
