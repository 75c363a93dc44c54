/* The products of cuda_linear with tiled NVFP4: rows are quantized once for all parts, each under its own
 * scale, and cuBLASLt multiplies. Where it cannot write to the output itself (a bias, a number of outputs or
 * a place that do not fit it), a kernel copies. */
#include "kernels/cuda/plugin/cublaslt.h"
#include "kernels/cuda/plugin/operators.h"

#define THREADS 256

/* out[t][o] = d[t][o] + bias[o], rows of d being ld long. grid: (rows, outputs) */
static __global__ void __launch_bounds__(THREADS)
    finish_kernel(const float *d, int ld, const float *bias, float *out, int n_out)
{
    gpu_wait_before();
    gpu_let_next();
    const size_t t = blockIdx.x, o = (size_t)blockIdx.y * THREADS + threadIdx.x;
    if (o < (size_t)n_out)
        out[t * (size_t)n_out + o] = d[t * (size_t)ld + o] + (bias ? bias[o] : 0.0f);
}

static bool is_direct(const struct cuda_linear_part *p)
{
    return !p->bias && p->n_out % 4 == 0 && (uintptr_t)p->out % 256 == 0;
}

/* Parts of the scratch; all a multiple of 256 bytes. */
struct room {
    uint8_t *codes[CUDA_PARTS_MAX], *scales[CUDA_PARTS_MAX];
    float *d[CUDA_PARTS_MAX]; /* NULL: straight to the output */
};

static size_t place(const struct cuda_op *op, uint8_t *base, struct room *room)
{
    const struct cuda_linear *l = &op->as.linear;
    const size_t rows = cuda_tiled_up((size_t)op->n_row, CUDA_TILE_ROWS), K = (size_t)l->K;
    size_t used = 0;
    for (int i = 0; i < l->n_part && i < CUDA_PARTS_MAX; i++) {
        const size_t d_bytes = (size_t)op->n_row * cuda_tiled_up((size_t)l->part[i].n_out, 4) * sizeof(float);
        room->codes[i] = base + used;
        used += cuda_tiled_code_bytes(rows, K);
        room->scales[i] = base + used;
        used += cuda_tiled_scale_bytes(rows, K);
        room->d[i] = is_direct(&l->part[i]) ? nullptr : (float *)(base + used);
        used += room->d[i] ? cuda_tiled_up(d_bytes, 256) : 0;
    }
    return used;
}

size_t lt_linear_scratch(const struct cuda_op *op)
{
    struct room room;
    return place(op, nullptr, &room);
}

static const char *multiply(const struct cuda_op *op, int i, const struct room *room,
                            const struct op_place *at)
{
    const struct cuda_linear_part *p = &op->as.linear.part[i];
    const int ld = (int)cuda_tiled_up((size_t)p->n_out, 4);
    const struct lt_product product = {.w = p->w.data,
                                       .w_scale = p->w.block,
                                       .x = room->codes[i],
                                       .x_scale = room->scales[i],
                                       .alpha = p->w.scale,
                                       .d = room->d[i] ? room->d[i] : p->out,
                                       .m = ld,
                                       .n = op->n_row,
                                       .K = (int)cuda_tiled_row((size_t)op->as.linear.K),
                                       .ld = ld};
    const char *why = lt_product_start(at->lt, &product, at->stream);
    if (why || !room->d[i])
        return why;
    const dim3 grid((unsigned)op->n_row, (unsigned)(p->n_out + THREADS - 1) / THREADS);
    return gpu_why(gpu_launch(finish_kernel, grid, THREADS, 0, at->stream, (const float *)room->d[i], ld,
                              p->bias, p->out, p->n_out));
}

const char *lt_linear_start(const struct cuda_op *op, const struct op_place *at)
{
    const struct cuda_linear *l = &op->as.linear;
    struct room room;
    if (!at->lt)
        return "linear: tiled weights, and cuBLASLt is not open";
    if (l->K < 16 || l->K % 16 || (!l->x && !l->x_float))
        return "linear: rows of NVFP4 are a multiple of 16";
    place(op, at->scratch, &room);
    struct quantize q = {};
    q.x = l->x;
    q.x_float = l->x_float;
    q.count = op->count;
    q.K = l->K;
    q.n_row = (int)cuda_tiled_up((size_t)op->n_row, CUDA_TILE_ROWS);
    q.n_real = op->n_row;
    q.n_part = l->n_part;
    for (int i = 0; i < l->n_part; i++)
        q.part[i] = {room.codes[i], room.scales[i], l->part[i].w.scale + 1};
    const char *why = quantize_start(&q, at->stream);
    for (int i = 0; i < l->n_part && !why; i++)
        why = multiply(op, i, &room, at);
    return why;
}
