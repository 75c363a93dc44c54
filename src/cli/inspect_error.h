/* How far NVFP4 weights are from the original ones. */
#ifndef NYB_CLI_INSPECT_ERROR_H
#define NYB_CLI_INSPECT_ERROR_H

#include "checkpoint/quant.h"

/* Sums over quantized weights: squares of distances, and of values. The error is the root of their ratio. */
struct inspect_error {
    double error2, value2;
};

/* Add a module. reference: the checkpoint before quantization, whose tensor must have the same shape; NULL:
 * the distance is estimated from the codes, the originals being spread evenly within each rounding cell. */
enum nyb_code inspect_error_add(struct inspect_error *e, struct ckpt *ckpt, struct ckpt *reference,
                                const char *module, const struct linear_source *src,
                                struct nyb_err *err) NYB_MUST_CHECK;

#endif
