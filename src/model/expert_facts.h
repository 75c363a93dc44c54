/* What a slot says about itself besides its shape, and what therefore moves with its rows from rank to rank.
 */
#ifndef NYB_MODEL_EXPERT_FACTS_H
#define NYB_MODEL_EXPERT_FACTS_H

#include "model/origin.h"
#include "model/slots.h"

#define FACT_NAME_MAX 256

/* As it travels between ranks of one program. */
struct expert_facts {
    float global_scale, input_scale;
    bool has_origin; /* the rows can be read again, from these tensors of this checkpoint */
    struct origin_id origin;
    struct linear_source source; /* of a matrix, its two tensors by name */
    char tensor[FACT_NAME_MAX];  /* source.weight, or that of a vector   */
    char scale[FACT_NAME_MAX];   /* source.scale; "": none               */
};

/* Origins that slots of this rank have given up. They are kept until all moves that were ordered together are
 * done: where the last slot of an origin leaves, one of the next moves may bring another one. */
#define ORIGINS_LEFT_MAX 64
struct origins_left {
    struct origin *origin[ORIGINS_LEFT_MAX];
    int n;
    const char *lost; /* a parameter that has come without its origin, or NULL */
};
void origins_left_drop(struct origins_left *left);

struct expert_facts expert_facts_of(const struct slot *s);
/* The slot is about what the facts are about from here on. Its origin becomes this rank's own of the same
 * checkpoint, of whatever slot of `all` or `left` has it; where none has, and the rows could be read again
 * where they come from, left->lost is the slot's name. That name, and where the rows are, is the caller's
 * business. */
void expert_facts_take(struct slot *s, const struct expert_facts *f, const struct slots *all,
                       struct origins_left *left);

#endif
