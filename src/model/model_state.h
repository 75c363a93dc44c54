/* What a struct model holds. For the files of this room that open a model, step it and replace its weights;
 * everybody else sees model.h. */
#ifndef NYB_MODEL_MODEL_STATE_H
#define NYB_MODEL_MODEL_STATE_H

#include <stdatomic.h>

#include "model/ep.h"
#include "model/forward.h"
#include "model/name_set.h"
#include "model/origin.h"
#include "model/overlap.h"

struct update_message;
struct update_follower;

struct model {
    struct hfconfig hf;
    struct hfconfig_generation generation;
    struct model_config config;
    struct quant *quant;
    struct weights weights;
    struct pool *pool;
    enum compute compute;
    struct rope rope;
    struct kv_layer *kv; /* (n_layer) or NULL */
    enum kv_type kv_type;
    uint8_t *kv_slab;
    size_t kv_bytes;
    struct forward forward;
    struct comm *comm; /* of one rank where the caller gave none */
    bool own_comm;
    struct ep ep;   /* in use where config.shard.ep_size > 1 */
    bool following; /* in model_follow, or in a model that never opened */
    struct overlap overlap;
    int follow_cut;             /* of the step that is followed                      */
    bool watched;               /* rank 0 has a probe on the step that is followed  */
    atomic_ullong *expert_load; /* (n_layer, n_expert) or NULL: no layer has experts */
    /* ---- of updates (update.c) ---- */
    struct name_set unused;           /* owners of tensors that the loaded checkpoint has and no slot takes */
    bool unused_known;                /* not of random weights                                              */
    atomic_bool updating;             /* a struct update is open                                            */
    atomic_ullong weights_generation; /* model_weights_generation                                           */
    atomic_bool inconsistent;         /* a rollback has failed                                              */
    _Atomic(struct update_message *) message; /* rank 0: for the others (update_ranks.c); NULL: none */
    atomic_bool message_close;                /* rank 0: and that an earlier update is closed        */
    struct update_follower *follower;         /* other ranks: their part in an update, or NULL       */
};

#endif
