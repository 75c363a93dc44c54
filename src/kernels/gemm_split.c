#include "kernels/gemm_split.h"

#include "fp4/fp4.h"
#include "kernels/gemm_rows.h"
#include "kernels/weight_layout.h"

#define PART_DECODED 32 /* rows of x at least, so that what is decoded serves as many */
#define PART_PLAIN   8  /* where nothing is decoded: as many as a tile has            */
#define WORKER_ITEMS 4  /* pairs of panels and parts of rows that each worker should find */
#define NEAR_UNIT    48 /* rows that a block expands weights for */
/* Rows of x that stay in a second cache beside weights. Each item of a job reads all rows: with many threads
 * and few panels for each that is more than the weights, and comes from the last cache. */
#define NEAR_BYTES ((size_t)512 << 10)

/* Rows first .. first + n - 1, as an operand of its own. */
static struct operand *operand_rows(struct arena *scratch, const struct operand *x, int first, int n)
{
    struct operand *part = arena_alloc(scratch, 1, sizeof(*part));
    size_t at = (size_t)first * (size_t)x->k_pad;
    *part = *x;
    part->m = n;
    part->f32 = x->f32 ? x->f32 + at : NULL;
    part->bf16 = x->bf16 ? x->bf16 + at : NULL;
    part->i8 = x->i8 ? x->i8 + at : NULL;
    part->i8_scale = x->i8_scale ? x->i8_scale + (size_t)first * (size_t)operand_i8_scales(x->k_pad) : NULL;
    part->i8_group = x->i8_group ? x->i8_group + at / FP4_GROUP : NULL;
    part->i8_block = x->i8_block ? x->i8_block + (size_t)first * (size_t)operand_i8_scales(x->k_pad) : NULL;
    part->i16 = x->i16 ? x->i16 + at : NULL;
    part->i16_bytes = x->i16_bytes ? x->i16_bytes + 2 * at : NULL;
    part->i16_group = x->i16_group ? x->i16_group + at / FP4_GROUP : NULL;
    return part;
}

/* Into how many parts jobs are cut that have this many pairs of panels together. */
static int parts_wanted(int n_pair, int workers)
{
    if (workers == 1 || n_pair == 0 || n_pair >= WORKER_ITEMS * workers / 2)
        return 1;
    return (WORKER_ITEMS * workers + n_pair - 1) / n_pair;
}

static int least_rows(const struct gemm_job *job)
{
    return job->w->type == WEIGHT_NVFP4 || job->w->type == WEIGHT_FP8 ? PART_DECODED : PART_PLAIN;
}

/* So many rows that `parts` times as many are m or a little more, a multiple of `unit`. */
static int part_rows_of(int m, int parts, int unit)
{
    int rows = (m + parts - 1) / parts;
    return (rows + unit - 1) / unit * unit;
}

/* Rows of a part: so that `parts` of them make the job's, a multiple of half of the least. */
static int part_rows(const struct gemm_job *job, int parts)
{
    int least = least_rows(job), rows = part_rows_of(job->m, parts, least / 2);
    return rows < least ? least : rows;
}

/* Jobs that share their rows, as q, k and v do, share them in parts, too: they are then prepared once. */
static bool shares_rows(const struct gemm_job *a, const struct gemm_job *b)
{
    return a->x == b->x && !a->row && !b->row && a->m == b->m;
}

/* Rows of a part of a job that blocks of rows go through. */
static int near_rows(const struct gemm_table *table, enum compute mode, const struct gemm_job *job)
{
    const struct gemm_blocks *block = gemm_blocks_for(table, mode, job);
    size_t most = NEAR_BYTES / (gemm_block_row(job) * sizeof(uint16_t));
    if (!block || !block->copy || (size_t)job->m <= most)
        return job->m;
    int rows = most < NEAR_UNIT ? NEAR_UNIT : (int)most;
    return part_rows_of(job->m, (job->m + rows - 1) / rows, NEAR_UNIT);
}

/* Rows first .. first + n - 1 of a job; x: of them, where the job has no list of rows. */
static struct gemm_job job_rows(const struct gemm_job *job, int first, int n, const struct operand *x)
{
    struct gemm_job part = *job;
    part.m = n;
    if (job->rounded)
        part.rounded = job->rounded + (size_t)first * (size_t)job->ldy;
    else
        part.y = job->y + (size_t)first * (size_t)job->ldy;
    if (job->row)
        part.row = job->row + first;
    else
        part.x = x;
    return part;
}

/* n jobs in parts of so many rows each. Where they share their rows their parts of the same rows follow each
 * other: then those are prepared once. */
static int cut_jobs(struct arena *scratch, const struct gemm_job *job, int n_job, int rows,
                    struct gemm_job *part)
{
    int n = 0;
    for (int first = 0; first < job->m || first == 0; first += rows) {
        int here = job->m - first < rows ? job->m - first : rows;
        const struct operand *x = job->row ? NULL : operand_rows(scratch, job->x, first, here);
        for (int i = 0; i < n_job; i++)
            part[n++] = job_rows(&job[i], first, here, x);
    }
    return n;
}

/* Rows of each job's parts; how many parts that makes, 0: of none is it worth while. */
static int plan_parts(const struct gemm_table *table, enum compute mode, const struct gemm_job *job,
                      int n_job, int workers, int *rows)
{
    int n_pair = 0, n_part = 0;
    for (int i = 0; i < n_job && n_pair < WORKER_ITEMS * workers; i++)
        n_pair += job[i].m ? (weight_n_panel(job[i].w) + 1) / 2 : 0;
    int parts = parts_wanted(n_pair, workers);
    bool worth = false;
    for (int i = 0; i < n_job; i++) {
        rows[i] = job[i].m;
        if (parts > 1)
            rows[i] = part_rows(&job[i], parts);
        else if (workers > 1 && n_job < workers)
            rows[i] = near_rows(table, mode, &job[i]);
        worth |= parts > 1 ? job[i].m >= 2 * least_rows(&job[i]) : rows[i] < job[i].m;
        n_part += rows[i] ? job[i].m / rows[i] + 1 : 1;
    }
    return worth ? n_part : 0;
}

const struct gemm_job *gemm_split(const struct gemm_table *table, enum compute mode, struct arena *scratch,
                                  const struct gemm_job *job, int *n_job, int workers)
{
    int *rows = arena_alloc(scratch, (size_t)*n_job, sizeof(*rows));
    int n_part = plan_parts(table, mode, job, *n_job, workers, rows), n = 0;
    if (n_part == 0)
        return job;
    struct gemm_job *cut = arena_alloc(scratch, (size_t)n_part, sizeof(*cut));
    for (int i = 0, same; i < *n_job; i += same) {
        for (same = 1; i + same < *n_job && rows[i] == rows[i + same]; same++)
            if (!shares_rows(&job[i], &job[i + same]))
                break;
        n += cut_jobs(scratch, &job[i], same, rows[i] > 0 ? rows[i] : 1, cut + n);
    }
    ASSERT(n <= n_part);
    *n_job = n;
    return cut;
}
