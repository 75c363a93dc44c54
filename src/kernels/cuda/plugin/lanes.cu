/* Operators of two lanes, each on a stream of its own: the side's with the higher priority.
 *
 * Why ranks do not wait for each other for ever. On the side run kernels that wait for peers, whose blocks
 * must all be resident before the last of them is sure to send; on the main lane run kernels of which some
 * wait for themselves: the experts' has blocks that meet, so all of them must be resident, too. If each of
 * two such kernels held some SMs and waited for the rest, both would wait for ever. So SMs are counted:
 *
 * - While both lanes are in use, a kernel of the side has at most n_side blocks, and one of the main lane
 * whose blocks wait for each other has at most as many as the other SMs (limits->n_sm; one block an SM).
 * Blocks of the side hold n_side SMs at most, so the others can all be had by the main lane; and blocks of
 * the main lane that wait hold no more than those, so n_side are left for the side. All other kernels of the
 * main lane end by themselves, whatever else runs.
 * - Take the first kernel of peers that has not ended on every rank. Those before it have, so nothing that it
 *   waits for on its own rank is held up but by kernels that end; it gets its SMs, on every rank, sends, and
 *   ends. So does the next: all ranks have them in one order, which is why no two may run side by side.
 * - Sums of parts that copy engines send (sent.h) wait for peers on the main lane, with all SMs: then the
 * side has nothing but copies, which need none, and nothing of the main lane is wanted by anybody before the
 * sum has ended. A part is sent before its sum is waited for, and in the same order everywhere, so the first
 * sum that has not ended on every rank has all its parts on their way.
 * - A kernel that is scheduled before the one in front of it on its stream has ended waits, too, and may hold
 *   SMs meanwhile. It does so only when all blocks of that one are resident, so that one needs no more SMs,
 *   and ends; also where that one waits itself and has let it in before (gpu_wait_few and others), for the
 * one before it. The first kernel behind a wait for the other lane is never scheduled early (gpu_after_wait):
 * what it would wait for might need the SMs that it holds.
 * - Ranks that share a GPU, which is for tests, have a part of its SMs each (gpu_peers_open), for all of the
 * above; and no kernel that waits for peers lets the one behind it be scheduled early (peer_pass), which
 * could hold the SMs that another rank needs to send its part. */
#include <algorithm>
#include <vector>

#include "kernels/cuda/plugin/state.h"

thread_local bool gpu_after_wait;

bool gpu_lanes_open(struct cuda_gpu *g)
{
    int least = 0, greatest = 0;
    cudaDeviceGetStreamPriorityRange(&least, &greatest);
    g->n_side = std::max(1, g->limits.n_sm / 8);
    return gpu_check(g, "stream", cudaStreamCreateWithPriority(&g->side, cudaStreamNonBlocking, greatest));
}

void gpu_lanes_close(struct cuda_gpu *g)
{
    if (g->side)
        cudaStreamDestroy(g->side);
    for (cudaEvent_t e : g->lane_event)
        cudaEventDestroy(e);
}

bool gpu_peers_reserve(struct cuda_gpu *g, int n_sm)
{
    if (n_sm < 1 || n_sm > g->limits.n_sm / 2)
        return gpu_fail(g, "lanes", "SMs for sums: expected 1 to half of them");
    g->n_side = n_sm;
    return true;
}

static bool waits_for_peers(const struct cuda_op *op)
{
    return op->kind == CUDA_OP_ALL_REDUCE || op->kind == CUDA_OP_GATHER || op->kind == CUDA_OP_DISPATCH ||
           op->kind == CUDA_OP_COMBINE;
}

/* A slot of cuda_send: the places of its last part and of that one's sum, -1: none; and the last operator of
 * the other lane that had ended for sure when the part was sent. */
struct slot_use {
    int sent, added, waited;
};

/* Which operators are waited for, and where the side ends; -1: it is not in use. */
struct lanes {
    std::vector<int> event; /* of an operator, or -1 */
    int n_event, last_side;
    bool side_has_kernels;
};

/* Schedules are gone through in order. */
struct planning {
    const struct cuda_op *op;
    int waited[CUDA_LANES]; /* the last operator of the other lane that this one has waited for, or -1 */
    int peers;              /* the last that waits for peers, or -1 */
    struct slot_use slot[CUDA_SEND_SLOTS];
};

/* Whether operator `from` has ended for sure before one behind it in a lane that has waited so far. */
static bool has_ended(const struct cuda_op *op, int from, int lane, int waited)
{
    return op[from].lane == lane || waited >= from;
}

