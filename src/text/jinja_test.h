/* Tests, as after "is". */
#ifndef NYB_TEXT_JINJA_TEST_H
#define NYB_TEXT_JINJA_TEST_H

#include "text/jinja_run.h"

struct jtest {
    const char *name;
    bool (*call)(struct jrun *r, struct jval v, const struct jargs *a);
};

const struct jtest *jtest_find(const char *name); /* NULL: none */

#endif
