/* How one value is written by "%" and format(): its field, sign, digits. */
#ifndef NYB_TEXT_JINJA_SPEC_H
#define NYB_TEXT_JINJA_SPEC_H

#include "text/jinja_run.h"

#define JSPEC_WIDTH_MAX 1000000

struct jspec {
    uint32_t fill;
    char align; /* one of "<>=^", 0: by type */
    char sign;  /* one of "+- ", 0: '-' */
    bool alternate, zero;
    int64_t width, precision; /* -1: none */
    char group;               /* ',' or '_', 0: none */
    char type;                /* 0: none */
};

_Noreturn void jspec_fail(struct jrun *r, const char *why);

/* Put body (with a sign and a prefix of `head` bytes) into its field. */
void jspec_add_field(struct jtext *t, const struct jspec *spec, const struct jstr *body, size_t head,
                     char align, bool input);
void jspec_add_int(struct jrun *r, struct jtext *out, const struct jspec *spec, struct jval v);
void jspec_add_float(struct jrun *r, struct jtext *out, const struct jspec *spec, struct jval v);
void jspec_add_text(struct jrun *r, struct jtext *out, const struct jspec *spec, const struct jstr *s);

#endif