/* Operator i sends: cuda_send has the rule. */
static const char *plan_send(struct planning *p, int i)
{
    const struct cuda_op *op = p->op;
    struct slot_use *own = &p->slot[op[i].as.send.slot];
    bool free = own->sent < 0;
    if (own->sent > own->added)
        return "a part is sent to a slot that holds one";
    for (int s = 0; s < CUDA_SEND_SLOTS && !free; s++) {
        const struct slot_use *u = &p->slot[s];
        free = u->sent > own->added && u->added > u->sent &&
               has_ended(op, own->added, op[u->sent].lane, u->waited) &&
               has_ended(op, u->added, op[i].lane, p->waited[op[i].lane]);
    }
    if (!free)
        return "a part is sent to a slot that another rank may still read";
    *own = {i, -1, p->waited[op[i].lane]};
    return nullptr;
}

/* Operator i adds up what has been sent. */
static const char *plan_added(struct planning *p, int i)
{
    const struct cuda_op *op = p->op;
    struct slot_use *own = &p->slot[op[i].as.all_reduce.slot];
    if (own->sent < 0 || own->added >= 0)
        return "a sum of parts that have not been sent";
    const struct cuda_op *sent = &op[own->sent];
    if (!has_ended(op, own->sent, op[i].lane, p->waited[op[i].lane]))
        return "a sum does not wait for this rank's own part";
    if (sent->n_row != op[i].n_row || sent->as.send.n != op[i].as.all_reduce.norm.n)
        return "a sum of other rows than have been sent";
    own->added = i;
    return nullptr;
}

static const char *plan_slots(struct planning *p, int i)
{
    const struct cuda_op *op = &p->op[i];
    const bool sends = op->kind == CUDA_OP_SEND;
    if (!sends && (op->kind != CUDA_OP_ALL_REDUCE || op->as.all_reduce.way != CUDA_REDUCE_SENT))
        return nullptr;
    const int slot = sends ? op->as.send.slot : op->as.all_reduce.slot;
    if (slot < 0 || slot >= CUDA_SEND_SLOTS)
        return "no such slot";
    return sends ? plan_send(p, i) : plan_added(p, i);
}

/* A schedule that cannot be run is refused before anything is started. */
static bool plan(struct cuda_gpu *g, const struct cuda_op *op, int n_op, struct lanes *l)
{
    struct planning p = {op, {-1, -1}, -1, {}};
    for (struct slot_use &u : p.slot)
        u = {-1, -1, -1};
    l->event.assign((size_t)n_op, -1);
    l->n_event = 0;
    l->last_side = -1;
    l->side_has_kernels = false;
    for (int i = 0; i < n_op; i++) {
        const int lane = op[i].lane, from = i - op[i].back;
        if (lane < 0 || lane >= CUDA_LANES || op[i].back < 0 || from < 0)
            return gpu_fail(g, "lanes", "no such lane, or a wait for an operator before the first");
        if (op[i].back > 0) {
            if (op[from].lane == lane)
                return gpu_fail(g, "lanes", "an operator waits for one of its own lane");
            if (l->event[(size_t)from] < 0)
                l->event[(size_t)from] = l->n_event++;
            p.waited[lane] = std::max(p.waited[lane], from);
        }
        if (waits_for_peers(&op[i])) {
            if (p.peers >= 0 && op[p.peers].lane != lane && p.waited[lane] < p.peers)
                return gpu_fail(g, "lanes", "two operators that wait for peers could run side by side");
            p.peers = i;
        }
        const char *why = plan_slots(&p, i);
        if (why)
            return gpu_fail(g, "lanes", why);
        if (lane == CUDA_LANE_SIDE) {
            l->last_side = i;
            l->side_has_kernels |= op[i].kind != CUDA_OP_SEND;
        }
    }
    return true;
}

/* Two more: where the lanes part and where they meet. */
static bool need_events(struct cuda_gpu *g, int n)
{
    while ((int)g->lane_event.size() < n + 2) {
        cudaEvent_t e;
        if (!gpu_check(g, "event", cudaEventCreateWithFlags(&e, cudaEventDisableTiming)))
            return false;
        g->lane_event.push_back(e);
    }
    return true;
}

