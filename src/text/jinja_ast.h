/* The tree of a template. Nodes, names and constants live in the template's heap and never change. */
#ifndef NYB_TEXT_JINJA_AST_H
#define NYB_TEXT_JINJA_AST_H

#include "text/jinja_value.h"

enum jnode_kind {
    /* Expressions */
    JN_CONST,   /* value                                                */
    JN_NAME,    /* name                                                 */
    JN_TUPLE,   /* list                                                 */
    JN_LIST,    /* list                                                 */
    JN_DICT,    /* list: key, value, key, value...                      */
    JN_ATTR,    /* a.value (value is a string)                          */
    JN_ITEM,    /* a[b]                                                 */
    JN_SLICE,   /* as b of an item: list of 3, each may be NULL         */
    JN_CALL,    /* a(args)                                              */
    JN_FILTER,  /* a | filter(args); a is NULL within a filter block    */
    JN_TEST,    /* a is test(args)                                      */
    JN_COND,    /* a if b else c; c may be NULL                         */
    JN_OR,      /* a or b                                               */
    JN_AND,     /* a and b                                              */
    JN_NOT,     /* not a                                                */
    JN_COMPARE, /* a op[0] list[0] op[1] list[1]...                     */
    JN_CONCAT,  /* list, by ~                                           */
    JN_BINARY,  /* a op b                                               */
    JN_UNARY,   /* op a                                                 */
    /* Statements */
    JN_DATA,         /* value: text of the template                        */
    JN_OUTPUT,       /* {{ a }}                                            */
    JN_IF,           /* list: test, body, test, body...; c: else, or NULL  */
    JN_FOR,          /* for a in b if c recursive: list[0] else list[1]    */
    JN_SET,          /* set a = b; a may be a name, a tuple or a JN_NSREF  */
    JN_SET_BLOCK,    /* set a | b: list[0]; b may be NULL                  */
    JN_NSREF,        /* name.value                                         */
    JN_MACRO,        /* macro                                              */
    JN_CALL_BLOCK,   /* call(macro) a                                     */
    JN_FILTER_BLOCK, /* filter b: list[0]                               */
    JN_WITH,         /* list: target, value, ..., body last                */
    JN_SCOPE,        /* list[0] in a scope of its own                      */
    JN_BODY,         /* list                                               */
    JN_BREAK,
    JN_CONTINUE,
};

enum jop {
    JOP_ADD,
    JOP_SUB,
    JOP_MUL,
    JOP_DIV,
    JOP_FLOORDIV,
    JOP_MOD,
    JOP_POW,
    JOP_EQ,
    JOP_NE,
    JOP_LT,
    JOP_LE,
    JOP_GT,
    JOP_GE,
    JOP_IN,
    JOP_NOT_IN,
};

struct jname {
    const char *text; /* terminated */
    size_t len;
    size_t id;          /* 0.. in the order of their first use */
    struct jname *next; /* older */
};

struct jnode;

struct jarg {
    const struct jname *name; /* NULL: by position */
    struct jnode *value;
    bool is_list, is_dict; /* *value, **value */
};

struct jmacro_def {
    const struct jname *name;   /* NULL: the body of a call block */
    const struct jname **param; /* (n_param) */
    struct jnode **preset;      /* (n_param), NULL: none */
    size_t n_param;
    struct jnode *body;
    bool uses_varargs, uses_kwargs, uses_caller;
};

struct jnode {
    uint8_t kind;
    uint8_t op;
    bool recursive;
    int line;
    struct jnode *a, *b, *c;
    struct jnode **list; /* (n) */
    size_t n;
    uint8_t *ops;     /* (n) of a comparison */
    struct jarg *arg; /* (n_arg) */
    size_t n_arg;
    const struct jname *name;     /* also of a filter or test */
    const struct jfilter *filter; /* NULL where there is none of this name */
    const struct jtest *test;
    struct jmacro_def *macro;
    struct jval value;
};

#endif
