/* What checks of operators share: pools, random and poisoned floats, every level of this machine. */
#ifndef NYB_OPS_CASE_H
#define NYB_OPS_CASE_H

#include <math.h>

#include "base/pool.h"
#include "kernels/ops.h"
#include "test.h"

static struct pool *pools[3]; /* 1, 2 and 5 threads: 5 is more than many machines have cores */

static inline int open_pools(void **state)
{
    (void)state;
    static const int threads[] = {1, 2, 5};
    for (int i = 0; i < 3; i++)
        if (pool_open(&pools[i], threads[i], NULL) != NYB_OK)
            return -1;
    return 0;
}

static inline int close_pools(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++)
        pool_close(pools[i]);
    return 0;
}

/* (n) floats in [-scale, scale), on the heap: a read past the end is seen by ASan */
static inline float *random_floats(uint64_t *seed, size_t n, float scale)
{
    float *x = malloc((n ? n : 1) * sizeof(float));
    assert_non_null(x);
    for (size_t i = 0; i < n; i++)
        x[i] = scale * test_random_float(seed);
    return x;
}

static inline float *poisoned_floats(size_t n)
{
    float *x = malloc((n ? n : 1) * sizeof(float));
    assert_non_null(x);
    memset(x, 0xff, n * sizeof(float)); /* NaN */
    return x;
}

static inline void assert_close(const char *what, int level, float got, double want, double tolerance)
{
    if (!(fabs((double)got - want) <= tolerance))
        fail_msg("%s, %s: got %.9g, expected %.9g within %g", what, cpu_level_name((enum cpu_level)level),
                 (double)got, want, tolerance);
}

#define FOR_EACH_LEVEL(level) for (int level = 0; level <= (int)cpu_detect(); level++)

#endif
