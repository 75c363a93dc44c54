/* What sums over GPUs take beside other work: measured when ranks join, for two-batch overlap. */
#include "base/log.h"
#include "base/mem.h"
#include "comm/comm.h"
#include "model/device_state.h"
#include "model/ranks.h"

#define SENT_MOST ((size_t)1 << 30) /* of each GPU's memory, for parts that others send */
#define SENT_MIN  ((size_t)512 << 10)

size_t device_sent_bytes(const struct device *d, int hidden, int n_rank)
{
    size_t rows = d->option.max_tokens > 0 ? (size_t)d->option.max_tokens : DEVICE_ROWS_DEFAULT,
           half = rows / 2 + CUDA_TILE_TOKENS, /* a step is cut at a whole tile */
        most = SENT_MOST / CUDA_SEND_SLOTS / (size_t)(n_rank > 1 ? n_rank - 1 : 1);
    size_t bytes = (half < rows ? half : rows) * (size_t)hidden * sizeof(float);
    return bytes < most ? bytes : most;
}

/* ---- sums as one kernel, on some SMs --------------------------------------------------------------- */

/* A sum of so many bytes of each rank with what follows it. The whole of x is four times as long: the last
 * eighth are weights. */
static struct cuda_op sum_of(float *x, size_t bytes)
{
    size_t n = bytes / sizeof(*x);
    return (struct cuda_op){.kind = CUDA_OP_ALL_REDUCE,
                            .n_row = (int)(n / DEVICE_SUM_WIDTH),
                            .as.all_reduce = {.norm = {.delta = {x, NULL},
                                                       .residual = x + n,
                                                       .y_float = x + 2 * n,
                                                       .y = (uint16_t *)(void *)(x + 3 * n),
                                                       .weight = x + 3 * n + n / 2,
                                                       .n = DEVICE_SUM_WIDTH,
                                                       .eps = 1}}};
}

/* Seconds of one, on so many SMs; 0: on all. Below zero: failed. All ranks call it. */
static double seconds_on(struct device *d, float *x, size_t bytes, int n_sm)
{
    struct cuda_op op[4];
    if (n_sm > 0 && !d->plugin->peers_reserve(d->gpu, n_sm))
        return -1;
    for (size_t i = 0; i < COUNT_OF(op); i++) {
        op[i] = sum_of(x, bytes);
        op[i].lane = n_sm > 0 ? CUDA_LANE_SIDE : CUDA_LANE_MAIN;
    }
    return d->plugin->time(d->gpu, op, COUNT_OF(op), DEVICE_SUM_ROUNDS);
}

static bool measure_side(struct device *d, float *x, size_t bytes)
{
    static const int try_sm[DEVICE_SIDES] = {4, 8, 12, 16, 32};
    struct device_side *s = &d->side;
    s->bytes = (double)bytes;
    s->on_all = seconds_on(d, x, bytes, 0);
    for (; s->n < DEVICE_SIDES && try_sm[s->n] <= d->info.n_sm / 2 && s->on_all > 0; s->n++) {
        s->n_sm[s->n] = try_sm[s->n];
        s->on[s->n] = seconds_on(d, x, bytes, try_sm[s->n]);
        log_debug("sum and norm of %zu KB: %.1f us, on %d SMs %.1f us", bytes >> 10, s->on_all * 1e6,
                  try_sm[s->n], s->on[s->n] * 1e6);
        if (s->on[s->n] <= 0)
            return false;
    }
    return s->on_all > 0;
}

/* ---- parts by copy engines ------------------------------------------------------------------------- */

#define SUMS        16 /* one after the other, in turns of two halves */
#define SENT_ROUNDS 7
#define SENT_WORTH  1.25 /* a sum that is sent may take so much longer, as nothing hides its way here */

/* Seconds of one of the sums, started as a step of many rows is: the shortest of a few tries, for one rank
 * may begin before the other. Below zero: failed. All ranks call it. */
static double seconds_direct(struct device *d, const struct cuda_op *op, int n_op)
{
    struct cuda_span span[2 * SUMS];
    double best = -1;
    for (int round = 0; round < SENT_ROUNDS; round++) {
        if (!d->plugin->trace(d->gpu, op, n_op, span))
            return -1;
        double seconds = (double)(span[n_op - 1].end - span[0].begin);
        best = best < 0 || seconds < best ? seconds : best;
    }
    return best / SUMS;
}

static double seconds_fused(struct device *d, float *x, size_t bytes)
{
    struct cuda_op op[SUMS];
    for (int i = 0; i < SUMS; i++)
        op[i] = sum_of(x, bytes);
    return seconds_direct(d, op, SUMS);
}

static double seconds_sent(struct device *d, float *x, size_t bytes)
{
    struct cuda_op op[2 * SUMS];
    for (int i = 0; i < SUMS; i++) {
        int send = i / 2 * 4 + i % 2, add = send + 2;
        op[add] = sum_of(x, bytes);
        op[add].as.all_reduce.way = CUDA_REDUCE_SENT;
        op[add].as.all_reduce.slot = i % CUDA_SEND_SLOTS;
        op[add].back = 2;
        op[send] =
            (struct cuda_op){.kind = CUDA_OP_SEND,
                             .n_row = op[add].n_row,
                             .lane = CUDA_LANE_SIDE,
                             .back = i < 2 ? 0 : 2,
                             .as.send = {.part = x, .n = DEVICE_SUM_WIDTH, .slot = i % CUDA_SEND_SLOTS}};
    }
    return seconds_direct(d, op, 2 * SUMS);
}

