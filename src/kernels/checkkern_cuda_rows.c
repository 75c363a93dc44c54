/* Checks of the GPU's operators on single rows: table, norm, SwiGLU, argmax, router. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "fp4/fp4.h"
#include "kernels/checkkern_cuda_packed.h"
#include "kernels/cuda/cuda_layout.h"
#include "kernels/ops.h"

#define BF16_ROUNDING   0x1p-8
#define ROUNDING        0x1p-20 /* of a few operations in fp32 */
#define WEIGHT_ROUNDING 0x1p-18
#define SUM_ROUNDING    0x1p-18 /* of a sum of a few hundred */

/* n_row rows of which `real` are; the count in the device's memory. */
static int32_t *counted(struct gpu_case *c, uint64_t *seed, int n_row, int *real)
{
    *real = checkkern_int(seed, 0, 3) ? checkkern_int(seed, 1, n_row) : n_row;
    return gpu_case_in(c, real, sizeof(*real));
}

static const enum cuda_weight_type plain_type[] = {CUDA_BF16, CUDA_F32, CUDA_F16, CUDA_FP8, CUDA_NVFP4};

static bool embed_case(const struct checkkern_gpu *g, uint64_t *seed, int round, struct checkkern_report *r)
{
    struct gpu_case c;
    gpu_case_begin(&c, g, r);
    int n_row = checkkern_int(seed, 1, 40), H = 16 * checkkern_int(seed, 1, 20), vocab = 50, real;
    int32_t *count = counted(&c, seed, n_row, &real);
    struct gpu_matrix m = gpu_case_matrix(&c, seed, plain_type[round % 5], 1, vocab, H);
    int32_t *tok = arena_alloc(g->arena, (size_t)n_row, sizeof(*tok));
    for (int t = 0; t < n_row; t++)
        tok[t] = t >= real ? 0x7fffffff : checkkern_int(seed, 0, 9) ? checkkern_int(seed, 0, vocab - 1) : -3;
    float *y = gpu_case_out(&c, (size_t)(n_row * H) * 4);
    struct cuda_op op = {.kind = CUDA_OP_EMBED, .n_row = n_row, .count = count};
    op.as.embed = (struct cuda_embed){m.w, gpu_case_in(&c, tok, (size_t)n_row * 4), y, vocab, H};
    bool ok = gpu_case_run(&c, &op, 1);
    const float *out = gpu_case_result(&c, y);
    for (int i = 0; ok && i < real * H; i++) {
        int row = tok[i / H] < 0 ? 0 : tok[i / H];
        float expected = m.value[row * H + i % H] * m.scale[0];
        ok = checkkern_case(r, out[i] == expected, "row %d of %d, column %d: %g, expected %g", i / H, n_row,
                            i % H, (double)out[i], (double)expected);
    }
    gpu_case_end(&c);
    return ok;
}

bool checkkern_cuda_embed(const struct checkkern_gpu *g, struct checkkern_report *r)
{
    uint64_t seed = g->seed;
    bool ok = true;
    for (int i = 0; i < g->rounds && ok; i++)
        ok = embed_case(g, &seed, i, r);
    return ok;
}

