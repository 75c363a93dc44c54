/* The GPUs of several ranks: each learns where the others' buffers are, and when a rank is lost, steps that
 * wait for its GPU are ended. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "comm/comm.h"
#include "model/device_state.h"
#include "model/ranks.h"

#define EXPERT_BYTES   ((size_t)64 << 20) /* rows and products are more than sums */
#define EMULATED_BYTES ((size_t)1 << 20)
#define LATE_MS        60000 /* comm's watch finds a lost rank long before */
#define LOOK_NS        20000000
#define CALIBRATE_MIN  ((size_t)64 << 10)

struct device_peers {
    struct device *device;
    struct comm *comm;
    pthread_t watcher;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool watching, leaving;
};

/* ---- the watch ----------------------------------------------------------------------------------- */

/* A failed communicator means that somebody does not come any more. The GPU's own clock would tell, too, much
 * later. */
static void *watch(void *arg)
{
    struct device_peers *p = arg;
    bool stopped = false;
    pthread_mutex_lock(&p->lock);
    while (!p->leaving) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += LOOK_NS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&p->wake, &p->lock, &until);
        if (!stopped && comm_status(p->comm, NULL) != NYB_OK) {
            p->device->plugin->peers_stop(p->device->gpu);
            stopped = true;
        }
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static enum nyb_code start_watch(struct device_peers *p, struct nyb_err *err)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    p->watching = pthread_create(&p->watcher, NULL, watch, p) == 0;
    return p->watching ? NYB_OK : err_set(err, NYB_E_MEMORY, "no thread to watch the other ranks");
}

void device_leave(struct device *d)
{
    struct device_peers *p = d->peers;
    if (!p)
        return;
    if (p->watching) {
        pthread_mutex_lock(&p->lock);
        p->leaving = true;
        pthread_cond_signal(&p->wake);
        pthread_mutex_unlock(&p->lock);
        pthread_join(p->watcher, NULL);
        pthread_mutex_destroy(&p->lock);
        pthread_cond_destroy(&p->wake);
    }
    free(p);
    d->peers = NULL;
}

/* ---- buffers ------------------------------------------------------------------------------------- */

static enum nyb_code check_ranks(const struct device *d, const struct comm *comm, struct nyb_err *err)
{
    if (comm_size(comm) > CUDA_PEERS_MAX)
        return err_at(err, NYB_E_UNSUPPORTED, d->info.name, -1,
                      "at most %d GPUs compute together, asked for were %d", CUDA_PEERS_MAX, comm_size(comm));
    if (comm_local_size(comm) != comm_size(comm))
        return err_at(err, NYB_E_UNSUPPORTED, d->info.name, -1,
                      "GPUs that compute together must be of one machine, and ranks are on several");
    return NYB_OK;
}

static enum nyb_code open_buffers(struct device *d, struct comm *comm, int timeout_ms,
                                  struct cuda_peer_handle *own, struct nyb_err *err)
{
    TRY(check_ranks(d, comm, err));
    const struct cuda_peer_options o = {.rank = comm_rank(comm),
                                        .size = comm_size(comm),
                                        .n_sharing = 1,
                                        .bytes = d->info.major == 0 ? EMULATED_BYTES
                                                 : d->ep            ? EXPERT_BYTES
                                                                    : DEVICE_SUM_BYTES,
                                        .sent_bytes = d->sent.bytes,
                                        .timeout_ms = timeout_ms > 0 ? timeout_ms : LATE_MS};
    return d->plugin->peers_open(d->gpu, &o, own) ? NYB_OK
                                                  : device_failed(d, "making room for other GPUs", err);
}

/* All ranks come to each exchange, whatever has become of them. */
static enum nyb_code connect_buffers(struct device *d, struct comm *comm, int timeout_ms, struct nyb_err *err)
{
    struct cuda_peer_handle own = {0}, all[COMM_RANK_MAX];
    TRY(ranks_agree(comm, open_buffers(d, comm, timeout_ms, &own, err), err));
    if (!comm_gather(comm, &own, sizeof(own), all))
        return comm_status(comm, err);
    enum nyb_code code = d->plugin->peers_connect(d->gpu, all)
                             ? NYB_OK
                             : device_failed(d, "reaching the memory of other GPUs", err);
    return ranks_agree(comm, code, err);
}

/* ---- NCCL ---------------------------------------------------------------------------------------- */

/* Not before all ranks have the library: whoever joins waits without end for all of them. */
static enum nyb_code join_library(struct device *d, struct comm *comm, struct nyb_err *err)
{
    uint8_t id[CUDA_LIBRARY_ID_BYTES];
    enum nyb_code code = d->plugin->library_id(d->gpu, comm_rank(comm) == 0 ? id : NULL)
                             ? NYB_OK
                             : err_set(err, NYB_E_UNSUPPORTED, "%s", d->plugin->error(d->gpu));
    TRY(ranks_agree(comm, code, err));
    if (!comm_broadcast(comm, id, sizeof(id)))
        return comm_status(comm, err);
    code = d->plugin->library_open(d->gpu, id) ? NYB_OK : device_failed(d, "joining NCCL's group", err);
    return ranks_agree(comm, code, err);
}

