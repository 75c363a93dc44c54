/* Checks of layers of experts whose NVFP4 matrices are packed: few rows, and many. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "fp4/fp4.h"
#include "kernels/checkkern_cuda_packed.h"
#include "kernels/cuda/cuda_layout.h"

#define BF16_ROUNDING 0x1p-8

struct moe_case {
    int n_row, n_used, n_expert, hidden, inner;
    int n_shared;                      /* every row's last ones are the last experts */
    struct packed_rows gate, up, down; /* experts one after another */
    uint16_t *x;
    int32_t *id;
    float *weight, *scale[3]; /* [n_expert] of gate, up, down */
};

static struct packed_rows expert_of(const struct packed_rows *w, int n_row, int e)
{
    size_t at = (size_t)e * (size_t)n_row * (size_t)w->K;
    struct packed_rows one = {w->codes + at / 2, w->scales + at / FP4_GROUP, w->global, n_row, w->K};
    return one;
}

/* pattern 0: any experts, some of none here; 1: all rows to one expert; 2: distinct ones. */
static void make_moe(struct arena *a, uint64_t *seed, struct moe_case *c, int pattern)
{
    int n_slot = c->n_row * c->n_used, E = c->n_expert;
    c->gate = packed_rows_make(a, seed, E * c->inner, c->hidden);
    c->up = packed_rows_make(a, seed, E * c->inner, c->hidden);
    c->down = packed_rows_make(a, seed, E * c->hidden, c->inner);
    c->x = packed_x(a, seed, c->n_row * c->hidden);
    c->id = arena_alloc(a, (size_t)n_slot, sizeof(int32_t));
    c->weight = arena_alloc(a, (size_t)n_slot, sizeof(float));
    for (int i = 0; i < n_slot; i++) {
        c->id[i] = pattern == 1   ? E / 2
                   : pattern == 2 ? (i * 7 + i / c->n_used) % E
                                  : checkkern_int(seed, -1, E - 1);
        c->weight[i] = 0.5f + 0.4f * checkkern_float(seed);
        int shared = i % c->n_used - (c->n_used - c->n_shared);
        if (shared >= 0) {
            c->id[i] = E - c->n_shared + shared;
            c->weight[i] = 1.0f;
        }
    }
    for (int m = 0; m < 3; m++) {
        c->scale[m] = arena_alloc(a, (size_t)E, sizeof(float));
        for (int e = 0; e < E; e++)
            c->scale[m][e] = 0x1p-8f * (1.2f + checkkern_float(seed));
    }
}

/* out [n_row][hidden] on the GPU, in memory of the case; NULL: the report says why. */
static const float *run_moe(struct gpu_case *gc, const struct moe_case *c)
{
    size_t H = (size_t)c->hidden, I = (size_t)c->inner, E = (size_t)c->n_expert, bad;
    size_t pair = cuda_layout_bytes(2 * I, H), one = cuda_layout_bytes(H, I), n = (size_t)c->n_row * H;
    size_t n_slot = (size_t)(c->n_row * c->n_used);
    uint8_t *pairs = arena_alloc(gc->g->arena, E * pair, 1), *downs = arena_alloc(gc->g->arena, E * one, 1);
    for (int e = 0; e < c->n_expert; e++) {
        struct packed_rows gate = expert_of(&c->gate, c->inner, e), up = expert_of(&c->up, c->inner, e),
                           down = expert_of(&c->down, c->hidden, e);
        if (!cuda_layout_pack_pair(pairs + (size_t)e * pair, gate.codes, gate.scales, up.codes, up.scales, I,
                                   H, &bad) ||
            !cuda_layout_pack(downs + (size_t)e * one, down.codes, down.scales, H, I, &bad)) {
            checkkern_case(gc->report, false, "expert %d, row %zu could not be packed", e, bad);
            return NULL;
        }
    }
    float *out = gpu_case_out(gc, n * sizeof(float));
    struct cuda_moe a = {.gate_up = gpu_case_in(gc, pairs, E * pair),
                         .down = gpu_case_in(gc, downs, E * one),
                         .gate_scale = gpu_case_in(gc, c->scale[0], E * sizeof(float)),
                         .up_scale = gpu_case_in(gc, c->scale[1], E * sizeof(float)),
                         .down_scale = gpu_case_in(gc, c->scale[2], E * sizeof(float)),
                         .x = gpu_case_in(gc, c->x, n * 2),
                         .id = gpu_case_in(gc, c->id, n_slot * sizeof(int32_t)),
                         .weight = gpu_case_in(gc, c->weight, n_slot * sizeof(float)),
                         .out = out,
                         .n_used = c->n_used,
                         .n_expert = c->n_expert,
                         .hidden = c->hidden,
                         .inner = c->inner,
                         .n_shared = c->n_shared};
    const struct cuda_op op = {.kind = CUDA_OP_MOE, .n_row = c->n_row, .as.moe = a};
    return gpu_case_run(gc, &op, 1) ? gpu_case_result(gc, out) : NULL;
}

