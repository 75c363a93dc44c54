/* A step that somebody looks into (model_probe): between device_step.c and device_watch.c. */
#ifndef NYB_MODEL_DEVICE_WATCH_H
#define NYB_MODEL_DEVICE_WATCH_H

#include "model/device_state.h"

/* What a probe is shown is read back between operators, but for the times of their spans. */
struct device_watch {
    struct device *d;
    const struct model_probe *probe; /* or NULL */
    const struct model_probe *spans; /* that looks at nothing else, or NULL */
    int n_tok;
    struct nyb_err *err;
};

/* The plan's operators one by one; what the probe wants to see is read after each. */
enum nyb_code device_run_watched(const struct device_watch *w) NYB_MUST_CHECK;
/* In the lanes and the order of a step that nobody watches, for `spans`. */
enum nyb_code device_run_traced(const struct device_watch *w) NYB_MUST_CHECK;
/* After the head, which reads the stream as it was: the last layer's sum and its norm, of all rows. Of
 * several ranks all take part in any step that is watched, whoever looks at what. */
enum nyb_code device_show_final(const struct device_watch *w, const struct device_shape *s) NYB_MUST_CHECK;

#endif
