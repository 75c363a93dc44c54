/* Hopper's instructions of plugin/attention_wgmma.cuh: done at once, where a GPU begins them. Addresses in
 * shared memory count from where the block's dynamic part begins. */
#include "kernels/cuda/plugin/attention_wgmma.cuh"

uint32_t shared_at(const void *p)
{
    return (uint32_t)((const uint8_t *)p - simt::dynamic_shared());
}

uint8_t *shared_pointer(uint32_t at, size_t)
{
    return simt::dynamic_shared() + at;
}

/* ---- barriers that count arrivals ------------------------------------------------------------------- */

/* As large as a GPU's. */
struct bell {
    uint32_t arrivals : 12, missing : 12, phase : 8; /* arrivals of a phase; in the one that runs */
    int32_t awaited;                                 /* bytes of copies that are not there */
};
static_assert(sizeof(bell) == 8, "bells lie 8 bytes apart");

static bell *bell_at(uint32_t at)
{
    return (bell *)shared_pointer(at, sizeof(bell));
}

void bell_make(uint32_t bell, uint32_t arrivals)
{
    *bell_at(bell) = {arrivals & 0xfffu, arrivals & 0xfffu, 0, 0};
}

static void turn(bell *b)
{
    if (b->missing > 0 || b->awaited != 0)
        return;
    b->missing = b->arrivals;
    b->phase++;
}

void bell_ring(uint32_t at)
{
    bell *b = bell_at(at);
    b->missing--;
    turn(b);
}

void bell_expect(uint32_t at, uint32_t bytes);
void bell_copied(uint32_t at, uint32_t bytes);
void bell_expect(uint32_t at, uint32_t bytes)
{
    bell_at(at)->awaited += (int32_t)bytes;
    bell_ring(at);
}

void bell_copied(uint32_t at, uint32_t bytes)
{
    bell *b = bell_at(at);
    b->awaited -= (int32_t)bytes;
    turn(b);
}

void bell_wait(uint32_t at, uint32_t parity)
{
    while ((bell_at(at)->phase & 1) == parity)
        simt::spin();
}

bool bell_has_rung(uint32_t at, uint32_t parity);
bool bell_has_rung(uint32_t at, uint32_t parity)
{
    return (bell_at(at)->phase & 1) != parity;
}

/* ---- products -------------------------------------------------------------------------------------- */

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
