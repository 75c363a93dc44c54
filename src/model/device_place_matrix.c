/* Vectors and matrices on their way to places on a GPU. */
#include <stdlib.h>

#include "base/mem.h"
#include "fp4/fp4.h"
#include "kernels/cuda/cuda_layout.h"
#include "kernels/cuda/cuda_tiled.h"
#include "model/device_placing.h"

#define PACKED_ALIGN 64u /* q, k and v then lie one after the other */

static int by_of(const void *a, const void *b)
{
    const struct placing_owner *x = a, *y = b;
    return (x->of > y->of) - (x->of < y->of);
}

void placing_find_owners(struct placing *p)
{
    const struct slots *s = p->slots;
    p->owner = mem_alloc((size_t)s->n, sizeof(*p->owner));
    for (int i = 0; i < s->n; i++) {
        const struct slot *slot = &s->slot[i];
        const void *of = slot->kind == SLOT_MATRIX ? (const void *)slot->weight : (const void *)slot->vector;
        p->owner[i] = (struct placing_owner){of, i};
    }
    qsort(p->owner, (size_t)s->n, sizeof(*p->owner), by_of);
}

struct slot *placing_slot(const struct placing *p, const void *of)
{
    const struct placing_owner key = {of, 0};
    const struct placing_owner *o = bsearch(&key, p->owner, (size_t)p->slots->n, sizeof(*p->owner), by_of);
    return o ? &p->slots->slot[o->slot] : NULL;
}

void placing_refuse(struct placing *p, const struct weight *w, const char *why)
{
    const struct slot *s = placing_slot(p, w);
    if (p->code == NYB_OK)
        p->code = err_at(p->err, NYB_E_UNSUPPORTED, s ? s->name : "weights", -1, "on a GPU: %s", why);
}

uint8_t *placing_take(struct placing *p, size_t bytes, size_t align)
{
    size_t at = (p->used + align - 1) / align * align;
    p->used = at + bytes;
    return (uint8_t *)(p->base + at); /* NOLINT: zero plus an offset on the first walk, never read */
}

int placing_take_scales(struct placing *p, int n)
{
    struct device *d = p->d;
    int first = d->n_scale;
    d->n_scale += n;
    if (d->n_scale > d->cap_scale) {
        d->cap_scale = 2 * d->n_scale;
        d->scale_of = mem_grow(d->scale_of, (size_t)d->cap_scale, sizeof(*d->scale_of));
    }
    return first;
}

float *placing_scale_at(const struct placing *p, int i)
{
    return (float *)(p->scales + (uintptr_t)i * sizeof(float));
}

void placing_put(struct placing *p, const void *of, enum place_layout layout, uint8_t *data, uint8_t *block,
                 int n_part)
{
    struct slot *s = placing_slot(p, of);
    ASSERT(s);
    if (!p->real)
        return;
    struct device_place *place = &p->d->place[s - p->slots->slot];
    *place = (struct device_place){p->d, of, layout, data, block, n_part};
    s->place = place;
    slot_set_address(s, data);
}

float *placing_vector(struct placing *p, float **v)
{
    const struct slot *s = placing_slot(p, v);
    if (!s)
        return NULL;
    uint8_t *data = placing_take(p, (size_t)s->n * sizeof(float), PLACING_ALIGN);
    placing_put(p, v, PLACE_VECTOR, data, NULL, 1);
    return (float *)(void *)data;
}
/* ---- matrices ------------------------------------------------------------------------------------ */

static int32_t plain_type(enum weight_type t)
{
    static const int32_t type[WEIGHT_TYPE_COUNT] = {[WEIGHT_NVFP4] = CUDA_NVFP4,
                                                    [WEIGHT_FP8] = CUDA_FP8,
                                                    [WEIGHT_BF16] = CUDA_BF16,
                                                    [WEIGHT_F16] = CUDA_F16,
                                                    [WEIGHT_F32] = CUDA_F32};
    return type[t];
}

/* The i-th of several matrices that lie `stride` bytes apart in this process. */
static const struct weight *weight_at(const struct weight *first, size_t stride, int i)
{
    return (const struct weight *)(const void *)((const uint8_t *)first + (size_t)i * stride);
}

