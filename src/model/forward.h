/* One micro-batch straight through all layers. */
#ifndef NYB_MODEL_FORWARD_H
#define NYB_MODEL_FORWARD_H

#include "model/layer.h"

struct forward {
    struct arena step; /* reset after each pass */
    struct micro_batch micro;
};
void forward_init(struct forward *f);
void forward_free(struct forward *f);
/* Everything in a batch that indexes something. */
enum nyb_code forward_check(const struct pass *p, struct nyb_err *err) NYB_MUST_CHECK;
/* After forward_check. */
void forward_run(struct forward *f, const struct pass *pass, float *logits);

#endif
