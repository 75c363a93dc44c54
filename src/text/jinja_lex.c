#include "text/jinja_lex.h"

#include <string.h>

#include "text/jinja_str.h"
#include "text/jinja_unicode.h"
#include "text/utf8.h"

#define BRACKETS_MAX 256

struct lexer {
    struct jheap *h;
    const char *s;
    size_t len, at;
    int line;
    bool line_starting; /* the tag or text before ended a line, or nothing was before */
    struct jtoken *token;
    size_t n, cap;
};

static void add(struct lexer *l, enum jtoken_kind kind, const char *text, size_t len)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 64;
        struct jtoken *token = jheap_alloc(l->h, cap, sizeof(*token));
        if (l->n)
            memcpy(token, l->token, l->n * sizeof(*token));
        l->token = token;
        l->cap = cap;
    }
    l->token[l->n++] = (struct jtoken){kind, l->line, text, len};
}

static bool looking_at(const struct lexer *l, size_t at, const char *what)
{
    size_t n = strlen(what);
    return l->len - at >= n && !memcmp(l->s + at, what, n);
}

static void advance(struct lexer *l, size_t to)
{
    for (; l->at < to; l->at++) {
        if (l->s[l->at] == '\n')
            l->line++;
        l->h->line = l->line;
    }
}

static size_t skip_space(const struct lexer *l, size_t at)
{
    while (at < l->len && junicode_is_space(utf8_code(l->s + at)))
        at += utf8_size(l->s[at]);
    return at;
}

/* Where s[from..to) without its trailing whitespace ends. */
static size_t cut_space(const struct lexer *l, size_t from, size_t to)
{
    while (to > from) {
        size_t p = to - 1;
        while (p > from && utf8_is_tail(l->s[p]))
            p--;
        if (!junicode_is_space(utf8_code(l->s + p)))
            break;
        to = p;
    }
    return to;
}

/* The text s[from..to) before a tag whose first character after the delimiter is `sign`. */
static size_t end_of_data(const struct lexer *l, size_t from, size_t to, char sign, bool is_print)
{
    if (sign == '-')
        return cut_space(l, from, to);
    if (sign == '+' || is_print)
        return to;
    size_t line = to;
    while (line > from && l->s[line - 1] != '\n')
        line--;
    if ((line > from || l->line_starting) && cut_space(l, line, to) == line)
        return line;
    return to;
}

static void add_data(struct lexer *l, size_t from, size_t to)
{
    if (to > from)
        add(l, JT_DATA, l->s + from, to - from);
}

/* The next "{{", "{%" or "{#" at or after `at`; len: none. */
static size_t find_tag(const struct lexer *l, size_t at)
{
    for (; at < l->len; at++) {
        const char *brace = memchr(l->s + at, '{', l->len - at);
        if (!brace)
            break;
        at = (size_t)(brace - l->s);
        if (at + 1 < l->len && strchr("{%#", l->s[at + 1]) && l->s[at + 1])
            return at;
    }
    return l->len;
}

/* Past the end of a block or comment whose closing delimiter stands at `at` (a sign may stand before it): its
 * newline, or all whitespace after '-'. */
static size_t after_close(const struct lexer *l, size_t at, char sign, bool trim)
{
    at += 2;
    if (sign == '-')
        return skip_space(l, at);
    if (trim && sign != '+' && at < l->len && l->s[at] == '\n')
        at++;
    return at;
}

static void finish_tag(struct lexer *l, size_t to)
{
    l->line_starting = to > 0 && l->s[to - 1] == '\n';
    advance(l, to);
}

static bool is_sign(const struct lexer *l, size_t at)
{
    return at < l->len && (l->s[at] == '-' || l->s[at] == '+');
}

/* A comment from "{#" at `tag`. */
static void lex_comment(struct lexer *l, size_t tag)
{
    size_t at = tag + 2 + is_sign(l, tag + 2);
    const char *close = l->len - at >= 2 ? memmem(l->s + at, l->len - at, "#}", 2) : NULL;
    if (!close)
        jheap_fail(l->h, "Missing end of comment tag");
    size_t end = (size_t)(close - l->s);
    char sign = end > at ? l->s[end - 1] : 0;
    finish_tag(l, after_close(l, end, sign == '-' || sign == '+' ? sign : 0, true));
}

