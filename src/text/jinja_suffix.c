/* What follows an expression: attributes, subscripts, calls, filters and tests. */
#include <string.h>

#include "text/jinja.h"
#include "text/jinja_filter.h"
#include "text/jinja_parse.h"
#include "text/jinja_test.h"

static struct jnode *parse_subscribed(struct jparser *p)
{
    struct jnode *part[3] = {NULL, NULL, NULL};
    if (!jparse_at_op(p, ":")) {
        part[0] = jexpr_parse(p, true);
        if (!jparse_at_op(p, ":"))
            return part[0];
    }
    p->token++;
    if (!jparse_at_op(p, ":") && !jparse_at_op(p, "]") && !jparse_at_op(p, ","))
        part[1] = jexpr_parse(p, true);
    if (jparse_skip_op(p, ":") && !jparse_at_op(p, "]") && !jparse_at_op(p, ","))
        part[2] = jexpr_parse(p, true);
    struct jnode *node = jparse_node(p, JN_SLICE);
    node->list = jheap_alloc(p->h, 3, sizeof(*node->list));
    memcpy(node->list, part, sizeof(part));
    node->n = 3;
    return node;
}

static struct jnode *parse_brackets(struct jparser *p, struct jnode *of)
{
    struct jnodes list = {0};
    p->token++;
    while (!jparse_at_op(p, "]")) {
        if (list.n)
            jparse_expect_op(p, ",");
        jparse_push(p, &list, parse_subscribed(p));
    }
    p->token++;
    struct jnode *node = jparse_node(p, JN_ITEM);
    node->a = of;
    if (list.n == 1) {
        node->b = list.at[0];
        return node;
    }
    for (size_t i = 0; i < list.n; i++)
        if (list.at[i]->kind == JN_SLICE)
            jparse_fail(p, "one slice");
    node->b = jparse_node(p, JN_TUPLE);
    node->b->list = list.at;
    node->b->n = list.n;
    return node;
}

static struct jnode *parse_dot(struct jparser *p, struct jnode *of)
{
    p->token++;
    struct jnode *node = jparse_node(p, p->token->kind == JT_INT ? JN_ITEM : JN_ATTR);
    node->a = of;
    if (p->token->kind == JT_INT) {
        node->b = jatom_parse_integer(p);
        return node;
    }
    node->name = jparse_expect_name(p);
    node->value = jval_lit(p->h, node->name->text);
    return node;
}

/* One argument into *arg; *seen remembers the kinds that were there: 1 named, 2 *list, 4 **dict. */
static void parse_arg(struct jparser *p, struct jarg *arg, unsigned *seen)
{
    bool bad = false;
    if (jparse_skip_op(p, "*")) {
        bad = *seen & 6;
        *seen |= 2;
        arg->is_list = true;
    } else if (jparse_skip_op(p, "**")) {
        bad = *seen & 4;
        *seen |= 4;
        arg->is_dict = true;
    } else if (p->token->kind == JT_NAME && p->token[1].kind == JT_OP && p->token[1].len == 1 &&
               p->token[1].text[0] == '=') {
        bad = *seen & 4;
        *seen |= 1;
        arg->name = jparse_expect_name(p);
        p->token++;
    } else {
        bad = *seen != 0;
    }
    if (bad)
        jparse_fail(p, "arguments by position first, then by name, * and **");
    arg->value = jexpr_parse(p, true);
}

/* The arguments in parentheses, into node. */
static void parse_args(struct jparser *p, struct jnode *node)
{
    struct jarg *arg = NULL;
    size_t n = 0, cap = 0;
    unsigned seen = 0;
    jparse_expect_op(p, "(");
    while (!jparse_at_op(p, ")")) {
        if (n) {
            jparse_expect_op(p, ",");
            if (jparse_at_op(p, ")"))
                break;
        }
        if (n == cap) {
            cap = cap ? cap * 2 : 4;
            struct jarg *more = jheap_alloc(p->h, cap, sizeof(*more));
            if (n)
                memcpy(more, arg, n * sizeof(*more));
            arg = more;
        }
        parse_arg(p, &arg[n++], &seen);
    }
    p->token++;
    node->arg = arg;
    node->n_arg = n;
}

struct jnode *jsuffix_parse_call(struct jparser *p, struct jnode *of)
{
    struct jnode *node = jparse_node(p, JN_CALL);
    node->a = of;
    parse_args(p, node);
    return node;
}

struct jnode *jsuffix_parse(struct jparser *p, struct jnode *node)
{
    for (;;) {
        if (jparse_at_op(p, "."))
            node = parse_dot(p, node);
        else if (jparse_at_op(p, "["))
            node = parse_brackets(p, node);
        else if (jparse_at_op(p, "("))
            node = jsuffix_parse_call(p, node);
        else
            return node;
    }
}

/* name.name.name */
static const struct jname *dotted_name(struct jparser *p)
{
    const struct jname *name = jparse_expect_name(p);
    while (jparse_skip_op(p, ".")) {
        const struct jname *next = jparse_expect_name(p);
        struct jtext t = {.h = p->h};
        jtext_printf(&t, false, "%.200s.%.200s", name->text, next->text);
        const struct jstr *s = jtext_take(&t);
        name = jparse_intern(p, s->p, s->len);
    }
    return name;
}

struct jnode *jsuffix_parse_filters(struct jparser *p, struct jnode *of)
{
    do {
        struct jnode *node = jparse_node(p, JN_FILTER);
        node->a = of;
        node->name = dotted_name(p);
        node->filter = jfilter_find(node->name->text);
        if (jparse_at_op(p, "("))
            parse_args(p, node);
        of = node;
    } while (jparse_skip_op(p, "|"));
    return of;
}

/* Can the current token start the bare argument of a test, as in "is divisibleby 3"? */
static bool at_test_arg(struct jparser *p)
{
    if (p->token->kind == JT_NAME) {
        if (jparse_at_name(p, "is"))
            jparse_fail(p, "one test: tests with \"is\" cannot be chained");
        return !jparse_at_name(p, "else") && !jparse_at_name(p, "or") && !jparse_at_name(p, "and");
    }
    return p->token->kind == JT_STRING || p->token->kind == JT_INT || p->token->kind == JT_FLOAT ||
           jparse_at_op(p, "[") || jparse_at_op(p, "{");
}

struct jnode *jsuffix_parse_test(struct jparser *p, struct jnode *of)
{
    p->token++;
    bool negated = jparse_skip_name(p, "not");
    struct jnode *node = jparse_node(p, JN_TEST);
    node->a = of;
    node->name = dotted_name(p);
    node->test = jtest_find(node->name->text);
    if (jparse_at_op(p, "(")) {
        parse_args(p, node);
    } else if (at_test_arg(p)) {
        node->arg = jheap_alloc(p->h, 1, sizeof(*node->arg));
        node->arg[0].value = jsuffix_parse(p, jatom_parse(p));
        node->n_arg = 1;
    }
    if (!negated)
        return node;
    struct jnode *negation = jparse_node(p, JN_NOT);
    negation->a = node;
    return negation;
}
