#include "text/tokfile.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/utf8.h"

#define MERGE_MAX (1u << 24) /* ranks; the largest known tokenizer has 446 thousand */

struct cursor {
    const char *s;
    size_t len, at;
    const char *where;
    struct buf scratch; /* an unescaped string */
    struct nyb_err *err;
};

struct range {
    size_t from, to; /* of a value in the text; to == 0: not met */
};

static enum nyb_code malformed(const struct cursor *c, const char *expected)
{
    if (c->at >= c->len)
        return err_at(c->err, NYB_E_FORMAT, c->where, (int64_t)c->at, "the text ends where %s was expected",
                      expected);
    unsigned char found = (unsigned char)c->s[c->at];
    return err_at(c->err, NYB_E_FORMAT, c->where, (int64_t)c->at, "found byte 0x%02X, expected %s", found,
                  expected);
}

static void skip_space(struct cursor *c)
{
    while (c->at < c->len &&
           (c->s[c->at] == ' ' || c->s[c->at] == '\n' || c->s[c->at] == '\r' || c->s[c->at] == '\t'))
        c->at++;
}

/* Step over one expected byte, white space before it. */
static bool take(struct cursor *c, char wanted)
{
    skip_space(c);
    if (c->at >= c->len || c->s[c->at] != wanted)
        return false;
    c->at++;
    return true;
}

/* --- Strings --------------------------------------------------------------------------------------- */

