/* Replacing the weights under the running requests. The model's half, src/model/update.h, knows how; here is
 * when, and what becomes of requests:
 *
 *     caller's thread                                  engine's thread
 *     update_prepare: headers only                     steps go on
 *     update_stage: into a second slab                 steps go on; other ranks are asked how far they are
 *     engine_call ────────────────────────────────────▶ FINISH: who has begun ends, others wait
 *                                                      update_commit, then requests, cache, version
 *     update_close: frees the old slab                 steps go on
 */
#include "engine/live.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "checkpoint/checkpoint.h"
#include "engine/instance.h"
#include "model/update.h"

#define POLL_NS 2000000 /* between two looks at how far the other ranks are */

_Static_assert((int)NYB_STAGING_AUTO == (int)UPDATE_STAGING_AUTO &&
                   (int)NYB_STAGING_ON == (int)UPDATE_STAGING_ON &&
                   (int)NYB_STAGING_OFF == (int)UPDATE_STAGING_OFF,
               "same order");
_Static_assert((int)NYB_WEIGHTS_OLD == (int)UPDATE_OLD && (int)NYB_WEIGHTS_NEW == (int)UPDATE_NEW &&
                   (int)NYB_WEIGHTS_INCONSISTENT == (int)UPDATE_INCONSISTENT,
               "same order");
_Static_assert(NYB_DIFFERENCES_MAX == UPDATE_SHOWN, "the same number is described");

const char *nyb_weights_state_name(enum nyb_weights_state s)
{
    return update_state_name((enum update_state)s);
}

void nyb_update_init(struct nyb_update *u)
{
    *u = (struct nyb_update){.in_flight = NYB_IN_FLIGHT_RETRACT};
}

/* ---- versions ---------------------------------------------------------------------------------------- */

static enum nyb_code check_version(const char *version, struct nyb_err *err)
{
    size_t n = strlen(version);
    if (n > 0 && n < NYB_VERSION_MAX)
        return NYB_OK;
    return err_at(err, NYB_E_RANGE, "weight_version", -1,
                  "weight_version must have 1 to %d bytes, got %zu. (parameter=weight_version)",
                  NYB_VERSION_MAX - 1, n);
}

enum nyb_code live_open(struct live *l, const char *folder, const char *version, struct nyb_err *err)
{
    *l = (struct live){0};
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->freed, NULL);
    if (!version)
        version = "default";
    TRY(check_version(version, err));
    snprintf(l->facts.version, sizeof(l->facts.version), "%s", version);
    snprintf(l->facts.folder, sizeof(l->facts.folder), "%s", folder);
    return NYB_OK;
}

bool live_take(struct live *l)
{
    pthread_mutex_lock(&l->lock);
    while (l->turn == LIVE_MOVES)
        pthread_cond_wait(&l->freed, &l->lock);
    bool taken = l->turn == LIVE_FREE;
    if (taken)
        l->turn = LIVE_TAKEN;
    pthread_mutex_unlock(&l->lock);
    return taken;
}

bool live_take_to_move(struct live *l)
{
    pthread_mutex_lock(&l->lock);
    bool taken = l->turn == LIVE_FREE;
    if (taken)
        l->turn = LIVE_MOVES;
    pthread_mutex_unlock(&l->lock);
    return taken;
}

void live_give(struct live *l)
{
    pthread_mutex_lock(&l->lock);
    ASSERT(l->turn != LIVE_FREE);
    l->turn = LIVE_FREE;
    pthread_cond_broadcast(&l->freed);
    pthread_mutex_unlock(&l->lock);
}

void live_close(struct live *l)
{
    if (l->has_snapshot)
        checksum_free(&l->snapshot);
    pthread_cond_destroy(&l->freed);
    pthread_mutex_destroy(&l->lock);
}

void nyb_engine_weights(const struct nyb_engine *e, struct nyb_weights *w)
{
    struct live *l = e->live;
    pthread_mutex_lock(&l->lock);
    *w = l->facts;
    pthread_mutex_unlock(&l->lock);
    w->inconsistent = model_weights_inconsistent(e->model);
}

