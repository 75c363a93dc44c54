/* Times of the GPU's operators around the experts, in the sizes of a real model. Like the benches of experts,
 * works over several copies of what is read, so that none finds its own in the L2. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/checkkern_cuda.h"
#include "kernels/cuda/cuda_layout.h"

#define N_ROUND   15
#define N_COPY    4                   /* of what is not read but once */
#define COPY_MAX  12                  /* of what is */
#define FAR_BYTES ((size_t)200 << 20) /* of copies together: more than any L2 holds */

struct ops_bench {
    const struct checkkern_gpu *g;
    struct checkkern_bench *out;
    void *at[40];
    int n;
    bool failed;
};

static void *take(struct ops_bench *b, size_t bytes)
{
    void *p = b->failed || b->n == (int)COUNT_OF(b->at) ? NULL : b->g->plugin->alloc(b->g->gpu, bytes);
    b->failed |= !p;
    if (p)
        b->at[b->n++] = p;
    return p;
}

static void release(struct ops_bench *b)
{
    for (int i = 0; i < b->n; i++)
        b->g->plugin->release(b->g->gpu, b->at[i]);
    b->n = 0;
}

/* Numbers from -1 to 1 as bf16: as packed weights are, but every word is two of them. */
static void *take_bf16(struct ops_bench *b, size_t n)
{
    enum { PIECE = 1 << 20 };
    static uint16_t piece[PIECE];
    uint64_t seed = b->g->seed;
    uint8_t *p = take(b, 2 * n);
    for (size_t i = 0; i < PIECE; i++) {
        float f = checkkern_float(&seed);
        uint32_t bits;
        memcpy(&bits, &f, 4);
        piece[i] = (uint16_t)(bits >> 16);
    }
    for (size_t at = 0; at < n && !b->failed; at += PIECE)
        b->failed |=
            !b->g->plugin->write(b->g->gpu, p + 2 * at, piece, 2 * (n - at < PIECE ? n - at : PIECE));
    return p;
}

static void *take_host(struct ops_bench *b, const void *host, size_t bytes)
{
    void *p = take(b, bytes);
    b->failed |= !p || !b->g->plugin->write(b->g->gpu, p, host, bytes);
    return p;
}

static void *take_zero(struct ops_bench *b, size_t bytes)
{
    void *p = take(b, bytes);
    b->failed |= !p || !b->g->plugin->zero(b->g->gpu, p, bytes);
    return p;
}

/* Of something of this size, so that none finds its own in the L2: two at least. */
static int copies_of(size_t bytes)
{
    size_t n = FAR_BYTES / bytes + 2;
    return n < COPY_MAX ? (int)n : COPY_MAX;
}

static float *take_one(struct ops_bench *b)
{
    const float ones[2] = {1.0f, 1.0f};
    return take_host(b, ones, sizeof(ones));
}

static void line(struct ops_bench *b, const struct cuda_op *op, int n_op, const char *name, double bytes,
                 double flops)
{
    double seconds = b->failed ? -1.0 : b->g->plugin->time(b->g->gpu, op, n_op, N_ROUND);
    checkkern_add(b->out, name, seconds, bytes, flops, CHECKKERN_BF16);
    b->failed |= seconds < 0;
}

