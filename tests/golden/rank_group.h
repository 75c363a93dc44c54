/* A model over several processes of this machine, and faults in whichever of them a test names. */
#ifndef NYB_TEST_RANK_GROUP_H
#define NYB_TEST_RANK_GROUP_H

#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "comm/comm.h"
#include "golden/golden_data.h"
#include "model/update.h"
#include "model/update_ranks.h"
#include "model/weights.h"

/* In memory that all ranks share. */
struct fault_plan {
    atomic_int rank, point, at; /* where to fail; rank -1: nowhere */
    atomic_bool kill;           /* the process dies there          */
    atomic_bool hold;           /* it waits there instead, as long as this is set and a minute at most */
    atomic_int count[COMM_RANK_MAX][3];
};

static struct fault_plan *fault_plan; /* of the group that is open */
static int fault_rank;
static bool followers_disk_is_full; /* of the next group: 1 MB more */
static bool followers_differ;       /* of the next group: in a number that every rank has */
static bool group_has_gpus;         /* of the next group: each rank an emulated one (emulated.h) */

static enum nyb_code rank_fault(void *arg, enum update_point point, int64_t count)
{
    struct fault_plan *p = arg;
    atomic_fetch_add(&p->count[fault_rank][point], 1);
    if (atomic_load(&p->rank) != fault_rank || atomic_load(&p->point) != (int)point ||
        atomic_load(&p->at) != (int)count)
        return NYB_OK;
    if (atomic_load(&p->kill))
        raise(SIGKILL);
    bool held = atomic_load(&p->hold);
    for (int i = 0; i < 120000 && atomic_load(&p->hold); i++)
        usleep(500);
    return held ? NYB_OK : NYB_E_IO;
}

static inline void plan_fault(int rank, enum update_point point, int at)
{
    atomic_store(&fault_plan->point, (int)point);
    atomic_store(&fault_plan->at, at);
    atomic_store(&fault_plan->rank, rank);
}

/* Ranks above 0 live in here, as long as rank 0's model does. */
static inline struct model *open_group(const char *folder, int n_rank, bool experts)
{
    const struct comm_options ranks = {.slot_bytes = 256 << 10, .timeout_ms = 20000};
    struct nyb_err err;
    struct comm *comm;
    struct model *m;
    fault_plan = mmap(NULL, sizeof(*fault_plan), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(fault_plan, MAP_FAILED);
    atomic_store(&fault_plan->rank, -1);
    golden_must(comm_fork(&comm, n_rank, &ranks, &err), &err);
    const struct model_options o = {.folder = folder,
                                    .compute = COMPUTE_BF16,
                                    .n_thread = 1,
                                    .kv_type = -1,
                                    .device = group_has_gpus ? DEVICE_CUDA : DEVICE_CPU,
                                    .comm = comm,
                                    .expert_parallel = experts};
    int rank = comm_rank(comm);
    enum nyb_code code = model_open(&m, &o, &err); /* m owns comm now */
    if (rank > 0) {
        fault_rank = rank;
        if (followers_disk_is_full) {
            const struct rlimit limit = {1 << 20, 1 << 20};
            signal(SIGXFSZ, SIG_IGN);
            setrlimit(RLIMIT_FSIZE, &limit);
        }
        if (code == NYB_OK && followers_differ)
            model_weights(m)->final_norm[0] += 1;
        if (code == NYB_OK) {
            update_follow_fault(m, rank_fault, fault_plan);
            code = model_follow(m, &err);
        }
        model_close(m);
        _exit(code != NYB_OK);
    }
    golden_must(code, &err);
    return m;
}

static inline void close_group(struct model *m)
{
    model_close(m);
    munmap(fault_plan, sizeof(*fault_plan));
}

#endif