static void do_set_version(struct step *s, void *arg)
{
    struct version **v = arg;
    step_set_version(s, *v);
    *v = NULL;
}

enum nyb_code nyb_set_weight_version(struct nyb_engine *e, const char *version, struct nyb_err *err)
{
    TRY(check_version(version, err));
    struct version *v = version_new(model_weights_generation(e->model), version);
    struct control_op op = {.run = do_set_version, .arg = &v};
    enum nyb_code code = engine_call(e->engine, &op, err);
    version_drop(v);
    if (code != NYB_OK)
        return code;
    pthread_mutex_lock(&e->live->lock);
    snprintf(e->live->facts.version, sizeof(e->live->facts.version), "%s", version);
    pthread_mutex_unlock(&e->live->lock);
    return NYB_OK;
}

/* ---- the commit: on the engine's thread ---------------------------------------------------------------- */

struct commit {
    const struct nyb_update *asked;
    struct update *update;
    struct update_facts *facts;
    struct version *next; /* NULL once the step has it */
    struct nyb_update_result *result;
    uint64_t posted_ns;
    enum nyb_code code;
    struct nyb_err *err;
};

/* From the first call on only those go on that have begun; true when none of them is left. */
static bool has_drained(struct step *s, void *arg)
{
    (void)arg;
    s->sched.only_started = true;
    return atomic_load(&s->paused) || step_started(s) == 0;
}

static enum nyb_in_flight in_flight_of(const struct commit *c, const struct step *s)
{
    enum nyb_in_flight mode = c->asked->in_flight;
    if (mode == NYB_IN_FLIGHT_FINISH) /* paused, or who is left has not finished in time */
        mode = atomic_load(&s->paused) ? NYB_IN_FLIGHT_CONTINUE : NYB_IN_FLIGHT_RETRACT;
    if (mode == NYB_IN_FLIGHT_CONTINUE && c->facts->kv_changes)
        mode = NYB_IN_FLIGHT_RETRACT;
    return mode;
}

static void take_new_weights(struct step *s, struct commit *c)
{
    enum nyb_in_flight mode = in_flight_of(c, s);
    c->result->n_paused = step_started(s);
    if (mode == NYB_IN_FLIGHT_ABORT)
        step_abort_all(s);
    else if (mode == NYB_IN_FLIGHT_RETRACT)
        step_retract_all(s);
    step_flush_cache(s); /* the prefix cache's new root */
    step_set_version(s, c->next);
    c->next = NULL;
    if (!c->asked->keep_pause)
        atomic_store(&s->paused, false);
}

static void do_commit(struct step *s, void *arg)
{
    struct commit *c = arg;
    uint64_t begin = clock_ns();
    atomic_store(&s->held, true);
    c->code = update_commit(c->update, c->err);
    if (c->code == NYB_OK)
        take_new_weights(s, c);
    else if (update_state(c->update) == UPDATE_INCONSISTENT)
        atomic_store(&s->paused, true);
    s->sched.only_started = false;
    atomic_store(&s->held, false);
    c->result->wait_ns = begin - c->posted_ns;
    c->result->stall_ns = clock_ns() - begin;
}

/* ---- an update: on the caller's thread -------------------------------------------------------------------
 */

static enum nyb_code check_update(const struct nyb_update *u, struct nyb_err *err)
{
    if (!u->folder == !u->upload)
        return err_at(err, NYB_E_ARG, "model_path", -1, "either a folder or an upload is needed, got %s",
                      u->folder ? "both" : "neither");
    if ((unsigned)u->in_flight >= NYB_IN_FLIGHT_COUNT)
        return err_at(err, NYB_E_RANGE, "in_flight", -1, "there is no mode %d for requests in flight",
                      (int)u->in_flight);
    if ((unsigned)u->staging >= NYB_STAGING_COUNT)
        return err_at(err, NYB_E_RANGE, "staging", -1, "there is no staging mode %d", (int)u->staging);
    return u->weight_version ? check_version(u->weight_version, err) : NYB_OK;
}

