/* Regular expressions, the regular part of ECMA-262's and Python's: characters, . [] () (?:) | * + ? {m,n},
 * lazy forms (the same texts), \d \w \s, and ^ and $ at the ends. What looks around, back, or at word
 * borders, and flags, are refused by name. */
#include <string.h>

#include "base/mem.h"
#include "text/grammar_build.h"
#include "text/utf8.h"

#define DEPTH_MAX 200  /* groups within groups */
#define TIMES_MAX 1024 /* of a repetition without end, in a text whose length is bounded */

struct regex {
    struct grammar_ast *g;
    const char *text;
    size_t len, at;
    enum grammar_regex_form form;
    int depth;
    uint32_t most; /* times that a repetition without end is made at most */
    struct nyb_err *err;
};

/* A part of the expression, and how many characters its texts have; GRAMMAR_REPEAT: without end. */
struct part {
    uint32_t node, min, max;
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

static enum nyb_code take_alternatives(struct regex *r, struct part *p);

static bool looking_at(const struct regex *r, const char *what)
{
    size_t n = strlen(what);
    return r->len - r->at >= n && !memcmp(r->text + r->at, what, n);
}

static uint32_t product(uint32_t a, uint32_t b)
{
    uint64_t n = (uint64_t)a * b;
    return n < GRAMMAR_REPEAT ? (uint32_t)n : GRAMMAR_REPEAT;
}

static uint32_t sum(uint32_t a, uint32_t b)
{
    return a < GRAMMAR_REPEAT - b ? a + b : GRAMMAR_REPEAT;
}

static struct part both(struct regex *r, struct part a, struct part b)
{
    return (struct part){grammar_cat(r->g, a.node, b.node), sum(a.min, b.min), sum(a.max, b.max)};
}

static struct part either(struct regex *r, struct part a, struct part b)
{
    return (struct part){grammar_alt(r->g, a.node, b.node), a.min < b.min ? a.min : b.min,
                         a.max > b.max ? a.max : b.max};
}

static struct part times(struct regex *r, struct part a, uint32_t min, uint32_t max)
{
    if (max == GRAMMAR_REPEAT)
        max = r->most > min ? r->most : min;
    return (struct part){grammar_times(r->g, a.node, min, max), product(a.min, min), product(a.max, max)};
}

/* Consumes the set. */
static struct part one_of(struct regex *r, struct grammar_chars *c)
{
    grammar_chars_finish(c);
    uint32_t node = r->form == GRAMMAR_REGEX_JSON ? grammar_json_chars(r->g, c) : grammar_chars_node(r->g, c);
    grammar_chars_free(c);
    return (struct part){node, 1, 1};
}

static struct part any_text(struct regex *r)
{
    struct grammar_chars c = {0};
    grammar_chars_add(&c, 0, 0x10FFFF);
    return times(r, one_of(r, &c), 0, GRAMMAR_REPEAT);
}

static enum nyb_code take_group(struct regex *r, struct part *p)
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
    TRY(take_alternatives(r, p));
    r->depth--;
    if (!looking_at(r, ")"))
        return fail(r, "a group that is not closed");
    r->at++;
    return NYB_OK;
}

/* Positions in messages are those of the whole expression. */
static enum nyb_code take_set(struct regex *r, struct part *p)
{
    struct grammar_chars c = {0};
    bool bracket = r->text[r->at++] == '[';
    enum nyb_code code = bracket ? grammar_bracket(r->text, r->len, &r->at, &c, r->err)
                                 : grammar_escape(r->text, r->len, &r->at, &c, r->err);
    if (code == NYB_OK)
        *p = one_of(r, &c);
    grammar_chars_free(&c);
    return code;
}