/* Matrices of one expert as floats [n_row][K], and room for one row's neurons. */
struct expert {
    float *gate, *up, *down;
    double *h, *h_error;
};

static void read_matrix(const struct packed_rows *w, int n_row, int e, float *out)
{
    for (int r = 0; r < n_row; r++)
        packed_rows_value(w, e * n_row + r, out + (size_t)r * (size_t)w->K);
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
 * to bf16 there, and what experts add too where pairs are many; errors of its sums go through SwiGLU, whose
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
        m->h_error[i] =
            BF16_ROUNDING * fabs(silu * up) +
            2.0 * PACKED_SUM_TOLERANCE * (fabs(up) * gate_size + (fabs(silu) + gate_size) * up_size);
    }
    double factor = (double)c->scale[2][e] * (double)c->weight[slot];
    for (int o = 0; o < H; o++) {
        const float *w = m->down + (size_t)o * (size_t)I;
        double sum = 0, size = 0;
        for (int i = 0; i < I; i++) {
            sum += (double)w[i] * m->h[i];
            size += fabs((double)w[i]) * (m->h_error[i] + PACKED_SUM_TOLERANCE * fabs(m->h[i]));
        }
        expected[(size_t)row * (size_t)H + (size_t)o] += sum * factor;
        if (cuda_moe_is_for_many(c->n_row, c->n_used))
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
        if (!checkkern_case(r, ok,
                            "%d tokens, %d of %d experts (%d are everybody's) of %d x %d: element %zu: %g, "
                            "expected %g",
                            c->n_row, c->n_used, c->n_expert, c->n_shared, c->hidden, c->inner, i,
                            (double)out[i], expected[i]))
            return false;
    }
    return true;
}

static bool moe_case(const struct checkkern_gpu *g, uint64_t *seed, struct moe_case c, int pattern,
                     struct checkkern_report *r)
{
    struct gpu_case gc;
    gpu_case_begin(&gc, g, r);
    make_moe(g->arena, seed, &c, pattern);
    const float *out = run_moe(&gc, &c);
    bool ok = out && compare_moe(g, &c, out, r);
    gpu_case_end(&gc);
    return ok;
}

/* In every other case one or two more experts that all rows take. */
static void share_some(struct moe_case *c, uint64_t *seed)
{
    c->n_shared = checkkern_int(seed, 0, 1) * checkkern_int(seed, 1, 2);
    c->n_used += c->n_shared;
    c->n_expert += c->n_shared;
}

