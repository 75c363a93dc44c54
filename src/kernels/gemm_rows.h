/* Rows of bf16 for blocks: one after another, in the form that a block wants. */
#ifndef NYB_KERNELS_GEMM_ROWS_H
#define NYB_KERNELS_GEMM_ROWS_H

#include "kernels/gemm_tile.h"

/* The kernel that takes this job in blocks, or NULL. */
const struct gemm_blocks *gemm_blocks_for(const struct gemm_table *table, enum compute mode,
                                          const struct gemm_job *j);
/* Elements of a row of x that a block of bf16 reads. */
static inline size_t gemm_block_row(const struct gemm_job *j)
{
    return ((size_t)j->w->k + 31) / 32 * 32;
}
/* Row i of the job, counted from the operand's start. */
static inline size_t gemm_job_row(const struct gemm_job *j, int i)
{
    return (size_t)(j->row ? j->row[i] : i) * (size_t)j->x->k_pad;
}
/* One row of the job to `to`, GEMM_BLOCK_STEP elements every `step`. */
void gemm_copy_row(const struct gemm_blocks *block, const struct gemm_job *j, int i, uint16_t *to,
                   size_t step);

/* Row first + i of the job to its place among n rows in tiles, k_pad elements a row; the last one fills up
 * its tile with zeros, for whose products nobody asks. */
void gemm_copy_to_tile(const struct gemm_blocks *block, const struct gemm_job *j, int first, int i, int n,
                       uint16_t *to);

/* The jobs again, where those with many rows that blocks would have to copy have them in the right form and
 * order already, in tiles where the block has a copy function: once for all items of a job, by the whole
 * pool. ready[i] tells which; memory is from the arena. n_whole: of how many jobs these are parts
 * (gemm_split).
 */
const struct gemm_job *gemm_line_up(const struct gemm_table *table, struct pool *pool, struct arena *scratch,
                                    enum compute mode, const struct gemm_job *job, int n_job, int n_whole,
                                    bool *ready);

#endif
