#include "text/jinja_parse.h"

#include <string.h>

#include "text/jinja.h"

struct jnode *jparse_node(struct jparser *p, enum jnode_kind kind)
{
    struct jnode *node = jheap_alloc(p->h, 1, sizeof(*node));
    node->kind = (uint8_t)kind;
    node->line = p->token->line;
    p->h->line = p->token->line;
    return node;
}

const struct jname *jparse_intern(struct jparser *p, const char *text, size_t len)
{
    size_t looked = 0;
    for (struct jname *n = p->names; n; n = n->next, looked++)
        if (n->len == len && !memcmp(n->text, text, len))
            return n;
    jheap_spend(p->h, looked / 8);
    struct jname *name = jheap_alloc(p->h, 1, sizeof(*name));
    char *copy = jheap_text(p->h, len + 1);
    memcpy(copy, text, len);
    copy[len] = 0;
    name->text = copy;
    name->len = len;
    name->id = p->n_name++;
    name->next = p->names;
    p->names = name;
    return name;
}

void jparse_push(struct jparser *p, struct jnodes *list, struct jnode *node)
{
    if (list->n == list->cap) {
        size_t cap = list->cap ? list->cap * 2 : 4;
        struct jnode **at = jheap_alloc(p->h, cap, sizeof(*at));
        if (list->n)
            memcpy(at, list->at, list->n * sizeof(*at));
        list->at = at;
        list->cap = cap;
    }
    list->at[list->n++] = node;
}

static bool token_is(const struct jtoken *t, enum jtoken_kind kind, const char *text)
{
    return t->kind == kind && t->len == strlen(text) && !memcmp(t->text, text, t->len);
}

bool jparse_at_op(const struct jparser *p, const char *op)
{
    return token_is(p->token, JT_OP, op);
}

bool jparse_at_name(const struct jparser *p, const char *name)
{
    return token_is(p->token, JT_NAME, name);
}

bool jparse_skip_op(struct jparser *p, const char *op)
{
    bool is = jparse_at_op(p, op);
    p->token += is;
    return is;
}

bool jparse_skip_name(struct jparser *p, const char *name)
{
    bool is = jparse_at_name(p, name);
    p->token += is;
    return is;
}

_Noreturn void jparse_fail(struct jparser *p, const char *expected)
{
    const struct jtoken *t = p->token;
    int len = t->len < 60 ? (int)t->len : 60;
    p->h->line = t->line;
    switch (t->kind) {
    case JT_EOF:
        jheap_fail(p->h, "unexpected end of template, expected %s", expected);
    case JT_BLOCK_END:
    case JT_PRINT_END:
        jheap_fail(p->h, "unexpected end of the tag, expected %s", expected);
    case JT_DATA:
    case JT_BLOCK_BEGIN:
    case JT_PRINT_BEGIN:
        jheap_fail(p->h, "unexpected text or tag, expected %s", expected);
    default:
        jheap_fail(p->h, "unexpected '%.*s', expected %s", len, t->text, expected);
    }
}

void jparse_expect_op(struct jparser *p, const char *op)
{
    char quoted[8] = {'\'', op[0], op[1] ? op[1] : '\'', op[1] ? '\'' : 0};
    if (!jparse_skip_op(p, op))
        jparse_fail(p, quoted);
}

const struct jname *jparse_expect_name(struct jparser *p)
{
    if (p->token->kind != JT_NAME)
        jparse_fail(p, "a name");
    const struct jname *name = jparse_intern(p, p->token->text, p->token->len);
    p->token++;
    return name;
}

void jparse_enter(struct jparser *p)
{
    if (++p->h->depth > JINJA_SOURCE_DEPTH_MAX)
        jheap_fail(p->h, "the template nests more than %d levels", JINJA_SOURCE_DEPTH_MAX);
}

static void expect(struct jparser *p, enum jtoken_kind kind, const char *what)
{
    if (p->token->kind != kind)
        jparse_fail(p, what);
    p->token++;
}

static struct jnode *parse_statement(struct jparser *p);

/* Statements up to a block that begins with one of the names in `ends` ("else|endif"; NULL: the end of the
 * template). The name is the current token afterwards. */
static struct jnode *parse_body(struct jparser *p, const char *const *ends)
{
    struct jnodes list = {0};
    struct jnode *body = jparse_node(p, JN_BODY), *node;
    jparse_enter(p);
    for (;;) {
        switch (p->token->kind) {
        case JT_DATA:
            node = jparse_node(p, JN_DATA);
            node->value = jval_str(jstr_view(p->h, p->token->text, p->token->len, false));
            p->token++;
            break;
        case JT_PRINT_BEGIN:
            p->token++;
            node = jparse_node(p, JN_OUTPUT);
            node->a = jatom_parse_tuple(p, false, true, false, NULL);
            expect(p, JT_PRINT_END, "end of print statement");
            break;
        case JT_BLOCK_BEGIN:
            p->token++;
            for (size_t i = 0; ends && ends[i]; i++)
                if (jparse_at_name(p, ends[i]))
                    goto done;
            node = parse_statement(p);
            expect(p, JT_BLOCK_END, "end of statement block");
            break;
        default:
            if (ends)
                jparse_fail(p, ends[0]);
            goto done;
        }
        jparse_push(p, &list, node);
    }
done:
    p->h->depth--;
    body->list = list.at;
    body->n = list.n;
    return body;
}

