/* Values of the template language: Python's, as far as templates meet them. */
#ifndef NYB_TEXT_JINJA_VALUE_H
#define NYB_TEXT_JINJA_VALUE_H

#include <jansson.h>

#include "text/jinja_str.h"

enum jtype {
    J_MISSING, /* no value at all: an argument that was not given */
    J_UNDEFINED,
    J_NONE,
    J_BOOL,
    J_INT,
    J_BIG, /* an integer beyond 64 bits, as its digits: it can be printed and compared */
    J_FLOAT,
    J_STR,
    J_LIST,
    J_TUPLE,
    J_DICT,
    J_RANGE,
    J_VIEW, /* keys, values or items of a dict          */
    J_ITER, /* what can be iterated once: Python's generators and iterators */
    J_NAMESPACE,
    J_FUNC,   /* a global function */
    J_METHOD, /* bound to its value */
    J_MACRO,
    J_LOOP,
    J_JOINER,
    J_CYCLER,
};

struct jval {
    uint8_t type;
    bool input; /* numbers: read from the input; strings have their own marks */
    union {
        bool b;
        int64_t i;
        double f;
        const char *undefined; /* what was looked for */
        const struct jstr *s;  /* J_STR, J_BIG */
        struct jlist *list;    /* J_LIST, J_TUPLE */
        struct jdict *dict;    /* J_DICT, J_NAMESPACE */
        struct jrange *range;
        struct jview *view;
        struct jiter *iter;
        const struct jfunc *func;
        struct jbound *bound;
        struct jmacro *macro;
        struct jloop *loop;
        struct jcycle *cycle; /* J_JOINER, J_CYCLER */
    };
};

struct jlist {
    struct jval *at; /* (n) */
    size_t n, cap;
    bool is_group; /* a tuple of groupby: its items are also .grouper and .list */
};
/* In the order of insertion. */
struct jdict {
    struct jval *key, *value; /* (n) */
    size_t n, cap;
};
struct jrange {
    int64_t start, stop, step;
};
enum jview_kind { JVIEW_KEYS, JVIEW_VALUES, JVIEW_ITEMS };
struct jview {
    struct jdict *dict;
    enum jview_kind kind;
};
struct jiter {
    struct jlist *list;
    size_t at; /* items that are gone */
    const char *type_name;
};
/* joiner(sep) and cycler(items...) */
struct jcycle {
    struct jlist *items;
    const struct jstr *separator;
    size_t at;
};

#define JVAL_NONE ((struct jval){.type = J_NONE})

static inline struct jval jval_bool(bool b)
{
    return (struct jval){.type = J_BOOL, .b = b};
}
static inline struct jval jval_int(int64_t i)
{
    return (struct jval){.type = J_INT, .i = i};
}
static inline struct jval jval_float(double f)
{
    return (struct jval){.type = J_FLOAT, .f = f};
}
static inline struct jval jval_str(const struct jstr *s)
{
    return (struct jval){.type = J_STR, .s = s};
}
static inline struct jval jval_list(struct jlist *list)
{
    return (struct jval){.type = J_LIST, .list = list};
}
static inline struct jval jval_tuple(struct jlist *list)
{
    return (struct jval){.type = J_TUPLE, .list = list};
}
static inline struct jval jval_dict(struct jdict *dict)
{
    return (struct jval){.type = J_DICT, .dict = dict};
}
static inline struct jval jval_undefined(const char *what)
{
    return (struct jval){.type = J_UNDEFINED, .undefined = what};
}
struct jval jval_lit(struct jheap *h, const char *text); /* template text */
/* What a filter of Python leaves as a generator or iterator. */
struct jval jval_iter(struct jheap *h, struct jlist *list, const char *type_name);

/* Deep: nothing of the jansson value is needed afterwards but its strings. */
struct jval jval_from_json(struct jheap *h, const json_t *json, bool input);

struct jlist *jlist_new(struct jheap *h, size_t cap);
void jlist_add(struct jheap *h, struct jlist *list, struct jval v);
struct jdict *jdict_new(struct jheap *h, size_t cap);
const struct jval *jdict_get(struct jheap *h, const struct jdict *d, struct jval key);
void jdict_set(struct jheap *h, struct jdict *d, struct jval key, struct jval value);

const char *jval_type_name(struct jval v); /* as Python names it: "str", "NoneType" */
bool jval_truth(struct jval v);
bool jval_is_number(struct jval v); /* bool, int, big int, float */
bool jval_is_callable(struct jval v);
bool jval_is_input(struct jval v); /* numbers and strings: did any of it come from the input? */
/* Integers, and True and False as 1 and 0. */
bool jval_as_int(struct jval v, int64_t *out);
bool jval_as_double(struct jval v, double *out);

int64_t jrange_len(const struct jrange *r);
/* The items as a list: the list itself where v is one. Fails where v cannot be iterated. */
struct jlist *jval_items(struct jheap *h, struct jval v);
bool jval_is_iterable(struct jval v);
bool jval_len(struct jval v, size_t *n); /* false: it has none */

bool jval_equal(struct jheap *h, struct jval a, struct jval b);
/* a < b, or a failure where Python has no order for them. */
bool jval_less(struct jheap *h, struct jval a, struct jval b);
bool jval_contains(struct jheap *h, struct jval container, struct jval item);
/* Stable; key[i] orders item[i]. */
void jval_sort(struct jheap *h, struct jval *key, struct jval *item, size_t n, bool reverse);

_Noreturn void jval_fail_undefined(struct jheap *h, struct jval v);

#endif
