/* Expressions, with the precedences of jinja2's own parser (-2 ** 2 is 4, filters bind tighter than minus).
 */
#include <stdlib.h>
#include <string.h>

#include "text/jinja.h"
#include "text/jinja_filter.h"
#include "text/jinja_parse.h"
#include "text/jinja_test.h"

static struct jnode *parse_or(struct jparser *p);
static struct jnode *parse_unary(struct jparser *p, bool with_filter);

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

static struct jnode *constant(struct jparser *p, struct jval value)
{
    struct jnode *node = jparse_node(p, JN_CONST);
    node->value = value;
    return node;
}

static struct jnode *parse_name(struct jparser *p)
{
    static const struct {
        const char *text;
        struct jval value;
    } constants[] = {
        {"true", {.type = J_BOOL, .b = true}},
        {"True", {.type = J_BOOL, .b = true}},
        {"false", {.type = J_BOOL, .b = false}},
        {"False", {.type = J_BOOL, .b = false}},
        {"none", {.type = J_NONE}},
        {"None", {.type = J_NONE}},
    };
    for (size_t i = 0; i < sizeof(constants) / sizeof(constants[0]); i++)
        if (jparse_skip_name(p, constants[i].text))
            return constant(p, constants[i].value);
    struct jnode *node = jparse_node(p, JN_NAME);
    node->name = jparse_expect_name(p);
    if (p->macro) {
        p->macro->uses_varargs |= !strcmp(node->name->text, "varargs");
        p->macro->uses_kwargs |= !strcmp(node->name->text, "kwargs");
        p->macro->uses_caller |= !strcmp(node->name->text, "caller");
    }
    return node;
}

static struct jnode *parse_strings(struct jparser *p)
{
    struct jtext t = {.h = p->h};
    struct jnode *node = jparse_node(p, JN_CONST);
    for (; p->token->kind == JT_STRING; p->token++)
        jtext_add(&t, p->token->text, p->token->len, false);
    node->value = jval_str(jtext_take(&t));
    return node;
}

/* Digits that 64 bits cannot hold stay digits. */
static struct jval integer(struct jparser *p, const char *text)
{
    bool based = text[0] == '0' && (text[1] | 0x20) >= 'a';
    char letter = based ? (char)(text[1] | 0x20) : 0;
    int base = !based ? 10 : letter == 'b' ? 2 : letter == 'o' ? 8 : 16;
    int64_t value = 0;
    for (const char *c = based ? text + 2 : text; *c; c++) {
        int digit = *c <= '9' ? *c - '0' : (*c | 0x20) - 'a' + 10;
        if (__builtin_mul_overflow(value, base, &value) || __builtin_add_overflow(value, digit, &value)) {
            if (based)
                jheap_fail(p->h, "the integer %s does not fit 64 bits", text);
            return (struct jval){.type = J_BIG, .s = jstr_view(p->h, text, strlen(text), false)};
        }
    }
    return jval_int(value);
}

static struct jnode *parse_items(struct jparser *p, enum jnode_kind kind, const char *close)
{
    struct jnode *node = jparse_node(p, kind);
    struct jnodes list = {0};
    p->token++;
    while (!jparse_at_op(p, close)) {
        if (list.n) {
            jparse_expect_op(p, ",");
            if (jparse_at_op(p, close))
                break;
        }
        jparse_push(p, &list, jexpr_parse(p, true));
        if (kind == JN_DICT) {
            jparse_expect_op(p, ":");
            jparse_push(p, &list, jexpr_parse(p, true));
        }
    }
    jparse_expect_op(p, close);
    node->list = list.at;
    node->n = list.n;
    return node;
}

struct jnode *jexpr_parse_primary(struct jparser *p)
{
    const struct jtoken *token = p->token;
    struct jnode *node;
    switch (token->kind) {
    case JT_NAME:
        return parse_name(p);
    case JT_STRING:
        return parse_strings(p);
    case JT_INT:
        p->token++;
        return constant(p, integer(p, token->text));
    case JT_FLOAT:
        p->token++;
        return constant(p, jval_float(strtod(token->text, NULL)));
    default:
        break;
    }
    if (jparse_skip_op(p, "(")) {
        node = jexpr_parse_tuple(p, false, true, true, NULL);
        jparse_expect_op(p, ")");
        return node;
    }
    if (jparse_at_op(p, "["))
        return parse_items(p, JN_LIST, "]");
    if (jparse_at_op(p, "{"))
        return parse_items(p, JN_DICT, "}");
    jparse_fail(p, "an expression");
}

static bool at_tuple_end(const struct jparser *p, const char *end)
{
    return p->token->kind == JT_PRINT_END || p->token->kind == JT_BLOCK_END || jparse_at_op(p, ")") ||
           (end && jparse_at_name(p, end));
}

struct jnode *jexpr_parse_tuple(struct jparser *p, bool simplified, bool with_condition, bool parenthesized,
                                const char *end)
{
    struct jnodes list = {0};
    bool is_tuple = false;
    for (;;) {
        if (list.n)
            jparse_expect_op(p, ",");
        if (at_tuple_end(p, end))
            break;
        jparse_push(p, &list, simplified ? jexpr_parse_primary(p) : jexpr_parse(p, with_condition));
        if (!jparse_at_op(p, ","))
            break;
        is_tuple = true;
    }
    if (!is_tuple && list.n)
        return list.at[0];
    if (!is_tuple && !parenthesized)
        jparse_fail(p, "an expression");
    struct jnode *node = jparse_node(p, JN_TUPLE);
    node->list = list.at;
    node->n = list.n;
    return node;
}

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
        node->b = constant(p, integer(p, p->token->text));
        p->token++;
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

static struct jnode *parse_call(struct jparser *p, struct jnode *of)
{
    struct jnode *node = jparse_node(p, JN_CALL);
    node->a = of;
    parse_args(p, node);
    return node;
}

struct jnode *jexpr_parse_postfix(struct jparser *p, struct jnode *node)
{
    for (;;) {
        if (jparse_at_op(p, "."))
            node = parse_dot(p, node);
        else if (jparse_at_op(p, "["))
            node = parse_brackets(p, node);
        else if (jparse_at_op(p, "("))
            node = parse_call(p, node);
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

struct jnode *jexpr_parse_filters(struct jparser *p, struct jnode *of)
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

static struct jnode *parse_test(struct jparser *p, struct jnode *of)
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
        node->arg[0].value = jexpr_parse_postfix(p, jexpr_parse_primary(p));
        node->n_arg = 1;
    }
    return negated ? binary(p, JN_NOT, JOP_ADD, node, NULL) : node;
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
        node = jexpr_parse_primary(p);
    node = jexpr_parse_postfix(p, node);
    while (with_filter) {
        if (jparse_skip_op(p, "|"))
            node = jexpr_parse_filters(p, node);
        else if (jparse_at_name(p, "is"))
            node = parse_test(p, node);
        else if (jparse_at_op(p, "("))
            node = parse_call(p, node);
        else
            break;
    }
    p->h->depth--;
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
