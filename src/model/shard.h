/* How a model is cut over ranks (tensor parallelism).
 *
 * Attention is cut by heads, the MLPs and experts by intermediate features, the head by vocabulary; norms,
 * router and embedding are whole on every rank. Each half layer ends with partial sums that comm adds up.
 * Cuts along K fall on multiples of 16, so that no NVFP4 group is split; they need not be even, and with more
 * ranks than there is to share some get nothing. */
#ifndef NYB_MODEL_SHARD_H
#define NYB_MODEL_SHARD_H

#include <stdbool.h>

#define SHARD_UNIT 16 /* a group of NVFP4, and a panel of rows */
#define SHARD_WIDE 64 /* what a GPU's kernels for packed weights work on */

/* A range of one rank; count may be 0. */
struct shard_range {
    int begin, count;
};

struct shard {
    int rank, size;
    /* Query heads, and the KV heads that they read: each KV head belongs to one rank, or to several
     * neighbours when there are more ranks, which then share its query heads. Always at least one KV head, so
     * that the cache has a shape. */
    struct shard_range head, kv_head;
    bool wide; /* features of MLPs are shared out by SHARD_WIDE where that leaves no rank without */
    /* Expert parallelism (ep.h): experts are shared out whole and sequences have a home rank, so that nothing
     * else is cut: rank 0 of 1 above. 0 of 1 here without it. */
    int ep_rank, ep_size;
    int ep_redundant; /* slots of a layer for second copies of experts, over all ranks (placement.h) */
};

/* Rank's share of n features. */
struct shard_range shard_units(const struct shard *s, int n);
/* The same of the n features inside an MLP. */
struct shard_range shard_features(const struct shard *s, int n);
struct shard_range shard_units_of(int rank, int size, int n);
/* n_head must be a multiple of n_kv_head. */
void shard_set(struct shard *s, int rank, int size, int n_head, int n_kv_head);

/* Whole heads, features and vocabulary on every rank. */
void shard_set_experts(struct shard *s, int rank, int size, int n_head, int n_kv_head);

#endif
