/* down(silu(gate x) * up x), for one MLP or for all experts of a layer at once. */
#include <math.h>
#include <string.h>

#include "model/layer.h"

/* Gate and up in one job share its operand and have no room for biases. */
static bool can_fuse(const struct mlp *mlp, enum compute compute)
{
    const struct weight *gate = &mlp->gate.w, *up = &mlp->up.w;
    if (gate->type != up->type || mlp->gate.bias || mlp->up.bias)
        return false;
    /* w4a4 rounds a job's input under the input scale of its first matrix */
    return compute != COMPUTE_W4A4 || gate->type != WEIGHT_NVFP4 || gate->input_scale == up->input_scale;
}

/* A call whose two products are apart: `up` waits to be multiplied into `act`. */
struct unfused {
    float *act, *up; /* (m, n) */
    int m, n;
};

static void swiglu_rows(void *arg, int begin, int end, int worker)
{
    (void)worker;
    const struct unfused *u = arg;
    for (size_t i = (size_t)begin * (size_t)u->n; i < (size_t)end * (size_t)u->n; i++)
        u->act[i] = u->act[i] / (1.0f + expf(-u->act[i])) * u->up[i];
}

struct up_jobs {
    struct gemm_job *job;
    struct unfused *unfused;
    int n_job, n_unfused;
};

static void add_up_jobs(struct micro_batch *mb, struct up_jobs *jobs, const struct mlp_group *g,
                        const struct mlp_call *call, float *act, const struct operand *rounded)
{
    struct gemm_job gate = {.w = &call->mlp->gate.w,
                            .x = g->x,
                            .row = call->row,
                            .m = call->m,
                            .ldy = g->intermediate,
                            .bias = call->mlp->gate.bias};
    if (rounded) {
        gate.rounded = gemm_operand_row(rounded, call->first);
        gate.ldy = rounded->k_pad;
    } else {
        gate.y = act + (size_t)call->first * (size_t)g->intermediate;
    }
    if (can_fuse(call->mlp, mb->pass->compute)) {
        gate.up = &call->mlp->up.w;
        jobs->job[jobs->n_job++] = gate;
        return;
    }
    struct gemm_job up = gate;
    up.w = &call->mlp->up.w;
    up.bias = call->mlp->up.bias;
    up.y = arena_alloc(&mb->scratch, (size_t)call->m * (size_t)g->intermediate, sizeof(float));
    jobs->job[jobs->n_job++] = gate;
    jobs->job[jobs->n_job++] = up;
    jobs->unfused[jobs->n_unfused++] = (struct unfused){gate.y, up.y, call->m, g->intermediate};
}

/* Whether the products of gate with up write what down wants: then they need be rounded by nobody else. */
static bool open_operand(struct micro_batch *mb, const struct mlp_group *g, struct operand *x)
{
    for (int c = 0; c < g->n_call; c++)
        if (!can_fuse(g->call[c].mlp, mb->pass->compute))
            return false;
    return gemm_operand_open(&mb->scratch, mb->pass->compute, g->m, g->intermediate, x);
}

/* x[i] (group[i].m, intermediate) */
static void gate_up(struct micro_batch *mb, const struct mlp_group *group, int n_group, struct operand *x)
{
    const struct pass *p = mb->pass;
    struct up_jobs jobs = {0};
    size_t n_call = 0;
    for (int i = 0; i < n_group; i++)
        n_call += (size_t)group[i].n_call;
    jobs.job = arena_alloc(&mb->scratch, 2 * n_call, sizeof(*jobs.job));
    jobs.unfused = arena_alloc(&mb->scratch, n_call, sizeof(*jobs.unfused));
    float *act[MLP_GROUPS_MAX] = {NULL};
    for (int i = 0; i < n_group; i++) {
        bool rounded = open_operand(mb, &group[i], &x[i]);
        if (!rounded)
            act[i] =
                arena_alloc(&mb->scratch, (size_t)group[i].m * (size_t)group[i].intermediate, sizeof(float));
        for (int c = 0; c < group[i].n_call; c++)
            add_up_jobs(mb, &jobs, &group[i], &group[i].call[c], act[i], rounded ? &x[i] : NULL);
    }
    gemm_run(p->pool, &mb->scratch, p->compute, jobs.job, jobs.n_job);
    for (int i = 0; i < jobs.n_unfused; i++)
        pool_range(p->pool, jobs.unfused[i].m, 4, swiglu_rows, &jobs.unfused[i]);
    for (int i = 0; i < n_group; i++)
        if (act[i])
            gemm_prepare(p->pool, &mb->scratch, p->compute, act[i], group[i].m, group[i].intermediate, &x[i]);
}

static void down(struct micro_batch *mb, const struct mlp_group *group, int n_group, const struct operand *x)
{
    const struct pass *p = mb->pass;
    size_t n_call = 0;
    int m_max = 0, n_job = 0;
    for (int i = 0; i < n_group; i++) {
        n_call += (size_t)group[i].n_call;
        m_max = group[i].m > m_max ? group[i].m : m_max;
    }
    int32_t *iota = arena_alloc(&mb->scratch, (size_t)m_max, sizeof(*iota));
    for (int i = 0; i < m_max; i++)
        iota[i] = i;
    struct gemm_job *job = arena_alloc(&mb->scratch, n_call, sizeof(*job));
    for (int i = 0; i < n_group; i++)
        for (int c = 0; c < group[i].n_call; c++) {
            const struct mlp_call *call = &group[i].call[c];
            job[n_job++] = (struct gemm_job){.w = &call->mlp->down.w,
                                             .x = &x[i],
                                             .row = iota + call->first,
                                             .m = call->m,
                                             .y = call->y,
                                             .ldy = p->config->hidden,
                                             .bias = call->mlp->down.adds_bias ? call->mlp->down.bias : NULL};
        }
    gemm_run(p->pool, &mb->scratch, p->compute, job, n_job);
}

/* This rank has none of the group's features: its part of the sums is zero. */
static void zero_group(const struct micro_batch *mb, const struct mlp_group *g)
{
    size_t hidden = (size_t)mb->pass->config->hidden;
    for (int c = 0; c < g->n_call; c++)
        memset(g->call[c].y, 0, (size_t)g->call[c].m * hidden * sizeof(float));
}

void mlp_run(struct micro_batch *mb, const struct mlp_group *group, int n_group)
{
    struct mlp_group some[MLP_GROUPS_MAX];
    int n_some = 0;
    ASSERT(n_group <= MLP_GROUPS_MAX);
    for (int i = 0; i < n_group; i++)
        if (group[i].intermediate > 0)
            some[n_some++] = group[i];
        else
            zero_group(mb, &group[i]);
    group = some;
    n_group = n_some;
    if (n_group == 0)
        return;
    struct operand *x = arena_alloc(&mb->scratch, (size_t)n_group, sizeof(*x));
    gate_up(mb, group, n_group, x);
    down(mb, group, n_group, x);
}

void mlp_dense(struct micro_batch *mb)
{
    const struct mlp *mlp = &mb->pass->weights->layer[mb->layer].mlp;
    const struct mlp_call call = {.mlp = mlp, .m = mb->n_tok, .y = mb->delta};
    const struct mlp_group group = {
        .x = &mb->input, .call = &call, .n_call = 1, .intermediate = mlp->gate.w.n, .m = mb->n_tok};
    mlp_run(mb, &group, 1);
    mb->has_delta = true;
}
