#include "engine/runner.h"

#include "model/model.h"

static enum nyb_code reserve(void *self, int n_block, struct nyb_err *err)
{
    return model_kv_reserve(self, n_block, err);
}

static enum nyb_code forward(void *self, const struct batch *b, float *logits, struct nyb_err *err)
{
    return model_forward(self, b, logits, NULL, err);
}

static enum nyb_code draw(void *self, const struct batch *b, const struct draw *draw, int32_t *token,
                          float *logits, struct nyb_err *err)
{
    return model_forward_draw(self, b, draw, token, logits, err);
}

static float *logits_alloc(void *self, size_t bytes)
{
    return model_logits_alloc(self, bytes);
}

static void logits_free(void *self, float *logits)
{
    model_logits_free(self, logits);
}

static enum nyb_code status(void *self, struct nyb_err *err)
{
    return model_status(self, err);
}

void runner_from_model(struct runner *out, struct model *m)
{
    *out = (struct runner){.self = m,
                           .vocab = model_config(m)->vocab,
                           .pool = model_pool(m),
                           .reserve = reserve,
                           .forward = forward,
                           .draw = model_can_draw(m) > 0 ? draw : NULL,
                           .most_top_k = model_can_draw(m),
                           .logits_alloc = logits_alloc,
                           .logits_free = logits_free,
                           .status = model_ranks(m) > 1 ? status : NULL};
}
