/* Slots: one for each parameter of a model, with its name in the checkpoint, its shape, and where it lives.
 *
 * Slots are declared from the configuration alone (weights.c), resolved against a checkpoint's headers
 * (source.c), which settles types and so sizes, reserved in one slab, and then written in place (fill.c).
 * Addresses do not change after slots_reserve: an update of served weights is resolve and fill again. */
#ifndef NYB_MODEL_SLOTS_H
#define NYB_MODEL_SLOTS_H

#include "base/arena.h"
#include "checkpoint/quant.h"
#include "kernels/weight.h"
#include "model/pages.h"

struct origin;
struct pool;
struct device_place;

enum slot_kind { SLOT_MATRIX, SLOT_VECTOR };

struct slot {
    enum slot_kind kind;
    const char *name;            /* module of a matrix, tensor of a vector            */
    int n, k;                    /* k 1 for a vector                                  */
    int row, column;             /* where they begin in the parameter, of which this rank may hold a part */
    int n_whole, k_whole;        /* the parameter's own shape                         */
    struct weight *weight;       /* matrix: what the layers compute with              */
    float **vector;              /* vector: (n) fp32, whatever the file has           */
    float dummy;                 /* what fills a vector that has no checkpoint        */
    struct linear_source source; /* resolved: matrix; all zero for a random one       */
    const struct ckpt_tensor *tensor; /* resolved: vector                                  */
    struct device_place *place;       /* on a GPU (device.h), or NULL: in the slab                       */
    struct origin *origin;            /* whose tensors those are (origin.h); NULL: nobody keeps them open */
};

struct slots {
    struct slot *slot;
    int n, cap;
    struct arena names;
    struct pages slab;
};

void slots_init(struct slots *s);
void slots_free(struct slots *s);
/* The name is copied. `to` must stay where it is. */
void slots_add_matrix(struct slots *s, struct weight *to, int n, int k, const char *name);
void slots_add_vector(struct slots *s, float **to, int n, float dummy, const char *name);

/* The last slot added is only these rows and columns of its parameter: columns whole groups of NVFP4. */
void slots_cut(struct slots *s, int row, int n, int column, int k);

size_t slot_bytes(const struct slot *s);            /* in the slab, padded to a multiple of 64 */
uint8_t *slot_address(const struct slot *s);        /* after slots_reserve; on a GPU, the GPU's */
void slot_set_address(struct slot *s, uint8_t *at); /* of its matrix or vector                 */

/* Bytes that slots_reserve takes; SIZE_MAX when they are too many to count. */
size_t slots_bytes(const struct slots *s);
/* Give every slot its address. Nothing is written. */
enum nyb_code slots_reserve(struct slots *s, struct nyb_err *err) NYB_MUST_CHECK;
/* Tells the matrices whether all slots together stay in a last cache of so many bytes; 0: not known. */
void slots_mark_near(struct slots *s, size_t last_cache);

/* ---- source.c: what fills them ------------------------------------------------------------------- */

/* Find every slot in the checkpoint, by the pool's threads where there is one; all that is missing is named
 * in one error. */
enum nyb_code source_resolve(struct slots *s, struct ckpt *c, const struct quant *q, struct pool *pool,
                             struct nyb_err *err) NYB_MUST_CHECK;
/* The same for one slot. */
enum nyb_code source_resolve_slot(struct slot *s, struct ckpt *c, const struct quant *q,
                                  struct nyb_err *err) NYB_MUST_CHECK;
/* Types as the configuration declares them, bf16 where it declares none. */
enum nyb_code source_resolve_dummy(struct slots *s, const struct quant *q,
                                   struct nyb_err *err) NYB_MUST_CHECK;
/* W4A4 rounds the inputs of NVFP4 matrices under the checkpoint's scales: all must have one. */
enum nyb_code source_check_input_scales(const struct slots *s, struct nyb_err *err) NYB_MUST_CHECK;

#endif
