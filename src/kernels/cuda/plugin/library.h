/* NCCL, found at run time: the all-reduce of a library beside ours. Functions return NULL, or why not. */
#pragma once

#include "kernels/cuda/plugin/operators.h"

struct nccl_library; /* one rank's membership in a group */

/* id NULL: only whether the library can be used. */
const char *library_make_id(uint8_t id[CUDA_LIBRARY_ID_BYTES]);
/* Waits until all `size` ranks have come with the same id. */
const char *library_join(struct nccl_library **out, const uint8_t id[CUDA_LIBRARY_ID_BYTES], int rank,
                         int size);
void library_close(struct nccl_library *l); /* NULL is fine */
/* An all-reduce with CUDA_REDUCE_LIBRARY. */
const char *library_start(const struct cuda_op *op, const struct op_place *at);