static bool norm_case(const struct checkkern_gpu *g, uint64_t *seed, int round, struct checkkern_report *r)
{
    struct gpu_case c;
    gpu_case_begin(&c, g, r);
    bool alone = round % 4 == 2; /* which has a kernel of its own, up to 4096 */
    int n_row = alone ? 1 : checkkern_int(seed, 1, 20), n_all = n_row + 5, real, n_delta = round % 3;
    int n = alone ? 4 * checkkern_int(seed, 1, 1100) : round % 7 == 6 ? 5120 : checkkern_int(seed, 1, 700);
    int32_t *count = counted(&c, seed, n_row, &real), row[64];
    size_t all = (size_t)n_all * (size_t)n;
    float *residual = gpu_case_floats(&c, seed, all, 2.0f),
          *weight = gpu_case_floats(&c, seed, (size_t)n, 1.0f);
    float *delta[2] = {gpu_case_floats(&c, seed, all, 1.0f), gpu_case_floats(&c, seed, all, 1.0f)};
    bool gather = round % 2, only_float = round % 5 == 4;
    for (int t = 0; t < n_row; t++)
        row[t] = t < real ? checkkern_int(seed, 0, n_all - 1) : -100;
    struct cuda_op op = {.kind = CUDA_OP_ADD_NORM, .n_row = n_row, .count = count};
    struct cuda_add_norm *a = &op.as.add_norm;
    a->residual = gpu_case_in_out(&c, residual, all * 4);
    for (int i = 0; i < n_delta; i++)
        a->delta[i] = gpu_case_in(&c, delta[i], all * 4);
    a->row = gather ? gpu_case_in(&c, row, (size_t)n_row * 4) : NULL;
    a->weight = gpu_case_in(&c, weight, (size_t)n * 4);
    a->y = only_float ? NULL : gpu_case_out(&c, (size_t)(n_row * n) * 2);
    a->y_float = gpu_case_out(&c, (size_t)(n_row * n) * 4);
    a->n = n;
    a->eps = 1e-5f;
    bool ok = gpu_case_run(&c, &op, 1);
    const float *y_float = gpu_case_result(&c, a->y_float), *after = gpu_case_result(&c, a->residual);
    const uint16_t *y = a->y ? gpu_case_result(&c, a->y) : NULL;
    for (int t = 0; t < real && ok; t++) {
        double square = 0;
        float *sum = arena_alloc(g->arena, (size_t)n, sizeof(float));
        for (int i = 0; i < n; i++) {
            size_t from = (size_t)((gather ? row[t] : t) * n + i);
            float d = n_delta == 2 ? delta[1][from] + delta[0][from] : n_delta ? delta[0][from] : 0.0f;
            sum[i] = residual[from] + d;
            square += (double)sum[i] * (double)sum[i];
            ok = ok && checkkern_case(r, after[from] == (gather ? residual[from] : sum[i]),
                                      "residual of row %d, column %d: %g", t, i, (double)after[from]);
        }
        double by = 1.0 / sqrt(square / n + (double)a->eps);
        for (int i = 0; i < n && ok; i++) {
            double expected = (double)sum[i] * by * (double)weight[i],
                   slack = fabs(expected) * ROUNDING + 1e-20;
            double found = (double)y_float[t * n + i];
            ok = checkkern_near(r, found, expected, slack) &&
                 (!y || y[t * n + i] == bf16_from_float(y_float[t * n + i]));
            checkkern_case(r, ok, "row %d of %d, column %d of %d: %g, expected %g", t, n_row, i, n, found,
                           expected);
        }
    }
    gpu_case_end(&c);
    return ok;
}

bool checkkern_cuda_add_norm(const struct checkkern_gpu *g, struct checkkern_report *r)
{
    uint64_t seed = g->seed;
    bool ok = true;
    for (int i = 0; i < g->rounds && ok; i++)
        ok = norm_case(g, &seed, i, r);
    /* what no launch takes is refused before there is one */
    const struct cuda_op long_row = {.kind = CUDA_OP_ADD_NORM, .n_row = 1, .as.add_norm = {.n = 1 << 20}};
    size_t bytes;
    return ok && checkkern_case(r, !g->plugin->scratch(g->gpu, &long_row, 1, &bytes),
                                "a row of 2^20 numbers is not refused");
}

static bool swiglu_case(const struct checkkern_gpu *g, uint64_t *seed, struct checkkern_report *r)
{
    struct gpu_case c;
    gpu_case_begin(&c, g, r);
    int n_row = checkkern_int(seed, 1, 20), n = checkkern_int(seed, 1, 900), real;
    int32_t *count = counted(&c, seed, n_row, &real);
    size_t all = (size_t)(n_row * n);
    float *gate = gpu_case_floats(&c, seed, all, 9.0f), *up = gpu_case_floats(&c, seed, all, 3.0f);
    struct cuda_op op = {.kind = CUDA_OP_SWIGLU, .n_row = n_row, .count = count};
    bool unrounded = checkkern_int(seed, 0, 1); /* in gate's place */
    uint16_t *h = gpu_case_out(&c, all * 2);
    float *gate_there = gpu_case_in_out(&c, gate, all * 4);
    op.as.swiglu = (struct cuda_swiglu){.gate = gate_there,
                                        .up = gpu_case_in(&c, up, all * 4),
                                        .h = h,
                                        .n = n,
                                        .h_float = unrounded ? gate_there : NULL};
    bool ok = gpu_case_run(&c, &op, 1);
    const uint16_t *out = gpu_case_result(&c, h);
    const float *wide = gpu_case_result(&c, gate_there);
    for (int i = 0; i < real * n && ok; i++) {
        double expected = (double)gate[i] / (1.0 + exp(-(double)gate[i])) * (double)up[i];
        double found = unrounded ? (double)wide[i] : (double)bf16_to_float(out[i]);
        ok = checkkern_near(r, found, expected,
                            fabs(expected) * (unrounded ? ROUNDING : BF16_ROUNDING) + 1e-9);
        checkkern_case(r, ok, "element %d: %g, expected %g", i, found, expected);
    }
    gpu_case_end(&c);
    return ok;
}

