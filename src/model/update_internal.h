/* What the files of an update share: update.c (its life), update_check.c and update_config.c (what it is
 * refused for), update_stage.c (reading), update_aside.c (copies of what is in no file), update_commit.c
 * (exchanging, going back). */
#ifndef NYB_MODEL_UPDATE_INTERNAL_H
#define NYB_MODEL_UPDATE_INTERNAL_H

#include "model/model_state.h"
#include "model/update.h"

/* A slot that changes, and what belongs to it besides its bytes: the new facts before a commit, the old ones
 * after. */
struct touched {
    int index; /* of the model's slot */
    bool data; /* its elements change; else only its scales do */
    struct weight weight;
    float *vector;
    struct linear_source source;
    const struct ckpt_tensor *tensor;
    struct origin *origin;
    uint64_t old_hash; /* of the bytes before, where they would have to be read again */
};

enum update_phase { PHASE_PREPARED, PHASE_STAGED, PHASE_COMMITTED, PHASE_FAILED };

struct update {
    struct model *m;
    struct update_options o;
    struct update_facts *facts;
    enum update_phase phase;
    enum update_state state;
    struct hfconfig hf;
    struct quant *quant;   /* of the new folder, or the model's */
    struct origin *origin; /* holds the checkpoint; NULL: random weights */
    struct ckpt *ckpt;
    struct touched *touched; /* (n_touched), in the order of the model's slots */
    int n_touched;
    bool *name_used;          /* (o.n_names): whether it has matched a tensor  */
    struct slots next;        /* those whose data changes: what fill_slots fills */
    int *next_touched;        /* (next.n) which of `touched` each one is      */
    float *k_scale, *v_scale; /* (n_layer) of the KV cache             */
    struct pages staged;      /* same layout as the model's slab       */
    struct pages aside;       /* what next's slots held that is in no file */
    size_t *covered;          /* (n_chunk) how many bytes of these PAGES_HUGE of the slab change       */
    int n_chunk;
    bool announced;           /* to the other ranks */
    bool stage_said;          /* and that they stage */
    uint64_t sent;            /* bytes of o.upload that they have */
    uint64_t own_staged;      /* of facts->staged_bytes */
    atomic_bool called_off;   /* stop staging */
    bool was_inconsistent;    /* the model, when the update began */
    atomic_bool hash_differs; /* the old bytes did not come back  */
    atomic_llong count[3];    /* calls of o.fault, by point               */
};

/* Whether a glob selects this tensor of the new checkpoint; marks the globs that do. */
bool update_wants(const struct update *u, const char *tensor);
/* One more difference, in a sentence that begins with what differs. */
void update_differs(struct update *u, const char *fmt, ...) NYB_PRINTF(2, 3);
enum nyb_code update_fault(struct update *u, enum update_point point, struct nyb_err *err) NYB_MUST_CHECK;

/* Any thread: let update_stage fail soon, with NYB_E_CANCELLED. */
void update_call_off(struct update *u);

/* Between two steps: all that the other ranks need to know before they can commit. */
enum nyb_code update_meet(struct update *u, struct nyb_err *err) NYB_MUST_CHECK;

/* ---- update_config.c, update_check.c ------------------------------------------------------------- */

/* config.json of the new folder against the model's. */
enum nyb_code update_check_config(struct update *u, struct nyb_err *err) NYB_MUST_CHECK;
/* Names, shapes and types; fills touched, next and the KV scales. */
enum nyb_code update_check_tensors(struct update *u, struct nyb_err *err) NYB_MUST_CHECK;
/* One parameter, described by `live`: what changes of it, into t; any: whether something does. */
enum nyb_code update_check_slot(struct update *u, const struct slot *live, struct touched *t, bool *any,
                                struct nyb_err *err) NYB_MUST_CHECK;
/* Into the facts: a resolved slot whose elements change. */
void update_count(struct update *u, const struct slot *s);
/* update_elsewhere.c: experts that only other ranks have, so that this one can answer for all of them. */
enum nyb_code update_check_elsewhere(struct update *u, struct nyb_err *err) NYB_MUST_CHECK;
enum nyb_code update_check_dummy(struct update *u, struct nyb_err *err) NYB_MUST_CHECK;

/* ---- update_stage.c ------------------------------------------------------------------------------ */

/* Reserve the second slab and mark the chunks, or decide to do without. */
enum nyb_code update_plan(struct update *u, struct nyb_err *err) NYB_MUST_CHECK;
struct slot *update_live_slot(const struct update *u, const struct touched *t);
/* Of one of the n_chunk: the last may be short. */
size_t update_chunk_bytes(const struct update *u, int chunk);
/* Reading in place is only begun where the way back is open: the files are what they were. */
enum nyb_code update_check_way_back(const struct update *u, struct nyb_err *err) NYB_MUST_CHECK;
/* Fill `next` at `slab`, which has the layout of the model's. At UPDATE_AT_ROLLBACK only those of its slots
 * whose live ones have an origin. */
enum nyb_code update_read_into(struct update *u, uint8_t *slab, enum update_point point, struct pool *pool,
                               struct nyb_err *err) NYB_MUST_CHECK;

/* ---- update_aside.c ------------------------------------------------------------------------------ */

/* Of an update that will read in place: take room for a copy of the slots that have no origin. */
enum nyb_code update_aside_plan(struct update *u, struct nyb_err *err) NYB_MUST_CHECK;
/* Between two steps: copy them. */
enum nyb_code update_aside_take(struct update *u, struct nyb_err *err) NYB_MUST_CHECK;
/* And back. The facts of the live slots are the old ones. */
enum nyb_code update_aside_put_back(struct update *u, struct nyb_err *err) NYB_MUST_CHECK;

#endif
