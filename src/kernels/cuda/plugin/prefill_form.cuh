/* How a block's warps share a tile of the prefill products: the forms of their kernels. */
#ifndef NYB_KERNELS_CUDA_PREFILL_FORM_CUH
#define NYB_KERNELS_CUDA_PREFILL_FORM_CUH

#include <stdint.h>

#include "kernels/cuda/cuda_layout.h"
#include "kernels/cuda/plugin/internal.h"

#define PREFILL_N_MAX    128 /* tokens of a tile, in the widest form */
#define PREFILL_N_MIDDLE 96
#define PREFILL_N_NARROW 48
#define PREFILL_N_SLIM   32
#define PREFILL_COPIERS  96 /* threads that copy tokens, 16 bytes each at a time */

/* Rows [row, row + n) of the panels are of one expert; n at most the form's N_MAX. */
struct prefill_tile {
    int expert, row, n;
};

/* GROUPS consumer warpgroups behind one that copies, BLOCKS such blocks an SM. A group has M times 64 rows
 * of W, or the DEPTH-th part of k of them, up to N_MAX tokens; a stage is DEPTH times 64 k of a tile.
 * TOGETHER: blocks of 64 rows whose products begin together. Registers of a producing and of a consuming
 * thread fit into what a launch gives to all alike. */
template <int GROUPS_, int BLOCKS_, int DEPTH_, int M_, int TOGETHER_, int N_MAX_, int STAGES_>
struct prefill_form {
    static constexpr int GROUPS = GROUPS_, BLOCKS = BLOCKS_, DEPTH = DEPTH_, M = M_, TOGETHER = TOGETHER_,
                         N_MAX = N_MAX_, STAGES = STAGES_;
    static constexpr int THREADS = 128 * (GROUPS + 1);
    static constexpr int UNITS = 4 * M * GROUPS / DEPTH; /* of 16 rows: a tile's */
    static constexpr int W_BYTES = UNITS * DEPTH * CUDA_UNIT_BYTES;
    static constexpr int X_COPIES = (N_MAX * 8 + PREFILL_COPIERS - 1) / PREFILL_COPIERS; /* a thread's */
    static constexpr int X_AHEAD = STAGES > 5 ? 3 : STAGES - 2; /* stages whose tokens are on their way */
    static constexpr int PANEL_BYTES = N_MAX * 128,
                         STAGE_BYTES = (W_BYTES + DEPTH * PANEL_BYTES + 1023) / 1024 * 1024;
    /* A bit N / 8 for each N of the instructions that it has, up to N_MAX, which is one. */
    static constexpr uint32_t WIDTHS = N_MAX <= PREFILL_N_SLIM ? 0x1e : 0x15554;
    static constexpr int LAUNCHED = 65536 / BLOCKS / THREADS / 8 * 8; /* registers of a thread */
    static constexpr int PRODUCER_REGISTERS = GROUPS == 2 && BLOCKS == 1 ? 40 : 32;
    static constexpr int CONSUMER_REGISTERS = (LAUNCHED * (GROUPS + 1) - PRODUCER_REGISTERS) / GROUPS / 8 * 8;
    static_assert(GROUPS % DEPTH == 0 && M % TOGETHER == 0, "parts of k, and of rows");
    static_assert(N_MAX % 16 == 0 && PANEL_BYTES % 1024 == 0, "wgmma's swizzle");
};

/* CASE(N) for the N of the instructions that is `width`, of those that the form has. */
#define PREFILL_WIDTH(F, N, CASE)                                  \
    case N:                                                        \
        if constexpr (N <= F::N_MAX && (F::WIDTHS >> (N) / 8 & 1)) \
            CASE(N);                                               \
        break;
#define PREFILL_WIDTHS(F, width, CASE) \
    switch (width) {                   \
        PREFILL_WIDTH(F, 8, CASE)      \
        PREFILL_WIDTH(F, 16, CASE)     \
        PREFILL_WIDTH(F, 24, CASE)     \
        PREFILL_WIDTH(F, 32, CASE)     \
        PREFILL_WIDTH(F, 40, CASE)     \
        PREFILL_WIDTH(F, 48, CASE)     \
        PREFILL_WIDTH(F, 56, CASE)     \
        PREFILL_WIDTH(F, 64, CASE)     \
        PREFILL_WIDTH(F, 72, CASE)     \
        PREFILL_WIDTH(F, 80, CASE)     \
        PREFILL_WIDTH(F, 96, CASE)     \
        PREFILL_WIDTH(F, 112, CASE)    \
        PREFILL_WIDTH(F, 128, CASE)    \
    }

/* N of the instructions for a tile of n tokens. */
template <typename F> static __device__ __forceinline__ int tile_width(int n)
{
    int width = (n + 7) & ~7;
    while (!(F::WIDTHS >> width / 8 & 1))
        width += 8;
    return width;
}

#endif
