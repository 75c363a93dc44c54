/* A model's dealings with its GPU. For model.c. */
#ifndef NYB_MODEL_MODEL_DEVICE_H
#define NYB_MODEL_MODEL_DEVICE_H

#include "model/model_state.h"

/* After the configuration is known: take the GPU that the options ask for. With DEVICE_AUTO what is in the
 * way is said in one line, and m->device stays NULL. */
enum nyb_code model_device_open(struct model *m, const struct model_options *o,
                                struct nyb_err *err) NYB_MUST_CHECK;
/* After slots are resolved, where m->device is: their places, and room for steps. The same rule. */
enum nyb_code model_device_place(struct model *m, const struct model_options *o,
                                 struct nyb_err *err) NYB_MUST_CHECK;
/* What the GPU has counted by now into m->expert_load. Any thread. */
void model_device_look_at_load(const struct model *m);
enum nyb_code model_device_kv_reserve(struct model *m, int n_block, struct nyb_err *err) NYB_MUST_CHECK;
enum nyb_code model_device_forward(struct model *m, const struct batch *b, float *logits, int32_t *best,
                                   const struct model_probe *probe, struct nyb_err *err) NYB_MUST_CHECK;

#endif
