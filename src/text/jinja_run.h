/* One render: its heap, its output, its variables. */
#ifndef NYB_TEXT_JINJA_RUN_H
#define NYB_TEXT_JINJA_RUN_H

#include "text/jinja_args.h"
#include "text/jinja_ast.h"

struct jbinding {
    const struct jname *name;
    struct jval value;
};

/* Where names are set: a macro's body, one round of a loop, a with block. Names are looked up outwards. */
struct jscope {
    struct jscope *up;   /* NULL: the template's own, whose names are in jrun.root */
    struct jbinding *at; /* (n) */
    size_t n, cap;
    bool captured; /* a macro was defined within, which may outlive it */
};

struct jrun {
    struct jheap h;
    struct jtext *out;
    struct jscope *scope;
    struct jval *root; /* by the id of the name; J_MISSING: not set */
    int64_t now;       /* seconds since 1970 */
    bool utc;          /* now was given, so that the answer does not depend on the machine's time zone */
    json_t *parsed;    /* an array of what from_json has read; NULL: nothing */
    /* Names that macros and loops bind; NULL where the template does not mention them. */
    const struct jname *name_loop, *name_caller, *name_varargs, *name_kwargs;
};

struct jmacro {
    const struct jmacro_def *def;
    struct jscope *scope; /* around its definition */
};

struct jfunc {
    const char *name;
    struct jval (*call)(struct jrun *r, const struct jargs *a);
};

struct jmethod {
    const char *name;
    enum jtype type;
    struct jval (*call)(struct jrun *r, struct jval self, const struct jargs *a);
};

struct jbound {
    struct jval self;
    const struct jmethod *method;
};

/* jinja_eval.c */
struct jval jeval(struct jrun *r, const struct jnode *node);
struct jval jeval_call(struct jrun *r, struct jval callee, const struct jargs *a);
/* Apply a chain of filters whose innermost one has no operand of its own. */
struct jval jeval_filters(struct jrun *r, const struct jnode *filter, struct jval v);
void jeval_args(struct jrun *r, const struct jarg *arg, size_t n, struct jargs *out);
void jeval_enter(struct jrun *r); /* a level of evaluation; r->h.depth-- leaves it */

/* jinja_exec.c */
enum jflow { JFLOW_NEXT, JFLOW_BREAK, JFLOW_CONTINUE };
enum jflow jexec(struct jrun *r, const struct jnode *node);
struct jval jexec_macro(struct jrun *r, const struct jmacro *m, const struct jargs *a);
/* Run what writes to the output, and take it as a string instead. */
struct jval jexec_capture(struct jrun *r, struct jscope *scope, const struct jnode *body);
struct jval jexec_lookup(struct jrun *r, const struct jname *name);

/* jinja_loop.c */
enum jflow jloop_exec(struct jrun *r, const struct jnode *node);
struct jval jloop_attr(struct jrun *r, struct jloop *loop, const struct jstr *name);
struct jval jloop_call(struct jrun *r, struct jloop *loop, const struct jargs *a); /* of a recursive one */

/* jinja_scope.c */
struct jscope *jscope_new(struct jrun *r, struct jscope *up);
void jscope_set(struct jrun *r, struct jscope *s, const struct jname *name, struct jval v);
/* Assign to a name, or item by item to the names of a tuple. */
void jscope_assign(struct jrun *r, struct jscope *s, const struct jnode *target, struct jval v);

#endif
