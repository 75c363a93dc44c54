/* Putting new weights where the old ones are, and going back. */
#include <unistd.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/log.h"
#include "model/device.h"
#include "model/ranks.h"
#include "model/update_internal.h"
#include "model/update_ranks.h"

/* ---- scales and origins -------------------------------------------------------------------------- */

static void exchange_float(float *a, float *b)
{
    float t = *a;
    *a = *b;
    *b = t;
}

/* All that a slot has besides its bytes; twice is nothing. */
static void exchange_facts(struct update *u, struct touched *t)
{
    struct slot *s = update_live_slot(u, t);
    struct touched was = *t;
    t->source = s->source;
    t->tensor = s->tensor;
    t->origin = s->origin;
    s->source = was.source;
    s->tensor = was.tensor;
    s->origin = was.origin;
    if (s->kind == SLOT_VECTOR)
        return;
    exchange_float(&s->weight->global_scale, &t->weight.global_scale);
    exchange_float(&s->weight->input_scale, &t->weight.input_scale);
}

static void exchange_kv_scales(struct update *u)
{
    struct model *m = u->m;
    for (int i = 0; i < m->config.n_layer; i++) {
        struct layer_weights *l = &m->weights.layer[i];
        exchange_float(&l->k_scale, &u->k_scale[i]);
        exchange_float(&l->v_scale, &u->v_scale[i]);
        if (m->kv) {
            m->kv[i].k_scale = l->k_scale;
            m->kv[i].v_scale = l->v_scale;
        }
    }
}

static void exchange_all_facts(struct update *u)
{
    for (int i = 0; i < u->n_touched; i++)
        exchange_facts(u, &u->touched[i]);
    exchange_kv_scales(u);
    weights_link(&u->m->weights, &u->m->config);
    struct nyb_err lost;
    if (u->m->device && device_write_scales(u->m->device, &lost) != NYB_OK)
        log_error("%s", lost.message); /* its next step fails and says so to the requests */
}

static enum nyb_code install_facts(struct update *u, struct nyb_err *err)
{
    for (int i = 0; i < u->n_touched; i++) {
        enum nyb_code code = update_fault(u, UPDATE_AT_COMMIT, err);
        if (code != NYB_OK) {
            while (i-- > 0)
                exchange_facts(u, &u->touched[i]);
            return code;
        }
        exchange_facts(u, &u->touched[i]);
    }
    exchange_kv_scales(u);
    weights_link(&u->m->weights, &u->m->config);
    if (!u->m->device)
        return NYB_OK;
    enum nyb_code code = device_write_scales(u->m->device, err);
    if (code != NYB_OK)
        exchange_all_facts(u);
    return code;
}

/* ---- staged -------------------------------------------------------------------------------------- */

/* Exchange the changing chunks before `end` in runs as long as possible. With `faults` each run may be made
 * to fail: *done then says where. */
static enum nyb_code exchange_chunks(struct update *u, int end, bool faults, int *done, struct nyb_err *err)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *live = u->m->weights.slots.slab.data;
    for (int first = 0, last; first < end; first = last) {
        last = first + 1;
        *done = first;
        if (!u->covered[first])
            continue;
        while (last < end && u->covered[last])
            last++;
        if (faults)
            TRY(update_fault(u, UPDATE_AT_COMMIT, err));
        size_t at = (size_t)first * PAGES_HUGE;
        size_t bytes = (size_t)(last - 1 - first) * PAGES_HUGE + update_chunk_bytes(u, last - 1);
        pages_exchange(live + at, u->staged.data + at, (bytes + page - 1) / page * page, u->m->pool);
    }
    *done = end;
    return NYB_OK;
}

static void exchange_chunks_back(struct update *u, int end)
{
    int done;
    enum nyb_code code = exchange_chunks(u, end, false, &done, NULL);
    ASSERT(code == NYB_OK); /* nothing in it can fail */
}

