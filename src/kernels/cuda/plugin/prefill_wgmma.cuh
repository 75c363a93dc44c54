/* wgmma: D[64][N] (+)= A[64][16] * B[N][16]^T, bf16 into float32, A in registers or in shared memory.
 *
 * One struct for each N, as the instruction names every accumulator. `b` is the descriptor of B in shared
 * memory (N rows of 128 bytes, 128-byte swizzle), `keep` zero starts from zero. */
#ifndef NYB_KERNELS_CUDA_PREFILL_WGMMA_CUH
#define NYB_KERNELS_CUDA_PREFILL_WGMMA_CUH

#include <stdint.h>

template <int N> struct wgmma;

// clang-format off
/* The accumulators in the text, and as operands: all up to the last of N / 2. */
#define WGMMA_TEXT_4 "%0, %1, %2, %3"
#define WGMMA_TEXT_12 WGMMA_TEXT_8 ", " "%8, %9, %10, %11"
#define WGMMA_TEXT_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define WGMMA_TEXT_16 WGMMA_TEXT_8 ", " "%8, %9, %10, %11, %12, %13, %14, %15"
#define WGMMA_TEXT_20 WGMMA_TEXT_16 ", " "%16, %17, %18, %19"
#define WGMMA_TEXT_24 WGMMA_TEXT_16 ", " "%16, %17, %18, %19, %20, %21, %22, %23"
#define WGMMA_TEXT_28 WGMMA_TEXT_24 ", " "%24, %25, %26, %27"
#define WGMMA_TEXT_32 WGMMA_TEXT_24 ", " "%24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_TEXT_36 WGMMA_TEXT_32 ", " "%32, %33, %34, %35"
#define WGMMA_TEXT_40 WGMMA_TEXT_32 ", " "%32, %33, %34, %35, %36, %37, %38, %39"
#define WGMMA_TEXT_48 WGMMA_TEXT_40 ", " "%40, %41, %42, %43, %44, %45, %46, %47"
#define WGMMA_TEXT_56 WGMMA_TEXT_48 ", " "%48, %49, %50, %51, %52, %53, %54, %55"
#define WGMMA_TEXT_64 WGMMA_TEXT_56 ", " "%56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_SUMS_4 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define WGMMA_SUMS_12 WGMMA_SUMS_8, "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11])
#define WGMMA_SUMS_8 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
#define WGMMA_SUMS_16 WGMMA_SUMS_8, "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#define WGMMA_SUMS_20 WGMMA_SUMS_16, "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19])
#define WGMMA_SUMS_24 WGMMA_SUMS_16, "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
#define WGMMA_SUMS_28 WGMMA_SUMS_24, "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27])
#define WGMMA_SUMS_32 WGMMA_SUMS_24, "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define WGMMA_SUMS_36 WGMMA_SUMS_32, "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35])
#define WGMMA_SUMS_40 WGMMA_SUMS_32, "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39])
#define WGMMA_SUMS_48 WGMMA_SUMS_40, "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
#define WGMMA_SUMS_56 WGMMA_SUMS_48, "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55])
#define WGMMA_SUMS_64 WGMMA_SUMS_56, "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])

/* A0 to KEEP: the numbers of the operands behind them. */
#define WGMMA(N, D, A0, A1, A2, A3, B, KEEP)                                                                    \
    template <> struct wgmma<N> {                                                                               \
        static __device__ __forceinline__ void run(float (&d)[D], const uint32_t (&a)[4], uint64_t b, int keep) \
        {                                                                                                       \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #KEEP ", 0;\n"                                    \
                "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" WGMMA_TEXT_##D "}, "                \
                "{%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", p, 1, 1, 0;\n}\n"                           \
                : WGMMA_SUMS_##D                                                                                \
                : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep));                               \
        }                                                                                                       \
        /* A in shared memory, as B. */                                                                         \
        static __device__ __forceinline__ void run(float (&d)[D], uint64_t a, uint64_t b)                       \
        {                                                                                                       \
            asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" WGMMA_TEXT_##D "}, "       \
                "%" #A0 ", %" #A1 ", 1, 1, 1, 0, 0;\n"                                                          \
                : WGMMA_SUMS_##D                                                                                \
                : "l"(a), "l"(b));                                                                              \
        }                                                                                                       \
    };
WGMMA(8, 4, 4, 5, 6, 7, 8, 9)
WGMMA(16, 8, 8, 9, 10, 11, 12, 13)
WGMMA(24, 12, 12, 13, 14, 15, 16, 17)
WGMMA(32, 16, 16, 17, 18, 19, 20, 21)
WGMMA(40, 20, 20, 21, 22, 23, 24, 25)
WGMMA(48, 24, 24, 25, 26, 27, 28, 29)
WGMMA(56, 28, 28, 29, 30, 31, 32, 33)
WGMMA(64, 32, 32, 33, 34, 35, 36, 37)
WGMMA(72, 36, 36, 37, 38, 39, 40, 41)
WGMMA(80, 40, 40, 41, 42, 43, 44, 45)
WGMMA(96, 48, 48, 49, 50, 51, 52, 53)
WGMMA(112, 56, 56, 57, 58, 59, 60, 61)
WGMMA(128, 64, 64, 65, 66, 67, 68, 69)
#undef WGMMA
// clang-format on

#endif
