/* What expressions are made of: names, constants, lists, dicts and tuples. */
#include <stdlib.h>
#include <string.h>

#include "text/jinja.h"
#include "text/jinja_parse.h"

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

struct jnode *jatom_parse_integer(struct jparser *p)
{
    struct jnode *node = constant(p, integer(p, p->token->text));
    p->token++;
    return node;
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

struct jnode *jatom_parse(struct jparser *p)
{
    const struct jtoken *token = p->token;
    struct jnode *node;
    switch (token->kind) {
    case JT_NAME:
        return parse_name(p);
    case JT_STRING:
        return parse_strings(p);
    case JT_INT:
        return jatom_parse_integer(p);
    case JT_FLOAT:
        p->token++;
        return constant(p, jval_float(strtod(token->text, NULL)));
    default:
        break;
    }
    if (jparse_skip_op(p, "(")) {
        node = jatom_parse_tuple(p, false, true, true, NULL);
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

struct jnode *jatom_parse_tuple(struct jparser *p, bool simplified, bool with_condition, bool parenthesized,
                                const char *end)
{
    struct jnodes list = {0};
    bool is_tuple = false;
    for (;;) {
        if (list.n)
            jparse_expect_op(p, ",");
        if (at_tuple_end(p, end))
            break;
        jparse_push(p, &list, simplified ? jatom_parse(p) : jexpr_parse(p, with_condition));
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
