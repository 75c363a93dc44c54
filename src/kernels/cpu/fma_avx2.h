/* One element of x against a few vectors, for loops whose sums fill the registers. */
#ifndef NYB_KERNELS_CPU_FMA_AVX2_H
#define NYB_KERNELS_CPU_FMA_AVX2_H

#include <immintrin.h>

/* sum[i] += x w[i] for n = 1 .. 3. Sums stay in the registers where they are, and the broadcast is where its
 * products are: left to the forms of fma that it likes, gcc moves sums about until it runs out of registers.
 */
static inline __attribute__((always_inline)) void fma_row(__m256 *sum, const float *x, const __m256 *w,
                                                          const int n)
{
    __m256 b;
    if (n == 3)
        __asm__("vbroadcastss %4, %3\n\t"
                "vfmadd231ps %3, %5, %0\n\t"
                "vfmadd231ps %3, %6, %1\n\t"
                "vfmadd231ps %3, %7, %2"
                : "+x"(sum[0]), "+x"(sum[1]), "+x"(sum[2]), "=&x"(b)
                : "m"(*x), "x"(w[0]), "x"(w[1]), "x"(w[2]));
    else if (n == 2)
        __asm__("vbroadcastss %3, %2\n\t"
                "vfmadd231ps %2, %4, %0\n\t"
                "vfmadd231ps %2, %5, %1"
                : "+x"(sum[0]), "+x"(sum[1]), "=&x"(b)
                : "m"(*x), "x"(w[0]), "x"(w[1]));
    else
        __asm__("vbroadcastss %2, %1\n\t"
                "vfmadd231ps %1, %3, %0"
                : "+x"(sum[0]), "=&x"(b)
                : "m"(*x), "x"(w[0]));
}

/* sum += x w, likewise. */
static inline __attribute__((always_inline)) void fma_one(__m256 *sum, __m256 x, __m256 w)
{
    __asm__("vfmadd231ps %1, %2, %0" : "+x"(*sum) : "x"(x), "x"(w));
}

#endif
