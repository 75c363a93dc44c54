/* Files of keys and certificates are read again when they have changed: new ones count from the next request
 * and the next connection on, and nothing that is open notices. What cannot be used changes nothing. */
#ifndef NYB_SERVER_RENEW_H
#define NYB_SERVER_RENEW_H

#include "server/server.h"

struct renew;

/* Before the files are read for the first time, so that no change is missed. NULL: there are none. */
struct renew *renew_open(struct server *s);
void renew_close(struct renew *r); /* NULL is fine */
/* From the loop. A file counts as changed once it has stood still between two looks, a second apart: who
 * writes it in parts is not caught between them. One that cannot be used is tried again at each look. */
void renew_look(struct renew *r, uint64_t now_ns);

#endif