static enum nyb_code commit_staged(struct update *u, struct nyb_err *err)
{
    int done = 0, end = u->facts->staged ? u->n_chunk : 0;
    enum nyb_code code = exchange_chunks(u, end, true, &done, err);
    if (code == NYB_OK)
        code = install_facts(u, err);
    if (code != NYB_OK)
        exchange_chunks_back(u, done);
    return code;
}

/* ---- in place ------------------------------------------------------------------------------------ */

static uint64_t hash_bytes(const struct slot *s)
{
    if (s->place)
        return device_place_hash(s);
    size_t n = s->kind == SLOT_MATRIX ? slot_bytes(s) : (size_t)s->n * sizeof(float); /* no padding */
    return XXH3_64bits(slot_address(s), n);
}

static void hash_slot(void *arg, int item, int worker)
{
    (void)worker;
    const struct update *u = arg;
    struct touched *t = &u->touched[u->next_touched[item]];
    t->old_hash = hash_bytes(update_live_slot(u, t));
}

static void compare_slot(void *arg, int item, int worker)
{
    (void)worker;
    struct update *u = arg;
    const struct touched *t = &u->touched[u->next_touched[item]];
    uint64_t now = hash_bytes(update_live_slot(u, t));
    if (now == 0 || t->old_hash != now) /* 0: a GPU could not be read */
        atomic_store(&u->hash_differs, true);
}

/* A GPU is read by one thread at a time. */
static void for_each_next(struct update *u, pool_fn *fn)
{
    if (!u->m->device) {
        pool_run(u->m->pool, u->next.n, fn, u);
        return;
    }
    for (int i = 0; i < u->next.n; i++)
        fn(u, i, 0);
}

/* Fill the slots from where they were filled before, or from the copies. The facts of the live slots are the
 * old ones. */
static enum nyb_code read_old(struct update *u, struct nyb_err *err)
{
    if (u->was_inconsistent)
        return err_set(err, NYB_E_IO, "the weights were inconsistent before: there is nothing to go back to");
    for (int i = 0; i < u->next.n; i++) {
        const struct slot *s = update_live_slot(u, &u->touched[u->next_touched[i]]);
        u->next.slot[i].source = s->source;
        u->next.slot[i].tensor = s->tensor;
        u->next.slot[i].origin = s->origin;
    }
    TRY(update_aside_put_back(u, err));
    TRY(update_read_into(u, u->m->weights.slots.slab.data, UPDATE_AT_ROLLBACK, u->m->pool, err));
    for_each_next(u, compare_slot);
    if (atomic_load(&u->hash_differs))
        return err_set(err, NYB_E_IO, "the old checkpoint was read again and is not what it was");
    return NYB_OK;
}

/* Both errors matter to whoever has to repair it. */
static enum nyb_code lose(struct update *u, enum nyb_code code, const struct nyb_err *first,
                          const struct nyb_err *second, struct nyb_err *err)
{
    u->state = UPDATE_INCONSISTENT;
    atomic_store(&u->m->inconsistent, true);
    atomic_fetch_add(&u->m->weights_generation, 1);
    return err_at(err, code, first->where, first->offset,
                  "%.360s; and the old weights could not be put back: %.120s%s%.200s", first->message,
                  second->where, second->where[0] ? ": " : "", second->message);
}

static enum nyb_code commit_in_place(struct update *u, struct nyb_err *err)
{
    struct nyb_err first, second;
    TRY(update_check_way_back(u, err));
    TRY(update_aside_take(u, err));
    for_each_next(u, hash_slot);
    enum nyb_code code =
        update_read_into(u, u->m->weights.slots.slab.data, UPDATE_AT_READ, u->m->pool, &first);
    if (code == NYB_OK)
        code = install_facts(u, &first);
    if (code == NYB_OK)
        return NYB_OK;
    if (read_old(u, &second) != NYB_OK)
        return lose(u, code, &first, &second, err);
    if (err)
        *err = first;
    return code;
}

/* ---- one rank's part ----------------------------------------------------------------------------- */

