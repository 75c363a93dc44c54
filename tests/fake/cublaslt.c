/* A libcublasLt for tests, in place of NVIDIA's: the functions that the plug-in takes, on host memory. It
 * holds the caller to what NVIDIA's documentation demands of products of e2m1 with a scale for each 16
 * elements, and computes D = alpha * op(A) * op(B) in float64 from the descriptors that it was given and
 * nothing else, so that a wrong transposition, leading dimension, size or order of scales is a wrong number.
 *
 * NYBBLE_FAKE_CUBLASLT_VERSION is what it says of itself: 130000 without it. */
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/plugin/cublaslt_api.h"

#define EXPORT __attribute__((visibility("default")))

#define MAGIC_DESC   0x64657363u
#define MAGIC_LAYOUT 0x6c61796fu
#define MAGIC_PREF   0x70726566u
#define MAGIC_ALGO   0x616c676fu

#define ALIGNMENT 256 /* of pointers, where the preference says nothing else */
#define SCRATCHED 64  /* bytes of the workspace that every product needs and overwrites */

struct desc {
    uint32_t magic;
    int compute, scale_type, trans_a, trans_b, pointer_mode, mode_a, mode_b;
    const uint8_t *scale_a, *scale_b;
};
struct layout {
    uint32_t magic;
    int type;
    uint64_t rows, columns;
    int64_t ld;
};
struct pref {
    uint32_t magic;
    uint64_t workspace;
};

static int handle;

/* ---- numbers --------------------------------------------------------------------------------------- */

