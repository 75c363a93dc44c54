/* Regular expressions, the regular part of ECMA-262's and Python's: characters, . [] () (?:) | * + ? {m,n},
 * lazy forms (the same texts), \d \w \s, and ^ and $ at the ends. What looks around, back, or at word
 * borders, and flags, are refused by name. */
#include <string.h>

#include "base/mem.h"
#include "text/grammar_build.h"
#include "text/utf8.h"

#define DEPTH_MAX 200 /* groups within groups */

struct regex {
    struct grammar_ast *g;
    const char *text;
    size_t len, at;
    enum grammar_regex_form form;
    int depth;
    struct nyb_err *err;
};

static enum nyb_code fail(struct regex *r, const char *what)
{
    return grammar_fail_at(r->err, "the regular expression ", r->text, r->len, r->at, what);
}

/* What expressions can have and these do not. */
static enum nyb_code refuse(struct regex *r, const char *what)
{
    (void)fail(r, what);
    if (r->err)
        r->err->code = NYB_E_UNSUPPORTED;
    return NYB_E_UNSUPPORTED;
}

static enum nyb_code take_alternatives(struct regex *r, uint32_t *node);

static bool looking_at(const struct regex *r, const char *what)
{
    size_t n = strlen(what);
    return r->len - r->at >= n && !memcmp(r->text + r->at, what, n);
}

/* Consumes the set. */
static uint32_t chars_node(struct regex *r, struct grammar_chars *c)
{
    grammar_chars_finish(c);
    uint32_t node = r->form == GRAMMAR_REGEX_JSON ? grammar_json_chars(r->g, c) : grammar_chars_node(r->g, c);
    grammar_chars_free(c);
    return node;
}

static uint32_t any_text(struct regex *r)
{
    struct grammar_chars c = {0};
    grammar_chars_add(&c, 0, 0x10FFFF);
    return grammar_times(r->g, chars_node(r, &c), 0, GRAMMAR_REPEAT);
}

static enum nyb_code take_group(struct regex *r, uint32_t *node)
{
    r->at++;
    if (looking_at(r, "?:")) {
        r->at += 2;
    } else if (looking_at(r, "?P<") ||
               (looking_at(r, "?<") && !looking_at(r, "?<=") && !looking_at(r, "?<!"))) {
        const char *end = memchr(r->text + r->at, '>', r->len - r->at);
        if (!end)
            return fail(r, "a group's name that does not end");
        r->at = (size_t)(end - r->text) + 1;
    } else if (looking_at(r, "?")) {
        return refuse(r, "a lookaround, flag or condition, which is not supported,");
    }
    if (++r->depth > DEPTH_MAX)
        return fail(r, "a group nested too deep");
    TRY(take_alternatives(r, node));
    r->depth--;
    if (!looking_at(r, ")"))
        return fail(r, "a group that is not closed");
    r->at++;
    return NYB_OK;
}

/* Positions in messages are those of the whole expression. */
static enum nyb_code take_set(struct regex *r, uint32_t *node)
{
    struct grammar_chars c = {0};
    bool bracket = r->text[r->at++] == '[';
    enum nyb_code code = bracket ? grammar_bracket(r->text, r->len, &r->at, &c, r->err)
                                 : grammar_escape(r->text, r->len, &r->at, &c, r->err);
    *node = code == NYB_OK ? chars_node(r, &c) : 0;
    grammar_chars_free(&c);
    return code;
}

static enum nyb_code take_atom(struct regex *r, uint32_t *node)
{
    struct grammar_chars c = {0};
    switch (r->text[r->at]) {
    case '(':
        return take_group(r, node);
    case '[':
    case '\\':
        return take_set(r, node);
    case '.': /* all but the ends of lines: ECMA-262's, of which \n is Python's only one */
        r->at++;
        grammar_chars_add(&c, '\n', '\n');
        grammar_chars_add(&c, '\r', '\r');
        grammar_chars_add(&c, 0x2028, 0x2029);
        grammar_chars_finish(&c);
        grammar_chars_negate(&c);
        *node = chars_node(r, &c);
        return NYB_OK;
    case '*':
    case '+':
    case '?':
    case '{':
        return fail(r, "a repetition of nothing");
    case '^':
    case '$':
        return refuse(r, "^ or $ within the expression, which is not supported,");
    default:
        grammar_chars_add(&c, utf8_code(r->text + r->at), utf8_code(r->text + r->at));
        r->at += utf8_size(r->text[r->at]);
        *node = chars_node(r, &c);
        return NYB_OK;
    }
}

static enum nyb_code take_repeated(struct regex *r, uint32_t *node)
{
    uint32_t min = 0, max = GRAMMAR_REPEAT;
    TRY(take_atom(r, node));
    if (r->at >= r->len || !strchr("*+?{", r->text[r->at]) || !r->text[r->at])
        return NYB_OK;
    if (r->text[r->at] == '{') {
        TRY(grammar_count(r->text, r->len, &r->at, &min, &max, r->err));
    } else {
        min = r->text[r->at] == '+';
        max = r->text[r->at] == '?' ? 1 : GRAMMAR_REPEAT;
        r->at++;
    }
    r->at += looking_at(r, "?"); /* lazy: other matches, the same texts */
    if (looking_at(r, "*") || looking_at(r, "+") || looking_at(r, "{"))
        return fail(r, "a repetition of a repetition");
    *node = grammar_times(r->g, *node, min, max);
    return NYB_OK;
}

/* Anchors count at both ends of a branch that is not within a group. */
static enum nyb_code take_branch(struct regex *r, uint32_t *node)
{
    bool from_start = false, to_end = false;
    uint32_t next = 0;
    *node = grammar_empty(r->g);
    if (r->depth == 0 && looking_at(r, "^")) {
        from_start = true;
        r->at++;
    }
    while (r->at < r->len && !looking_at(r, "|") && !looking_at(r, ")")) {
        if (r->depth == 0 && looking_at(r, "$") && (r->at + 1 == r->len || r->text[r->at + 1] == '|')) {
            to_end = true;
            r->at++;
            break;
        }
        TRY(take_repeated(r, &next));
        *node = grammar_cat(r->g, *node, next);
    }
    if (r->form == GRAMMAR_REGEX_JSON && r->depth == 0) {
        if (!from_start)
            *node = grammar_cat(r->g, any_text(r), *node);
        if (!to_end)
            *node = grammar_cat(r->g, *node, any_text(r));
    }
    return NYB_OK;
}

static enum nyb_code take_alternatives(struct regex *r, uint32_t *node)
{
    uint32_t next = 0;
    TRY(take_branch(r, node));
    while (looking_at(r, "|")) {
        r->at++;
        TRY(take_branch(r, &next));
        *node = grammar_alt(r->g, *node, next);
    }
    return NYB_OK;
}

enum nyb_code grammar_regex(struct grammar_ast *g, const char *text, size_t len, enum grammar_regex_form form,
                            uint32_t *node, struct nyb_err *err)
{
    struct regex r = {.g = g, .text = text, .len = len, .form = form, .err = err};
    if ((r.at = utf8_valid_prefix(text, len)) != len)
        return fail(&r, "a byte that is not UTF-8");
    r.at = 0;
    TRY(take_alternatives(&r, node));
    return r.at == len ? NYB_OK : fail(&r, "a ) without its (");
}
