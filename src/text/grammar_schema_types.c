/* Strings, numbers and arrays under their keywords. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "text/grammar_schema.h"

#define INT_END    999999999999999999 /* of GRAMMAR_DIGITS_MAX digits: what is made ends there */
#define FRACTION   16                 /* digits behind the point of a number with bounds */
#define EXACT      15                 /* digits of numbers that doubles tell from one another */
#define DECIMALS   9                  /* of a bound */
#define WHOLE_END  9007199254740992.0 /* doubles below hold every whole number */
#define PREFIX_MAX 256                /* schemas of prefixItems */
#define COUNT_END  100001             /* lengths and counts are below */

static enum nyb_code take_count(struct schema *s, const json_t *schema, const char *keyword, uint32_t *out)
{
    const json_t *v = json_object_get(schema, keyword);
    if (!v)
        return NYB_OK;
    double x = json_number_value(v);
    if (!json_is_number(v) || x < 0 || x != floor(x))
        return schema_wrong(s, keyword, "a whole number of at least 0");
    if (x >= COUNT_END)
        return schema_refuse(s, keyword, "beyond 100000");
    *out = (uint32_t)x;
    return NYB_OK;
}

/* ---- strings --------------------------------------------------------------------------------------- */

static uint32_t in_quotes(struct schema *s, uint32_t node)
{
    struct grammar_ast *g = s->j->g;
    uint32_t quote = grammar_range(g, '"', '"');
    return grammar_cat(g, quote, grammar_cat(g, node, quote));
}

static enum nyb_code take_pattern(struct schema *s, const char *pattern, uint32_t min, uint32_t max,
                                  uint32_t *node)
{
    enum grammar_regex_fit fit = GRAMMAR_REGEX_FITS;
    size_t len = strlen(pattern);
    if (min == 0 && max == GRAMMAR_REPEAT)
        TRY(grammar_regex(s->j->g, pattern, len, GRAMMAR_REGEX_JSON, node, s->err));
    else
        TRY(grammar_regex_bounded(s->j->g, pattern, len, min, max, &fit, node, s->err));
    if (fit == GRAMMAR_REGEX_SHORTER)
        return schema_refuse(s, "minLength", "together with this pattern, some of whose texts are shorter");
    if (fit == GRAMMAR_REGEX_LONGER)
        return schema_refuse(s, "maxLength", "together with this pattern, some of whose texts are longer");
    *node = in_quotes(s, *node);
    return NYB_OK;
}

enum nyb_code schema_string(struct schema *s, const json_t *schema, uint32_t *node)
{
    const json_t *pattern = json_object_get(schema, "pattern"), *format = json_object_get(schema, "format");
    const char *regex = NULL;
    uint32_t min = 0, max = GRAMMAR_REPEAT;
    TRY(take_count(s, schema, "minLength", &min));
    TRY(take_count(s, schema, "maxLength", &max));
    if (pattern && !json_is_string(pattern))
        return schema_wrong(s, "pattern", "a string");
    if (format && !json_is_string(format))
        return schema_wrong(s, "format", "a string");
    if (format)
        TRY(schema_format(s, format, min, max, &regex));
    if (pattern && regex)
        return schema_refuse(s, "format", "together with pattern");
    if (pattern)
        return take_pattern(s, json_string_value(pattern), min, max, node);
    if (regex)
        return take_pattern(s, regex, 0, GRAMMAR_REPEAT, node); /* which has these lengths */
    *node = min <= max ? grammar_json_string(s->j, min, max) : grammar_never(s->j->g);
    return NYB_OK;
}

/* ---- numbers --------------------------------------------------------------------------------------- */

/* Of numbers in units of the last of so many digits behind the point. */
struct bounds {
    bool any;
    int decimals;
    int64_t lo, hi;
    bool lo_open, hi_open; /* it must not be met */
};

static int64_t power(int n)
{
    return n == 0 ? 1 : 10 * power(n - 1);
}

static int64_t floor_of(int64_t n, int64_t unit)
{
    return n / unit - (n % unit < 0);
}

static int64_t ceil_of(int64_t n, int64_t unit)
{
    return -floor_of(-n, unit);
}

/* Digits behind the point; -1: more than DECIMALS. A quotient of two whole numbers is rounded as their
 * decimal fraction is when it is read. */
static int decimals_of(double x)
{
    for (int k = 0; k <= DECIMALS && fabs(x) < WHOLE_END; k++) {
        double unit = (double)power(k), n = round(x * unit);
        if (fabs(n) < WHOLE_END && n / unit == x)
            return k;
    }
    return x == floor(x) ? 0 : -1;
}

/* x in these units; what does not fit is cut to the first number that is never made. Rounded in its own
 * digits, in which a double has it exactly. */
