/* Rows of a checkpoint. */
#include <string.h>

#include "fp4/fp4.h"
#include "model/fill.h"

#define STRIP_BUFFER 65536u

/* A word at a time: adding 1 to the seven bits of 0x7f carries into the eighth. */
static bool any_nan(const uint8_t *scales, size_t n)
{
    const uint64_t low = 0x7f7f7f7f7f7f7f7fu, one = 0x0101010101010101u;
    uint64_t found = 0, word = 0;
    size_t i = 0;
    for (; i + sizeof(word) <= n; i += sizeof(word)) {
        memcpy(&word, scales + i, sizeof(word));
        found |= (word & low) + one;
    }
    for (; i < n; i++)
        found |= (uint64_t)(scales[i] & 0x7f) + 1;
    return found & 0x8080808080808080u;
}

/* A NaN scale over zero codes is harmless and occurs in old exports; over anything else it is a broken file.
 */
static enum nyb_code check_scales(const struct fill_piece *p, const struct ckpt *c, struct nyb_err *err)
{
    const struct slot *s = p->slot;
    const struct ckpt_tensor *t = s->source.scale;
    size_t k = (size_t)s->k, bad;
    if (!any_nan(p->scales, (size_t)p->n_row * k / FP4_GROUP)) /* one quick look */
        return NYB_OK;
    for (size_t r = 0; r < (size_t)p->n_row; r++)
        if (!fp4_row_scales_ok(p->rows + r * k / 2, p->scales + r * k / FP4_GROUP, k, &bad))
            return err_at(
                err, NYB_E_FORMAT, t->name, -1,
                "in %s: the scale of row %zu, block %zu is NaN, but the weights under it are not zero",
                c->file[t->file].path, (size_t)(s->row + p->row) + r, bad + (size_t)s->column / FP4_GROUP);
    return NYB_OK;
}

/* n rows of the tensor from `row` on, of each `bytes` from `skip` on; `whole` bytes lie between rows. */
struct strip {
    size_t row, n, skip, bytes, whole;
};

/* Strips are read with what lies between them, and a few rows at a time: files like few and long reads. */
static enum nyb_code read_strip(const struct ckpt *c, const struct ckpt_tensor *t, const struct strip *s,
                                uint8_t *to, struct nyb_err *err)
{
    uint8_t buf[STRIP_BUFFER];
    if (s->bytes == s->whole)
        return ckpt_read(c, t, (uint64_t)s->row * s->whole, to, s->n * s->whole, err);
    size_t step = (STRIP_BUFFER - s->bytes) / s->whole + 1;
    if (s->bytes > STRIP_BUFFER)
        step = 1;
    for (size_t done = 0; done < s->n; done += step) {
        size_t n = s->n - done < step ? s->n - done : step, span = (n - 1) * s->whole + s->bytes;
        uint64_t at = (uint64_t)(s->row + done) * s->whole + s->skip;
        if (n == 1) {
            TRY(ckpt_read(c, t, at, to + done * s->bytes, s->bytes, err));
            continue;
        }
        TRY(ckpt_read(c, t, at, buf, span, err));
        for (size_t i = 0; i < n; i++)
            memcpy(to + (done + i) * s->bytes, buf + i * s->whole, s->bytes);
    }
    return NYB_OK;
}

static enum nyb_code read_matrix(const struct ckpt *c, const struct fill_piece *p, struct nyb_err *err)
{
    const struct slot *s = p->slot;
    const struct linear_source *src = &s->source;
    enum weight_type type = s->weight->type;
    struct strip strip = {.row = (size_t)(s->row + p->row),
                          .n = (size_t)p->n_row,
                          .skip = weight_row_bytes(type, s->column),
                          .bytes = weight_row_bytes(type, s->k),
                          .whole = weight_row_bytes(type, s->k_whole)};
    TRY(read_strip(c, src->weight, &strip, p->rows, err));
    if (type != WEIGHT_NVFP4)
        return NYB_OK;
    strip.skip = (size_t)s->column / FP4_GROUP;
    strip.bytes = (size_t)s->k / FP4_GROUP;
    strip.whole = (size_t)s->k_whole / FP4_GROUP;
    TRY(read_strip(c, src->scale, &strip, p->scales, err));
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
        TRY(ckpt_read(c, t, ((size_t)p->slot->row + done) * size, raw, count * size, err));
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

static struct fill_extent extent_of(const struct ckpt *c, const struct ckpt_tensor *t, uint64_t row, size_t n,
                                    size_t row_bytes)
{
    const struct ckpt_file *f = &c->file[t->file];
    ASSERT((row + n) * row_bytes <= t->bytes);
    return (struct fill_extent){f->fd, f->path, t->offset + row * row_bytes, n * row_bytes};
}

/* Whole rows of a matrix. Vectors are small and change their type, strips have gaps. */
static bool locate(const void *arg, const struct fill_piece *p, struct fill_extent extent[2])
{
    const struct ckpt *c = arg;
    const struct slot *s = p->slot;
    if (s->kind != SLOT_MATRIX || s->k != s->k_whole)
        return false;
    uint64_t row = (uint64_t)(s->row + p->row);
    size_t n = (size_t)p->n_row;
    extent[0] = extent_of(c, s->source.weight, row, n, weight_row_bytes(s->weight->type, s->k));
    extent[1] = (struct fill_extent){0};
    if (s->weight->type == WEIGHT_NVFP4)
        extent[1] = extent_of(c, s->source.scale, row, n, (size_t)s->k / FP4_GROUP);
    return true;
}

static enum nyb_code check(const void *arg, const struct fill_piece *p, struct nyb_err *err)
{
    return p->slot->weight->type == WEIGHT_NVFP4 ? check_scales(p, arg, err) : NYB_OK;
}

struct fill_source fill_from_checkpoint(const struct ckpt *c)
{
    return (struct fill_source){make, c, locate, check};
}
