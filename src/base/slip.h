/* Which name somebody meant who made a slip: letters put in, left out, wrong or in each other's place.
 *
 *     size_t limit = slip_limit(typed);
 *     for each name: if (slip_is_nearer(typed, name, &limit)) found = name; */
#ifndef NYB_BASE_SLIP_H
#define NYB_BASE_SLIP_H

#include <stdbool.h>
#include <stddef.h>

/* One letter in four may be wrong; what is very long is nobody's slip. */
size_t slip_limit(const char *typed);
/* Is name nearer than limit? Then that is the limit from now on. Capitals, and _ for -, are no slips. */
bool slip_is_nearer(const char *typed, const char *name, size_t *limit);

#endif
