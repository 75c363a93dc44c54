/* Replacing the weights of a model that is being served.
 *
 *     update_prepare -> update_stage -> update_commit -> update_close
 *      headers only     beside the      between two       the new weights stay
 *                       steps           steps
 *                                       -> update_rollback -> update_close
 *                                          the old ones are back
 *
 * The new rows go through the same writer as those of a first load (fill.h) into a second slab of the same
 * layout; committing exchanges the pages of both slabs, so that slots keep their addresses and 4 GB change
 * place in milliseconds. Exchanging again is the rollback: nothing is lost before update_close. Where memory
 * has no room for a second slab, update_commit reads straight into the slots instead, and rolling back reads
 * the old checkpoint again, whose files have been kept open and are checked against the bytes that were
 * served.
 *
 * Threads: prepare, stage, close and upload_* may run beside the thread that steps the model; poll, commit
 * and rollback only between its steps, by that thread or while it waits. A model has one update at a time.
 * All ranks do each phase, then agree on its outcome, then do the next; after a commit that a peer could not
 * follow, they roll back. */
#ifndef NYB_MODEL_UPDATE_H
#define NYB_MODEL_UPDATE_H

#include "model/model.h"

#define UPDATE_SHOWN 10 /* differences that are described; the rest is counted */

enum update_staging { UPDATE_STAGING_AUTO, UPDATE_STAGING_ON, UPDATE_STAGING_OFF };

/* What the model's slots hold. */
enum update_state {
    UPDATE_OLD,          /* what they held before        */
    UPDATE_NEW,          /* the new checkpoint           */
    UPDATE_INCONSISTENT, /* neither: only a complete update is accepted now */
};

/* Points at which a test lets an update fail. */
enum update_point { UPDATE_AT_READ, UPDATE_AT_COMMIT, UPDATE_AT_ROLLBACK };

struct update_upload; /* safetensors bytes that a client sent; below */

struct update_options {
    const char *folder;           /* resolved (ckpt_resolve); NULL with `upload`                       */
    struct update_upload *upload; /* instead of a folder: stays the caller's, needed until update_close */
    /* Globs over tensor names of the new checkpoint, as in "model.layers.3.*": only what one of them matches
     * is replaced, and only that has to be there. None: everything; of an upload: all that it holds. Codes
     * and block scales of a module go together; its other scales may stay. */
    const char *const *names;
    int n_names;
    enum update_staging staging;
    enum load_format load_format; /* LOAD_DUMMY: random weights; the folder's config.json is still checked */
    uint64_t dummy_seed;
    int n_thread; /* of update_stage, <= 0: one, so that decoding keeps its cores */
    bool dry_run; /* update_stage will not be called */
    void (*progress)(void *arg, uint64_t done_bytes, uint64_t total_bytes); /* may be NULL */
    void *progress_arg;
    /* Tests only, else NULL. May be called from several threads; anything but NYB_OK makes that read or step
     * fail so. `count` tells the calls of one point apart, from 0 on. */
    enum nyb_code (*fault)(void *arg, enum update_point point, int64_t count);
    void *fault_arg;
};

/* Filled by every phase, also when it fails. */
struct update_facts {
    int n_tensor;          /* parameters to be replaced (a quantized matrix with its scales is one)  */
    uint64_t read_bytes;   /* of the new checkpoint                                                  */
    uint64_t weight_bytes; /* of the parameters replaced, all ranks' parts of them                   */
    uint64_t staged_bytes; /* of the second slab, and of other ranks' once update_poll has asked; 0:
                              read in place                                                          */
    bool staged;
    bool kv_changes; /* an FP8 cache has other scales now: no sequence can go on over its old KV */
    uint64_t prepare_ns, stage_ns, commit_ns, rollback_ns;
    int64_t n_difference; /* of names, shapes, dtypes, config; what update_prepare refuses for       */
    int n_shown;
    char difference[UPDATE_SHOWN][320]; /* one sentence each, the name first */
};

struct update;

/* Check all of it from the headers alone. NYB_E_ARG when the checkpoint differs from the served one: then
 * facts list how; the codes of model_open when it is no checkpoint at all (a client's fault too). NYB_E_BUSY
 * when another update is open. NYB_E_MEMORY when staging is asked for and memory has no room. Nothing has
 * changed after an error, and *out is NULL. `facts` stays the caller's and must live as long as the update.
 */
enum nyb_code update_prepare(struct update **out, struct model *m, const struct update_options *o,
                             struct update_facts *facts, struct nyb_err *err) NYB_MUST_CHECK;
enum update_progress {
    UPDATE_NEXT,  /* there is more to be handed over: call again soon               */
    UPDATE_WAIT,  /* a rank is still busy: call again later                         */
    UPDATE_READY, /* all ranks have prepared; once update_stage is done: all staged */
};
/* Only where ranks share the model, and between two of its steps: hand the others a piece of what they need,
 * and ask how far they are. Never waits for one that reads. update_commit does all of this itself, but then
 * steps wait for the slowest rank's reading. An error is the first rank's that has one; then close. */
enum nyb_code update_poll(struct update *u, enum update_progress *progress,
                          struct nyb_err *err) NYB_MUST_CHECK;
/* Read the new weights into the second slab; without staging this does nothing. The served weights are not
 * touched, whatever happens: after an error, update_close. */
enum nyb_code update_stage(struct update *u, struct nyb_err *err) NYB_MUST_CHECK;
/* Make the new weights the model's. On error the old ones have been put back; update_state says whether that
 * worked. */
enum nyb_code update_commit(struct update *u, struct nyb_err *err) NYB_MUST_CHECK;
/* After update_commit: the old weights again, bit for bit. After a commit that failed, and before one: does
 * nothing. No step may have run in between. */
enum nyb_code update_rollback(struct update *u, struct nyb_err *err) NYB_MUST_CHECK;
enum update_state update_state(const struct update *u);
const char *update_state_name(enum update_state s); /* "old", "new", "inconsistent" */
/* Free it and let the next one begin. What is committed stays. Frees much memory: best not between two steps.
 * NULL is fine. */
void update_close(struct update *u);

/* Counts commits; a rollback takes its number back, as no step has seen it. KV computed under another
 * generation is not this model's. 0 at first. */
uint64_t model_weights_generation(const struct model *m);
/* Whether a rollback has failed since the last complete update. */
bool model_weights_inconsistent(const struct model *m);

/* ---- uploads: upload.c --------------------------------------------------------------------------- */

/* Bytes of one safetensors file as they arrive, at most max_bytes of them, kept in an unlinked file in `dir`,
 * or in memory when that is NULL. */
enum nyb_code upload_open(struct update_upload **out, const char *dir, uint64_t max_bytes,
                          struct nyb_err *err) NYB_MUST_CHECK;
enum nyb_code upload_write(struct update_upload *u, const void *bytes, size_t n,
                           struct nyb_err *err) NYB_MUST_CHECK;
uint64_t upload_bytes(const struct update_upload *u);
void upload_close(struct update_upload *u); /* NULL is fine */

#endif
