/* What the engine needs of a model: one adapter to src/model, and fakes in tests. */
#ifndef NYB_ENGINE_RUNNER_H
#define NYB_ENGINE_RUNNER_H

#include "base/err.h"
#include "base/pool.h"
#include "kernels/kernels.h" /* struct batch */

struct runner {
    void *self;
    int vocab;
    struct pool *pool; /* sampling runs on it between two forwards; NULL: on the engine's thread */
    /* Make room for n_block blocks of KV_BLOCK tokens; whatever they held is gone. */
    enum nyb_code (*reserve)(void *self, int n_block, struct nyb_err *err);
    /* One step: logits (batch->n_out, vocab). */
    enum nyb_code (*forward)(void *self, const struct batch *b, float *logits, struct nyb_err *err);
    /* The same where rows whose draw (batch->n_out) is wanted are drawn beside the logits: token
     * (batch->n_out), -1 where no logit is finite. Logits of the other rows are where forward writes them.
     * NULL: it cannot. */
    enum nyb_code (*draw)(void *self, const struct batch *b, const struct draw *draw, int32_t *token,
                          float *logits, struct nyb_err *err);
    int most_top_k; /* of a draw */
    /* Memory for those logits, 64-byte aligned, NULL where there is none. Both NULL: any will do. */
    float *(*logits_alloc)(void *self, size_t bytes);
    void (*logits_free)(void *self, float *logits);
    /* Whether it can still do so: asked now and then while there is nothing to do. NULL: always. */
    enum nyb_code (*status)(void *self, struct nyb_err *err);
    /* After each step, on the thread that steps. NULL: nothing. */
    void (*between)(void *arg);
    void *between_arg;
};

struct model;
/* The adapter (runner.c). The model must outlive the runner. */
void runner_from_model(struct runner *out, struct model *m);

#endif
