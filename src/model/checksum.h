/* A fingerprint of a model's logical values: the same for every weight layout, instruction set, backend,
 * number of threads and ranks, and for ModelOpt and compressed-tensors files of the same numbers.
 *
 * A matrix is cut into blocks of 16 columns of one row, a vector is one row of fp32. Each block is hashed
 * with XXH3-128 over its elements as the checkpoint has them (NVFP4: 8 bytes of codes and one of scale),
 * seeded with its row and column; the sum of all blocks, modulo 2^128, does not depend on who adds which
 * part. That sum is hashed with the tensor's name, type, shape and scales. The total is the hash of all
 * tensors' names and hashes, sorted by name.
 *
 * Canonical forms: the sign of a negative block scale moves to its codes, and blocks that are worth nothing,
 * since their scale is zero or NaN, are all zeros (logical.h). A global or input scale s of NVFP4 counts as
 * fl(1 / s): compressed-tensors stores that number and ModelOpt s itself, and since fl(1 / fl(1 / fl(1 / s)))
 * = fl(1 / s) for all fp32 where nothing over- or underflows (checked for each of the 2^23 mantissas), both
 * spellings agree. An s whose reciprocal is not a normal number counts as itself.
 */
#ifndef NYB_MODEL_CHECKSUM_H
#define NYB_MODEL_CHECKSUM_H

#include "model/model.h"

struct checksum_hash {
    uint64_t low, high;
};

struct checksum_tensor {
    char *name; /* module of a matrix, tensor name of a vector; "kv_scales" for those of the KV cache */
    const char *type;
    int n, k;
    struct checksum_hash hash;
};

struct checksum {
    struct checksum_tensor *tensor; /* sorted by name */
    int n_tensor;
    struct checksum_hash total;
};

/* Of the weights that are served, through the inverse layout, by n_thread threads of its own (<= 0: one). Of
 * several ranks rank 0 alone calls it, between two steps, and all of them work on it. Not beside
 * update_commit. NYB_E_INTERNAL: ranks hold different copies of what should be the same. */
enum nyb_code checksum_model(struct checksum *out, struct model *m, int n_thread,
                             struct nyb_err *err) NYB_MUST_CHECK;
/* The same in parts, so that the model can go on stepping: start, then poll until all ranks are done, then
 * finish; each between two steps. Meanwhile no update can begin. After an error of poll: drop, which any
 * thread may. */
void checksum_start(struct model *m, int n_thread);
enum nyb_code checksum_poll(struct model *m, bool *done, struct nyb_err *err) NYB_MUST_CHECK;
enum nyb_code checksum_finish(struct checksum *out, struct model *m, struct nyb_err *err) NYB_MUST_CHECK;
void checksum_drop(struct model *m); /* of one that has finished: nothing */
/* Of a checkpoint's files, a tensor at a time, without keeping them. folder: resolved. */
enum nyb_code checksum_folder(struct checksum *out, const char *folder, int n_thread,
                              struct nyb_err *err) NYB_MUST_CHECK;
void checksum_free(struct checksum *c);

#define CHECKSUM_TEXT_BYTES 33 /* 32 hexadecimal digits, most significant first */
char *checksum_text(struct checksum_hash h, char text[CHECKSUM_TEXT_BYTES]);

/* Tensors that differ, or that only one of them has; `differs` (may be NULL) is called with each name. */
int checksum_compare(const struct checksum *a, const struct checksum *b,
                     void (*differs)(void *arg, const char *name), void *arg);

#endif