/* The size from which on parts are worth sending; and so for all larger ones. */
static bool find_sent(struct device *d, float *x, size_t most)
{
    bool worth = true;
    for (size_t bytes = most; bytes >= SENT_MIN; bytes /= 2) {
        double fused = seconds_fused(d, x, bytes), sent = seconds_sent(d, x, bytes);
        if (fused < 0 || sent < 0)
            return false;
        log_debug("sum and norm of %zu KB: %.1f us, sent by copy engines %.1f us", bytes >> 10, fused * 1e6,
                  sent * 1e6);
        worth = worth && sent < SENT_WORTH * fused;
        d->sent.from = worth ? bytes : d->sent.from;
    }
    return true;
}

/* Nothing will be sent: the room for it is given back, the others' first. */
static enum nyb_code drop_sent(struct device *d, struct comm *comm, struct nyb_err *err)
{
    for (int own = 0; own < 2; own++) {
        enum nyb_code code = d->plugin->peers_drop_sent(d->gpu, !own)
                                 ? NYB_OK
                                 : device_failed(d, "giving back room for parts of sums", err);
        TRY(ranks_agree(comm, code, err));
    }
    if (comm_rank(comm) == 0)
        log_info("two-batch overlap: copy engines send nothing: %.0f MB on each GPU are given back",
                 (double)((size_t)CUDA_SEND_SLOTS * (size_t)(comm_size(comm) - 1) * d->sent.bytes) * 1e-6);
    d->sent.bytes = 0;
    return NYB_OK;
}

/* Rank 0's choice is everybody's. */
static enum nyb_code choose_sent(struct device *d, struct comm *comm, float *x, size_t most,
                                 struct nyb_err *err)
{
    while (most > d->sent.bytes)
        most /= 2;
    enum nyb_code code = find_sent(d, x, most) ? NYB_OK : device_failed(d, "measuring copies to peers", err);
    TRY(ranks_agree(comm, code, err));
    if (!comm_broadcast(comm, &d->sent.from, sizeof(d->sent.from)))
        return comm_status(comm, err);
    return d->sent.from == SIZE_MAX ? drop_sent(d, comm, err) : NYB_OK;
}

/* ---- joining --------------------------------------------------------------------------------------- */

/* Rank 0's figures are everybody's. */
static enum nyb_code measure(struct device *d, struct comm *comm, float *x, size_t most, struct nyb_err *err)
{
    size_t bytes = DEVICE_SUM_BYTES / (size_t)comm_size(comm);
    enum nyb_code code =
        d->plugin->zero(d->gpu, x, 4 * most) ? NYB_OK : device_failed(d, "measuring sums", err);
    TRY(ranks_agree(comm, code, err));
    if (!measure_side(d, x, bytes))
        code = device_failed(d, "measuring sums", err);
    TRY(ranks_agree(comm, code, err));
    if (!comm_broadcast(comm, &d->side, sizeof(d->side)))
        return comm_status(comm, err);
    return d->sent.bytes > 0 ? choose_sent(d, comm, x, most, err) : NYB_OK;
}

static enum nyb_code calibrate(struct device *d, struct comm *comm, struct nyb_err *err)
{
    float *x = NULL;
    const size_t most = DEVICE_SUM_BYTES; /* larger ones are like that one */
    d->sent.from = d->info.major == 0 ? 0 : SIZE_MAX;
    if (d->info.major == 0) /* an emulated GPU's times say nothing */
        return NYB_OK;
    TRY(ranks_agree(comm, device_alloc(d, (void **)&x, 4 * most, "measuring sums", err), err));
    enum nyb_code code = measure(d, comm, x, most, err);
    d->plugin->release(d->gpu, x);
    if (code == NYB_OK && comm_rank(comm) == 0 && d->sent.from != SIZE_MAX)
        log_info("two-batch overlap: copy engines send parts of sums from %zu KB on; %.0f MB on each GPU are "
                 "for them",
                 d->sent.from >> 10,
                 (double)((size_t)CUDA_SEND_SLOTS * (size_t)(comm_size(comm) - 1) * d->sent.bytes) * 1e-6);
    return code;
}

/* Every rank has a vote: NCCL takes SMs that nobody has kept for it (plugin/lanes.cu). */
enum nyb_code device_join_overlap(struct device *d, struct comm *comm, struct nyb_err *err)
{
    bool own = d->library || d->info.n_sm < 2, all[COMM_RANK_MAX];
    if (!comm_gather(comm, &own, sizeof(own), all))
        return comm_status(comm, err);
    for (int r = 0; r < comm_size(comm); r++)
        d->no_overlap |= all[r];
    if (d->no_overlap && comm_rank(comm) == 0)
        log_warn("two-batch overlap is left out: NCCL adds up, beside whose kernels not everything fits");
    if (d->no_overlap)
        return d->sent.bytes > 0 ? drop_sent(d, comm, err) : NYB_OK;
    return calibrate(d, comm, err);
}
