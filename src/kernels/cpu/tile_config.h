/* Sizes of the tiles of a matrix unit, and how they are told to it. */
#ifndef NYB_KERNELS_CPU_TILE_CONFIG_H
#define NYB_KERNELS_CPU_TILE_CONFIG_H

#include <stdint.h>

#define TILE_ROW   16
#define TILE_LINE  64 /* bytes a row of a tile */
#define TILE_BYTES (TILE_ROW * TILE_LINE)
#define TILE_SUMS  (TILE_BYTES / 4) /* fp32 */

/* LDTILECFG's operand. */
struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t line_bytes[16];
    uint8_t n_row[16];
};

#endif
