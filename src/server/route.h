/* The table of endpoints: route.def, one row each. */
#ifndef NYB_SERVER_ROUTE_H
#define NYB_SERVER_ROUTE_H

#include "server/exchange.h"

enum route_auth { ROUTE_OPEN, ROUTE_KEY, ROUTE_ADMIN };
/* Where run is called, and whether it is refused while draining. */
enum route_kind {
    ROUTE_INLINE,   /* in the loop: microseconds                                              */
    ROUTE_WORK,     /* by a worker                                                            */
    ROUTE_GENERATE, /* by a worker; refused                                                   */
    ROUTE_CONTROL,  /* by an admin worker, which may take long                                */
    ROUTE_UPDATE,   /* the same; refused                                                      */
    ROUTE_UPLOAD,   /* the same; the body is no JSON and goes into x->upload while it arrives */
};

static inline bool route_is_refused_by_drain(enum route_kind kind)
{
    return kind == ROUTE_GENERATE || kind >= ROUTE_UPDATE;
}

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
