/* Rows of a checkpoint. */
#include <string.h>

#include "fp4/fp4.h"
#include "model/fill.h"

/* A NaN scale over zero codes is harmless and occurs in old exports; over anything else it is a broken file.
 */
static enum nyb_code check_scales(const struct fill_piece *p, const struct ckpt *c, struct nyb_err *err)
{
    const struct slot *s = p->slot;
    const struct ckpt_tensor *t = s->source.scale;
    size_t k = (size_t)s->k, bad;
    for (size_t r = 0; r < (size_t)p->n_row; r++)
        if (!fp4_row_scales_ok(p->rows + r * k / 2, p->scales + r * k / FP4_GROUP, k, &bad))
            return err_at(
                err, NYB_E_FORMAT, t->name, -1,
                "in %s: the scale of row %zu, block %zu is NaN, but the weights under it are not zero",
                c->file[t->file].path, (size_t)p->row + r, bad);
    return NYB_OK;
}

static enum nyb_code read_matrix(const struct ckpt *c, const struct fill_piece *p, struct nyb_err *err)
{
    const struct slot *s = p->slot;
    const struct linear_source *src = &s->source;
    size_t row = weight_row_bytes(s->weight->type, s->k), scale = (size_t)s->k / FP4_GROUP;
    TRY(ckpt_read(c, src->weight, (uint64_t)p->row * row, p->rows, (size_t)p->n_row * row, err));
    if (s->weight->type != WEIGHT_NVFP4)
        return NYB_OK;
    TRY(ckpt_read(c, src->scale, (uint64_t)p->row * scale, p->scales, (size_t)p->n_row * scale, err));
    return check_scales(p, c, err);
}

/* In pieces of a few KB, since a file may have 8 bytes where the slot has 4. */
static enum nyb_code read_vector(const struct ckpt *c, const struct fill_piece *p, struct nyb_err *err)
{
    const struct ckpt_tensor *t = p->slot->tensor;
    size_t size = dtype_size(t->dtype), n = (size_t)p->slot->n;
    uint8_t raw[4096];
    for (size_t done = 0; done < n;) {
        size_t count = sizeof(raw) / size < n - done ? sizeof(raw) / size : n - done;
        TRY(ckpt_read(c, t, done * size, raw, count * size, err));
        for (size_t i = 0; i < count; i++) {
            float x = dtype_to_float(t->dtype, raw + i * size);
            memcpy(p->rows + (done + i) * sizeof(x), &x, sizeof(x));
        }
        done += count;
    }
    return NYB_OK;
}

static enum nyb_code make(const void *arg, const struct fill_piece *p, struct nyb_err *err)
{
    return p->slot->kind == SLOT_MATRIX ? read_matrix(arg, p, err) : read_vector(arg, p, err);
}

struct fill_source fill_from_checkpoint(const struct ckpt *c)
{
    return (struct fill_source){make, c};
}
