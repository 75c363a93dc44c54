/* Numbers of a range, digit by digit. */
#include <stdio.h>
#include <string.h>

#include "text/grammar_build.h"

/* What is written: the digits of whole numbers, with a point before the last `point` of them; 0: none. */
struct form {
    struct grammar_ast *g;
    size_t point;
};

static uint32_t digit(struct grammar_ast *g, char lo, char hi)
{
    return grammar_range(g, (uint8_t)lo, (uint8_t)hi);
}

static uint32_t digits(struct grammar_ast *g, size_t n)
{
    return n == 0 ? grammar_empty(g) : grammar_times(g, digit(g, '0', '9'), (uint32_t)n, (uint32_t)n);
}

/* The point, if it stands before the last n digits. */
static uint32_t pointed(const struct form *f, size_t n, uint32_t node)
{
    return f->point && n == f->point ? grammar_cat(f->g, digit(f->g, '.', '.'), node) : node;
}

/* Any n digits. */
static uint32_t any(const struct form *f, size_t n)
{
    if (!f->point || n < f->point)
        return digits(f->g, n);
    return grammar_cat(f->g, digits(f->g, n - f->point), pointed(f, f->point, digits(f->g, f->point)));
}

/* Strings of n digits in [lo, hi], both of n digits: a common first digit, or the low end, what lies
 * between, and the high end. at_lo, at_hi: that bound still binds. */
static uint32_t same_length(const struct form *f, const char *lo, const char *hi, size_t n, bool at_lo,
                            bool at_hi)
{
    struct grammar_ast *g = f->g;
    if (n == 0)
        return grammar_empty(g);
    if (!at_lo && !at_hi)
        return any(f, n);
    char a = at_lo ? lo[0] : '0', b = at_hi ? hi[0] : '9';
    if (a == b)
        return pointed(f, n,
                       grammar_cat(g, digit(g, a, a), same_length(f, lo + 1, hi + 1, n - 1, at_lo, at_hi)));
    uint32_t node = grammar_never(g);
    char from = a, to = b;
    if (at_lo) {
        node = grammar_cat(g, digit(g, a, a), same_length(f, lo + 1, hi + 1, n - 1, true, false));
        from++;
    }
    if (at_hi) {
        node = grammar_alt(
            g, node, grammar_cat(g, digit(g, b, b), same_length(f, lo + 1, hi + 1, n - 1, false, true)));
        to--;
    }
    if (from <= to)
        node = grammar_alt(g, node, grammar_cat(g, digit(g, from, to), any(f, n - 1)));
    return pointed(f, n, node);
}

/* lo and hi at least 0. Before a point stands one digit or more. */
static uint32_t not_negative(const struct form *f, uint64_t lo, uint64_t hi)
{
    char a[24], b[24], nines[24], tens[24];
    uint32_t node = grammar_never(f->g);
    int least = (int)f->point + 1;
    int n = snprintf(a, sizeof(a), "%0*llu", least, (unsigned long long)lo);
    int last = snprintf(b, sizeof(b), "%0*llu", least, (unsigned long long)hi);
    for (int len = n; len <= last; len++) {
        memset(nines, '9', sizeof(nines));
        memset(tens, '0', sizeof(tens));
        tens[0] = len == least ? '0' : '1';
        node = grammar_alt(
            f->g, node,
            same_length(f, len == n ? a : tens, len == last ? b : nines, (size_t)len, true, true));
    }
    return node;
}

uint32_t grammar_decimal_range(struct grammar_ast *g, int64_t lo, int64_t hi, int decimals)
{
    const struct form f = {g, (size_t)decimals};
    uint32_t node = grammar_never(g);
    if (lo > hi)
        return node;
    if (hi >= 0)
        node = not_negative(&f, lo > 0 ? (uint64_t)lo : 0, (uint64_t)hi);
    if (lo < 0) /* the magnitudes, from the smaller one */
        node = grammar_alt(g, node,
                           grammar_cat(g, digit(g, '-', '-'),
                                       not_negative(&f, hi < 0 ? 0 - (uint64_t)hi : 1, 0 - (uint64_t)lo)));
    return node;
}

uint32_t grammar_int_range(struct grammar_ast *g, int64_t lo, int64_t hi)
{
    return grammar_decimal_range(g, lo, hi, 0);
}
