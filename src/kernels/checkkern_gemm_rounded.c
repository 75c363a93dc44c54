/* Products that write the next one's operand: what gemm_prepare makes of their sums, bit for bit, zeros
 * behind each row included, whatever the number of jobs, rows and threads. */
#include <string.h>

#include "kernels/checkkern.h"
#include "kernels/checkkern_gemm.h"
#include "kernels/gemm_tile.h"

/* Two jobs with rows of one operand, as experts have. */
struct pair {
    struct weight gate[2], up[2];
    struct operand x;
    int32_t *row;
    int m[2];
};

static void make_pair(const struct checkkern_env *env, uint64_t *seed, struct pair *p)
{
    int k = 16 * checkkern_int(seed, 1, 20), n = checkkern_int(seed, 1, 90), m = checkkern_int(seed, 1, 100);
    enum weight_type type = checkkern_int(seed, 0, 2) ? WEIGHT_NVFP4 : WEIGHT_BF16;
    const float *x = checkkern_make_rows(env->arena, seed, m, k);
    gemm_prepare_with(gemm_table_for(env->level), env->pool, env->arena, COMPUTE_BF16, x, m, k, &p->x);
    p->row = arena_alloc(env->arena, (size_t)m * 2, sizeof(*p->row));
    for (int i = 0; i < 2 * m; i++)
        p->row[i] = checkkern_int(seed, 0, m - 1);
    for (int i = 0; i < 2; i++) {
        p->m[i] = checkkern_int(seed, 1, m);
        checkkern_make_weight(env->arena, seed, type, n, k, &p->gate[i]);
        checkkern_make_weight(env->arena, seed, type, n, k, &p->up[i]);
    }
}

static void run_pair(const struct checkkern_env *env, const struct pair *p, bool gated, float *y,
                     const struct operand *rounded)
{
    struct gemm_job job[2];
    for (int i = 0, first = 0; i < 2; first += p->m[i++]) {
        job[i] = (struct gemm_job){.w = &p->gate[i],
                                   .up = gated ? &p->up[i] : NULL,
                                   .x = &p->x,
                                   .row = p->row + first,
                                   .m = p->m[i]};
        job[i].ldy = rounded ? rounded->k_pad : p->gate[i].n;
        if (rounded)
            job[i].rounded = gemm_operand_row(rounded, first);
        else
            job[i].y = y + (size_t)first * (size_t)job[i].ldy;
    }
    gemm_run_with(gemm_table_for(env->level), env->pool, env->arena, COMPUTE_BF16, job, 2);
}

/* Levels whose operands are more than bf16 say so; that they do is checked by what gemm_prepare makes. */
static bool is_bf16_alone(const struct operand *x)
{
    return x->bf16 && !x->f32 && !x->i16 && !x->i8;
}

bool checkkern_gemm_rounded(const struct checkkern_env *env, struct checkkern_report *r)
{
    const struct gemm_table *table = gemm_table_for(env->level);
    uint64_t seed = env->seed + 3;
    for (int round = 0; round < 2 * env->rounds && !r->failed; round++) {
        struct pair p;
        struct operand wanted, found;
        make_pair(env, &seed, &p);
        int n = p.gate[0].n, m = p.m[0] + p.m[1];
        float *y = arena_alloc(env->arena, (size_t)m * (size_t)n, sizeof(*y));
        run_pair(env, &p, round % 2, y, NULL);
        gemm_prepare_with(table, env->pool, env->arena, COMPUTE_BF16, y, m, n, &wanted);
        bool open = gemm_operand_open_with(table, env->arena, COMPUTE_BF16, m, n, &found);
        checkkern_case(r, open == is_bf16_alone(&wanted), "an operand of products %s",
                       open ? "lacks what others have" : "is refused");
        if (open) {
            size_t bytes = (size_t)m * (size_t)found.k_pad * sizeof(*found.bf16);
            memset(gemm_operand_row(&found, 0), 0x7f, bytes); /* zeros must be written, too */
            run_pair(env, &p, round % 2, NULL, &found);
            checkkern_case(r, found.k_pad == wanted.k_pad && !memcmp(found.bf16, wanted.bf16, bytes),
                           "m=%d+%d n=%d%s differs from sums that are rounded afterwards", p.m[0], p.m[1], n,
                           round % 2 ? " gated" : "");
        }
        for (int mode = 0; mode < COMPUTE_COUNT; mode++)
            checkkern_case(r,
                           mode == COMPUTE_BF16 ||
                               !gemm_operand_open_with(table, env->arena, (enum compute)mode, 1, 1, &found),
                           "an operand of products in mode %s", compute_name((enum compute)mode));
        arena_reset(env->arena);
    }
    return !r->failed;
}