/* What is put on `to` from now on begins after what is on `from` now. */
static bool follow(struct cuda_gpu *g, cudaStream_t to, cudaStream_t from, cudaEvent_t event)
{
    return gpu_check(g, "event", cudaEventRecord(event, from)) &&
           gpu_check(g, "event", cudaStreamWaitEvent(to, event, 0));
}

static bool mark(struct cuda_gpu *g, const cudaEvent_t *event, cudaStream_t stream)
{
    return !event || gpu_check(g, "event", cudaEventRecord(*event, stream));
}

/* One of the array, where its lane has come to. `begin` and `end` may be NULL. */
static bool start(struct cuda_gpu *g, const struct cuda_op *op, const struct lanes *l, int i, bool both,
                  const cudaEvent_t *begin, const cudaEvent_t *end)
{
    const bool side = op[i].lane == CUDA_LANE_SIDE;
    const cudaStream_t stream = side ? g->side : g->stream;
    struct gpu_limits limits = g->limits;
    if (both)
        limits.n_sm = side ? g->n_side : std::max(1, g->limits.n_sm - g->n_side);
    if (op[i].back > 0) {
        const int event = l->event[(size_t)(i - op[i].back)];
        if (!gpu_check(g, "event", cudaStreamWaitEvent(stream, g->lane_event[(size_t)event], 0)))
            return false;
        gpu_after_wait = true;
    }
    bool ok = mark(g, begin, stream) && gpu_start_on(g, &op[i], &limits, stream) && mark(g, end, stream);
    gpu_after_wait = false;
    if (ok && l->event[(size_t)i] >= 0)
        ok = gpu_check(g, "event", cudaEventRecord(g->lane_event[(size_t)l->event[(size_t)i]], stream));
    return ok;
}

/* time: [2 * n_op] events around each, or NULL. */
static bool start_all(struct cuda_gpu *g, const struct cuda_op *op, int n_op, const cudaEvent_t *time)
{
    struct lanes l;
    if (!plan(g, op, n_op, &l) || !need_events(g, l.n_event))
        return false;
    const cudaEvent_t part = g->lane_event[(size_t)l.n_event], meet = g->lane_event[(size_t)l.n_event + 1];
    bool both = l.last_side >= 0, ok = !both || follow(g, g->side, g->stream, part);
    int met = -1;
    for (int i = 0; i < n_op && ok; i++) {
        if (op[i].lane == CUDA_LANE_MAIN && op[i].back > 0)
            met = std::max(met, i - op[i].back);
        both = l.side_has_kernels && met < l.last_side;
        const int joined = l.last_side < 0 && !time ? gpu_start_joined(g, op, i, n_op) : 0;
        if (joined) {
            ok = joined > 0;
            i += joined - 1;
            continue;
        }
        ok = start(g, op, &l, i, both, time ? &time[2 * i] : NULL, time ? &time[2 * i + 1] : NULL);
    }
    /* also after a failure: a graph that is being recorded needs all its streams back */
    if (l.last_side >= 0 && (met < l.last_side || !ok))
        ok = follow(g, g->stream, g->side, meet) && ok;
    return ok;
}

bool gpu_start_all(struct cuda_gpu *g, const struct cuda_op *op, int n_op)
{
    return start_all(g, op, n_op, NULL);
}

static bool read_spans(struct cuda_gpu *g, const std::vector<cudaEvent_t> &event, int n_op,
                       struct cuda_span *span)
{
    for (int i = 0; i < n_op; i++) {
        float begin, end;
        if (!gpu_check(g, "event", cudaEventElapsedTime(&begin, event[0], event[(size_t)(1 + 2 * i)])) ||
            !gpu_check(g, "event", cudaEventElapsedTime(&end, event[0], event[(size_t)(2 + 2 * i)])))
            return false;
        span[i] = {begin * 1e-3f, end * 1e-3f};
    }
    return true;
}

bool gpu_trace(struct cuda_gpu *g, const struct cuda_op *op, int n_op, struct cuda_span *span)
{
    std::vector<cudaEvent_t> event((size_t)(1 + 2 * n_op));
    size_t n = 0;
    bool ok = gpu_enter(g);
    for (; n < event.size() && ok; n++)
        ok = gpu_check(g, "event", cudaEventCreate(&event[n]));
    ok = ok && gpu_check(g, "event", cudaEventRecord(event[0], g->stream)) &&
         start_all(g, op, n_op, event.data() + 1) && gpu_sync(g) && read_spans(g, event, n_op, span);
    for (size_t i = 0; i < n; i++)
        cudaEventDestroy(event[i]);
    return ok;
}
