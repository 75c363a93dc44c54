/* Checks of what happens where a rank that several GPUs wait for does not come: all of them say so, nobody
 * hangs, and nobody takes for a sum what is none. */
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "kernels/checkkern_cuda_case.h"
#include "kernels/checkkern_cuda_group.h"

#define BUFFER_BYTES ((size_t)64 << 10)
#define TIMEOUT_MS   60000
#define N            64 /* numbers of the row that is added up */

static struct cuda_op sum_of_one_row(float *x, int way)
{
    return (struct cuda_op){.kind = CUDA_OP_ALL_REDUCE,
                            .n_row = 1,
                            .as.all_reduce = {.norm = {.delta = {x, NULL}, .n = N}, .sum = x, .way = way}};
}

/* How the sum that somebody is missed at travels. */
enum travel { FUSED, SENT, TRAVELS };

struct absence {
    struct gpu_group *group;
    struct cuda_op op[2];
    int n_op;
    bool stop; /* told so, else by the clock */
};

/* The sum of x over ranks by way of a slot. */
static void send_and_add(float *x, int slot, struct cuda_op *op)
{
    op[0] = (struct cuda_op){.kind = CUDA_OP_SEND, .n_row = 1, .as.send = {.part = x, .n = N, .slot = slot}};
    op[1] = sum_of_one_row(x, CUDA_REDUCE_SENT);
    op[1].as.all_reduce.slot = slot;
}

/* The last rank does not take part: it only tells the others to stop, if anybody does. */
static bool come_or_not(void *arg, struct cuda_gpu *gpu, int r)
{
    const struct absence *a = arg;
    const struct cuda_plugin *p = a->group->plugin;
    if (r + 1 < a->group->size)
        return p->run(gpu, a->op, a->n_op) && p->sync(gpu);
    usleep(20000);
    for (int i = 0; a->stop && i < r; i++)
        p->peers_stop(a->group->gpu[i]);
    return true;
}

static bool absence_case(const struct checkkern_gpu *g, bool stop, enum travel travel,
                         struct checkkern_report *report)
{
    const struct gpu_group_options o = {.size = 2,
                                        .bytes = BUFFER_BYTES,
                                        .sent_bytes = N * sizeof(float),
                                        .timeout_ms = stop ? TIMEOUT_MS : 200};
    struct gpu_group group;
    struct absence a = {.group = &group, .stop = stop};
    bool ok = gpu_group_open(&group, g->plugin, &o);
    checkkern_case(report, ok, "%s", group.why);
    float *x = ok ? g->plugin->alloc(group.gpu[0], N * sizeof(float)) : NULL;
    if (ok) {
        a.n_op = travel == SENT ? 2 : 1;
        if (travel == SENT)
            send_and_add(x, 0, a.op);
        else
            a.op[0] = sum_of_one_row(x, CUDA_REDUCE_AUTO);
        ok = checkkern_case(report, x && !gpu_group_run(&group, come_or_not, &a), "nobody misses a rank") &&
             checkkern_case(report, strstr(group.why, "rank 1's part has not come") != NULL, "said was: %s",
                            group.why);
        /* and it stays an error, at once */
        ok = ok &&
             checkkern_case(report,
                            !g->plugin->run(group.gpu[0], a.op, a.n_op) || !g->plugin->sync(group.gpu[0]),
                            "a lost rank is forgotten") &&
             checkkern_case(report, g->plugin->time(group.gpu[0], a.op, a.n_op, 1) < 0,
                            "sums without a rank have a time");
    }
    if (x)
        g->plugin->release(group.gpu[0], x);
    gpu_group_close(&group);
    return ok;
}

/* Rank 0 is to add up what ranks 1 and 2 have, and rank 2 does not come. */
struct relay {
    struct gpu_group *group;
    float *x; /* [2][N] */
    atomic_bool ended;
};

/* Rank 1 waits for rank 0 alone, until long after that has given up. */
static bool relay_or_not(void *arg, struct cuda_gpu *gpu, int r)
{
    struct relay *a = arg;
    const struct cuda_plugin *p = a->group->plugin;
    const struct cuda_op op = sum_of_one_row(a->x + (r ? N : 0), CUDA_REDUCE_TWO_SHOT);
    if (r < 2) {
        bool ok = p->run(gpu, &op, 1) && p->sync(gpu);
        if (r == 0)
            atomic_store(&a->ended, true);
        return ok;
    }
    p->peers_stop(a->group->gpu[0]);
    while (!atomic_load(&a->ended))
        usleep(1000);
    p->peers_stop(a->group->gpu[1]);
    return true;
}

/* Ranks 0 and 1 of such a group both fail in `run`; `else_what` says what it means if they do not. */
static bool both_fail(const struct checkkern_gpu *g, const struct gpu_group_options *o, gpu_rank_fn *run,
                      const char *else_what, struct checkkern_report *report)
{
    struct gpu_group group;
    struct relay a = {.group = &group};
    bool ok = gpu_group_open(&group, g->plugin, o);
    checkkern_case(report, ok, "%s", group.why);
    a.x = ok ? g->plugin->alloc(group.gpu[0], (size_t)2 * N * sizeof(float)) : NULL;
    ok = ok && checkkern_case(report, a.x && !gpu_group_run(&group, run, &a), "nobody misses a rank") &&
         checkkern_case(report, !group.rank[0].ok && !group.rank[1].ok, "%s", else_what);
    if (a.x)
        g->plugin->release(group.gpu[0], a.x);
    gpu_group_close(&group);
    return ok;
}

static bool relay_case(const struct checkkern_gpu *g, struct checkkern_report *report)
{
    const struct gpu_group_options o = {.size = 3, .bytes = BUFFER_BYTES, .timeout_ms = TIMEOUT_MS};
    return both_fail(g, &o, relay_or_not, "rank 1 has taken a sum from rank 0, which misses rank 2", report);
}

/* Rank 0 misses the others at a sum that they know nothing of, and then sends its part of one that they
 * wait for: it arrives without a flag. */
static bool miss_or_wait(void *arg, struct cuda_gpu *gpu, int r)
{
    struct relay *a = arg;
    const struct cuda_plugin *p = a->group->plugin;
    struct cuda_op op[4];
    send_and_add(a->x, 0, op);
    send_and_add(a->x + N, 1, op + 2);
    if (r > 0)
        return p->run(gpu, op + 2, 2) && p->sync(gpu);
    p->peers_stop(gpu);
    bool ok = p->run(gpu, op, 3) && p->sync(gpu);
    for (int i = 1; i < a->group->size; i++)
        p->peers_stop(a->group->gpu[i]);
    return ok;
}

static bool unflagged_case(const struct checkkern_gpu *g, struct checkkern_report *report)
{
    const struct gpu_group_options o = {
        .size = 2, .bytes = BUFFER_BYTES, .sent_bytes = N * sizeof(float), .timeout_ms = TIMEOUT_MS};
    return both_fail(g, &o, miss_or_wait, "rank 1 has taken a part from rank 0, which has missed it", report);
}

bool checkkern_cuda_lost_peer(const struct checkkern_gpu *g, struct checkkern_report *report)
{
    bool ok = relay_case(g, report) && unflagged_case(g, report);
    for (enum travel travel = FUSED; travel < TRAVELS && ok; travel++)
        ok = absence_case(g, false, travel, report) && absence_case(g, true, travel, report);
    return ok;
}
