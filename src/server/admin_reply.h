/* What admin endpoints have in common: reading the body, and the replies of SGLang and FastDeploy. */
#ifndef NYB_SERVER_ADMIN_REPLY_H
#define NYB_SERVER_ADMIN_REPLY_H

#include "server/admin.h"

/* The parameters, of the body or of the query. NULL after the reply says why not; the caller releases it. */
json_t *admin_parameters(struct exchange *x, const struct admin_field *field, int n);

/* SGLang's {"success", "message", ...}: `more` (may be NULL) is an object whose members are added; released.
 * On failure {"error": ..} stands beside, as everywhere else. */
void admin_reply(struct exchange *x, int status, const char *param, const char *message, json_t *more);
void admin_reply_err(struct exchange *x, const struct nyb_err *err, json_t *more);

/* FastDeploy's {"request_id", "status", "error_message", "result"}; result may be NULL and is released. */
void admin_reply_control(struct exchange *x, json_t *result);
/* Turn the failure that is the reply into its form. */
void admin_wrap_failure(struct exchange *x);

#endif
