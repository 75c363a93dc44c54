#include "cli/inspect_error.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "fp4/fp4.h"

/* Mean square distance of a value spread evenly over the rounding cell of each magnitude: cells end halfway
 * between neighbours, the last one at 6, which is where a block's largest value lies. */
static const double cell_variance[8] = {
    0.0625 / 3, 0.0625 / 3,      0.0625 / 3, 0.0625 / 3, (0.125 + 0.015625) / 3 / 0.75,
    0.25 / 3,   1.125 / 3 / 1.5, 1.0 / 3,
};

static void estimate_row(struct inspect_error *e, const uint8_t *codes, const uint8_t *scales, float global,
                         int64_t k)
{
    static double value2[256], error2[256];
    if (value2[255] == 0)
        for (int b = 0; b < 256; b++) {
            value2[b] = (double)(fp4_e2m1_value[b & 15] * fp4_e2m1_value[b & 15]) +
                        (double)(fp4_e2m1_value[b >> 4] * fp4_e2m1_value[b >> 4]);
            error2[b] = cell_variance[b & 7] + cell_variance[b >> 4 & 7];
        }
    for (int64_t block = 0; block < k / FP4_GROUP; block++) {
        double v = 0, d = 0, s = (double)fp4_e4m3_value[scales[block]] * (double)global;
        for (int i = 0; i < FP4_GROUP / 2; i++) {
            v += value2[codes[block * FP4_GROUP / 2 + i]];
            d += error2[codes[block * FP4_GROUP / 2 + i]];
        }
        if (v > 0 && isfinite(s)) { /* an all-zero block is exact */
            e->value2 += v * s * s;
            e->error2 += d * s * s;
        }
    }
}

static float reference_value(const uint8_t *raw, enum dtype dtype, int64_t i)
{
    uint16_t h;
    float f;
    if (dtype == DTYPE_F32) {
        memcpy(&f, raw + 4 * i, 4);
        return f;
    }
    memcpy(&h, raw + 2 * i, 2);
    return dtype == DTYPE_BF16 ? bf16_to_float(h) : f16_to_float(h);
}

static enum nyb_code reference_tensor(struct ckpt *reference, const char *module, int64_t n, int64_t k,
                                      const struct ckpt_tensor **out, struct nyb_err *err)
{
    char *name = mem_printf("%s.weight", module);
    const struct ckpt_tensor *t = ckpt_find(reference, name);
    enum nyb_code code = NYB_OK;
    if (!t)
        code = err_at(err, NYB_E_NOT_FOUND, name, -1, "not in the reference %s", reference->folder);
    else if (t->n_dim != 2 || t->dim[0] != n || t->dim[1] != k ||
             (t->dtype != DTYPE_BF16 && t->dtype != DTYPE_F16 && t->dtype != DTYPE_F32))
        code = err_at(err, NYB_E_FORMAT, name, -1,
                      "the reference must hold (%" PRId64 ", %" PRId64 ") BF16, F16 or F32", n, k);
    free(name);
    *out = t;
    return code;
}

enum nyb_code inspect_error_add(struct inspect_error *e, struct ckpt *ckpt, struct ckpt *reference,
                                const char *module, const struct linear_source *src, struct nyb_err *err)
{
    const struct ckpt_tensor *ref = NULL;
    if (reference)
        TRY(reference_tensor(reference, module, src->n, src->k, &ref, err));
    size_t k = (size_t)src->k, element = ref ? dtype_size(ref->dtype) : 0;
    uint8_t *codes = mem_alloc(k / 2, 1), *scales = mem_alloc(k / FP4_GROUP, 1), *raw = mem_alloc(k, 4);
    float *row = mem_alloc(k, sizeof(float));
    enum nyb_code code = NYB_OK;
    for (int64_t r = 0; code == NYB_OK && r < src->n; r++) {
        code = ckpt_read(ckpt, src->weight, (uint64_t)r * k / 2, codes, k / 2, err);
        if (code == NYB_OK)
            code = ckpt_read(ckpt, src->scale, (uint64_t)r * k / FP4_GROUP, scales, k / FP4_GROUP, err);
        if (code == NYB_OK && !ref)
            estimate_row(e, codes, scales, src->global_scale, src->k);
        if (code == NYB_OK && ref) {
            code = ckpt_read(reference, ref, (uint64_t)r * k * element, raw, k * element, err);
            fp4_dequantize_row(row, codes, scales, src->global_scale, k);
            for (int64_t i = 0; code == NYB_OK && i < src->k; i++) {
                double want = (double)reference_value(raw, ref->dtype, i), d = (double)row[i] - want;
                e->value2 += want * want;
                e->error2 += d * d;
            }
        }
    }
    free(codes);
    free(scales);
    free(raw);
    free(row);
    return code;
}