/* The body of a statement, from the end of its tag. */
static struct jnode *parse_block(struct jparser *p, const char *const *ends)
{
    jparse_skip_op(p, ":");
    expect(p, JT_BLOCK_END, "end of statement block");
    return parse_body(p, ends);
}

/* The same, with the one name that ends it read as well. */
static struct jnode *parse_block_until(struct jparser *p, const char *end)
{
    const char *const ends[] = {end, NULL};
    struct jnode *body = parse_block(p, ends);
    p->token++;
    return body;
}

static struct jnode **pair(struct jparser *p, struct jnode *a, struct jnode *b)
{
    struct jnode **list = jheap_alloc(p->h, 2, sizeof(*list));
    list[0] = a;
    list[1] = b;
    return list;
}

static struct jnode *parse_if(struct jparser *p)
{
    static const char *const ends[] = {"endif", "elif", "else", NULL};
    struct jnode *node = jparse_node(p, JN_IF);
    struct jnodes list = {0};
    do {
        jparse_push(p, &list, jatom_parse_tuple(p, false, false, false, NULL));
        jparse_push(p, &list, parse_block(p, ends));
    } while (jparse_skip_name(p, "elif"));
    if (jparse_skip_name(p, "else"))
        node->c = parse_block_until(p, "endif");
    else
        p->token++;
    node->list = list.at;
    node->n = list.n;
    return node;
}

static struct jnode *parse_for(struct jparser *p)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    struct jnode *node = jparse_node(p, JN_FOR);
    node->a = jatom_parse_tuple(p, true, true, false, "in");
    jexpr_check_target(p, node->a);
    if (!jparse_skip_name(p, "in"))
        jparse_fail(p, "'in'");
    node->b = jatom_parse_tuple(p, false, false, false, "recursive");
    if (jparse_skip_name(p, "if"))
        node->c = jexpr_parse(p, true);
    node->recursive = jparse_skip_name(p, "recursive");
    p->loops++;
    struct jnode *body = parse_block(p, ends), *otherwise = NULL;
    p->loops--;
    if (jparse_skip_name(p, "else"))
        otherwise = parse_block_until(p, "endfor");
    else
        p->token++;
    node->list = pair(p, body, otherwise);
    node->n = 2;
    return node;
}

/* What set assigns to: names, or ns.attribute. */
static struct jnode *parse_set_target(struct jparser *p)
{
    struct jnode *target;
    if (p->token->kind == JT_NAME && p->token[1].kind == JT_OP && p->token[1].text[0] == '.') {
        target = jparse_node(p, JN_NSREF);
        target->name = jparse_expect_name(p);
        p->token++;
        target->value = jval_lit(p->h, jparse_expect_name(p)->text);
        return target;
    }
    target = jatom_parse_tuple(p, true, true, false, NULL);
    jexpr_check_target(p, target);
    return target;
}

static struct jnode *parse_set(struct jparser *p)
{
    struct jnode *node = jparse_node(p, JN_SET);
    node->a = parse_set_target(p);
    if (jparse_skip_op(p, "=")) {
        node->b = jatom_parse_tuple(p, false, true, false, NULL);
        return node;
    }
    node->kind = JN_SET_BLOCK;
    if (jparse_skip_op(p, "|"))
        node->b = jsuffix_parse_filters(p, NULL);
    node->list = pair(p, parse_block_until(p, "endset"), NULL);
    node->n = 1;
    return node;
}

/* (a, b=1): parameters of a macro or call block. */
static void parse_params(struct jparser *p, struct jmacro_def *m)
{
    size_t cap = 0;
    bool preset = false;
    jparse_expect_op(p, "(");
    while (!jparse_at_op(p, ")")) {
        if (m->n_param)
            jparse_expect_op(p, ",");
        if (m->n_param == cap) {
            cap = cap ? cap * 2 : 4;
            const struct jname **param = jheap_alloc(p->h, cap, sizeof(*param));
            struct jnode **value = jheap_alloc(p->h, cap, sizeof(*value));
            for (size_t i = 0; i < m->n_param; i++) {
                param[i] = m->param[i];
                value[i] = m->preset[i];
            }
            m->param = param;
            m->preset = value;
        }
        m->param[m->n_param] = jparse_expect_name(p);
        if (jparse_skip_op(p, "=")) {
            m->preset[m->n_param] = jexpr_parse(p, true);
            preset = true;
        } else if (preset) {
            jparse_fail(p, "a default, as the argument before has one");
        }
        m->n_param++;
    }
    p->token++;
}

