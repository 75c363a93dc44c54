/* A plan as the plain arrays that a model takes. */
#include <string.h>

#include "engine/sched_internal.h"

static void write_row(struct sched *s, struct sched_row *row, int at, int *n_out)
{
    const struct request *r = row->r;
    int begin = r->n_computed, end = begin + row->n_tok;
    for (int p = begin; p < end; p++) {
        s->tok[at + p - begin] = r->tok[p];
        s->pos[at + p - begin] = p;
        s->slot[at + p - begin] = r->block[p / KV_BLOCK] * KV_BLOCK + p % KV_BLOCK;
    }
    row->out_first = *n_out;
    row->n_score = 0;
    /* The logits of position p score token p + 1. */
    for (int p = r->n_scored - 1; sched_is_scoring(r) && p < end && p + 1 < r->n_prompt; p++) {
        ASSERT(p >= begin);
        s->out_row[(*n_out)++] = at + p - begin;
        row->n_score++;
    }
    row->sample = end == r->n_tok;
    if (row->sample)
        s->out_row[(*n_out)++] = at + row->n_tok - 1;
}

void sched_write_batch(struct sched *s, struct batch *b)
{
    int n_tok = 0, n_out = 0, n_block_max = 1;
    for (int i = 0; i < s->n_row; i++)
        if (s->row[i].r->n_block > n_block_max)
            n_block_max = s->row[i].r->n_block;
    for (int i = 0; i < s->n_row; i++) {
        const struct request *r = s->row[i].r;
        s->seq_start[i] = n_tok;
        s->home[i] = r->home;
        write_row(s, &s->row[i], n_tok, &n_out);
        n_tok += s->row[i].n_tok;
        int32_t *table = s->block_table + (size_t)i * (size_t)n_block_max;
        memcpy(table, r->block, (size_t)r->n_block * sizeof(*table));
        for (int j = r->n_block; j < n_block_max; j++)
            table[j] = -1;
    }
    s->seq_start[s->n_row] = n_tok;
    ASSERT(n_tok <= s->limit.max_num_batched_tokens);
    ASSERT(n_out <= s->limit.max_num_seqs + s->limit.max_score_rows);
    *b = (struct batch){.n_seq = s->n_row,
                        .n_tok = n_tok,
                        .n_block_max = n_block_max,
                        .n_out = n_out,
                        .tok = s->tok,
                        .pos = s->pos,
                        .slot = s->slot,
                        .seq_start = s->seq_start,
                        .block_table = s->block_table,
                        .out_row = s->out_row,
                        .home = s->limit.n_rank > 1 ? s->home : NULL};
}
