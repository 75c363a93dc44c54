/* nybble bench gpus --experts: what it takes rows to reach the experts of several GPUs, and products to come
 * back, beside the link between them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cli/bench_gpus.h"
#include "kernels/checkkern.h"
#include "kernels/checkkern_cuda_group.h"

#define BUFFER_BYTES ((size_t)64 << 20) /* as served models have them */
#define TIMEOUT_MS   20000

/* A rank's arrays, the GPU's. */
struct memory {
    int32_t *count, *place, *expert, *local;
    uint16_t *x, *x_all;
    float *weight, *out;
    void *each;
};

struct bench {
    const struct gpus_bench *o;
    struct gpu_group group;
    struct memory at[CUDA_PEERS_MAX];
    double rate[CUDA_PEERS_MAX], round_trip[CUDA_PEERS_MAX], seconds[CUDA_PEERS_MAX];
    double rows_out, products_out; /* bytes that leave the GPU that sends most */
    int n_row;                     /* of each rank */
    bool products;
};

static int rows_of_all(const struct bench *b)
{
    return b->n_row * b->group.size;
}
static bool is_bf16(const struct bench *b)
{
    return cuda_moe_is_for_many(rows_of_all(b), b->o->top_k);
}
static int first_expert(const struct bench *b, int rank)
{
    return b->o->n_expert * rank / b->group.size;
}
static int owner_of(const struct bench *b, int expert)
{
    int r = 0;
    while (expert >= first_expert(b, r + 1))
        r++;
    return r;
}

/* ---- on each rank's thread ------------------------------------------------------------------------- */

static bool take_memory(void *arg, struct cuda_gpu *g, int r)
{
    struct bench *b = arg;
    const struct cuda_plugin *p = b->group.plugin;
    struct memory *m = &b->at[r];
    size_t own = (size_t)b->o->max_rows, all = own * (size_t)b->group.size, n = (size_t)b->o->hidden,
           pairs = all * (size_t)b->o->top_k;
    size_t few = pairs < CUDA_SLOTS_MAX ? pairs : CUDA_SLOTS_MAX;
    size_t each =
        pairs * sizeof(uint16_t) > few * sizeof(float) ? pairs * sizeof(uint16_t) : few * sizeof(float);
    m->count = p->alloc(g, CUDA_PEERS_MAX * sizeof(int32_t));
    m->place = p->alloc(g, all * sizeof(int32_t));
    m->expert = p->alloc(g, pairs * sizeof(int32_t));
    m->local = p->alloc(g, pairs * sizeof(int32_t));
    m->x = p->alloc(g, own * n * sizeof(uint16_t));
    m->x_all = p->alloc(g, all * n * sizeof(uint16_t));
    m->weight = p->alloc(g, pairs * sizeof(float));
    m->out = p->alloc(g, own * n * sizeof(float));
    m->each = p->alloc(g, each * n);
    return m->count && m->place && m->expert && m->local && m->x && m->x_all && m->weight && m->out &&
           m->each && p->zero(g, m->x, own * n * sizeof(uint16_t)) &&
           p->zero(g, m->weight, pairs * sizeof(float)) && p->zero(g, m->each, each * n);
}

static bool measure_link(void *arg, struct cuda_gpu *g, int r)
{
    struct bench *b = arg;
    b->rate[r] = b->group.plugin->peers_rate(g);
    b->round_trip[r] = b->group.plugin->peers_round_trip(g);
    return b->rate[r] > 0 && b->round_trip[r] > 0;
}

/* Another choice for each row, all different; what must leave this rank is counted. */
static void choose(const struct bench *b, int r, int32_t *expert, double *rows, double *products)
{
    uint64_t seed = 77 + (uint64_t)(1000 * r + b->n_row);
    size_t k = (size_t)b->o->top_k;
    *rows = *products = 0;
    for (int i = 0; i < b->n_row; i++) {
        bool sent[CUDA_PEERS_MAX] = {false};
        for (size_t j = 0; j < k; j++) {
            int32_t *e = expert + (size_t)i * k + j;
            bool again = true;
            while (again) {
                *e = checkkern_int(&seed, 0, b->o->n_expert - 1);
                again = false;
                for (size_t l = 0; l < j; l++)
                    again = again || expert[(size_t)i * k + l] == *e;
            }
            int to = owner_of(b, *e);
            *products += to != r;
            *rows += to != r && !sent[to];
            sent[to] = true;
        }
    }
    *rows *= b->o->hidden * (double)sizeof(uint16_t);
    *products *= b->o->hidden * (double)(is_bf16(b) ? sizeof(uint16_t) : sizeof(float));
}

