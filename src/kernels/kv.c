#include "kernels/kv.h"

#include <math.h>

#include "fp4/fp4.h"

static size_t element_bytes(enum kv_type type)
{
    return type == KV_F32 ? 4 : type == KV_FP8 ? 1 : 2;
}

/* A whole number of 64-byte vectors for each token (f32) or pair of tokens (the others). */
int kv_pad(enum kv_type type, int head_dim)
{
    int to = type == KV_FP8 ? 32 : 16;
    return (head_dim + to - 1) / to * to;
}

size_t kv_value_bytes(enum kv_type type, int head_dim)
{
    return (size_t)KV_BLOCK * (size_t)kv_pad(type, head_dim) * element_bytes(type);
}

size_t kv_key_bytes(enum kv_type type, int head_dim)
{
    return kv_value_bytes(type, head_dim) + (type == KV_I16 ? KV_I16_UNITS : 0);
}

size_t kv_block_key_bytes(enum kv_type type, int n_kv_head, int head_dim)
{
    return (size_t)n_kv_head * kv_key_bytes(type, head_dim);
}

size_t kv_block_value_bytes(enum kv_type type, int n_kv_head, int head_dim)
{
    return (size_t)n_kv_head * kv_value_bytes(type, head_dim);
}

const char *kv_type_name(enum kv_type type)
{
    static const char *const name[] = {"f32", "bf16", "fp8", "i16"};
    return name[type];
}

/* Which of all regions is a head's in the block that holds `slot`. */
static size_t region(const struct kv_layer *kv, int32_t slot, int head)
{
    ASSERT(slot >= 0 && slot / KV_BLOCK < kv->n_block && head >= 0 && head < kv->n_kv_head);
    return (size_t)(slot / KV_BLOCK) * (size_t)kv->n_kv_head + (size_t)head;
}

static uint8_t *key_region(const struct kv_layer *kv, int32_t slot, int head)
{
    return kv->k + region(kv, slot, head) * kv_key_bytes(kv->type, kv->head_dim);
}

static uint8_t *value_region(const struct kv_layer *kv, int32_t slot, int head)
{
    return kv->v + region(kv, slot, head) * kv_value_bytes(kv->type, kv->head_dim);
}

/* The layouts of kv.h for token j of a block, dimension by dimension. */
static void put_f32(uint8_t *kd, uint8_t *vd, size_t pad, size_t j, const float *k, const float *v, size_t d)
{
    for (size_t i = 0; i < d; i++)
        memcpy(kd + 4 * (i * KV_BLOCK + j), k + i, 4);
    memcpy(vd + 4 * j * pad, v, d * 4);
}

static void put_bf16_key(uint8_t *kd, size_t j, const float *k, size_t d)
{
    for (size_t i = 0; i < d; i += 2) {
        uint16_t pair[2] = {bf16_from_float(k[i]), bf16_from_float(k[i + 1])};
        memcpy(kd + 4 * j + i * 2 * KV_BLOCK, pair, 4);
    }
}

static void put_bf16_value(uint8_t *vd, size_t pad, size_t j, const float *v, size_t d)
{
    uint8_t *value = vd + j / 2 * 4 * pad + j % 2 * 2;
    for (size_t i = 0; i < d; i++) {
        uint16_t b = bf16_from_float(v[i]);
        memcpy(value + 4 * i, &b, 2);
    }
}

/* In double, where no row's squares are too large or too small. */
double kv_norm(const float *x, size_t d)
{
    double sum[KV_HEAD_DIM_STEP] = {0}, all = 0;
    for (size_t i = 0; i < d; i += KV_HEAD_DIM_STEP)
        for (size_t j = 0; j < KV_HEAD_DIM_STEP; j++)
            sum[j] += (double)x[i + j] * (double)x[i + j];
    for (size_t j = 0; j < KV_HEAD_DIM_STEP; j++)
        all += sum[j];
    return sqrt(all);
}

/* A key that holds an infinity or a NaN has a unit of NaN. */
static void put_i16_key(uint8_t *kd, uint8_t *units, size_t j, const float *k, size_t d)
{
    const double norm = kv_norm(k, d);
    const bool finite = isfinite(norm), some = finite && norm > KV_I16_LEAST;
    const float unit = some ? (float)(norm / KV_I16_NORM) : finite ? 0.0f : NAN;
    const float inverse = some ? (float)(KV_I16_NORM / norm) : 0.0f;
    for (size_t i = 0; i < d; i += 2) {
        /* Nearest even, where the sum's last bit is worth one; its low 16 bits are the integer. */
        const float whole[2] = {k[i] * inverse + 0x1.8p23f, k[i + 1] * inverse + 0x1.8p23f};
        uint32_t bits[2];
        memcpy(bits, whole, sizeof(bits));
        const uint32_t pair = (bits[0] & 0xffff) | bits[1] << 16;
        memcpy(kd + 4 * j + i * 2 * KV_BLOCK, &pair, 4);
    }
    memcpy(units + 4 * j, &unit, 4);
}

