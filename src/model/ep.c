#include "model/ep.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "fp4/fp4.h"

/* ---- encodings ----------------------------------------------------------------------------------- */

static size_t f32_bytes(size_t n)
{
    return n * sizeof(float);
}

static void f32_encode(uint8_t *to, const float *x, size_t n)
{
    memcpy(to, x, n * sizeof(float));
}

static void f32_decode(float *to, const uint8_t *from, size_t n)
{
    memcpy(to, from, n * sizeof(float));
}

static size_t bf16_bytes(size_t n)
{
    return n * sizeof(uint16_t);
}

static void bf16_encode(uint8_t *to, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t b = bf16_from_float(x[i]);
        memcpy(to + i * sizeof(b), &b, sizeof(b));
    }
}

static void bf16_decode(float *to, const uint8_t *from, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t b;
        memcpy(&b, from + i * sizeof(b), sizeof(b));
        to[i] = bf16_to_float(b);
    }
}

/* A scale for the row, then a byte for each element. */
static size_t fp8_bytes(size_t n)
{
    return sizeof(float) + n;
}

static void fp8_encode(uint8_t *to, const float *x, size_t n)
{
    float most = 0;
    for (size_t i = 0; i < n; i++)
        most = x[i] > most ? x[i] : -x[i] > most ? -x[i] : most;
    float scale = most > 0 ? most / 448.0f : 1.0f;
    memcpy(to, &scale, sizeof(scale));
    for (size_t i = 0; i < n; i++)
        to[sizeof(scale) + i] = fp4_e4m3_from_float(x[i] / scale);
}

static void fp8_decode(float *to, const uint8_t *from, size_t n)
{
    float scale;
    memcpy(&scale, from, sizeof(scale));
    for (size_t i = 0; i < n; i++)
        to[i] = fp4_e4m3_value[from[sizeof(scale) + i]] * scale;
}

/* A global scale for the row, a scale for each group of 16, then the codes. */
static size_t nvfp4_bytes(size_t n)
{
    size_t bytes = sizeof(float) + n / FP4_GROUP + n / 2;
    return (bytes + 3) & ~(size_t)3;
}

static void nvfp4_encode(uint8_t *to, const float *x, size_t n)
{
    float global = fp4_global_scale(x, n);
    memcpy(to, &global, sizeof(global));
    fp4_quantize_row(to + sizeof(global) + n / FP4_GROUP, to + sizeof(global), x, global, n);
}

static void nvfp4_decode(float *to, const uint8_t *from, size_t n)
{
    float global;
    memcpy(&global, from, sizeof(global));
    fp4_dequantize_row(to, from + sizeof(global) + n / FP4_GROUP, from + sizeof(global), global, n);
}

const struct dispatch_codec *ep_codec(enum dispatch_type type)
{
    static const struct dispatch_codec codec[] = {
        [DISPATCH_F32] = {"f32", f32_bytes, f32_encode, f32_decode},
        [DISPATCH_BF16] = {"bf16", bf16_bytes, bf16_encode, bf16_decode},
        [DISPATCH_FP8] = {"fp8", fp8_bytes, fp8_encode, fp8_decode},
        [DISPATCH_NVFP4] = {"nvfp4", nvfp4_bytes, nvfp4_encode, nvfp4_decode},
    };
    return &codec[type];
}

bool model_parse_dispatch(const char *text, enum dispatch_type *out)
{
    for (int i = DISPATCH_F32; i <= DISPATCH_NVFP4; i++)
        if (!strcmp(text, ep_codec((enum dispatch_type)i)->name)) {
            *out = (enum dispatch_type)i;
            return true;
        }
    return false;
}

/* ---- who has what -------------------------------------------------------------------------------- */

static int first_expert(int rank, int size, int n_expert)
{
    return (int)((int64_t)n_expert * rank / size);
}

