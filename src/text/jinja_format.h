/* "..." % values, and "...".format(values). */
#ifndef NYB_TEXT_JINJA_FORMAT_H
#define NYB_TEXT_JINJA_FORMAT_H

#include "text/jinja_run.h"

/* values: a tuple, a dict, or one value. */
const struct jstr *jformat_percent(struct jrun *r, const struct jstr *format, struct jval values);
const struct jstr *jformat_braces(struct jrun *r, const struct jstr *format, const struct jargs *a);

#endif
