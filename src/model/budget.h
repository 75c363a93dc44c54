/* Whether memory will do, asked before it is taken. */
#ifndef NYB_MODEL_BUDGET_H
#define NYB_MODEL_BUDGET_H

#include "base/err.h"

/* Bytes that this process may still take: what the machine has, its control groups (v2 and v1) and its
 * address space limit allow. UINT64_MAX where nothing limits it. */
uint64_t budget_available(void);

/* An error at `what` that names both numbers when `need` is more. */
enum nyb_code budget_check(uint64_t need, const char *what, struct nyb_err *err) NYB_MUST_CHECK;

#endif
