/* Times of the plug-in's kernels on the layers of real models. A graph has many works over several copies of
 * the weights, so that none finds its own in the L2. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/checkkern_cuda.h"
#include "kernels/cuda/cuda_layout.h"

#define N_WORK  24
#define N_COPY  3
#define N_ROUND 25
#define READ_MB 4096

struct shape {
    const char *name;
    int n_expert, n_used, hidden, inner;
};

static const struct shape shape_table[] = {
    {"qwen3-30b-a3b", 128, 8, 2048, 768},
    {"glm-4.5-air", 128, 8, 4096, 1408},
    {"ernie-4.5-21b", 64, 6, 2560, 1536},
};
/* Numbers of rows, and how often they are timed. */
struct rows {
    int n, row[8], n_work, n_round;
};
static const struct rows few = {6, {1, 2, 4, 8, 16, 32}, N_WORK, N_ROUND};
static const struct rows many = {7, {64, 128, 256, 512, 1024, 2048, 8192}, 6, 9};

/* Everything on the GPU that a bench of one shape needs. */
struct bench {
    const struct checkkern_gpu *g;
    void *at[8];
    int n;
    bool failed;
};

static void *take(struct bench *b, size_t bytes)
{
    void *p = b->failed ? NULL : b->g->plugin->alloc(b->g->gpu, bytes);
    b->failed |= !p;
    if (p)
        b->at[b->n++] = p;
    return p;
}

static void release(struct bench *b)
{
    for (int i = 0; i < b->n; i++)
        b->g->plugin->release(b->g->gpu, b->at[i]);
}

static void *take_weights(struct bench *b, size_t bytes)
{
    void *p = take(b, bytes);
    b->failed |= !p || !b->g->plugin->randomize(b->g->gpu, p, bytes, b->g->seed + bytes);
    return p;
}

/* Small values that both kinds of data can share: bf16 x, and float scales and weights. */
static void *take_random(struct bench *b, size_t n, bool bf16)
{
    uint64_t seed = b->g->seed;
    size_t bytes = n * (bf16 ? 2 : 4);
    void *host = mem_alloc(1, bytes), *p = take(b, bytes);
    for (size_t i = 0; i < n; i++) {
        float f = bf16 ? checkkern_float(&seed) : 0.01f * (1.5f + checkkern_float(&seed));
        uint32_t bits;
        memcpy(&bits, &f, 4);
        if (bf16)
            ((uint16_t *)host)[i] = (uint16_t)(bits >> 16);
        else
            ((uint32_t *)host)[i] = bits;
    }
    b->failed |= !p || !b->g->plugin->write(b->g->gpu, p, host, bytes);
    free(host);
    return p;
}

/* id [n_work][n_row][n_used], distinct within a token. Returns the experts in use, on average over the works.
 */
static double route(const struct shape *s, int n_work, int n_row, uint64_t *seed, int32_t *id)
{
    long total = 0;
    for (int w = 0; w < n_work; w++) {
        bool used[CUDA_EXPERTS_MAX] = {false};
        for (int t = 0; t < n_row; t++)
            for (int j = 0; j < s->n_used; j++) {
                int32_t *row = id + (w * n_row + t) * s->n_used, e;
                bool fresh;
                do {
                    e = checkkern_int(seed, 0, s->n_expert - 1);
                    fresh = true;
                    for (int i = 0; i < j; i++)
                        fresh &= row[i] != e;
                } while (!fresh);
                row[j] = e;
                total += !used[e];
                used[e] = true;
            }
    }
    return (double)total / n_work;
}

struct moe_bench {
    uint8_t *gate_up, *down;
    float *scale, *weight, *out;
    uint16_t *x;
    int32_t *id;
};

static void time_moe(const struct checkkern_gpu *g, const struct shape *s, const struct moe_bench *m,
                     const struct rows *rows, int n_row, struct checkkern_bench *out)
{
    struct cuda_op op[N_WORK];
    uint64_t seed = g->seed;
    size_t H = (size_t)s->hidden, I = (size_t)s->inner, E = (size_t)s->n_expert;
    size_t pair = cuda_layout_bytes(2 * I, H), one = cuda_layout_bytes(H, I);
    size_t n_slot = (size_t)(n_row * s->n_used);
    size_t n_id = (size_t)rows->n_work * n_slot;
    int32_t *id = mem_alloc(n_id, sizeof(*id));
    double n_active = route(s, rows->n_work, n_row, &seed, id);
    bool ok = g->plugin->write(g->gpu, m->id, id, n_id * sizeof(*id));
    free(id);
    for (int i = 0; i < rows->n_work; i++) {
        size_t copy = (size_t)(i % N_COPY);
        const struct cuda_moe moe = {.gate_up = m->gate_up + copy * E * pair,
                                     .down = m->down + copy * E * one,
                                     .gate_scale = m->scale,
                                     .up_scale = m->scale,
                                     .down_scale = m->scale,
                                     .x = m->x,
                                     .id = m->id + (size_t)i * n_slot,
                                     .weight = m->weight,
                                     .out = m->out,
                                     .n_used = s->n_used,
                                     .n_expert = s->n_expert,
                                     .hidden = s->hidden,
                                     .inner = s->inner};
        op[i] = (struct cuda_op){.kind = CUDA_OP_MOE, .n_row = n_row, .as.moe = moe};
    }
    double seconds = ok ? g->plugin->time(g->gpu, op, rows->n_work, rows->n_round) : -1.0;
    char name[64];
    snprintf(name, sizeof(name), "moe %s, %d token%s, %.0f experts", s->name, n_row, n_row > 1 ? "s" : "",
             n_active);
    checkkern_add(out, name, seconds, n_active * (double)(pair + one), 6.0 * (double)(H * I * n_slot),
                  CHECKKERN_BF16);
}

