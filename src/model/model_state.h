/* What a struct model holds. For the files of this room that open a model, step it and replace its weights;
 * everybody else sees model.h. */
#ifndef NYB_MODEL_MODEL_STATE_H
#define NYB_MODEL_MODEL_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "model/ep.h"
#include "model/forward.h"
#include "model/name_set.h"
#include "model/origin.h"
#include "model/overlap.h"
#include "model/update.h"

struct update_message;
struct update_follower;
struct rebalance;
struct checksum_worker;

/* Rank 0: what other threads have left to be said to the other ranks (update_ranks.c). */
struct update_word {
    pthread_mutex_t lock;
    bool close;                     /* an earlier update is closed */
    struct update_message *prepare; /* NULL: no news */
    bool stage;                     /* what has been announced, here or before */
};

struct model {
    struct hfconfig hf;
    struct hfconfig_generation generation;
    struct model_config config;
    struct quant *quant;
    struct weights weights;
    struct pool *pool;
    struct device *device;        /* the GPU that has the weights and the cache, or NULL */
    int32_t *want_best;           /* model_forward_best, _draw: where, during its step on a GPU */
    const struct draw *want_draw; /* model_forward_draw's, then                                 */
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
    int follow_cut;              /* of the step that is followed                      */
    bool watched;                /* rank 0 has a probe on the step that is followed  */
    atomic_ullong *expert_load;  /* (n_layer, n_expert) or NULL: no layer has experts; rank 0: of all ranks */
    struct rebalance *rebalance; /* where config.shard.ep_size > 1 and there are experts */
    /* ---- of updates (update.c) ---- */
    struct name_set unused;           /* owners of tensors that the loaded checkpoint has and no slot takes */
    bool unused_known;                /* not of random weights                                              */
    atomic_bool updating;             /* a struct update is open                                            */
    atomic_ullong weights_generation; /* model_weights_generation                                           */
    atomic_bool inconsistent;         /* a rollback has failed                                              */
    struct update_word word;
    struct update_follower *follower; /* other ranks: their part in an update, or NULL       */
    enum nyb_code (*follow_fault)(void *arg, enum update_point point,
                                  int64_t count); /* tests only, or NULL */
    void *follow_fault_arg;
    struct checksum_worker *checksum; /* this rank's part in a checksum of all (checksum_ranks.c), or NULL */
};

#endif
