/* Weights in the tiles of cuBLASLt: made for cases, and their check. */
#include "kernels/checkkern_cuda_tiled.h"

#include <string.h>

#include "fp4/fp4.h"
#include "kernels/cuda/cuda_tiled.h"

static bool pack(struct gpu_case *c, uint8_t *codes_to, uint8_t *scales_to, const uint8_t *codes,
                 const uint8_t *scales, int first, int n_row, int n, int K)
{
    const struct cuda_pack p = {.device = codes_to,
                                .block = scales_to,
                                .codes = codes + (size_t)first * (size_t)K / 2,
                                .scales = scales + (size_t)first * (size_t)K / FP4_GROUP,
                                .rows = CUDA_PACK_TILED,
                                .first = first,
                                .n_row = n_row,
                                .n_whole = n,
                                .K = K};
    if (c->g->plugin->pack(c->g->gpu, &p))
        return true;
    c->failed = true;
    return checkkern_case(c->report, false, "%s", c->g->plugin->error(c->g->gpu));
}

static void *unwritten(struct gpu_case *c, size_t bytes)
{
    uint8_t *poison = arena_alloc(c->g->arena, bytes, 1);
    memset(poison, 0xff, bytes);
    return gpu_case_in(c, poison, bytes);
}

struct gpu_tiled gpu_tiled_put(struct gpu_case *c, int n_matrix, int n, int K, const uint8_t *codes,
                               const uint8_t *block)
{
    struct gpu_tiled m = {.w.type = CUDA_NVFP4_TILED};
    size_t code_bytes = cuda_tiled_code_bytes((size_t)n, (size_t)K),
           scale_bytes = cuda_tiled_scale_bytes((size_t)n, (size_t)K), one = (size_t)n * (size_t)K;
    uint8_t *data = unwritten(c, (size_t)n_matrix * code_bytes),
            *scales = unwritten(c, (size_t)n_matrix * scale_bytes);
    for (int i = 0; i < n_matrix && !c->failed; i++)
        pack(c, data + (size_t)i * code_bytes, scales + (size_t)i * scale_bytes, codes + (size_t)i * one / 2,
             block + (size_t)i * one / FP4_GROUP, 0, n, n, K);
    m.w.data = data;
    m.w.block = scales;
    return m;
}

void gpu_tiled_scales(struct gpu_case *c, struct gpu_tiled *m, int n_matrix)
{
    float *pair = arena_alloc(c->g->arena, 2 * (size_t)n_matrix, sizeof(float));
    for (int i = 0; i < n_matrix; i++) {
        pair[2 * i] = m->global[i] * m->input[i];
        pair[2 * i + 1] = m->input[i];
    }
    m->w.scale = gpu_case_in(c, pair, 2 * (size_t)n_matrix * sizeof(float));
}

struct gpu_tiled gpu_tiled_make(struct gpu_case *c, uint64_t *seed, int n_matrix, int n, int K, float input)
{
    size_t all = (size_t)n_matrix * (size_t)n * (size_t)K;
    uint8_t *codes = arena_alloc(c->g->arena, all / 2, 1),
            *block = arena_alloc(c->g->arena, all / FP4_GROUP, 1);
    float *value = arena_alloc(c->g->arena, all, sizeof(float));
    gpu_case_nvfp4(seed, codes, block, value, all / FP4_GROUP);
    struct gpu_tiled m = gpu_tiled_put(c, n_matrix, n, K, codes, block);
    m.value = value;
    m.global = arena_alloc(c->g->arena, (size_t)n_matrix, sizeof(float));
    m.input = arena_alloc(c->g->arena, (size_t)n_matrix, sizeof(float));
    for (int i = 0; i < n_matrix; i++) {
        m.global[i] = 1.5f + 0.5f * checkkern_float(seed);
        m.input[i] = input * (1.5f + 0.5f * checkkern_float(seed));
    }
    gpu_tiled_scales(c, &m, n_matrix);
    return m;
}

