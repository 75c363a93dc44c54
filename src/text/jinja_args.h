/* Arguments of functions, filters, tests and methods. */
#ifndef NYB_TEXT_JINJA_ARGS_H
#define NYB_TEXT_JINJA_ARGS_H

#include "text/jinja_value.h"

struct jrun;

struct jkw {
    const struct jstr *name;
    struct jval value;
};

struct jargs {
    const struct jval *at; /* (n) by position */
    size_t n;
    const struct jkw *kw; /* (n_kw) by name */
    size_t n_kw;
};

/* Sort arguments to parameters ("width,first,blank"), the first n_need of which must be given. out has one
 * value for each; what was not given stays J_MISSING. */
void jargs_bind(struct jrun *r, const struct jargs *a, const char *what, const char *params, size_t n_need,
                struct jval *out);
void jargs_none(struct jrun *r, const struct jargs *a, const char *what);

/* The value as what it must be. A missing one gives the default; None too where none_ok. */
int64_t jargs_int(struct jrun *r, struct jval v, const char *what, int64_t otherwise);
const struct jstr *jargs_str(struct jrun *r, struct jval v, const char *what); /* NULL: missing */
bool jargs_bool(struct jval v, bool otherwise);                                /* its truth */

#endif
