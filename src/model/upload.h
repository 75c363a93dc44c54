/* Opening what update.h's upload_* have collected. */
#ifndef NYB_MODEL_UPLOAD_H
#define NYB_MODEL_UPLOAD_H

#include "checkpoint/checkpoint.h"
#include "model/update.h"

/* Where it is kept; NULL: in memory. Lives as long as the upload. */
const char *upload_dir(const struct update_upload *u);
/* n bytes of what has been written. */
enum nyb_code upload_read(const struct update_upload *u, uint64_t offset, void *to, size_t n,
                          struct nyb_err *err) NYB_MUST_CHECK;
enum nyb_code upload_open_ckpt(struct ckpt **out, const struct update_upload *u,
                               struct nyb_err *err) NYB_MUST_CHECK;

#endif
