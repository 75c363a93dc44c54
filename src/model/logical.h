/* Logical rows: served parameters as checkpoints have them, from whatever layout and memory they lie in. */
#ifndef NYB_MODEL_LOGICAL_H
#define NYB_MODEL_LOGICAL_H

#include "model/fill.h"

/* Rows of p->slot into p->rows and p->scales, the latter only for NVFP4, settled (below). p->row is a
 * multiple of WEIGHT_PANEL. Not while the slot is written. On a GPU it can fail, and takes up to a MB or a
 * panel. */
enum nyb_code logical_read(const struct fill_piece *p, struct nyb_err *err) NYB_MUST_CHECK;

/* NVFP4 has several spellings of equal weights, and no layout keeps them all. The one that counts: block
 * scales without a sign, which goes to the codes; and where the scale is zero, or NaN (which is refused over
 * other codes than zeros), a zero and zero codes. n_group times 8 bytes of codes and a scale. */
void logical_settle(uint8_t *codes, uint8_t *scales, size_t n_group);

#endif
