/* Parameters that exist elsewhere and not here: refuse.def. */
#ifndef NYB_SERVER_REFUSE_H
#define NYB_SERVER_REFUSE_H

#include "base/json.h"

/* "name is not supported: why. (parameter=name)" for the first such parameter in the body. */
enum nyb_code refuse_check(const json_t *body, struct nyb_err *err) NYB_MUST_CHECK;

#endif
