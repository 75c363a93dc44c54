#include <string.h>

#include "fp4/fp4.h"
#include "kernels/checkkern_peak.h"
#include "kernels/cpu/tile_amx.h"

#include "kernels/cpu/block_bf16_amx.h" /* in terms of the above */

double checkkern_peak_bf16_amx(long rounds, float *sink)
{
    _Alignas(64) uint16_t tile[TILE_ROW][TILE_K];
    const size_t line = TILE_LINE;
    struct tile_config config;
    for (int i = 0; i < TILE_ROW * TILE_K; i++)
        tile[i / TILE_K][i % TILE_K] = bf16_from_float(*sink * (float)i);
    bf16_configure(&config, 2 * TILE_ROW);
    TILE_CONFIG(&config);
    TILE_LOAD(4, tile, line);
    TILE_LOAD(5, tile, line);
    TILE_LOAD(6, tile, line);
    TILE_LOAD(7, tile, line);
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
    for (long r = 0; r < rounds; r++) {
        TILE_DPBF16(0, 4, 6);
        TILE_DPBF16(1, 4, 7);
        TILE_DPBF16(2, 5, 6);
        TILE_DPBF16(3, 5, 7);
    }
    TILE_STORE(0, tile, line);
    TILE_RELEASE();
    memcpy(sink, tile, sizeof(*sink));
    return (double)rounds * 4 * 2 * TILE_ROW * TILE_ROW * TILE_K;
}