bool checkkern_cuda_swiglu(const struct checkkern_gpu *g, struct checkkern_report *r)
{
    uint64_t seed = g->seed;
    bool ok = true;
    for (int i = 0; i < g->rounds && ok; i++)
        ok = swiglu_case(g, &seed, r);
    return ok;
}

/* Many equal values, NaN among them, infinities; rows of nothing but NaN. */
static bool argmax_case(const struct checkkern_gpu *g, uint64_t *seed, int round, struct checkkern_report *r)
{
    struct gpu_case c;
    gpu_case_begin(&c, g, r);
    const int most = round % 4 == 0 ? 3 : round % 4 == 1 ? 70000 : 5000; /* 70000: of several blocks each */
    int n_row = checkkern_int(seed, 1, 6), n = checkkern_int(seed, 1, most), real;
    int32_t *count = counted(&c, seed, n_row, &real);
    float *x = arena_alloc(g->arena, (size_t)(n_row * n), sizeof(float));
    for (int i = 0; i < n_row * n; i++) {
        int kind = checkkern_int(seed, 0, 40);
        bool largest = checkkern_int(seed, 0, n / 2) == 0; /* of a few, wherever they are */
        x[i] = kind == 0 || round % 6 == 5 ? NAN
               : kind == 1                 ? -INFINITY
                                           : (float)(largest ? 10 : checkkern_int(seed, -9, 9));
    }
    struct cuda_op op = {.kind = CUDA_OP_ARGMAX, .n_row = n_row, .count = count};
    int32_t *id = gpu_case_out(&c, (size_t)n_row * 4);
    op.as.argmax = (struct cuda_argmax){gpu_case_in(&c, x, (size_t)(n_row * n) * 4), id, n};
    bool ok = gpu_case_run(&c, &op, 1);
    const int32_t *out = gpu_case_result(&c, id);
    for (int t = 0; t < real && ok; t++) {
        int best = -1;
        for (int i = 0; i < n; i++)
            if (!isnan(x[t * n + i]) && (best < 0 || x[t * n + i] > x[t * n + best]))
                best = i;
        best = best < 0 ? 0 : best;
        ok = checkkern_case(r, out[t] == best, "row %d of %d: %d, expected %d", t, n, out[t], best);
    }
    gpu_case_end(&c);
    return ok;
}

bool checkkern_cuda_argmax(const struct checkkern_gpu *g, struct checkkern_report *r)
{
    uint64_t seed = g->seed;
    bool ok = true;
    for (int i = 0; i < g->rounds && ok; i++)
        ok = argmax_case(g, &seed, i, r);
    return ok;
}

/* ---- router ---------------------------------------------------------------------------------------- */

/* Logits against float64; the choice and the weights against the CPU's router on the same logits. */
struct router_case {
    struct cuda_op op;
    struct gpu_matrix m;
    const float *x, *bias; /* one row of x may be zeros, one NaN */
    float size;            /* of x */
    int n_row, real, E, K;
};

/* Whether a router that is joined has a norm before it: then a block may have one expert at most, or rows be
 * longer than a thread's four elements. */
static bool has_norm(int round)
{
    return round % 3 < 2;
}

