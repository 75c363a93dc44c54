/* a.b, a[b] and a[b:c:d], with the order in which jinja2's sandbox looks: an attribute before an item for the
 * dot, an item before an attribute for brackets. */
#ifndef NYB_TEXT_JINJA_ACCESS_H
#define NYB_TEXT_JINJA_ACCESS_H

#include "text/jinja_run.h"

struct jval jaccess_attr(struct jrun *r, struct jval v, const struct jstr *name);
struct jval jaccess_item(struct jrun *r, struct jval v, struct jval key);
/* Bounds are integers or None. */
struct jval jaccess_slice(struct jrun *r, struct jval v, struct jval start, struct jval stop,
                          struct jval step);
/* attribute= of filters: "a.b.0", or an integer. */
struct jval jaccess_path(struct jrun *r, struct jval v, struct jval path);

/* The parts of jinja_method*.c. */
const struct jmethod *jmethod_find(enum jtype type, const struct jstr *name);

#endif