/* A dense product: bf16 or packed, so many rows. */
static void bench_dense(struct ops_bench *b, enum cuda_weight_type type, int n_out, int K, const int *rows,
                        int n_rows)
{
    size_t bytes = type == CUDA_NVFP4_PACKED ? cuda_layout_bytes((size_t)n_out, (size_t)K)
                                             : 2 * (size_t)n_out * (size_t)K;
    int n_copy = copies_of(bytes), largest = rows[n_rows - 1];
    struct cuda_op op[COPY_MAX] = {{.kind = CUDA_OP_LINEAR}};
    uint8_t *weight = type == CUDA_NVFP4_PACKED ? take(b, (size_t)n_copy * bytes)
                                                : take_bf16(b, (size_t)n_copy * bytes / 2);
    if (type == CUDA_NVFP4_PACKED && !b->failed)
        b->failed |= !b->g->plugin->randomize(b->g->gpu, weight, (size_t)n_copy * bytes, b->g->seed);
    op[0].as.linear =
        (struct cuda_linear){.part[0] = {.w = {(int32_t)type, weight, NULL, take_one(b)},
                                         .out = take(b, (size_t)largest * (size_t)n_out * sizeof(float)),
                                         .n_out = n_out},
                             .n_part = 1,
                             .K = K,
                             .x = take_bf16(b, (size_t)largest * (size_t)K)};
    for (int i = 0; i < n_rows && !b->failed; i++) {
        char name[64];
        for (int c = 0; c < n_copy; c++) {
            op[c] = op[0];
            op[c].n_row = rows[i];
            op[c].as.linear.part[0].w.data = weight + (size_t)c * bytes;
        }
        snprintf(name, sizeof(name), "%s %d x %d, %d row%s", type == CUDA_BF16 ? "bf16" : "linear", n_out, K,
                 rows[i], rows[i] > 1 ? "s" : "");
        line(b, op, n_copy, name, (double)bytes, 2.0 * n_out * K * rows[i]);
    }
    release(b);
}

/* Attention of n_seq sequences of n_key keys, n_ask rows each: 1, or a multiple of the tile. */
static void bench_attention(struct ops_bench *b, int n_head, int n_kv, int d, int type, int n_seq, int n_key,
                            int n_ask)
{
    int n_block = (n_key + CUDA_KV_BLOCK - 1) / CUDA_KV_BLOCK, tiles = n_ask / CUDA_TILE_TOKENS;
    int n_list = n_ask == 1 ? n_seq : n_seq * tiles, zero = 0, n_row = n_seq * n_ask;
    int images = (n_key + CUDA_IMAGE_KEYS - 1) / CUDA_IMAGE_KEYS;
    size_t cache = cuda_kv_block_bytes(type, n_kv, d) * (size_t)(n_seq * n_block);
    int n_copy = copies_of(2 * cache);
    struct cuda_tile *list = mem_alloc((size_t)n_list, sizeof(*list));
    int32_t *pos = mem_alloc((size_t)n_row, 4), *table = mem_alloc((size_t)(n_seq * n_block), 4);
    for (int i = 0; i < n_row; i++)
        pos[i] = n_key - n_ask + i % n_ask;
    for (int i = 0; i < n_seq * n_block; i++)
        table[i] = i % n_seq * n_block + i / n_seq;
    for (int i = 0; i < n_list; i++)
        list[i] = n_ask == 1 ? (struct cuda_tile){i, 1, i, 0}
                             : (struct cuda_tile){i * CUDA_TILE_TOKENS, CUDA_TILE_TOKENS, i / tiles,
                                                  i / tiles * images};
    struct cuda_op op[COPY_MAX] = {{.kind = CUDA_OP_ATTENTION, .n_row = n_row}};
    int32_t *count = take_host(b, &n_list, 4), *none = take_host(b, &zero, 4);
    op[0].as.attention =
        (struct cuda_attention){.q = take_bf16(b, (size_t)(n_row * n_head * d)),
                                .y = take(b, (size_t)(n_row * n_head * d) * 2),
                                .kv = {.scale = take_one(b), .type = type, .n_kv_head = n_kv, .head_dim = d},
                                .pos = take_host(b, pos, (size_t)n_row * 4),
                                .block_table = take_host(b, table, (size_t)(n_seq * n_block) * 4),
                                .stride = take_host(b, &n_block, 4),
                                .single = take_host(b, list, (size_t)n_list * sizeof(*list)),
                                .single_count = n_ask == 1 ? count : none,
                                .tile_count = n_ask == 1 ? none : count,
                                .n_single = n_ask == 1 ? n_list : 0,
                                .n_tile = n_ask == 1 ? 0 : n_list,
                                .n_image = n_ask == 1 ? 0 : n_seq * images,
                                .n_split = (n_key + CUDA_SPLIT_KEYS - 1) / CUDA_SPLIT_KEYS,
                                .n_head = n_head,
                                .scale = 0.1f};
    op[0].as.attention.tile = op[0].as.attention.single;
    free(list);
    free(pos);
    free(table);
    for (int c = 0; c < n_copy; c++) {
        op[c] = op[0];
        op[c].as.attention.kv.k = take_bf16(b, cache / 2);
        op[c].as.attention.kv.v = take_bf16(b, cache / 2);
    }
    double pairs = n_ask == 1 ? (double)n_key : (double)n_ask * (n_key - 0.5 * n_ask);
    char name[64];
    snprintf(name, sizeof(name), "attention %s %d/%d x %d, %d x %d of %d",
             type == CUDA_KV_FP8 ? "fp8" : "bf16", n_head, n_kv, d, n_seq, n_ask, n_key);
    line(b, op, n_copy, name, 2.0 * (double)cache, 4.0 * n_seq * pairs * n_head * d);
    release(b);
}