/* JOINED: of one row, as the launch of its experts takes it; NORMED: of some, between a norm and experts. */
enum router_kind { ALONE, JOINED, NORMED };
static struct router_case make_router(struct gpu_case *c, uint64_t *seed, int round, enum router_kind kind)
{
    const bool joined = kind != ALONE, normed = kind == NORMED;
    int most = normed           ? (round % 8 == 7 ? 9 : 40)
               : joined         ? 1
               : round % 8 == 7 ? 300
               : round % 4 == 3 ? 70
                                : 9;
    struct router_case s = {.n_row = checkkern_int(seed, normed ? 2 : 1, most)};
    const int group = joined ? 1 : 1 + round % 3 * 2;
    const bool is_long = joined && round % 8 == 7, few = joined && has_norm(round) && round % 2 == 0;
    const int most_experts = is_long || few              ? 16
                             : round % 6 == 4 && !joined ? 330
                             : normed && round % 3       ? 128
                                                         : 80;
    s.E = group * checkkern_int(seed, 2, most_experts / group);
    s.K = normed && round % 4 != 2 ? 128 * (is_long ? checkkern_int(seed, 17, 20) : checkkern_int(seed, 1, 5))
          : is_long                ? 64 * checkkern_int(seed, 33, 40)
          : joined                 ? 64 * checkkern_int(seed, 1, 4)
          : round % 8 == 3         ? 32 * checkkern_int(seed, 13, 70)
                                   : 16 * checkkern_int(seed, 1, 12);
    int top_k = checkkern_int(seed, 1, s.E < 8 ? s.E : 8), top_group = checkkern_int(seed, 1, group);
    while (top_k > top_group * (s.E / group))
        top_k--;
    s.op = (struct cuda_op){.kind = CUDA_OP_ROUTER, .n_row = s.n_row};
    s.op.count = counted(c, seed, s.n_row, &s.real);
    s.m = gpu_case_matrix(c, seed, plain_type[round % 2], 1, s.E, s.K);
    /* the largest logits are so far apart that most scores are zero */
    s.size = (joined && round % 4 == 1 ? 300.0f : 2.0f) / sqrtf((float)s.K);
    float *x = gpu_case_floats(c, seed, (size_t)(s.n_row * s.K), s.size);
    for (int k = 0; k < s.K && round % 3 == 0; k++) /* equal logits: the lowest indices win */
        x[k] = 0.0f;
    for (int k = 0; k < s.K && round % 8 == 5; k++) /* no number at all: experts that exist all the same */
        x[(s.real - 1) * s.K + k] = NAN;
    s.x = x;
    s.bias = gpu_case_floats(c, seed, (size_t)s.E, 0.3f);
    int n_shared = few ? 0 : checkkern_int(seed, 0, 3);
    size_t n_slot = (size_t)(s.n_row * (top_k + n_shared));
    uint64_t *zero = arena_alloc(c->g->arena, (size_t)s.E, sizeof(*zero));
    memset(zero, 0, (size_t)s.E * sizeof(*zero));
    s.op.as.router = (struct cuda_router){
        .w = s.m.w,
        .x = gpu_case_in(c, s.x, (size_t)(s.n_row * s.K) * 4),
        .K = s.K,
        .logits = gpu_case_out(c, (size_t)(s.n_row * s.E) * 4),
        .bias = round % 5 > 2 ? gpu_case_in(c, s.bias, (size_t)s.E * 4) : NULL,
        .sigmoid = round % 4 > 1,
        .normalize = round % 3 > 0,
        .softmax_topk = round % 7 == 6,
        .norm_add = round % 2,
        .n_expert = s.E,
        .top_k = top_k,
        .n_group = group,
        .top_group = top_group,
        .norm_min = 1e-3f,
        .scaling = 1.25f,
        .expert = gpu_case_out(c, n_slot * 4),
        .weight = gpu_case_out(c, n_slot * 4),
        .load = gpu_case_in_out(c, zero, (size_t)s.E * sizeof(*zero)),
        .n_shared = n_shared,
    };
    return s;
}

static bool check_logits(struct gpu_case *c, const struct router_case *s, const float *logits)
{
    for (int i = 0; i < s->real * s->E; i++) {
        double sum = 0, size = 0;
        for (int k = 0; k < s->K; k++) {
            double term = (double)s->m.value[i % s->E * s->K + k] * (double)s->x[i / s->E * s->K + k];
            sum += term;
            size += fabs(term);
        }
        double by = (double)s->m.scale[0], found = (double)logits[i];
        bool ok = isnan(sum) ? isnan(found)
                             : checkkern_near(c->report, found, sum * by, size * by * SUM_ROUNDING + 1e-30);
        if (!checkkern_case(c->report, ok, "logit %d: %g, expected %g", i, found, sum * by))
            return false;
    }
    return true;
}

