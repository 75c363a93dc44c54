/* Reading new weights, putting them where the old ones are, and going back. */
#include <stdlib.h>
#include <string.h>

#include <unistd.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/topology.h"
#include "model/budget.h"
#include "model/fill.h"
#include "model/ranks.h"
#include "model/update_internal.h"

static struct slot *live_slot(const struct update *u, const struct touched *t)
{
    return &u->m->weights.slots.slot[t->index];
}

/* ---- the plan: chunks of the slab ---------------------------------------------------------------- */

static size_t chunk_bytes(const struct update *u, int chunk)
{
    size_t left = u->m->weights.slots.slab.bytes - (size_t)chunk * PAGES_HUGE;
    return left < PAGES_HUGE ? left : PAGES_HUGE;
}

/* Add up how much of each chunk the changing slots cover. */
static void cover_chunks(struct update *u)
{
    const struct pages *slab = &u->m->weights.slots.slab;
    u->n_chunk = (int)((slab->bytes + PAGES_HUGE - 1) / PAGES_HUGE);
    u->covered = mem_alloc((size_t)u->n_chunk + 1, sizeof(*u->covered));
    for (int i = 0; i < u->next.n; i++) {
        const struct slot *s = live_slot(u, &u->touched[u->next_touched[i]]);
        size_t at = (size_t)(slot_address(s) - slab->data), end = at + slot_bytes(s);
        while (at < end) {
            size_t stop = (at / PAGES_HUGE + 1) * PAGES_HUGE;
            stop = stop < end ? stop : end;
            u->covered[at / PAGES_HUGE] += stop - at;
            at = stop;
        }
    }
}

static uint64_t staged_bytes(const struct update *u)
{
    uint64_t total = 0;
    for (int i = 0; i < u->n_chunk; i++)
        total += u->covered[i] ? chunk_bytes(u, i) : 0;
    return total;
}

static int stage_threads(const struct update *u)
{
    return u->o.n_thread > 0 ? u->o.n_thread : 1;
}

static enum nyb_code reserve_staged(struct update *u, struct nyb_err *err)
{
    uint64_t bytes = staged_bytes(u);
    uint64_t need = bytes + bytes / 16 + fill_staging_bytes(&u->next, stage_threads(u));
    TRY(budget_check(need, "the staged weights", err));
    TRY(pages_reserve(&u->staged, u->m->weights.slots.slab.bytes, err));
    topology_interleave(pool_topology(u->m->pool), u->staged.data, u->staged.bytes);
    u->facts->staged = true;
    u->facts->staged_bytes = bytes;
    return NYB_OK;
}

/* Reading in place is only begun where the way back is open. */
static enum nyb_code check_way_back(const struct update *u, struct nyb_err *err)
{
    const struct origin *checked = NULL;
    for (int i = 0; i < u->next.n && u->state != UPDATE_INCONSISTENT; i++) {
        const struct slot *s = live_slot(u, &u->touched[u->next_touched[i]]);
        if (!s->origin)
            return err_at(err, NYB_E_MEMORY, s->name, -1,
                          "cannot be read again if the update fails, as no file holds what is served: this "
                          "needs staging, which is off or for which memory has no room");
        if (s->origin != checked)
            TRY(origin_check(s->origin, err));
        checked = s->origin;
    }
    return NYB_OK;
}

enum nyb_code update_plan(struct update *u, struct nyb_err *err)
{
    struct nyb_err why;
    cover_chunks(u);
    if (!u->next.n) /* scales alone */
        return NYB_OK;
    if (u->o.staging != UPDATE_STAGING_OFF) {
        enum nyb_code code = reserve_staged(u, &why);
        if (code == NYB_OK)
            return NYB_OK;
        if (u->o.staging == UPDATE_STAGING_ON) {
            if (err)
                *err = why;
            return code;
        }
        log_info("the new weights are not staged: %s", why.message);
    }
    return check_way_back(u, err);
}

/* ---- reading ------------------------------------------------------------------------------------- */

struct row_reader {
    struct update *u;
    enum update_point point;
};

/* Whichever checkpoint the slot names; the seed where it names none. */
static struct fill_source source_of(const struct row_reader *r, const struct fill_piece *p)
{
    return p->slot->origin ? fill_from_checkpoint(origin_ckpt(p->slot->origin))
                           : fill_from_seed(&r->u->o.dummy_seed);
}

static enum nyb_code make_rows(const void *arg, const struct fill_piece *p, struct nyb_err *err)
{
    const struct row_reader *r = arg;
    const struct fill_source source = source_of(r, p);
    TRY(update_fault(r->u, r->point, err));
    return source.make(source.arg, p, err);
}

static bool locate_rows(const void *arg, const struct fill_piece *p, struct fill_extent extent[2])
{
    const struct fill_source source = source_of(arg, p);
    return source.locate && source.locate(source.arg, p, extent);
}

static enum nyb_code check_rows(const void *arg, const struct fill_piece *p, struct nyb_err *err)
{
    const struct row_reader *r = arg;
    const struct fill_source source = source_of(r, p);
    TRY(update_fault(r->u, r->point, err));
    return source.check(source.arg, p, err);
}