/* Without it sums are ours, and one line says why. */
static enum nyb_code open_library(struct device *d, struct comm *comm, struct nyb_err *err)
{
    struct nyb_err why = {0};
    enum nyb_code code = join_library(d, comm, &why);
    if (code == NYB_E_RANK)
        return comm_status(comm, err);
    if (code != NYB_OK && comm_rank(comm) == 0) {
        char text[sizeof(why.message) + sizeof(why.where) + 32];
        log_warn("sums of GPUs that are not fused are this program's own: %s",
                 err_format(&why, text, sizeof(text)));
    }
    d->library = code == NYB_OK;
    if (d->library)
        d->sum_way = CUDA_REDUCE_LIBRARY;
    return NYB_OK;
}

/* ---- one-shot or two-shot ------------------------------------------------------------------------ */

/* Seconds of an all-reduce of so many bytes; below zero: failed. All ranks call it. */
static double seconds_of(struct device *d, float *x, size_t bytes, int way)
{
    struct cuda_op op[4];
    for (size_t i = 0; i < COUNT_OF(op); i++)
        op[i] = (struct cuda_op){.kind = CUDA_OP_ALL_REDUCE,
                                 .n_row = (int)(bytes / (DEVICE_SUM_WIDTH * sizeof(float))),
                                 .as.all_reduce = {.norm = {.delta = {x, NULL}, .n = DEVICE_SUM_WIDTH},
                                                   .sum = x + DEVICE_SUM_BYTES / sizeof(float),
                                                   .way = way}};
    return d->plugin->time(d->gpu, op, COUNT_OF(op), DEVICE_SUM_ROUNDS);
}

/* The size from which on two-shot has been faster for all larger ones; rank 0's clock decides. */
static bool find_two_shot(struct device *d, float *x, size_t most, size_t *out)
{
    bool faster = true; /* for all sizes so far */
    *out = SIZE_MAX;
    for (size_t bytes = most; bytes >= CALIBRATE_MIN; bytes /= 2) {
        double one = seconds_of(d, x, bytes, CUDA_REDUCE_ONE_SHOT),
               two = seconds_of(d, x, bytes, CUDA_REDUCE_TWO_SHOT);
        if (one < 0 || two < 0)
            return false;
        log_debug("sum of %zu KB over GPUs: one-shot %.1f us, two-shot %.1f us", bytes >> 10, one * 1e6,
                  two * 1e6);
        faster = faster && two < one;
        *out = faster ? bytes : *out;
    }
    return true;
}

static enum nyb_code calibrate(struct device *d, struct comm *comm, struct nyb_err *err)
{
    float *x = NULL;
    size_t most = DEVICE_SUM_BYTES / (size_t)comm_size(comm),
           two_shot = SIZE_MAX; /* larger ones are cut up */
    if (d->info.major == 0)     /* an emulated GPU's times say nothing */
        return NYB_OK;
    enum nyb_code code = device_alloc(d, (void **)&x, 2 * DEVICE_SUM_BYTES, "measuring sums", err);
    if (code == NYB_OK && !d->plugin->zero(d->gpu, x, 2 * DEVICE_SUM_BYTES))
        code = device_failed(d, "measuring sums", err);
    code = ranks_agree(comm, code, err);
    if (code == NYB_OK && !find_two_shot(d, x, most, &two_shot))
        code = device_failed(d, "measuring sums", err);
    code = ranks_agree(comm, code, err);
    if (x)
        d->plugin->release(d->gpu, x);
    TRY(code);
    if (!comm_broadcast(comm, &two_shot, sizeof(two_shot)))
        return comm_status(comm, err);
    d->plugin->peers_set_two_shot(d->gpu, two_shot);
    if (comm_rank(comm) == 0 && two_shot != SIZE_MAX)
        log_info("sums over GPUs: two-shot from %zu KB on", two_shot >> 10);
    return NYB_OK;
}

bool device_can_overlap(const struct device *d)
{
    return !d->no_overlap;
}

/* ---- joining ------------------------------------------------------------------------------------- */

enum nyb_code device_join(struct device *d, struct comm *comm, const struct device_peer_options *o,
                          struct nyb_err *err)
{
    d->peers = mem_alloc(1, sizeof(*d->peers));
    *d->peers = (struct device_peers){.device = d, .comm = comm};
    d->no_fusion = o->no_fusion;
    d->sum_way = CUDA_REDUCE_AUTO;
    d->sent.bytes =
        o->overlap && !o->no_fusion && !d->ep ? device_sent_bytes(d, o->hidden, comm_size(comm)) : 0;
    TRY(connect_buffers(d, comm, o->timeout_ms, err));
    TRY(ranks_agree(comm, start_watch(d->peers, err), err));
    if (d->ep) { /* nothing is added up over ranks but what device_ep.h says */
        if (comm_rank(comm) == 0)
            log_info("experts over %d GPUs: buffers of %.1f MB on each", comm_size(comm),
                     (double)(6 * (d->info.major == 0 ? EMULATED_BYTES : EXPERT_BYTES)) * 1e-6);
        if (o->overlap && comm_rank(comm) == 0)
            log_info("two-batch overlap is left out: on GPUs steps are not cut where experts are shared out");
        return NYB_OK;
    }
    TRY(calibrate(d, comm, err));
    TRY(o->no_fusion ? open_library(d, comm, err) : NYB_OK);
    return o->overlap ? device_join_overlap(d, comm, err) : NYB_OK;
}

const char *device_sums(const struct device *d)
{
    if (!d->peers || d->ep)
        return NULL;
    return !d->no_fusion ? "fused" : d->library ? "NCCL" : "not fused";
}
