#ifndef NYB_BASE_CLOCK_H
#define NYB_BASE_CLOCK_H

#include <stdint.h>

uint64_t clock_ns(void);      /* monotonic */
uint64_t clock_unix_us(void); /* wall time */

#endif