static bool bench_moe(const struct checkkern_gpu *g, const struct shape *s, const struct rows *rows,
                      struct checkkern_bench *out)
{
    struct bench b = {.g = g};
    size_t H = (size_t)s->hidden, I = (size_t)s->inner, E = (size_t)s->n_expert;
    size_t largest = (size_t)rows->row[rows->n - 1], n_slot = largest * (size_t)s->n_used;
    struct moe_bench m = {.gate_up = take_weights(&b, N_COPY * E * cuda_layout_bytes(2 * I, H)),
                          .down = take_weights(&b, N_COPY * E * cuda_layout_bytes(H, I)),
                          .scale = take_random(&b, CUDA_EXPERTS_MAX, false),
                          .weight = take_random(&b, n_slot, false),
                          .out = take(&b, largest * H * sizeof(float)),
                          .x = take_random(&b, largest * H, true),
                          .id = take(&b, (size_t)rows->n_work * n_slot * sizeof(int32_t))};
    for (int i = 0; i < rows->n && !b.failed; i++) {
        time_moe(g, s, &m, rows, rows->row[i], out);
        b.failed |= out->line[out->n_line - 1].seconds < 0;
    }
    release(&b);
    return !b.failed;
}

static bool bench_linear(const struct checkkern_gpu *g, int n_out, int K, struct checkkern_bench *out)
{
    struct bench b = {.g = g};
    size_t bytes = cuda_layout_bytes((size_t)n_out, (size_t)K);
    uint8_t *weight = take_weights(&b, N_WORK * bytes);
    struct cuda_linear linear = {
        .part[0] = {.w = {CUDA_NVFP4_PACKED, NULL, NULL, take_random(&b, 1, false)},
                    .out = take(&b, (size_t)CUDA_ROWS_MAX * (size_t)n_out * sizeof(float)),
                    .n_out = n_out},
        .n_part = 1,
        .x = take_random(&b, (size_t)(CUDA_ROWS_MAX * K), true),
        .K = K};
    for (int i = 0; i < few.n && !b.failed; i++) {
        struct cuda_op op[N_WORK];
        for (int j = 0; j < N_WORK; j++) {
            linear.part[0].w.data = weight + (size_t)j * bytes;
            op[j] = (struct cuda_op){.kind = CUDA_OP_LINEAR, .n_row = few.row[i], .as.linear = linear};
        }
        double seconds = g->plugin->time(g->gpu, op, N_WORK, N_ROUND);
        char name[64];
        snprintf(name, sizeof(name), "linear %d x %d, %d row%s", n_out, K, few.row[i],
                 few.row[i] > 1 ? "s" : "");
        checkkern_add(out, name, seconds, (double)bytes, 2.0 * n_out * K * few.row[i], CHECKKERN_BF16);
        b.failed |= seconds < 0;
    }
    release(&b);
    return !b.failed;
}

static bool measure_read(const struct checkkern_gpu *g, struct checkkern_roof *roof)
{
    struct bench b = {.g = g};
    size_t bytes = (size_t)READ_MB << 20;
    void *p = take_weights(&b, bytes - bytes % CUDA_UNIT_BYTES);
    double rate = b.failed ? -1.0 : g->plugin->read_rate(g->gpu, p, bytes - bytes % CUDA_UNIT_BYTES);
    release(&b);
    roof->read_gbs = rate * 1e-9;
    return rate > 0;
}

bool checkkern_cuda_bench(const struct checkkern_gpu *g, const char *filter, struct checkkern_bench *out,
                          struct checkkern_roof *roof, struct nyb_err *err)
{
    bool ok = measure_read(g, roof);
    for (size_t i = 0; i < COUNT_OF(shape_table) && ok; i++)
        if (!filter || strstr("cuda.moe.nvfp4", filter))
            ok = bench_moe(g, &shape_table[i], &few, out);
    for (size_t i = 0; i < COUNT_OF(shape_table) && ok; i++)
        if (!filter || strstr("cuda.prefill.nvfp4", filter))
            ok = bench_moe(g, &shape_table[i], &many, out);
    if (ok && (!filter || strstr("cuda.linear.nvfp4", filter)))
        ok = bench_linear(g, 4096, 4096, out) && bench_linear(g, 24576, 4096, out);
    ok = ok && checkkern_cuda_bench_ops(g, filter, out);
    if (!ok)
        err_set(err, NYB_E_UNSUPPORTED, "the GPU's bench stopped: %s", g->plugin->error(g->gpu));
    return ok;
}
