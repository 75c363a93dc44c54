#include "kernels/gemm_split.h"

#include "fp4/fp4.h"
#include "kernels/weight_layout.h"

#define PART_DECODED 32 /* rows of x at least, so that what is decoded serves as many */
#define PART_PLAIN   8  /* where nothing is decoded: as many as a tile has            */
#define WORKER_ITEMS 4  /* pairs of panels and parts of rows that each worker should find */

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

/* Rows of a part: so that `parts` of them make the job's, a multiple of half of the least. */
static int part_rows(const struct gemm_job *job, int parts)
{
    int rows = (job->m + parts - 1) / parts, least = least_rows(job), unit = least / 2;
    rows = (rows + unit - 1) / unit * unit;
    return rows < least ? least : rows;
}

/* Jobs that share their rows, as q, k and v do, share them in parts, too: they are then prepared once. */
static bool shares_rows(const struct gemm_job *a, const struct gemm_job *b)
{
    return a->x == b->x && !a->row && !b->row && a->m == b->m;
}

static int cut_job(struct arena *scratch, const struct gemm_job *job, int rows, const struct gemm_job *twin,
                   struct gemm_job *part)
{
    int n = 0;
    for (int first = 0; first < job->m || n == 0; first += rows, n++) {
        part[n] = *job;
        part[n].m = job->m - first < rows ? job->m - first : rows;
        if (job->rounded)
            part[n].rounded = job->rounded + (size_t)first * (size_t)job->ldy;
        else
            part[n].y = job->y + (size_t)first * (size_t)job->ldy;
        if (job->row)
            part[n].row = job->row + first;
        else
            part[n].x = twin ? twin[n].x : operand_rows(scratch, job->x, first, part[n].m);
    }
    return n;
}

const struct gemm_job *gemm_split(struct arena *scratch, const struct gemm_job *job, int *n_job, int workers)
{
    int n_pair = 0, n_part = 0;
    for (int i = 0; i < *n_job && n_pair < WORKER_ITEMS * workers; i++)
        n_pair += job[i].m ? (weight_n_panel(job[i].w) + 1) / 2 : 0;
    int parts = parts_wanted(n_pair, workers);
    bool worth = false;
    for (int i = 0; parts > 1 && i < *n_job; i++) {
        worth |= job[i].m >= 2 * least_rows(&job[i]);
        n_part += job[i].m / part_rows(&job[i], parts) + 1;
    }
    if (!worth)
        return job;
    struct gemm_job *cut = arena_alloc(scratch, (size_t)n_part, sizeof(*cut));
    int n = 0;
    const struct gemm_job *last = NULL; /* parts of the job before */
    for (int i = 0; i < *n_job; i++) {
        int rows = part_rows(&job[i], parts);
        bool shared = last && shares_rows(&job[i - 1], &job[i]) && part_rows(&job[i - 1], parts) == rows;
        const struct gemm_job *twin = shared ? last : NULL;
        last = cut + n;
        n += cut_job(scratch, &job[i], rows, twin, cut + n);
    }
    ASSERT(n <= n_part);
    *n_job = n;
    return cut;
}
