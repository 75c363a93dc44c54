#include "kernels/gemm_rows.h"

#include <string.h>

/* So many rows are copied by each item, not by a run of the pool; and so many where there is a job or more
 * for each thread, and therefore few items that would copy the same rows. */
#define FEW_ROWS  GEMM_BLOCK_TILE
#define ITEM_ROWS GEMM_BLOCK_ROW
#define GRAIN     2 /* rows that make a ticket worth drawing */

const struct gemm_blocks *gemm_blocks_for(const struct gemm_table *table, enum compute mode,
                                          const struct gemm_job *j)
{
    const struct gemm_blocks *b = &table->block[j->w->type][gemm_form_for(table, j->w->type, mode)];
    return b->fn && j->m >= b->least_row ? b : NULL;
}

void gemm_copy_row(const struct gemm_blocks *block, const struct gemm_job *j, int i, uint16_t *to,
                   size_t step)
{
    const uint16_t *from = j->x->bf16 + gemm_job_row(j, i);
    if (block->copy)
        block->copy(to, from, (int)gemm_block_row(j), step);
    else
        memcpy(to, from, gemm_block_row(j) * sizeof(*to));
}

/* Rows of one job, as part of all that are to be copied. */
struct line {
    const struct gemm_blocks *block;
    const struct gemm_job *from;
    uint16_t *to;
    int first; /* the number of its first row */
};

struct line_up {
    const struct line *line;
    int n_line;
};

void gemm_copy_to_tile(const struct gemm_blocks *block, const struct gemm_job *j, int first, int i, int n,
                       uint16_t *to)
{
    const size_t step = GEMM_BLOCK_TILE * GEMM_BLOCK_STEP, row = gemm_block_row(j);
    uint16_t *tile = to + (size_t)(i / GEMM_BLOCK_TILE * GEMM_BLOCK_TILE) * (size_t)j->x->k_pad;
    gemm_copy_row(block, j, first + i, tile + i % GEMM_BLOCK_TILE * GEMM_BLOCK_STEP, step);
    for (int pad = i + 1; i == n - 1 && pad % GEMM_BLOCK_TILE; pad++)
        for (size_t k = 0; k < row; k += GEMM_BLOCK_STEP)
            memset(tile + pad % GEMM_BLOCK_TILE * GEMM_BLOCK_STEP + k * GEMM_BLOCK_TILE, 0,
                   GEMM_BLOCK_STEP * sizeof(*tile));
}

static void copy_rows(void *arg, int begin, int end, int worker)
{
    (void)worker;
    const struct line_up *u = arg;
    int l = 0;
    for (int i = begin; i < end; i++) {
        while (l + 1 < u->n_line && u->line[l + 1].first <= i)
            l++;
        const struct line *at = &u->line[l];
        int row = i - at->first;
        if (at->block->copy)
            gemm_copy_to_tile(at->block, at->from, 0, row, at->from->m, at->to);
        else
            gemm_copy_row(at->block, at->from, row, at->to + (size_t)row * (size_t)at->from->x->k_pad,
                          GEMM_BLOCK_STEP);
    }
}

static bool same_rows(const struct gemm_job *a, const struct gemm_job *b)
{
    return a->x == b->x && a->row == b->row && a->m == b->m;
}

const struct gemm_job *gemm_line_up(const struct gemm_table *table, struct pool *pool, struct arena *scratch,
                                    enum compute mode, const struct gemm_job *job, int n_job, int n_whole,
                                    bool *ready)
{
    struct gemm_job *copy = NULL;
    struct line *line = NULL;
    struct line_up u = {0};
    int few = n_whole < pool_size(pool) ? FEW_ROWS : ITEM_ROWS;
    int n_row = 0, last = -1; /* the job of the last line */
    for (int i = 0; i < n_job; i++) {
        const struct gemm_blocks *block = gemm_blocks_for(table, mode, &job[i]);
        bool bf16 = gemm_form_for(table, job[i].w->type, mode) == GEMM_BF16;
        ready[i] = block && bf16 && job[i].m > few && (job[i].row || block->copy);
        if (!ready[i])
            continue;
        if (!copy) {
            copy = arena_alloc(scratch, (size_t)n_job, sizeof(*copy));
            memcpy(copy, job, (size_t)n_job * sizeof(*copy));
            line = arena_alloc(scratch, (size_t)n_job, sizeof(*line));
        }
        bool shared =
            last >= 0 && same_rows(&job[last], &job[i]) && line[u.n_line - 1].block->copy == block->copy;
        if (!shared) { /* q, k and v have theirs in common */
            size_t n_row_up = ((size_t)job[i].m + GEMM_BLOCK_TILE - 1) / GEMM_BLOCK_TILE * GEMM_BLOCK_TILE;
            size_t n = n_row_up * (size_t)job[i].x->k_pad;
            line[u.n_line++] =
                (struct line){block, &job[i], arena_alloc(scratch, n, sizeof(uint16_t)), n_row};
            n_row += job[i].m;
            last = i;
        }
        struct operand *op = arena_alloc(scratch, 1, sizeof(*op));
        *op = (struct operand){.m = job[i].m, .k = job[i].x->k, .k_pad = job[i].x->k_pad};
        op->bf16 = line[u.n_line - 1].to;
        copy[i].x = op;
        copy[i].row = NULL;
    }
    u.line = line;
    if (n_row)
        pool_range(pool, n_row, GRAIN, copy_rows, &u);
    return copy ? copy : job;
}
