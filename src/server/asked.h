/* Requests of other APIs: what all that make chats of them need. */
#ifndef NYB_SERVER_ASKED_H
#define NYB_SERVER_ASKED_H

#include <stddef.h>

#include "base/err.h"
#include "base/json.h"

/* A member that says something: NULL where there is none, or null. Borrowed. */
json_t *asked_member(const json_t *asked, const char *name);
/* All members but n of these names, as they are. */
void asked_copy_others(const json_t *asked, json_t *chat, const char *const *names, size_t n);

typedef enum nyb_code asked_converter(const json_t *asked, json_t *chat, struct nyb_err *err);
/* The chat that convert makes: the caller's to let go, NULL with an error. */
enum nyb_code asked_convert(const json_t *asked, asked_converter *convert, json_t **chat,
                            struct nyb_err *err);

#endif
