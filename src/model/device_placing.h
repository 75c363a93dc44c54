/* What the files that place weights on a GPU share (device_place*.c). Placing is a walk over the model that
 * is made twice: first from address zero on, to learn how much memory it takes, then for real. */
#ifndef NYB_MODEL_DEVICE_PLACING_H
#define NYB_MODEL_DEVICE_PLACING_H

#include "model/device_state.h"

#define PLACING_ALIGN 256u

/* A slot by what it fills. */
struct placing_owner {
    const void *of;
    int slot;
};

struct placing {
    struct device *d;
    const struct slots *slots;
    struct placing_owner *owner; /* (slots->n) by `of` */
    uintptr_t base, scales;
    size_t used;
    bool real; /* the second walk */
    struct nyb_err *err;
    enum nyb_code code; /* of the first refusal */
};

/* ---- device_place_matrix.c ----------------------------------------------------------------------- */

/* Before all others. The owners are the caller's to free. */
void placing_find_owners(struct placing *p);
/* The slot that fills `of`, or NULL. */
struct slot *placing_slot(const struct placing *p, const void *of);
void placing_refuse(struct placing *p, const struct weight *w, const char *why);

/* Memory of the slab. */
uint8_t *placing_take(struct placing *p, size_t bytes, size_t align);
/* n scales that follow each other; where they come from is the caller's to say, in device.scale_of. */
int placing_take_scales(struct placing *p, int n);
float *placing_scale_at(const struct placing *p, int i);
/* What `of` says lies here; n_part: matrices that its columns are cut into. */
void placing_put(struct placing *p, const void *of, enum place_layout layout, uint8_t *data, uint8_t *block,
                 int n_part);

/* The vector's place; NULL where the model has none. */
float *placing_vector(struct placing *p, float **v);

/* Of n matrices of one kind that lie `stride` bytes apart in this process. */
bool placing_same_kind(struct placing *p, const struct weight *first, size_t stride, int n);
/* Their scales: the number of the first. */
int placing_scales(struct placing *p, const struct weight *first, size_t stride, int n);
/* Row-major, one after the other. */
struct cuda_weight placing_plain(struct placing *p, const struct weight *first, size_t stride, int n);
/* As cuBLASLt takes them. */
struct cuda_weight placing_tiled(struct placing *p, const struct weight *first, size_t stride, int n);
/* One, as the kernels for its type take it. */
struct cuda_weight placing_matrix(struct placing *p, const struct weight *w);

/* ---- device_place_mlp.c -------------------------------------------------------------------------- */

void placing_dense(struct placing *p, const struct mlp *m, struct device_mlp *out);
/* Those that this rank has, and the shared ones, behind them or apart. */
void placing_experts(struct placing *p, const struct layer_weights *l, struct device_layer *out);

#endif
