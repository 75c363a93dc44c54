/* A batch as the operators find it in the GPU's memory. */
#include <string.h>

#include "model/device_state.h"

#define HALF_COUNTS 3 /* COUNT_TOK, COUNT_SINGLE, COUNT_TILE */

static int rows_of(const struct batch *b, int seq)
{
    return b->seq_start[seq + 1] - b->seq_start[seq];
}

static int tiles_of(int n_row)
{
    return (n_row + CUDA_TILE_TOKENS - 1) / CUDA_TILE_TOKENS;
}

/* Rows of [row, row + n) in half 0, before the cut, or in half 1; *first is the first of them. */
static int rows_in(int half, int row, int n, int cut, int *first)
{
    int begin = half && row < cut ? cut : row, end = !half && row + n > cut ? cut : row + n;
    *first = begin;
    return end > begin ? end - begin : 0;
}

/* Images of the keys that the last of n rows sees. */
static int images_of(const struct batch *b, int row, int n)
{
    return n > 0 ? b->pos[row + n - 1] / CUDA_IMAGE_KEYS + 1 : 0;
}

/* Of a half's sequences in tiles. A launch more for images pays where there are some of them, and tiles see
 * several (docs/SPEED.md). */
struct seen {
    int n_seq, n_image;
};

static void see(struct seen *all, const struct batch *b, int row, int n)
{
    all->n_seq += n > 0;
    all->n_image += images_of(b, row, n);
}

static int worth_images(const struct seen *all)
{
    return all->n_image >= 8 && all->n_image >= 4 * all->n_seq ? all->n_image : 0;
}

static void count_tiles(struct device_shape *s, struct seen half[2], const struct batch *b, int row, int n)
{
    int first, second, before = rows_in(0, row, n, s->cut, &first),
                       behind = rows_in(1, row, n, s->cut, &second);
    s->tile_cut += tiles_of(before);
    s->n_tile += tiles_of(before) + tiles_of(behind);
    see(&half[0], b, first, before);
    see(&half[1], b, second, behind);
}

struct device_shape device_shape_of(const struct batch *b, int cut)
{
    struct device_shape s = {.n_row = b->n_tok, .n_out = b->n_out, .n_split = 1, .cut = cut};
    struct seen half[2] = {{0}};
    for (int i = 0; i < b->n_seq; i++) {
        int n = rows_of(b, i), row = b->seq_start[i];
        if (n != 1) {
            count_tiles(&s, half, b, row, n);
            continue;
        }
        int split = b->pos[row] / CUDA_SPLIT_KEYS + 1;
        s.n_split = split > s.n_split ? split : s.n_split;
        s.n_single++;
        s.single_cut += row < cut;
    }
    s.image_cut = worth_images(&half[0]);
    s.n_image = s.image_cut + worth_images(&half[1]);
    return s;
}

struct laying {
    uint8_t *base; /* NULL: only how many bytes there are */
    size_t used;
};

static void *take(struct laying *l, int n, size_t size)
{
    size_t at = l->used;
    l->used = (at + (size_t)n * size + 15) / 16 * 16;
    return l->base ? l->base + at : NULL;
}

size_t device_input_layout(const struct device_shape *s, uint8_t *base, struct device_input *in)
{
    struct laying l = {.base = base};
    in->count = take(&l, COUNT_N, sizeof(int32_t));
    in->tok = take(&l, s->n_row, sizeof(int32_t));
    in->pos = take(&l, s->n_row, sizeof(int32_t));
    in->slot = take(&l, s->n_row, sizeof(int32_t));
    /* launches of one rank's share may cover more than there are */
    in->out_row = take(&l, s->n_out + (s->n_rank ? s->most_out : 0), sizeof(int32_t));
    in->single = take(&l, s->n_single, sizeof(struct cuda_tile));
    in->tile = take(&l, s->n_tile, sizeof(struct cuda_tile));
    in->rank_rows = take(&l, s->n_rank, sizeof(int32_t));
    in->place = take(&l, s->n_rank * s->most_rows, sizeof(int32_t));
    in->rank_out = take(&l, s->n_rank, sizeof(int32_t));
    in->out_place = take(&l, s->n_rank * s->most_out, sizeof(int32_t));
    in->draw = take(&l, s->draws ? s->n_out : 0, sizeof(struct cuda_draw));
    in->table = take(&l, 0, 1);
    return l.used;
}

