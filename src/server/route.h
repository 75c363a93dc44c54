/* The table of endpoints: route.def, one row each. */
#ifndef NYB_SERVER_ROUTE_H
#define NYB_SERVER_ROUTE_H

#include "server/exchange.h"

enum route_auth { ROUTE_OPEN, ROUTE_KEY };
/* Where run is called: in the loop (microseconds), by a worker, or by a worker and refused while draining. */
enum route_kind { ROUTE_INLINE, ROUTE_WORK, ROUTE_GENERATE };

struct route {
    const char *method, *path; /* a path that ends with slash and star takes any one further segment */
    enum route_auth auth;
    enum route_kind kind;
    void (*run)(struct exchange *x); /* fills the reply, or x->gen */
};

/* NULL: none. *allow: the methods of a path that exists ("GET, POST"), or NULL. Both live for ever. */
const struct route *route_find(const char *method, const char *path, const char **allow);

#define ROUTE(method, path, auth, kind, run) void run(struct exchange *x);
#include "server/route.def"
#undef ROUTE

#endif