static bool check_choice(struct gpu_case *c, const struct router_case *s)
{
    const struct cuda_router *a = &s->op.as.router;
    const float *weight = gpu_case_result(c, a->weight);
    const int32_t *expert = gpu_case_result(c, a->expert);
    const uint64_t *load = gpu_case_result(c, a->load);
    size_t n_slot = (size_t)(s->n_row * a->top_k);
    int32_t *id = arena_alloc(c->g->arena, n_slot, sizeof(*id));
    float *w = arena_alloc(c->g->arena, n_slot, sizeof(*w));
    struct router_args ref = {.logits = gpu_case_result(c, a->logits),
                              .bias = a->bias ? s->bias : NULL,
                              .score = a->sigmoid ? ROUTER_SIGMOID : ROUTER_SOFTMAX,
                              .m = s->real,
                              .n_expert = a->n_expert,
                              .top_k = a->top_k,
                              .n_group = a->n_group,
                              .top_group = a->top_group,
                              .normalize = a->normalize,
                              .softmax_topk = a->softmax_topk,
                              .norm_min = a->norm_min,
                              .norm_add = a->norm_add,
                              .scaling = a->scaling,
                              .expert = id,
                              .weight = w};
    struct pool *pool;
    struct nyb_err err;
    if (pool_open(&pool, 1, &err))
        return checkkern_case(c->report, false, "no pool for the reference");
    router_ref(pool, &ref);
    pool_close(pool);
    uint64_t *times = arena_alloc(c->g->arena, (size_t)a->n_expert, sizeof(*times));
    memset(times, 0, (size_t)a->n_expert * sizeof(*times));
    int used = a->top_k + a->n_shared;
    for (int i = 0; i < s->n_row * used; i++) {
        int row = i / used, place = i % used, at = row * a->top_k + place;
        bool padding = row >= s->real, shared = place >= a->top_k;
        int e = padding ? -1 : shared ? a->n_expert + place - a->top_k : id[at];
        double expected = padding ? 0.0 : shared ? 1.0 : (double)w[at];
        bool ok = expert[i] == e && (isnan(expected) ? isnan(weight[i])
                                                     : checkkern_near(c->report, (double)weight[i], expected,
                                                                      WEIGHT_ROUNDING * expected));
        if (!padding && !shared)
            times[e]++;
        if (!checkkern_case(c->report, ok, "row %d, place %d: expert %d by %g, expected %d by %g", row, place,
                            expert[i], (double)weight[i], e, expected))
            return false;
    }
    return checkkern_case(c->report, memcmp(times, load, (size_t)a->n_expert * sizeof(*times)) == 0,
                          "choices counted wrongly");
}

static bool router_alone_case(struct gpu_case *c, uint64_t *seed, int round)
{
    struct router_case s = make_router(c, seed, round, ALONE);
    return gpu_case_run(c, &s.op, 1) && check_logits(c, &s, gpu_case_result(c, s.op.as.router.logits)) &&
           check_choice(c, &s);
}

bool checkkern_cuda_router(const struct checkkern_gpu *g, struct checkkern_report *r)
{
    return gpu_cases(g, r, 2 * g->rounds, router_alone_case);
}

/* ---- a router in the launch of its experts --------------------------------------------------------- */

#define CHOSEN_INNER 64