static void take_facts(const struct update_facts *f, struct nyb_update_result *r)
{
    r->n_tensor = f->n_tensor;
    r->read_bytes = f->read_bytes;
    r->weight_bytes = f->weight_bytes;
    r->staged_bytes = f->staged_bytes;
    r->staged = f->staged;
    r->prepare_ns = f->prepare_ns;
    r->stage_ns = f->stage_ns;
    r->n_difference = f->n_difference;
    r->n_shown = f->n_shown;
    memcpy(r->difference, f->difference, sizeof(r->difference));
}

/* What is wrong with the new checkpoint is the client's fault, whatever it is. */
static enum nyb_code code_of_prepare(enum nyb_code code, struct nyb_err *err)
{
    enum nyb_code to = code;
    if (code == NYB_E_BUSY)
        to = NYB_E_CONFLICT;
    else if (code == NYB_E_IO || code == NYB_E_FORMAT || code == NYB_E_UNSUPPORTED || code == NYB_E_NOT_FOUND)
        to = NYB_E_ARG;
    if (err)
        err->code = to;
    return to;
}

static enum nyb_code commit(struct nyb_engine *e, const struct nyb_update *u, struct update *update,
                            struct update_facts *facts, struct nyb_update_result *r, struct nyb_err *err)
{
    char number[32];
    snprintf(number, sizeof(number), "%llu", (unsigned long long)model_weights_generation(e->model) + 1);
    struct commit c = {.asked = u,
                       .update = update,
                       .facts = facts,
                       .next = version_new(model_weights_generation(e->model) + 1,
                                           u->weight_version ? u->weight_version : number),
                       .result = r,
                       .posted_ns = clock_ns(),
                       .err = err};
    struct control_op op = {.run = do_commit, .arg = &c};
    if (u->in_flight == NYB_IN_FLIGHT_FINISH)
        op.ready = has_drained;
    if (op.ready && u->finish_ms > 0)
        op.deadline_ns = c.posted_ns + (uint64_t)u->finish_ms * 1000000u;
    enum nyb_code code = engine_call(e->engine, &op, err);
    version_drop(c.next);
    return code == NYB_OK ? c.code : code;
}

struct poll {
    struct update *update;
    enum update_progress progress;
    enum nyb_code code;
    struct nyb_err *err;
};

static void do_poll(struct step *s, void *arg)
{
    struct poll *p = arg;
    (void)s;
    p->code = update_poll(p->update, &p->progress, p->err);
}

/* Until all ranks are as far as this one, a moment between two steps at a time. */
static enum nyb_code meet_ranks(struct nyb_engine *e, struct update *update, struct nyb_err *err)
{
    const struct timespec pause = {.tv_nsec = POLL_NS};
    struct poll p = {.update = update, .progress = UPDATE_WAIT, .err = err};
    struct control_op op = {.run = do_poll, .arg = &p};
    if (model_ranks(e->model) == 1)
        return NYB_OK;
    do {
        TRY(engine_call(e->engine, &op, err));
        if (p.code == NYB_OK && p.progress == UPDATE_WAIT)
            nanosleep(&pause, NULL);
    } while (p.code == NYB_OK && p.progress != UPDATE_READY);
    return p.code;
}

/* Beside the steps: everything but the commit. */
static enum nyb_code make_ready(struct nyb_engine *e, const struct nyb_update *u, struct update *update,
                                struct nyb_err *err)
{
    enum nyb_code code = meet_ranks(e, update, err);
    if (code != NYB_OK)
        return code_of_prepare(code, err);
    if (u->dry_run)
        return NYB_OK;
    TRY(update_stage(update, err));
    return meet_ranks(e, update, err);
}

