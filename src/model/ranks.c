#include "model/ranks.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/checksum_ranks.h"
#include "model/readback.h"
#include "model/rebalance.h"
#include "model/update_ranks.h"

#define CHANNEL      0
#define BATCH_ARRAYS 7

enum command_kind {
    COMMAND_END = 1,
    COMMAND_RESERVE,
    COMMAND_FORWARD,
    COMMAND_TASK, /* its bytes follow */
};

struct command {
    int32_t kind;
    int32_t n_block; /* COMMAND_RESERVE */
    int32_t task;    /* COMMAND_TASK    */
    uint64_t bytes;  /* COMMAND_TASK    */
    int32_t n_seq, n_tok, n_block_max, n_out, watched, cut, profile, has_home;
};

/* ---- opening ------------------------------------------------------------------------------------- */

struct outcome {
    int32_t code;
    struct nyb_err err;
};

enum nyb_code ranks_agree(struct comm *comm, enum nyb_code code, struct nyb_err *err)
{
    if (!comm || comm_size(comm) == 1)
        return code;
    struct outcome own = {.code = (int32_t)code}, *all = mem_alloc((size_t)comm_size(comm), sizeof(*all));
    if (code != NYB_OK && err)
        own.err = *err;
    enum nyb_code first = NYB_OK;
    if (!comm_gather(comm, &own, sizeof(own), all))
        first = comm_status(comm, err);
    for (int r = 0; r < comm_size(comm) && first == NYB_OK; r++) {
        first = (enum nyb_code)all[r].code;
        if (first != NYB_OK && err)
            *err = all[r].err;
    }
    free(all);
    return first;
}

/* A rank that reads from a disk is silent for long and yet alive. */
enum nyb_code ranks_agree_slowly(struct comm *comm, enum nyb_code code, struct nyb_err *err)
{
    struct comm_part in[COMM_RANK_MAX];
    if (comm_size(comm) == 1)
        return code;
    comm_publish_start(comm, CHANNEL, "", 0);
    (void)comm_exchange_wait_idle(comm, CHANNEL, in); /* a lost rank shows in the next one */
    return ranks_agree(comm, code, err);
}

int model_ranks(const struct model *m)
{
    return comm_size(m->comm);
}

enum nyb_code model_status(struct model *m, struct nyb_err *err)
{
    return comm_status(m->comm, err);
}

/* ---- rank 0 -------------------------------------------------------------------------------------- */

static bool leads(const struct model *m)
{
    return m->comm && comm_size(m->comm) > 1 && comm_rank(m->comm) == 0 && !m->following;
}

static void send(struct model *m, const struct command *command)
{
    struct comm_part in[COMM_RANK_MAX];
    comm_publish_start(m->comm, CHANNEL, command, sizeof(*command));
    (void)comm_exchange_wait(m->comm, CHANNEL, in); /* a lost rank shows in comm_status */
}

void ranks_reserve(struct model *m, int n_block)
{
    const struct command command = {.kind = COMMAND_RESERVE, .n_block = n_block};
    if (leads(m))
        send(m, &command);
}

void ranks_do(struct model *m, enum ranks_task task, const void *data, size_t bytes)
{
    const struct command command = {.kind = COMMAND_TASK, .task = (int32_t)task, .bytes = bytes};
    if (!leads(m))
        return;
    send(m, &command);
    (void)comm_broadcast(m->comm, (void *)(uintptr_t)data, bytes); /* from here it is only read */
}

bool ranks_gather(const struct model *m, const void *own, size_t bytes, void *all)
{
    if (comm_size(m->comm) > 1)
        return comm_gather(m->comm, own, bytes, all);
    memcpy(all, own, bytes);
    return true;
}

bool ranks_collect(struct comm *comm, int rank, const void *own, void *to, size_t bytes)
{
    struct comm_part in[COMM_RANK_MAX];
    for (size_t at = 0; at < bytes;) {
        size_t n = bytes - at < comm_slot_bytes(comm) ? bytes - at : comm_slot_bytes(comm);
        bool gives = comm_rank(comm) == rank;
        comm_publish_start(comm, CHANNEL, gives ? (const void *)((const uint8_t *)own + at) : "",
                           gives ? n : 0);
        if (!comm_exchange_wait(comm, CHANNEL, in))
            return false;
        ASSERT(in[rank].bytes == n);
        if (comm_rank(comm) == 0)
            memcpy((uint8_t *)to + at, in[rank].data, n);
        at += n;
    }
    return true;
}

void ranks_end(struct model *m)
{
    const struct command command = {.kind = COMMAND_END};
    if (leads(m))
        send(m, &command);
}

bool ranks_watched(const struct model *m, const struct model_probe *probe)
{
    return (probe && probe->hidden) || m->watched;
}

/* Lengths of the arrays of a batch, in the order in which they travel. */
static size_t batch_lengths(const struct command *c, size_t length[BATCH_ARRAYS])
{
    size_t n_tok = (size_t)c->n_tok, n_seq = (size_t)c->n_seq, total = 0;
    const size_t n[BATCH_ARRAYS] = {n_tok,
                                    n_tok,
                                    n_tok,
                                    n_seq + 1,
                                    n_seq * (size_t)c->n_block_max,
                                    (size_t)c->n_out,
                                    c->has_home ? n_seq : 0};
    for (int i = 0; i < BATCH_ARRAYS; i++)
        total += length[i] = n[i];
    return total;
}

