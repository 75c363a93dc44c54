/* JSON as RFC 8259 has it, within bounds: what a model may write where any value will do, and the parts that
 * schemas are made of. Everything here is also what parse_json.h and jansson accept. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/grammar_build.h"
#include "text/utf8.h"

#define INDENT_MAX   32 /* spaces of an indentation */
#define TABS_MAX     8  /* or tabs */
#define EXPONENT_MAX 2  /* digits */

static uint32_t byte(struct grammar_ast *g, char c)
{
    return grammar_range(g, (uint8_t)c, (uint8_t)c);
}

/* ---- white space ----------------------------------------------------------------------------------- */

/* Nothing, a space, or a newline with an indentation: what people and json.dumps write, and no more, for a
 * model that likes spaces would go on with them for ever. */
static uint32_t default_space(struct grammar_ast *g)
{
    uint32_t indent = grammar_alt(g, grammar_times(g, byte(g, ' '), 0, INDENT_MAX),
                                  grammar_times(g, byte(g, '\t'), 1, TABS_MAX));
    uint32_t line = grammar_cat(g, byte(g, '\n'), indent);
    return grammar_maybe(g, grammar_alt(g, byte(g, ' '), line));
}

/* ---- strings --------------------------------------------------------------------------------------- */

static uint32_t hex(struct grammar_ast *g, const char *ranges)
{
    uint32_t node = grammar_never(g);
    for (; *ranges; ranges += 2)
        node = grammar_alt(g, node, grammar_range(g, (uint8_t)ranges[0], (uint8_t)ranges[1]));
    return node;
}

/* uXXXX without the backslash: a character of the basic plane, or a pair of surrogates; never one alone. */
static uint32_t unicode_escape(struct grammar_ast *g)
{
    uint32_t any = hex(g, "09afAF"), any2 = grammar_times(g, any, 2, 2), any3 = grammar_times(g, any, 3, 3);
    uint32_t plain =
        grammar_alt(g, grammar_cat(g, hex(g, "09acAC"), any3), grammar_cat(g, hex(g, "efEF"), any3));
    uint32_t d = hex(g, "ddDD");
    plain = grammar_alt(g, plain, grammar_cat(g, d, grammar_cat(g, hex(g, "07"), any2)));
    uint32_t high = grammar_cat(g, d, grammar_cat(g, hex(g, "89abAB"), any2));
    uint32_t low = grammar_cat(g, d, grammar_cat(g, hex(g, "cfCF"), any2));
    uint32_t pair = grammar_cat(g, high, grammar_cat(g, grammar_text(g, "\\u"), low));
    return grammar_cat(g, byte(g, 'u'), grammar_alt(g, plain, pair));
}

static void add_unescaped(struct grammar_chars *c)
{
    grammar_chars_add(c, 0x20, 0x21);
    grammar_chars_add(c, 0x23, 0x5B);
    grammar_chars_add(c, 0x5D, 0x10FFFF);
    grammar_chars_finish(c);
}

static uint32_t any_character(struct grammar_ast *g)
{
    struct grammar_chars c = {0};
    uint32_t escape = unicode_escape(g);
    for (const char *simple = "\"\\/bfnrt"; *simple; simple++)
        escape = grammar_alt(g, escape, byte(g, *simple));
    add_unescaped(&c);
    uint32_t node = grammar_alt(g, grammar_chars_node(g, &c), grammar_cat(g, byte(g, '\\'), escape));
    grammar_chars_free(&c);
    return node;
}

/* How json.dumps writes a control character, a quote or a backslash. */
static uint32_t escaped(struct grammar_ast *g, uint32_t c)
{
    static const char *const simple[128] = {['"'] = "\\\"", ['\\'] = "\\\\", ['\b'] = "\\b", ['\f'] = "\\f",
                                            ['\n'] = "\\n", ['\r'] = "\\r",  ['\t'] = "\\t"};
    char text[8];
    if (simple[c])
        return grammar_text(g, simple[c]);
    snprintf(text, sizeof(text), "\\u%04x", c);
    return grammar_text(g, text);
}

uint32_t grammar_json_chars(struct grammar_ast *g, const struct grammar_chars *c)
{
    struct grammar_chars plain = {0};
    uint32_t node = grammar_never(g);
    for (size_t i = 0; i < c->n; i++)
        for (uint32_t lo = c->span[i].lo; lo <= c->span[i].hi;) {
            bool special = lo < 0x20 || lo == '"' || lo == '\\';
            uint32_t end = lo < '"' ? '"' : lo < '\\' ? '\\' : 0x110000;
            uint32_t hi = special ? lo : c->span[i].hi < end ? c->span[i].hi : end - 1;
            if (special)
                node = grammar_alt(g, node, escaped(g, lo));
            else
                grammar_chars_add(&plain, lo, hi);
            lo = hi + 1;
        }
    grammar_chars_finish(&plain);
    node = grammar_alt(g, node, grammar_chars_node(g, &plain));
    grammar_chars_free(&plain);
    return node;
}

