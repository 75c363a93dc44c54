#include "kernels/weight_layout.h"

#include <string.h>

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

/* ---- NVFP4 ------------------------------------------------------------------------------------- */

static size_t nvfp4_row_bytes(int k)
{
    return (size_t)k / 2;
}

static size_t nvfp4_panel_bytes(int k)
{
    size_t groups = (size_t)k / 16;
    return (groups + 3) / 4 * 64 + groups * NVFP4_GROUP_BYTES;
}

/* Two dwords of nibbles at once: k = 0..7 lowest first to 0, 2, 4, 6, 1, 3, 5, 7 (Hacker's Delight's
 * unshuffle). */
static uint64_t nibbles_deinterleave(uint64_t x)
{
    uint64_t t = (x ^ (x >> 4)) & 0x00f000f000f000f0u;
    x ^= t ^ (t << 4);
    t = (x ^ (x >> 8)) & 0x0000ff000000ff00u;
    return x ^ t ^ (t << 8);
}

static uint64_t nibbles_interleave(uint64_t x)
{
    uint64_t t = (x ^ (x >> 8)) & 0x0000ff000000ff00u;
    x ^= t ^ (t << 8);
    t = (x ^ (x >> 4)) & 0x00f000f000f000f0u;
    return x ^ t ^ (t << 4);
}

static void nvfp4_pack(uint8_t *panel, int k, int n_row, const uint8_t *rows, const uint8_t *scales)
{
    int n_group = k / 16;
    size_t row_bytes = (size_t)k / 2, scale_bytes = (size_t)n_group;
    for (int g = 0; g < n_group; g++) {
        uint8_t *codes = panel + nvfp4_codes_at(g), *scale = panel + nvfp4_scale_at(g);
        if (g % 4 == 0)
            memset(scale, 0, 64);
        if (n_row < WEIGHT_PANEL)
            memset(codes, 0, NVFP4_GROUP_BYTES);
        for (int r = 0; r < n_row; r++) {
            uint64_t x;
            memcpy(&x, rows + (size_t)r * row_bytes + (size_t)g * 8, 8);
            x = nibbles_deinterleave(x);
            uint32_t low = (uint32_t)x, high = (uint32_t)(x >> 32);
            memcpy(codes + 4 * r, &low, 4);
            memcpy(codes + 64 + 4 * r, &high, 4);
            scale[r] = scales[(size_t)r * scale_bytes + (size_t)g];
        }
    }
}

static void nvfp4_unpack(const uint8_t *panel, int k, int row, uint8_t *elements, uint8_t *scales)
{
    for (int g = 0; g < k / 16; g++) {
        const uint8_t *codes = panel + nvfp4_codes_at(g);
        uint32_t low, high;
        memcpy(&low, codes + 4 * row, 4);
        memcpy(&high, codes + 64 + 4 * row, 4);
        uint64_t x = nibbles_interleave((uint64_t)high << 32 | low);
        memcpy(elements + (size_t)g * 8, &x, 8);
        scales[g] = panel[nvfp4_scale_at(g) + (size_t)row];
    }
}

/* ---- FP8 --------------------------------------------------------------------------------------- */

static size_t fp8_row_bytes(int k)
{
    return (size_t)k;
}

static size_t fp8_panel_bytes(int k)
{
    return round_up((size_t)k, 4) * WEIGHT_PANEL;
}

/* Of element (row, i) in a panel. */
static size_t fp8_at(int row, int i)
{
    int in_lane = (i & 2) * 4 + (row & 3) * 2 + (i & 1);
    return (size_t)(i >> 2) * 64 + (size_t)((row >> 2) * 16 + in_lane);
}

static void fp8_pack(uint8_t *panel, int k, int n_row, const uint8_t *rows, const uint8_t *scales)
{
    (void)scales;
    if (n_row < WEIGHT_PANEL || k % 4)
        memset(panel, 0, fp8_panel_bytes(k));
    for (int r = 0; r < n_row; r++) {
        const uint8_t *src = rows + (size_t)r * (size_t)k;
        for (int i = 0; i < k; i++)
            panel[fp8_at(r, i)] = src[i];
    }
}

static void fp8_unpack(const uint8_t *panel, int k, int row, uint8_t *elements, uint8_t *scales)
{
    (void)scales;
    for (int i = 0; i < k; i++)
        elements[i] = panel[fp8_at(row, i)];
}

/* ---- BF16 -------------------------------------------------------------------------------------- */

static size_t half_row_bytes(int k)
{
    return (size_t)k * 2;
}

static size_t bf16_panel_bytes(int k)
{
    return round_up((size_t)k, 2) * 2 * WEIGHT_PANEL;
}

