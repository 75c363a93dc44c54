/* API keys. Only their SHA-256 is kept, and comparing takes the same time for every key. */
#ifndef NYB_SERVER_AUTH_H
#define NYB_SERVER_AUTH_H

#include "server/config.h"

struct auth;
/* Keys of a list and of a file, which may be NULL. *out is NULL where there are none. option: the list's name
 * in errors. */
enum nyb_code auth_open(struct auth **out, const struct config_list *keys, const char *file,
                        const char *option, struct nyb_err *err) NYB_MUST_CHECK;
/* The same in place of *a, which stays after an error. */
enum nyb_code auth_renew(struct auth **a, const struct config_list *keys, const char *file,
                         const char *option, struct nyb_err *err) NYB_MUST_CHECK;
void auth_close(struct auth *a);
/* header: the Authorization header, or NULL; key: one that came by itself, or NULL. Without keys everybody
 * may. */
bool auth_allows(const struct auth *a, const char *header, const char *key);

#endif
