#include "kernels/checkkern_cuda_case.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "fp4/fp4.h"

#define GUARD  256  /* bytes behind an output; an emulated GPU finds what is written there by itself */
#define POISON 0xff /* a NaN as fp32, bf16 and e4m3 */

void gpu_case_begin(struct gpu_case *c, const struct checkkern_gpu *g, struct checkkern_report *report)
{
    memset(c, 0, sizeof(*c));
    c->g = g;
    c->report = report;
}

void gpu_case_end(struct gpu_case *c)
{
    for (int i = 0; i < c->n_buffer; i++)
        c->g->plugin->release(c->g->gpu, c->buffer[i].device);
    c->n_buffer = 0;
    arena_reset(c->g->arena);
}

bool gpu_cases(const struct checkkern_gpu *g, struct checkkern_report *report, int n, gpu_case_fn *one)
{
    uint64_t seed = g->seed;
    bool ok = true;
    for (int i = 0; i < n && ok; i++) {
        struct gpu_case c;
        gpu_case_begin(&c, g, report);
        ok = one(&c, &seed, i);
        gpu_case_end(&c);
    }
    return ok;
}

static bool fail(struct gpu_case *c)
{
    c->failed = true;
    return checkkern_case(c->report, false, "%s", c->g->plugin->error(c->g->gpu));
}

static struct gpu_buffer *take(struct gpu_case *c, size_t bytes)
{
    if (c->failed)
        return NULL;
    ASSERT(c->n_buffer < GPU_CASE_BUFFERS);
    struct gpu_buffer *b = &c->buffer[c->n_buffer];
    *b = (struct gpu_buffer){.bytes = bytes, .device = c->g->plugin->alloc(c->g->gpu, bytes ? bytes : 1)};
    if (!b->device) {
        fail(c);
        return NULL;
    }
    c->n_buffer++;
    return b;
}

void *gpu_case_in(struct gpu_case *c, const void *host, size_t bytes)
{
    struct gpu_buffer *b = take(c, bytes);
    if (b && !c->g->plugin->write(c->g->gpu, b->device, host, bytes))
        fail(c);
    return b ? b->device : NULL;
}

void *gpu_case_f32(struct gpu_case *c, float value)
{
    return gpu_case_in(c, &value, sizeof(value));
}

static size_t guard(const struct gpu_case *c)
{
    return c->g->info.major == 0 ? 0 : GUARD;
}

void *gpu_case_out(struct gpu_case *c, size_t bytes)
{
    bytes += guard(c);
    void *poison = arena_alloc(c->g->arena, bytes, 1);
    memset(poison, POISON, bytes);
    struct gpu_buffer *b = take(c, bytes);
    if (!b)
        return NULL;
    b->before = poison;
    return b->device;
}

void *gpu_case_in_out(struct gpu_case *c, const void *host, size_t bytes)
{
    uint8_t *before = arena_alloc(c->g->arena, bytes + guard(c), 1);
    memcpy(before, host, bytes);
    memset(before + bytes, POISON, guard(c));
    struct gpu_buffer *b = take(c, bytes + guard(c));
    if (!b)
        return NULL;
    b->before = before;
    return b->device;
}

static bool write_before(struct gpu_case *c)
{
    for (int i = 0; i < c->n_buffer; i++) {
        const struct gpu_buffer *b = &c->buffer[i];
        if (b->before && !c->g->plugin->write(c->g->gpu, b->device, b->before, b->bytes))
            return fail(c);
    }
    return true;
}

/* Into `result` the first time, compared with it later. */
static bool read_back(struct gpu_case *c, const char *what)
{
    for (int i = 0; i < c->n_buffer; i++) {
        struct gpu_buffer *b = &c->buffer[i];
        uint8_t *now = arena_alloc(c->g->arena, b->bytes, 1);
        if (!b->before)
            continue;
        if (!c->g->plugin->read(c->g->gpu, now, b->device, b->bytes))
            return fail(c);
        if (b->result && memcmp(now, b->result, b->bytes) != 0) {
            size_t at = 0;
            while (now[at] == b->result[at])
                at++;
            c->failed = true;
            return checkkern_case(c->report, false, "%s gives other bits in output %d, byte %zu of %zu", what,
                                  i, at, b->bytes);
        }
        b->result = now;
        for (size_t k = b->bytes - guard(c); k < b->bytes; k++)
            if (now[k] != POISON) {
                c->failed = true;
                return checkkern_case(c->report, false, "output %d: byte %zu behind it was written", i,
                                      k - (b->bytes - guard(c)));
            }
    }
    return true;
}

static bool run_graph(struct gpu_case *c, const struct cuda_op *op, int n_op)
{
    const struct cuda_plugin *p = c->g->plugin;
    struct cuda_graph *graph = p->graph_make(c->g->gpu, op, n_op);
    if (!graph)
        return fail(c);
    bool ok = write_before(c) && (p->graph_run(c->g->gpu, graph) || fail(c)) && read_back(c, "a graph");
    p->graph_free(c->g->gpu, graph);
    return ok;
}

