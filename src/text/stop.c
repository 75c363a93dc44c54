#include "text/stop.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/utf8.h"

/* One string and its Knuth-Morris-Pratt automaton (SIAM J. Comput. 6(2), 1977). */
struct needle {
    char *text;
    size_t len;
    size_t *border; /* (len) longest proper border of text[0..i] */
    size_t matched; /* bytes of text that the stream ends with   */
};

/* The text held back is always the matched prefix of the needle that matched most: no copy is kept. */
struct stop {
    struct needle *needle; /* (n) */
    size_t n;
    size_t longest; /* needle with the most bytes matched */
    int matched;
    bool include;
    bool starts[256]; /* bytes that some needle begins with */
};

static void needle_open(struct needle *d, const struct stop_string *s)
{
    d->len = s->len;
    d->text = mem_strndup(s->text, s->len);
    d->border = mem_alloc(s->len, sizeof(*d->border));
    for (size_t i = 1, k = 0; i < s->len; i++) {
        while (k > 0 && d->text[i] != d->text[k])
            k = d->border[k - 1];
        if (d->text[i] == d->text[k])
            k++;
        d->border[i] = k;
    }
}

static enum nyb_code check(const struct stop_string *string, size_t n, struct nyb_err *err)
{
    if (n > STOP_COUNT_MAX)
        return err_at(err, NYB_E_ARG, "stop", -1, "%zu stop strings, at most %d are taken", n,
                      STOP_COUNT_MAX);
    size_t total = 0;
    for (size_t i = 0; i < n; i++) {
        if (string[i].len == 0)
            return err_at(err, NYB_E_ARG, "stop", -1, "stop string %zu is empty", i);
        if (string[i].len > STOP_BYTES_MAX - total)
            return err_at(err, NYB_E_ARG, "stop", -1, "stop strings of more than %d bytes together",
                          STOP_BYTES_MAX);
        total += string[i].len;
        size_t good = utf8_valid_prefix(string[i].text, string[i].len);
        if (good != string[i].len)
            return err_at(err, NYB_E_ARG, "stop", (int64_t)good, "stop string %zu is not well-formed UTF-8",
                          i);
    }
    return NYB_OK;
}

enum nyb_code stop_open(struct stop **out, const struct stop_string *string, size_t n, bool include,
                        struct nyb_err *err)
{
    *out = NULL;
    TRY(check(string, n, err));
    struct stop *s = mem_alloc(1, sizeof(*s));
    *s = (struct stop){.needle = mem_alloc(n, sizeof(*s->needle)), .n = n, .matched = -1, .include = include};
    for (size_t i = 0; i < n; i++) {
        needle_open(&s->needle[i], &string[i]);
        s->starts[(unsigned char)string[i].text[0]] = true;
    }
    *out = s;
    return NYB_OK;
}

void stop_close(struct stop *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->n; i++) {
        free(s->needle[i].text);
        free(s->needle[i].border);
    }
    free(s->needle);
    free(s);
}

/* Advance every needle by one byte; true when one is complete (s->matched says which). */
static bool advance(struct stop *s, char c)
{
    size_t longest = 0;
    for (size_t i = 0; i < s->n; i++) {
        struct needle *d = &s->needle[i];
        while (d->matched > 0 && d->text[d->matched] != c)
            d->matched = d->border[d->matched - 1];
        if (d->text[d->matched] == c)
            d->matched++;
        if (d->matched == d->len) {
            s->matched = (int)i;
            return true;
        }
        if (d->matched > s->needle[longest].matched)
            longest = i;
    }
    s->longest = longest;
    return false;
}

/* The stream is prefix[0..n_prefix) then text; append its first n bytes. */
static void release(struct buf *out, const char *prefix, size_t n_prefix, const char *text, size_t n)
{
    size_t first = n < n_prefix ? n : n_prefix;
    if (first > 0)
        buf_add(out, prefix, first);
    if (n > first)
        buf_add(out, text, n - first);
}

size_t stop_held(const struct stop *s)
{
    return s->n == 0 || s->include || s->matched >= 0 ? 0 : s->needle[s->longest].matched;
}

bool stop_push(struct stop *s, const char *text, size_t len, struct buf *out)
{
    if (s->matched >= 0)
        return true;
    if (s->n == 0) {
        release(out, NULL, 0, text, len);
        return false;
    }
    const char *prefix = s->needle[s->longest].text;
    size_t n_prefix = stop_held(s);
    for (size_t i = 0; i < len; i++) {
        if (s->needle[s->longest].matched == 0 && !s->starts[(unsigned char)text[i]])
            continue;
        if (advance(s, text[i])) {
            size_t cut = s->include ? 0 : s->needle[s->matched].len;
            release(out, prefix, n_prefix, text, n_prefix + i + 1 - cut);
            return true;
        }
    }
    release(out, prefix, n_prefix, text, n_prefix + len - stop_held(s));
    return false;
}

void stop_finish(struct stop *s, struct buf *out)
{
    if (stop_held(s) > 0)
        buf_add(out, s->needle[s->longest].text, stop_held(s));
    for (size_t i = 0; i < s->n; i++)
        s->needle[i].matched = 0;
}

int stop_matched(const struct stop *s)
{
    return s->matched;
}