static enum nyb_code apply(struct nyb_engine *e, const struct nyb_update *u, const char *folder,
                           struct nyb_update_result *r, struct nyb_err *err)
{
    struct update_facts *facts = mem_alloc(1, sizeof(*facts));
    const struct update_options o = {.folder = folder,
                                     .upload = (struct update_upload *)u->upload,
                                     .names = u->names,
                                     .n_names = u->n_names,
                                     .staging = (enum update_staging)u->staging,
                                     .n_thread = u->threads,
                                     .dry_run = u->dry_run,
                                     .progress = u->progress,
                                     .progress_arg = u->progress_arg};
    struct update *update = NULL;
    enum nyb_code code = update_prepare(&update, e->model, &o, facts, err);
    uint64_t prepared_ns = clock_ns();
    if (code != NYB_OK) {
        code = code_of_prepare(code, err);
    } else {
        code = make_ready(e, u, update, err);
        facts->stage_ns = clock_ns() - prepared_ns; /* the slowest rank's */
        if (code == NYB_OK && !u->dry_run)
            code = commit(e, u, update, facts, r, err);
        r->state = (enum nyb_weights_state)update_state(update);
    }
    take_facts(facts, r);
    update_close(update);
    free(facts);
    return code;
}

static void set_updating(struct live *l, bool updating)
{
    pthread_mutex_lock(&l->lock);
    l->facts.updating = updating;
    pthread_mutex_unlock(&l->lock);
}

/* What is served now, into the facts and the result. */
static void conclude(struct nyb_engine *e, const struct nyb_update *u, const char *folder, enum nyb_code code,
                     struct nyb_update_result *r)
{
    struct live *l = e->live;
    uint64_t generation = model_weights_generation(e->model);
    pthread_mutex_lock(&l->lock);
    l->facts.updating = false;
    l->facts.failures += code != NYB_OK;
    if (code == NYB_OK && !u->dry_run) {
        l->facts.updates++;
        if (u->weight_version)
            snprintf(l->facts.version, sizeof(l->facts.version), "%s", u->weight_version);
        else
            snprintf(l->facts.version, sizeof(l->facts.version), "%llu", (unsigned long long)generation);
        if (folder && u->n_names == 0)
            snprintf(l->facts.folder, sizeof(l->facts.folder), "%s", folder);
    }
    l->facts.generation = generation;
    memcpy(r->weight_version, l->facts.version, sizeof(r->weight_version));
    pthread_mutex_unlock(&l->lock);
    r->generation = generation;
    if (code == NYB_OK && !u->dry_run)
        log_info("weights: version %s, %d tensors; staged in %.3f s, no steps for %.1f ms", r->weight_version,
                 r->n_tensor, (double)r->stage_ns * 1e-9, (double)r->stall_ns * 1e-6);
}

enum nyb_code nyb_update_weights(struct nyb_engine *e, const struct nyb_update *u,
                                 struct nyb_update_result *result, struct nyb_err *err)
{
    struct live *l = e->live;
    char *folder = NULL;
    *result = (struct nyb_update_result){.state = NYB_WEIGHTS_OLD,
                                         .generation = model_weights_generation(e->model)};
    pthread_mutex_lock(&l->lock);
    memcpy(result->weight_version, l->facts.version, sizeof(result->weight_version));
    pthread_mutex_unlock(&l->lock);
    TRY(check_update(u, err));
    if (engine_is_stopping(e->engine))
        return err_set(err, NYB_E_CLOSED, "the engine is shutting down");
    if (!live_take(l))
        return err_set(err, NYB_E_CONFLICT, "another update of the weights is in progress");
    set_updating(l, true);
    enum nyb_code code = u->folder ? ckpt_resolve(&folder, u->folder, err) : NYB_OK;
    if (code != NYB_OK)
        code = code_of_prepare(code, err);
    else
        code = apply(e, u, folder, result, err);
    conclude(e, u, folder, code, result);
    if (code != NYB_OK && !u->dry_run && err)
        log_warn("weights: no update: %s%s%s", err->where, err->where[0] ? ": " : "", err->message);
    live_give(l);
    free(folder);
    return code;
}
