/* Checks of the GPU's operators on matrices: products of every type and any number of rows, experts without
 * packed weights, and packing on the device. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "fp4/fp4.h"
#include "kernels/checkkern_cuda_case.h"
#include "kernels/cuda/cuda_layout.h"

/* Of the sum of magnitudes: fp32 sums on matrix units, which may truncate, over any K here. */
#define SUM_TOLERANCE 0x1p-16
#define BF16_ROUNDING 0x1p-8

static const enum cuda_weight_type type_table[] = {CUDA_BF16, CUDA_FP8, CUDA_NVFP4, CUDA_F16, CUDA_F32};

static double dot(const float *w, const float *x, int K, double *size)
{
    double sum = 0;
    *size = 0;
    for (int k = 0; k < K; k++) {
        double term = (double)w[k] * (double)x[k];
        sum += term;
        *size += fabs(term);
    }
    return sum;
}

/* ---- dense ----------------------------------------------------------------------------------------- */

struct dense_case {
    int n_row, n_part, K, n_out[CUDA_PARTS_MAX];
    enum cuda_weight_type type;
    bool x_float, bias;
};

/* Rows of x as floats, as bf16 has them unless `wide`. */
static float *make_x(struct gpu_case *c, uint64_t *seed, size_t n, bool wide, uint16_t **bf16)
{
    float *x = gpu_case_floats(c, seed, n, 1.0f);
    *bf16 = arena_alloc(c->g->arena, n, sizeof(uint16_t));
    for (size_t i = 0; i < n && !wide; i++)
        x[i] = bf16_to_float((*bf16)[i] = bf16_from_float(x[i]));
    return x;
}

static bool run_dense(const struct checkkern_gpu *g, uint64_t *seed, const struct dense_case *s,
                      struct checkkern_report *r)
{
    struct gpu_case c;
    gpu_case_begin(&c, g, r);
    uint16_t *x_bf16;
    int real = checkkern_int(seed, 0, 1) ? s->n_row : checkkern_int(seed, 1, s->n_row);
    size_t n_x = (size_t)s->n_row * (size_t)s->K;
    float *x = make_x(&c, seed, n_x, s->x_float, &x_bf16), *bias[CUDA_PARTS_MAX];
    struct gpu_matrix m[CUDA_PARTS_MAX];
    struct cuda_op op = {.kind = CUDA_OP_LINEAR, .n_row = s->n_row};
    op.count = gpu_case_in(&c, &real, sizeof(real));
    op.as.linear = (struct cuda_linear){.n_part = s->n_part, .K = s->K};
    for (int i = 0; i < s->n_part; i++) {
        m[i] = gpu_case_matrix(&c, seed, s->type, 1, s->n_out[i], s->K);
        bias[i] = gpu_case_floats(&c, seed, (size_t)s->n_out[i], 1.0f);
        struct cuda_linear_part *p = &op.as.linear.part[i];
        p->w = m[i].w;
        p->bias = s->bias ? gpu_case_in(&c, bias[i], (size_t)s->n_out[i] * 4) : NULL;
        p->out = gpu_case_out(&c, (size_t)s->n_row * (size_t)s->n_out[i] * 4);
        p->n_out = s->n_out[i];
    }
    if (s->x_float)
        op.as.linear.x_float = gpu_case_in(&c, x, n_x * 4);
    else
        op.as.linear.x = gpu_case_in(&c, x_bf16, n_x * 2);
    bool ok = gpu_case_run(&c, &op, 1);
    for (int i = 0; i < s->n_part && ok; i++) {
        const float *out = gpu_case_result(&c, op.as.linear.part[i].out);
        int n = s->n_out[i];
        for (int t = 0; t < real * n && ok; t++) {
            double size, by = (double)m[i].scale[0];
            double sum = by * dot(m[i].value + (size_t)(t % n) * (size_t)s->K,
                                  x + (size_t)(t / n) * (size_t)s->K, s->K, &size);
            sum += s->bias ? (double)bias[i][t % n] : 0.0;
            ok = checkkern_near(r, (double)out[t], sum, (size * by + fabs(sum)) * SUM_TOLERANCE + 1e-30);
            checkkern_case(r, ok, "type %d, [%d x %d] x [%d], matrix %d: row %d, out %d: %g, expected %g",
                           (int)s->type, n, s->K, s->n_row, i, t / n, t % n, (double)out[t], sum);
        }
    }
    gpu_case_end(&c);
    return ok;
}

