#include "cli/bench_seqs.h"

#include <stdlib.h>

#include "base/mem.h"

enum nyb_code bench_seqs_open(struct bench_seqs *s, struct model *m, int n_seq, int max_len, int max_row,
                              struct nyb_err *err)
{
    int n_block = (max_len + KV_BLOCK - 1) / KV_BLOCK;
    size_t n_row = (size_t)max_row, n_table;
    *s = (struct bench_seqs){
        .model = m, .n_seq = n_seq, .max_len = max_len, .n_block = n_block, .max_row = max_row};
    if (!size_mul((size_t)n_seq, (size_t)n_block, &n_table) || n_table > INT32_MAX / KV_BLOCK)
        return err_set(err, NYB_E_RANGE, "%d sequences of %d tokens are more than a KV cache can index",
                       n_seq, max_len);
    s->block_table = mem_alloc(n_table, sizeof(int32_t));
    s->filled = mem_alloc((size_t)n_seq, sizeof(int32_t));
    s->tok = mem_alloc(n_row, sizeof(int32_t));
    s->pos = mem_alloc(n_row, sizeof(int32_t));
    s->slot = mem_alloc(n_row, sizeof(int32_t));
    s->out_row = mem_alloc(n_row, sizeof(int32_t));
    s->seq_start = mem_alloc((size_t)n_seq + 1, sizeof(int32_t));
    for (int i = 0; i < n_seq; i++)
        for (int b = 0; b < n_block; b++)
            s->block_table[i * n_block + b] = b * n_seq + i;
    return model_kv_reserve(m, (int)n_table, err);
}

void bench_seqs_close(struct bench_seqs *s)
{
    free(s->block_table);
    free(s->filled);
    free(s->tok);
    free(s->pos);
    free(s->slot);
    free(s->out_row);
    free(s->seq_start);
    *s = (struct bench_seqs){0};
}

void bench_seqs_seed(struct bench_seqs *s, uint64_t seed)
{
    s->random = seed;
}

/* splitmix64 */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

struct batch bench_seqs_batch(struct bench_seqs *s, int first, int n_seq, int n_past, int n, bool logits)
{
    ASSERT(first >= 0 && n_seq > 0 && first <= s->n_seq - n_seq && n > 0 && n <= s->max_row / n_seq);
    ASSERT(n_past >= 0 && n_past <= s->max_len - n);
    const int32_t *table = s->block_table + (size_t)first * (size_t)s->n_block;
    uint64_t vocab = (uint64_t)model_config(s->model)->vocab;
    for (int i = 0, row = 0; i < n_seq; i++) {
        s->seq_start[i] = row;
        for (int j = 0; j < n; j++, row++) {
            int pos = n_past + j;
            s->tok[row] = (int32_t)(next_random(&s->random) % vocab);
            s->pos[row] = pos;
            s->slot[row] = table[i * s->n_block + pos / KV_BLOCK] * KV_BLOCK + pos % KV_BLOCK;
        }
        s->seq_start[i + 1] = row;
        s->out_row[i] = row - 1;
    }
    return (struct batch){
        .n_seq = n_seq,
        .n_tok = n_seq * n,
        .n_block_max = s->n_block,
        .n_out = logits ? n_seq : 0,
        .tok = s->tok,
        .pos = s->pos,
        .slot = s->slot,
        .seq_start = s->seq_start,
        .block_table = table,
        .out_row = s->out_row,
    };
}

int64_t bench_seqs_missing(const struct bench_seqs *s, int n_seq, int depth)
{
    int64_t n = 0;
    for (int i = 0; i < n_seq; i++)
        n += s->filled[i] < depth ? depth - s->filled[i] : 0;
    return n;
}

enum nyb_code bench_seqs_fill(struct bench_seqs *s, int n_seq, int depth, int chunk, struct nyb_err *err)
{
    int i = 0;
    while (i < n_seq && s->filled[i] >= depth)
        i++;
    if (i == n_seq)
        return NYB_OK;
    int left = depth - s->filled[i], n = left < chunk ? left : chunk;
    const struct batch b = bench_seqs_batch(s, i, 1, s->filled[i], n, false);
    TRY(model_forward(s->model, &b, NULL, NULL, err));
    s->filled[i] += n;
    return NYB_OK;
}
