/* Filters. Each part has a table that a row without a name ends. */
#ifndef NYB_TEXT_JINJA_FILTER_H
#define NYB_TEXT_JINJA_FILTER_H

#include "text/jinja_run.h"

struct jfilter {
    const char *name;
    struct jval (*call)(struct jrun *r, struct jval v, const struct jargs *a);
};

const struct jfilter *jfilter_find(const char *name); /* NULL: none */

extern const struct jfilter jfilter_text[]; /* of strings           */
extern const struct jfilter jfilter_seq[];  /* of sequences         */
extern const struct jfilter jfilter_pick[]; /* map, select, groupby */

#endif
