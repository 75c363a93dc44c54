#include "kernels/checkkern_cuda_case.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "fp4/fp4.h"
#include "kernels/cuda/cuda_layout.h"
#include "kernels/cuda/cuda_load.h"

#define GUARD 64 /* poisoned floats behind an output */
/* Of the sum of magnitudes: fp32 sums on matrix units, which may truncate, over any K here. */
#define SUM_TOLERANCE 0x1p-16
#define BF16_ROUNDING 0x1p-8

enum nyb_code checkkern_cuda_open(struct checkkern_gpu *g, struct nyb_err *err)
{
    char why[256] = "";
    g->plugin = cuda_load(err);
    if (!g->plugin)
        return NYB_E_UNSUPPORTED;
    g->gpu = g->plugin->open(0, why, sizeof(why));
    if (!g->gpu)
        return err_set(err, NYB_E_UNSUPPORTED, "%s", why);
    g->plugin->info(g->gpu, &g->info);
    return NYB_OK;
}

void checkkern_cuda_close(struct checkkern_gpu *g)
{
    g->plugin->close(g->gpu);
}

/* ---- data ------------------------------------------------------------------------------------------ */

/* NVFP4 rows [n_row][K] as in a checkpoint. */
struct rows {
    uint8_t *codes, *scales;
    float global;
    int n_row, K;
};

/* Scales of all sizes, subnormal ones among them; now and then negative, zero or NaN, the latter over zeros.
 */
