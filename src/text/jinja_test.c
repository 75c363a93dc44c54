#include "text/jinja_test.h"

#include <string.h>

#include "text/jinja_filter.h"
#include "text/jinja_op.h"
#include "text/jinja_repr.h"
#include "text/jinja_unicode.h"

/* Tests of the type alone. */
#define TYPE_TEST(name, condition)                                                \
    static bool test_##name(struct jrun *r, struct jval v, const struct jargs *a) \
    {                                                                             \
        jargs_none(r, a, #name);                                                  \
        return condition;                                                         \
    }
TYPE_TEST(defined, v.type != J_UNDEFINED)
TYPE_TEST(undefined, v.type == J_UNDEFINED)
TYPE_TEST(none, v.type == J_NONE)
TYPE_TEST(boolean, v.type == J_BOOL)
TYPE_TEST(false, v.type == J_BOOL && !v.b)
TYPE_TEST(true, v.type == J_BOOL && v.b)
TYPE_TEST(integer, v.type == J_INT || v.type == J_BIG)
TYPE_TEST(float, v.type == J_FLOAT)
TYPE_TEST(number, jval_is_number(v))
TYPE_TEST(string, v.type == J_STR)
TYPE_TEST(mapping, v.type == J_DICT)
TYPE_TEST(iterable, jval_is_iterable(v))
TYPE_TEST(callable, jval_is_callable(v))
TYPE_TEST(escaped, v.type == J_STR && v.s->markup)
/* What has a length and items: in Python also a dict and what is undefined, not a view. */
TYPE_TEST(sequence, v.type == J_STR || v.type == J_LIST || v.type == J_TUPLE || v.type == J_DICT ||
                        v.type == J_RANGE || v.type == J_UNDEFINED)

static bool remainder_is(struct jrun *r, struct jval v, struct jval by, int64_t rest)
{
    return jval_equal(&r->h, jop_binary(r, JOP_MOD, v, by), jval_int(rest));
}

static bool test_odd(struct jrun *r, struct jval v, const struct jargs *a)
{
    jargs_none(r, a, "odd");
    return remainder_is(r, v, jval_int(2), 1);
}

static bool test_even(struct jrun *r, struct jval v, const struct jargs *a)
{
    jargs_none(r, a, "even");
    return remainder_is(r, v, jval_int(2), 0);
}

static bool test_divisibleby(struct jrun *r, struct jval v, const struct jargs *a)
{
    struct jval by;
    jargs_bind(r, a, "divisibleby", "num", 1, &by);
    return remainder_is(r, v, by, 0);
}

static bool is_case(struct jrun *r, struct jval v, const struct jargs *a, bool (*is)(uint32_t),
                    bool (*is_other)(uint32_t))
{
    bool any = false;
    jargs_none(r, a, "upper or lower");
    for (struct jchars c = {.s = jrepr_str(&r->h, v)}; jchars_next(&c);) {
        if (is_other(c.code) || junicode_is_title(c.code))
            return false;
        any |= is(c.code);
    }
    return any;
}

static bool test_upper(struct jrun *r, struct jval v, const struct jargs *a)
{
    return is_case(r, v, a, junicode_is_upper, junicode_is_lower);
}
static bool test_lower(struct jrun *r, struct jval v, const struct jargs *a)
{
    return is_case(r, v, a, junicode_is_lower, junicode_is_upper);
}

static bool test_in(struct jrun *r, struct jval v, const struct jargs *a)
{
    struct jval seq;
    jargs_bind(r, a, "in", "seq", 1, &seq);
    return jval_contains(&r->h, seq, v);
}

/* The very same object; small integers and constants are one in Python. */
static bool test_sameas(struct jrun *r, struct jval v, const struct jargs *a)
{
    struct jval other;
    jargs_bind(r, a, "sameas", "other", 1, &other);
    if (v.type != other.type)
        return false;
    if (v.type == J_FLOAT || v.type == J_BIG || v.type == J_UNDEFINED)
        return false;
    if (v.type == J_LIST || v.type == J_TUPLE || v.type == J_DICT)
        return v.list == other.list;
    return jval_equal(&r->h, v, other);
}

static bool find_name(struct jrun *r, struct jval v, char *name, size_t cap)
{
    (void)r;
    if (v.type != J_STR || v.s->len >= cap)
        return false;
    memcpy(name, v.s->p, v.s->len);
    name[v.s->len] = 0;
    return true;
}

static bool test_filter(struct jrun *r, struct jval v, const struct jargs *a)
{
    char name[64];
    jargs_none(r, a, "filter");
    return find_name(r, v, name, sizeof(name)) && jfilter_find(name);
}

static bool test_test(struct jrun *r, struct jval v, const struct jargs *a)
{
    char name[64];
    jargs_none(r, a, "test");
    return find_name(r, v, name, sizeof(name)) && jtest_find(name);
}

static bool compare(struct jrun *r, struct jval v, const struct jargs *a, enum jop op)
{
    struct jval other;
    jargs_bind(r, a, "the comparison", "b", 1, &other);
    return jop_compare(r, op, v, other);
}

#define COMPARE_TEST(name, op)                                                    \
    static bool test_##name(struct jrun *r, struct jval v, const struct jargs *a) \
    {                                                                             \
        return compare(r, v, a, op);                                              \
    }
COMPARE_TEST(eq, JOP_EQ)
COMPARE_TEST(ne, JOP_NE)
COMPARE_TEST(lt, JOP_LT)
COMPARE_TEST(le, JOP_LE)
COMPARE_TEST(gt, JOP_GT)
COMPARE_TEST(ge, JOP_GE)

const struct jtest *jtest_find(const char *name)
{
    static const struct jtest table[] = {
        {"defined", test_defined},
        {"undefined", test_undefined},
        {"none", test_none},
        {"boolean", test_boolean},
        {"false", test_false},
        {"true", test_true},
        {"integer", test_integer},
        {"float", test_float},
        {"number", test_number},
        {"string", test_string},
        {"mapping", test_mapping},
        {"iterable", test_iterable},
        {"callable", test_callable},
        {"escaped", test_escaped},
        {"sequence", test_sequence},
        {"odd", test_odd},
        {"even", test_even},
        {"divisibleby", test_divisibleby},
        {"upper", test_upper},
        {"lower", test_lower},
        {"in", test_in},
        {"sameas", test_sameas},
        {"filter", test_filter},
        {"test", test_test},
        {"eq", test_eq},
        {"equalto", test_eq},
        {"==", test_eq},
        {"ne", test_ne},
        {"!=", test_ne},
        {"lt", test_lt},
        {"lessthan", test_lt},
        {"<", test_lt},
        {"le", test_le},
        {"<=", test_le},
        {"gt", test_gt},
        {"greaterthan", test_gt},
        {">", test_gt},
        {"ge", test_ge},
        {">=", test_ge},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        if (!strcmp(table[i].name, name))
            return &table[i];
    return NULL;
}