static bool write_rows(void *arg, struct cuda_gpu *g, int r)
{
    struct bench *b = arg;
    const struct cuda_plugin *p = b->group.plugin;
    const struct memory *m = &b->at[r];
    size_t all = (size_t)rows_of_all(b);
    int32_t count[CUDA_PEERS_MAX] = {0}, *place = mem_alloc(all, sizeof(*place)),
            *expert = mem_alloc((size_t)b->n_row * (size_t)b->o->top_k, sizeof(*expert));
    double rows, products;
    for (int i = 0; i < b->group.size; i++)
        count[i] = b->n_row;
    for (size_t i = 0; i < all; i++)
        place[i] = (int32_t)i;
    choose(b, r, expert, &rows, &products);
    bool ok = p->write(g, m->count, count, sizeof(count)) &&
              p->write(g, m->place, place, all * sizeof(*place)) &&
              p->write(g, m->expert, expert, (size_t)b->n_row * (size_t)b->o->top_k * sizeof(*expert));
    free(place);
    free(expert);
    return ok;
}

static bool time_ops(void *arg, struct cuda_gpu *g, int r)
{
    struct bench *b = arg;
    const struct memory *m = &b->at[r];
    const struct cuda_spread rows = {m->count, m->place, b->n_row, rows_of_all(b)};
    struct cuda_op *op = mem_alloc((size_t)b->o->calls, sizeof(*op));
    for (int i = 0; i < b->o->calls; i++) {
        op[i] = (struct cuda_op){.kind = b->products ? CUDA_OP_COMBINE : CUDA_OP_DISPATCH, .n_row = b->n_row};
        int32_t *first = b->products ? op[i].as.combine.first : op[i].as.dispatch.first;
        if (b->products)
            op[i].as.combine = (struct cuda_combine){.rows = rows,
                                                     .each = m->each,
                                                     .is_bf16 = is_bf16(b),
                                                     .local = m->local,
                                                     .expert = m->expert,
                                                     .weight = m->weight,
                                                     .out = m->out,
                                                     .n = b->o->hidden,
                                                     .n_used = b->o->top_k};
        else
            op[i].as.dispatch = (struct cuda_dispatch){.rows = rows,
                                                       .x = m->x,
                                                       .expert = m->expert,
                                                       .x_all = m->x_all,
                                                       .local = m->local,
                                                       .n = b->o->hidden,
                                                       .n_used = b->o->top_k};
        for (int rank = 0; rank <= b->group.size; rank++)
            first[rank] = first_expert(b, rank);
    }
    b->seconds[r] = b->group.plugin->time(g, op, b->o->calls, b->o->rounds);
    free(op);
    return b->seconds[r] > 0;
}

/* ---- the table --------------------------------------------------------------------------------------- */

static double most(const double *v, int n)
{
    double found = v[0];
    for (int i = 1; i < n; i++)
        found = v[i] > found ? v[i] : found;
    return found;
}

/* Bytes that leave whichever rank sends most: of products, those of its own experts. */
static void count_bytes(struct bench *b)
{
    size_t n = (size_t)b->n_row * (size_t)b->o->top_k;
    int32_t *expert = mem_alloc(n, sizeof(*expert));
    double back[CUDA_PEERS_MAX] = {0}, rows, products;
    double wide = b->o->hidden * (double)(is_bf16(b) ? sizeof(uint16_t) : sizeof(float));
    b->rows_out = 0;
    for (int r = 0; r < b->group.size; r++) {
        choose(b, r, expert, &rows, &products);
        b->rows_out = rows > b->rows_out ? rows : b->rows_out;
        for (size_t i = 0; i < n; i++)
            if (owner_of(b, expert[i]) != r)
                back[owner_of(b, expert[i])] += wide;
    }
    b->products_out = most(back, b->group.size);
    free(expert);
}

