/* Images of keys and values: what attention_wgmma.cu wants to find in shared memory for each KEYS keys of a
 * KV head, so that a bulk copy brings it. A block makes one, by the copies that the kernel itself makes where
 * there are none: 2 * STEP bytes, keys then values; all KV heads of an image lie one after the other.
 *
 * Copies of 8 and 16 bytes were a third of that kernel's time; each of its blocks made them for 64 rows of
 * two query heads. Here they are made once, of what is in the cache anyway, and FP8 becomes f16 once. */
#include "kernels/cuda/plugin/attention_wgmma_copy.cuh"

/* The tile that is its sequence's last, of which this is an image. */
static __device__ __forceinline__ void find_tile(const cuda_attention &a, int image, int *found)
{
    const int n = min(*a.tile_count, a.n_tile);
    for (int t = threadIdx.x; t < n; t += GROUP) {
        const int first = a.tile[t].image, next = t + 1 < n ? a.tile[t + 1].image : a.n_image;
        if (first <= image && image < next)
            *found = t;
    }
}

/* grid: (KV heads, images) */
template <int HD, int TYPE>
static __global__ void __launch_bounds__(GROUP)
    images_kernel(const cuda_attention a, uint8_t *images, uint32_t *ticket)
{
    DYNAMIC_SHARED(memory);
    SHARED(int, found);
    gpu_wait_before();
    gpu_let_next();
    if (threadIdx.x == 0) {
        found = -1;
        if (blockIdx.x + blockIdx.y == 0)
            *ticket = 0;
    }
    __syncthreads();
    find_tile(a, (int)blockIdx.y, &found);
    __syncthreads();
    if (found < 0)
        return;
    work w;
    w.tile = a.tile[found];
    w.table = a.block_table + (size_t)w.tile.seq * *a.stride;
    w.kv_head = (int)blockIdx.x;
    w.end = a.pos[w.tile.row] + w.tile.n_row;
    const int step = (int)blockIdx.y - w.tile.image;
    if (step * KEYS >= w.end)
        return;
    const uint32_t bytes = plan<HD>::STEP, smem = shared_offset(memory);
    const int block = entries(w, step, threadIdx.x % 32);
    if (TYPE == CUDA_KV_FP8) {
        put_keys<HD>(a, w, block, smem);
        put_values<HD>(a, w, block, w.end - step * KEYS, smem + bytes);
    } else {
        copy_keys<HD>(a, w, block, smem);
        copy_values<HD>(a, w, block, w.end - step * KEYS, smem + bytes);
        copies_end();
        copies_wait<0>();
    }
    __syncthreads();
    uint4 *to = (uint4 *)(images + image_at<HD>(a.kv, (int)blockIdx.y, w.kv_head));
#pragma unroll 8
    for (uint32_t i = threadIdx.x; i < 2 * bytes / 16; i += GROUP)
        to[i] = shared_vector(smem + 16 * i);
}

template <int HD, int TYPE>
static const char *start(const cuda_attention &a, uint8_t *images, cudaStream_t stream)
{
    const size_t bytes = 2 * plan<HD>::STEP;
    const char *why = gpu_why(gpu_allow_shared(images_kernel<HD, TYPE>, bytes));
    return why ? why
               : gpu_why(gpu_launch(images_kernel<HD, TYPE>,
                                    dim3((unsigned)a.kv.n_kv_head, (unsigned)a.n_image), GROUP, bytes, stream,
                                    a, images, attention_ticket(&a, images)));
}

static size_t all_images(const struct cuda_attention *a)
{
    return (size_t)a->n_image * (size_t)a->kv.n_kv_head * 4 * KEYS * (size_t)a->kv.head_dim;
}

size_t attention_image_bytes(const struct cuda_attention *a)
{
    return a->n_image > 0 ? all_images(a) + 256 : 0;
}

uint32_t *attention_ticket(const struct cuda_attention *a, uint8_t *images)
{
    return (uint32_t *)(images + all_images(a));
}

const char *attention_images_start(const struct cuda_attention *a, uint8_t *images, cudaStream_t stream)
{
    const bool fp8 = a->kv.type == CUDA_KV_FP8;
    if (a->kv.head_dim == 64)
        return fp8 ? start<64, CUDA_KV_FP8>(*a, images, stream) : start<64, CUDA_KV_BF16>(*a, images, stream);
    return fp8 ? start<128, CUDA_KV_FP8>(*a, images, stream) : start<128, CUDA_KV_BF16>(*a, images, stream);
}