static int hex4(const char *s)
{
    int value = 0;
    for (int i = 0; i < 4; i++) {
        char ch = s[i];
        int digit = ch >= '0' && ch <= '9'   ? ch - '0'
                    : ch >= 'a' && ch <= 'f' ? ch - 'a' + 10
                    : ch >= 'A' && ch <= 'F' ? ch - 'A' + 10
                                             : -1;
        if (digit < 0)
            return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* \uXXXX, surrogate pairs joined; at stands behind the u. */
static enum nyb_code unescape_unicode(struct cursor *c)
{
    int high = c->len - c->at >= 4 ? hex4(c->s + c->at) : -1;
    if (high < 0)
        return malformed(c, "four hex digits");
    c->at += 4;
    uint32_t code = (uint32_t)high;
    if (code >= 0xD800 && code < 0xDC00) {
        int low = c->len - c->at >= 6 && c->s[c->at] == '\\' && c->s[c->at + 1] == 'u'
                      ? hex4(c->s + c->at + 2)
                      : -1;
        if (low < 0xDC00 || low > 0xDFFF)
            return malformed(c, "the second half of a surrogate pair");
        c->at += 6;
        code = 0x10000 + ((code - 0xD800) << 10) + ((uint32_t)low - 0xDC00);
    } else if (code >= 0xDC00 && code < 0xE000) {
        return malformed(c, "no lone surrogate before this");
    }
    buf_add_utf8(&c->scratch, code);
    return NYB_OK;
}

static enum nyb_code unescape(struct cursor *c)
{
    static const char FROM[] = "\"\\/bfnrt", TO[] = "\"\\/\b\f\n\r\t";
    char e = c->at < c->len ? c->s[c->at] : '\0';
    const char *hit = e ? strchr(FROM, e) : NULL;
    if (e != 'u' && !hit)
        return malformed(c, "an escape that JSON knows");
    c->at++;
    if (e == 'u')
        return unescape_unicode(c);
    buf_add_byte(&c->scratch, TO[hit - FROM]);
    return NYB_OK;
}

/* A string's bytes: within the text where it holds no escape, else in scratch, good until the next one. */
static enum nyb_code take_string(struct cursor *c, const char **s, size_t *len)
{
    if (!take(c, '"'))
        return malformed(c, "a string");
    size_t from = c->at;
    bool escaped = false;
    for (;;) {
        size_t run = c->at;
        while (c->at < c->len && c->s[c->at] != '"' && c->s[c->at] != '\\' &&
               (unsigned char)c->s[c->at] >= 0x20)
            c->at++;
        if (escaped)
            buf_add(&c->scratch, c->s + run, c->at - run);
        if (c->at >= c->len || (unsigned char)c->s[c->at] < 0x20)
            return malformed(c, "the rest of a string");
        if (c->s[c->at] == '"')
            break;
        if (!escaped) {
            buf_clear(&c->scratch);
            buf_add(&c->scratch, c->s + from, c->at - from);
            escaped = true;
        }
        c->at++;
        TRY(unescape(c));
    }
    *s = escaped ? c->scratch.data : c->s + from;
    *len = escaped ? c->scratch.len : c->at - from;
    c->at++;
    return NYB_OK;
}

/* --- Finding the two big values -------------------------------------------------------------------- */

static bool skip_string(struct cursor *c)
{
    for (c->at++; c->at < c->len && c->s[c->at] != '"'; c->at++)
        if (c->s[c->at] == '\\')
            c->at++;
    if (c->at >= c->len)
        return false;
    c->at++;
    return true;
}

/* Step over a value. Only brackets are counted; whoever reads the value checks it. */
static enum nyb_code skip_value(struct cursor *c)
{
    size_t depth = 0;
    skip_space(c);
    do {
        char ch = c->at < c->len ? c->s[c->at] : '\0';
        if (c->at >= c->len)
            return malformed(c, "the rest of a value");
        if (ch == '"') {
            if (!skip_string(c))
                return malformed(c, "the end of a string");
            continue;
        }
        if (ch == '{' || ch == '[')
            depth++;
        else if ((ch == '}' || ch == ']') && depth > 0)
            depth--;
        else if (depth == 0 && (ch == ',' || ch == '}' || ch == ']'))
            return NYB_OK; /* behind a number or a word */
        else if (depth == 0) {
            while (c->at < c->len && !strchr(",]} \t\r\n", c->s[c->at]))
                c->at++;
            return NYB_OK;
        }
        c->at++;
    } while (depth > 0);
    return NYB_OK;
}

/* Walk an object's members and note where the values of two keys are. */
static enum nyb_code find_members(struct cursor *c, const char *const name[2], struct range found[2])
{
    if (!take(c, '{'))
        return malformed(c, "an object");
    if (take(c, '}'))
        return NYB_OK;
    do {
        const char *key = NULL;
        size_t n = 0;
        TRY(take_string(c, &key, &n));
        int which = -1;
        for (int i = 0; i < 2; i++)
            if (name[i] && strlen(name[i]) == n && memcmp(key, name[i], n) == 0)
                which = i;
        if (!take(c, ':'))
            return malformed(c, "a colon");
        skip_space(c);
        size_t from = c->at;
        TRY(skip_value(c));
        if (which >= 0 && found[which].to)
            return err_at(c->err, NYB_E_FORMAT, c->where, (int64_t)from, "\"%s\" appears twice", name[which]);
        if (which >= 0)
            found[which] = (struct range){from, c->at};
    } while (take(c, ','));
    if (!take(c, '}'))
        return malformed(c, "a comma or the end of an object");
    return NYB_OK;
}

/* --- The vocabulary -------------------------------------------------------------------------------- */

static enum nyb_code take_id(struct cursor *c, int32_t *id)
{
    int64_t value = 0;
    skip_space(c);
    size_t from = c->at;
    while (c->at < c->len && c->s[c->at] >= '0' && c->s[c->at] <= '9' && c->at - from < 10)
        value = value * 10 + (c->s[c->at++] - '0');
    if (c->at == from)
        return malformed(c, "an id");
    if (value >= STRMAP_ID_MAX)
        return err_at(c->err, NYB_E_FORMAT, c->where, (int64_t)from,
                      "id %lld is beyond the largest accepted one, %d", (long long)value, STRMAP_ID_MAX - 1);
    *id = (int32_t)value;
    return NYB_OK;
}

static enum nyb_code read_vocab(struct cursor *c, struct bpe *b)
{
    if (!take(c, '{'))
        return malformed(c, "model.vocab as an object");
    if (take(c, '}'))
        return NYB_OK;
    do {
        const char *key = NULL;
        size_t n = 0;
        int32_t id = 0;
        TRY(take_string(c, &key, &n));
        if (!take(c, ':'))
            return malformed(c, "a colon");
        TRY(take_id(c, &id));
        enum strmap_added added = strmap_add(&b->vocab, key, n, id);
        if (added == STRMAP_KEY_TAKEN || added == STRMAP_ID_TAKEN)
            return err_at(c->err, NYB_E_FORMAT, c->where, (int64_t)c->at,
                          added == STRMAP_KEY_TAKEN
                              ? "model.vocab has a token twice, the second time with id %d"
                              : "model.vocab gives id %d to two tokens",
                          id);
        if (added != STRMAP_ADDED)
            return err_at(c->err, NYB_E_FORMAT, c->where, (int64_t)c->at,
                          "the token of id %d has %zu bytes, beyond what is accepted", id, n);
    } while (take(c, ','));
    if (!take(c, '}'))
        return malformed(c, "a comma or the end of model.vocab");
    return NYB_OK;
}

/* --- The merges ------------------------------------------------------------------------------------ */

/* "left right": exactly one space. */
static enum nyb_code add_spelled(struct cursor *c, struct bpe *b, uint32_t rank)
{
    const char *s = NULL;
    size_t n = 0;
    TRY(take_string(c, &s, &n));
    const char *space = memchr(s, ' ', n);
    if (!space || memchr(space + 1, ' ', n - (size_t)(space + 1 - s)))
        return err_at(c->err, NYB_E_FORMAT, c->where, (int64_t)c->at,
                      "merge %u is not two tokens with one space between", rank);
    size_t left = (size_t)(space - s);
    return bpe_add_merge(b, s, left, space + 1, n - left - 1, rank, c->err);
}

/* ["left", "right"] */
static enum nyb_code add_pair(struct cursor *c, struct bpe *b, uint32_t rank, struct buf *left)
{
    const char *s = NULL;
    size_t n = 0;
    c->at++;
    TRY(take_string(c, &s, &n));
    buf_clear(left);
    buf_add(left, s, n);
    if (!take(c, ','))
        return malformed(c, "the second token of a merge");
    TRY(take_string(c, &s, &n));
    if (!take(c, ']'))
        return malformed(c, "the end of a merge of two tokens");
    return bpe_add_merge(b, left->data, left->len, s, n, rank, c->err);
}

static enum nyb_code read_merges(struct cursor *c, struct bpe *b, struct buf *left)
{
    uint32_t rank = 0;
    if (!take(c, '['))
        return malformed(c, "model.merges as an array");
    if (take(c, ']'))
        return NYB_OK;
    do {
        skip_space(c);
        if (c->at < c->len && c->s[c->at] == '[')
            TRY(add_pair(c, b, rank, left));
        else
            TRY(add_spelled(c, b, rank));
        if (++rank > MERGE_MAX)
            return err_at(c->err, NYB_E_FORMAT, c->where, (int64_t)c->at, "more than %u merges", MERGE_MAX);
    } while (take(c, ','));
    if (!take(c, ']'))
        return malformed(c, "a comma or the end of model.merges");
    return NYB_OK;
}

/* --- All together ---------------------------------------------------------------------------------- */

static enum nyb_code parse_rest(json_t **rest, const struct cursor *c, const struct range big[2])
{
    struct range first = big[0], second = big[1];
    struct buf small = {0};
    if (first.from > second.from) {
        first = big[1];
        second = big[0];
    }
    buf_add(&small, c->s, first.from);
    buf_add_str(&small, "null");
    buf_add(&small, c->s + first.to, second.from - first.to);
    buf_add_str(&small, "null");
    buf_add(&small, c->s + second.to, c->len - second.to);
    enum nyb_code code = json_parse(rest, small.data, small.len, c->where, c->err);
    buf_free(&small);
    return code;
}

static enum nyb_code want_bpe(const struct cursor *c, const struct range *model)
{
    json_t *tree = NULL;
    TRY(json_parse(&tree, c->s + model->from, model->to - model->from, c->where, c->err));
    const char *type = json_string_value(json_object_get(tree, "type"));
    enum nyb_code code =
        err_at(c->err, NYB_E_UNSUPPORTED, c->where, -1,
               "model.vocab or model.merges is missing (model type \"%s\"); only BPE is supported",
               type ? type : "none");
    json_decref(tree);
    return code;
}

static enum nyb_code parse(json_t **rest, struct bpe *b, struct cursor *c)
{
    static const char *const TOP[2] = {"model", NULL}, *const MODEL[2] = {"vocab", "merges"};
    struct range model[2] = {{0, 0}}, big[2] = {{0, 0}};
    size_t bad = utf8_valid_prefix(c->s, c->len);
    if (bad < c->len)
        return err_at(c->err, NYB_E_FORMAT, c->where, (int64_t)bad, "the text is not UTF-8");
    TRY(find_members(c, TOP, model));
    if (!model[0].to)
        return err_at(c->err, NYB_E_FORMAT, c->where, -1, "there is no \"model\"");
    struct cursor part = {
        .s = c->s, .len = model[0].to, .at = model[0].from, .where = c->where, .err = c->err};
    enum nyb_code code = find_members(&part, MODEL, big);
    buf_free(&part.scratch);
    TRY(code);
    if (!big[0].to || !big[1].to)
        return want_bpe(c, &model[0]);
    TRY(parse_rest(rest, c, big));
    c->at = big[0].from;
    TRY(read_vocab(c, b));
    struct buf left = {0};
    buf_reserve(&left, 64);
    c->at = big[1].from;
    code = read_merges(c, b, &left);
    buf_free(&left);
    return code;
}

enum nyb_code tokfile_parse(json_t **rest, struct bpe *b, const char *text, size_t len, const char *where,
                            struct nyb_err *err)
{
    struct cursor c = {.s = text, .len = len, .where = where, .err = err};
    *rest = NULL;
    enum nyb_code code = parse(rest, b, &c);
    buf_free(&c.scratch);
    if (code != NYB_OK) {
        json_decref(*rest);
        *rest = NULL;
    }
    return code;
}