/* Random experts for what the router chooses. NULL scales: none could be packed, as the report says. */
static struct cuda_moe make_experts(struct gpu_case *c, uint64_t *seed, const struct router_case *s)
{
    const struct cuda_router *a = &s->op.as.router;
    size_t H = (size_t)s->K, I = CHOSEN_INNER, E = (size_t)(s->E + a->n_shared), bad;
    size_t pair = cuda_layout_bytes(2 * I, H), one = cuda_layout_bytes(H, I);
    uint8_t *pairs = arena_alloc(c->g->arena, E * pair, 1), *downs = arena_alloc(c->g->arena, E * one, 1);
    for (size_t e = 0; e < E; e++) {
        struct packed_rows gate = packed_rows_make(c->g->arena, seed, CHOSEN_INNER, s->K),
                           up = packed_rows_make(c->g->arena, seed, CHOSEN_INNER, s->K),
                           down = packed_rows_make(c->g->arena, seed, s->K, CHOSEN_INNER);
        if (!cuda_layout_pack_pair(pairs + e * pair, gate.codes, gate.scales, up.codes, up.scales, I, H,
                                   &bad) ||
            !cuda_layout_pack(downs + e * one, down.codes, down.scales, H, I, &bad)) {
            checkkern_case(c->report, false, "expert %zu, row %zu could not be packed", e, bad);
            return (struct cuda_moe){0};
        }
    }
    const float *scale = gpu_case_in(c, gpu_case_floats(c, seed, E, 0x1p-8f), E * sizeof(float));
    return (struct cuda_moe){
        .gate_up = gpu_case_in(c, pairs, E * pair),
        .down = gpu_case_in(c, downs, E * one),
        .gate_scale = scale,
        .up_scale = scale,
        .down_scale = scale,
        .x = gpu_case_in(c, packed_x(c->g->arena, seed, s->n_row * s->K), (size_t)s->n_row * H * 2),
        .id = a->expert,
        .weight = a->weight,
        .out = gpu_case_out(c, (size_t)s->n_row * H * sizeof(float)),
        .n_used = a->top_k + a->n_shared,
        .n_expert = (int32_t)E,
        .hidden = s->K,
        .inner = CHOSEN_INNER,
        .n_shared = a->n_shared};
}

/* The same experts with the same weights, by another kernel it may be: sums in another order, and what is
 * rounded to bf16 between them. */
static bool check_experts(struct gpu_case *c, int n_row, const struct cuda_moe *joined,
                          const struct cuda_moe *apart)
{
    const float *a = gpu_case_result(c, joined->out), *b = gpu_case_result(c, apart->out);
    double size = 0;
    for (int i = 0; i < n_row * joined->hidden; i++)
        size = fmax(size, fabs((double)b[i]));
    for (int i = 0; i < n_row * joined->hidden; i++) {
        bool ok = isnan(b[i]) ? isnan(a[i])
                              : checkkern_near(c->report, (double)a[i], (double)b[i],
                                               2.0 * BF16_ROUNDING * size + 1e-30);
        if (!checkkern_case(c->report, ok, "%d of %d experts, element %d: %g, apart from the router %g",
                            joined->n_used, joined->n_expert, i, (double)a[i], (double)b[i]))
            return false;
    }
    return true;
}

/* A norm whose row the router and the experts take: what it adds up is the router's x, as it was. */
static struct cuda_op make_norm(struct gpu_case *c, uint64_t *seed, int round, const struct router_case *s)
{
    const size_t n = (size_t)(s->n_row * s->K), K = (size_t)s->K;
    struct cuda_op op = {.kind = CUDA_OP_ADD_NORM, .n_row = s->n_row, .count = s->op.count};
    struct cuda_add_norm *a = &op.as.add_norm;
    a->residual = gpu_case_in_out(c, s->x, n * 4);
    for (int i = 0; i < round / 2 % 3; i++)
        a->delta[i] = gpu_case_in(c, s->x, n * 4);
    a->weight = gpu_case_in(c, gpu_case_floats(c, seed, K, s->size), K * 4);
    a->y = gpu_case_out(c, n * 2);
    a->y_float = gpu_case_out(c, n * 4);
    a->n = s->K;
    a->eps = 1e-5f;
    return op;
}

/* The same norm into memory of its own. */
static struct cuda_op norm_apart(struct gpu_case *c, const struct router_case *s, struct cuda_op op)
{
    const size_t n = (size_t)(s->n_row * s->K);
    op.as.add_norm.residual = gpu_case_in_out(c, s->x, n * 4);
    op.as.add_norm.y = gpu_case_out(c, n * 2);
    op.as.add_norm.y_float = gpu_case_out(c, n * 4);
    return op;
}

static bool check_norm(struct gpu_case *c, int n_row, const struct cuda_add_norm *joined,
                       const struct cuda_add_norm *apart)
{
    const size_t n = (size_t)n_row * (size_t)joined->n;
    const void *a[] = {joined->residual, joined->y, joined->y_float},
               *b[] = {apart->residual, apart->y, apart->y_float};
    const size_t bytes[] = {n * 4, n * 2, n * 4};
    for (int i = 0; i < 3; i++)
        if (!checkkern_case(c->report,
                            memcmp(gpu_case_result(c, a[i]), gpu_case_result(c, b[i]), bytes[i]) == 0,
                            "norm of %zu, output %d: other bits than apart", n, i))
            return false;
    return true;
}

