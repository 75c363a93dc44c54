/* Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers, as easy as 1, 2, 3; SC 2011).
 *
 * Counter-based: the number for the i-th token of an answer is a function of (seed, i) and of nothing else,
 * so it does not matter in which batch, after which preemption, or on which thread it is drawn. */
#ifndef NYB_ENGINE_RNG_H
#define NYB_ENGINE_RNG_H

#include <stdint.h>

static inline void rng_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c[4] = {counter[0], counter[1], counter[2], counter[3]}, k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t a = 0xD2511F53ull * c[0], b = 0xCD9E8D57ull * c[2];
        uint32_t n0 = (uint32_t)(b >> 32) ^ c[1] ^ k0, n2 = (uint32_t)(a >> 32) ^ c[3] ^ k1;
        c[1] = (uint32_t)b;
        c[3] = (uint32_t)a;
        c[0] = n0;
        c[2] = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (int i = 0; i < 4; i++)
        out[i] = c[i];
}

/* Uniform in [0, 1), 53 bits. */
static inline double rng_uniform(uint64_t seed, uint64_t i)
{
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    const uint32_t counter[4] = {(uint32_t)i, (uint32_t)(i >> 32), 0, 0};
    uint32_t x[4];
    rng_philox(counter, key, x);
    return (double)(((uint64_t)x[1] << 32 | x[0]) >> 11) * 0x1p-53;
}

#endif
