/* How much memory this process may still take. */
#ifndef NYB_BASE_SYSMEM_H
#define NYB_BASE_SYSMEM_H

#include <stdint.h>

/* Bytes: what the kernel calls available, and no more than this process's control group (v2) leaves.
 * UINT64_MAX where neither can be read. */
uint64_t sysmem_available(void);

#endif
