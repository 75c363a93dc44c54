/* The values of one served parameter, by its name in the checkpoint. */
#ifndef NYB_MODEL_READBACK_H
#define NYB_MODEL_READBACK_H

#include "model/model.h"

#define READBACK_MAX ((size_t)1 << 20) /* values */

struct readback {
    float *value; /* (n) from the first row on; the caller frees */
    size_t n;
    int rows, columns; /* of the whole parameter; columns 0: it is a vector of `rows` */
    const char *type;  /* "NVFP4", ...; lives for ever */
};

/* At most max values, dequantized: the same bytes whatever they are served by (weights under a block scale of
 * zero are +0). name: of a tensor, or of a matrix without its ".weight". NYB_E_NOT_FOUND: there is none. Not
 * beside update_commit; beside steps. Of several ranks rank 0 alone calls it, between two steps, and every
 * rank gives what it has of them. */
enum nyb_code readback_values(struct readback *out, struct model *m, const char *name, size_t max,
                              struct nyb_err *err) NYB_MUST_CHECK;

/* The others, the thread that follows (ranks.h). */
void readback_follow(struct model *m, const uint8_t *data, size_t bytes);

#endif
