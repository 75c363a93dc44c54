/* What the files of an update share: update.c (its life), update_check.c and update_config.c (what it is
 * refused for), update_commit.c (reading, exchanging, going back). */
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
    size_t *covered;          /* (n_chunk) how many bytes of these PAGES_HUGE of the slab change       */
    int n_chunk;
    bool announced;           /* to the other ranks */
    bool was_inconsistent;    /* the model, when the update began */
    atomic_bool hash_differs; /* the old bytes did not come back  */
    atomic_llong count[3];    /* calls of o.fault, by point               */
};

/* Whether a glob selects this tensor of the new checkpoint; marks the globs that do. */
bool update_wants(const struct update *u, const char *tensor);
/* One more difference, in a sentence that begins with what differs. */
void update_differs(struct update *u, const char *fmt, ...) NYB_PRINTF(2, 3);
enum nyb_code update_fault(struct update *u, enum update_point point, struct nyb_err *err) NYB_MUST_CHECK;

/* ---- update_config.c, update_check.c ------------------------------------------------------------- */

/* config.json of the new folder against the model's. */
enum nyb_code update_check_config(struct update *u, struct nyb_err *err) NYB_MUST_CHECK;
/* Names, shapes and types; fills touched, next and the KV scales. */
enum nyb_code update_check_tensors(struct update *u, struct nyb_err *err) NYB_MUST_CHECK;
enum nyb_code update_check_dummy(struct update *u, struct nyb_err *err) NYB_MUST_CHECK;

/* ---- update_commit.c ----------------------------------------------------------------------------- */

/* Reserve the second slab and mark the chunks, or decide to do without. */
enum nyb_code update_plan(struct update *u, struct nyb_err *err) NYB_MUST_CHECK;

#endif