bool placing_same_kind(struct placing *p, const struct weight *first, size_t stride, int n)
{
    for (int i = 1; i < n; i++) {
        const struct weight *w = weight_at(first, stride, i);
        if (w->type != first->type || w->n != first->n || w->k != first->k) {
            placing_refuse(p, w, "experts of one layer must have one type and shape");
            return false;
        }
    }
    return true;
}

int placing_scales(struct placing *p, const struct weight *first, size_t stride, int n)
{
    int at = placing_take_scales(p, n);
    for (int i = 0; i < n; i++)
        p->d->scale_of[at + i] = (struct device_scale){&weight_at(first, stride, i)->global_scale, NULL};
    return at;
}

/* The scales of what is multiplied in NVFP4: of the products, and of the inputs. */
static int place_scale_pairs(struct placing *p, const struct weight *first, size_t stride, int n)
{
    int at = placing_take_scales(p, 2 * n);
    for (int i = 0; i < n; i++) {
        const struct weight *w = weight_at(first, stride, i);
        p->d->scale_of[at + 2 * i] = (struct device_scale){&w->global_scale, &w->input_scale};
        p->d->scale_of[at + 2 * i + 1] = (struct device_scale){&w->input_scale, NULL};
    }
    return at;
}

struct cuda_weight placing_plain(struct placing *p, const struct weight *first, size_t stride, int n)
{
    size_t rows = (size_t)first->n, bytes = rows * weight_row_bytes(first->type, first->k);
    size_t block_bytes = first->type == WEIGHT_NVFP4 ? rows * (size_t)first->k / FP4_GROUP : 0;
    uint8_t *data = placing_take(p, (size_t)n * bytes, PLACING_ALIGN);
    uint8_t *block = block_bytes ? placing_take(p, (size_t)n * block_bytes, PLACING_ALIGN) : NULL;
    int scale = placing_scales(p, first, stride, n);
    for (int i = 0; i < n; i++)
        placing_put(p, weight_at(first, stride, i), PLACE_PLAIN, data + (size_t)i * bytes,
                    block_bytes ? block + (size_t)i * block_bytes : NULL, 1);
    return (struct cuda_weight){plain_type(first->type), data, block, placing_scale_at(p, scale)};
}

struct cuda_weight placing_tiled(struct placing *p, const struct weight *first, size_t stride, int n)
{
    size_t code_bytes = cuda_tiled_code_bytes((size_t)first->n, (size_t)first->k),
           scale_bytes = cuda_tiled_scale_bytes((size_t)first->n, (size_t)first->k);
    uint8_t *data = placing_take(p, (size_t)n * code_bytes, PLACING_ALIGN),
            *block = placing_take(p, (size_t)n * scale_bytes, PLACING_ALIGN);
    int scale = place_scale_pairs(p, first, stride, n);
    for (int i = 0; i < n; i++)
        placing_put(p, weight_at(first, stride, i), PLACE_TILED, data + (size_t)i * code_bytes,
                    block + (size_t)i * scale_bytes, 1);
    return (struct cuda_weight){CUDA_NVFP4_TILED, data, block, placing_scale_at(p, scale)};
}

static bool can_pack(const struct placing *p, const struct weight *w)
{
    return w->type == WEIGHT_NVFP4 && w->k % CUDA_UNIT_K == 0 &&
           p->d->option.gemm_backend != DEVICE_BACKEND_REFERENCE;
}

struct cuda_weight placing_matrix(struct placing *p, const struct weight *w)
{
    if (w->type == WEIGHT_NVFP4 && p->d->option.gemm_backend == DEVICE_BACKEND_CUBLASLT_NVFP4)
        return placing_tiled(p, w, 0, 1);
    if (!can_pack(p, w))
        return placing_plain(p, w, 0, 1);
    uint8_t *data = placing_take(p, cuda_layout_bytes((size_t)w->n, (size_t)w->k), PACKED_ALIGN);
    placing_put(p, w, PLACE_PACKED, data, NULL, 1);
    return (struct cuda_weight){CUDA_NVFP4_PACKED, data, NULL,
                                placing_scale_at(p, placing_scales(p, w, 0, 1))};
}
