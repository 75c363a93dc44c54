#include "text/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "text/unicode16.h"
#include "text/utf8.h"

#define REGEX_MAX     16384u      /* bytes of a pattern; the longest known one has 400          */
#define JIT_STACK_MAX (16u << 20) /* grown into only by patterns that nest repeats              */
#define MATCH_LIMIT   50000000u   /* steps of one match: bounds what a hostile pattern can burn */

struct pattern {
    char *source;  /* for messages                           */
    char *literal; /* or NULL: a regex                       */
    size_t literal_len;
    pcre2_code *plain;     /* PCRE2's own classes                    */
    pcre2_code *unicode16; /* classes spelled out                    */
    pcre2_match_context *limits;
    bool jit;
};

struct pattern_scan {
    const struct pattern *p;
    const pcre2_code *code;
    pcre2_match_data *match;
    pcre2_match_context *context; /* own, once a bigger JIT stack was needed */
    pcre2_jit_stack *stack;
    const char *text;
    size_t len, at;
    size_t last_end; /* of the previous match; SIZE_MAX: none */
};

/* --- Rewriting ------------------------------------------------------------------------------------- */

struct rewriter {
    const char *s;
    size_t len, at;
    struct buf out;
    bool unicode16; /* spell classes out; otherwise leave PCRE2's own */
    bool in_class, negated_class;
    size_t class_start; /* first offset inside the bracket */
    struct nyb_err *err;
};

static enum nyb_code refuse(const struct rewriter *r, const char *what)
{
    return err_at(r->err, NYB_E_UNSUPPORTED, "tokenizer.json", -1,
                  "regex \"%.200s\" uses %s at byte %zu, which is not supported", r->s, what, r->at);
}

/* \p{Name} or \P{Name}; r->at stands on the p. */
static enum nyb_code rewrite_property(struct rewriter *r)
{
    bool negated = r->s[r->at] == 'P';
    const char *name = r->s + r->at + 2;
    const char *end = r->at + 1 < r->len && r->s[r->at + 1] == '{' ? strchr(name, '}') : NULL;
    if (!end)
        return refuse(r, "\\p without {name}");
    size_t n = (size_t)(end - name);
    if (!unicode16_knows(name, n)) {
        char what[64];
        snprintf(what, sizeof(what), "the class \\%c{%.*s}", r->s[r->at], n > 40 ? 40 : (int)n, name);
        return refuse(r, what);
    }
    if (negated && r->in_class)
        return refuse(r, "\\P inside a bracket");
    r->at += n + 3;
    if (!r->unicode16) {
        buf_printf(&r->out, "\\%c{%.*s}", negated ? 'P' : 'p', (int)n, name);
        return NYB_OK;
    }
    if (!r->in_class)
        buf_add_str(&r->out, negated ? "[^" : "[");
    buf_printf(&r->out, "\\p{%.*s}", (int)n, name);
    unicode16_add_ranges(&r->out, name, n);
    if (!r->in_class)
        buf_add_byte(&r->out, ']');
    return NYB_OK;
}

/* \d and \D: decimal digits; \s and \S: White_Space. */
static enum nyb_code rewrite_shorthand(struct rewriter *r, char c)
{
    bool negated = c == 'D' || c == 'S';
    if (c == 'D' && r->in_class)
        return refuse(r, "\\D inside a bracket");
    r->at++;
    if (!r->unicode16) {
        buf_printf(&r->out, "\\%c", c);
        return NYB_OK;
    }
    if (!r->in_class)
        buf_add_str(&r->out, c == 'D' ? "[^" : "["); /* \S brings its own complement */
    if (c == 's' || c == 'S') {
        unicode16_add_space(&r->out, negated);
    } else {
        buf_add_str(&r->out, "\\p{Nd}");
        unicode16_add_ranges(&r->out, "Nd", 2);
    }
    if (!r->in_class)
        buf_add_byte(&r->out, ']');
    return NYB_OK;
}

/* \uHHHH (Oniguruma only) as \x{HHHH}. */
static enum nyb_code rewrite_u(struct rewriter *r)
{
    if (r->len - r->at < 5 || strspn(r->s + r->at + 1, "0123456789abcdefABCDEF") < 4)
        return refuse(r, "\\u without four hex digits");
    buf_printf(&r->out, "\\x{%.4s}", r->s + r->at + 1);
    r->at += 5;
    return NYB_OK;
}

