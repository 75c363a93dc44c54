/* What the kernel of prefill.cu's products is told, and its forms: how a block's warps share a tile. */
#ifndef NYB_KERNELS_CUDA_PREFILL_FORM_CUH
#define NYB_KERNELS_CUDA_PREFILL_FORM_CUH

#include <stdint.h>

#include "kernels/cuda/cuda_layout.h"
#include "kernels/cuda/plugin/internal.h"

#define PREFILL_N_MAX    128 /* tokens of a tile, in the widest form */
#define PREFILL_N_MIDDLE 96
#define PREFILL_N_SHORT  64
#define PREFILL_N_NARROW 48
#define PREFILL_UNITS    16 /* a stage's, of 16 rows and 64 k each */
#define PREFILL_W_BYTES  (PREFILL_UNITS * CUDA_UNIT_BYTES)
#define PREFILL_COPIERS  96 /* threads that copy weights, 16 bytes each so many times a stage */
#define PREFILL_PARTS    (PREFILL_W_BYTES / 16 / PREFILL_COPIERS)

/* Rows [row, row + n) of the panels are of one expert; n at most the form's N_MAX. */
struct prefill_tile {
    int expert, row, n;
};

struct prefill_gemm {
    const uint8_t *weight; /* [n_expert] packed */
    size_t expert_bytes;
    const float *scale, *scale_2; /* [n_expert]; gate and up, or down and null */
    const uint16_t *x;            /* panels [K / 64][capacity] */
    uint16_t *out;                /* panels [width / 64][capacity] */
    const struct prefill_tile *tile;
    const int *n_tile;
    int n_unit, n_k, n_out; /* units of W's rows, K / 64, width of out / 64 */
    size_t capacity;
    struct packed_linear linear; /* a dense product: to its parts instead of panels */
};

/* What becomes of the sums. */
enum prefill_mode { PREFILL_GATE_UP, PREFILL_DOWN, PREFILL_LINEAR };

/* A block: GROUPS consumer warpgroups behind one that copies, BLOCKS of them an SM. Its tile is 256 / DEPTH
 * rows of W by up to N_MAX tokens; a stage is DEPTH times 64 k of that, group i working on k's part i %
 * DEPTH. Registers of a producing and of a consuming thread fit into what a launch gives to all alike. */
template <prefill_mode MODE_, int GROUPS_, int BLOCKS_, int DEPTH_, int N_MAX_, int STAGES_>
struct prefill_form {
    static constexpr prefill_mode MODE = MODE_;
    static constexpr int GROUPS = GROUPS_, BLOCKS = BLOCKS_, DEPTH = DEPTH_, N_MAX = N_MAX_, STAGES = STAGES_;
    static constexpr int THREADS = 128 * (GROUPS + 1);
    static constexpr int M = 4 / GROUPS; /* times 64 rows: a group's */
    /* Fragments of a step: one of each 64 rows, where registers allow (else ptxas says C7512). */
    static constexpr int TOGETHER = BLOCKS == 1 ? M : 1;
    static constexpr int UNITS = PREFILL_UNITS / DEPTH; /* of 16 rows: a tile's */
    static constexpr int PANEL_BYTES = N_MAX * 128, STAGE_BYTES = PREFILL_W_BYTES + DEPTH * PANEL_BYTES;
    /* Gate and up of 128 rows are one panel of h. */
    static constexpr int BUFFERS = MODE == PREFILL_GATE_UP ? 2 : MODE == PREFILL_DOWN ? GROUPS : 0;
    static constexpr int SHARE = MODE == PREFILL_GATE_UP ? GROUPS / 2 : 1; /* groups of one buffer */
    /* What the groups of other k leave for the one of the first. */
    static constexpr int SUMS_BYTES = (GROUPS - GROUPS / DEPTH) * M * N_MAX * 256;
    static constexpr int BUFFER_AT = STAGES * STAGE_BYTES, SUMS_AT = BUFFER_AT + BUFFERS * PANEL_BYTES,
                         BARRIERS_AT = SUMS_AT + SUMS_BYTES;
    static constexpr int SMEM = 1024 + BARRIERS_AT + 2 * 8 * STAGES;
    static constexpr int LAUNCHED = 65536 / BLOCKS / THREADS / 8 * 8; /* registers of a thread */
    static constexpr int PRODUCER_REGISTERS = GROUPS == 2 && BLOCKS == 1 ? 40 : 32;
    static constexpr int CONSUMER_REGISTERS = (LAUNCHED * (GROUPS + 1) - PRODUCER_REGISTERS) / GROUPS / 8 * 8;
    static_assert(GROUPS % DEPTH == 0 && (DEPTH == 1 || (MODE == PREFILL_LINEAR && M == 1)), "parts of k");
    static_assert(BLOCKS * (SMEM + 1024) <= 228 * 1024, "shared memory of an SM");
    static_assert(N_MAX % 16 == 0 && PANEL_BYTES % 1024 == 0, "what wgmma's swizzle asks for");
};

#endif
