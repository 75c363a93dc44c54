/* nybble inspect --checksum. */
#ifndef NYB_CLI_INSPECT_CHECKSUM_H
#define NYB_CLI_INSPECT_CHECKSUM_H

#include "base/err.h"

/* Prints the checksum of a model, which need not fit in memory; `all`: of each of its tensors too. */
enum nyb_code inspect_checksum(const char *model, bool all, bool json, struct nyb_err *err) NYB_MUST_CHECK;

#endif
