/* Weights on their way back from a GPU: rows as checkpoints have them, beside steps that go on. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "fp4/fp4.h"
#include "kernels/cuda/cuda_layout.h"
#include "kernels/cuda/cuda_tiled.h"
#include "model/device_state.h"
#include "model/fill.h"

#define STRIP_BYTES ((size_t)1 << 20) /* of packed tiles that are copied at a time; one at least */

static bool peek(const struct device_place *place, void *to, const uint8_t *from, size_t bytes)
{
    const struct device *d = place->device;
    return d->plugin->peek(d->gpu, to, from, bytes);
}

static bool read_plain(const struct device_place *place, const struct fill_piece *p)
{
    const struct weight *w = p->slot->weight;
    size_t row = (size_t)p->row, n = (size_t)p->n_row, bytes = weight_row_bytes(w->type, w->k);
    size_t blocks = (size_t)w->k / FP4_GROUP;
    return peek(place, p->rows, place->data + row * bytes, n * bytes) &&
           (!place->block || peek(place, p->scales, place->block + row * blocks, n * blocks));
}

/* Rows from `row` on of the piece, or a part of their columns, out of the tiles that hold them. */
static void unpack(const struct device_place *place, const struct fill_piece *p, size_t row, size_t n_row,
                   size_t part, const uint8_t *tiles)
{
    size_t k = (size_t)p->slot->weight->k, wide = k / (size_t)place->n_part, column = part * wide;
    uint8_t *codes = p->rows + (row * k + column) / 2, *scales = p->scales + (row * k + column) / FP4_GROUP;
    if (place->layout == PLACE_PACKED)
        cuda_layout_unpack(codes, scales, tiles, n_row, wide, k);
    else
        cuda_layout_unpack_pair(codes, scales, tiles, place->layout == PLACE_UP, n_row, k);
}

/* height: rows of the matrix in a tile. */
static enum nyb_code read_packed(const struct device_place *place, const struct fill_piece *p, size_t height,
                                 struct nyb_err *err)
{
    const struct weight *w = p->slot->weight;
    size_t n_part = (size_t)place->n_part, wide = (size_t)w->k / n_part, n_row = (size_t)p->n_row;
    size_t tile = cuda_layout_bytes(CUDA_UNIT_ROWS, wide), matrix = cuda_layout_bytes((size_t)w->n, wide);
    size_t first = (size_t)p->row / height, n_tile = (n_row + height - 1) / height;
    size_t step = tile < STRIP_BYTES ? STRIP_BYTES / tile : 1;
    step = step < n_tile ? step : n_tile;
    ASSERT(p->row % CUDA_UNIT_ROWS == 0);
    uint8_t *strip = mem_try_aligned(step * tile);
    if (!strip)
        return err_set(err, NYB_E_MEMORY, "no memory for %zu bytes of weights of a GPU", step * tile);
    bool ok = true;
    for (size_t i = 0, n; i < n_part * n_tile && ok; i += n) {
        size_t part = i / n_tile, done = i % n_tile;
        n = n_tile - done < step ? n_tile - done : step;
        size_t left = n_row - done * height, rows = left < n * height ? left : n * height;
        ok = peek(place, strip, place->data + part * matrix + (first + done) * tile, n * tile);
        if (ok)
            unpack(place, p, done * height, rows, part, strip);
    }
    free(strip);
    return ok ? NYB_OK : device_failed(place->device, "reading weights", err);
}

/* Codes of rows with their padding, and scales a band of 128 rows at a time. */
static enum nyb_code read_tiled(const struct device_place *place, const struct fill_piece *p,
                                struct nyb_err *err)
{
    size_t k = (size_t)p->slot->weight->k, blocks = k / FP4_GROUP, row = (size_t)p->row, n = (size_t)p->n_row;
    size_t row_bytes = cuda_tiled_row(k) / 2, band = cuda_tiled_scale_bytes(CUDA_TILE_ROWS, k);
    size_t room = row_bytes > band ? row_bytes : band;
    bool padded = row_bytes != k / 2,
         ok = padded || peek(place, p->rows, place->data + row * row_bytes, n * row_bytes);
    uint8_t *strip = mem_try_aligned(room);
    if (!strip)
        return err_set(err, NYB_E_MEMORY, "no memory for %zu bytes of weights of a GPU", room);
    for (size_t r = 0; r < n && padded && ok; r++) {
        ok = peek(place, strip, place->data + (row + r) * row_bytes, row_bytes);
        memcpy(p->rows + r * (k / 2), strip, k / 2);
    }
    for (size_t r = 0; r < n && ok; r++) {
        size_t in = (row + r) % CUDA_TILE_ROWS;
        if (r == 0 || in == 0)
            ok = peek(place, strip, place->block + (row + r) / CUDA_TILE_ROWS * band, band);
        for (size_t b = 0; b < blocks && ok; b++)
            p->scales[r * blocks + b] = strip[cuda_tiled_scale_at(in, b, k)];
    }
    free(strip);
    return ok ? NYB_OK : device_failed(place->device, "reading weights", err);
}

enum nyb_code device_place_read(const struct fill_piece *p, struct nyb_err *err)
{
    const struct device_place *place = p->slot->place;
    bool ok = false;
    switch (place->layout) {
    case PLACE_VECTOR:
        ok = peek(place, p->rows, place->data, (size_t)p->slot->n * sizeof(float));
        break;
    case PLACE_PLAIN:
        ok = read_plain(place, p);
        break;
    case PLACE_PACKED:
        return read_packed(place, p, CUDA_UNIT_ROWS, err);
    case PLACE_GATE:
    case PLACE_UP:
        return read_packed(place, p, CUDA_UNIT_ROWS / 2, err);
    case PLACE_TILED:
        return read_tiled(place, p, err);
    }
    return ok ? NYB_OK : device_failed(place->device, "reading weights", err);
}
