/* Weights on their way to a GPU, and what lies there as a fingerprint. */
#include <stdlib.h>

#include <xxhash.h>

#include "base/mem.h"
#include "fp4/fp4.h"
#include "kernels/cuda/cuda_layout.h"
#include "kernels/cuda/cuda_tiled.h"
#include "model/device_state.h"
#include "model/fill.h"

#define HASH_PIECE ((size_t)1 << 20)

static bool write_plain(const struct device_place *place, const struct fill_piece *p)
{
    const struct device *d = place->device;
    const struct weight *w = p->slot->weight;
    size_t row = (size_t)p->row, n = (size_t)p->n_row, bytes = weight_row_bytes(w->type, w->k);
    size_t blocks = (size_t)w->k / FP4_GROUP;
    return d->plugin->write(d->gpu, place->data + row * bytes, p->rows, n * bytes) &&
           (!place->block || d->plugin->write(d->gpu, place->block + row * blocks, p->scales, n * blocks));
}

static bool write_packed(const struct device_place *place, const struct fill_piece *p)
{
    const struct device *d = place->device;
    const struct weight *w = p->slot->weight;
    const struct cuda_pack pack = {.device = place->data,
                                   .codes = p->rows,
                                   .scales = p->scales,
                                   .rows = place->layout == PLACE_GATE    ? CUDA_PACK_GATE
                                           : place->layout == PLACE_UP    ? CUDA_PACK_UP
                                           : place->layout == PLACE_TILED ? CUDA_PACK_TILED
                                                                          : CUDA_PACK_WHOLE,
                                   .block = place->block,
                                   .first = p->row,
                                   .n_row = p->n_row,
                                   .n_whole = w->n,
                                   .K = w->k,
                                   .n_part = place->n_part};
    return d->plugin->pack(d->gpu, &pack);
}

enum nyb_code device_place_write(const struct fill_piece *p, struct nyb_err *err)
{
    const struct device_place *place = p->slot->place;
    const struct device *d = place->device;
    bool ok = place->layout == PLACE_VECTOR
                  ? d->plugin->write(d->gpu, place->data, p->rows, (size_t)p->slot->n * sizeof(float))
              : place->layout == PLACE_PLAIN ? write_plain(place, p)
                                             : write_packed(place, p);
    return ok ? NYB_OK : device_failed(d, "copying weights", err);
}

enum nyb_code device_settle_weights(struct device *d, struct nyb_err *err)
{
    return d->plugin->sync(d->gpu) ? NYB_OK : device_failed(d, "packing weights", err);
}

/* bytes of data into the state, a piece at a time. */
static bool hash_range(const struct device *d, const uint8_t *data, size_t bytes, uint8_t *piece,
                       XXH3_state_t *state)
{
    for (size_t at = 0; at < bytes; at += HASH_PIECE) {
        size_t n = bytes - at < HASH_PIECE ? bytes - at : HASH_PIECE;
        if (!d->plugin->read(d->gpu, piece, data + at, n) || XXH3_64bits_update(state, piece, n) != XXH_OK)
            return false;
    }
    return true;
}

uint64_t device_place_hash(const struct slot *s)
{
    const struct device_place *p = s->place;
    size_t n = (size_t)s->n, k = (size_t)s->k, bytes = n * sizeof(float), block_bytes = 0;
    if (p->layout == PLACE_PLAIN) {
        bytes = n * weight_row_bytes(s->weight->type, s->k);
        block_bytes = p->block ? n * k / FP4_GROUP : 0;
    } else if (p->layout == PLACE_TILED) {
        bytes = cuda_tiled_code_bytes(n, k);
        block_bytes = cuda_tiled_scale_bytes(n, k);
    } else if (p->layout != PLACE_VECTOR) {
        bytes = cuda_layout_bytes(p->layout == PLACE_PACKED ? n : 2 * n, k);
    }
    uint8_t *piece = mem_alloc(HASH_PIECE, 1);
    XXH3_state_t *state = XXH3_createState();
    bool ok = state && XXH3_64bits_reset(state) == XXH_OK &&
              hash_range(p->device, p->data, bytes, piece, state) &&
              hash_range(p->device, p->block, block_bytes, piece, state);
    uint64_t hash = ok ? XXH3_64bits_digest(state) : 0;
    XXH3_freeState(state);
    free(piece);
    return hash;
}

enum nyb_code device_write_scales(struct device *d, struct nyb_err *err)
{
    float *all = mem_alloc((size_t)d->n_scale, sizeof(*all));
    for (int i = 0; i < d->n_scale; i++)
        all[i] = *d->scale_of[i].of * (d->scale_of[i].times ? *d->scale_of[i].times : 1.0f);
    bool ok = d->plugin->write(d->gpu, d->scales, all, (size_t)d->n_scale * sizeof(*all));
    free(all);
    return ok ? NYB_OK : device_failed(d, "copying scales", err);
}