bool checkkern_cuda_dense(const struct checkkern_gpu *g, struct checkkern_report *r)
{
    static const struct dense_case fixed[] = {
        {.n_row = 1, .n_part = 1, .K = 2048, .n_out = {1000}, .type = CUDA_BF16},
        {.n_row = 32, .n_part = 1, .K = 4096, .n_out = {130}, .type = CUDA_BF16}, /* rows in two parts */
        {.n_row = 20, .n_part = 1, .K = 1024, .n_out = {64}, .type = CUDA_FP8},
        {.n_row = 200, .n_part = 2, .K = 96, .n_out = {130, 7}, .type = CUDA_BF16, .bias = true},
        {.n_row = 50, .n_part = 1, .K = 128, .n_out = {40}, .type = CUDA_FP8},
        {.n_row = 70, .n_part = 1, .K = 80, .n_out = {33}, .type = CUDA_F32, .x_float = true},
        {.n_row = 64, .n_part = 1, .K = 1280, .n_out = {70}, .type = CUDA_BF16},
        {.n_row = 140, .n_part = 2, .K = 832, .n_out = {130, 20}, .type = CUDA_BF16, .bias = true},
    };
    /* So wide that tiles are large on a GPU of more than a hundred SMs. */
    static const struct dense_case wide[] = {
        {.n_row = 40, .n_part = 1, .K = 64, .n_out = {33900}, .type = CUDA_BF16},
        {.n_row = 300, .n_part = 1, .K = 448, .n_out = {11300}, .type = CUDA_BF16},
    };
    uint64_t seed = g->seed;
    bool ok = true;
    for (size_t i = 0; i < COUNT_OF(fixed) && ok; i++)
        ok = run_dense(g, &seed, &fixed[i], r);
    for (size_t i = 0; i < COUNT_OF(wide) && g->info.n_sm > 100 && ok; i++)
        ok = run_dense(g, &seed, &wide[i], r);
    for (int i = 0; i < 2 * g->rounds && ok; i++) {
        struct dense_case s = {.n_row = checkkern_int(&seed, 1, i % 4 ? 34 : 140),
                               .n_part = checkkern_int(&seed, 1, CUDA_PARTS_MAX),
                               .K = i % 3 ? 64 * checkkern_int(&seed, 1, 6) : 16 * checkkern_int(&seed, 1, 9),
                               .type = type_table[i % 5],
                               .x_float = checkkern_int(&seed, 0, 3) == 0,
                               .bias = checkkern_int(&seed, 0, 1)};
        for (int p = 0; p < s.n_part; p++)
            s.n_out[p] = checkkern_int(&seed, 1, 150);
        ok = run_dense(g, &seed, &s, r);
    }
    return ok;
}

/* ---- packed, in parts ------------------------------------------------------------------------------ */

/* Three packed matrices, one after the other in memory or with a gap between two, and rows for the kernels of
 * few and of many. */
struct parts_case {
    int n_row, K, n_out[CUDA_PARTS_MAX], gap; /* after the first matrix, in units */
    bool bias;
};

