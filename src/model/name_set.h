/* Tensors of a checkpoint that no slot takes, by owner: a later checkpoint may have them too, in any dress,
 * but no others. */
#ifndef NYB_MODEL_NAME_SET_H
#define NYB_MODEL_NAME_SET_H

#include "base/arena.h"
#include "checkpoint/checkpoint.h"

struct name_set {
    char **name; /* sorted, may repeat */
    int n;
    struct arena names;
};

/* The owner of each tensor that ckpt_take has not marked. An owner is a tensor's name without what
 * quantization adds to it: "mtp.0.up_proj" for ".weight", ".weight_packed", ".weight_scale" and the like. */
void name_set_collect_unused(struct name_set *s, const struct ckpt *c);
/* The owners of these n, too. To an empty one (all zero) as well. */
void name_set_add(struct name_set *s, const char *const *tensor, size_t n);
/* Whether the owner of this tensor is in it. */
bool name_set_has_owner(const struct name_set *s, const char *tensor);
void name_set_free(struct name_set *s);

#endif