/* The body of a macro: names it uses are its own, loops around it are not. */
static void parse_macro_body(struct jparser *p, struct jmacro_def *m, const char *end)
{
    struct jmacro_def *outer = p->macro;
    int loops = p->loops;
    p->macro = m;
    p->loops = 0;
    m->body = parse_block_until(p, end);
    p->macro = outer;
    p->loops = loops;
}

static struct jnode *parse_macro(struct jparser *p)
{
    struct jnode *node = jparse_node(p, JN_MACRO);
    node->macro = jheap_alloc(p->h, 1, sizeof(*node->macro));
    node->macro->name = node->name = jparse_expect_name(p);
    parse_params(p, node->macro);
    parse_macro_body(p, node->macro, "endmacro");
    return node;
}

static struct jnode *parse_call_block(struct jparser *p)
{
    struct jnode *node = jparse_node(p, JN_CALL_BLOCK);
    node->macro = jheap_alloc(p->h, 1, sizeof(*node->macro));
    if (jparse_at_op(p, "("))
        parse_params(p, node->macro);
    node->a = jexpr_parse(p, true);
    if (node->a->kind != JN_CALL)
        jparse_fail(p, "a call");
    parse_macro_body(p, node->macro, "endcall");
    return node;
}

static struct jnode *parse_filter_block(struct jparser *p)
{
    struct jnode *node = jparse_node(p, JN_FILTER_BLOCK);
    node->b = jsuffix_parse_filters(p, NULL);
    node->list = pair(p, parse_block_until(p, "endfilter"), NULL);
    node->n = 1;
    return node;
}

static struct jnode *parse_with(struct jparser *p)
{
    struct jnode *node = jparse_node(p, JN_WITH);
    struct jnodes list = {0};
    while (p->token->kind != JT_BLOCK_END && p->token->kind != JT_EOF) {
        if (list.n)
            jparse_expect_op(p, ",");
        struct jnode *target = jatom_parse_tuple(p, true, true, false, NULL);
        jexpr_check_target(p, target);
        jparse_push(p, &list, target);
        jparse_expect_op(p, "=");
        jparse_push(p, &list, jexpr_parse(p, true));
    }
    jparse_push(p, &list, parse_block_until(p, "endwith"));
    node->list = list.at;
    node->n = list.n;
    return node;
}

/* transformers' block that marks what an assistant says: a scope of its own, else without effect here. */
static struct jnode *parse_generation(struct jparser *p)
{
    struct jnode *node = jparse_node(p, JN_SCOPE);
    struct jmacro_def ignored = {0};
    struct jmacro_def *outer = p->macro;
    int loops = p->loops;
    p->macro = outer ? outer : &ignored;
    p->loops = 0;
    node->list = pair(p, parse_block_until(p, "endgeneration"), NULL);
    p->macro = outer;
    p->loops = loops;
    node->n = 1;
    return node;
}

static struct jnode *parse_jump(struct jparser *p, enum jnode_kind kind)
{
    if (!p->loops)
        jheap_fail(p->h, "break or continue outside of a loop");
    return jparse_node(p, kind);
}

static struct jnode *parse_statement(struct jparser *p)
{
    const struct jtoken *t = p->token;
    if (t->kind != JT_NAME)
        jparse_fail(p, "the name of a tag");
    p->h->line = t->line;
    if (jparse_skip_name(p, "if"))
        return parse_if(p);
    if (jparse_skip_name(p, "for"))
        return parse_for(p);
    if (jparse_skip_name(p, "set"))
        return parse_set(p);
    if (jparse_skip_name(p, "macro"))
        return parse_macro(p);
    if (jparse_skip_name(p, "call"))
        return parse_call_block(p);
    if (jparse_skip_name(p, "filter"))
        return parse_filter_block(p);
    if (jparse_skip_name(p, "with"))
        return parse_with(p);
    if (jparse_skip_name(p, "generation"))
        return parse_generation(p);
    if (jparse_skip_name(p, "break"))
        return parse_jump(p, JN_BREAK);
    if (jparse_skip_name(p, "continue"))
        return parse_jump(p, JN_CONTINUE);
    jheap_fail(p->h, "Encountered unknown tag '%.*s'.", t->len < 60 ? (int)t->len : 60, t->text);
}

struct jnode *jparse_template(struct jparser *p, const char *source, size_t len)
{
    p->token = jlex_tokens(p->h, source, len);
    return parse_body(p, NULL);
}
