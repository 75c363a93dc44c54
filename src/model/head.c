/* From the last hidden rows to logits. The vocabulary is split over the ranks, and rank 0 puts the columns
 * together. */
#include <string.h>

#include "model/layer.h"

/* Floats of a rank's (n_tok, columns) block that go into one exchange. */
#define CHUNK_FLOATS (256u << 10)

static size_t columns_of(const struct micro_batch *mb, int rank)
{
    const struct model_config *c = mb->pass->config;
    return (size_t)shard_units_of(rank, c->shard.size, c->vocab).count;
}

/* Elements [at, at + n) of rank's block to where they belong. */
static void place(const struct micro_batch *mb, int rank, size_t at, size_t n, const float *from,
                  float *logits)
{
    const struct model_config *c = mb->pass->config;
    size_t columns = columns_of(mb, rank), vocab = (size_t)c->vocab;
    size_t first = (size_t)shard_units_of(rank, c->shard.size, c->vocab).begin;
    while (n > 0) {
        size_t row = at / columns, column = at % columns;
        size_t run = columns - column < n ? columns - column : n;
        memcpy(logits + row * vocab + first + column, from, run * sizeof(float));
        at += run;
        from += run;
        n -= run;
    }
}

static size_t chunk_at(const struct micro_batch *mb, int rank, size_t at)
{
    size_t n = (size_t)mb->n_tok * columns_of(mb, rank);
    size_t left = at < n ? n - at : 0;
    return left < CHUNK_FLOATS ? left : CHUNK_FLOATS;
}

/* All ranks' blocks to rank 0, a chunk of each in every exchange. */
static void gather(struct micro_batch *mb, const float *own, float *logits)
{
    const struct shard *s = &mb->pass->config->shard;
    struct comm *comm = mb->pass->comm;
    size_t longest = 0;
    for (int r = 0; r < s->size; r++)
        longest = columns_of(mb, r) > longest ? columns_of(mb, r) : longest;
    longest *= (size_t)mb->n_tok;
    for (size_t at = 0; at < longest && !mb->lost; at += CHUNK_FLOATS) {
        struct comm_part part[COMM_RANK_MAX] = {0}, in[COMM_RANK_MAX];
        part[0] = (struct comm_part){own + at, chunk_at(mb, s->rank, at) * sizeof(float)};
        if (part[0].bytes == 0)
            part[0].data = own;
        comm_exchange_start(comm, mb->channel, part);
        mb->lost = !comm_exchange_wait(comm, mb->channel, in);
        for (int r = 0; r < s->size && s->rank == 0 && !mb->lost; r++)
            place(mb, r, at, in[r].bytes / sizeof(float), in[r].data, logits);
    }
}

void head_logits(struct micro_batch *mb, const float *norm, float *logits)
{
    const struct pass *p = mb->pass;
    const struct weight *head = &p->weights->head;
    bool whole = p->config->shard.size == 1;
    float *y =
        whole ? logits : arena_alloc(&mb->scratch, (size_t)mb->n_tok * (size_t)head->n + 1, sizeof(float));
    if (head->n > 0) {
        struct operand x;
        gemm_prepare(p->pool, &mb->scratch, p->compute, norm, mb->n_tok, head->k, &x);
        const struct gemm_job job = {.w = head, .x = &x, .m = mb->n_tok, .y = y, .ldy = head->n};
        gemm_run(p->pool, &mb->scratch, p->compute, &job, 1);
    }
    if (!whole)
        gather(mb, y, logits);
}
