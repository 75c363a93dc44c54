/* Grammars as llama.cpp's GBNF writes them:
 *
 *     root  ::= "yes" | "no" reason?      # literals, |, names, ? * + {m,n}, ( )
 *     reason ::= ", because " [^\n]{1,80} # character classes; . is any character
 *
 * White space and newlines are free: a rule ends where the next "name ::=" begins. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/grammar_build.h"
#include "text/strmap.h"
#include "text/utf8.h"

#define DEPTH_MAX 200  /* parentheses within parentheses */
#define RULES_MAX 8192 /* rules of one grammar */

struct ebnf {
    struct grammar_ast *g;
    const char *text;
    size_t len, at;
    struct strmap names; /* to the rule's number less `base` */
    uint32_t base;
    bool *defined; /* (RULES_MAX) */
    int depth;
    struct nyb_err *err;
};

static enum nyb_code fail(struct ebnf *e, const char *what)
{
    int line = 1;
    for (size_t i = 0; i < e->at && i < e->len; i++)
        line += e->text[i] == '\n';
    char source[48];
    snprintf(source, sizeof(source), "the grammar (line %d) ", line);
    return grammar_fail_at(e->err, source, e->text, e->len, e->at, what);
}

static void skip_space(struct ebnf *e)
{
    while (e->at < e->len) {
        char c = e->text[e->at];
        if (c == '#')
            while (e->at < e->len && e->text[e->at] != '\n')
                e->at++;
        else if (c == ' ' || c == '\t' || c == '\n' || c == '\r')
            e->at++;
        else
            return;
    }
}

static size_t name_size(const struct ebnf *e)
{
    size_t n = 0;
    for (const char *s = e->text + e->at; e->at + n < e->len; n++) {
        char c = s[n];
        bool letter = ((c | 32) >= 'a' && (c | 32) <= 'z') || c == '_';
        if (!letter && (n == 0 || !((c >= '0' && c <= '9') || c == '-')))
            break;
    }
    return n;
}

/* Is there a name with ::= behind it? */
static bool at_rule(struct ebnf *e)
{
    size_t begin = e->at, n = name_size(e);
    e->at += n;
    skip_space(e);
    bool found = n > 0 && e->len - e->at >= 3 && !memcmp(e->text + e->at, "::=", 3);
    e->at = begin;
    return found;
}

static enum nyb_code take_name(struct ebnf *e, uint32_t *rule)
{
    size_t n = name_size(e);
    int32_t known = strmap_find(&e->names, e->text + e->at, n);
    if (known < 0) {
        if (e->names.n == RULES_MAX || n > 255)
            return fail(e, "a name beyond 255 bytes, or more than 8192 rules,");
        char *name = mem_strndup(e->text + e->at, n);
        uint32_t number = grammar_declare(e->g, name);
        free(name);
        known = e->g->full ? 0 : (int32_t)(number - e->base);
        if (!e->g->full)
            ASSERT(strmap_add(&e->names, e->text + e->at, n, known) == STRMAP_ADDED);
    }
    e->at += n;
    *rule = (uint32_t)known;
    return NYB_OK;
}

static enum nyb_code take_literal(struct ebnf *e, uint32_t *node)
{
    char quote = e->text[e->at];
    size_t begin = e->at++;
    *node = grammar_empty(e->g);
    while (e->at < e->len && e->text[e->at] != quote) {
        struct grammar_chars c = {0};
        enum nyb_code code = NYB_OK;
        uint32_t next = 0;
        if (e->text[e->at] == '\\') {
            e->at++;
            code = grammar_escape(e->text, e->len, &e->at, &c, e->err);
            grammar_chars_finish(&c);
            next = code == NYB_OK ? grammar_chars_node(e->g, &c) : 0;
            grammar_chars_free(&c);
        } else {
            next = grammar_literal(e->g, e->text + e->at, 1);
            e->at++;
        }
        TRY(code);
        *node = grammar_cat(e->g, *node, next);
    }
    if (e->at == e->len) {
        e->at = begin;
        return fail(e, "a literal that is not closed");
    }
    e->at++;
    return NYB_OK;
}

static enum nyb_code take_alternatives(struct ebnf *e, uint32_t *node);

static enum nyb_code take_group(struct ebnf *e, uint32_t *node)
{
    e->at++;
    if (++e->depth > DEPTH_MAX)
        return fail(e, "a parenthesis nested too deep");
    TRY(take_alternatives(e, node));
    e->depth--;
    if (e->at == e->len || e->text[e->at] != ')')
        return fail(e, "something else than the closing parenthesis");
    e->at++;
    return NYB_OK;
}

