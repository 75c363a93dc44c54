/* Where the time of a step goes, kernel by kernel: the operators of one kind in all layers are replayed as
 * one graph, so that nothing but them is timed, or run one by one where they cannot be recorded. */
#include <stdlib.h>

#include "base/mem.h"
#include "model/device_state.h"

#define ROUNDS 9

/* A product by what it is for: they differ in size. */
static const char *name_of(const struct device *d, int i)
{
    const struct cuda_op *op = &d->plan.op[i];
    const struct cuda_linear *l = &op->as.linear;
    if (op->kind == CUDA_OP_MOE && op->as.moe.n_expert == 1)
        return d->layer[d->plan.layer[i]].is_moe ? "shared experts" : "mlp";
    if (op->kind != CUDA_OP_LINEAR)
        return device_op_name(op);
    if (l->part[0].out == d->room.logits || l->part[0].out == d->room.columns)
        return "head";
    if (l->x == d->room.attended || (l->x_float && l->x_float == d->room.attended_float))
        return "attention output";
    if (l->x == d->room.h || (l->x_float && l->x_float == d->room.gate))
        return "down";
    return l->part[0].out == d->room.gate || l->part[0].out == d->room.up ? "gate, up" : "q, k, v";
}

/* Mean seconds of operators for which the host waits; the first round warms up. Below zero: failed. */
static double time_apart(struct device *d, const struct cuda_op *op, int n)
{
    float *seconds = mem_alloc((size_t)n, sizeof(*seconds));
    double sum = 0;
    for (int round = 0; round <= ROUNDS && sum >= 0; round++) {
        bool ok = d->plugin->profile(d->gpu, op, n, seconds);
        for (int i = 0; i < n && ok && round > 0; i++)
            sum += (double)seconds[i];
        sum = ok ? sum : -1.0;
    }
    free(seconds);
    return sum < 0 ? sum : sum / ROUNDS / n;
}

static enum nyb_code time_kind(struct device *d, const char *name, bool *done, device_profile_fn *fn,
                               void *arg, struct nyb_err *err)
{
    struct cuda_op *op = mem_alloc((size_t)d->plan.n, sizeof(*op));
    int n = 0;
    for (int i = 0; i < d->plan.n; i++)
        if (!done[i] && name_of(d, i) == name) {
            op[n++] = d->plan.op[i];
            done[i] = true;
        }
    double seconds =
        op[0].kind == CUDA_OP_MOE_W4A4 ? time_apart(d, op, n) : d->plugin->time(d->gpu, op, n, ROUNDS);
    free(op);
    if (seconds < 0)
        return device_failed(d, name, err);
    if (fn)
        fn(arg, name, n, seconds);
    return NYB_OK;
}

enum nyb_code device_profile(struct device *d, const struct batch *b, device_profile_fn *fn, void *arg,
                             struct nyb_err *err)
{
    TRY(device_forward(d, b, 0, NULL, NULL, NULL, NULL,
                       err)); /* leaves the batch and its routing where they are */
    struct device_shape s = device_step_shape(d, b, 0);
    device_plan_clear(d);
    device_plan_layers(d, &s);
    if (s.n_out > 0 && s.n_out <= DEVICE_HEAD_ROWS)
        device_plan_head(d, &s, 0, s.n_out, false);
    enum nyb_code code = NYB_OK;
    bool *done = mem_alloc((size_t)d->plan.n, sizeof(*done));
    for (int i = 0; code == NYB_OK && i < d->plan.n; i++)
        if (!done[i])
            code = time_kind(d, name_of(d, i), done, fn, arg, err);
    free(done);
    return code;
}