static double e2m1(unsigned code)
{
    static const double magnitude[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    return code & 8 ? -magnitude[code & 7] : magnitude[code & 7];
}

/* Unsigned e4m3: the sign bit must be clear, and 0x7f is NaN. */
static double ue4m3(unsigned byte)
{
    unsigned exponent = byte >> 3 & 15, mantissa = byte & 7;
    if (byte & 0x80 || byte == 0x7f)
        return NAN;
    return exponent ? ldexp(8.0 + mantissa, (int)exponent - 10) : ldexp(mantissa, -9);
}

/* As NVIDIA's documentation of the 1D block scaling factors has it: tiles of 128 x 4, the inner dimension's
 * tiles next to each other. `inner_blocks` is the number of blocks along the inner dimension. */
static size_t scale_offset(uint64_t outer, uint64_t inner, uint64_t inner_blocks)
{
    uint64_t tiles_across = (inner_blocks + 3) / 4;
    uint64_t tile = (outer / 128) * tiles_across + inner / 4;
    uint64_t within = (outer % 32) * 16 + ((outer % 128) / 32) * 4 + inner % 4;
    return (size_t)(tile * 512 + within);
}

/* Column `column` of a matrix of e2m1, K elements, as numbers. */
static void read_column(const uint8_t *data, const struct layout *l, const uint8_t *scales, uint64_t column,
                        double *out)
{
    for (uint64_t k = 0; k < l->rows; k++) {
        uint64_t at = column * (uint64_t)l->ld + k;
        unsigned code = data[at / 2] >> (at % 2 ? 4 : 0) & 15;
        out[k] = e2m1(code) * ue4m3(scales[scale_offset(column, k / 16, (l->rows + 15) / 16)]);
    }
}

/* ---- the library ----------------------------------------------------------------------------------- */

EXPORT int cublasLtCreate(void **out);
EXPORT int cublasLtDestroy(void *h);
EXPORT size_t cublasLtGetVersion(void);
EXPORT const char *cublasLtGetStatusString(int status);
EXPORT lt_desc_create_fn cublasLtMatmulDescCreate;
EXPORT lt_destroy_fn cublasLtMatmulDescDestroy, cublasLtMatrixLayoutDestroy, cublasLtMatmulPreferenceDestroy;
EXPORT lt_set_fn cublasLtMatmulDescSetAttribute, cublasLtMatmulPreferenceSetAttribute;
EXPORT lt_layout_create_fn cublasLtMatrixLayoutCreate;
EXPORT lt_pref_create_fn cublasLtMatmulPreferenceCreate;
EXPORT lt_heuristic_fn cublasLtMatmulAlgoGetHeuristic;
EXPORT lt_matmul_fn cublasLtMatmul;

int cublasLtCreate(void **out)
{
    *out = &handle;
    return LT_SUCCESS;
}

int cublasLtDestroy(void *h)
{
    return h == &handle ? LT_SUCCESS : LT_INVALID_VALUE;
}

size_t cublasLtGetVersion(void)
{
    const char *text = getenv("NYBBLE_FAKE_CUBLASLT_VERSION");
    return text ? (size_t)strtoul(text, NULL, 10) : 130000;
}

const char *cublasLtGetStatusString(int status)
{
    return status == LT_SUCCESS         ? "success"
           : status == LT_INVALID_VALUE ? "an unsupported value or parameter was passed to the function"
           : status == LT_NOT_SUPPORTED ? "the functionality requested is not supported"
                                        : "another error";
}

int cublasLtMatmulDescCreate(void **out, int compute, int scale_type)
{
    struct desc *d = calloc(1, sizeof(*d));
    *d = (struct desc){.magic = MAGIC_DESC, .compute = compute, .scale_type = scale_type};
    *out = d;
    return LT_SUCCESS;
}

static int drop(void *p, uint32_t magic)
{
    if (!p || *(uint32_t *)p != magic)
        return LT_INVALID_VALUE;
    *(uint32_t *)p = 0;
    free(p);
    return LT_SUCCESS;
}

int cublasLtMatmulDescDestroy(void *desc)
{
    return drop(desc, MAGIC_DESC);
}

int cublasLtMatrixLayoutDestroy(void *layout)
{
    return drop(layout, MAGIC_LAYOUT);
}

int cublasLtMatmulPreferenceDestroy(void *pref)
{
    return drop(pref, MAGIC_PREF);
}

int cublasLtMatmulDescSetAttribute(void *desc, int attribute, const void *value, size_t bytes)
{
    struct desc *d = desc;
    void *number = NULL, *pointer = NULL;
    switch (attribute) {
    case LT_DESC_POINTER_MODE:
        number = &d->pointer_mode;
        break;
    case LT_DESC_TRANSA:
        number = &d->trans_a;
        break;
    case LT_DESC_TRANSB:
        number = &d->trans_b;
        break;
    case LT_DESC_A_SCALE_MODE:
        number = &d->mode_a;
        break;
    case LT_DESC_B_SCALE_MODE:
        number = &d->mode_b;
        break;
    case LT_DESC_A_SCALE_POINTER:
        pointer = &d->scale_a;
        break;
    case LT_DESC_B_SCALE_POINTER:
        pointer = &d->scale_b;
        break;
    default:
        return LT_NOT_SUPPORTED;
    }
    if (d->magic != MAGIC_DESC || bytes != (number ? sizeof(int32_t) : sizeof(void *)))
        return LT_INVALID_VALUE;
    memcpy(number ? number : pointer, value, bytes);
    return LT_SUCCESS;
}

int cublasLtMatrixLayoutCreate(void **out, int type, uint64_t rows, uint64_t columns, int64_t ld)
{
    struct layout *l = calloc(1, sizeof(*l));
    *l = (struct layout){MAGIC_LAYOUT, type, rows, columns, ld};
    *out = l;
    return LT_SUCCESS;
}

int cublasLtMatmulPreferenceCreate(void **out)
{
    struct pref *p = calloc(1, sizeof(*p));
    p->magic = MAGIC_PREF;
    *out = p;
    return LT_SUCCESS;
}

int cublasLtMatmulPreferenceSetAttribute(void *pref, int attribute, const void *value, size_t bytes)
{
    struct pref *p = pref;
    if (p->magic != MAGIC_PREF || attribute != LT_PREF_MAX_WORKSPACE_BYTES || bytes != sizeof(p->workspace))
        return LT_INVALID_VALUE;
    memcpy(&p->workspace, value, bytes);
    return LT_SUCCESS;
}

/* ---- products -------------------------------------------------------------------------------------- */

/* What the documentation demands of FP4: A transposed and B not, fp32 inside, 16 bytes in every dimension
 * that is contiguous, scales of both. */
static int check(const struct desc *d, const struct layout *a, const struct layout *b, const struct layout *c,
                 const struct layout *out)
{
    if (d->magic != MAGIC_DESC || a->magic != MAGIC_LAYOUT || b->magic != MAGIC_LAYOUT ||
        c->magic != MAGIC_LAYOUT || out->magic != MAGIC_LAYOUT)
        return LT_INVALID_VALUE;
    if (d->compute != LT_COMPUTE_32F || d->scale_type != LT_R_32F || d->trans_a != LT_OP_T ||
        d->trans_b != LT_OP_N || a->type != LT_R_4F_E2M1 || b->type != LT_R_4F_E2M1 || c->type != LT_R_32F ||
        out->type != LT_R_32F || d->mode_a != LT_SCALE_VEC16_UE4M3 || d->mode_b != LT_SCALE_VEC16_UE4M3)
        return LT_NOT_SUPPORTED;
    if (!d->scale_a || !d->scale_b)
        return LT_INVALID_VALUE;
    if (a->rows != b->rows || a->columns != out->rows || b->columns != out->columns || c->rows != out->rows ||
        c->columns != out->columns || c->ld != out->ld)
        return LT_INVALID_VALUE;
    if (a->ld < (int64_t)a->rows || b->ld < (int64_t)b->rows || out->ld < (int64_t)out->rows)
        return LT_INVALID_VALUE;
    if (a->rows % 32 || a->ld % 32 || b->ld % 32 || out->rows % 4 || out->ld % 4)
        return LT_NOT_SUPPORTED;
    return LT_SUCCESS;
}

int cublasLtMatmulAlgoGetHeuristic(void *h, void *desc, void *a, void *b, void *c, void *d, void *pref, int n,
                                   struct lt_heuristic *result, int *n_result)
{
    const struct pref *p = pref;
    *n_result = 0;
    if (h != &handle || n < 1 || p->magic != MAGIC_PREF)
        return LT_INVALID_VALUE;
    int status = check(desc, a, b, c, d);
    if (status)
        return status;
    if (p->workspace < SCRATCHED)
        return LT_NOT_SUPPORTED;
    memset(result, 0, sizeof(*result));
    result->algo.data[0] = MAGIC_ALGO;
    result->algo.data[1] = ((struct layout *)a)->columns; /* made for this shape */
    result->algo.data[2] = ((struct layout *)b)->columns;
    result->algo.data[3] = ((struct layout *)a)->rows;
    result->workspace_bytes = SCRATCHED;
    result->waves = 1.0f;
    *n_result = 1;
    return LT_SUCCESS;
}

static bool aligned(const void *p, size_t to)
{
    return p && (uintptr_t)p % to == 0;
}

int cublasLtMatmul(void *h, void *desc, const void *alpha, const void *A, void *a_layout, const void *B,
                   void *b_layout, const void *beta, const void *C, void *c_layout, void *D, void *d_layout,
                   const struct lt_algo *algo, void *workspace, size_t workspace_bytes, void *stream)
{
    const struct desc *op = desc;
    const struct layout *a = a_layout, *b = b_layout, *out = d_layout;
    int status = h == &handle && stream ? check(op, a, b, c_layout, out) : LT_INVALID_VALUE;
    if (status)
        return status;
    if (!algo || algo->data[0] != MAGIC_ALGO || algo->data[1] != a->columns || algo->data[2] != b->columns ||
        algo->data[3] != a->rows || workspace_bytes < SCRATCHED || !aligned(workspace, 16))
        return LT_INVALID_VALUE;
    if (!aligned(A, ALIGNMENT) || !aligned(B, ALIGNMENT) || !aligned(C, ALIGNMENT) ||
        !aligned(D, ALIGNMENT) || !aligned(op->scale_a, 16) || !aligned(op->scale_b, 16) ||
        !aligned(alpha, 4) || !aligned(beta, 4))
        return LT_INVALID_VALUE;
    /* Emulated device memory is the host's, so that a host's alpha would do as well: nothing tells them
     * apart. */
    if (op->pointer_mode != LT_POINTER_DEVICE || *(const float *)beta != 0.0f)
        return LT_NOT_SUPPORTED;
    memset(workspace, 0xff, SCRATCHED);
    uint64_t K = a->rows, m = a->columns, n = b->columns;
    double *x = malloc((size_t)K * sizeof(*x)), *w = malloc((size_t)(K * m) * sizeof(*w));
    for (uint64_t i = 0; i < m; i++)
        read_column(A, a, op->scale_a, i, w + i * K);
    for (uint64_t j = 0; j < n; j++) {
        read_column(B, b, op->scale_b, j, x);
        for (uint64_t i = 0; i < m; i++) {
            double sum = 0;
            for (uint64_t k = 0; k < K; k++)
                sum += w[i * K + k] * x[k];
            ((float *)D)[j * (uint64_t)out->ld + i] = (float)((double)*(const float *)alpha * sum);
        }
    }
    free(x);
    free(w);
    return LT_SUCCESS;
}
