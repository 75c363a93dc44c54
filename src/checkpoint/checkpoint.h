/* A Hugging Face folder, opened for reading: every tensor of every safetensors file by name.
 *
 * Everything a file claims is checked here, before use. Thread-safe for reading after ckpt_open. */
#ifndef NYB_CHECKPOINT_CHECKPOINT_H
#define NYB_CHECKPOINT_CHECKPOINT_H

#include <stdatomic.h>

#include "base/err.h"
#include "base/json.h"
#include "checkpoint/dtype.h"

#define CKPT_MAX_DIM 8

struct ckpt_tensor {
    const char *name;
    enum dtype dtype;
    int n_dim;
    int64_t dim[CKPT_MAX_DIM];
    uint64_t offset; /* of its first byte in the file */
    uint64_t bytes;
    int file;        /* index into ckpt.file          */
    atomic_int used; /* set by ckpt_take              */
};

struct ckpt_file {
    char *path; /* as opened, for messages */
    int fd;
    uint64_t size;
};

struct ckpt {
    char *folder; /* resolved */
    int n_file;
    struct ckpt_file *file;
    int n_tensor;
    struct ckpt_tensor *tensor; /* sorted by name */
    uint64_t tensor_bytes;
    /* private */
    void *arena;
};

/* Turn what the user named into a folder: a path, or a repository id looked up in the local
 * Hugging Face cache (HF_HUB_CACHE, HF_HOME/hub, ~/.cache/huggingface/hub; refs/main, else the newest
 * snapshot; of owner/name@REVISION that ref or commit). Caller frees *folder. The error lists the places that
 * were searched. */
enum nyb_code ckpt_resolve(char **folder, const char *name_or_path, struct nyb_err *err) NYB_MUST_CHECK;

#define CKPT_THREADS 8 /* for whoever has the machine to itself while it opens one */

/* Single file, sharded with model.safetensors.index.json, or several *.safetensors without an index. Headers
 * are parsed by at most n_thread threads beside the caller (0: by the caller), and an index by as many. */
enum nyb_code ckpt_open(struct ckpt **out, const char *folder, int n_thread,
                        struct nyb_err *err) NYB_MUST_CHECK;
/* One safetensors file that is already open, and from now on the checkpoint's. `name` stands for it in
 * messages. */
enum nyb_code ckpt_open_fd(struct ckpt **out, int fd, const char *name, struct nyb_err *err) NYB_MUST_CHECK;
void ckpt_close(struct ckpt *c);

/* NULL when there is none. Does not mark it used. */
const struct ckpt_tensor *ckpt_find(const struct ckpt *c, const char *name);
/* The same, marks it used. */
const struct ckpt_tensor *ckpt_take(struct ckpt *c, const char *name);
/* len bytes at `offset` within the tensor. */
enum nyb_code ckpt_read(const struct ckpt *c, const struct ckpt_tensor *t, uint64_t offset, void *dst,
                        size_t len, struct nyb_err *err) NYB_MUST_CHECK;
/* One number as float, from a [] or [1] tensor of F32, F16, BF16 or F64. */
enum nyb_code ckpt_read_scalar(const struct ckpt *c, const struct ckpt_tensor *t, float *out,
                               struct nyb_err *err) NYB_MUST_CHECK;

/* Log the tensors that nobody took, in one line with their number and the first few names. */
void ckpt_log_unused(const struct ckpt *c);

#endif