static enum nyb_code take_atom(struct regex *r, struct part *p)
{
    struct grammar_chars c = {0};
    switch (r->text[r->at]) {
    case '(':
        return take_group(r, p);
    case '[':
    case '\\':
        return take_set(r, p);
    case '.': /* all but the ends of lines: ECMA-262's, of which \n is Python's only one */
        r->at++;
        grammar_chars_add(&c, '\n', '\n');
        grammar_chars_add(&c, '\r', '\r');
        grammar_chars_add(&c, 0x2028, 0x2029);
        grammar_chars_finish(&c);
        grammar_chars_negate(&c);
        *p = one_of(r, &c);
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
        *p = one_of(r, &c);
        return NYB_OK;
    }
}

static enum nyb_code take_repeated(struct regex *r, struct part *p)
{
    uint32_t min = 0, max = GRAMMAR_REPEAT;
    TRY(take_atom(r, p));
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
    *p = times(r, *p, min, max);
    return NYB_OK;
}

/* Anchors count at both ends of a branch that is not within a group. */
static enum nyb_code take_branch(struct regex *r, struct part *p)
{
    bool from_start = false, to_end = false;
    struct part next = {0};
    *p = (struct part){grammar_empty(r->g), 0, 0};
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
        *p = both(r, *p, next);
    }
    if (r->form == GRAMMAR_REGEX_JSON && r->depth == 0) {
        if (!from_start)
            *p = both(r, any_text(r), *p);
        if (!to_end)
            *p = both(r, *p, any_text(r));
    }
    return NYB_OK;
}

static enum nyb_code take_alternatives(struct regex *r, struct part *p)
{
    struct part next = {0};
    TRY(take_branch(r, p));
    while (looking_at(r, "|")) {
        r->at++;
        TRY(take_branch(r, &next));
        *p = either(r, *p, next);
    }
    return NYB_OK;
}

static enum nyb_code take(struct regex *r, struct part *p)
{
    if ((r->at = utf8_valid_prefix(r->text, r->len)) != r->len)
        return fail(r, "a byte that is not UTF-8");
    r->at = 0;
    TRY(take_alternatives(r, p));
    return r->at == r->len ? NYB_OK : fail(r, "a ) without its (");
}

enum nyb_code grammar_regex(struct grammar_ast *g, const char *text, size_t len, enum grammar_regex_form form,
                            uint32_t *node, struct nyb_err *err)
{
    struct regex r = {.g = g, .text = text, .len = len, .form = form, .most = GRAMMAR_REPEAT, .err = err};
    struct part p = {0};
    TRY(take(&r, &p));
    *node = p.node;
    return NYB_OK;
}

/* What it would have with repetitions of at most so many times. */
static enum nyb_code measure(const char *text, size_t len, uint32_t most, struct part *p, struct nyb_err *err)
{
    struct grammar_ast scratch = {0};
    struct regex r = {
        .g = &scratch, .text = text, .len = len, .form = GRAMMAR_REGEX_JSON, .most = most, .err = err};
    *p = (struct part){0};
    enum nyb_code code = take(&r, p);
    grammar_ast_free(&scratch);
    return code;
}

enum nyb_code grammar_regex_bounded(struct grammar_ast *g, const char *text, size_t len, uint32_t min,
                                    uint32_t max, enum grammar_regex_fit *fit, uint32_t *node,
                                    struct nyb_err *err)
{
    uint32_t most = 0, beyond = (max < TIMES_MAX ? max : TIMES_MAX) + 1;
    struct part p;
    TRY(measure(text, len, most, &p, err));
    *fit = p.max > max ? GRAMMAR_REGEX_LONGER : GRAMMAR_REGEX_FITS;
    while (beyond - most > 1 && *fit == GRAMMAR_REGEX_FITS) { /* most fits */
        uint32_t middle = most + (beyond - most) / 2;
        TRY(measure(text, len, middle, &p, err));
        if (p.max > max)
            beyond = middle;
        else
            most = middle;
    }
    struct regex r = {.g = g, .text = text, .len = len, .form = GRAMMAR_REGEX_JSON, .most = most, .err = err};
    TRY(take(&r, &p));
    if (*fit == GRAMMAR_REGEX_FITS && p.min < min)
        *fit = GRAMMAR_REGEX_SHORTER;
    *node = p.node;
    return NYB_OK;
}
