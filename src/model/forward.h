/* A step: embedding, all layers, head. One micro-batch goes straight through the layers, or two overlap
 * (overlap.h). */
#ifndef NYB_MODEL_FORWARD_H
#define NYB_MODEL_FORWARD_H

#include "model/layer.h"

struct forward {
    struct arena step; /* reset after each pass */
    struct micro_batch micro;
    struct micro_batch half[2];
};
void forward_init(struct forward *f);
void forward_free(struct forward *f);
/* Everything in a batch that indexes something. */
enum nyb_code forward_check(const struct pass *p, struct nyb_err *err) NYB_MUST_CHECK;
/* After forward_check. cut: the row where the step is cut in two, or 0. */
void forward_run(struct forward *f, const struct pass *pass, int cut, float *logits);

#endif
