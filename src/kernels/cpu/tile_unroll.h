/* For tile kernels: arrays of vectors indexed by the counters of unrolled loops stay in registers. */
#ifndef NYB_KERNELS_CPU_TILE_UNROLL_H
#define NYB_KERNELS_CPU_TILE_UNROLL_H

#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
/* Loads stay on their side: a compiler that moves all of an unrolled loop's to the top runs out of registers.
 */
#define KEEP_ORDER() __asm__ volatile("" ::: "memory")
#define INLINE       static inline __attribute__((always_inline))

/* Bytes ahead of the read that a kernel asks for: the out-of-order window is too full of decoding to run
 * ahead by itself. */
#define PREFETCH_AHEAD 4096

/* body(t, panels, rows) with both counts constant. Kernels of NVFP4 hold twice as many sums, so that their
 * pairs of panels stop at four rows. */
#define TILE_CASE(body, t, panels, rows) \
    case (panels)*16 + (rows):           \
        body(t, panels, rows);           \
        break;
#define TILE_CASES_4(body, t, panels) \
    TILE_CASE(body, t, panels, 1)     \
    TILE_CASE(body, t, panels, 2)     \
    TILE_CASE(body, t, panels, 3)     \
    TILE_CASE(body, t, panels, 4)
#define TILE_CASES_6(body, t, panels) \
    TILE_CASES_4(body, t, panels)     \
    TILE_CASE(body, t, panels, 5)     \
    TILE_CASE(body, t, panels, 6)
#define TILE_CASES_8(body, t, panels) \
    TILE_CASES_6(body, t, panels)     \
    TILE_CASE(body, t, panels, 7)     \
    TILE_CASE(body, t, panels, 8)
/* Up to 8 rows of one panel, and 4, 6 or 8 of two. */
#define TILE_SWITCH(body, t, two)                                       \
    switch ((t)->n_panel * 16 + (t)->n_row) {                           \
        TILE_CASES_8(body, t, 1)                                        \
        TILE_CASES_##two(body, t, 2) default : __builtin_unreachable(); \
    }

#endif
