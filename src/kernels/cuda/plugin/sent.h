/* Sums whose parts travel by copy engines: the links are busy and no SM is.
 *
 * Every rank has, for each slot and each other rank, room for that rank's part and a flag beside it. Who
 * sends puts two copies on its stream for each of the others: the part, and behind it the flag, which is not
 * written before all of the part is there. Who adds up is a kernel that waits for the flags of one slot, adds
 * what is there in rank order, and clears the flags when all its blocks are done. It may hold every SM while
 * it waits: what it waits for needs none here, and on the other ranks it depends only on what comes before it
 * in the one order that all have.
 *
 * Why a slot is not written to while it is read, nor a flag cleared that is new. A rank sends to a slot for
 * the second time after it has added up another sum X, which it began to send after it had added up the
 * slot's first. The others sent their parts of X after they, too, had added up the slot's first and cleared
 * its flags: they run the same operators in the same order, and a part is sent after what precedes it. So
 * when parts of X are here, everybody is done with the slot.
 *
 * A flag is a copy of a word of the sender's (`ready`), which is zero once it has missed a peer: from then on
 * its parts arrive without a flag, and whoever waits for them fails, too. */
#pragma once

#include "kernels/cuda/plugin/peers.h"

/* Fours in all: the parts, then the flags. */
static __host__ __device__ __forceinline__ size_t sent_fours(const peer_memory &p)
{
    return (size_t)CUDA_SEND_SLOTS * (p.size - 1) * p.sent;
}
static __host__ __device__ __forceinline__ size_t sent_flag_fours(const peer_memory &p)
{
    return p.sent ? ((size_t)CUDA_SEND_SLOTS * p.size + 3) / 4 : 0;
}

/* Where rank `to` has what rank `from` sends. */
static __host__ __device__ __forceinline__ float *sent_part(const peer_memory &p, int to, int slot, int from)
{
    const size_t place = (size_t)slot * (p.size - 1) + (from > to ? from - 1 : from);
    return (float *)(p.parts[to] + place * p.sent);
}
static __host__ __device__ __forceinline__ uint32_t *sent_flag(const peer_memory &p, int to, int slot,
                                                               int from)
{
    return (uint32_t *)(p.parts[to] + sent_fours(p)) + slot * p.size + from;
}

/* ---- the host's part: sent.cu ------------------------------------------------------------------------ */

/* cuda_all_reduce of parts that have been sent. NULL, or why not. */
const char *sent_add_start(const struct cuda_op *op, const struct op_place *at);
cudaError_t sent_load(void);
