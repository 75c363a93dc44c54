/* UNROLL(n) before a loop with a constant count: its register tile must not stay an array in memory.
 * Not under clang's sanitizers, whose checks on every element make unrolled tiles take minutes to compile. */
#ifndef NYB_KERNELS_CPU_UNROLL_H
#define NYB_KERNELS_CPU_UNROLL_H

#define UNROLL_PRAGMA(x) _Pragma(#x)
#if !defined(__clang__)
#define UNROLL(n) UNROLL_PRAGMA(GCC unroll n)
#elif __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define UNROLL(n)
#else
#define UNROLL(n) UNROLL_PRAGMA(clang loop unroll(full))
#endif

#endif