/* After "{%" and a sign, is this `raw` or `endraw` up to the closing delimiter? *close is where that stands.
 */
static bool is_raw_tag(const struct lexer *l, size_t at, const char *word, size_t *close, char *sign)
{
    at = skip_space(l, at);
    if (!looking_at(l, at, word))
        return false;
    at = skip_space(l, at + strlen(word));
    *sign = 0;
    if (at < l->len && (l->s[at] == '-' || (l->s[at] == '+' && word[0] == 'e')))
        *sign = l->s[at++];
    *close = at;
    return looking_at(l, at, "%}");
}

/* {% raw %} ... {% endraw %} from "{%" at `tag`; false: it is another block. */
static bool lex_raw(struct lexer *l, size_t tag)
{
    size_t close;
    char sign;
    if (!is_raw_tag(l, tag + 2 + is_sign(l, tag + 2), "raw", &close, &sign))
        return false;
    finish_tag(l, after_close(l, close, sign, false));
    size_t from = l->at;
    for (size_t at = from; (at = find_tag(l, at)) < l->len; at++) {
        size_t after = at + 2 + is_sign(l, at + 2);
        if (l->s[at + 1] != '%' || !is_raw_tag(l, after, "endraw", &close, &sign))
            continue;
        add_data(l, from, end_of_data(l, from, at, is_sign(l, at + 2) ? l->s[at + 2] : 0, false));
        finish_tag(l, after_close(l, close, sign, true));
        return true;
    }
    jheap_fail(l->h, "Missing end of raw directive");
}

static unsigned hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? (unsigned)(c - '0')
           : c >= 'a' && c <= 'f' ? (unsigned)(c - 'a') + 10
           : c >= 'A' && c <= 'F' ? (unsigned)(c - 'A') + 10
                                  : 99;
}

/* \xHH, \uHHHH or \UHHHHHHHH whose digits start at s; returns the bytes read. */
static size_t add_hex(struct jtext *t, const char *s, size_t left, size_t digits)
{
    uint32_t code = 0;
    for (size_t i = 0; i < digits; i++) {
        if (i >= left || hex_digit(s[i]) > 15)
            jheap_fail(t->h, "a string literal has a truncated \\x, \\u or \\U escape");
        code = code << 4 | hex_digit(s[i]);
    }
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
        jheap_fail(t->h, "a string literal escapes U+%04X, which is no character", code);
    jtext_add_code(t, code, false);
    return digits;
}

/* One escape after its backslash; returns the bytes read. */
static size_t add_escape(struct jtext *t, const char *s, size_t left)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    const char *known = s[0] ? strchr(from, s[0]) : NULL;
    if (known) {
        jtext_add(t, &to[known - from], 1, false);
        return 1;
    }
    if (s[0] == '\n')
        return 1;
    if (s[0] == 'x')
        return 1 + add_hex(t, s + 1, left - 1, 2);
    if (s[0] == 'u')
        return 1 + add_hex(t, s + 1, left - 1, 4);
    if (s[0] == 'U')
        return 1 + add_hex(t, s + 1, left - 1, 8);
    if (s[0] == 'N')
        jheap_fail(t->h, "a string literal names a character by \\N, which is not supported");
    if (s[0] >= '0' && s[0] <= '7') {
        uint32_t code = 0;
        size_t n = 0;
        for (; n < 3 && n < left && s[n] >= '0' && s[n] <= '7'; n++)
            code = code * 8 + (uint32_t)(s[n] - '0');
        jtext_add_code(t, code, false);
        return n;
    }
    jtext_add_lit(t, "\\", false); /* an unknown escape stays as it is */
    return 0;
}

