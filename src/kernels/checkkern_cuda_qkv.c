/* Rows of q, k and v on their way into the cache: many at once, for which the commonest heads have a kernel
 * of their own, and a few at a time leave the same bits. (The few are compared with double precision in
 * checkkern_cuda_attention.c.) */
#include <string.h>

#include "base/mem.h"
#include "kernels/checkkern_cuda_case.h"

enum { AT_ONCE = 64, ROWS_MAX = 200, POS_MAX = 300 };

/* Heads that have it, and some that have not. */
static const struct shape {
    int d, rotary;
    bool interleaved;
} shape_table[] = {
    {128, 128, false}, {128, 64, false}, {64, 64, false}, {128, 128, true}, {128, 64, true},
    {64, 32, true},    {64, 64, true},   {128, 32, true}, {128, 30, false}, {96, 96, false},
};

struct outputs {
    void *q, *k, *v;
};

static struct outputs outputs(struct gpu_case *c, size_t q_bytes, size_t cache_bytes)
{
    return (struct outputs){gpu_case_out(c, q_bytes), gpu_case_out(c, cache_bytes),
                            gpu_case_out(c, cache_bytes)};
}

static bool same(struct gpu_case *c, const char *what, const void *many, const void *few, size_t bytes)
{
    const uint8_t *a = gpu_case_result(c, many), *b = gpu_case_result(c, few);
    size_t i = 0;
    while (i < bytes && a[i] == b[i])
        i++;
    return checkkern_case(c->report, i == bytes,
                          "%s of many rows differ from those of few in byte %zu of %zu", what, i, bytes);
}

/* Tokens anywhere in the cache, no two in one place. */
static int32_t *scattered(struct gpu_case *c, uint64_t *seed, int n, int n_slot)
{
    int32_t *slot = arena_alloc(c->g->arena, (size_t)n_slot, sizeof(*slot));
    bool in_order = checkkern_int(seed, 0, 1); /* as a prompt's are */
    for (int i = 0; i < n_slot; i++)
        slot[i] = i;
    for (int i = 0; i < n && !in_order; i++) {
        int other = checkkern_int(seed, i, n_slot - 1);
        int32_t was = slot[i];
        slot[i] = slot[other];
        slot[other] = was;
    }
    return slot;
}

static bool one_case(struct gpu_case *c, uint64_t *seed, int round)
{
    const struct shape s = shape_table[round % (int)COUNT_OF(shape_table)];
    int n_row = checkkern_int(seed, AT_ONCE + 1, ROWS_MAX), real = n_row - checkkern_int(seed, 0, 5);
    int n_head = checkkern_int(seed, 1, 9), n_kv = checkkern_int(seed, 1, 3),
        type = checkkern_int(seed, 0, 2);
    int n_block = (n_row + CUDA_KV_BLOCK - 1) / CUDA_KV_BLOCK + 1, n_slot = n_block * CUDA_KV_BLOCK;
    bool q_float = checkkern_int(seed, 0, 3) == 0;
    size_t rows = (size_t)n_row, d = (size_t)s.d, half = (size_t)s.rotary / 2;
    size_t q_n = rows * (size_t)n_head * d, kv_n = rows * (size_t)n_kv * d, table = POS_MAX * half;
    size_t q_bytes = q_n * (q_float ? 4 : 2), cache = cuda_kv_block_bytes(type, n_kv, s.d) * (size_t)n_block;
    float scale[2] = {0.02f, 0.03f};
    int32_t *pos = arena_alloc(c->g->arena, rows, sizeof(*pos)), *slot = scattered(c, seed, n_row, n_slot);
    for (int t = 0; t < n_row; t++) {
        pos[t] = t < real ? checkkern_int(seed, 0, POS_MAX - 1) : 0x7ffffff;
        slot[t] = t < real ? slot[t] : 0x7ffffff;
    }
    const int norms = checkkern_int(seed, 0, 3);
    const float *q = gpu_case_in(c, gpu_case_floats(c, seed, q_n, 2.0f), q_n * 4);
    const float *k = gpu_case_in(c, gpu_case_floats(c, seed, kv_n, 1.0f), kv_n * 4);
    const float *v = gpu_case_in(c, gpu_case_floats(c, seed, kv_n, 1.0f), kv_n * 4);
    const int32_t *at = gpu_case_in(c, pos, rows * 4), *where = gpu_case_in(c, slot, rows * 4);
    const struct outputs many = outputs(c, q_bytes, cache), few = outputs(c, q_bytes, cache);
    struct cuda_op op[1 + ROWS_MAX / AT_ONCE + 1] = {{.kind = CUDA_OP_QKV, .n_row = n_row}};
    op[0].count = gpu_case_in(c, &real, sizeof(real));
    op[0].as.qkv = (struct cuda_qkv){
        .q = q,
        .k = k,
        .v = v,
        .q_norm = norms & 1 ? gpu_case_in(c, gpu_case_floats(c, seed, d, 1.0f), d * 4) : NULL,
        .k_norm = norms & 2 ? gpu_case_in(c, gpu_case_floats(c, seed, d, 1.0f), d * 4) : NULL,
        .cos = gpu_case_in(c, gpu_case_floats(c, seed, table, 1.0f), table * 4),
        .sin = gpu_case_in(c, gpu_case_floats(c, seed, table, 1.0f), table * 4),
        .pos = at,
        .slot = where,
        .q_out = many.q,
        .q_float = q_float ? many.q : NULL,
        .kv = {.k = many.k,
               .v = many.v,
               .scale = gpu_case_in(c, scale, sizeof(scale)),
               .type = type,
               .n_kv_head = n_kv,
               .head_dim = s.d},
        .n_head = n_head,
        .rotary_dim = s.rotary,
        .interleaved = s.interleaved,
        .eps = 1e-6f};
    int n_op = 1;
    for (int t = 0; t < real; t += AT_ONCE, n_op++) {
        struct cuda_qkv *a = &op[n_op].as.qkv;
        op[n_op] = (struct cuda_op){.kind = CUDA_OP_QKV, .n_row = real - t < AT_ONCE ? real - t : AT_ONCE};
        *a = op[0].as.qkv;
        a->q = q + (size_t)t * (size_t)n_head * d;
        a->k = k + (size_t)t * (size_t)n_kv * d;
        a->v = v + (size_t)t * (size_t)n_kv * d;
        a->pos = at + t;
        a->slot = where + t;
        a->q_out = (uint16_t *)few.q + (size_t)t * (size_t)n_head * d;
        a->q_float = q_float ? (float *)few.q + (size_t)t * (size_t)n_head * d : NULL;
        a->kv.k = few.k;
        a->kv.v = few.v;
    }
    return gpu_case_run(c, op, n_op) && same(c, "queries", many.q, few.q, q_bytes) &&
           same(c, "keys", many.k, few.k, cache) && same(c, "values", many.v, few.v, cache);
}

bool checkkern_cuda_qkv_rows(const struct checkkern_gpu *g, struct checkkern_report *r)
{
    return gpu_cases(g, r, 2 * g->rounds, one_case);
}