static uint32_t quoted(struct grammar_ast *g, uint32_t inside)
{
    return grammar_cat(g, byte(g, '"'), grammar_cat(g, inside, byte(g, '"')));
}

uint32_t grammar_json_string(struct grammar_json *j, uint32_t min, uint32_t max)
{
    uint32_t one =
        min == 0 && max == GRAMMAR_REPEAT ? j->g->rule[j->character].node : grammar_call(j->g, j->character);
    return quoted(j->g, grammar_times(j->g, one, min, max));
}

/* ---- numbers --------------------------------------------------------------------------------------- */

uint32_t grammar_json_integer(struct grammar_json *j)
{
    struct grammar_ast *g = j->g;
    uint32_t digit = grammar_range(g, '0', '9');
    uint32_t more = grammar_times(g, digit, 0, GRAMMAR_DIGITS_MAX - 1);
    uint32_t whole = grammar_alt(g, byte(g, '0'), grammar_cat(g, grammar_range(g, '1', '9'), more));
    return grammar_cat(g, grammar_maybe(g, byte(g, '-')), whole);
}

uint32_t grammar_json_number(struct grammar_json *j)
{
    struct grammar_ast *g = j->g;
    uint32_t digit = grammar_range(g, '0', '9');
    uint32_t fraction = grammar_cat(g, byte(g, '.'), grammar_times(g, digit, 1, GRAMMAR_DIGITS_MAX));
    uint32_t sign = grammar_maybe(g, grammar_alt(g, byte(g, '+'), byte(g, '-')));
    uint32_t exponent = grammar_cat(g, grammar_alt(g, byte(g, 'e'), byte(g, 'E')),
                                    grammar_cat(g, sign, grammar_times(g, digit, 1, EXPONENT_MAX)));
    return grammar_cat(g, grammar_json_integer(j),
                       grammar_cat(g, grammar_maybe(g, fraction), grammar_maybe(g, exponent)));
}

/* ---- any value ------------------------------------------------------------------------------------- */

uint32_t grammar_json_space(struct grammar_json *j)
{
    return grammar_call(j->g, j->space);
}

/* open, perhaps items with commas, close. White space may stand behind { [ , : and before } ] as people and
 * json.dumps write it, and nowhere else. */
static uint32_t listed(struct grammar_json *j, char open, uint32_t item, char close)
{
    struct grammar_ast *g = j->g;
    uint32_t space = grammar_json_space(j);
    uint32_t next = grammar_cat(g, byte(g, ','), grammar_cat(g, space, item));
    uint32_t items = grammar_cat(g, item, grammar_cat(g, grammar_times(g, next, 0, GRAMMAR_REPEAT), space));
    return grammar_cat(g, byte(g, open),
                       grammar_cat(g, space, grammar_cat(g, grammar_maybe(g, items), byte(g, close))));
}

static void make_value(struct grammar_json *j)
{
    struct grammar_ast *g = j->g;
    if (j->value != UINT32_MAX)
        return;
    j->value = grammar_declare(g, "any value");
    j->object = grammar_declare(g, "any object");
    j->array = grammar_declare(g, "any array");
    j->string = grammar_declare(g, "any string");
    uint32_t value = grammar_call(g, j->value), string = grammar_call(g, j->string);
    uint32_t space = grammar_json_space(j);
    uint32_t member = grammar_cat(g, string, grammar_cat(g, byte(g, ':'), grammar_cat(g, space, value)));
    grammar_define(g, j->string, grammar_json_string(j, 0, GRAMMAR_REPEAT));
    grammar_define(g, j->object, listed(j, '{', member, '}'));
    grammar_define(g, j->array, listed(j, '[', value, ']'));
    uint32_t node = grammar_alt(g, grammar_call(g, j->object), grammar_call(g, j->array));
    node = grammar_alt(g, node, grammar_alt(g, string, grammar_json_number(j)));
    node = grammar_alt(g, node, grammar_alt(g, grammar_text(g, "true"), grammar_text(g, "false")));
    grammar_define(g, j->value, grammar_alt(g, node, grammar_text(g, "null")));
}

uint32_t grammar_json_value(struct grammar_json *j)
{
    make_value(j);
    return grammar_call(j->g, j->value);
}

uint32_t grammar_json_any_object(struct grammar_json *j)
{
    make_value(j);
    return grammar_call(j->g, j->object);
}

uint32_t grammar_json_any_array(struct grammar_json *j)
{
    make_value(j);
    return grammar_call(j->g, j->array);
}

