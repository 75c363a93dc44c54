/* Expert parallelism on GPUs (ep.h): a rank's part of a step, and the operators that take rows to the experts
 * of other GPUs and products back. For the device_*.c files.
 *
 * Rows of all ranks have the places that they have in the whole batch, on every rank, and so have the logits:
 * what one GPU would compute of a step, experts and head find in the same order here. The head is shared out
 * by vocabulary: every rank gets the last norm of all rows, and rank 0 everybody's columns. */
#ifndef NYB_MODEL_DEVICE_EP_H
#define NYB_MODEL_DEVICE_EP_H

#include "model/device_state.h"
#include "model/ep.h"

struct device_ep {
    int rank, size;
    int32_t first[CUDA_PEERS_MAX + 1]; /* rank r has experts [first[r], first[r + 1]) of every layer */
    /* ---- of the step in progress ---- */
    struct arena arena;
    const struct batch *whole;
    struct ep_part part;
    int most_rows, most_out; /* of any rank */
};

/* After the device is open, before the weights are placed; config outlives it. All ranks. */
void device_ep_open(struct device *d, const struct model_config *c);
void device_ep_close(struct device *d);

/* This rank's part of a batch, until the next one is taken. */
const struct batch *device_ep_take(struct device *d, const struct batch *whole);
/* The shape of a step of the batch that has been taken, from that of the whole batch: as a graph of so many
 * rows
 * (`rows`, of any rank), or 0: exact. */
struct device_shape device_ep_shape(const struct device *d, const struct device_shape *whole, int rows);
/* For a shape of one GPU, the largest that several could need. */
void device_ep_widen(const struct device *d, struct device_shape *s);
/* Into a batch of that shape at base, which has this rank's part: where everybody's rows are, and those of
 * the n rows of logits from `first` on, of the whole batch's. */
void device_ep_write(const struct device *d, const struct device_shape *s, uint8_t *base, int first, int n);
/* The same for later rows of logits of the batch that has been uploaded. Waits for work in progress. */
enum nyb_code device_ep_next_out(struct device *d, const struct device_shape *s, int first, int n,
                                 struct nyb_err *err) NYB_MUST_CHECK;

/* Behind the router: rows to their experts. */
void device_ep_plan_dispatch(struct device *d, const struct device_part *part, int layer);
/* Behind the experts' operator, which is the plan's last and becomes that of all ranks' rows: products to
 * where their rows are. */
void device_ep_plan_combine(struct device *d, const struct device_part *part, int layer);
/* The last norm of the rows of logits from `first` on to all ranks: into room.x_out_all, n_out rows. */
void device_ep_plan_head_rows(struct device *d, const struct device_shape *s, struct cuda_add_norm *norm,
                              int first, int n_out);

#endif
