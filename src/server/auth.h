/* API keys. Only their SHA-256 is kept, and comparing takes the same time for every key. */
#ifndef NYB_SERVER_AUTH_H
#define NYB_SERVER_AUTH_H

#include "server/config.h"

struct auth;
/* *out is NULL where no key is configured: everybody may. */
enum nyb_code auth_open(struct auth **out, const struct serve_config *c, struct nyb_err *err) NYB_MUST_CHECK;
void auth_close(struct auth *a);
/* header: the Authorization header, or NULL. */
bool auth_allows(const struct auth *a, const char *header);

#endif
