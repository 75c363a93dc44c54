#include "model/logical.h"

#include <string.h>

#include "fp4/fp4.h"
#include "model/device.h"

/* Zero codes, and a zero, wherever the scale is `which`; there are few. */
static void clear_groups(uint8_t *codes, uint8_t *scales, size_t n_group, uint8_t which)
{
    uint8_t *end = scales + n_group, *at = scales;
    while ((at = memchr(at, which, (size_t)(end - at)))) {
        memset(codes + (size_t)(at - scales) * (FP4_GROUP / 2), 0, FP4_GROUP / 2);
        *at++ = 0;
    }
}

void logical_settle(uint8_t *codes, uint8_t *scales, size_t n_group)
{
    fill_settle_signs(codes, scales, n_group);
    clear_groups(codes, scales, n_group, 0x7f);
    clear_groups(codes, scales, n_group, 0);
}

/* From this process's memory. */
static void unpack(const struct fill_piece *p, size_t row_bytes, size_t n_group)
{
    const struct slot *s = p->slot;
    if (s->kind == SLOT_VECTOR) {
        memcpy(p->rows, *s->vector, (size_t)s->n * sizeof(float));
        return;
    }
    for (int i = 0; i < p->n_row; i++)
        weight_read(s->weight, p->row + i, p->rows + (size_t)i * row_bytes,
                    n_group ? p->scales + (size_t)i * n_group : NULL);
}

enum nyb_code logical_read(const struct fill_piece *p, struct nyb_err *err)
{
    const struct slot *s = p->slot;
    bool matrix = s->kind == SLOT_MATRIX;
    size_t n_group = matrix && s->weight->type == WEIGHT_NVFP4 ? (size_t)s->k / FP4_GROUP : 0;
    ASSERT(p->row % WEIGHT_PANEL == 0);
    if (s->place)
        TRY(device_place_read(p, err));
    else
        unpack(p, matrix ? weight_row_bytes(s->weight->type, s->k) : 0, n_group);
    if (n_group)
        logical_settle(p->rows, p->scales, (size_t)p->n_row * n_group);
    return NYB_OK;
}
