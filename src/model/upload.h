/* Opening what update.h's upload_* have collected. */
#ifndef NYB_MODEL_UPLOAD_H
#define NYB_MODEL_UPLOAD_H

#include "checkpoint/checkpoint.h"
#include "model/update.h"

enum nyb_code upload_open_ckpt(struct ckpt **out, const struct update_upload *u,
                               struct nyb_err *err) NYB_MUST_CHECK;

#endif
