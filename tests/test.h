/* What every test includes: cmocka with its required headers, and a seeded random source. */
#ifndef NYB_TEST_H
#define NYB_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* splitmix64 */
static inline uint64_t test_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}
/* uniform in [-1, 1) */
static inline float test_random_float(uint64_t *state)
{
    return (float)((double)(test_random(state) >> 11) * 0x1p-52 - 1.0);
}
/* Memory of this process that is resident now. */
static inline long test_resident_kib(void)
{
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%*d %ld", &pages), 1);
    fclose(f);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

/* NYBBLE_LONG=1: make long. */
static inline bool test_is_long(void)
{
    const char *all = getenv("NYBBLE_LONG");
    return all && all[0] == '1';
}

#endif