bool gpu_case_run(struct gpu_case *c, const struct cuda_op *op, int n_op)
{
    const struct cuda_plugin *p = c->g->plugin;
    size_t scratch;
    if (c->failed)
        return false;
    for (int i = 0; i < c->n_buffer; i++)
        c->buffer[i].result = NULL;
    if (!p->scratch(c->g->gpu, op, n_op, &scratch) || !p->reserve(c->g->gpu, scratch))
        return fail(c);
    for (int round = 0; round < 2; round++)
        if (!write_before(c) || (!p->run(c->g->gpu, op, n_op) && !fail(c)) || !read_back(c, "a second run"))
            return false;
    return c->no_graph || run_graph(c, op, n_op);
}

const void *gpu_case_result(const struct gpu_case *c, const void *device)
{
    for (int i = 0; i < c->n_buffer; i++)
        if (c->buffer[i].device == device)
            return c->buffer[i].result;
    return NULL;
}

bool gpu_case_near(struct gpu_case *c, const char *what, const float *out, const double *expected,
                   const double *allowed, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        bool ok = checkkern_near(c->report, (double)out[i], expected[i], allowed[i] + 1e-30);
        if (!checkkern_case(c->report, ok, "%s: element %zu of %zu: %g, expected %g", what, i, n,
                            (double)out[i], expected[i]))
            return false;
    }
    return true;
}

/* ---- data ------------------------------------------------------------------------------------------ */

float *gpu_case_floats(struct gpu_case *c, uint64_t *seed, size_t n, float size)
{
    float *x = arena_alloc(c->g->arena, n, sizeof(*x));
    for (size_t i = 0; i < n; i++)
        x[i] = size * checkkern_float(seed);
    return x;
}

uint16_t *gpu_case_bf16(struct gpu_case *c, uint64_t *seed, size_t n, float size)
{
    uint16_t *x = arena_alloc(c->g->arena, n, sizeof(*x));
    for (size_t i = 0; i < n; i++)
        x[i] = bf16_from_float(size * checkkern_float(seed));
    return x;
}

void gpu_case_nvfp4(uint64_t *seed, uint8_t *codes, uint8_t *block, float *value, size_t n_group)
{
    for (size_t g = 0; g < n_group; g++) {
        uint64_t bits = checkkern_random(seed);
        memcpy(codes + 8 * g, &bits, 8);
        block[g] = (uint8_t)checkkern_int(seed, g % 7 ? 0x30 : 1, g % 7 ? 0x48 : 0x7e);
        fp4_dequantize_row(value + FP4_GROUP * g, codes + 8 * g, block + g, 1.0f, FP4_GROUP);
    }
}

struct gpu_matrix gpu_case_matrix(struct gpu_case *c, uint64_t *seed, enum cuda_weight_type type,
                                  int n_matrix, int n, int K)
{
    size_t all = (size_t)n_matrix * (size_t)n * (size_t)K;
    struct gpu_matrix m = {.w.type = (int32_t)type, .value = gpu_case_floats(c, seed, all, 1.0f)};
    uint16_t *half = arena_alloc(c->g->arena, all, sizeof(*half));
    uint8_t *byte = arena_alloc(c->g->arena, all, 1), *block = arena_alloc(c->g->arena, all, 1);
    m.scale = arena_alloc(c->g->arena, (size_t)n_matrix, sizeof(float));
    for (int i = 0; i < n_matrix; i++)
        m.scale[i] = 1.5f + 0.5f * checkkern_float(seed);
    if (type == CUDA_NVFP4)
        gpu_case_nvfp4(seed, byte, block, m.value, all / FP4_GROUP);
    for (size_t i = 0; i < all; i++)
        switch (type) {
        case CUDA_FP8:
            byte[i] = fp4_e4m3_from_float(m.value[i]);
            m.value[i] = fp4_e4m3_value[byte[i]];
            break;
        case CUDA_BF16:
            half[i] = bf16_from_float(m.value[i]);
            m.value[i] = bf16_to_float(half[i]);
            break;
        case CUDA_F16:
            half[i] = f16_from_float(m.value[i]);
            m.value[i] = f16_to_float(half[i]);
            break;
        case CUDA_F32:
        case CUDA_NVFP4:
        case CUDA_NVFP4_PACKED:
        case CUDA_NVFP4_TILED:
            break;
        }
    m.w.data = type == CUDA_F32 ? gpu_case_in(c, m.value, 4 * all)
               : type == CUDA_BF16 || type == CUDA_F16
                   ? gpu_case_in(c, half, 2 * all)
                   : gpu_case_in(c, byte, type == CUDA_FP8 ? all : all / 2);
    if (type == CUDA_NVFP4)
        m.w.block = gpu_case_in(c, block, all / FP4_GROUP);
    m.w.scale = gpu_case_in(c, m.scale, (size_t)n_matrix * sizeof(float));
    return m;
}
