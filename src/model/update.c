/* The life of an update. */
#include "model/update.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/glob.h"
#include "model/ranks.h"
#include "model/update_internal.h"
#include "model/update_ranks.h"
#include "model/upload.h"

/* ---- for all files of it ------------------------------------------------------------------------- */

bool update_wants(const struct update *u, const char *tensor)
{
    bool wanted = u->o.n_names == 0;
    for (int i = 0; i < u->o.n_names; i++)
        if (glob_match(u->o.names[i], tensor))
            wanted = u->name_used[i] = true;
    return wanted;
}

void update_differs(struct update *u, const char *fmt, ...)
{
    struct update_facts *f = u->facts;
    f->n_difference++;
    if (f->n_shown == UPDATE_SHOWN)
        return;
    va_list args;
    va_start(args, fmt);
    vsnprintf(f->difference[f->n_shown++], sizeof(f->difference[0]), fmt, args);
    va_end(args);
}

enum nyb_code update_fault(struct update *u, enum update_point point, struct nyb_err *err)
{
    int64_t count = atomic_fetch_add(&u->count[point], 1);
    if (point == UPDATE_AT_READ && atomic_load(&u->called_off))
        return err_set(err, NYB_E_CANCELLED, "the update was called off");
    enum nyb_code code = u->o.fault ? u->o.fault(u->o.fault_arg, point, count) : NYB_OK;
    return code == NYB_OK ? code
                          : err_set(err, code, "a fault was asked for at point %d, call %lld", (int)point,
                                    (long long)count);
}

void update_call_off(struct update *u)
{
    atomic_store(&u->called_off, true);
}

/* ---- opening ------------------------------------------------------------------------------------- */

/* A folder with a part of the weights need not repeat the configuration. */
static bool has_config(const struct update *u)
{
    if (!u->o.folder)
        return false;
    if (!u->o.n_names)
        return true; /* or the error says that it is missing */
    char *path = path_join(u->o.folder, "config.json");
    bool there = file_exists(path);
    free(path);
    return there;
}

static enum nyb_code open_checkpoint(struct update *u, struct nyb_err *err)
{
    if (has_config(u)) {
        TRY(hfconfig_open_with(&u->hf, u->o.folder, u->m->hf.overrides, err));
        TRY(update_check_config(u, err));
        TRY(quant_parse(&u->quant, u->hf.root, u->o.folder, err));
        if (quant_kv_is_fp8(u->quant) != quant_kv_is_fp8(u->m->quant))
            update_differs(u, "config.json: the KV cache is declared %sFP8, in the served model it is %sFP8",
                           quant_kv_is_fp8(u->quant) ? "" : "not ",
                           quant_kv_is_fp8(u->m->quant) ? "" : "not ");
    }
    if (!u->quant)
        u->quant = u->m->quant;
    if (u->o.load_format == LOAD_DUMMY)
        return NYB_OK;
    if (u->o.upload)
        TRY(upload_open_ckpt(&u->ckpt, u->o.upload, err));
    else
        TRY(ckpt_open(&u->ckpt, u->o.folder, 0, err)); /* decoding keeps its cores */
    u->origin = origin_new(u->ckpt, model_weights_generation(u->m) + 1);
    return NYB_OK;
}

/* In one error what the facts list. */
static enum nyb_code refuse(const struct update_facts *f, struct nyb_err *err)
{
    if (f->n_difference == 1)
        return err_set(err, NYB_E_ARG, "the new weights do not fit the served model: %s", f->difference[0]);
    return err_set(err, NYB_E_ARG,
                   "the new weights do not fit the served model in %lld places, the first: %s",
                   (long long)f->n_difference, f->difference[0]);
}

static enum nyb_code prepare(struct update *u, struct nyb_err *err)
{
    const struct update_options *o = &u->o;
    if (!o->folder == !o->upload)
        return err_set(err, NYB_E_ARG, "an update is from a folder or from an upload, one of them");
    if (u->was_inconsistent && (o->n_names || o->upload))
        return err_set(err, NYB_E_ARG,
                       "the served weights are inconsistent since an update that could not be undone: only a "
                       "complete update is accepted");
    if (o->load_format == LOAD_DUMMY && o->n_names)
        return err_set(err, NYB_E_ARG, "random weights replace all tensors, so `names` must be empty");
    TRY(open_checkpoint(u, err));
    TRY(o->load_format == LOAD_DUMMY ? update_check_dummy(u, err) : update_check_tensors(u, err));
    if (u->facts->n_difference)
        return refuse(u->facts, err);
    return update_plan(u, err);
}