static bool run_parts(const struct checkkern_gpu *g, uint64_t *seed, const struct parts_case *s,
                      struct checkkern_report *r)
{
    struct gpu_case c;
    gpu_case_begin(&c, g, r);
    size_t K = (size_t)s->K, at[CUDA_PARTS_MAX], bytes = 0, n_x = (size_t)s->n_row * K, bad;
    uint16_t *x_bf16;
    float *x = make_x(&c, seed, n_x, false, &x_bf16), *value[CUDA_PARTS_MAX], *bias[CUDA_PARTS_MAX];
    for (int i = 0; i < CUDA_PARTS_MAX; i++) {
        at[i] = bytes;
        bytes += cuda_layout_bytes((size_t)s->n_out[i], K) + (i == 0 ? (size_t)s->gap * CUDA_UNIT_BYTES : 0);
    }
    uint8_t *packed = arena_alloc(g->arena, bytes, 1);
    memset(packed, 0xff, bytes);
    for (int i = 0; i < CUDA_PARTS_MAX; i++) {
        size_t n = (size_t)s->n_out[i], n_group = n * K / FP4_GROUP;
        uint8_t *codes = arena_alloc(g->arena, 8 * n_group, 1), *block = arena_alloc(g->arena, n_group, 1);
        value[i] = arena_alloc(g->arena, n * K, sizeof(float));
        bias[i] = gpu_case_floats(&c, seed, n, 1.0f);
        gpu_case_nvfp4(seed, codes, block, value[i], n_group);
        checkkern_case(r, cuda_layout_pack(packed + at[i], codes, block, n, K, &bad), "row %zu not packed",
                       bad);
    }
    struct cuda_op op = {.kind = CUDA_OP_LINEAR, .n_row = s->n_row};
    op.as.linear =
        (struct cuda_linear){.n_part = CUDA_PARTS_MAX, .K = s->K, .x = gpu_case_in(&c, x_bf16, n_x * 2)};
    const uint8_t *device = gpu_case_in(&c, packed, bytes);
    float scale[CUDA_PARTS_MAX] = {0.5f, 0.75f, 1.25f};
    for (int i = 0; i < CUDA_PARTS_MAX; i++)
        op.as.linear.part[i] = (struct cuda_linear_part){
            .w = {CUDA_NVFP4_PACKED, device + at[i], NULL, gpu_case_f32(&c, scale[i])},
            .bias = s->bias ? gpu_case_in(&c, bias[i], (size_t)s->n_out[i] * 4) : NULL,
            .out = gpu_case_out(&c, (size_t)s->n_row * (size_t)s->n_out[i] * 4),
            .n_out = s->n_out[i]};
    bool ok = gpu_case_run(&c, &op, 1);
    for (int i = 0; i < CUDA_PARTS_MAX && ok; i++) {
        const float *out = gpu_case_result(&c, op.as.linear.part[i].out);
        int n = s->n_out[i];
        for (int t = 0; t < s->n_row * n && ok; t++) {
            double size, sum = dot(value[i] + (size_t)(t % n) * K, x + (size_t)(t / n) * K, s->K, &size);
            sum = sum * (double)scale[i] + (s->bias ? (double)bias[i][t % n] : 0.0);
            ok = checkkern_near(r, (double)out[t], sum, (size + fabs(sum)) * 2.0 * SUM_TOLERANCE + 1e-30);
            checkkern_case(r, ok, "[%d x %d] x [%d], part %d, gap %d: row %d, out %d: %g, expected %g", n,
                           s->K, s->n_row, i, s->gap, t / n, t % n, (double)out[t], sum);
        }
    }
    gpu_case_end(&c);
    return ok;
}

bool checkkern_cuda_parts(const struct checkkern_gpu *g, struct checkkern_report *r)
{
    uint64_t seed = g->seed;
    bool ok = true;
    for (int i = 0; i < g->rounds && ok; i++) {
        struct parts_case s = {.n_row = checkkern_int(&seed, 1, i % 3 ? 32 : 300),
                               .K = 64 * checkkern_int(&seed, 1, 6),
                               .n_out = {16 * checkkern_int(&seed, 1, 12), 16 * checkkern_int(&seed, 1, 4),
                                         checkkern_int(&seed, 1, 70)},
                               .gap = i % 4 == 3,
                               .bias = i % 2};
        s.n_out[1] -= i % 5 == 4 ? 3 : 0; /* then the third begins another matrix */
        ok = run_parts(g, &seed, &s, r);
    }
    return ok;
}

/* ---- experts --------------------------------------------------------------------------------------- */

struct plain_case {
    struct gpu_matrix gate, up, down;
    float *gate_bias, *up_bias, *down_bias, *x, *weight;
    int32_t *id;
    int n_row, n_used, E, H, I;
    bool bias;
};

/* What a slot adds to its row, and how far off that may be. h is rounded to bf16 on the way. */
static void add_slot(const struct plain_case *s, int slot, float *h, double *h_error, double *expected,
                     double *allowed)
{
    int e = s->id[slot], row = slot / s->n_used;
    for (int i = 0; i < s->I; i++) {
        size_t at = (size_t)(e * s->I + i);
        double gate_size, up_size, gate_by = (double)s->gate.scale[e], up_by = (double)s->up.scale[e];
        const float *x = s->x + row * s->H;
        double gate = gate_by * dot(s->gate.value + at * (size_t)s->H, x, s->H, &gate_size);
        double up = up_by * dot(s->up.value + at * (size_t)s->H, x, s->H, &up_size);
        gate += s->bias ? (double)s->gate_bias[at] : 0.0;
        up += s->bias ? (double)s->up_bias[at] : 0.0;
        double silu = gate / (1.0 + exp(-gate));
        h[i] = (float)(silu * up);
        h_error[i] =
            BF16_ROUNDING * fabs(silu * up) +
            2.0 * SUM_TOLERANCE * (fabs(up) * gate_size * gate_by + (fabs(silu) + 1.0) * up_size * up_by);
    }
    for (int o = 0; o < s->H; o++) {
        size_t at = (size_t)(e * s->H + o);
        const float *w = s->down.value + at * (size_t)s->I;
        double size, by = (double)s->down.scale[e], sum = by * dot(w, h, s->I, &size);
        double error = size * by * SUM_TOLERANCE;
        for (int i = 0; i < s->I; i++)
            error += fabs((double)w[i]) * h_error[i] * by;
        sum += s->bias ? (double)s->down_bias[at] : 0.0;
        expected[row * s->H + o] += (double)s->weight[slot] * sum;
        allowed[row * s->H + o] += fabs((double)s->weight[slot]) * (error + fabs(sum) * SUM_TOLERANCE);
    }
}