/* Tokens of one sequence, from its beginning. */
static void bench_qkv(struct ops_bench *b, int n_head, int n_kv, int d, int rotary, int type, int n_row)
{
    size_t rows = (size_t)n_row, q = rows * (size_t)(n_head * d), kv = rows * (size_t)(n_kv * d);
    size_t half = (size_t)rotary / 2, cache = cuda_kv_block_bytes(type, n_kv, d) * (rows / CUDA_KV_BLOCK + 1);
    struct cuda_op op[N_COPY] = {{.kind = CUDA_OP_QKV, .n_row = n_row}};
    int32_t *at = mem_alloc(rows, sizeof(*at));
    for (int i = 0; i < n_row; i++)
        at[i] = i;
    op[0].as.qkv = (struct cuda_qkv){.q = take_zero(b, q * 4),
                                     .k = take_zero(b, kv * 4),
                                     .v = take_zero(b, kv * 4),
                                     .q_norm = take_zero(b, (size_t)d * 4),
                                     .k_norm = take_zero(b, (size_t)d * 4),
                                     .cos = take_zero(b, rows * half * 4),
                                     .sin = take_zero(b, rows * half * 4),
                                     .pos = take_host(b, at, rows * 4),
                                     .slot = take_host(b, at, rows * 4),
                                     .q_out = take(b, q * 2),
                                     .kv = {.k = take(b, cache),
                                            .v = take(b, cache),
                                            .scale = take_one(b),
                                            .type = type,
                                            .n_kv_head = n_kv,
                                            .head_dim = d},
                                     .n_head = n_head,
                                     .rotary_dim = rotary,
                                     .eps = 1e-6f};
    free(at);
    for (int c = 1; c < N_COPY; c++)
        op[c] = op[0];
    char name[64];
    snprintf(name, sizeof(name), "rotate, store %s %d/%d x %d, %d rows", type == CUDA_KV_FP8 ? "fp8" : "bf16",
             n_head, n_kv, d, n_row);
    line(b, op, N_COPY, name, 6.0 * (double)q + (type == CUDA_KV_FP8 ? 10.0 : 12.0) * (double)kv, 0.0);
    release(b);
}