enum nyb_code update_prepare(struct update **out, struct model *m, const struct update_options *o,
                             struct update_facts *facts, struct nyb_err *err)
{
    uint64_t begin = clock_ns();
    *out = NULL;
    *facts = (struct update_facts){0};
    if (atomic_exchange(&m->updating, true))
        return err_set(err, NYB_E_BUSY, "another update of the weights is under way");
    struct update *u = mem_alloc(1, sizeof(*u));
    *u = (struct update){.m = m, .o = *o, .facts = facts, .was_inconsistent = atomic_load(&m->inconsistent)};
    u->state = u->was_inconsistent ? UPDATE_INCONSISTENT : UPDATE_OLD;
    u->name_used = mem_alloc((size_t)o->n_names + 1, sizeof(*u->name_used));
    slots_init(&u->next);
    enum nyb_code code = prepare(u, err);
    facts->prepare_ns = clock_ns() - begin;
    u->own_staged = facts->staged_bytes;
    if (code != NYB_OK) {
        update_close(u);
        return code;
    }
    u->announced = comm_size(m->comm) > 1 && comm_rank(m->comm) == 0;
    if (u->announced)
        update_announce(m, o);
    *out = u;
    return NYB_OK;
}

void update_close(struct update *u)
{
    if (!u)
        return;
    struct model *m = u->m;
    if (u->announced)
        update_announce_close(m);
    pages_free(&u->staged);
    pages_free(&u->aside);
    for (int i = 0; i < u->n_touched; i++)
        origin_drop(u->touched[i].origin);
    origin_drop(u->origin);
    for (int i = 0; i < u->next.n; i++)
        u->next.slot[i].origin = NULL; /* borrowed */
    slots_free(&u->next);
    free(u->next_touched);
    free(u->touched);
    free(u->name_used);
    free(u->k_scale);
    free(u->v_scale);
    free(u->covered);
    if (u->quant != m->quant)
        quant_free(u->quant);
    hfconfig_close(&u->hf);
    free(u);
    atomic_store(&m->updating, false);
}

/* ---- the other ranks ----------------------------------------------------------------------------- */

/* The next bytes of the upload. True: there were some. */
static enum nyb_code send_piece(struct update *u, bool *sent, struct nyb_err *err)
{
    uint64_t left = u->o.upload ? upload_bytes(u->o.upload) - u->sent : 0;
    size_t slot = comm_slot_bytes(u->m->comm), n = left < slot ? (size_t)left : slot;
    *sent = n > 0;
    if (!n)
        return NYB_OK;
    void *piece = mem_alloc(n, 1);
    enum nyb_code code = upload_read(u->o.upload, u->sent, piece, n, err);
    if (code == NYB_OK)
        ranks_do(u->m, TASK_UPDATE_PIECE, piece, n);
    u->sent += n;
    free(piece);
    return code;
}

static enum nyb_code ask_all(struct update *u, enum update_progress *progress, struct nyb_err *err)
{
    int n = comm_size(u->m->comm), wanted = u->phase == PHASE_STAGED ? 2 : 1;
    struct update_status *all = mem_alloc((size_t)n, sizeof(*all));
    enum nyb_code code = update_ask(u->m, all) ? NYB_OK : comm_status(u->m->comm, err);
    *progress = UPDATE_READY;
    u->facts->staged_bytes = u->own_staged;
    for (int r = 1; r < n && code == NYB_OK; r++) {
        if (all[r].phase < wanted)
            *progress = UPDATE_WAIT;
        u->facts->staged_bytes += all[r].staged_bytes;
        code = (enum nyb_code)all[r].code;
        if (code != NYB_OK && err)
            *err = all[r].err;
    }
    free(all);
    return code;
}

enum nyb_code update_poll(struct update *u, enum update_progress *progress, struct nyb_err *err)
{
    bool sent = false;
    *progress = UPDATE_READY;
    if (!u->announced)
        return NYB_OK;
    ASSERT(u->phase == PHASE_PREPARED || u->phase == PHASE_STAGED);
    update_say(u->m);
    TRY(send_piece(u, &sent, err));
    *progress = UPDATE_NEXT;
    if (sent)
        return NYB_OK;
    TRY(ask_all(u, progress, err));
    if (*progress == UPDATE_READY && !u->stage_said && !u->o.dry_run) {
        u->stage_said = true; /* they begin while this rank does */
        ranks_do(u->m, TASK_UPDATE_STAGE, "", 0);
    }
    return NYB_OK;
}

enum nyb_code update_meet(struct update *u, struct nyb_err *err)
{
    bool more = u->announced;
    if (more)
        update_say(u->m);
    while (more)
        TRY(send_piece(u, &more, err));
    return NYB_OK;
}

/* ---- facts --------------------------------------------------------------------------------------- */

enum update_state update_state(const struct update *u)
{
    return u->state;
}

const char *update_state_name(enum update_state s)
{
    static const char *const name[] = {"old", "new", "inconsistent"};
    return name[s];
}

uint64_t model_weights_generation(const struct model *m)
{
    return atomic_load(&m->weights_generation);
}

bool model_weights_inconsistent(const struct model *m)
{
    return atomic_load(&m->inconsistent);
}