enum nyb_code grammar_json_open(struct grammar_json *j, struct grammar_ast *g, const char *whitespace,
                                struct nyb_err *err)
{
    uint32_t space = 0;
    *j = (struct grammar_json){.g = g, .value = UINT32_MAX};
    j->space = grammar_declare(g, "white space");
    j->character = grammar_declare(g, "a character");
    if (!whitespace)
        space = default_space(g);
    else
        TRY(grammar_regex(g, whitespace, strlen(whitespace), GRAMMAR_REGEX_WHOLE, &space, err));
    grammar_define(g, j->space, space);
    grammar_define(g, j->character, any_character(g));
    return NYB_OK;
}

/* ---- literals and other names ------------------------------------------------------------------------ */

uint32_t grammar_json_literal(struct grammar_json *j, const json_t *value)
{
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    uint32_t node = text ? grammar_text(j->g, text) : grammar_never(j->g);
    free(text);
    return node;
}

/* Characters that differ from what every name has next, or the rest of the names one character on. Names are
 * sorted, all agree in their first `at` bytes. Escapes could spell a name in another way: there are none. */
static uint32_t differs(struct grammar_ast *g, const char *const *name, size_t n, size_t at, uint32_t any)
{
    struct grammar_chars other = {0}, all = {0};
    uint32_t node = name[0][at] ? grammar_empty(g) : grammar_never(g); /* ending here is no name */
    size_t i = name[0][at] ? 0 : 1;
    add_unescaped(&all);
    while (i < n) {
        uint32_t code = utf8_code(name[i] + at);
        size_t size = utf8_size(name[i][at]), from = i;
        while (i < n && !strncmp(name[i] + at, name[from] + at, size))
            i++;
        struct grammar_chars one = {0};
        grammar_chars_add(&other, code, code);
        grammar_chars_add(&one, code, code);
        grammar_chars_finish(&one);
        if (grammar_chars_has(&all, code))
            node = grammar_alt(g, node,
                               grammar_cat(g, grammar_chars_node(g, &one),
                                           differs(g, name + from, i - from, at + size, any)));
        grammar_chars_free(&one);
    }
    grammar_chars_add(&other, 0, 0x1F);
    grammar_chars_add(&other, '"', '"');
    grammar_chars_add(&other, '\\', '\\');
    grammar_chars_finish(&other);
    grammar_chars_negate(&other);
    node = grammar_alt(g, node, grammar_cat(g, grammar_chars_node(g, &other), any));
    grammar_chars_free(&other);
    grammar_chars_free(&all);
    return node;
}

static int by_text(const void *x, const void *y)
{
    return strcmp(*(const char *const *)x, *(const char *const *)y);
}

uint32_t grammar_json_other_key(struct grammar_json *j, const char *const *name, size_t n)
{
    struct grammar_ast *g = j->g;
    if (n == 0)
        return grammar_json_string(j, 0, GRAMMAR_REPEAT);
    struct grammar_chars c = {0};
    const char **sorted = mem_alloc(n, sizeof(*sorted));
    memcpy(sorted, name, n * sizeof(*sorted));
    qsort(sorted, n, sizeof(*sorted), by_text);
    add_unescaped(&c);
    uint32_t rule = grammar_declare(g, "the rest of a name");
    grammar_define(g, rule, grammar_times(g, grammar_chars_node(g, &c), 0, GRAMMAR_REPEAT));
    uint32_t node = g->full ? grammar_never(g) : differs(g, sorted, n, 0, grammar_call(g, rule));
    grammar_chars_free(&c);
    free(sorted);
    return quoted(g, node);
}

/* ---- whole texts ----------------------------------------------------------------------------------- */

enum nyb_code grammar_json_object(struct grammar_ast *g, const char *whitespace, uint32_t *node,
                                  struct nyb_err *err)
{
    struct grammar_json j;
    TRY(grammar_json_open(&j, g, whitespace, err));
    *node = grammar_json_any_object(&j);
    return NYB_OK;
}

enum nyb_code grammar_choice(struct grammar_ast *g, const char *text, size_t len, uint32_t *node,
                             struct nyb_err *err)
{
    json_t *list = NULL, *item;
    size_t i;
    enum nyb_code code = json_parse(&list, text, len, "choice", err);
    if (code != NYB_OK)
        return err_set(err, NYB_E_ARG, "the choices are not a JSON array of strings");
    *node = grammar_never(g);
    bool fine = json_is_array(list) && json_array_size(list) > 0;
    json_array_foreach(list, i, item)
    {
        fine = fine && json_is_string(item) && json_string_length(item) > 0;
        if (fine)
            *node =
                grammar_alt(g, *node, grammar_literal(g, json_string_value(item), json_string_length(item)));
    }
    json_decref(list);
    return fine ? NYB_OK
                : err_set(err, NYB_E_ARG, "the choices must be a list of at least one string, none empty");
}
