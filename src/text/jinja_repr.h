/* Values as text: str(), repr() and json.dumps(). */
#ifndef NYB_TEXT_JINJA_REPR_H
#define NYB_TEXT_JINJA_REPR_H

#include "text/jinja_value.h"

void jrepr_add_str(struct jtext *t, struct jval v);
void jrepr_add_repr(struct jtext *t, struct jval v);
const struct jstr *jrepr_str(struct jheap *h, struct jval v); /* never Markup */

struct jrepr_json {
    bool ensure_ascii, sort_keys;
    const struct jstr *indent; /* of one level; NULL: all on one line */
    const struct jstr *item_separator, *key_separator;
};
void jrepr_add_json(struct jtext *t, struct jval v, const struct jrepr_json *format);

void jrepr_add_float(struct jtext *t, double x, bool input); /* shortest that reads back, as repr */

#endif
