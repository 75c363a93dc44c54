#include "kernels/weight.h"

#include <string.h>

#include "base/err.h"
#include "fp4/fp4.h"
#include "kernels/weight_layout.h"
#include "kernels/weight_pack.h"

const char *weight_type_name(enum weight_type t)
{
    return weight_layout_table[t].name;
}

size_t weight_data_bytes(enum weight_type t, int n, int k)
{
    ASSERT(n >= 0 && k >= 0 && (t != WEIGHT_NVFP4 || k % FP4_GROUP == 0));
    size_t panels = ((size_t)n + WEIGHT_PANEL - 1) / WEIGHT_PANEL;
    return panels * weight_layout_table[t].panel_bytes(k);
}

size_t weight_row_bytes(enum weight_type t, int k)
{
    return weight_layout_table[t].row_bytes(k);
}

void weight_write(struct weight *w, int row, int n_row, const uint8_t *rows, const uint8_t *scales)
{
    const struct weight_layout *layout = &weight_layout_table[w->type];
    ASSERT(row >= 0 && n_row >= 0 && n_row <= w->n - row && row % WEIGHT_PANEL == 0);
    ASSERT(n_row % WEIGHT_PANEL == 0 || row + n_row == w->n);
    ASSERT(w->type != WEIGHT_NVFP4 || scales);
    size_t panel_bytes = layout->panel_bytes(w->k), row_bytes = layout->row_bytes(w->k);
    size_t scale_bytes = w->type == WEIGHT_NVFP4 ? (size_t)w->k / FP4_GROUP : 0;
    uint8_t *panel = w->data + (size_t)(row / WEIGHT_PANEL) * panel_bytes;
    weight_pack_fn *pack = weight_pack_for(w->type, cpu_level());
    for (int done = 0; done < n_row; done += WEIGHT_PANEL, panel += panel_bytes) {
        int count = n_row - done < WEIGHT_PANEL ? n_row - done : WEIGHT_PANEL;
        pack(panel, w->k, count, rows + (size_t)done * row_bytes,
             scales ? scales + (size_t)done * scale_bytes : NULL);
    }
}

void weight_read(const struct weight *w, int row, uint8_t *elements, uint8_t *scales)
{
    ASSERT(row >= 0 && row < w->n && (w->type != WEIGHT_NVFP4 || scales));
    const uint8_t *panel = w->data + (size_t)(row / WEIGHT_PANEL) * weight_panel_bytes(w);
    weight_layout_table[w->type].unpack(panel, w->k, row % WEIGHT_PANEL, elements, scales);
}

/* e4m3 as the kernels read a block scale: 0x7f is 480, not NaN. */
static float block_scale(uint8_t byte)
{
    return (byte & 0x7f) == 0x7f ? 480.0f : fp4_e4m3_value[byte];
}

static void nvfp4_row_to_float(const struct weight *w, int row, float *dst)
{
    const uint8_t *panel = w->data + (size_t)(row / WEIGHT_PANEL) * weight_panel_bytes(w);
    int lane = row % WEIGHT_PANEL;
    for (int g = 0; g < w->k / FP4_GROUP; g++) {
        float scale = block_scale(panel[nvfp4_scale_at(g) + (size_t)lane]);
        for (int i = 0; i < FP4_GROUP; i++) {
            int nibble = (i & 7) / 2 + (i & 1) * 4; /* in the lane of vector i / 8 */
            size_t byte = nvfp4_codes_at(g) + (size_t)(i / 8 * 64 + lane * 4 + nibble / 2);
            float code = fp4_e2m1_value[panel[byte] >> (nibble & 1) * 4 & 15];
            dst[g * FP4_GROUP + i] = code * scale * w->global_scale;
        }
    }
}

/* Elements of one or two bytes, a piece at a time so that no row buffer is needed. */
static float element_to_float(enum weight_type t, const uint8_t *e)
{
    uint16_t half;
    float f;
    switch (t) {
    case WEIGHT_FP8:
        return fp4_e4m3_value[*e];
    case WEIGHT_BF16:
        memcpy(&half, e, 2);
        return bf16_to_float(half);
    case WEIGHT_F16:
        memcpy(&half, e, 2);
        return f16_to_float(half);
    default:
        memcpy(&f, e, 4);
        return f;
    }
}

void weight_row_to_float(const struct weight *w, int row, float *dst)
{
    ASSERT(row >= 0 && row < w->n);
    if (w->type == WEIGHT_NVFP4) {
        nvfp4_row_to_float(w, row, dst);
        return;
    }
    /* Unpack into the tail of dst, where elements are never wider than the floats that replace them in front.
     */
    size_t width = weight_row_bytes(w->type, 1), bytes = (size_t)w->k * width;
    uint8_t *raw = (uint8_t *)dst + ((size_t)w->k * sizeof(*dst) - bytes);
    weight_read(w, row, raw, NULL);
    for (int i = 0; i < w->k; i++)
        dst[i] = element_to_float(w->type, raw + (size_t)i * width) * w->global_scale;
}
