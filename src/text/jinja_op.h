/* Python's operators. */
#ifndef NYB_TEXT_JINJA_OP_H
#define NYB_TEXT_JINJA_OP_H

#include "text/jinja_run.h"

struct jval jop_binary(struct jrun *r, enum jop op, struct jval a, struct jval b);
struct jval jop_unary(struct jrun *r, enum jop op, struct jval v);
bool jop_compare(struct jrun *r, enum jop op, struct jval a, struct jval b);
/* & < > " ' as HTML writes them, as Markup. */
const struct jstr *jop_escape(struct jrun *r, const struct jstr *s);

#endif
