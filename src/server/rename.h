/* Requests of other APIs become chats, and an error about the chat is told in the names of what was asked. */
#ifndef NYB_SERVER_RENAME_H
#define NYB_SERVER_RENAME_H

#include <stddef.h>

#include "base/err.h"

struct rename {
    const char *chat, *asked; /* the same field there and here */
};

/* The first row (of n) whose field is at fault counts. Positions in a list that the chat counts otherwise are
 * said to be the chat's: list is its name there. */
void rename_fault(struct nyb_err *err, const struct rename *table, size_t n, const char *list);

#endif
