/* A whole model on one GPU: where its weights and its cache lie there, and its steps.
 *
 * The plug-in (kernels/cuda/cuda_plugin.h) has the kernels; here a step becomes an array of its operators.
 * Slots whose model is on a GPU have no memory of this process: their addresses are the GPU's, and everything
 * that reads or writes them goes through device_place_*.
 *
 * Used by the thread that steps the model, but for device_place_write (fill.c's threads) and
 * device_place_read (any thread, beside steps). */
#ifndef NYB_MODEL_DEVICE_H
#define NYB_MODEL_DEVICE_H

#include "model/model.h"
#include "model/rope.h"
#include "model/weights.h"

struct comm;
struct device;
struct device_place;
struct fill_piece;

struct device_options {
    enum device_backend moe_backend;
    enum device_backend gemm_backend;
    int max_tokens; /* rows of the longest step expected; <= 0: a default. More are possible, at a price */
    bool no_graphs; /* every step is launched operator by operator */
    int index;      /* of the GPU */
};

/* Load the plug-in and take that GPU. NYB_E_UNSUPPORTED with the reason where there is none that it can use.
 */
enum nyb_code device_open(struct device **out, const struct device_options *o,
                          struct nyb_err *err) NYB_MUST_CHECK;
void device_close(struct device *d);
const char *device_name(const struct device *d);

/* ---- ranks (device_peers.c) ----------------------------------------------------------------------
 *
 * With tensor parallelism every rank has a GPU of its own, its part of the weights as shard.h has it, and
 * runs the operators of every step; what is sent between GPUs never passes through a process. */

struct device_peer_options {
    bool no_fusion; /* sums first, then norms: NCCL's sums where it is found */
    bool overlap;   /* two-batch overlap may be asked for                    */
    int hidden;     /* numbers of a row that is added up                     */
    int timeout_ms; /* that a GPU may be late for another; <= 0: 60 s         */
};
/* After device_open went well on all ranks; all call it, and the first error of any is returned by all. comm
 * must outlive the device: when it fails, steps in progress end with an error. */
enum nyb_code device_join(struct device *d, struct comm *comm, const struct device_peer_options *o,
                          struct nyb_err *err) NYB_MUST_CHECK;
/* How GPUs add up what they have, for people: "fused", "NCCL", ... NULL: there is one, or each has
 * rows of its own. */
const char *device_sums(const struct device *d);
/* Whether steps may be cut: the same on all ranks. Of one that is alone: yes. */
bool device_can_overlap(const struct device *d);

/* ---- weights (device_place.c, device_write.c, device_read.c) ------------------------------------- */

/* Decide how every resolved slot lies on the GPU, take the memory, and give the slots their addresses. What a
 * kernel cannot take is refused by the parameter's name. The three must outlive the device; weights' types
 * and shapes do not change from here on. */
enum nyb_code device_place_weights(struct device *d, const struct model_config *c, struct weights *w,
                                   struct nyb_err *err) NYB_MUST_CHECK;
uint64_t device_weight_bytes(const struct device *d);
/* Rows of a piece, as fill.h has them, to the GPU. */
enum nyb_code device_place_write(const struct fill_piece *p, struct nyb_err *err) NYB_MUST_CHECK;
/* All that has been written is there, and may be read beside steps. */
enum nyb_code device_settle_weights(struct device *d, struct nyb_err *err) NYB_MUST_CHECK;
/* The inverse: the rows of a piece, which begins at a multiple of 16, as they were written. Where the layout
 * does not keep them, codes under a block scale of zero come back as zeros. Not while others write. Takes up
 * to a MB, or 16 rows. */
enum nyb_code device_place_read(const struct fill_piece *p, struct nyb_err *err) NYB_MUST_CHECK;
/* Of the bytes of a slot there; 0 where they cannot be read. Of a gate and an up that lie in each other: of
 * both. Not while others write. */
uint64_t device_place_hash(const struct slot *s);
/* After global scales, or those of the KV cache, have changed. */
enum nyb_code device_write_scales(struct device *d, struct nyb_err *err) NYB_MUST_CHECK;

/* ---- cache and room (device_room.c) -------------------------------------------------------------- */

/* Memory that a KV cache may take now, beside what steps need. */
uint64_t device_kv_room(const struct device *d);
size_t device_kv_block_bytes(const struct device *d, enum kv_type type); /* all layers, k and v */
/* Replaces an earlier one. Zero blocks: only that. */
enum nyb_code device_kv_reserve(struct device *d, enum kv_type type, int n_block,
                                struct nyb_err *err) NYB_MUST_CHECK;

/* ---- steps (device_step.c) ----------------------------------------------------------------------- */

/* Room for steps; says what it takes. After the weights are placed. */
enum nyb_code device_prepare(struct device *d, struct rope *rope, struct nyb_err *err) NYB_MUST_CHECK;

/* Before a step of n rows that is cut: what a row of one takes without overlap, or 0. */
enum nyb_code device_keep_sm(struct device *d, int n_row, double row_ns, struct nyb_err *err) NYB_MUST_CHECK;

/* Whether it is shown what lies between operators, which are then run one by one; a probe of spans alone sees
 * the step as it is run for nobody. */
static inline bool device_looks_inside(const struct model_probe *p)
{
    return p && (p->hidden || p->routing || p->stage || !p->span);
}

/* A checked batch. cut: two-batch overlap's (overlap.h), or 0, as where the probe looks inside. logits
 * (n_out, vocab) and best (n_out): the likeliest token of each row; either may be NULL. With draw (n_out)
 * best are the tokens that are drawn, and only rows that are not have their logits copied. A failure of the
 * GPU is an error, and the device may or may not work afterwards. */
enum nyb_code device_forward(struct device *d, const struct batch *b, int cut, float *logits, int32_t *best,
                             const struct draw *draw, const struct model_probe *probe,
                             struct nyb_err *err) NYB_MUST_CHECK;
/* Of a draw, of this model; 0: steps do not draw. */
int device_most_top_k(const struct device *d);
/* Memory of this process that logits are copied to at full speed, or NULL. */
void *device_host_alloc(struct device *d, size_t bytes);
void device_host_free(struct device *d, void *host);
/* What the routers have chosen by now, (n_layer, n_expert). Any thread, beside steps, which do not wait. */
enum nyb_code device_read_load(struct device *d, atomic_ullong *count, struct nyb_err *err) NYB_MUST_CHECK;

/* Each kind of operator of such a step: how many there are, and the seconds of one. Keys and values of the
 * batch are written to the cache. Of several ranks all call it with the same batch; fn may be NULL. */
typedef void device_profile_fn(void *arg, const char *name, int n, double seconds);
enum nyb_code device_profile(struct device *d, const struct batch *b, device_profile_fn *fn, void *arg,
                             struct nyb_err *err) NYB_MUST_CHECK;

/* Bytes a second of a kernel that only reads memory. */
enum nyb_code device_read_rate(struct device *d, double *rate, struct nyb_err *err) NYB_MUST_CHECK;

#endif