/* Fill `next` at `slab`, which has the layout of the model's. */
static enum nyb_code read_into(struct update *u, uint8_t *slab, enum update_point point, struct pool *pool,
                               struct nyb_err *err)
{
    const struct row_reader reader = {u, point};
    const struct fill_source source = {make_rows, &reader, locate_rows, check_rows};
    const struct fill_progress progress = {u->o.progress, u->o.progress_arg};
    const uint8_t *live = u->m->weights.slots.slab.data;
    for (int i = 0; i < u->next.n; i++) {
        const struct slot *s = live_slot(u, &u->touched[u->next_touched[i]]);
        slot_set_address(&u->next.slot[i], slab + (slot_address(s) - live));
    }
    return u->next.n ? fill_slots(&u->next, &source, pool, &progress, err) : NYB_OK;
}

/* Chunks that hold other slots too are staged with these as they are: steps only read them. */
static void copy_neighbours(struct update *u)
{
    const struct pages *slab = &u->m->weights.slots.slab;
    for (int i = 0; i < u->n_chunk; i++)
        if (u->covered[i] && u->covered[i] < chunk_bytes(u, i))
            memcpy(u->staged.data + (size_t)i * PAGES_HUGE, slab->data + (size_t)i * PAGES_HUGE,
                   chunk_bytes(u, i));
}

enum nyb_code update_stage(struct update *u, struct nyb_err *err)
{
    uint64_t begin = clock_ns();
    enum nyb_code code = NYB_OK;
    ASSERT(u->phase == PHASE_PREPARED);
    if (u->facts->staged) {
        struct pool *pool = NULL;
        code = pool_open(&pool, stage_threads(u), err);
        if (code == NYB_OK) {
            copy_neighbours(u);
            code = read_into(u, u->staged.data, UPDATE_AT_READ, pool, err);
        }
        pool_close(pool);
    }
    u->phase = code == NYB_OK ? PHASE_STAGED : PHASE_FAILED;
    u->facts->stage_ns = clock_ns() - begin;
    return code;
}

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
    struct slot *s = live_slot(u, t);
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
    return NYB_OK;
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
        size_t bytes = (size_t)(last - 1 - first) * PAGES_HUGE + chunk_bytes(u, last - 1);
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
    size_t n = s->kind == SLOT_MATRIX ? slot_bytes(s) : (size_t)s->n * sizeof(float); /* no padding */
    return XXH3_64bits(slot_address(s), n);
}

static void hash_slot(void *arg, int item, int worker)
{
    (void)worker;
    const struct update *u = arg;
    struct touched *t = &u->touched[u->next_touched[item]];
    t->old_hash = hash_bytes(live_slot(u, t));
}

static void compare_slot(void *arg, int item, int worker)
{
    (void)worker;
    struct update *u = arg;
    const struct touched *t = &u->touched[u->next_touched[item]];
    if (t->old_hash != hash_bytes(live_slot(u, t)))
        atomic_store(&u->hash_differs, true);
}

/* Fill the slots from where they were filled before. The facts of the live slots are the old ones. */
static enum nyb_code read_old(struct update *u, struct nyb_err *err)
{
    if (u->was_inconsistent)
        return err_set(err, NYB_E_IO, "the weights were inconsistent before: there is nothing to go back to");
    for (int i = 0; i < u->next.n; i++) {
        const struct slot *s = live_slot(u, &u->touched[u->next_touched[i]]);
        u->next.slot[i].source = s->source;
        u->next.slot[i].tensor = s->tensor;
        u->next.slot[i].origin = s->origin;
    }
    TRY(read_into(u, u->m->weights.slots.slab.data, UPDATE_AT_ROLLBACK, u->m->pool, err));
    pool_run(u->m->pool, u->next.n, compare_slot, u);
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
    TRY(check_way_back(u, err));
    pool_run(u->m->pool, u->next.n, hash_slot, u);
    enum nyb_code code = read_into(u, u->m->weights.slots.slab.data, UPDATE_AT_READ, u->m->pool, &first);
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
    if (code != NYB_OK)
        return lose(u, code, &called_off, &second, err);
    u->state = u->was_inconsistent ? UPDATE_INCONSISTENT : UPDATE_OLD;
    atomic_store(&u->m->inconsistent, u->was_inconsistent);
    atomic_fetch_sub(&u->m->weights_generation, 1);
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
    u->state = UPDATE_INCONSISTENT;
    atomic_store(&u->m->inconsistent, true);
    atomic_fetch_add(&u->m->weights_generation, 1);
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
    ranks_commit(u->m);
    enum nyb_code code = commit_together(u, &own);
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
    ranks_rollback(u->m);
    enum nyb_code code = rollback_here(u, &own), others = share_loss(u, &own);
    code = code == NYB_OK ? others : code;
    if (code != NYB_OK && err)
        *err = own;
    u->facts->rollback_ns = clock_ns() - begin;
    return code;
}