static void send_step(struct model *m, const struct batch *b, struct command command)
{
    if (!leads(m))
        return;
    update_say(m);
    command.kind = COMMAND_FORWARD;
    command.n_seq = b->n_seq;
    command.n_tok = b->n_tok;
    command.n_block_max = b->n_block_max;
    command.n_out = b->n_out;
    command.has_home = b->home != NULL;
    const int32_t *array[BATCH_ARRAYS] = {b->tok,         b->pos,     b->slot, b->seq_start,
                                          b->block_table, b->out_row, b->home};
    size_t length[BATCH_ARRAYS], total = batch_lengths(&command, length);
    int32_t *all = arena_alloc(&m->forward.step, total, sizeof(*all)), *at = all;
    for (int i = 0; i < BATCH_ARRAYS; at += length[i], i++)
        if (length[i])
            memcpy(at, array[i], length[i] * sizeof(*at));
    send(m, &command);
    (void)comm_broadcast(m->comm, all, total * sizeof(*all));
}

void ranks_forward(struct model *m, const struct batch *b, bool watched, int cut)
{
    send_step(m, b, (struct command){.watched = watched, .cut = cut});
}

void ranks_profile(struct model *m, const struct batch *b)
{
    send_step(m, b, (struct command){.profile = true});
}

/* ---- the others ---------------------------------------------------------------------------------- */

static enum nyb_code follow_step(struct model *m, const struct command *c, struct nyb_err *err)
{
    size_t length[BATCH_ARRAYS], total = batch_lengths(c, length);
    /* lives until the pass is over, as on rank 0 */
    int32_t *all = arena_alloc(&m->forward.step, total, sizeof(*all)), *array[BATCH_ARRAYS], *at = all;
    for (int i = 0; i < BATCH_ARRAYS; at += length[i], i++)
        array[i] = at;
    const struct batch b = {.n_seq = c->n_seq,
                            .n_tok = c->n_tok,
                            .n_block_max = c->n_block_max,
                            .n_out = c->n_out,
                            .tok = array[0],
                            .pos = array[1],
                            .slot = array[2],
                            .seq_start = array[3],
                            .block_table = array[4],
                            .out_row = array[5],
                            .home = c->has_home ? array[6] : NULL};
    m->watched = c->watched;
    m->follow_cut = c->cut;
    if (!comm_broadcast(m->comm, all, total * sizeof(*all)))
        return comm_status(m->comm, err);
    enum nyb_code code =
        c->profile ? model_device_profile(m, &b, NULL, NULL, err) : model_forward(m, &b, NULL, NULL, err);
    m->watched = false;
    return code;
}

static enum nyb_code follow_task(struct model *m, const struct command *c, struct nyb_err *err)
{
    static void (*const follow[])(struct model * m, const uint8_t *data, size_t bytes) = {
        [TASK_UPDATE_PREPARE] = update_follow_prepare,
        [TASK_UPDATE_PIECE] = update_follow_piece,
        [TASK_UPDATE_STAGE] = update_follow_stage,
        [TASK_UPDATE_ASK] = update_follow_ask,
        [TASK_UPDATE_COMMIT] = update_follow_commit,
        [TASK_UPDATE_ROLLBACK] = update_follow_rollback,
        [TASK_UPDATE_CLOSE] = update_follow_close,
        [TASK_CHECKSUM_START] = checksum_follow_start,
        [TASK_CHECKSUM_ASK] = checksum_follow_ask,
        [TASK_CHECKSUM_GIVE] = checksum_follow_give,
        [TASK_READBACK] = readback_follow,
        [TASK_EXPERT_MOVE] = rebalance_follow,
    };
    _Static_assert(COUNT_OF(follow) == TASK_COUNT, "a function for each task");
    ASSERT(c->task >= 0 && c->task < TASK_COUNT);
    uint8_t *data = mem_alloc(c->bytes + 1, 1);
    if (comm_broadcast(m->comm, data, c->bytes))
        follow[c->task](m, data, c->bytes);
    free(data);
    return comm_status(m->comm, err);
}

static enum nyb_code do_command(struct model *m, const struct command *c, struct nyb_err *err)
{
    switch (c->kind) {
    case COMMAND_RESERVE:
        return model_kv_reserve(m, c->n_block, err);
    case COMMAND_TASK:
        return follow_task(m, c, err);
    default:
        return follow_step(m, c, err);
    }
}

static enum nyb_code follow_command(struct model *m, const struct command *c, struct nyb_err *err)
{
    enum nyb_code code = do_command(m, c, err);
    char text[512];
    /* rank 0 has gone on already, so what this rank cannot do ends the job on all */
    if (code != NYB_OK && code != NYB_E_RANK)
        comm_fail(m->comm, "rank %d: %s", comm_rank(m->comm), err_format(err, text, sizeof(text)));
    return code;
}

enum nyb_code model_follow(struct model *m, struct nyb_err *err)
{
    struct nyb_err own = {0};
    m->following = true;
    err = err ? err : &own;
    for (;;) {
        struct comm_part in[COMM_RANK_MAX];
        struct command command;
        comm_publish_start(m->comm, CHANNEL, "", 0);
        if (!comm_exchange_wait_idle(m->comm, CHANNEL, in))
            return comm_status(m->comm, err);
        ASSERT(in[0].bytes == sizeof(command));
        memcpy(&command, in[0].data, sizeof(command));
        if (command.kind == COMMAND_END)
            return NYB_OK;
        TRY(follow_command(m, &command, err));
    }
}