static int64_t in_units(const json_t *v, int decimals)
{
    double x = json_number_value(v);
    int own = decimals_of(x);
    if (fabs(x) * (double)power(decimals) > (double)INT_END)
        return x < 0 ? -INT_END - 1 : INT_END + 1;
    if (json_is_integer(v))
        return (int64_t)json_integer_value(v) * power(decimals);
    return (int64_t)round(x * (double)power(own)) * power(decimals - own);
}

static const struct {
    const char *keyword;
    bool low, exclusive;
} number_bounds[] = {{"minimum", true, false},
                     {"maximum", false, false},
                     {"exclusiveMinimum", true, true},
                     {"exclusiveMaximum", false, true}};

static enum nyb_code take_decimals(struct schema *s, const json_t *schema, struct bounds *b)
{
    for (size_t i = 0; i < COUNT_OF(number_bounds); i++) {
        const char *keyword = number_bounds[i].keyword;
        const json_t *v = json_object_get(schema, keyword);
        if (!v)
            continue;
        if (!json_is_number(v))
            return schema_wrong(s, keyword, "a number");
        int decimals = decimals_of(json_number_value(v));
        if (decimals < 0)
            return schema_refuse(s, keyword, "with more than 9 digits behind the point");
        b->decimals = decimals > b->decimals ? decimals : b->decimals;
        b->any = true;
    }
    return NYB_OK;
}

static void tighten(struct bounds *b, int64_t at, bool low, bool open)
{
    if (low && (at > b->lo || (at == b->lo && open))) {
        b->lo = at;
        b->lo_open = open;
    }
    if (!low && (at < b->hi || (at == b->hi && open))) {
        b->hi = at;
        b->hi_open = open;
    }
}

static enum nyb_code take_bounds(struct schema *s, const json_t *schema, struct bounds *b)
{
    TRY(take_decimals(s, schema, b));
    for (size_t i = 0; i < COUNT_OF(number_bounds); i++) {
        const json_t *v = json_object_get(schema, number_bounds[i].keyword);
        if (v)
            tighten(b, in_units(v, b->decimals), number_bounds[i].low, number_bounds[i].exclusive);
    }
    return NYB_OK;
}

static void take_format(const json_t *schema, struct bounds *b)
{
    int64_t lo = -INT_END, hi = INT_END;
    schema_integer_format(json_object_get(schema, "format"), &lo, &hi);
    b->any = b->any || lo > -INT_END || hi < INT_END;
    if (lo > -INT_END / power(b->decimals))
        tighten(b, lo * power(b->decimals), true, false);
    if (hi < INT_END / power(b->decimals))
        tighten(b, hi * power(b->decimals), false, false);
}

/* Those that can be written with so many digits behind the point. */
static uint32_t numbers_of(struct schema *s, const struct bounds *b, int decimals)
{
    int64_t unit = power(b->decimals - decimals);
    return grammar_decimal_range(s->j->g, ceil_of(b->lo + b->lo_open, unit),
                                 floor_of(b->hi - b->hi_open, unit), decimals);
}

static int whole_digits(int64_t n, int decimals)
{
    int k = 0;
    for (n = (n < 0 ? -n : n) / power(decimals); n > 0; n /= 10)
        k++;
    return k;
}

/* Digits behind the point so few that a reader's double is never that of a bound that must not be met. */
static int most_digits(const struct bounds *b)
{
    int lo = b->lo_open ? whole_digits(b->lo, b->decimals) : 0;
    int hi = b->hi_open ? whole_digits(b->hi, b->decimals) : 0;
    return b->lo_open || b->hi_open ? EXACT - (lo > hi ? lo : hi) : FRACTION;
}

/* Those with as many digits as the bounds have or fewer, and those with more: they lie between two neighbours
 * of the former, and do not end in 0. */
static uint32_t bounded_number(struct schema *s, const struct bounds *b)
{
    struct grammar_ast *g = s->j->g;
    int most = most_digits(b);
    uint32_t node = grammar_cat(g, numbers_of(s, b, 0), grammar_maybe(g, grammar_text(g, ".0")));
    for (int k = 1; k <= b->decimals && k <= most; k++)
        node = grammar_alt(g, node, numbers_of(s, b, k));
    if (b->decimals >= most)
        return node;
    uint32_t more =
        grammar_cat(g, grammar_times(g, grammar_range(g, '0', '9'), 0, (uint32_t)(most - 1 - b->decimals)),
                    grammar_range(g, '1', '9'));
    if (b->decimals == 0)
        more = grammar_cat(g, grammar_range(g, '.', '.'), more);
    uint32_t above = grammar_decimal_range(g, b->lo > 0 ? b->lo : 0, b->hi - 1, b->decimals);
    uint32_t below = grammar_decimal_range(g, b->hi < 0 ? -b->hi : 0, -b->lo - 1, b->decimals);
    node = grammar_alt(g, node, grammar_cat(g, above, more));
    return grammar_alt(g, node, grammar_cat(g, grammar_range(g, '-', '-'), grammar_cat(g, below, more)));
}

