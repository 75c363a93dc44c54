/* Random numbers of the load generator: a function of the seed on every machine. */
#ifndef NYB_CLI_LOAD_RANDOM_H
#define NYB_CLI_LOAD_RANDOM_H

#include <stddef.h>
#include <stdint.h>

uint64_t load_random_bits(uint64_t *state);              /* splitmix64           */
double load_random_unit(uint64_t *state);                /* [0, 1)               */
int load_random_int(uint64_t *state, int lo, int hi);    /* both ends included   */
double load_random_gamma(uint64_t *state, double shape); /* scale 1; shape above 0 */

#endif
