/* What may be asked about the served weights, and uploads on their way to them. */
#include "engine/live.h"

#include <string.h>
#include <time.h>

#include "engine/instance.h"
#include "model/readback.h"
#include "model/update.h"

#define LOOK_NS 2000000 /* between two looks at whether all ranks are done */

/* ---- uploads: a struct nyb_upload is the model's ----------------------------------------------------------
 */

enum nyb_code nyb_upload_open(struct nyb_upload **out, const char *dir, uint64_t max_bytes,
                              struct nyb_err *err)
{
    struct update_upload *u = NULL;
    enum nyb_code code = upload_open(&u, dir, max_bytes, err);
    *out = (struct nyb_upload *)u;
    return code;
}

enum nyb_code nyb_upload_write(struct nyb_upload *u, const void *bytes, size_t n, struct nyb_err *err)
{
    return upload_write((struct update_upload *)u, bytes, n, err);
}

void nyb_upload_close(struct nyb_upload *u)
{
    upload_close((struct update_upload *)u);
}

/* ---- checks ----------------------------------------------------------------------------------------------
 */

static void show_difference(void *arg, const char *name)
{
    struct nyb_check_result *r = arg;
    if (r->n_shown < NYB_DIFFERENCES_MAX) {
        snprintf(r->differs[r->n_shown], sizeof(r->differs[0]), "%s", name);
        r->n_shown++;
    }
}

/* What is asked of the model between two of its steps. */
struct turn {
    struct model *m;
    int threads;
    struct checksum *out;
    bool done;
    enum nyb_code code;
    struct nyb_err *err;
};

static void do_start(struct step *s, void *arg)
{
    struct turn *t = arg;
    (void)s;
    checksum_start(t->m, t->threads);
    t->code = NYB_OK;
}

static void do_look(struct step *s, void *arg)
{
    struct turn *t = arg;
    (void)s;
    t->code = checksum_poll(t->m, &t->done, t->err);
}

static void do_finish(struct step *s, void *arg)
{
    struct turn *t = arg;
    (void)s;
    t->code = checksum_finish(t->out, t->m, t->err);
}

static enum nyb_code take_turn(struct nyb_engine *e, void (*run)(struct step *s, void *arg), struct turn *t)
{
    struct control_op op = {.run = run, .arg = t};
    TRY(engine_call(e->engine, &op, t->err));
    return t->code;
}

static enum nyb_code look_until_done(struct nyb_engine *e, struct turn *t)
{
    const struct timespec pause = {.tv_nsec = LOOK_NS};
    TRY(take_turn(e, do_look, t));
    while (!t->done) {
        nanosleep(&pause, NULL);
        TRY(take_turn(e, do_look, t));
    }
    return take_turn(e, do_finish, t);
}

/* Every rank adds up in a thread of its own, while steps go on. */
static enum nyb_code sum_up(struct nyb_engine *e, int threads, struct checksum *out, struct nyb_err *err)
{
    struct turn t = {.m = e->model, .threads = threads, .out = out, .err = err};
    if (model_ranks(e->model) == 1)
        return checksum_model(out, e->model, threads, err);
    TRY(take_turn(e, do_start, &t));
    enum nyb_code code = look_until_done(e, &t);
    if (code != NYB_OK)
        checksum_drop(e->model);
    return code;
}

static enum nyb_code check(struct nyb_engine *e, enum nyb_check what, int threads, struct nyb_check_result *r,
                           struct nyb_err *err)
{
    struct live *l = e->live;
    struct checksum now;
    if (what == NYB_CHECK_COMPARE && !l->has_snapshot)
        return err_set(err, NYB_E_NOT_FOUND, "there is no snapshot to compare with: take one first");
    TRY(sum_up(e, threads, &now, err));
    checksum_text(now.total, r->checksum);
    r->n_tensor = now.n_tensor;
    if (what == NYB_CHECK_COMPARE)
        r->n_differ = checksum_compare(&l->snapshot, &now, show_difference, r);
    if (what != NYB_CHECK_SNAPSHOT) {
        checksum_free(&now);
        return NYB_OK;
    }
    if (l->has_snapshot)
        checksum_free(&l->snapshot);
    l->snapshot = now;
    l->has_snapshot = true;
    return NYB_OK;
}

enum nyb_code nyb_weights_check(struct nyb_engine *e, enum nyb_check what, int threads,
                                struct nyb_check_result *result, struct nyb_err *err)
{
    *result = (struct nyb_check_result){0};
    if ((unsigned)what >= NYB_CHECK_COUNT)
        return err_at(err, NYB_E_RANGE, "action", -1, "there is no check %d", (int)what);
    if (!live_take(e->live))
        return err_set(err, NYB_E_CONFLICT, "the weights are being updated or checked");
    enum nyb_code code = check(e, what, threads, result, err);
    live_give(e->live);
    return code;
}

/* ---- values ----------------------------------------------------------------------------------------------
 */

struct reading {
    struct model *m;
    const char *name;
    size_t max;
    struct readback r;
    enum nyb_code code;
    struct nyb_err *err;
};

static void do_read(struct step *s, void *arg)
{
    struct reading *a = arg;
    (void)s;
    a->code = readback_values(&a->r, a->m, a->name, a->max, a->err);
}

/* Ranks that share it are spoken to between two steps. */
static enum nyb_code read_values(struct nyb_engine *e, struct reading *a)
{
    struct control_op op = {.run = do_read, .arg = a};
    if (model_ranks(e->model) == 1)
        do_read(NULL, a);
    else
        TRY(engine_call(e->engine, &op, a->err));
    return a->code;
}

enum nyb_code nyb_read_weights(struct nyb_engine *e, const char *name, size_t max, struct nyb_values *out,
                               struct nyb_err *err)
{
    struct reading a = {.m = e->model, .name = name, .max = max, .err = err};
    *out = (struct nyb_values){0};
    if (!live_take(e->live))
        return err_set(err, NYB_E_CONFLICT, "the weights are being updated or checked");
    enum nyb_code code = read_values(e, &a);
    live_give(e->live);
    if (code == NYB_OK)
        *out = (struct nyb_values){
            .value = a.r.value, .n = a.r.n, .rows = a.r.rows, .columns = a.r.columns, .type = a.r.type};
    return code;
}
