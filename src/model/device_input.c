/* A batch as the operators find it in the GPU's memory. */
#include <string.h>

#include "model/device_state.h"

static int rows_of(const struct batch *b, int seq)
{
    return b->seq_start[seq + 1] - b->seq_start[seq];
}

static int tiles_of(int n_row)
{
    return (n_row + CUDA_TILE_TOKENS - 1) / CUDA_TILE_TOKENS;
}

struct device_shape device_shape_of(const struct batch *b)
{
    struct device_shape s = {.n_row = b->n_tok, .n_out = b->n_out, .n_split = 1};
    for (int i = 0; i < b->n_seq; i++) {
        int n = rows_of(b, i);
        if (n != 1) {
            s.n_tile += tiles_of(n);
            continue;
        }
        int split = b->pos[b->seq_start[i]] / CUDA_SPLIT_KEYS + 1;
        s.n_split = split > s.n_split ? split : s.n_split;
        s.n_single++;
    }
    return s;
}

struct laying {
    uint8_t *base;
    size_t used;
};

static void *take(struct laying *l, int n, size_t size)
{
    size_t at = l->used;
    l->used = (at + (size_t)n * size + 15) / 16 * 16;
    return l->base + at;
}

size_t device_input_layout(const struct device_shape *s, uint8_t *base, struct device_input *in)
{
    struct laying l = {.base = base};
    in->count = take(&l, COUNT_N, sizeof(int32_t));
    in->tok = take(&l, s->n_row, sizeof(int32_t));
    in->pos = take(&l, s->n_row, sizeof(int32_t));
    in->slot = take(&l, s->n_row, sizeof(int32_t));
    in->out_row = take(&l, s->n_out, sizeof(int32_t));
    in->single = take(&l, s->n_single, sizeof(struct cuda_tile));
    in->tile = take(&l, s->n_tile, sizeof(struct cuda_tile));
    in->table = take(&l, 0, 1);
    return l.used;
}

size_t device_input_bytes(const struct device_shape *s, const struct batch *b)
{
    uint8_t none[1];
    struct device_input in;
    return device_input_layout(s, none, &in) + (size_t)b->n_seq * (size_t)b->n_block_max * sizeof(int32_t);
}

static void write_tiles(const struct batch *b, struct device_input *in)
{
    int n_single = 0, n_tile = 0;
    for (int i = 0; i < b->n_seq; i++) {
        int row = b->seq_start[i], n = rows_of(b, i);
        if (n == 1)
            in->single[n_single++] = (struct cuda_tile){row, 1, i, 0};
        for (int at = 0; n > 1 && at < n; at += CUDA_TILE_TOKENS) {
            int left = n - at < CUDA_TILE_TOKENS ? n - at : CUDA_TILE_TOKENS;
            in->tile[n_tile++] = (struct cuda_tile){row + at, left, i, 0};
        }
    }
    in->count[COUNT_SINGLE] = n_single;
    in->count[COUNT_TILE] = n_tile;
}

/* Rows that are only there to fill the shape have token, position and slot 0. */
void device_input_write(const struct device_shape *s, const struct batch *b, uint8_t *base)
{
    struct device_input in;
    size_t n = (size_t)b->n_tok;
    memset(base, 0, device_input_layout(s, base, &in));
    in.count[COUNT_TOK] = b->n_tok;
    in.count[COUNT_OUT] = b->n_out;
    in.count[COUNT_STRIDE] = b->n_block_max;
    memcpy(in.tok, b->tok, n * sizeof(int32_t));
    memcpy(in.pos, b->pos, n * sizeof(int32_t));
    memcpy(in.slot, b->slot, n * sizeof(int32_t));
    if (b->n_out > 0)
        memcpy(in.out_row, b->out_row, (size_t)b->n_out * sizeof(int32_t));
    memcpy(in.table, b->block_table, (size_t)b->n_seq * (size_t)b->n_block_max * sizeof(int32_t));
    write_tiles(b, &in);
}
