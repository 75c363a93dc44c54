/* Models that are written on the spot, and one sequence through them. */
#ifndef NYB_MODEL_CASE_H
#define NYB_MODEL_CASE_H

#include <math.h>

#include "base/log.h"
#include "fp4/fp4.h"
#include "model/model.h"
#include "unit/ckpt_files.h"

enum { VOCAB = 24, HIDDEN = 32 }; /* of the models whose tensors are written */

static inline void must(enum nyb_code code, const struct nyb_err *err)
{
    if (code != NYB_OK)
        fail_msg("%s: %s", err->where, err->message);
}

static inline struct model *open_model(const char *folder, enum compute compute, enum load_format format)
{
    struct nyb_err err;
    struct model *m;
    const struct model_options o = {.folder = folder,
                                    .load_format = format,
                                    .dummy_seed = 7,
                                    .compute = compute,
                                    .n_thread = 2,
                                    .kv_type = -1};
    must(model_open(&m, &o, &err), &err);
    return m;
}

/* Logits of all n <= 16 positions; caller frees. */
static inline float *run(struct model *m, const int32_t *tok, int n, enum nyb_code want)
{
    struct nyb_err err;
    int32_t row[KV_BLOCK], start[2] = {0, n}, table[1] = {0};
    assert_true(n <= KV_BLOCK);
    for (int i = 0; i < n; i++)
        row[i] = i;
    const struct batch b = {.n_seq = 1,
                            .n_tok = n,
                            .n_block_max = 1,
                            .n_out = n,
                            .tok = tok,
                            .pos = row,
                            .slot = row,
                            .seq_start = start,
                            .block_table = table,
                            .out_row = row};
    float *logits = mem_alloc((size_t)n * (size_t)model_config(m)->vocab, sizeof(float));
    must(model_kv_reserve(m, 1, &err), &err);
    assert_int_equal(model_kv_blocks(m), 1);
    assert_int_equal(model_forward(m, &b, logits, NULL, &err), want);
    return logits;
}

struct matrix {
    double v[64 * 64];
    int n, k;
};

/* A random tensor of that type; the values that were stored come back. */
static inline void put(struct writer *w, struct matrix *m, const char *name, enum dtype type, int n, int k,
                       uint64_t *seed)
{
    uint8_t raw[64 * 64 * 4];
    size_t size = dtype_size(type);
    *m = (struct matrix){.n = n, .k = k};
    for (size_t i = 0; i < (size_t)n * (size_t)(k ? k : 1); i++) {
        float x = 0.4f * test_random_float(seed);
        uint16_t half = type == DTYPE_F16 ? f16_from_float(x) : bf16_from_float(x);
        uint8_t byte = fp4_e4m3_from_float(x / 0.01f);
        memcpy(raw + i * size,
               type == DTYPE_F32       ? (void *)&x
               : type == DTYPE_F8_E4M3 ? (void *)&byte
                                       : (void *)&half,
               size);
        m->v[i] = type == DTYPE_F32       ? (double)x
                  : type == DTYPE_F8_E4M3 ? (double)(fp4_e4m3_value[byte] * 0.01f)
                  : type == DTYPE_F16     ? (double)f16_to_float(half)
                                          : (double)bf16_to_float(half);
    }
    writer_add(w, name, type, k ? 2 : 1, (const int64_t[]){n, k}, raw);
}

#endif