size_t device_input_bytes(const struct device_shape *s, const struct batch *b)
{
    struct device_input in;
    return device_input_layout(s, NULL, &in) + (size_t)b->n_seq * (size_t)b->n_block_max * sizeof(int32_t);
}

/* Of one half, or of all rows: then half 1 of a step that is cut before its first row. */
static void write_tiles(const struct device_shape *s, const struct batch *b, int half,
                        struct device_input *in)
{
    int from = half ? s->cut : 0, n_single = 0, n_tile = 0, n_image = 0, first;
    struct cuda_tile *single = in->single + (half ? s->single_cut : 0),
                     *tile = in->tile + (half ? s->tile_cut : 0);
    for (int i = 0; i < b->n_seq; i++) {
        int whole = rows_of(b, i), n = rows_in(half, b->seq_start[i], whole, s->cut, &first);
        if (whole == 1 && n == 1)
            single[n_single++] = (struct cuda_tile){first - from, 1, i, 0};
        for (int at = 0; whole > 1 && at < n; at += CUDA_TILE_TOKENS) {
            int left = n - at < CUDA_TILE_TOKENS ? n - at : CUDA_TILE_TOKENS;
            tile[n_tile++] = (struct cuda_tile){first - from + at, left, i, n_image};
        }
        n_image += whole > 1 ? images_of(b, first, n) : 0;
    }
    int32_t *count = in->count + (s->cut > 0 ? COUNT_HALF + HALF_COUNTS * half : COUNT_TOK);
    count[0] = rows_in(half, 0, b->n_tok, s->cut, &first);
    count[1] = n_single;
    count[2] = n_tile;
}

/* Rows that are only there to fill the shape have token, position and slot 0. */
void device_input_write(const struct device_shape *s, const struct batch *b, uint8_t *base)
{
    struct device_input in;
    size_t n = (size_t)b->n_tok;
    memset(base, 0, device_input_layout(s, base, &in));
    in.count[COUNT_OUT] = b->n_out;
    in.count[COUNT_STRIDE] = b->n_block_max;
    memcpy(in.tok, b->tok, n * sizeof(int32_t));
    memcpy(in.pos, b->pos, n * sizeof(int32_t));
    memcpy(in.slot, b->slot, n * sizeof(int32_t));
    if (b->n_out > 0)
        memcpy(in.out_row, b->out_row, (size_t)b->n_out * sizeof(int32_t));
    memcpy(in.table, b->block_table, (size_t)b->n_seq * (size_t)b->n_block_max * sizeof(int32_t));
    for (int half = s->cut > 0 ? 0 : 1; half < 2; half++)
        write_tiles(s, b, half, &in);
}

void device_input_write_draws(const struct device_shape *s, const struct draw *draw, int n, uint8_t *base)
{
    struct device_input in;
    device_input_layout(s, base, &in);
    for (int i = 0; i < n; i++)
        in.draw[i] = (struct cuda_draw){.uniform = draw[i].uniform,
                                        .scale = draw[i].scale,
                                        .top_p = draw[i].top_p,
                                        .min_p = draw[i].min_p,
                                        .top_k = draw[i].top_k,
                                        .wanted = draw[i].wanted};
}

struct device_part device_part_of(const struct device_shape *s, uint8_t *base, int half)
{
    struct device_input in;
    device_input_layout(s, base, &in);
    int row = half == 1 ? s->cut : 0, single = half == 1 ? s->single_cut : 0,
        tile = half == 1 ? s->tile_cut : 0, image = half == 1 ? s->image_cut : 0;
    const int32_t *count = in.count + (half < 0 ? COUNT_TOK : COUNT_HALF + HALF_COUNTS * half);
    return (struct device_part){.first = row,
                                .n_row = half == 0 ? s->cut : s->n_row - row,
                                .n_single = half == 0 ? s->single_cut : s->n_single - single,
                                .n_tile = half == 0 ? s->tile_cut : s->n_tile - tile,
                                .n_image = half == 0 ? s->image_cut : s->n_image - image,
                                .n_split = s->n_split,
                                .count = count,
                                .single_count = count + 1,
                                .tile_count = count + 2,
                                .stride = in.count + COUNT_STRIDE,
                                .tok = in.tok + row,
                                .pos = in.pos + row,
                                .slot = in.slot + row,
                                .table = in.table,
                                .single = in.single + single,
                                .tile = in.tile + tile,
                                .rows = {in.rank_rows, in.place, s->most_rows, s->n_all},
                                .all_count = in.count + COUNT_ALL};
}
