#include "cli/load_random.h"

#include <math.h>

uint64_t load_random_bits(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

double load_random_unit(uint64_t *state)
{
    return (double)(load_random_bits(state) >> 11) * 0x1p-53;
}

int load_random_int(uint64_t *state, int lo, int hi)
{
    double span = (double)hi - (double)lo + 1;
    return lo + (int)floor(load_random_unit(state) * span);
}

/* Box and Muller. */
static double normal(uint64_t *state)
{
    double radius = sqrt(-2.0 * log(1.0 - load_random_unit(state)));
    return radius * cos(2.0 * 3.14159265358979323846 * load_random_unit(state));
}

/* G. Marsaglia, W. W. Tsang: A simple method for generating gamma variables, ACM TOMS 26 (2000). A shape
 * below 1 is raised by one and the result multiplied by u^(1/shape). */
double load_random_gamma(uint64_t *state, double shape)
{
    double raise = 1.0;
    if (shape < 1.0) {
        raise = pow(1.0 - load_random_unit(state), 1.0 / shape);
        shape += 1.0;
    }
    double d = shape - 1.0 / 3.0, c = 1.0 / sqrt(9.0 * d);
    for (;;) {
        double x = normal(state), v = 1.0 + c * x;
        if (v <= 0.0)
            continue;
        v = v * v * v;
        if (log(1.0 - load_random_unit(state)) < 0.5 * x * x + d - d * v + d * log(v))
            return d * v * raise;
    }
}