static void lex_string(struct lexer *l)
{
    char quote = l->s[l->at];
    size_t at = l->at + 1;
    struct jtext t = {.h = l->h};
    while (at < l->len && l->s[at] != quote) {
        if (l->s[at] == '\\' && at + 1 < l->len) {
            at++;
            size_t n = add_escape(&t, l->s + at, l->len - at);
            if (n == 0) { /* so that an escaped character cannot end the string */
                size_t size = utf8_size(l->s[at]);
                jtext_add(&t, l->s + at, size, false);
                n = size;
            }
            at += n;
            continue;
        }
        size_t run = at;
        while (run < l->len && l->s[run] != quote && l->s[run] != '\\')
            run++;
        if (run == at)
            break;
        jtext_add(&t, l->s + at, run - at, false);
        at = run;
    }
    if (at >= l->len)
        jheap_fail(l->h, "a string literal does not end");
    const struct jstr *s = jtext_take(&t);
    add(l, JT_STRING, s->p, s->len);
    advance(l, at + 1);
}

static bool is_digit(const struct lexer *l, size_t at)
{
    return at < l->len && l->s[at] >= '0' && l->s[at] <= '9';
}

/* Digits with single underscores between them. */
static size_t skip_digits(const struct lexer *l, size_t at)
{
    while (is_digit(l, at) || (at < l->len && l->s[at] == '_' && is_digit(l, at + 1)))
        at++;
    return at;
}

static void add_number(struct lexer *l, enum jtoken_kind kind, size_t end)
{
    char *text = jheap_text(l->h, end - l->at + 1);
    size_t n = 0;
    for (size_t i = l->at; i < end; i++)
        if (l->s[i] != '_')
            text[n++] = l->s[i];
    text[n] = 0;
    add(l, kind, text, n);
    advance(l, end);
}

static size_t skip_based(const struct lexer *l, size_t at, unsigned base)
{
    size_t start = at;
    while (at < l->len && (hex_digit(l->s[at]) < base ||
                           (l->s[at] == '_' && at + 1 < l->len && hex_digit(l->s[at + 1]) < base)))
        at++;
    return at == start ? 0 : at;
}

static void lex_number(struct lexer *l)
{
    size_t at = l->at, based = 0;
    if (l->s[at] == '0' && at + 1 < l->len && strchr("bBoOxX", l->s[at + 1]) && l->s[at + 1]) {
        char b = (char)(l->s[at + 1] | 0x20);
        based = skip_based(l, at + 2, b == 'b' ? 2 : b == 'o' ? 8 : 16);
    }
    if (based) {
        add_number(l, JT_INT, based);
        return;
    }
    size_t end = skip_digits(l, at), digits = end;
    bool after_dot = at > 0 && l->s[at - 1] == '.'; /* a.0.1: both are integers */
    if (!after_dot && end < l->len && l->s[end] == '.' && is_digit(l, end + 1))
        end = skip_digits(l, end + 1);
    if (!after_dot && end < l->len && (l->s[end] | 0x20) == 'e') {
        size_t exponent = end + 1;
        if (exponent < l->len && (l->s[exponent] == '+' || l->s[exponent] == '-'))
            exponent++;
        if (is_digit(l, exponent))
            end = skip_digits(l, exponent);
    }
    if (end == digits && l->s[at] == '0') { /* a leading zero is a number of its own */
        while (end > at && strspn(l->s + at, "0_") < end - at)
            end--;
        if (end == at)
            end = at + 1;
    }
    add_number(l, end > digits ? JT_FLOAT : JT_INT, end);
}

static bool is_name_start(uint32_t c)
{
    return c == '_' || (c < 0x80 ? (c | 0x20) >= 'a' && (c | 0x20) <= 'z' : junicode_is_alpha(c));
}

static void lex_name(struct lexer *l)
{
    size_t at = l->at;
    while (at < l->len && (l->s[at] == '_' || junicode_is_word(utf8_code(l->s + at))))
        at += utf8_size(l->s[at]);
    add(l, JT_NAME, l->s + l->at, at - l->at);
    advance(l, at);
}