static void put_fp8(const struct kv_layer *kv, uint8_t *kd, uint8_t *vd, size_t pad, size_t j, const float *k,
                    const float *v)
{
    float k_inverse = 1.0f / kv->k_scale, v_inverse = 1.0f / kv->v_scale;
    for (size_t i = 0; i < (size_t)kv->head_dim; i++) {
        kd[kv_key_index(KV_FP8, i, j)] = fp4_e4m3_from_float(k[i] * k_inverse);
        vd[kv_value_index(KV_FP8, pad, i, j)] = fp4_e4m3_from_float(v[i] * v_inverse);
    }
}

static size_t units_at(const struct kv_layer *kv)
{
    return kv_value_bytes(KV_I16, kv->head_dim);
}

static float get_unit(const struct kv_layer *kv, const uint8_t *keys, size_t j)
{
    float unit;
    memcpy(&unit, keys + units_at(kv) + 4 * j, 4);
    return unit;
}

static float get_i16(const uint8_t *base, size_t index)
{
    int16_t x;
    memcpy(&x, base + 2 * index, 2);
    return (float)x;
}

static float get(const uint8_t *base, enum kv_type type, size_t index, float scale)
{
    float x;
    uint16_t b;
    switch (type) {
    case KV_F32:
        memcpy(&x, base + 4 * index, 4);
        return x;
    case KV_BF16:
    case KV_I16: /* values */
        memcpy(&b, base + 2 * index, 2);
        return bf16_to_float(b);
    case KV_FP8:
        break;
    }
    return fp4_e4m3_value[base[index]] * scale;
}

void kv_store(const struct kv_layer *kv, int32_t slot, int head, const float *k, const float *v)
{
    uint8_t *kd = key_region(kv, slot, head), *vd = value_region(kv, slot, head);
    size_t j = (size_t)(slot % KV_BLOCK), pad = (size_t)kv_pad(kv->type, kv->head_dim);
    if (kv->type == KV_F32)
        put_f32(kd, vd, pad, j, k, v, (size_t)kv->head_dim);
    else if (kv->type == KV_FP8)
        put_fp8(kv, kd, vd, pad, j, k, v);
    else {
        if (kv->type == KV_I16)
            put_i16_key(kd, kd + units_at(kv), j, k, (size_t)kv->head_dim);
        else
            put_bf16_key(kd, j, k, (size_t)kv->head_dim);
        put_bf16_value(vd, pad, j, v, (size_t)kv->head_dim);
    }
}

/* Inlined once for each type: the scalar kernels read whole caches this way. */
static inline void load_as(const enum kv_type type, const struct kv_layer *kv, const uint8_t *ks,
                           const uint8_t *vs, size_t j, float *k, float *v)
{
    const size_t d = (size_t)kv->head_dim, pad = (size_t)kv_pad(type, kv->head_dim);
    const float k_scale = type == KV_I16 ? get_unit(kv, ks, j) : kv->k_scale, v_scale = kv->v_scale;
    for (size_t i = 0; i < d; i++) {
        k[i] = type == KV_I16 ? get_i16(ks, kv_key_index(type, i, j)) * k_scale
                              : get(ks, type, kv_key_index(type, i, j), k_scale);
        v[i] = get(vs, type, kv_value_index(type, pad, i, j), v_scale);
    }
}

void kv_load(const struct kv_layer *kv, int32_t slot, int head, float *k, float *v)
{
    const uint8_t *ks = key_region(kv, slot, head), *vs = value_region(kv, slot, head);
    const size_t j = (size_t)(slot % KV_BLOCK);
    switch (kv->type) {
    case KV_F32:
        load_as(KV_F32, kv, ks, vs, j, k, v);
        break;
    case KV_BF16:
        load_as(KV_BF16, kv, ks, vs, j, k, v);
        break;
    case KV_FP8:
        load_as(KV_FP8, kv, ks, vs, j, k, v);
        break;
    case KV_I16:
        load_as(KV_I16, kv, ks, vs, j, k, v);
        break;
    }
}