static void bf16_pack(uint8_t *panel, int k, int n_row, const uint8_t *rows, const uint8_t *scales)
{
    (void)scales;
    size_t row_bytes = half_row_bytes(k);
    if (n_row < WEIGHT_PANEL || k % 2)
        memset(panel, 0, bf16_panel_bytes(k));
    for (int i = 0; i + 1 < k; i += 2)
        for (int r = 0; r < n_row; r++)
            memcpy(panel + (size_t)i * 32 + (size_t)r * 4, rows + (size_t)r * row_bytes + (size_t)i * 2, 4);
    for (int r = 0; k % 2 && r < n_row; r++)
        memcpy(panel + (size_t)(k - 1) * 32 + (size_t)r * 4, rows + (size_t)(r + 1) * row_bytes - 2, 2);
}

/* Each pair of a row is in a line of its own: more of those are sent for than the hardware does by itself. */
#define PAIRS_AHEAD 24

static void bf16_unpack(const uint8_t *panel, int k, int row, uint8_t *elements, uint8_t *scales)
{
    (void)scales;
    const int n_pair = (k + 1) / 2;
    for (int i = 0; i < PAIRS_AHEAD && i < n_pair; i++)
        __builtin_prefetch(panel + (size_t)i * 64);
    for (int i = 0; i < n_pair; i++) {
        if (i + PAIRS_AHEAD < n_pair)
            __builtin_prefetch(panel + (size_t)(i + PAIRS_AHEAD) * 64);
        memcpy(elements + (size_t)i * 4, panel + (size_t)i * 64 + (size_t)row * 4, 2 * i + 1 < k ? 4 : 2);
    }
}

/* ---- F16 and F32: column by column ------------------------------------------------------------- */

static size_t f16_panel_bytes(int k)
{
    return round_up((size_t)k * 2 * WEIGHT_PANEL, 64);
}

static void f16_pack(uint8_t *panel, int k, int n_row, const uint8_t *rows, const uint8_t *scales)
{
    (void)scales;
    size_t row_bytes = half_row_bytes(k);
    if (n_row < WEIGHT_PANEL || k % 2)
        memset(panel, 0, f16_panel_bytes(k));
    for (int i = 0; i < k; i++)
        for (int r = 0; r < n_row; r++)
            memcpy(panel + (size_t)i * 32 + (size_t)r * 2, rows + (size_t)r * row_bytes + (size_t)i * 2, 2);
}

static void f16_unpack(const uint8_t *panel, int k, int row, uint8_t *elements, uint8_t *scales)
{
    (void)scales;
    for (int i = 0; i < k; i++)
        memcpy(elements + (size_t)i * 2, panel + (size_t)i * 32 + (size_t)row * 2, 2);
}

static size_t f32_row_bytes(int k)
{
    return (size_t)k * 4;
}

static size_t f32_panel_bytes(int k)
{
    return (size_t)k * 4 * WEIGHT_PANEL;
}

static void f32_pack(uint8_t *panel, int k, int n_row, const uint8_t *rows, const uint8_t *scales)
{
    (void)scales;
    size_t row_bytes = f32_row_bytes(k);
    if (n_row < WEIGHT_PANEL)
        memset(panel, 0, f32_panel_bytes(k));
    for (int i = 0; i < k; i++)
        for (int r = 0; r < n_row; r++)
            memcpy(panel + (size_t)i * 64 + (size_t)r * 4, rows + (size_t)r * row_bytes + (size_t)i * 4, 4);
}

static void f32_unpack(const uint8_t *panel, int k, int row, uint8_t *elements, uint8_t *scales)
{
    (void)scales;
    for (int i = 0; i < k; i++)
        memcpy(elements + (size_t)i * 4, panel + (size_t)i * 64 + (size_t)row * 4, 4);
}

const struct weight_layout weight_layout_table[WEIGHT_TYPE_COUNT] = {
    [WEIGHT_NVFP4] = {"nvfp4", nvfp4_row_bytes, nvfp4_panel_bytes, nvfp4_pack, nvfp4_unpack},
    [WEIGHT_FP8] = {"fp8", fp8_row_bytes, fp8_panel_bytes, fp8_pack, fp8_unpack},
    [WEIGHT_BF16] = {"bf16", half_row_bytes, bf16_panel_bytes, bf16_pack, bf16_unpack},
    [WEIGHT_F16] = {"f16", half_row_bytes, f16_panel_bytes, f16_pack, f16_unpack},
    [WEIGHT_F32] = {"f32", f32_row_bytes, f32_panel_bytes, f32_pack, f32_unpack},
};
