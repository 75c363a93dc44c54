/* The whole step of the engine, as a server runs it: scheduling, the forward pass, sampling, handing tokens
 * over, and the readers' detokenizing; and where its time goes. */
#ifndef NYB_CLI_BENCH_ENGINE_H
#define NYB_CLI_BENCH_ENGINE_H

#include "cli/bench_profile.h"
#include "model/model.h"
#include "text/tokenizer.h"

struct bench_engine {
    struct model *model;
    const struct tokenizer *tokenizer; /* NULL: no detokenizing */
    int batch, depth;                  /* sequences, and tokens of each before the first measured step */
    int gen;                           /* measured steps a run */
    int repeat, chunk;                 /* runs; most prompt tokens in a step */
    uint64_t seed;
};

/* Takes over the model's KV cache: whoever had it must reserve it anew. seconds (repeat): of each run,
 * ascending. *best (without a trace): the stages of the fastest, the engine's among them: "schedule",
 * "sample, deliver" (what a step does after its forward pass) and "detokenize". */
enum nyb_code bench_engine_run(const struct bench_engine *o, double *seconds, struct bench_profile *best,
                               struct nyb_err *err) NYB_MUST_CHECK;

/* What the sampler is asked: as a chat would. */
#define BENCH_ENGINE_TEMPERATURE 0.8
#define BENCH_ENGINE_TOP_P       0.95

#endif
