/* What is read where: into a second slab beside the served one, or in place. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/topology.h"
#include "model/budget.h"
#include "model/fill.h"
#include "model/update_internal.h"
#include "model/update_ranks.h"

struct slot *update_live_slot(const struct update *u, const struct touched *t)
{
    return &u->m->weights.slots.slot[t->index];
}

/* ---- the plan: chunks of the slab ---------------------------------------------------------------- */

size_t update_chunk_bytes(const struct update *u, int chunk)
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
        const struct slot *s = update_live_slot(u, &u->touched[u->next_touched[i]]);
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
        total += u->covered[i] ? update_chunk_bytes(u, i) : 0;
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

enum nyb_code update_check_way_back(const struct update *u, struct nyb_err *err)
{
    const struct origin *checked = NULL;
    for (int i = 0; i < u->next.n && u->state != UPDATE_INCONSISTENT; i++) {
        const struct slot *s = update_live_slot(u, &u->touched[u->next_touched[i]]);
        if (s->origin && s->origin != checked)
            TRY(origin_check(s->origin, err));
        checked = s->origin;
    }
    return NYB_OK;
}

static enum nyb_code plan_in_place(struct update *u, struct nyb_err *err)
{
    TRY(update_aside_plan(u, err));
    return update_check_way_back(u, err);
}

enum nyb_code update_plan(struct update *u, struct nyb_err *err)
{
    struct nyb_err why;
    if (u->m->device) {
        if (u->o.staging == UPDATE_STAGING_ON && u->next.n)
            return err_at(err, NYB_E_UNSUPPORTED, "staging", -1,
                          "on: weights on a GPU are written in place, there is no second copy of them");
        return plan_in_place(u, err);
    }
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
    return plan_in_place(u, err);
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

/* On a GPU the slots lie where the live ones do, whatever `slab` is. */
enum nyb_code update_read_into(struct update *u, uint8_t *slab, enum update_point point, struct pool *pool,
                               struct nyb_err *err)
{
    const struct row_reader reader = {u, point};
    const struct fill_source source = {make_rows, &reader, locate_rows, check_rows};
    const struct fill_progress progress = {u->o.progress, u->o.progress_arg};
    const uint8_t *live = u->m->weights.slots.slab.data;
    struct slots part = {.slot = mem_alloc((size_t)u->next.n + 1, sizeof(*part.slot))};
    for (int i = 0; i < u->next.n; i++) {
        const struct slot *s = update_live_slot(u, &u->touched[u->next_touched[i]]);
        if (point == UPDATE_AT_ROLLBACK && !s->origin)
            continue;
        u->next.slot[i].place = s->place;
        slot_set_address(&u->next.slot[i], s->place ? slot_address(s) : slab + (slot_address(s) - live));
        part.slot[part.n++] = u->next.slot[i];
    }
    enum nyb_code code = part.n ? fill_slots(&part, &source, pool, &progress, err) : NYB_OK;
    free(part.slot);
    return code;
}

/* Chunks that hold other slots too are staged with these as they are: steps only read them. */
static void copy_neighbours(struct update *u)
{
    const struct pages *slab = &u->m->weights.slots.slab;
    for (int i = 0; i < u->n_chunk; i++)
        if (u->covered[i] && u->covered[i] < update_chunk_bytes(u, i))
            memcpy(u->staged.data + (size_t)i * PAGES_HUGE, slab->data + (size_t)i * PAGES_HUGE,
                   update_chunk_bytes(u, i));
}

enum nyb_code update_stage(struct update *u, struct nyb_err *err)
{
    uint64_t begin = clock_ns();
    enum nyb_code code = NYB_OK;
    ASSERT(u->phase == PHASE_PREPARED);
    if (u->announced && !u->stage_said)
        update_announce_stage(u->m);
    u->stage_said = true;
    if (u->facts->staged) {
        struct pool *pool = NULL;
        code = pool_open(&pool, stage_threads(u), err);
        if (code == NYB_OK) {
            copy_neighbours(u);
            code = update_read_into(u, u->staged.data, UPDATE_AT_READ, pool, err);
        }
        pool_close(pool);
    }
    u->phase = code == NYB_OK ? PHASE_STAGED : PHASE_FAILED;
    u->facts->stage_ns = clock_ns() - begin;
    return code;
}