static bool chosen_case(struct gpu_case *c, uint64_t *seed, int round)
{
    struct router_case s = make_router(c, seed, round, JOINED);
    struct cuda_moe m = make_experts(c, seed, &s), apart = m;
    if (!m.gate_scale)
        return false;
    struct cuda_op op[5];
    int n = 0;
    if (has_norm(round)) {
        op[1] = make_norm(c, seed, round, &s);
        op[0] = norm_apart(c, &s, op[1]);
        s.op.as.router.x = op[1].as.add_norm.y_float;
        m.x = apart.x = op[1].as.add_norm.y;
        n = 2;
    }
    apart.out = gpu_case_out(c, (size_t)s.K * sizeof(float));
    /* neighbours are one launch */
    op[n] = s.op;
    op[n + 1] = (struct cuda_op){.kind = CUDA_OP_MOE, .n_row = 1, .count = s.op.count, .as.moe = m};
    op[n + 2] = (struct cuda_op){.kind = CUDA_OP_MOE, .n_row = 1, .count = s.op.count, .as.moe = apart};
    bool ok = gpu_case_run(c, op, n + 3);
    if (ok && n > 0) {
        ok = check_norm(c, 1, &op[1].as.add_norm, &op[0].as.add_norm);
        s.x = gpu_case_result(c, s.op.as.router.x);
    }
    return ok && check_logits(c, &s, gpu_case_result(c, s.op.as.router.logits)) && check_choice(c, &s) &&
           check_experts(c, 1, &m, &apart);
}

/* One row: the choice against the CPU's, what its experts give beside a launch of their own, and the norm
 * before, if there is one, as norms alone are. */
bool checkkern_cuda_chosen(const struct checkkern_gpu *g, struct checkkern_report *r)
{
    return gpu_cases(g, r, 6 * g->rounds, chosen_case);
}

/* ---- a norm, the router behind it, and experts that begin early ------------------------------------- */

/* As in a model: behind a product, whose results nobody looks at here, and before the experts. */
static bool normed_case(struct gpu_case *c, uint64_t *seed, int round)
{
    struct router_case s = make_router(c, seed, round, NORMED);
    struct cuda_moe m = make_experts(c, seed, &s), apart = m;
    if (!m.gate_scale)
        return false;
    const int n = s.n_row;
    const struct cuda_linear product = {
        .part[0] = {.w = s.m.w, .out = gpu_case_out(c, (size_t)(n * s.E) * 4), .n_out = s.E},
        .n_part = 1,
        .K = s.K,
        .x_float = s.op.as.router.x};
    struct cuda_op norm = make_norm(c, seed, round, &s);
    s.op.as.router.x = norm.as.add_norm.y_float;
    m.x = apart.x = norm.as.add_norm.y;
    apart.out = gpu_case_out(c, (size_t)(n * s.K) * sizeof(float));
    const struct cuda_op op[] = {norm_apart(c, &s, norm),
                                 {.kind = CUDA_OP_LINEAR, .n_row = n, .as.linear = product},
                                 norm,
                                 s.op,
                                 {.kind = CUDA_OP_MOE, .n_row = n, .count = s.op.count, .as.moe = m},
                                 {.kind = CUDA_OP_MOE, .n_row = n, .count = s.op.count, .as.moe = apart}};
    if (!gpu_case_run(c, op, 6) || !check_norm(c, s.real, &norm.as.add_norm, &op[0].as.add_norm))
        return false;
    s.x = gpu_case_result(c, s.op.as.router.x);
    return check_logits(c, &s, gpu_case_result(c, s.op.as.router.logits)) && check_choice(c, &s) &&
           check_experts(c, n, &m, &apart);
}

/* Some rows: the norm with the bits of norms alone, the choice against the CPU's, and what the experts behind
 * give beside a launch that no router is in front of. */
bool checkkern_cuda_normed(const struct checkkern_gpu *g, struct checkkern_report *r)
{
    return gpu_cases(g, r, 4 * g->rounds, normed_case);
}