enum nyb_code schema_number(struct schema *s, const json_t *schema, bool integer, uint32_t *node)
{
    struct bounds b = {.lo = -INT_END, .hi = INT_END};
    const json_t *multiple = json_object_get(schema, "multipleOf");
    if (multiple && (!integer || json_number_value(multiple) != 1))
        return schema_refuse(s, "multipleOf", NULL);
    TRY(take_bounds(s, schema, &b));
    if (integer)
        take_format(schema, &b);
    if (!b.any)
        *node = integer ? grammar_json_integer(s->j) : grammar_json_number(s->j);
    else
        *node = integer ? numbers_of(s, &b, 0) : bounded_number(s, &b);
    return NYB_OK;
}

/* ---- arrays ---------------------------------------------------------------------------------------- */

struct array {
    const json_t *prefix; /* list, or NULL */
    const json_t *items;  /* schema of what follows, or NULL: nothing may */
    uint32_t min, max;
};

/* items as a list is how drafts before 2020-12 write prefixItems. */
static enum nyb_code read_array(struct schema *s, const json_t *schema, struct array *a)
{
    *a = (struct array){.prefix = json_object_get(schema, "prefixItems"),
                        .items = json_object_get(schema, "items"),
                        .max = GRAMMAR_REPEAT};
    TRY(take_count(s, schema, "minItems", &a->min));
    TRY(take_count(s, schema, "maxItems", &a->max));
    if (json_is_true(json_object_get(schema, "uniqueItems")))
        return schema_refuse(s, "uniqueItems", NULL);
    if (json_is_array(a->items)) {
        if (a->prefix)
            return schema_wrong(s, "items", "a schema where there are prefixItems");
        a->prefix = a->items;
        a->items = json_object_get(schema, "additionalItems");
    } else if (json_object_get(schema, "additionalItems")) {
        return schema_refuse(s, "additionalItems", "without a list of items");
    }
    if (a->prefix && !json_is_array(a->prefix))
        return schema_wrong(s, "prefixItems", "a list of schemas");
    if (json_array_size(a->prefix) > PREFIX_MAX)
        return schema_refuse(s, "prefixItems", "with more than 256 schemas");
    if (json_is_false(a->items))
        a->items = NULL;
    return NYB_OK;
}

/* What may stand at and behind place i, whose items each have a comma before them unless they are first. */
static enum nyb_code items_from(struct schema *s, const struct array *a, uint32_t i, uint32_t *node)
{
    struct grammar_ast *g = s->j->g;
    uint32_t n = (uint32_t)json_array_size(a->prefix), space = grammar_json_space(s->j), one, rest;
    uint32_t comma = grammar_cat(g, grammar_range(g, ',', ','), space);
    *node = grammar_empty(g);
    if (i == a->max || (i >= n && !a->items))
        return NYB_OK;
    if (i < n) {
        TRY(schema_build_at(s, json_array_get(a->prefix, i), "prefixItems", NULL, i, &one));
        TRY(items_from(s, a, i + 1, &rest));
        *node = grammar_cat(g, i > 0 ? grammar_cat(g, comma, one) : one, rest);
        if (i >= a->min)
            *node = grammar_maybe(g, *node);
        return NYB_OK;
    }
    TRY(schema_build_at(s, a->items, "items", NULL, SIZE_MAX, &one));
    uint32_t next = grammar_cat(g, comma, one), first = i == 0 ? 1 : 0;
    uint32_t done = i + first, min = a->min > done ? a->min - done : 0;
    uint32_t max = a->max == GRAMMAR_REPEAT ? GRAMMAR_REPEAT : a->max - done;
    *node = grammar_times(g, next, min, max);
    if (first)
        *node = grammar_cat(g, one, *node);
    if (first && a->min == 0)
        *node = grammar_maybe(g, *node);
    return NYB_OK;
}

enum nyb_code schema_array(struct schema *s, const json_t *schema, uint32_t *node)
{
    struct grammar_ast *g = s->j->g;
    struct array a;
    TRY(read_array(s, schema, &a));
    if (!a.prefix && !a.items && !json_object_get(schema, "items")) {
        if (a.min == 0 && a.max == GRAMMAR_REPEAT) {
            *node = grammar_json_any_array(s->j);
            return NYB_OK;
        }
        a.items = json_true(); /* not counted: a constant */
    }
    size_t places = a.items ? SIZE_MAX : json_array_size(a.prefix);
    if (a.min > a.max || a.min > places) {
        *node = grammar_never(g);
        return NYB_OK;
    }
    uint32_t inside = 0;
    TRY(items_from(s, &a, 0, &inside));
    *node = grammar_cat(g, grammar_range(g, '[', '['), grammar_cat(g, grammar_json_space(s->j), inside));
    *node = grammar_cat(g, *node, grammar_cat(g, grammar_json_space(s->j), grammar_range(g, ']', ']')));
    return NYB_OK;
}