static enum nyb_code rewrite_escape(struct rewriter *r)
{
    r->at++;
    if (r->at >= r->len)
        return refuse(r, "a backslash at its end");
    char c = r->s[r->at];
    switch (c) {
    case 'p':
    case 'P':
        return rewrite_property(r);
    case 's':
    case 'S':
    case 'd':
    case 'D':
        return rewrite_shorthand(r, c);
    case 'u':
        return rewrite_u(r);
    case 'v': /* vertical tab; PCRE2 would read a class */
        buf_add_str(&r->out, "\\x0B");
        r->at++;
        return NYB_OK;
    default:
        break;
    }
    bool anchor = !r->in_class && (c == 'A' || c == 'z');
    bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (letter && !anchor && !strchr("rntfaex", c)) {
        char what[] = {'\\', c, 0};
        return refuse(r, what);
    }
    buf_add_byte(&r->out, '\\');
    buf_add_byte(&r->out, c);
    r->at++;
    return NYB_OK;
}

/* Inside a bracket: what the two engines read alike passes through. */
static enum nyb_code rewrite_in_class(struct rewriter *r, char c)
{
    if (c == '[')
        return refuse(r, "a bracket within a bracket");
    if (c == '&' && r->at + 1 < r->len && r->s[r->at + 1] == '&')
        return refuse(r, "&& within a bracket");
    if (c == ']') {
        if (r->at == r->class_start)
            return refuse(r, "a bracket that opens with ]");
        r->in_class = false;
    }
    buf_add_byte(&r->out, c);
    r->at++;
    return NYB_OK;
}

static enum nyb_code rewrite_outside(struct rewriter *r, char c)
{
    if (c == '}' && r->at + 1 < r->len && r->s[r->at + 1] == '+')
        return refuse(r, "{n,m}+"); /* possessive for PCRE2, a plain repeat for Oniguruma */
    buf_add_byte(&r->out, c);
    r->at++;
    if (c == '[') {
        r->in_class = true;
        if (r->at < r->len && r->s[r->at] == '^') {
            buf_add_byte(&r->out, '^');
            r->at++;
        }
        r->class_start = r->at;
    }
    return NYB_OK;
}

static enum nyb_code rewrite(char **out, const char *regex, size_t len, bool unicode16, struct nyb_err *err)
{
    struct rewriter r = {.s = regex, .len = len, .unicode16 = unicode16, .err = err};
    enum nyb_code code = NYB_OK;
    while (code == NYB_OK && r.at < len) {
        char c = regex[r.at];
        if (c == '\\')
            code = rewrite_escape(&r);
        else if (r.in_class)
            code = rewrite_in_class(&r, c);
        else
            code = rewrite_outside(&r, c);
    }
    if (code == NYB_OK && r.in_class)
        code = refuse(&r, "a bracket without an end");
    if (code == NYB_OK)
        *out = buf_steal(&r.out);
    buf_free(&r.out);
    return code;
}

enum nyb_code pattern_rewrite(char **out, const char *regex, size_t len, struct nyb_err *err)
{
    return rewrite(out, regex, len, true, err);
}

/* --- Compiling ------------------------------------------------------------------------------------- */

static enum nyb_code compile(pcre2_code **out, bool *jit, const char *regex, struct nyb_err *err)
{
    int number;
    PCRE2_SIZE at;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    ASSERT(context);
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    /* ^ and $ are those of lines, as in Oniguruma's Ruby syntax */
    *out = pcre2_compile((PCRE2_SPTR)regex, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE,
                         &number, &at, context);
    pcre2_compile_context_free(context);
    if (!*out) {
        PCRE2_UCHAR why[128];
        pcre2_get_error_message(number, why, sizeof(why));
        return err_at(err, NYB_E_FORMAT, "tokenizer.json", -1,
                      "regex \"%.200s\" is malformed at byte %zu: %s", regex, (size_t)at, (const char *)why);
    }
    *jit = pcre2_jit_compile(*out, PCRE2_JIT_COMPLETE) == 0;
    return NYB_OK;
}

static enum nyb_code open_form(pcre2_code **out, struct pattern *p, bool unicode16, struct nyb_err *err)
{
    char *spelled = NULL;
    bool jit = false;
    TRY(rewrite(&spelled, p->source, strlen(p->source), unicode16, err));
    enum nyb_code code = compile(out, &jit, spelled, err);
    free(spelled);
    p->jit = p->jit && jit;
    return code;
}

static enum nyb_code open_regex(struct pattern *p, struct nyb_err *err)
{
    p->limits = pcre2_match_context_create(NULL);
    ASSERT(p->limits);
    pcre2_set_match_limit(p->limits, MATCH_LIMIT);
    p->jit = true;
    TRY(open_form(&p->plain, p, false, err));
    return open_form(&p->unicode16, p, true, err);
}