static struct rows make_rows(struct arena *a, uint64_t *seed, int n_row, int K)
{
    size_t n_group = (size_t)n_row * (size_t)K / FP4_GROUP;
    struct rows r = {arena_alloc(a, 8 * n_group, 1), arena_alloc(a, n_group, 1),
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

static uint16_t *make_x(struct arena *a, uint64_t *seed, int n)
{
    uint16_t *x = arena_alloc(a, (size_t)n, sizeof(*x));
    for (int i = 0; i < n; i++)
        x[i] = bf16_from_float(checkkern_float(seed) * (checkkern_int(seed, 0, 36) ? 1.0f : 8.0f));
    return x;
}

/* Row r as floats without the global scale. */
static void row_of(const struct rows *w, int r, float *out)
{
    size_t K = (size_t)w->K, at = (size_t)r * K;
    fp4_dequantize_row(out, w->codes + at / 2, w->scales + at / FP4_GROUP, 1.0f, K);
    for (size_t i = 0; i < K; i++)
        if (isnan(out[i]))
            out[i] = 0.0f; /* a NaN scale over zeros */
}

/* ---- running --------------------------------------------------------------------------------------- */

/* Buffers of one case, freed together. */
struct buffers {
    const struct checkkern_gpu *g;
    void *at[16];
    int n;
    bool failed;
};

static void *to_gpu(struct buffers *b, const void *host, size_t bytes)
{
    void *p = b->failed ? NULL : b->g->plugin->alloc(b->g->gpu, bytes + 256);
    b->failed |= !p || (host && !b->g->plugin->write(b->g->gpu, p, host, bytes));
    if (p)
        b->at[b->n++] = p;
    return p;
}

static void release(struct buffers *b)
{
    for (int i = 0; i < b->n; i++)
        b->g->plugin->release(b->g->gpu, b->at[i]);
}

/* Run it twice into poisoned outputs: out [n]. Both must agree to the bit, write all of it and nothing
 * behind. */
static bool run_twice(const struct checkkern_gpu *g, const struct cuda_op *op, float *device, float *out,
                      size_t n, struct checkkern_report *r)
{
    float *poison = arena_alloc(g->arena, (n + GUARD), sizeof(float)),
          *again = arena_alloc(g->arena, (n + GUARD), sizeof(float)),
          *once = arena_alloc(g->arena, (n + GUARD), sizeof(float));
    for (size_t i = 0; i < n + GUARD; i++)
        poison[i] = checkkern_poison();
    size_t scratch;
    if (!g->plugin->scratch(g->gpu, op, 1, &scratch) || !g->plugin->reserve(g->gpu, scratch))
        return checkkern_case(r, false, "%s", g->plugin->error(g->gpu));
    for (int i = 0; i < 2; i++) {
        float *to = i ? again : once;
        if (!g->plugin->write(g->gpu, device, poison, (n + GUARD) * sizeof(float)) ||
            !g->plugin->run(g->gpu, op, 1) ||
            !g->plugin->read(g->gpu, to, device, (n + GUARD) * sizeof(float)))
            return checkkern_case(r, false, "%s", g->plugin->error(g->gpu));
    }
    for (size_t i = 0; i < n + GUARD; i++)
        if (checkkern_is_poison(once[i]) != (i >= n))
            return checkkern_case(r, false,
                                  i < n ? "element %zu was not written" : "wrote element %zu, behind", i);
    if (memcmp(once, again, n * sizeof(float)) != 0)
        return checkkern_case(r, false, "two runs differ");
    memcpy(out, once, n * sizeof(float));
    return true;
}

static uint8_t *pack(const struct rows *w, struct arena *a, struct checkkern_report *r)
{
    size_t bad;
    uint8_t *packed = arena_alloc(a, cuda_layout_bytes((size_t)w->n_row, (size_t)w->K), 1);
    if (!cuda_layout_pack(packed, w->codes, w->scales, (size_t)w->n_row, (size_t)w->K, &bad))
        checkkern_case(r, false, "row %zu could not be packed", bad);
    return packed;
}

/* ---- dense ----------------------------------------------------------------------------------------- */

/* out [n_row][w->n_row] of x [n_row][K] on the GPU. */
static bool run_linear(const struct checkkern_gpu *g, const struct rows *w, const uint16_t *x, int n_row,
                       float *out, struct checkkern_report *r)
{
    struct buffers b = {.g = g};
    size_t n = (size_t)n_row * (size_t)w->n_row;
    uint8_t *packed = pack(w, g->arena, r);
    float *y = to_gpu(&b, NULL, (n + GUARD) * sizeof(float));
    const struct cuda_op op = {
        .kind = CUDA_OP_LINEAR,
        .n_row = n_row,
        .as.linear = {.part[0] = {.w = {CUDA_NVFP4_PACKED,
                                        to_gpu(&b, packed, cuda_layout_bytes((size_t)w->n_row, (size_t)w->K)),
                                        NULL, to_gpu(&b, &w->global, sizeof(float))},
                                  .out = y,
                                  .n_out = w->n_row},
                      .n_part = 1,
                      .K = w->K,
                      .x = to_gpu(&b, x, (size_t)n_row * (size_t)w->K * 2)}};
    bool ok =
        b.failed ? checkkern_case(r, false, "%s", g->plugin->error(g->gpu)) : run_twice(g, &op, y, out, n, r);
    release(&b);
    return ok;
}

/* All 126 scales x 16 codes, one product each: equal to the last bit. Row s has scale s + 1 and code i at k =
 * i. */
static bool check_scales(const struct checkkern_gpu *g, struct checkkern_report *r)
{
    enum { N = 126, K = 64, T = 16 };
    uint8_t codes[N * K / 2], scales[N * K / 16];
    uint16_t x[T * K] = {0};
    float out[T * N];
    for (int s = 0; s < N; s++) {
        for (int i = 0; i < K / 2; i++)
            codes[s * K / 2 + i] = (uint8_t)((2 * i % 16) | (2 * i + 1) % 16 << 4);
        memset(scales + s * K / 16, s + 1, K / 16);
    }
    struct rows w = {codes, scales, 1.0f, N, K};
    for (int shift = 0; shift < K; shift += T) { /* each block of 16 once */
        memset(x, 0, sizeof(x));
        for (int t = 0; t < T; t++)
            x[t * K + shift + t] = bf16_from_float(1.0f);
        if (!run_linear(g, &w, x, T, out, r))
            return false;
        for (int t = 0; t < T; t++)
            for (int s = 0; s < N; s++) {
                float expected = fp4_e2m1_value[t] * fp4_e4m3_value[s + 1];
                if (!checkkern_case(r, out[t * N + s] == expected, "scale %d, code %d: %g, expected %g",
                                    s + 1, t, (double)out[t * N + s], (double)expected))
                    return false;
            }
    }
    return true;
}

static bool linear_case(const struct checkkern_gpu *g, uint64_t *seed, int n_row, int n_out, int K,
                        struct checkkern_report *r)
{
    struct rows w = make_rows(g->arena, seed, n_out, K);
    uint16_t *x = make_x(g->arena, seed, n_row * K);
    float *out = arena_alloc(g->arena, (size_t)n_row * (size_t)n_out, sizeof(float)),
          *row = arena_alloc(g->arena, (size_t)K, sizeof(float));
    bool ok = run_linear(g, &w, x, n_row, out, r);
    for (int o = 0; o < n_out && ok; o++) {
        row_of(&w, o, row);
        for (int t = 0; t < n_row && ok; t++) {
            double sum = 0, size = 0;
            for (int k = 0; k < K; k++) {
                double term = (double)row[k] * (double)bf16_to_float(x[t * K + k]) * (double)w.global;
                sum += term;
                size += fabs(term);
            }
            double found = (double)out[t * n_out + o];
            ok = checkkern_near(r, found, sum, size * SUM_TOLERANCE + 1e-30);
            checkkern_case(r, ok, "[%d x %d] x [%d]: row %d, out %d: %g, expected %g", n_out, K, n_row, t, o,
                           found, sum);
        }
    }
    arena_reset(g->arena);
    return ok;
}

static bool check_linear(const struct checkkern_gpu *g, struct checkkern_report *r)
{
    uint64_t seed = g->seed;
    bool ok = linear_case(g, &seed, 32, 1024, 4096, r) && linear_case(g, &seed, 16, 40, 2048, r);
    /* Rows that do not fit in shared memory, eight at a time. */
    ok = ok && linear_case(g, &seed, 8, 40, 12288, r) && linear_case(g, &seed, 1, 40, 10944, r);
    ok = ok && linear_case(g, &seed, 3, 24, 10944, r) && linear_case(g, &seed, 32, 24, 18432, r);
    for (int i = 0; i < g->rounds && ok; i++)
        ok = linear_case(g, &seed, checkkern_int(&seed, 1, i % 4 ? 32 : 300),
                         checkkern_int(&seed, 1, i % 4 ? 600 : 160), 64 * checkkern_int(&seed, 1, 24), r);
    return ok;
}

/* ---- experts --------------------------------------------------------------------------------------- */

struct moe_case {
    int n_row, n_used, n_expert, hidden, inner;
    struct rows gate, up, down; /* experts one after another */
    uint16_t *x;
    int32_t *id;
    float *weight, *scale[3]; /* [n_expert] of gate, up, down */
};

static struct rows expert_of(const struct rows *w, int n_row, int e)
{
    size_t at = (size_t)e * (size_t)n_row * (size_t)w->K;
    struct rows one = {w->codes + at / 2, w->scales + at / FP4_GROUP, w->global, n_row, w->K};
    return one;
}

/* pattern 0: any experts, some of none here; 1: all rows to one expert; 2: distinct ones. */
static void make_moe(struct arena *a, uint64_t *seed, struct moe_case *c, int pattern)
{
    int n_slot = c->n_row * c->n_used, E = c->n_expert;
    c->gate = make_rows(a, seed, E * c->inner, c->hidden);
    c->up = make_rows(a, seed, E * c->inner, c->hidden);
    c->down = make_rows(a, seed, E * c->hidden, c->inner);
    c->x = make_x(a, seed, c->n_row * c->hidden);
    c->id = arena_alloc(a, (size_t)n_slot, sizeof(int32_t));
    c->weight = arena_alloc(a, (size_t)n_slot, sizeof(float));
    for (int i = 0; i < n_slot; i++) {
        c->id[i] = pattern == 1   ? E / 2
                   : pattern == 2 ? (i * 7 + i / c->n_used) % E
                                  : checkkern_int(seed, -1, E - 1);
        c->weight[i] = 0.5f + 0.4f * checkkern_float(seed);
    }
    for (int m = 0; m < 3; m++) {
        c->scale[m] = arena_alloc(a, (size_t)E, sizeof(float));
        for (int e = 0; e < E; e++)
            c->scale[m][e] = 0x1p-8f * (1.2f + checkkern_float(seed));
    }
}

static bool run_moe(const struct checkkern_gpu *g, const struct moe_case *c, float *out,
                    struct checkkern_report *r)
{
    struct buffers b = {.g = g};
    size_t H = (size_t)c->hidden, I = (size_t)c->inner, E = (size_t)c->n_expert, bad;
    size_t pair = cuda_layout_bytes(2 * I, H), one = cuda_layout_bytes(H, I), n = (size_t)c->n_row * H;
    size_t n_slot = (size_t)(c->n_row * c->n_used);
    uint8_t *pairs = arena_alloc(g->arena, E * pair, 1), *downs = arena_alloc(g->arena, E * one, 1);
    for (int e = 0; e < c->n_expert; e++) {
        struct rows gate = expert_of(&c->gate, c->inner, e), up = expert_of(&c->up, c->inner, e),
                    down = expert_of(&c->down, c->hidden, e);
        if (!cuda_layout_pack_pair(pairs + (size_t)e * pair, gate.codes, gate.scales, up.codes, up.scales, I,
                                   H, &bad) ||
            !cuda_layout_pack(downs + (size_t)e * one, down.codes, down.scales, H, I, &bad))
            return checkkern_case(r, false, "expert %d, row %zu could not be packed", e, bad);
    }
    float *y = to_gpu(&b, NULL, (n + GUARD) * sizeof(float));
    struct cuda_moe a = {.gate_up = to_gpu(&b, pairs, E * pair),
                         .down = to_gpu(&b, downs, E * one),
                         .gate_scale = to_gpu(&b, c->scale[0], E * sizeof(float)),
                         .up_scale = to_gpu(&b, c->scale[1], E * sizeof(float)),
                         .down_scale = to_gpu(&b, c->scale[2], E * sizeof(float)),
                         .x = to_gpu(&b, c->x, n * 2),
                         .id = to_gpu(&b, c->id, n_slot * sizeof(int32_t)),
                         .weight = to_gpu(&b, c->weight, n_slot * sizeof(float)),
                         .out = y,
                         .n_used = c->n_used,
                         .n_expert = c->n_expert,
                         .hidden = c->hidden,
                         .inner = c->inner};
    const struct cuda_op op = {.kind = CUDA_OP_MOE, .n_row = c->n_row, .as.moe = a};
    bool ok =
        b.failed ? checkkern_case(r, false, "%s", g->plugin->error(g->gpu)) : run_twice(g, &op, y, out, n, r);
    release(&b);
    return ok;
}

/* Matrices of one expert as floats [n_row][K], and room for one row's neurons. */
struct expert {
    float *gate, *up, *down;
    double *h, *h_error;
};

static void read_matrix(const struct rows *w, int n_row, int e, float *out)
{
    for (int r = 0; r < n_row; r++)
        row_of(w, e * n_row + r, out + (size_t)r * (size_t)w->K);
}

/* sum and the sum of magnitudes of w[k] * x[k] * scale. */
static double dot(const float *w, const uint16_t *x, int K, double scale, double *size)
{
    double sum = 0;
    *size = 0;
    for (int k = 0; k < K; k++) {
        double term = (double)w[k] * (double)bf16_to_float(x[k]);
        sum += term;
        *size += fabs(term);
    }
    *size *= scale;
    return sum * scale;
}

/* What slot `slot` adds to its row of expected [n_row][hidden], and how far off a kernel may be. h is rounded
 * to bf16 there, and what experts add too where rows are many; errors of its sums go through SwiGLU, whose
 * slope is below 1.1 |up| and |silu|. */
static void add_slot(const struct moe_case *c, struct expert *m, int e, int slot, double *expected,
                     double *allowed)
{
    int row = slot / c->n_used, H = c->hidden, I = c->inner;
    const uint16_t *x = c->x + (size_t)row * (size_t)H;
    for (int i = 0; i < I; i++) {
        double gate_size, up_size;
        double gate = dot(m->gate + (size_t)i * (size_t)H, x, H, (double)c->scale[0][e], &gate_size);
        double up = dot(m->up + (size_t)i * (size_t)H, x, H, (double)c->scale[1][e], &up_size);
        double silu = gate / (1.0 + exp(-gate));
        m->h[i] = silu * up;
        m->h_error[i] = BF16_ROUNDING * fabs(silu * up) +
                        2.0 * SUM_TOLERANCE * (fabs(up) * gate_size + (fabs(silu) + gate_size) * up_size);
    }
    double factor = (double)c->scale[2][e] * (double)c->weight[slot];
    for (int o = 0; o < H; o++) {
        const float *w = m->down + (size_t)o * (size_t)I;
        double sum = 0, size = 0;
        for (int i = 0; i < I; i++) {
            sum += (double)w[i] * m->h[i];
            size += fabs((double)w[i]) * (m->h_error[i] + SUM_TOLERANCE * fabs(m->h[i]));
        }
        expected[(size_t)row * (size_t)H + (size_t)o] += sum * factor;
        if (c->n_row > CUDA_ROWS_MAX)
            size += BF16_ROUNDING * fabs(sum);
        allowed[(size_t)row * (size_t)H + (size_t)o] += size * fabs(factor);
    }
}

static bool compare_moe(const struct checkkern_gpu *g, const struct moe_case *c, const float *out,
                        struct checkkern_report *r)
{
    size_t H = (size_t)c->hidden, I = (size_t)c->inner, n = (size_t)c->n_row * H;
    struct expert m = {arena_alloc(g->arena, H * I, sizeof(float)),
                       arena_alloc(g->arena, H * I, sizeof(float)),
                       arena_alloc(g->arena, H * I, sizeof(float)), arena_alloc(g->arena, I, sizeof(double)),
                       arena_alloc(g->arena, I, sizeof(double))};
    double *expected = arena_alloc(g->arena, n, sizeof(double)),
           *allowed = arena_alloc(g->arena, n, sizeof(double));
    memset(expected, 0, n * sizeof(double));
    memset(allowed, 0, n * sizeof(double));
    for (int e = 0; e < c->n_expert; e++) {
        bool there = false;
        for (int slot = 0; slot < c->n_row * c->n_used; slot++) {
            if (c->id[slot] != e)
                continue;
            if (!there) {
                read_matrix(&c->gate, c->inner, e, m.gate);
                read_matrix(&c->up, c->inner, e, m.up);
                read_matrix(&c->down, c->hidden, e, m.down);
            }
            there = true;
            add_slot(c, &m, e, slot, expected, allowed);
        }
    }
    for (size_t i = 0; i < n; i++) {
        bool ok = checkkern_near(r, (double)out[i], expected[i], allowed[i] + 1e-30);
        if (!checkkern_case(r, ok, "%d tokens, %d of %d experts of %d x %d: element %zu: %g, expected %g",
                            c->n_row, c->n_used, c->n_expert, c->hidden, c->inner, i, (double)out[i],
                            expected[i]))
            return false;
    }
    return true;
}

static bool moe_case(const struct checkkern_gpu *g, uint64_t *seed, struct moe_case c, int pattern,
                     struct checkkern_report *r)
{
    make_moe(g->arena, seed, &c, pattern);
    float *out = arena_alloc(g->arena, (size_t)c.n_row * (size_t)c.hidden, sizeof(float));
    bool ok = run_moe(g, &c, out, r) && compare_moe(g, &c, out, r);
    arena_reset(g->arena);
    return ok;
}

static bool check_moe(const struct checkkern_gpu *g, struct checkkern_report *r)
{
    static const struct moe_case real[] = {
        {.n_row = 1, .n_used = 8, .n_expert = 16, .hidden = 2048, .inner = 768},
        {.n_row = 8, .n_used = 4, .n_expert = 9, .hidden = 2560, .inner = 1536},
        {.n_row = 3, .n_used = 8, .n_expert = 8, .hidden = 4096, .inner = 1408},
    };
    uint64_t seed = g->seed;
    bool ok = true;
    for (size_t i = 0; i < COUNT_OF(real) && ok && g->rounds > 4; i++)
        ok = moe_case(g, &seed, real[i], 2, r);
    for (int i = 0; i < g->rounds && ok; i++) {
        struct moe_case c = {.n_row =
                                 i % 2 ? 1 : checkkern_int(&seed, 1, 32), /* one has a kernel of its own */
                             .n_used = checkkern_int(&seed, 1, 8),
                             .n_expert = checkkern_int(&seed, 1, 24),
                             .hidden = 64 * checkkern_int(&seed, 1, 8),
                             .inner = 64 * checkkern_int(&seed, 1, 6)};
        ok = moe_case(g, &seed, c, i % 3, r);
    }
    return ok;
}

/* More rows than the kernel for few takes: sorted by expert, wgmma. */
static bool check_moe_prefill(const struct checkkern_gpu *g, struct checkkern_report *r)
{
    uint64_t seed = g->seed;
    bool ok = true;
    if (g->info.major != 9 && g->info.major != 0)
        return true;
    for (int i = 0; i < g->rounds && ok; i++) {
        struct moe_case c = {.n_row = checkkern_int(&seed, CUDA_ROWS_MAX + 1, 300),
                             .n_used = checkkern_int(&seed, 1, 4),
                             .n_expert = checkkern_int(&seed, 1, 24),
                             .hidden = 64 * checkkern_int(&seed, 1, 6),
                             .inner = 64 * checkkern_int(&seed, 1, 5)};
        ok = moe_case(g, &seed, c, i % 3, r);
    }
    return ok;
}

static const struct checkkern_cuda_row row_table[] = {
    // clang-format off
    {"cuda.scales", check_scales},
    {"cuda.linear.nvfp4", check_linear},
    {"cuda.linear.parts", checkkern_cuda_parts},
    {"cuda.moe.nvfp4", check_moe},
    {"cuda.prefill.nvfp4", check_moe_prefill},
    {"cuda.pack", checkkern_cuda_pack},
    {"cuda.embed", checkkern_cuda_embed},
    {"cuda.norm", checkkern_cuda_add_norm},
    {"cuda.dense", checkkern_cuda_dense},
    {"cuda.qkv", checkkern_cuda_qkv},
    {"cuda.attention", checkkern_cuda_attention},
    {"cuda.router", checkkern_cuda_router},
    {"cuda.moe.plain", checkkern_cuda_moe_plain},
    {"cuda.swiglu", checkkern_cuda_swiglu},
    {"cuda.argmax", checkkern_cuda_argmax},
    {"cuda.sample", checkkern_cuda_sample},
    {"cuda.tiles", checkkern_cuda_tiles},
    {"cuda.quantize", checkkern_cuda_quantize},
    {"cuda.linear.w4a4", checkkern_cuda_linear_w4a4},
    {"cuda.moe.w4a4", checkkern_cuda_moe_w4a4},
    {"cuda.allreduce", checkkern_cuda_all_reduce},
    {"cuda.gather", checkkern_cuda_gather},
    {"cuda.lanes", checkkern_cuda_lanes},
    {"cuda.dispatch", checkkern_cuda_dispatch},
    {"cuda.lost_peer", checkkern_cuda_lost_peer},
    // clang-format on
};

int checkkern_cuda_n_row(void)
{
    return (int)COUNT_OF(row_table);
}

const struct checkkern_cuda_row *checkkern_cuda_row(int i)
{
    return &row_table[i];
}
