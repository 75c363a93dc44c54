#include "kernels/checkkern_cuda_packed.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "fp4/fp4.h"

struct packed_rows packed_rows_make(struct arena *a, uint64_t *seed, int n_row, int K)
{
    size_t n_group = (size_t)n_row * (size_t)K / FP4_GROUP;
    struct packed_rows r = {arena_alloc(a, 8 * n_group, 1), arena_alloc(a, n_group, 1),
                            0x1p-9f * (1.5f + 0.5f * checkkern_float(seed)), n_row, K};
    for (size_t g = 0; g < n_group; g++) {
        uint64_t bits = checkkern_random(seed);
        memcpy(r.codes + 8 * g, &bits, 8);
        int kind = checkkern_int(seed, 0, 63);
        r.scales[g] = (uint8_t)checkkern_int(seed, kind < 8 ? 1 : 0x28, kind < 16 ? 0x7e : 0x50);
        if (kind == 20)
            r.scales[g] = (uint8_t)(r.scales[g] | 0x80);
        if (kind == 21)
            r.scales[g] = 0;
        if (kind == 22) {
            memset(r.codes + 8 * g, 0x80, 8);
            r.scales[g] = 0x7f;
        }
    }
    return r;
}

uint16_t *packed_x(struct arena *a, uint64_t *seed, int n)
{
    uint16_t *x = arena_alloc(a, (size_t)n, sizeof(*x));
    for (int i = 0; i < n; i++)
        x[i] = bf16_from_float(checkkern_float(seed) * (checkkern_int(seed, 0, 36) ? 1.0f : 8.0f));
    return x;
}

void packed_rows_value(const struct packed_rows *w, int r, float *out)
{
    size_t K = (size_t)w->K, at = (size_t)r * K;
    fp4_dequantize_row(out, w->codes + at / 2, w->scales + at / FP4_GROUP, 1.0f, K);
    for (size_t i = 0; i < K; i++)
        if (isnan(out[i]))
            out[i] = 0.0f; /* a NaN scale over zeros */
}
