/* What the kernel of many tokens' experts is told, its forms, and what a piece of its work is. */
#ifndef NYB_KERNELS_CUDA_PREFILL_WORK_CUH
#define NYB_KERNELS_CUDA_PREFILL_WORK_CUH

#include "kernels/cuda/plugin/prefill_multiply.cuh"

#define PREFILL_PIECES 4 /* that a block's warps may be apart */

/* One of the two products. */
struct prefill_phase {
    weight_boxes weight, part; /* [n_expert] packed, in boxes of all groups' rows, and of one's */
    int n_unit, n_k, n_panel;  /* units of W's rows, K / 64, panels of its output */
    int n_group;               /* groups that W's rows fill */
};

struct prefill_experts {
    struct prefill_phase gate_up, down;
    const float *gate_scale, *up_scale, *down_scale; /* [n_expert] */
    const uint16_t *x;                               /* [token][hidden], each 64 in the order of panels */
    const int *source;                               /* [row]: its token */
    uint16_t *h, *y;                                 /* panels [width / 64][capacity] */
    const struct prefill_tile *tile;
    const int *n_tile;
    uint32_t *ticket; /* pieces taken, 0 before */
    uint32_t *ready;  /* [tile]: groups' parts of h that are there, 0 before */
    /* Parameters, which instructions name where they lie: made from one, they took registers that tiles of 40
     * tokens and more lack, and were made again in each stage. */
    struct prefill_factors by;
    int hidden, n_fine; /* n_fine: tiles, the last, whose pieces of down are of one group each */
    size_t capacity;
};

enum { PIECE_GATE_UP, PIECE_DOWN, PIECE_NONE };

/* Some rows of W by a tile of tokens, in shared memory: those of `groups` groups, from group `first` on. The
 * block's other groups have none. */
struct alignas(16) prefill_piece {
    int expert, row, n, tile;
    uint16_t kind, groups;
    int first;
    float scale, scale_2;
};

/* A form with what the experts' kernel has in shared memory besides the ring: buffers of a panel, the
 * pieces, and bells: full and empty of each stage, and of each piece. */
template <typename BASE> struct prefill_experts_form : BASE {
    static constexpr bool ONCE = BASE::BLOCKS > 1; /* few tokens: most experts have one tile */
    /* The last pieces are small, so that blocks end together: faster with three groups, slower with two. */
    static constexpr bool FINE = BASE::GROUPS > 2;
    /* Beside multiples of 16 what tiles often have: 40; 56 and 72, and not 16. Of more ptxas finds no
     * registers (C7512). */
    static constexpr uint32_t WIDTHS = BASE::N_MAX == PREFILL_N_NARROW   ? 0x74
                                       : BASE::N_MAX == PREFILL_N_MIDDLE ? 0x17d0
                                                                         : BASE::WIDTHS;
    static constexpr int GROUP_UNITS = 4 * BASE::M, GROUP_BYTES = GROUP_UNITS * CUDA_UNIT_BYTES;
    static constexpr int BUFFERS = BASE::GROUPS;
    static constexpr int BUFFER_AT = BASE::STAGES * BASE::STAGE_BYTES;
    static constexpr int PIECES_AT = BUFFER_AT + BUFFERS * BASE::PANEL_BYTES;
    static constexpr int UNCOUNTED_AT = PIECES_AT + PREFILL_PIECES * (int)sizeof(prefill_piece);
    static constexpr int BELLS_AT = UNCOUNTED_AT + 4 * 4; /* a word a group */
    static constexpr int BELLS = 2 * BASE::STAGES + 2 * PREFILL_PIECES;
    static constexpr int SMEM = 1024 + BELLS_AT + 8 * BELLS;
    static_assert(BASE::DEPTH == 1 && BASE::M % 2 == 0,
                  "sums over all of k; two blocks of rows are a panel of h");
    static_assert(BASE::BLOCKS * (SMEM + 1024) <= 228 * 1024, "shared memory of an SM");
};

#endif