static bool plain_case(const struct checkkern_gpu *g, uint64_t *seed, int round, struct checkkern_report *r)
{
    struct gpu_case c;
    gpu_case_begin(&c, g, r);
    struct plain_case s = {.n_row = checkkern_int(seed, 1, round % 4 ? 6 : 40),
                           .n_used = checkkern_int(seed, 1, 4),
                           .E = checkkern_int(seed, 1, 6),
                           .H = 16 * checkkern_int(seed, 1, 7),
                           .I = 16 * checkkern_int(seed, 1, 5),
                           .bias = round % 2};
    enum cuda_weight_type type = type_table[round % 5];
    int n_slot = s.n_row * s.n_used, real = checkkern_int(seed, 1, s.n_row);
    size_t E = (size_t)s.E, H = (size_t)s.H, I = (size_t)s.I;
    uint16_t *x_bf16;
    s.gate = gpu_case_matrix(&c, seed, type, s.E, s.I, s.H);
    s.up = gpu_case_matrix(&c, seed, type, s.E, s.I, s.H);
    s.down = gpu_case_matrix(&c, seed, type, s.E, s.H, s.I);
    s.gate_bias = gpu_case_floats(&c, seed, E * I, 1.0f);
    s.up_bias = gpu_case_floats(&c, seed, E * I, 1.0f);
    s.down_bias = gpu_case_floats(&c, seed, E * H, 1.0f);
    s.x = make_x(&c, seed, (size_t)s.n_row * H, false, &x_bf16);
    s.weight = gpu_case_floats(&c, seed, (size_t)n_slot, 1.0f);
    s.id = arena_alloc(g->arena, (size_t)n_slot, sizeof(int32_t));
    for (int i = 0; i < n_slot; i++)
        s.id[i] = checkkern_int(seed, -1, s.E - 1);
    struct cuda_op op = {.kind = CUDA_OP_MOE_PLAIN, .n_row = s.n_row};
    op.count = gpu_case_in(&c, &real, sizeof(real));
    float *out = gpu_case_out(&c, (size_t)s.n_row * H * 4);
    op.as.moe_plain =
        (struct cuda_moe_plain){.gate = s.gate.w,
                                .up = s.up.w,
                                .down = s.down.w,
                                .gate_bias = s.bias ? gpu_case_in(&c, s.gate_bias, E * I * 4) : NULL,
                                .up_bias = s.bias ? gpu_case_in(&c, s.up_bias, E * I * 4) : NULL,
                                .down_bias = s.bias ? gpu_case_in(&c, s.down_bias, E * H * 4) : NULL,
                                .x = gpu_case_in(&c, x_bf16, (size_t)s.n_row * H * 2),
                                .id = gpu_case_in(&c, s.id, (size_t)n_slot * 4),
                                .weight = gpu_case_in(&c, s.weight, (size_t)n_slot * 4),
                                .out = out,
                                .n_used = s.n_used,
                                .n_expert = s.E,
                                .hidden = s.H,
                                .inner = s.I};
    bool ok = gpu_case_run(&c, &op, 1);
    size_t n = (size_t)real * H;
    double *expected = arena_alloc(g->arena, n, sizeof(double)),
           *allowed = arena_alloc(g->arena, n, sizeof(double)),
           *h_error = arena_alloc(g->arena, I, sizeof(double));
    float *h = arena_alloc(g->arena, I, sizeof(float));
    memset(expected, 0, n * sizeof(double));
    memset(allowed, 0, n * sizeof(double));
    for (int slot = 0; slot < real * s.n_used && ok; slot++)
        if (s.id[slot] >= 0)
            add_slot(&s, slot, h, h_error, expected, allowed);
    ok = ok && gpu_case_near(&c, "experts", gpu_case_result(&c, out), expected, allowed, n);
    gpu_case_end(&c);
    return ok;
}