struct shard_range ep_experts(const struct shard *s, int n_expert)
{
    int begin = first_expert(s->ep_rank, s->ep_size, n_expert);
    return (struct shard_range){begin, first_expert(s->ep_rank + 1, s->ep_size, n_expert) - begin};
}

enum nyb_code ep_open(struct ep *ep, const struct model_config *c, struct comm *comm, enum dispatch_type type,
                      struct nyb_err *err)
{
    const struct moe_config *m = &c->moe;
    TRY(comm_open_self(&ep->self, err));
    if (m->n_expert == 0)
        return NYB_OK;
    if (c->hidden % FP4_GROUP || m->n_expert > INT16_MAX)
        return err_set(
            err, NYB_E_UNSUPPORTED,
            "expert parallelism takes a hidden size that is a multiple of %d and at most %d experts, "
            "found %d and %d",
            FP4_GROUP, INT16_MAX, c->hidden, m->n_expert);
    if (!dispatch_init(&ep->dispatch, comm, ep_codec(type), c->hidden, m->top_k))
        return err_set(err, NYB_E_UNSUPPORTED,
                       "expert parallelism: the products of one row (%d experts of %d floats) for each of %d "
                       "ranks do not fit a message of %zu bytes",
                       m->top_k, c->hidden, comm_size(comm), comm_slot_bytes(comm));
    ep->n_expert = m->n_expert;
    ep->place = mem_alloc((size_t)m->n_expert, sizeof(*ep->place));
    for (int r = 0; r < c->shard.ep_size; r++)
        for (int e = first_expert(r, c->shard.ep_size, m->n_expert);
             e < first_expert(r + 1, c->shard.ep_size, m->n_expert); e++)
            ep->place[e] = (struct dispatch_place){(int16_t)r, (int16_t)e};
    if (comm_rank(comm) == 0)
        log_info(
            "expert parallel: %d experts over %d ranks, rows as %s, %d rows of each rank a round; buffers "
            "of %.1f MB a rank for 512 rows of each",
            m->n_expert, c->shard.ep_size, ep->dispatch.codec->name, ep->dispatch.round_rows,
            (double)dispatch_worst_bytes(&ep->dispatch, 512) * 1e-6);
    return NYB_OK;
}

void ep_close(struct ep *ep)
{
    comm_close(ep->self);
    free(ep->place);
    *ep = (struct ep){0};
}

/* ---- a rank's part of a step --------------------------------------------------------------------- */

int ep_home(const struct batch *b, int seq, int n_rank)
{
    if (b->home)
        return b->home[seq];
    int32_t first = b->block_table[(size_t)seq * (size_t)b->n_block_max];
    return first < 0 ? 0 : first % n_rank;
}

/* Sequence seq of the whole batch becomes the next of the part's. */
static void take_sequence(const struct batch *whole, int seq, int32_t *tok, int32_t *pos, int32_t *slot,
                          int32_t *start, int32_t *table, struct batch *b)
{
    size_t begin = (size_t)whole->seq_start[seq], at = (size_t)b->n_tok, columns = (size_t)whole->n_block_max;
    size_t n = (size_t)whole->seq_start[seq + 1] - begin;
    memcpy(tok + at, whole->tok + begin, n * sizeof(*tok));
    memcpy(pos + at, whole->pos + begin, n * sizeof(*pos));
    memcpy(slot + at, whole->slot + begin, n * sizeof(*slot));
    memcpy(table + (size_t)b->n_seq * columns, whole->block_table + (size_t)seq * columns,
           columns * sizeof(*table));
    b->n_tok += (int)n;
    start[++b->n_seq] = b->n_tok;
}