static enum nyb_code take_class(struct ebnf *e, uint32_t *node)
{
    struct grammar_chars c = {0};
    enum nyb_code code = NYB_OK;
    if (e->text[e->at++] == '[') {
        code = grammar_bracket(e->text, e->len, &e->at, &c, e->err);
    } else {
        grammar_chars_add(&c, 0, 0x10FFFF);
        grammar_chars_finish(&c);
    }
    *node = code == NYB_OK ? grammar_chars_node(e->g, &c) : 0;
    grammar_chars_free(&c);
    return code;
}

static enum nyb_code take_atom(struct ebnf *e, uint32_t *node)
{
    uint32_t rule = 0;
    switch (e->text[e->at]) {
    case '"':
    case '\'':
        return take_literal(e, node);
    case '(':
        return take_group(e, node);
    case '[':
    case '.':
        return take_class(e, node);
    default:
        if (name_size(e) == 0)
            return fail(e, "something that is no literal, class, name or parenthesis");
        TRY(take_name(e, &rule));
        *node = grammar_call(e->g, e->base + rule);
        return NYB_OK;
    }
}

static enum nyb_code take_repeated(struct ebnf *e, uint32_t *node)
{
    uint32_t min = 0, max = GRAMMAR_REPEAT;
    TRY(take_atom(e, node));
    skip_space(e);
    while (e->at < e->len && e->text[e->at] && strchr("*+?{", e->text[e->at])) {
        if (e->text[e->at] == '{') {
            TRY(grammar_count(e->text, e->len, &e->at, &min, &max, e->err));
        } else {
            min = e->text[e->at] == '+';
            max = e->text[e->at] == '?' ? 1 : GRAMMAR_REPEAT;
            e->at++;
        }
        if (++e->depth > DEPTH_MAX)
            return fail(e, "a repetition nested too deep");
        *node = grammar_times(e->g, *node, min, max);
        skip_space(e);
    }
    return NYB_OK;
}

static enum nyb_code take_sequence(struct ebnf *e, uint32_t *node)
{
    uint32_t next = 0;
    int depth = e->depth;
    *node = grammar_empty(e->g);
    for (skip_space(e); e->at < e->len && e->text[e->at] != '|' && e->text[e->at] != ')' && !at_rule(e);
         skip_space(e)) {
        TRY(take_repeated(e, &next));
        e->depth = depth;
        *node = grammar_cat(e->g, *node, next);
    }
    return NYB_OK;
}

static enum nyb_code take_alternatives(struct ebnf *e, uint32_t *node)
{
    uint32_t next = 0;
    TRY(take_sequence(e, node));
    while (e->at < e->len && e->text[e->at] == '|') {
        e->at++;
        TRY(take_sequence(e, &next));
        *node = grammar_alt(e->g, *node, next);
    }
    return NYB_OK;
}

static enum nyb_code take_rule(struct ebnf *e)
{
    uint32_t rule = 0, node = 0;
    if (!at_rule(e))
        return fail(e, "something else than the beginning of a rule, name ::=,");
    size_t begin = e->at;
    TRY(take_name(e, &rule));
    if (e->defined[rule]) {
        e->at = begin;
        return fail(e, "a rule that is there already");
    }
    e->defined[rule] = true;
    skip_space(e);
    e->at += 3;
    TRY(take_alternatives(e, &node));
    if (!e->g->full)
        grammar_define(e->g, e->base + rule, node);
    return NYB_OK;
}

static enum nyb_code take_all(struct ebnf *e, uint32_t *node)
{
    if ((e->at = utf8_valid_prefix(e->text, e->len)) != e->len)
        return fail(e, "a byte that is not UTF-8");
    e->at = 0;
    for (skip_space(e); e->at < e->len; skip_space(e))
        TRY(take_rule(e));
    int32_t root = strmap_find(&e->names, "root", 4);
    if (root < 0)
        return err_set(e->err, NYB_E_ARG, "the grammar has no rule named root");
    for (size_t i = 0; i < e->names.n; i++)
        if (!e->defined[i])
            return err_set(e->err, NYB_E_ARG, "the grammar calls a rule that it does not have: %.100s",
                           e->g->rule[e->base + i].name);
    *node = grammar_call(e->g, e->base + (uint32_t)root);
    return NYB_OK;
}

enum nyb_code grammar_ebnf(struct grammar_ast *g, const char *text, size_t len, uint32_t *node,
                           struct nyb_err *err)
{
    struct ebnf e = {.g = g, .text = text, .len = len, .base = g->n_rule, .err = err};
    e.defined = mem_alloc(RULES_MAX, sizeof(*e.defined));
    enum nyb_code code = take_all(&e, node);
    strmap_free(&e.names);
    free(e.defined);
    return code;
}