bool checkkern_cuda_moe_plain(const struct checkkern_gpu *g, struct checkkern_report *r)
{
    uint64_t seed = g->seed;
    bool ok = true;
    for (int i = 0; i < g->rounds && ok; i++)
        ok = plain_case(g, &seed, i, r);
    return ok;
}

/* ---- packing --------------------------------------------------------------------------------------- */

/* Rows of random codes and scales, NaN over zeros and zero among them. */
static void make_rows(uint64_t *seed, uint8_t *codes, uint8_t *scales, size_t n_group)
{
    for (size_t i = 0; i < n_group; i++) {
        uint64_t bits = checkkern_random(seed);
        int kind = checkkern_int(seed, 0, 20);
        scales[i] = kind == 0 ? 0 : kind == 1 ? 0x7f : (uint8_t)checkkern_int(seed, 1, 0x7e);
        if (kind == 1)
            bits = 0x8080808080808080u;
        memcpy(codes + 8 * i, &bits, 8);
    }
}

/* The device's bytes in strips equal the host's at once. */
static bool pack_case(const struct checkkern_gpu *g, uint64_t *seed, bool pair, struct checkkern_report *r)
{
    struct gpu_case c;
    gpu_case_begin(&c, g, r);
    size_t n = (size_t)(pair ? 8 * checkkern_int(seed, 1, 14) : checkkern_int(seed, 1, 120)), bad;
    size_t K = (size_t)(64 * checkkern_int(seed, 1, 5)), bytes = cuda_layout_bytes(pair ? 2 * n : n, K);
    uint8_t *codes[2], *scales[2], *expected = arena_alloc(g->arena, bytes, 1),
                                   *found = arena_alloc(g->arena, bytes, 1);
    for (int i = 0; i < 2; i++) {
        codes[i] = arena_alloc(g->arena, n * K / 2, 1);
        scales[i] = arena_alloc(g->arena, n * K / 16, 1);
        make_rows(seed, codes[i], scales[i], n * K / 16);
    }
    bool ok = pair ? cuda_layout_pack_pair(expected, codes[0], scales[0], codes[1], scales[1], n, K, &bad)
                   : cuda_layout_pack(expected, codes[0], scales[0], n, K, &bad);
    uint8_t *device = g->plugin->alloc(g->gpu, bytes);
    ok = checkkern_case(r, ok && device, "%s", g->plugin->error(g->gpu));
    size_t cut = n > 16 ? 16 * (size_t)checkkern_int(seed, 1, (int)(n / 16)) : n;
    for (int part = 0; part < 4 && ok; part++) { /* gate and up, or once; the end before the beginning */
        size_t first = part % 2 ? 0 : cut, end = part % 2 ? cut : n;
        int which = part / 2;
        if (first == end || (which == 1 && !pair))
            continue;
        struct cuda_pack p = {.device = device,
                              .codes = codes[which] + first * K / 2,
                              .scales = scales[which] + first * K / 16,
                              .rows = !pair   ? CUDA_PACK_WHOLE
                                      : which ? CUDA_PACK_UP
                                              : CUDA_PACK_GATE,
                              .first = (int32_t)first,
                              .n_row = (int32_t)(end - first),
                              .n_whole = (int32_t)n,
                              .K = (int32_t)K};
        ok = checkkern_case(r, g->plugin->pack(g->gpu, &p), "%s", g->plugin->error(g->gpu));
    }
    ok = ok &&
         checkkern_case(r, g->plugin->read(g->gpu, found, device, bytes), "%s", g->plugin->error(g->gpu));
    for (size_t i = 0; i < bytes && ok; i++)
        ok = checkkern_case(r, found[i] == expected[i], "%s%zu rows of %zu: byte %zu is 0x%02x, not 0x%02x",
                            pair ? "pair of " : "", n, K, i, found[i], expected[i]);
    g->plugin->release(g->gpu, device);
    gpu_case_end(&c);
    return ok;
}

bool checkkern_cuda_pack(const struct checkkern_gpu *g, struct checkkern_report *r)
{
    uint64_t seed = g->seed;
    bool ok = true;
    for (int i = 0; i < g->rounds && ok; i++)
        ok = pack_case(g, &seed, i % 2, r);
    return ok;
}