void ep_take_part(const struct batch *whole, int rank, int n_rank, struct arena *step, struct ep_part *part)
{
    size_t n_tok = (size_t)whole->n_tok + 1, n_seq = (size_t)whole->n_seq + 1;
    int32_t *tok = arena_alloc(step, n_tok, sizeof(*tok)), *pos = arena_alloc(step, n_tok, sizeof(*pos));
    int32_t *slot = arena_alloc(step, n_tok, sizeof(*slot)),
            *start = arena_calloc(step, n_seq, sizeof(*start));
    int32_t *table = arena_alloc(step, n_seq * (size_t)whole->n_block_max + 1, sizeof(*table));
    int32_t *row_rank = arena_alloc(step, n_tok, sizeof(*row_rank)); /* (n_tok) whose, and its place there */
    int32_t *row_at = arena_alloc(step, n_tok, sizeof(*row_at));
    int32_t *out_row = arena_alloc(step, (size_t)whole->n_out + 1, sizeof(*out_row));
    *part = (struct ep_part){.batch = {.n_block_max = whole->n_block_max}};
    for (int s = 0; s < whole->n_seq; s++) {
        int home = ep_home(whole, s, n_rank);
        for (int i = whole->seq_start[s]; i < whole->seq_start[s + 1]; i++) {
            row_rank[i] = home;
            row_at[i] = part->n_row[home]++;
        }
        if (home == rank)
            take_sequence(whole, s, tok, pos, slot, start, table, &part->batch);
    }
    for (int r = 0; r < n_rank; r++)
        part->out[r] = arena_alloc(step, (size_t)whole->n_out + 1, sizeof(**part->out));
    for (int i = 0; i < whole->n_out; i++) {
        int home = row_rank[whole->out_row[i]];
        if (home == rank)
            out_row[part->batch.n_out++] = row_at[whole->out_row[i]];
        part->out[home][part->n_out[home]++] = i;
    }
    part->batch.tok = tok;
    part->batch.pos = pos;
    part->batch.slot = slot;
    part->batch.seq_start = start;
    part->batch.block_table = table;
    part->batch.out_row = out_row;
}

/* ---- logits -------------------------------------------------------------------------------------- */

static bool only_rank_0(const struct ep_part *part, int size)
{
    for (int r = 1; r < size; r++)
        if (part->n_out[r] > 0)
            return false;
    return true;
}

/* Floats [at, at + n) of rank's block of whole rows to where they belong. */
static void place_logits(const int32_t *out, size_t vocab, size_t at, size_t n, const float *from,
                         float *logits)
{
    while (n > 0) {
        size_t row = at / vocab, column = at % vocab, run = vocab - column < n ? vocab - column : n;
        memcpy(logits + (size_t)out[row] * vocab + column, from, run * sizeof(float));
        at += run;
        from += run;
        n -= run;
    }
}

static size_t chunk_at(const struct ep_part *part, int rank, size_t vocab, size_t at, size_t chunk)
{
    size_t n = (size_t)part->n_out[rank] * vocab, left = at < n ? n - at : 0;
    return left < chunk ? left : chunk;
}

bool ep_gather_logits(const struct ep_part *part, struct comm *comm, const float *own, int vocab,
                      float *logits)
{
    size_t v = (size_t)vocab, most = 0, chunk = comm_slot_bytes(comm) / sizeof(float) / 2;
    int size = comm_size(comm), rank = comm_rank(comm);
    if (only_rank_0(part, size)) {
        if (rank == 0)
            place_logits(part->out[0], v, 0, (size_t)part->n_out[0] * v, own, logits);
        return true;
    }
    for (int r = 0; r < size; r++)
        most = (size_t)part->n_out[r] * v > most ? (size_t)part->n_out[r] * v : most;
    for (size_t at = 0; at < most; at += chunk) {
        struct comm_part out[COMM_RANK_MAX] = {0}, in[COMM_RANK_MAX];
        size_t n = chunk_at(part, rank, v, at, chunk);
        out[0] = (struct comm_part){n ? own + at : own, n * sizeof(float)};
        comm_exchange_start(comm, 0, out);
        if (!comm_exchange_wait(comm, 0, in))
            return false;
        for (int r = 0; r < size && rank == 0; r++)
            place_logits(part->out[r], v, at, in[r].bytes / sizeof(float), in[r].data, logits);
    }
    return true;
}
