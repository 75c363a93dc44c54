#include "cli/sequence.h"

#include <stdlib.h>

#include "base/mem.h"

enum nyb_code sequence_open(struct sequence *s, struct model *m, int max_len, struct nyb_err *err)
{
    int n_block = (max_len + KV_BLOCK - 1) / KV_BLOCK;
    size_t n = (size_t)max_len;
    *s = (struct sequence){.model = m, .max_len = max_len};
    s->block_table = mem_alloc((size_t)n_block, sizeof(int32_t));
    s->pos = mem_alloc(n, sizeof(int32_t));
    s->slot = mem_alloc(n, sizeof(int32_t));
    s->out_row = mem_alloc(n, sizeof(int32_t));
    for (int i = 0; i < n_block; i++)
        s->block_table[i] = i;
    return model_kv_reserve(m, n_block, err);
}

void sequence_close(struct sequence *s)
{
    free(s->block_table);
    free(s->pos);
    free(s->slot);
    free(s->out_row);
    *s = (struct sequence){0};
}

void sequence_rewind(struct sequence *s, int n_past)
{
    ASSERT(n_past >= 0 && n_past <= s->n_past);
    s->n_past = n_past;
}

enum nyb_code sequence_step(struct sequence *s, const int32_t *ids, int n, int n_out, float *logits,
                            const struct model_probe *probe, struct nyb_err *err)
{
    if (n > s->max_len - s->n_past)
        return err_set(err, NYB_E_TOO_LONG, "%d tokens after %d do not fit a context of %d", n, s->n_past,
                       s->max_len);
    for (int i = 0; i < n; i++)
        s->slot[i] = s->pos[i] = s->n_past + i;
    for (int i = 0; i < n_out; i++)
        s->out_row[i] = n - n_out + i;
    const int32_t seq_start[2] = {0, n};
    const struct batch b = {
        .n_seq = 1,
        .n_tok = n,
        .n_block_max = (s->max_len + KV_BLOCK - 1) / KV_BLOCK,
        .n_out = n_out,
        .tok = ids,
        .pos = s->pos,
        .slot = s->slot,
        .seq_start = seq_start,
        .block_table = s->block_table,
        .out_row = s->out_row,
    };
    TRY(model_forward(s->model, &b, logits, probe, err));
    s->n_past += n;
    return NYB_OK;
}

int32_t sequence_argmax(const float *logits, int n)
{
    int32_t best = 0;
    for (int i = 1; i < n; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}