static void lex_operator(struct lexer *l, char *stack, size_t *depth)
{
    static const char *const two[] = {"//", "**", "==", "!=", ">=", "<="};
    static const char one[] = "+-/*%~[](){}><=.:|,;";
    char c = l->s[l->at];
    size_t n = 0;
    for (size_t i = 0; i < sizeof(two) / sizeof(two[0]); i++)
        if (looking_at(l, l->at, two[i]))
            n = 2;
    if (!n && c && strchr(one, c))
        n = 1;
    if (!n)
        jheap_fail(l->h, "unexpected char '%.*s'", (int)utf8_size(c), l->s + l->at);
    if (n == 1 && strchr("([{", c)) {
        if (*depth == BRACKETS_MAX)
            jheap_fail(l->h, "more than %d open brackets", BRACKETS_MAX);
        stack[(*depth)++] = c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (n == 1 && strchr(")]}", c)) {
        if (!*depth || stack[--*depth] != c)
            jheap_fail(l->h, "unexpected '%c'", c);
    }
    add(l, JT_OP, l->s + l->at, n);
    advance(l, l->at + n);
}

/* Does the tag end here? Then past its delimiter and the whitespace that goes with it. */
static size_t tag_end(const struct lexer *l, bool is_print)
{
    const char *close = is_print ? "}}" : "%}";
    char sign = l->s[l->at];
    if (looking_at(l, l->at, close))
        return after_close(l, l->at, 0, !is_print);
    if ((sign == '-' || (sign == '+' && !is_print)) && looking_at(l, l->at + 1, close))
        return after_close(l, l->at + 1, sign, !is_print);
    return 0;
}

/* The inside of {{ }} or {% %}. */
static void lex_expression(struct lexer *l, bool is_print)
{
    char stack[BRACKETS_MAX];
    size_t depth = 0, end;
    for (;;) {
        advance(l, skip_space(l, l->at));
        if (l->at >= l->len)
            return;
        char c = l->s[l->at];
        if (!depth && (end = tag_end(l, is_print))) {
            add(l, is_print ? JT_PRINT_END : JT_BLOCK_END, "", 0);
            finish_tag(l, end);
            return;
        }
        if (c == '"' || c == '\'')
            lex_string(l);
        else if (c >= '0' && c <= '9')
            lex_number(l);
        else if (is_name_start(utf8_code(l->s + l->at)))
            lex_name(l);
        else
            lex_operator(l, stack, &depth);
    }
}

/* Newlines become "\n" and one at the end is dropped, as jinja2 reads its source. */
static void normalize(struct lexer *l, const char *source, size_t len)
{
    char *s = jheap_text(l->h, len + 1);
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        if (source[i] != '\r') {
            s[n++] = source[i];
            continue;
        }
        s[n++] = '\n';
        i += i + 1 < len && source[i + 1] == '\n';
    }
    if (n && s[n - 1] == '\n')
        n--;
    s[n] = 0;
    l->s = s;
    l->len = n;
}

struct jtoken *jlex_tokens(struct jheap *h, const char *source, size_t len)
{
    struct lexer l = {.h = h, .line = 1, .line_starting = true};
    normalize(&l, source, len);
    while (l.at < l.len) {
        size_t tag = find_tag(&l, l.at);
        if (tag == l.len) {
            add_data(&l, l.at, l.len);
            break;
        }
        char kind = l.s[tag + 1], sign = is_sign(&l, tag + 2) ? l.s[tag + 2] : 0;
        if (kind == '{' && sign == '+')
            sign = 0; /* {{+1}}: no sign of the tag */
        add_data(&l, l.at, end_of_data(&l, l.at, tag, sign, kind == '{'));
        advance(&l, tag);
        if (kind == '#') {
            lex_comment(&l, tag);
        } else if (kind == '{' || !lex_raw(&l, tag)) {
            add(&l, kind == '{' ? JT_PRINT_BEGIN : JT_BLOCK_BEGIN, "", 0);
            advance(&l, tag + 2 + (sign != 0));
            l.line_starting = false;
            lex_expression(&l, kind == '{');
        }
    }
    add(&l, JT_EOF, "", 0);
    return l.token;
}
