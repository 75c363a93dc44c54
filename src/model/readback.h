/* The values of one served parameter, by its name in the checkpoint. */
#ifndef NYB_MODEL_READBACK_H
#define NYB_MODEL_READBACK_H

#include "model/model.h"

struct readback {
    float *value; /* (n) from the first row on; the caller frees */
    size_t n;
    int rows, columns; /* of the whole parameter; columns 0: it is a vector of `rows` */
    const char *type;  /* "NVFP4", ...; lives for ever */
};

/* At most max values, dequantized. name: of a tensor, or of a matrix without its ".weight". NYB_E_NOT_FOUND:
 * there is none. NYB_E_UNSUPPORTED: ranks share it, and this one has a part. Not beside update_commit. */
enum nyb_code readback_values(struct readback *out, const struct model *m, const char *name, size_t max,
                              struct nyb_err *err) NYB_MUST_CHECK;

#endif