static void bench_router(struct ops_bench *b, int n_expert, int K, int n_row)
{
    struct cuda_op op[N_COPY] = {{.kind = CUDA_OP_ROUTER, .n_row = n_row}};
    size_t bytes = 2 * (size_t)n_expert * (size_t)K, n_slot = (size_t)n_row * 8;
    op[0].as.router = (struct cuda_router){.w = {CUDA_BF16, take_bf16(b, bytes / 2), NULL, take_one(b)},
                                           .x = take_zero(b, (size_t)n_row * (size_t)K * 4),
                                           .K = K,
                                           .logits = take(b, (size_t)n_row * (size_t)n_expert * 4),
                                           .normalize = true,
                                           .n_expert = n_expert,
                                           .top_k = 8,
                                           .n_group = 1,
                                           .top_group = 1,
                                           .scaling = 1.0f,
                                           .expert = take(b, n_slot * 4),
                                           .weight = take(b, n_slot * 4)};
    for (int c = 1; c < N_COPY; c++)
        op[c] = op[0];
    char name[64];
    snprintf(name, sizeof(name), "router %d x %d, %d row%s", n_expert, K, n_row, n_row > 1 ? "s" : "");
    line(b, op, N_COPY, name, (double)bytes + 4.0 * n_row * K, 2.0 * n_expert * K * n_row);
    release(b);
}

static void bench_norm(struct ops_bench *b, int n, int n_row)
{
    struct cuda_op op[N_COPY] = {{.kind = CUDA_OP_ADD_NORM, .n_row = n_row}};
    size_t all = (size_t)n_row * (size_t)n;
    op[0].as.add_norm = (struct cuda_add_norm){.residual = take_zero(b, all * 4),
                                               .delta = {take_zero(b, all * 4), NULL},
                                               .weight = take_zero(b, (size_t)n * 4),
                                               .y = take(b, all * 2),
                                               .y_float = take(b, all * 4),
                                               .n = n,
                                               .eps = 1e-6f};
    for (int c = 1; c < N_COPY; c++)
        op[c] = op[0];
    char name[64];
    snprintf(name, sizeof(name), "add, norm %d, %d row%s", n, n_row, n_row > 1 ? "s" : "");
    line(b, op, N_COPY, name, 18.0 * (double)all, 0.0);
    release(b);
}

/* Draws of 151936 logits, in the L2 as the head leaves them. Where weights take the logits' place, the next
 * round draws from those: nearly flat, for which top_p has the most to do. */
static void bench_sample(struct ops_bench *b, const char *what, struct cuda_draw draw, int n_row)
{
    enum { N = 151936 };
    struct cuda_draw *all = mem_alloc((size_t)n_row, sizeof(*all));
    float *x = mem_alloc(N, sizeof(*x)), *there = take(b, (size_t)n_row * N * sizeof(*x));
    uint64_t seed = b->g->seed;
    for (int i = 0; i < N; i++)
        x[i] = 4 * (checkkern_float(&seed) + checkkern_float(&seed));
    for (int t = 0; t < n_row; t++) {
        all[t] = draw;
        all[t].uniform = (t + 0.5) / n_row;
        b->failed = b->failed || !b->g->plugin->write(b->g->gpu, there + (size_t)t * N, x, N * sizeof(*x));
    }
    struct cuda_op op = {.kind = CUDA_OP_SAMPLE, .n_row = n_row};
    op.as.sample = (struct cuda_sample){.x = there,
                                        .draw = take_host(b, all, (size_t)n_row * sizeof(*all)),
                                        .id = take(b, (size_t)n_row * sizeof(int32_t)),
                                        .n = N};
    char name[64];
    snprintf(name, sizeof(name), "sample %d, %s, %d row%s", N, what, n_row, n_row > 1 ? "s" : "");
    line(b, &op, 1, name, (double)n_row * N * sizeof(*x), 0.0);
    free(all);
    free(x);
    release(b);
}

/* Rows as models make them, some dozens of tokens far above the others: written anew for each draw by the
 * operator for embeddings, whose own time is the line before. */
