/* Pausing, aborting and flushing for callers of the public interface: each is done by the engine's thread
 * between two steps. */
#include "engine/instance.h"

struct pause_args {
    enum nyb_pause_mode mode;
    int n;
};

static void do_pause(struct step *s, void *arg)
{
    struct pause_args *a = arg;
    a->n = s->n_live;
    atomic_store(&s->paused, true);
    if (a->mode == NYB_PAUSE_ABORT)
        step_abort_all(s);
    else if (a->mode == NYB_PAUSE_RETRACT)
        step_retract_all(s);
}

enum nyb_code nyb_pause(struct nyb_engine *e, enum nyb_pause_mode mode, int *n, struct nyb_err *err)
{
    if ((unsigned)mode >= NYB_PAUSE_COUNT)
        return err_at(err, NYB_E_RANGE, "mode", -1, "there is no pause mode %d", (int)mode);
    struct pause_args a = {.mode = mode};
    struct control_op op = {.run = do_pause, .arg = &a};
    TRY(engine_call(e->engine, &op, err));
    if (n)
        *n = a.n;
    return NYB_OK;
}

/* A model whose weights are neither the old nor the new ones stays where it is. */
static void do_resume(struct step *s, void *arg)
{
    const struct nyb_engine *e = arg;
    if (!model_weights_inconsistent(e->model))
        atomic_store(&s->paused, false);
}

enum nyb_code nyb_resume(struct nyb_engine *e, struct nyb_err *err)
{
    struct control_op op = {.run = do_resume, .arg = e};
    TRY(engine_call(e->engine, &op, err));
    if (model_weights_inconsistent(e->model))
        return err_set(err, NYB_E_CONFLICT, "the weights are inconsistent: only a whole update helps");
    return NYB_OK;
}

bool nyb_is_paused(const struct nyb_engine *e)
{
    return engine_is_paused(e->engine);
}

struct abort_args {
    const char *id;
    int n;
};

static void do_abort(struct step *s, void *arg)
{
    struct abort_args *a = arg;
    if (a->id) {
        a->n = step_abort_id(s, a->id);
        return;
    }
    a->n = s->n_live;
    step_abort_all(s);
}

enum nyb_code nyb_abort(struct nyb_engine *e, const char *id, int *n, struct nyb_err *err)
{
    struct abort_args a = {.id = id};
    struct control_op op = {.run = do_abort, .arg = &a};
    TRY(engine_call(e->engine, &op, err));
    if (n)
        *n = a.n;
    return NYB_OK;
}

static void do_flush(struct step *s, void *arg)
{
    (void)arg;
    step_flush_cache(s);
}

enum nyb_code nyb_flush_cache(struct nyb_engine *e, struct nyb_err *err)
{
    struct control_op op = {.run = do_flush};
    return engine_call(e->engine, &op, err);
}