/* Pieces of a matrix, the end before the beginning. Every byte on the device is one of the matrix's or, where
 * NVIDIA's description of the tiles has no element of it, zero. */
static bool tiles_case(const struct checkkern_gpu *g, uint64_t *seed, struct checkkern_report *r)
{
    struct gpu_case c;
    gpu_case_begin(&c, g, r);
    int n = checkkern_int(seed, 1, 300), K = 16 * checkkern_int(seed, 1, 20);
    size_t rows = (size_t)n, blocks = (size_t)K / FP4_GROUP, row_bytes = ((size_t)K + 31) / 32 * 16;
    size_t across = (blocks + 3) / 4, code_bytes = (rows + 15) / 16 * 16 * row_bytes,
           scale_bytes = (rows + 127) / 128 * across * 512;
    uint8_t *codes = arena_alloc(g->arena, rows * blocks * 8, 1),
            *scales = arena_alloc(g->arena, rows * blocks, 1);
    uint8_t *expected = arena_alloc(g->arena, code_bytes + scale_bytes, 1);
    uint8_t *found = arena_alloc(g->arena, code_bytes + scale_bytes, 1);
    memset(expected, 0, code_bytes + scale_bytes);
    for (size_t row = 0; row < rows; row++)
        for (size_t b = 0; b < blocks; b++) {
            uint64_t bits = checkkern_random(seed);
            bool nothing = checkkern_int(seed, 0, 20) == 0; /* zeros under a NaN */
            bits = nothing ? 0x8080808080808080u : bits;
            uint8_t scale = nothing ? 0x7f : (uint8_t)checkkern_int(seed, 0, 0x7e);
            memcpy(codes + (row * blocks + b) * 8, &bits, 8);
            memcpy(expected + row * row_bytes + b * 8, &bits, 8);
            scales[row * blocks + b] = scale;
            size_t tile = row / 128 * across + b / 4, in = row % 32 * 16 + row % 128 / 32 * 4 + b % 4;
            expected[code_bytes + tile * 512 + in] = nothing ? 0 : scale;
        }
    bool ok = checkkern_case(r,
                             code_bytes == cuda_tiled_code_bytes(rows, (size_t)K) &&
                                 scale_bytes == cuda_tiled_scale_bytes(rows, (size_t)K),
                             "%d rows of %d take other sizes", n, K);
    uint8_t *codes_to = unwritten(&c, code_bytes), *scales_to = unwritten(&c, scale_bytes);
    int cut = n > 16 ? 16 * checkkern_int(seed, 1, (n - 1) / 16) : 0;
    ok = ok && !c.failed && pack(&c, codes_to, scales_to, codes, scales, cut, n - cut, n, K) &&
         (cut == 0 || pack(&c, codes_to, scales_to, codes, scales, 0, cut, n, K));
    ok = ok && checkkern_case(r,
                              g->plugin->read(g->gpu, found, codes_to, code_bytes) &&
                                  g->plugin->read(g->gpu, found + code_bytes, scales_to, scale_bytes),
                              "%s", g->plugin->error(g->gpu));
    for (size_t i = 0; i < code_bytes + scale_bytes && ok; i++)
        ok = checkkern_case(r, found[i] == expected[i], "%d rows of %d: byte %zu of %s is 0x%02x, not 0x%02x",
                            n, K, i < code_bytes ? i : i - code_bytes, i < code_bytes ? "codes" : "scales",
                            found[i], expected[i]);
    gpu_case_end(&c);
    return ok;
}

bool checkkern_cuda_tiles(const struct checkkern_gpu *g, struct checkkern_report *r)
{
    uint64_t seed = g->seed;
    bool ok = true;
    for (int i = 0; i < g->rounds && ok; i++)
        ok = tiles_case(g, &seed, r);
    return ok;
}
