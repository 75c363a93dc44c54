/* Tile instructions, as statements of their own: each is also a barrier to the compiler, which otherwise
 * knows nothing of what a tile load reads. n, c, a, b: tile numbers, literal. */
#ifndef NYB_KERNELS_CPU_TILE_AMX_H
#define NYB_KERNELS_CPU_TILE_AMX_H

#define TILE_CONFIG(config) __asm__ volatile("ldtilecfg %0" : : "m"(*(config)) : "memory")
#define TILE_RELEASE()      __asm__ volatile("tilerelease" : : : "memory")
#define TILE_ZERO(n)        __asm__ volatile("tilezero %%tmm" #n : : :)
#define TILE_LOAD(n, from, stride) \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #n : : "r"((const void *)(from)), "r"(stride) : "memory")
#define TILE_STORE(n, to, stride) \
    __asm__ volatile("tilestored %%tmm" #n ", (%0,%1,1)" : : "r"((void *)(to)), "r"(stride) : "memory")
#define TILE_DPBF16(c, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c : : :)

#endif
