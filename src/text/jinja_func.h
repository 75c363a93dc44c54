/* Global functions. */
#ifndef NYB_TEXT_JINJA_FUNC_H
#define NYB_TEXT_JINJA_FUNC_H

#include "text/jinja_run.h"

const struct jfunc *jfunc_find(const char *name); /* NULL: none */

#endif
