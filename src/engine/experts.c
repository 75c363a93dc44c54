#include "engine/experts.h"

#include <time.h>

#include "engine/instance.h"
#include "model/model.h"

#define SLICE_NS 5000000u /* of moving between two steps: not much beside a step        */
#define PAUSE_NS 2000000  /* until the next try, where a rank has to end an update first */

void experts_open(struct experts *x, struct model *m, struct live *live, int interval)
{
    *x = (struct experts){.model = m, .live = live, .interval = interval};
}

/* ---- every so many steps: on the engine's thread --------------------------------------------------- */

/* Nothing is begun while the weights are replaced or looked at. */
static void move_some(struct experts *x)
{
    struct nyb_err err;
    if (!live_take_to_move(x->live))
        return;
    if (!x->moving) {
        x->n_step = 0;
        x->moving = model_rebalance_begin(x->model);
    }
    if (x->moving && model_rebalance_step(x->model, SLICE_NS, &x->moving, NULL, &err) != NYB_OK)
        x->moving = false; /* a lost rank: the next step fails of it */
    live_give(x->live);
}

void experts_after_step(void *arg)
{
    struct experts *x = arg;
    if (x->interval <= 0)
        return;
    x->n_step += x->n_step < x->interval;
    if (x->moving || x->n_step == x->interval)
        move_some(x);
}

/* ---- when asked: on the caller's thread ------------------------------------------------------------ */

struct asked {
    struct model *model;
    struct model_rebalance done;
    bool begun, more;
    enum nyb_code code;
    struct nyb_err *err;
};

/* Between two steps. */
static void do_some(struct step *s, void *arg)
{
    struct asked *a = arg;
    (void)s;
    if (!a->begun && !model_rebalance_begin(a->model)) {
        a->code = err_set(a->err, NYB_E_UNSUPPORTED,
                          "experts stay where they are here: only expert parallelism over several ranks of "
                          "CPUs moves them");
        return;
    }
    a->begun = true;
    a->code = model_rebalance_step(a->model, SLICE_NS, &a->more, &a->done, a->err);
}

enum nyb_code nyb_rebalance_experts(struct nyb_engine *e, struct nyb_rebalance *result, struct nyb_err *err)
{
    struct asked a = {.model = e->model, .more = true, .err = err};
    struct control_op op = {.run = do_some, .arg = &a};
    *result = (struct nyb_rebalance){0};
    if (!live_take(e->live))
        return err_set(err, NYB_E_CONFLICT, "the weights are being updated or checked");
    enum nyb_code code = NYB_OK;
    while (code == NYB_OK && a.code == NYB_OK && a.more) {
        uint64_t before = a.done.n_move;
        code = engine_call(e->engine, &op, err);
        if (a.more && a.done.n_move == before)
            nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    }
    live_give(e->live);
    *result = (struct nyb_rebalance){.layers = a.done.n_layer,
                                     .moves = a.done.n_move,
                                     .bytes = a.done.bytes,
                                     .ns = a.done.ns,
                                     .before = a.done.before,
                                     .after = a.done.after};
    return code == NYB_OK ? a.code : code;
}

/* ---- facts ----------------------------------------------------------------------------------------- */

bool nyb_expert_load(const struct nyb_engine *e, int layer, uint64_t *count)
{
    return model_expert_load(e->model, layer, count);
}

void nyb_engine_experts(const struct nyb_engine *e, struct nyb_experts *out)
{
    struct model_experts x;
    model_experts(e->model, &x);
    *out = (struct nyb_experts){.ranks = x.n_rank,
                                .slots = x.n_slot,
                                .rebalances = x.rebalances,
                                .moves = x.moves,
                                .moved_bytes = x.moved_bytes,
                                .stall_ns = x.stall_ns};
}

bool nyb_expert_slots(const struct nyb_engine *e, int layer, int *expert)
{
    return model_expert_slots(e->model, layer, expert);
}

bool nyb_rank_load(const struct nyb_engine *e, int layer, uint64_t *all, uint64_t *recent)
{
    return model_rank_load(e->model, layer, all, recent);
}
