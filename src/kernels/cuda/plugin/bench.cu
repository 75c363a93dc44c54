/* What the benches need: random weights and the rate of reading. */
#include "internal.h"
#include "kernels/cuda/cuda_layout.h"

__device__ __forceinline__ uint32_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return (uint32_t)(z ^ (z >> 31));
}

/* Any bits are codes; scales from 2^-3 to 2. */
__global__ void randomize_kernel(uint32_t *to, size_t n_word, uint64_t seed)
{
    gpu_wait_before();
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n_word;
         i += (size_t)gridDim.x * blockDim.x) {
        uint32_t word = mix(seed + i * 0x9e3779b97f4a7c15ull);
        if (i % (CUDA_UNIT_BYTES / 4) >= CUDA_UNIT_CODES / 4)
            word = (word & 0x1f1f1f1fu) + 0x38383838u;
        to[i] = word;
    }
}

__global__ void __launch_bounds__(512) read_kernel(const uint4 *from, size_t n, uint32_t *sink)
{
    gpu_wait_before();
    const size_t step = (size_t)gridDim.x * 512;
    uint32_t all = 0;
    size_t i = blockIdx.x * (size_t)512 + threadIdx.x;
    for (; i + 7 * step < n; i += 8 * step) {
        uint4 v[8];
#pragma unroll
        for (int j = 0; j < 8; j++)
            v[j] = __ldcs(from + i + j * step);
#pragma unroll
        for (int j = 0; j < 8; j++)
            all |= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    }
    for (; i < n; i += step)
        all |= from[i].x;
    if (all == 0x12345678u) /* the compiler cannot know that it hardly ever is */
        *sink = all;
}

const char *randomize_start(void *device, size_t bytes, uint64_t seed, cudaStream_t stream)
{
    return gpu_why(gpu_launch(randomize_kernel, 4096, 256, 0, stream, (uint32_t *)device, bytes / 4, seed));
}

const char *read_all_start(const void *device, size_t bytes, uint32_t *sink, int n_sm, cudaStream_t stream)
{
    return gpu_why(
        gpu_launch(read_kernel, (unsigned)n_sm * 4, 512, 0, stream, (const uint4 *)device, bytes / 16, sink));
}
