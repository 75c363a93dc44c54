/* Expressions, with the precedences of jinja2's own parser (-2 ** 2 is 4, filters bind tighter than minus).
 */
#include <string.h>

#include "text/jinja.h"
#include "text/jinja_parse.h"

static struct jnode *parse_or(struct jparser *p);

static struct jnode *binary(struct jparser *p, enum jnode_kind kind, enum jop op, struct jnode *a,
                            struct jnode *b)
{
    struct jnode *node = jparse_node(p, kind);
    node->op = (uint8_t)op;
    node->a = a;
    node->b = b;
    return node;
}

struct jnode *jexpr_parse(struct jparser *p, bool with_condition)
{
    jparse_enter(p);
    struct jnode *node = parse_or(p);
    while (with_condition && jparse_skip_name(p, "if")) {
        struct jnode *cond = jparse_node(p, JN_COND);
        cond->a = node;
        cond->b = parse_or(p);
        if (jparse_skip_name(p, "else"))
            cond->c = jexpr_parse(p, true);
        node = cond;
    }
    p->h->depth--;
    return node;
}

static struct jnode *parse_unary(struct jparser *p, bool with_filter)
{
    struct jnode *node;
    jparse_enter(p);
    if (jparse_skip_op(p, "-"))
        node = binary(p, JN_UNARY, JOP_SUB, parse_unary(p, false), NULL);
    else if (jparse_skip_op(p, "+"))
        node = binary(p, JN_UNARY, JOP_ADD, parse_unary(p, false), NULL);
    else
        node = jatom_parse(p);
    node = jsuffix_parse(p, node);
    while (with_filter) {
        if (jparse_skip_op(p, "|"))
            node = jsuffix_parse_filters(p, node);
        else if (jparse_at_name(p, "is"))
            node = jsuffix_parse_test(p, node);
        else if (jparse_at_op(p, "("))
            node = jsuffix_parse_call(p, node);
        else
            break;
    }
    p->h->depth--;
    return node;
}

static struct jnode *parse_pow(struct jparser *p)
{
    struct jnode *node = parse_unary(p, true);
    while (jparse_skip_op(p, "**"))
        node = binary(p, JN_BINARY, JOP_POW, node, parse_unary(p, true));
    return node;
}

static struct jnode *parse_product(struct jparser *p)
{
    static const struct {
        const char *text;
        enum jop op;
    } ops[] = {{"*", JOP_MUL}, {"/", JOP_DIV}, {"//", JOP_FLOORDIV}, {"%", JOP_MOD}};
    struct jnode *node = parse_pow(p);
    for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
        if (jparse_skip_op(p, ops[i].text)) {
            node = binary(p, JN_BINARY, ops[i].op, node, parse_pow(p));
            i = SIZE_MAX; /* look for the next one from the start */
        }
    }
    return node;
}

static struct jnode *parse_concat(struct jparser *p)
{
    struct jnode *first = parse_product(p);
    if (!jparse_at_op(p, "~"))
        return first;
    struct jnode *node = jparse_node(p, JN_CONCAT);
    struct jnodes list = {0};
    jparse_push(p, &list, first);
    while (jparse_skip_op(p, "~"))
        jparse_push(p, &list, parse_product(p));
    node->list = list.at;
    node->n = list.n;
    return node;
}

static struct jnode *parse_sum(struct jparser *p)
{
    struct jnode *node = parse_concat(p);
    for (;;) {
        if (jparse_skip_op(p, "+"))
            node = binary(p, JN_BINARY, JOP_ADD, node, parse_concat(p));
        else if (jparse_skip_op(p, "-"))
            node = binary(p, JN_BINARY, JOP_SUB, node, parse_concat(p));
        else
            return node;
    }
}

/* Is the current token a comparison? Then it is read. */
static bool skip_comparison(struct jparser *p, enum jop *op)
{
    static const struct {
        const char *text;
        enum jop op;
    } ops[] = {{"==", JOP_EQ}, {"!=", JOP_NE}, {"<", JOP_LT}, {"<=", JOP_LE}, {">", JOP_GT}, {">=", JOP_GE}};
    for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
        *op = ops[i].op;
        if (jparse_skip_op(p, ops[i].text))
            return true;
    }
    *op = JOP_IN;
    if (jparse_skip_name(p, "in"))
        return true;
    *op = JOP_NOT_IN;
    const struct jtoken *next = p->token->kind == JT_EOF ? p->token : p->token + 1;
    if (!jparse_at_name(p, "not") || next->kind != JT_NAME || next->len != 2 || memcmp(next->text, "in", 2))
        return false;
    p->token += 2;
    return true;
}

static struct jnode *parse_compare(struct jparser *p)
{
    struct jnode *first = parse_sum(p), *node = NULL;
    struct jnodes list = {0};
    uint8_t *ops = NULL;
    enum jop op;
    while (skip_comparison(p, &op)) {
        if (!node) {
            node = jparse_node(p, JN_COMPARE);
            node->a = first;
        }
        size_t cap = list.cap;
        jparse_push(p, &list, parse_sum(p));
        if (list.cap != cap) {
            uint8_t *more = jheap_alloc(p->h, list.cap, 1);
            if (ops)
                memcpy(more, ops, list.n - 1);
            ops = more;
        }
        ops[list.n - 1] = (uint8_t)op;
    }
    if (!node)
        return first;
    node->list = list.at;
    node->n = list.n;
    node->ops = ops;
    return node;
}

static struct jnode *parse_not(struct jparser *p)
{
    if (!jparse_skip_name(p, "not"))
        return parse_compare(p);
    jparse_enter(p);
    struct jnode *node = binary(p, JN_NOT, JOP_ADD, parse_not(p), NULL);
    p->h->depth--;
    return node;
}

static struct jnode *parse_and(struct jparser *p)
{
    struct jnode *node = parse_not(p);
    while (jparse_skip_name(p, "and"))
        node = binary(p, JN_AND, JOP_ADD, node, parse_not(p));
    return node;
}

static struct jnode *parse_or(struct jparser *p)
{
    struct jnode *node = parse_and(p);
    while (jparse_skip_name(p, "or"))
        node = binary(p, JN_OR, JOP_ADD, node, parse_and(p));
    return node;
}

void jexpr_check_target(struct jparser *p, const struct jnode *node)
{
    if (node->kind == JN_NAME)
        return;
    if (node->kind != JN_TUPLE && node->kind != JN_LIST)
        jparse_fail(p, "a name, or names with commas, to assign to");
    for (size_t i = 0; i < node->n; i++)
        jexpr_check_target(p, node->list[i]);
}