static void bench_sample_peaked(struct ops_bench *b, struct cuda_draw draw, int n_row)
{
    enum { N = 151936, PIECE = 1187, PIECES = N / PIECE, PEAKS = 64 };
    struct cuda_draw *all = mem_alloc((size_t)n_row, sizeof(*all));
    uint16_t *x = mem_alloc(N, sizeof(*x));
    int32_t *piece = mem_alloc((size_t)n_row * PIECES, sizeof(*piece));
    uint64_t seed = b->g->seed;
    for (int i = 0; i < N; i++) {
        float f = i % (N / PEAKS) == 7 ? 16 - 0.15f * (float)(i / (N / PEAKS))
                                       : 2 * (checkkern_float(&seed) + checkkern_float(&seed));
        uint32_t bits;
        memcpy(&bits, &f, sizeof(bits));
        x[i] = (uint16_t)(bits >> 16);
    }
    for (int t = 0; t < n_row; t++) {
        all[t] = draw;
        all[t].uniform = (t + 0.5) / n_row;
        for (int i = 0; i < PIECES; i++)
            piece[t * PIECES + i] = i;
    }
    float *there = take(b, (size_t)n_row * N * sizeof(*there));
    struct cuda_op op[2] = {{.kind = CUDA_OP_EMBED, .n_row = n_row * PIECES},
                            {.kind = CUDA_OP_SAMPLE, .n_row = n_row}};
    op[0].as.embed =
        (struct cuda_embed){.table = {(int32_t)CUDA_BF16, take_host(b, x, N * sizeof(*x)), NULL, take_one(b)},
                            .tok = take_host(b, piece, (size_t)n_row * PIECES * sizeof(*piece)),
                            .residual = there,
                            .vocab = PIECES,
                            .hidden = PIECE};
    op[1].as.sample = (struct cuda_sample){.x = there,
                                           .draw = take_host(b, all, (size_t)n_row * sizeof(*all)),
                                           .id = take(b, (size_t)n_row * sizeof(int32_t)),
                                           .n = N};
    for (int n_op = 1; n_op <= 2; n_op++) {
        char name[64];
        snprintf(name, sizeof(name), "%s %d, top_p, peaked, %d row%s", n_op > 1 ? "write, sample" : "write",
                 N, n_row, n_row > 1 ? "s" : "");
        double seconds = b->failed ? -1.0 : n_op * b->g->plugin->time(b->g->gpu, op, n_op, N_ROUND);
        checkkern_add(b->out, name, seconds, (double)n_row * N * sizeof(*there), 0.0, CHECKKERN_BF16);
        b->failed |= seconds < 0;
    }
    free(all);
    free(x);
    free(piece);
    release(b);
}

static void bench_samples(struct ops_bench *b)
{
    static const int n_row[] = {1, 32, 256};
    const struct cuda_draw likeliest = {.top_p = 1, .wanted = 1},
                           top_k = {.scale = 1, .top_p = 1, .top_k = 50, .wanted = 1},
                           all = {.scale = 1, .top_p = 1, .wanted = 1},
                           top_p = {.scale = 1, .top_p = 0.95f, .wanted = 1};
    for (size_t i = 0; i < COUNT_OF(n_row); i++) {
        bench_sample(b, "likeliest", likeliest, n_row[i]);
        bench_sample(b, "top_k 50", top_k, n_row[i]);
        bench_sample(b, "all", all, n_row[i]);
        bench_sample(b, "top_p", top_p, n_row[i]);
        bench_sample_peaked(b, top_p, n_row[i]);
    }
}