enum nyb_code pattern_open(struct pattern **out, const char *regex, size_t len, struct nyb_err *err)
{
    *out = NULL;
    if (len == 0 || len > REGEX_MAX || strlen(regex) != len)
        return err_at(err, NYB_E_FORMAT, "tokenizer.json", -1, "a regex has %zu bytes; 1 to %u are accepted",
                      len, REGEX_MAX);
    struct pattern *p = mem_alloc(1, sizeof(*p));
    p->source = mem_strndup(regex, len);
    enum nyb_code code = open_regex(p, err);
    if (code != NYB_OK) {
        pattern_close(p);
        return code;
    }
    *out = p;
    return NYB_OK;
}

enum nyb_code pattern_open_literal(struct pattern **out, const char *text, size_t len, struct nyb_err *err)
{
    *out = NULL;
    if (len == 0)
        return err_at(err, NYB_E_FORMAT, "tokenizer.json", -1, "a pattern is an empty string");
    struct pattern *p = mem_alloc(1, sizeof(*p));
    p->source = mem_strndup(text, len);
    p->literal = mem_strndup(text, len);
    p->literal_len = len;
    *out = p;
    return NYB_OK;
}

void pattern_close(struct pattern *p)
{
    if (!p)
        return;
    pcre2_code_free(p->plain);
    pcre2_code_free(p->unicode16);
    pcre2_match_context_free(p->limits);
    free(p->source);
    free(p->literal);
    free(p);
}

/* --- Matching -------------------------------------------------------------------------------------- */

struct pattern_scan *pattern_scan_open(const struct pattern *p, bool unicode16)
{
    struct pattern_scan *s = mem_alloc(1, sizeof(*s));
    s->p = p;
    if (!p->literal) {
        s->code = unicode16 ? p->unicode16 : p->plain;
        s->match = pcre2_match_data_create(1, NULL); /* the whole match is all we ask for */
        ASSERT(s->match);
    }
    return s;
}

void pattern_scan_close(struct pattern_scan *s)
{
    if (!s)
        return;
    pcre2_match_data_free(s->match);
    pcre2_match_context_free(s->context);
    pcre2_jit_stack_free(s->stack);
    free(s);
}

void pattern_scan_text(struct pattern_scan *s, const char *text, size_t len)
{
    s->text = text;
    s->len = len;
    s->at = 0;
    s->last_end = SIZE_MAX;
}

static int match_once(struct pattern_scan *s)
{
    pcre2_match_context *context = s->context ? s->context : s->p->limits;
    if (s->p->jit)
        return pcre2_jit_match(s->code, (PCRE2_SPTR)s->text, s->len, s->at, PCRE2_NO_UTF_CHECK, s->match,
                               context);
    return pcre2_match(s->code, (PCRE2_SPTR)s->text, s->len, s->at, PCRE2_NO_UTF_CHECK, s->match, context);
}

/* The 32 KB of machine stack that JIT code starts with did not do. */
static bool grow_stack(struct pattern_scan *s)
{
    if (s->context)
        return false;
    s->stack = pcre2_jit_stack_create(64 * 1024, JIT_STACK_MAX, NULL);
    s->context = pcre2_match_context_copy(s->p->limits);
    if (!s->stack || !s->context)
        return false;
    pcre2_jit_stack_assign(s->context, NULL, s->stack);
    return true;
}

static enum nyb_code next_regex(struct pattern_scan *s, size_t *start, size_t *end, bool *found,
                                struct nyb_err *err)
{
    while (s->at <= s->len) {
        int n = match_once(s);
        if (n == PCRE2_ERROR_JIT_STACKLIMIT && grow_stack(s))
            n = match_once(s);
        if (n == PCRE2_ERROR_NOMATCH)
            return NYB_OK;
        if (n < 0) {
            PCRE2_UCHAR why[128];
            pcre2_get_error_message(n, why, sizeof(why));
            return err_set(err, NYB_E_RANGE, "regex \"%.200s\" gave up on a text of %zu bytes: %s",
                           s->p->source, s->len, (const char *)why);
        }
        const PCRE2_SIZE *at = pcre2_get_ovector_pointer(s->match);
        *start = at[0];
        *end = at[1];
        if (at[0] == at[1] &&
            at[1] == s->last_end) { /* an empty match right after the last one does not count */
            s->at += s->at < s->len ? utf8_size(s->text[s->at]) : 1;
            continue;
        }
        s->at = s->last_end = *end;
        *found = true;
        return NYB_OK;
    }
    return NYB_OK;
}

enum nyb_code pattern_next(struct pattern_scan *s, size_t *start, size_t *end, bool *found,
                           struct nyb_err *err)
{
    *found = false;
    if (!s->p->literal)
        return next_regex(s, start, end, found, err);
    const char *hit = memmem(s->text + s->at, s->len - s->at, s->p->literal, s->p->literal_len);
    if (!hit)
        return NYB_OK;
    *start = (size_t)(hit - s->text);
    *end = s->at = *start + s->p->literal_len;
    *found = true;
    return NYB_OK;
}
