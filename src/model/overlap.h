/* Two-batch overlap: a step's rows are cut in two, and the halves go through the layers as two micro-batches,
 * so that one half's exchange between ranks hides behind the other half's arithmetic.
 *
 * The cut is by rows, also inside one sequence: the second half attends to keys that the first has written.
 * It therefore never overtakes the first. Rows do not see one another otherwise (kernels.h), and each half
 * has a channel of its own, so every number is the same as without overlap, bit for bit.
 *
 * Whether it pays depends on the network, the model and the step's size (docs/OVERLAP.md). Rank 0 measures
 * steps of each size both ways and tells the others which one is next. */
#ifndef NYB_MODEL_OVERLAP_H
#define NYB_MODEL_OVERLAP_H

#include "model/layer.h"

#define OVERLAP_SIZES 48 /* two for each power of two */

#define OVERLAP_PAIRS 8

/* Steps of one size. Two that follow one another, one cut and one not, are compared: a machine that gets
 * busier changes both alike. */
struct overlap_score {
    double ratio[OVERLAP_PAIRS]; /* time of a row with overlap by that without, of the last pairs */
    uint64_t n_pair, steps;
    double last_ns;  /* a row of the last step took */
    double whole_ns; /* of the last that was not cut; 0: there was none */
    bool last_cut;
};

struct overlap {
    struct overlap_options option;
    struct overlap_score score[2][OVERLAP_SIZES]; /* prefill, decode */
    uint64_t n_on, n_off;                         /* steps */
};

void overlap_init(struct overlap *o, const struct overlap_options *option);
/* Where to cut this step: a row, or 0: not at all. */
int overlap_choose(struct overlap *o, const struct batch *b, int n_rank);
/* What a step that was cut so has taken. */
void overlap_learn(struct overlap *o, const struct batch *b, int cut, uint64_t ns);

/* Nanoseconds that a row of a step of this size takes without overlap; 0: none has been seen. */
double overlap_whole_ns(struct overlap *o, const struct batch *b);

/* Rows [0, cut) and [cut, n_tok) of a batch as batches of their own. seq_start is from the arena; n_out is 0.
 */
void overlap_cut(const struct batch *b, int cut, struct batch half[2], struct arena *step);

/* Both micro-batches through all layers, in turns from exchange to exchange. Both begin at layer 0, stage 0,
 * on different channels. */
void overlap_run(struct micro_batch *first, struct micro_batch *second);

#endif
