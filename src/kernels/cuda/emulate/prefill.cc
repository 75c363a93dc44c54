/* Of plugin/prefill_async.cuh: barriers of some of a block's threads, and a transposing store. And what is
 * not emulated: the products of bf16 by wgmma, which dense_tile.cu makes here. */
#include "kernels/cuda/plugin/prefill.cuh"
#include "kernels/cuda/plugin/prefill_async.cuh"

#define MADE 0x62617272u

/* A block's memory begins poisoned: who comes first makes the barrier. */
struct group_barrier {
    uint32_t made, phase;
    int missing;
};

void groups_sync(int group, int n)
{
    static const char key[16] = {};
    group_barrier &b = *(group_barrier *)simt::shared_variable(key + group / n + 1, sizeof(group_barrier), 4);
    if (b.made != MADE)
        b = {MADE, 0, 128 * n};
    const uint32_t phase = b.phase;
    if (--b.missing == 0) {
        b.missing = 128 * n;
        b.phase++;
    }
    while (b.phase == phase)
        simt::spin();
}

void store_transposed(uint32_t at, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    const uint32_t mine[4] = {a, b, c, d};
    const uint8_t(*given)[simt::EXCHANGE_BYTES] = simt::exchange(simt::SHUFFLE, mine, sizeof(mine));
    const unsigned lane = simt::here->lane, matrix = lane / 8, row = lane % 8;
    for (unsigned i = 0; i < 8; i++) /* element (row, i) was (i, row) */
        std::memcpy(shared_pointer(at + 2 * i, 2), &given[i * 4 + row / 2][4 * matrix + 2 * (row % 2)], 2);
}

bool prefill_bf16_takes(const struct dense *, const struct gpu_limits *)
{
    return false;
}

const char *prefill_bf16_start(const struct dense *, const struct op_place *)
{
    return "no wgmma here";
}