bool checkkern_cuda_moe(const struct checkkern_gpu *g, struct checkkern_report *r)
{
    static const struct moe_case real[] = {
        {.n_row = 1, .n_used = 8, .n_expert = 16, .hidden = 2048, .inner = 768},
        {.n_row = 8, .n_used = 4, .n_expert = 9, .hidden = 2560, .inner = 1536},
        {.n_row = 3, .n_used = 8, .n_expert = 8, .hidden = 4096, .inner = 1408},
        {.n_row = 64, .n_used = 8, .n_expert = 96, .hidden = 128, .inner = 64}, /* its most pairs */
        {.n_row = 2,
         .n_used = 2,
         .n_expert = 3,
         .hidden = 5120,
         .inner = 128}, /* too wide for the long ring */
        {.n_row = 64, .n_used = 1, .n_expert = 11, .hidden = 128, .inner = 8192},
        /* as dense MLPs and shared experts are run */
        {.n_row = 1, .n_used = 1, .n_expert = 1, .hidden = 1280, .inner = 192},
        {.n_row = 24, .n_used = 1, .n_expert = 1, .hidden = 640, .inner = 1536},
        {.n_row = 64, .n_used = 1, .n_expert = 1, .hidden = 640, .inner = 128},
        {.n_row = 40, .n_used = 1, .n_expert = 1, .hidden = 2048, .inner = 1088},
        /* as shared experts are joined to the others */
        {.n_row = 1, .n_used = 9, .n_expert = 17, .hidden = 4096, .inner = 1408, .n_shared = 1},
        {.n_row = 32, .n_used = 9, .n_expert = 60, .hidden = 256, .inner = 128, .n_shared = 1},
    };
    /* More pairs than the kernel for few rows takes, of no more rows; one expert has all rows. */
    static const struct moe_case pairs = {
        .n_row = 64, .n_used = 9, .n_expert = 88, .hidden = 128, .inner = 64, .n_shared = 1};
    /* Rows so long that those of two passes do not fit beside each other. */
    static const struct moe_case wide = {
        .n_row = 32, .n_used = 2, .n_expert = 5, .hidden = 2560, .inner = 64};
    /* An MLP whose gate and up are by wgmma on GPUs of few SMs too, as emulated ones are. */
    static const struct moe_case mlp[] = {
        {.n_row = 40, .n_used = 1, .n_expert = 1, .hidden = 1792, .inner = 640},
        {.n_row = 24, .n_used = 1, .n_expert = 1, .hidden = 1792, .inner = 640},
    };
    uint64_t seed = g->seed;
    bool ok = moe_case(g, &seed, pairs, 0, r) && moe_case(g, &seed, wide, 2, r);
    for (size_t i = 0; i < COUNT_OF(mlp) && ok; i++)
        ok = moe_case(g, &seed, mlp[i], 0, r);
    for (size_t i = 0; i < COUNT_OF(real) && ok && g->rounds > 4; i++)
        ok = moe_case(g, &seed, real[i], 2, r);
    for (int i = 0; i < g->rounds && ok; i++) {
        struct moe_case c = {.n_row =
                                 i % 2 ? 1 : checkkern_int(&seed, 1, 32), /* one has a kernel of its own */
                             .n_used = checkkern_int(&seed, 1, 8),
                             .n_expert = checkkern_int(&seed, 1, 24),
                             .hidden = 64 * checkkern_int(&seed, 1, 8),
                             .inner = 64 * checkkern_int(&seed, 1, 6)};
        share_some(&c, &seed);
        ok = moe_case(g, &seed, c, i % 3, r);
    }
    return ok;
}

/* More rows than the kernel for few takes: sorted by expert, wgmma. */
bool checkkern_cuda_moe_prefill(const struct checkkern_gpu *g, struct checkkern_report *r)
{
    static const struct moe_case dense = {/* as layers without experts are run */
                                          .n_row = 40,
                                          .n_used = 1,
                                          .n_expert = 1,
                                          .hidden = 128,
                                          .inner = 256};
    /* 36, 60 and 90 tokens an expert, for each form of its tiles, of matrices that no form's rows divide. */
    static const struct moe_case form[] = {
        {.n_row = 144, .n_used = 1, .n_expert = 4, .hidden = 320, .inner = 192},
        {.n_row = 120, .n_used = 1, .n_expert = 2, .hidden = 448, .inner = 320},
        {.n_row = 180, .n_used = 1, .n_expert = 2, .hidden = 320, .inner = 64},
    };
    uint64_t seed = g->seed;
    bool ok = true;
    if (g->info.major != 9 && g->info.major != 0)
        return true;
    for (int i = 0; i < 3 && ok; i++)
        ok = moe_case(g, &seed, dense, i, r);
    for (size_t f = 0; f < COUNT_OF(form); f++)
        for (int i = 0; i < 3 && ok; i++)
            ok = moe_case(g, &seed, form[f], i, r);
    for (int i = 0; i < g->rounds && ok; i++) {
        struct moe_case c = {.n_row = checkkern_int(&seed, CUDA_ROWS_MAX + 1, 300),
                             .n_used = checkkern_int(&seed, 1, 4),
                             .n_expert = checkkern_int(&seed, 1, 24),
                             .hidden = 64 * checkkern_int(&seed, 1, 6),
                             .inner = 64 * checkkern_int(&seed, 1, 5)};
        share_some(&c, &seed);
        ok = moe_case(g, &seed, c, i % 3, r);
    }
    return ok;
}
