/* Sums of blocks: what a rank can say about its own weights, and how several ranks' become a checksum. */
#ifndef NYB_MODEL_CHECKSUM_SUM_H
#define NYB_MODEL_CHECKSUM_SUM_H

#include "model/checksum.h"
#include "model/weights.h"

/* `type` of a part that is no matrix; else it is an enum weight_type. */
#define PART_VECTOR  (-1)
#define PART_NUMBERS (-2) /* fp32 that is no slot: the scales of the KV cache */

/* Some rows and columns of a parameter, as one slot has them. */
struct checksum_part {
    const char *name;                /* not owned */
    int type, row, n, column, k;     /* n or k 0: this rank has none of it */
    int n_whole, k_whole;            /* k 1 for a vector */
    float global_scale, input_scale; /* in the form that is hashed */
    struct checksum_hash sum;        /* of its blocks */
};

struct checksum_parts {
    struct checksum_part *part;
    int n;
};

static inline void checksum_add(struct checksum_hash *to, struct checksum_hash h)
{
    to->low += h.low;
    to->high += h.high + (to->low < h.low); /* modulo 2^128 */
}

/* One for each slot, in their order, and one for the scales of the KV cache; names are the slots'. ckpt NULL:
 * from where the slots lie. On error *out is empty. */
enum nyb_code checksum_sum(struct checksum_parts *out, const struct weights *w, const struct ckpt *ckpt,
                           int n_thread, struct nyb_err *err) NYB_MUST_CHECK;

/* Of all ranks' parts, which get sorted. The same rows and columns may be there several times and count once;
 * NYB_E_INTERNAL where such copies differ, or where parts do not make up a whole parameter. Names are copied.
 */
enum nyb_code checksum_merge(struct checksum *out, struct checksum_parts *parts,
                             struct nyb_err *err) NYB_MUST_CHECK;

#endif
