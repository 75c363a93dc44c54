/* Hopper's products of a warpgroup (plugin/attention_wgmma.cuh, plugin/prefill_async.cuh): done at once,
 * where a GPU begins them. */
#include "kernels/cuda/plugin/attention_wgmma.cuh"

/* Sixteen elements of a row of the k-step that a descriptor names. */
static void read_row(uint64_t descriptor, int row, bool half, float (&out)[16])
{
    const uint32_t first = (uint32_t)(descriptor & 0x3fff) << 4, eight = (uint32_t)(descriptor >> 32 & 0x3fff)
                                                                         << 4;
    for (uint32_t k = 0; k < 16; k++) {
        uint32_t at = first + (uint32_t)row / 8 * eight + (uint32_t)row % 8 * 128 + 2 * k;
        uint16_t bits;
        at ^= (at >> 7 & 7) << 4;
        std::memcpy(&bits, shared_pointer(at, 2), 2);
        out[k] = half ? half_float(bits) : bf16_float(bits);
    }
}

/* A lane's two rows of A (g and g + 8 of its warp's sixteen) times all rows of B. */
static void multiply(float *d, int n, bool half, const float (&a)[2][16], uint64_t b, int keep)
{
    const int q = (int)simt::here->lane % 4;
    for (int i = 0; i < n / 8; i++)
        for (int j = 0; j < 2; j++) {
            float column[16];
            read_row(b, 8 * i + 2 * q + j, half, column);
            for (int h = 0; h < 2; h++) {
                float sum = keep ? d[4 * i + 2 * h + j] : 0.0f;
                for (int k = 0; k < 16; k++)
                    sum += a[h][k] * column[k];
                d[4 * i + 2 * h + j] = sum;
            }
        }
}

void wgmma_shared(float *d, int n, bool half, uint64_t a, uint64_t b, int keep)
{
    const int warp = (int)simt::here->thread.x / 32 % 4, g = (int)simt::here->lane / 4;
    float rows[2][16];
    read_row(a, 16 * warp + g, half, rows[0]);
    read_row(a, 16 * warp + g + 8, half, rows[1]);
    multiply(d, n, half, rows, b, keep);
}

void wgmma_registers(float *d, int n, bool half, const uint32_t *a, uint64_t b, int keep)
{
    const uint8_t(*given)[simt::EXCHANGE_BYTES] = simt::exchange(simt::SHUFFLE, a, 16);
    const unsigned g = simt::here->lane / 4;
    float rows[2][16];
    for (unsigned k = 0; k < 16; k++)
        for (unsigned h = 0; h < 2; h++) {
            uint16_t bits;
            std::memcpy(&bits, &given[4 * g + k / 2 % 4][4 * (h + k / 8 * 2) + 2 * (k % 2)], 2);
            rows[h][k] = half ? half_float(bits) : bf16_float(bits);
        }
    multiply(d, n, half, rows, b, keep);
}