static enum nyb_code commit_here(struct update *u, struct nyb_err *err)
{
    bool in_place = u->next.n && !u->facts->staged;
    enum nyb_code code = in_place ? commit_in_place(u, err) : commit_staged(u, err);
    u->phase = code == NYB_OK ? PHASE_COMMITTED : PHASE_FAILED;
    if (code == NYB_OK) {
        u->state = UPDATE_NEW;
        atomic_store(&u->m->inconsistent, false); /* update_prepare lets nothing else through then */
        atomic_fetch_add(&u->m->weights_generation, 1);
    }
    return code;
}

static enum nyb_code rollback_here(struct update *u, struct nyb_err *err)
{
    static const struct nyb_err called_off = {.message = "the update was called off"};
    struct nyb_err second;
    enum nyb_code code = NYB_OK;
    if (u->phase != PHASE_COMMITTED)
        return NYB_OK;
    u->phase = PHASE_FAILED;
    exchange_all_facts(u);
    if (u->facts->staged)
        exchange_chunks_back(u, u->n_chunk);
    else if (u->next.n)
        code = read_old(u, &second);
    atomic_fetch_sub(&u->m->weights_generation,
                     1); /* and one up again where they are lost, as on every rank */
    if (code != NYB_OK)
        return lose(u, code, &called_off, &second, err);
    u->state = u->was_inconsistent ? UPDATE_INCONSISTENT : UPDATE_OLD;
    atomic_store(&u->m->inconsistent, u->was_inconsistent);
    return NYB_OK;
}

/* ---- all of them --------------------------------------------------------------------------------- */

/* Where one rank has lost its weights, the others' are of no use. */
static enum nyb_code share_loss(struct update *u, struct nyb_err *err)
{
    struct nyb_err own = {.message = "this rank's weights are neither the old nor the new ones"};
    bool lost = u->state == UPDATE_INCONSISTENT;
    enum nyb_code code = ranks_agree_slowly(u->m->comm, lost ? NYB_E_IO : NYB_OK, &own);
    if (code == NYB_OK || lost)
        return lost ? NYB_E_IO : NYB_OK;
    if (code != NYB_E_RANK) { /* one that is gone has no weights that could differ from these */
        u->state = UPDATE_INCONSISTENT;
        atomic_store(&u->m->inconsistent, true);
        atomic_fetch_add(&u->m->weights_generation, 1);
    }
    if (err)
        *err = own;
    return code;
}

static enum nyb_code commit_together(struct update *u, struct nyb_err *err)
{
    struct comm *comm = u->m->comm;
    struct nyb_err second = {0};
    enum nyb_code here = ranks_agree_slowly(comm, NYB_OK, err); /* all have staged */
    if (here != NYB_OK) {
        u->phase = PHASE_FAILED;
        return here;
    }
    here = commit_here(u, err);
    enum nyb_code all = ranks_agree_slowly(comm, here, err);
    if (all == NYB_OK)
        return NYB_OK;
    (void)rollback_here(u, &second); /* its outcome is the state, which is shared now */
    (void)share_loss(u, &second);
    return all;
}

enum nyb_code update_commit(struct update *u, struct nyb_err *err)
{
    uint64_t begin = clock_ns();
    struct nyb_err own = {0};
    ASSERT(u->phase == PHASE_STAGED);
    enum nyb_code code = update_meet(u, &own);
    if (code == NYB_OK) {
        ranks_do(u->m, TASK_UPDATE_COMMIT, "", 0);
        code = commit_together(u, &own);
    } else {
        u->phase = PHASE_FAILED;
    }
    if (code != NYB_OK && err)
        *err = own;
    u->facts->commit_ns = clock_ns() - begin;
    return code;
}

enum nyb_code update_rollback(struct update *u, struct nyb_err *err)
{
    uint64_t begin = clock_ns();
    struct nyb_err own = {0};
    if (u->phase != PHASE_COMMITTED)
        return NYB_OK;
    ranks_do(u->m, TASK_UPDATE_ROLLBACK, "", 0);
    enum nyb_code code = rollback_here(u, &own), others = share_loss(u, &own);
    code = code == NYB_OK ? others : code;
    if (code != NYB_OK && err)
        *err = own;
    u->facts->rollback_ns = clock_ns() - begin;
    return code;
}