bool checkkern_cuda_bench_ops(const struct checkkern_gpu *g, const char *filter, struct checkkern_bench *out)
{
    static const int few[] = {1, 8, 32}, many[] = {64, 256, 2048, 8192}, asks[] = {1, 8, 32, 64, 256};
    struct ops_bench b = {.g = g, .out = out};
    if (!filter || strstr("cuda.dense", filter)) {
        bench_dense(&b, CUDA_BF16, 151936, 2048, few, COUNT_OF(few));
        bench_dense(&b, CUDA_BF16, 4096, 4096, few, COUNT_OF(few));
        bench_dense(&b, CUDA_BF16, 4096, 4096, many, COUNT_OF(many));
    }
    if (!filter || strstr("cuda.linear.nvfp4", filter)) {
        bench_dense(&b, CUDA_NVFP4_PACKED, 14336, 4096, asks, COUNT_OF(asks));
        bench_dense(&b, CUDA_NVFP4_PACKED, 4096, 12288, few, COUNT_OF(few));
        bench_dense(&b, CUDA_NVFP4_PACKED, 5120, 2048, few, COUNT_OF(few));
        bench_dense(&b, CUDA_NVFP4_PACKED, 5120, 2048, many, COUNT_OF(many));
        bench_dense(&b, CUDA_NVFP4_PACKED, 4096, 12288, many, COUNT_OF(many));
    }
    if (!filter || strstr("cuda.attention", filter)) {
        bench_attention(&b, 32, 4, 128, CUDA_KV_BF16, 1, 2048, 1);
        bench_attention(&b, 32, 4, 128, CUDA_KV_BF16, 1, 32768, 1);
        for (size_t i = 0; i < COUNT_OF(asks); i++) {
            bench_attention(&b, 32, 4, 128, CUDA_KV_BF16, asks[i], 544, 1);
            bench_attention(&b, 32, 4, 128, CUDA_KV_FP8, asks[i], 544, 1);
        }
        bench_attention(&b, 32, 4, 128, CUDA_KV_BF16, 64, 4096, 1);
        bench_attention(&b, 32, 4, 128, CUDA_KV_FP8, 64, 4096, 1);
        bench_attention(&b, 32, 4, 128, CUDA_KV_BF16, 32, 8192, 1);
        bench_attention(&b, 32, 4, 128, CUDA_KV_FP8, 32, 8192, 1);
        bench_attention(&b, 96, 8, 128, CUDA_KV_BF16, 32, 4096, 1);
        bench_attention(&b, 32, 4, 128, CUDA_KV_BF16, 1, 2048, 2048);
        bench_attention(&b, 32, 4, 128, CUDA_KV_BF16, 1, 8192, 8192);
        bench_attention(&b, 32, 4, 128, CUDA_KV_FP8, 1, 8192, 8192);
        bench_attention(&b, 32, 8, 64, CUDA_KV_BF16, 1, 8192, 8192);
        bench_attention(&b, 32, 4, 128, CUDA_KV_BF16, 8, 512, 512);
        bench_attention(&b, 32, 4, 128, CUDA_KV_BF16, 1, 256, 256);
        bench_attention(&b, 32, 4, 128, CUDA_KV_BF16, 8, 64, 64);
        bench_attention(&b, 32, 4, 128, CUDA_KV_BF16, 1, 8192, 64);
    }
    if (!filter || strstr("cuda.qkv", filter)) {
        static const int rows[] = {128, 256, 2048, 8192};
        for (size_t i = 0; i < COUNT_OF(rows); i++)
            bench_qkv(&b, 32, 4, 128, 128, CUDA_KV_BF16, rows[i]);
        bench_qkv(&b, 32, 4, 128, 128, CUDA_KV_FP8, 8192);
        bench_qkv(&b, 96, 8, 128, 64, CUDA_KV_BF16, 2048);
    }
    for (size_t i = 0; i < COUNT_OF(few) && (!filter || strstr("cuda.router", filter)); i++)
        bench_router(&b, 128, 2048, few[i]);
    for (size_t i = 1; i < COUNT_OF(many) && (!filter || strstr("cuda.router", filter)); i++)
        bench_router(&b, 128, 2048, many[i]);
    if (!filter || strstr("cuda.norm", filter)) {
        bench_norm(&b, 2048, 1);
        bench_norm(&b, 2048, 8192);
    }
    if (!filter || strstr("cuda.sample", filter))
        bench_samples(&b);
    return !b.failed;
}