/* Seconds of a word and its answer, bytes a second. */
struct link {
    double round_trip, rate;
};

static void print_head(const struct bench *b, const struct link *link)
{
    const struct gpus_bench *o = b->o;
    if (o->json)
        printf("{\"ranks\": %d, \"hidden\": %d, \"experts\": %d, \"top_k\": %d, \"link_gbs\": %.3f, "
               "\"round_trip_us\": %.3f, \"rows\": [",
               b->group.size, o->hidden, o->n_expert, o->top_k, link->rate * 1e-9, link->round_trip * 1e6);
    else
        printf("%d GPUs, rows of %d, %d of %d experts each, link %.1f GB/s each way, a word and its answer "
               "%.2f us; microseconds, and the time over the limit, and over it and that word\n"
               " rows/GPU    dispatch       limit  over  over    combine       limit  over  over\n",
               b->group.size, o->hidden, o->top_k, o->n_expert, link->rate * 1e-9, link->round_trip * 1e6);
}

static void print_rows(const struct bench *b, const double us[2], const struct link *link, bool first)
{
    double limit[2] = {1e6 * b->rows_out / link->rate, 1e6 * b->products_out / link->rate},
           word = 1e6 * link->round_trip;
    if (b->o->json) {
        printf("%s{\"rows\": %d, \"dispatch_us\": %.3f, \"dispatch_limit_us\": %.3f, \"combine_us\": %.3f, "
               "\"combine_limit_us\": %.3f}",
               first ? "" : ", ", b->n_row, us[0], limit[0], us[1], limit[1]);
        return;
    }
    printf("%9d", b->n_row);
    for (int i = 0; i < 2; i++)
        printf("  %10.2f  %10.2f  %4.1f  %4.1f", us[i], limit[i], limit[i] > 0 ? us[i] / limit[i] : 0,
               us[i] / (limit[i] + word));
    printf("\n");
    fflush(stdout);
}

static bool run(struct bench *b)
{
    struct gpu_group *g = &b->group;
    if (!gpu_group_run(g, take_memory, b) || !gpu_group_run(g, measure_link, b))
        return false;
    struct link link = {most(b->round_trip, g->size), b->rate[0]};
    for (int r = 1; r < g->size; r++)
        link.rate = b->rate[r] < link.rate ? b->rate[r] : link.rate;
    print_head(b, &link);
    for (b->n_row = 1; b->n_row <= b->o->max_rows; b->n_row *= 4) {
        double us[2];
        if (!gpu_group_run(g, write_rows, b))
            return false;
        for (int i = 0; i < 2; i++) {
            b->products = i == 1;
            if (!gpu_group_run(g, time_ops, b))
                return false;
            us[i] = 1e6 * most(b->seconds, g->size);
        }
        count_bytes(b);
        print_rows(b, us, &link, b->n_row == 1);
    }
    if (b->o->json)
        printf("]}\n");
    return true;
}

bool bench_gpus_experts(const struct gpus_bench *o, const struct cuda_plugin *plugin, struct nyb_err *err)
{
    struct bench b = {.o = o};
    const struct gpu_group_options group = {
        .size = o->ranks, .apart = !o->one_gpu, .bytes = BUFFER_BYTES, .timeout_ms = TIMEOUT_MS};
    bool ok = gpu_group_open(&b.group, plugin, &group) && run(&b);
    if (!ok)
        err_set(err, NYB_E_UNSUPPORTED, "%s", b.group.why);
    for (int r = 0; r < b.group.n_open; r++) {
        const struct memory *m = &b.at[r];
        void *const all[] = {m->count, m->place,  m->expert, m->local, m->x,
                             m->x_all, m->weight, m->out,    m->each};
        for (size_t i = 0; i < COUNT_OF(all); i++)
            if (all[i])
                plugin->release(b.group.gpu[r], all[i]);
    }
    gpu_group_close(&b.group);
    return ok;
}
