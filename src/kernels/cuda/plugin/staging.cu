/* Rows of weights on their way to packed form, through memory of the device. */
#include <algorithm>

#include "kernels/cuda/plugin/cublaslt.h"
#include "kernels/cuda/plugin/state.h"

#define STAGING_BYTES ((size_t)8 << 20)

/* A strip of rows that fits the staging memory. Copies from ordinary host memory have read it when they
 * return; the next strip's wait on the stream for this one's kernel. */
static bool pack_strip(struct cuda_gpu *g, const struct cuda_pack *p)
{
    const size_t code_bytes = (size_t)p->n_row * (p->K / 2), scale_bytes = (size_t)p->n_row * (p->K / 16);
    uint8_t *scales = g->staging + gpu_align(code_bytes);
    if (!gpu_check(g, "copy",
                   cudaMemcpyAsync(g->staging, p->codes, code_bytes, cudaMemcpyHostToDevice, g->stream)) ||
        !gpu_check(g, "copy",
                   cudaMemcpyAsync(scales, p->scales, scale_bytes, cudaMemcpyHostToDevice, g->stream)))
        return false;
    const bool tiled = p->rows == CUDA_PACK_TILED;
    const char *why = tiled ? lt_pack_start(p, g->staging, scales, g->stream)
                            : pack_start(p, g->staging, scales, g->stream);
    return !why || gpu_fail(g, "pack", why);
}

bool gpu_pack_rows(struct cuda_gpu *g, const struct cuda_pack *p)
{
    if (!gpu_enter(g))
        return false;
    const bool pair = p->rows == CUDA_PACK_GATE || p->rows == CUDA_PACK_UP;
    const int unit = p->rows == CUDA_PACK_TILED ? 16 : 64;
    if (p->K < unit || p->K % unit || p->first % 16 || (pair && p->n_whole % 8) ||
        p->first + p->n_row > p->n_whole || (p->n_row % 16 && p->first + p->n_row != p->n_whole))
        return gpu_fail(g, "pack", "rows or columns that are no whole units");
    if (p->n_part > 1 && (p->rows != CUDA_PACK_WHOLE || p->K / 64 % p->n_part))
        return gpu_fail(g, "pack", "parts of columns that are no whole units");
    const size_t row_bytes = (size_t)p->K / 2 + (size_t)p->K / 16;
    const int step = (int)std::min<size_t>((STAGING_BYTES - 512) / row_bytes / 16 * 16, 1u << 20);
    if (step == 0)
        return gpu_fail(g, "pack", "rows too long");
    std::lock_guard<std::mutex> lock(g->staging_lock);
    if (!g->staging && !gpu_check(g, "memory", cudaMalloc(&g->staging, STAGING_BYTES)))
        return false;
    for (int done = 0; done < p->n_row; done += step) {
        struct cuda_pack strip = *p;
        strip.first += done;
        strip.n_row = std::min(step, p->n_row - done);
        strip.codes += (size_t)done * (p->K / 2);
        strip.scales += (size_t)done * (p->K / 16);
        if (!pack_strip(g, &strip))
            return false;
    }
    return true;
}
