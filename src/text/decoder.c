#include "text/decoder.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/bytelevel.h"
#include "text/utf8.h"

struct stage {
    enum { BYTE_LEVEL, BYTE_FALLBACK, FUSE, REPLACE, STRIP, METASPACE } kind;
    char *from, *to; /* REPLACE: what by what; STRIP and METASPACE: `from` is the character */
    size_t from_len, to_len;
    size_t start, stop; /* STRIP: characters to take at most at either end                     */
    bool drops_first;   /* METASPACE: the marks of the first token vanish                      */
    bool fused;         /* runs on the one long string, in parts                               */
};

struct decoder {
    struct stage stage[SPEC_STEP_MAX];
    size_t n_stage;
    bool joins_with_space; /* no decoder in the file */
};

static const char REPLACEMENT[] = "\xEF\xBF\xBD"; /* U+FFFD */

/* --- Reading the file
 * --------------------------------------------------------------------------------------- */

static char *copy(const char *s, size_t len)
{
    char *c = mem_alloc(len + 1, 1);
    memcpy(c, s, len);
    return c;
}

static enum nyb_code take_char(struct stage *s, const json_t *spec, const char *field, struct nyb_err *err)
{
    const char *text = NULL;
    TRY(spec_string(spec, field, &text, &s->from_len, err));
    if (s->from_len == 0 || s->from_len != utf8_size(text[0]))
        return err_at(err, NYB_E_FORMAT, "tokenizer.json", -1, "decoder: \"%s\" is not one character", field);
    s->from = copy(text, s->from_len);
    return NYB_OK;
}

static enum nyb_code take_replace(struct stage *s, const json_t *spec, struct nyb_err *err)
{
    const char *text = NULL;
    bool is_regex = false;
    TRY(spec_pattern(spec, &text, &s->from_len, &is_regex, err));
    if (is_regex)
        return spec_unknown("decoder", "Replace with a Regex", err);
    if (s->from_len == 0)
        return err_at(err, NYB_E_FORMAT, "tokenizer.json", -1, "decoder Replace: the pattern is empty");
    s->from = copy(text, s->from_len);
    TRY(spec_string(spec, "content", &text, &s->to_len, err));
    s->to = copy(text, s->to_len);
    return NYB_OK;
}

static enum nyb_code take_metaspace(struct stage *s, const json_t *spec, struct nyb_err *err)
{
    bool prefix = true;
    const char *scheme = json_string_value(json_object_get(spec, "prepend_scheme"));
    TRY(take_char(s, spec, "replacement", err));
    TRY(spec_bool(spec, "add_prefix_space", &prefix, err));
    s->drops_first = scheme ? strcmp(scheme, "never") != 0 : prefix;
    return NYB_OK;
}

static enum nyb_code take_kind(struct stage *s, const json_t *spec, const char *type, struct nyb_err *err)
{
    static const char *const NAME[] = {"ByteLevel", "ByteFallback", "Fuse", "Replace", "Strip", "Metaspace"};
    size_t i = 0;
    while (i < COUNT_OF(NAME) && strcmp(type, NAME[i]) != 0)
        i++;
    switch (i) {
    case BYTE_LEVEL:
        s->kind = BYTE_LEVEL;
        return NYB_OK;
    case BYTE_FALLBACK:
        s->kind = BYTE_FALLBACK;
        return NYB_OK;
    case FUSE:
        s->kind = FUSE;
        return NYB_OK;
    case REPLACE:
        s->kind = REPLACE;
        return take_replace(s, spec, err);
    case STRIP:
        s->kind = STRIP;
        TRY(take_char(s, spec, "content", err));
        TRY(spec_size(spec, "start", &s->start, err));
        return spec_size(spec, "stop", &s->stop, err);
    case METASPACE:
        s->kind = METASPACE;
        return take_metaspace(s, spec, err);
    default:
        return spec_unknown("decoder", type, err);
    }
}

static bool is_fused(const struct decoder *d)
{
    for (size_t i = 0; i < d->n_stage; i++)
        if (d->stage[i].kind == FUSE || d->stage[i].kind == BYTE_LEVEL)
            return true;
    return false;
}

static enum nyb_code add(struct decoder *d, const json_t *spec, int depth, struct nyb_err *err)
{
    const char *type = NULL;
    const json_t *parts = NULL;
    TRY(spec_type(spec, "decoder", &type, err));
    if (strcmp(type, "Sequence") == 0) {
        TRY(spec_array(spec, "decoders", &parts, err));
        if (depth == SPEC_DEPTH_MAX)
            return err_at(err, NYB_E_UNSUPPORTED, "tokenizer.json", -1, "decoders nest deeper than %d",
                          SPEC_DEPTH_MAX);
        for (size_t i = 0; i < json_array_size(parts); i++)
            TRY(add(d, json_array_get(parts, i), depth + 1, err));
        return NYB_OK;
    }
    if (d->n_stage == SPEC_STEP_MAX)
        return err_at(err, NYB_E_UNSUPPORTED, "tokenizer.json", -1, "more than %d decoders", SPEC_STEP_MAX);
    struct stage *s = &d->stage[d->n_stage];
    s->fused = is_fused(d);
    d->n_stage++; /* counted first, so that decoder_close frees what take_kind made */
    TRY(take_kind(s, spec, type, err));
    bool streams =
        s->kind == FUSE || s->kind == STRIP || (s->kind == REPLACE && s->from_len == utf8_size(s->from[0]));
    if (s->fused && !streams)
        return err_at(err, NYB_E_UNSUPPORTED, "tokenizer.json", -1,
                      "the decoder \"%.100s\" behind Fuse or ByteLevel is not supported", type);
    return NYB_OK;
}

enum nyb_code decoder_open(struct decoder **out, const json_t *spec, struct nyb_err *err)
{
    struct decoder *d = mem_alloc(1, sizeof(*d));
    d->joins_with_space = !spec || json_is_null(spec);
    enum nyb_code code = d->joins_with_space ? NYB_OK : add(d, spec, 0, err);
    *out = code == NYB_OK ? d : NULL;
    if (code != NYB_OK)
        decoder_close(d);
    return code;
}

void decoder_close(struct decoder *d)
{
    for (size_t i = 0; d && i < d->n_stage; i++) {
        free(d->stage[i].from);
        free(d->stage[i].to);
    }
    free(d);
}

/* --- Stages
 * ------------------------------------------------------------------------------------------------- */

/* Give text to stage i; behind the last stage it is output. */
static void run(struct decoder_state *s, size_t i, const char *text, size_t len, struct buf *out);

/* Whole characters go on; the beginning of one stays until the rest comes. */
static void push_bytes(struct decoder_state *s, size_t i, const char *text, size_t len, struct buf *out)
{
    struct buf *held = &s->stage[i].held;
    struct buf raw = {0};
    buf_add(&raw, held->data, held->len);
    if (!bytelevel_bytes(text, len, &raw))
        buf_add(&raw, text, len); /* not spelled in the alphabet: its own bytes, as in the reference */
    buf_clear(held);
    struct buf good = {0};
    size_t at = 0;
    while (at < raw.len) {
        size_t n, valid = utf8_valid_prefix(raw.data + at, raw.len - at);
        buf_add(&good, raw.data + at, valid);
        at += valid;
        if (at == raw.len)
            break;
        if (utf8_look(raw.data + at, raw.len - at, &n) == UTF8_INCOMPLETE)
            buf_add(held, raw.data + at, n);
        else
            buf_add(&good, REPLACEMENT, 3);
        at += n;
    }
    run(s, i + 1, good.data, good.len, out);
    buf_free(&good);
    buf_free(&raw);
}

/* <0xNN>, the digits as Rust's from_str_radix takes them. */
static bool fallback_byte(const char *t, size_t len, char *byte)
{
    int value = 0;
    if (len != 6 || memcmp(t, "<0x", 3) != 0 || t[5] != '>')
        return false;
    for (int i = 3; i < 5; i++) {
        int digit = t[i] >= '0' && t[i] <= '9'   ? t[i] - '0'
                    : t[i] >= 'a' && t[i] <= 'f' ? t[i] - 'a' + 10
                    : t[i] >= 'A' && t[i] <= 'F' ? t[i] - 'A' + 10
                    : t[i] == '+' && i == 3      ? 0
                                                 : -1;
        if (digit < 0)
            return false;
        value = value * 16 + digit;
    }
    *byte = (char)value;
    return true;
}

/* The run of byte tokens is over: text if all of it is well-formed. Each broken one is one U+FFFD. */
static void end_byte_run(struct decoder_state *s, size_t i, struct buf *out)
{
    struct decoder_stage_state *st = &s->stage[i];
    size_t n = st->held.len;
    bool good = st->count == 0 && st->checked == n;
    if (n > 0 && good)
        run(s, i + 1, st->held.data, n, out);
    for (size_t k = 0; k < n && !good; k++)
        run(s, i + 1, REPLACEMENT, 3, out);
    buf_clear(&st->held);
    st->count = st->checked = 0;
}

static void push_fallback(struct decoder_state *s, size_t i, const char *text, size_t len, struct buf *out)
{
    struct decoder_stage_state *st = &s->stage[i];
    char byte;
    size_t n;
    if (!fallback_byte(text, len, &byte)) {
        end_byte_run(s, i, out);
        run(s, i + 1, text, len, out);
        return;
    }
    buf_add_byte(&st->held, byte);
    if (st->count == 0) {
        enum utf8_kind kind = utf8_look(st->held.data + st->checked, st->held.len - st->checked, &n);
        if (kind == UTF8_CHAR)
            st->checked += n;
        if (kind != UTF8_BAD)
            return; /* may still become text, or be spoilt by a later byte */
    }
    for (size_t k = 0; k < st->held.len; k++)
        run(s, i + 1, REPLACEMENT, 3, out);
    st->count += st->held.len;
    st->checked = 0;
    buf_clear(&st->held);
}

static void push_replace(struct decoder_state *s, size_t i, const struct stage *g, const char *text,
                         size_t len, struct buf *out)
{
    struct buf b = {0};
    const char *end = text + len, *hit;
    buf_reserve(&b, len);
    while (text < end && (hit = memmem(text, (size_t)(end - text), g->from, g->from_len)) != NULL) {
        buf_add(&b, text, (size_t)(hit - text));
        buf_add(&b, g->to, g->to_len);
        text = hit + g->from_len;
    }
    buf_add(&b, text, (size_t)(end - text));
    run(s, i + 1, b.data, b.len, out);
    buf_free(&b);
}

static void push_metaspace(struct decoder_state *s, size_t i, const struct stage *g, const char *text,
                           size_t len, struct buf *out)
{
    struct stage as_replace = *g;
    as_replace.to = " ";
    as_replace.to_len = g->drops_first && !s->stage[i].past_start ? 0 : 1;
    s->stage[i].past_start = true;
    push_replace(s, i, &as_replace, text, len, out);
}

static bool begins(const struct stage *g, const char *text, size_t len)
{
    return len >= g->from_len && memcmp(text, g->from, g->from_len) == 0;
}

/* At most `max` of the stripped character at the end of text; the length without them. */
static size_t without_tail(const struct stage *g, const char *text, size_t len, size_t max)
{
    while (max-- > 0 && len >= g->from_len && memcmp(text + len - g->from_len, g->from, g->from_len) == 0)
        len -= g->from_len;
    return len;
}

static void strip_token(struct decoder_state *s, size_t i, const struct stage *g, const char *text,
                        size_t len, struct buf *out)
{
    for (size_t k = 0; k < g->start && begins(g, text, len); k++) {
        text += g->from_len;
        len -= g->from_len;
    }
    run(s, i + 1, text, without_tail(g, text, len, g->stop), out);
}

/* The same for one long string: the start is counted off, and what may prove to be its end waits. */
static void strip_stream(struct decoder_state *s, size_t i, const struct stage *g, const char *text,
                         size_t len, struct buf *out)
{
    struct decoder_stage_state *st = &s->stage[i];
    while (!st->past_start && len > 0) {
        if (st->count == g->start || !begins(g, text, len)) {
            st->past_start = true;
            break;
        }
        text += g->from_len;
        len -= g->from_len;
        st->count++;
    }
    struct buf all = {0};
    buf_add(&all, st->held.data, st->held.len);
    buf_add(&all, text, len);
    size_t keep = without_tail(g, all.data, all.len, g->stop);
    buf_clear(&st->held);
    buf_add(&st->held, all.data + keep, all.len - keep);
    run(s, i + 1, all.data, keep, out);
    buf_free(&all);
}

static void run(struct decoder_state *s, size_t i, const char *text, size_t len, struct buf *out)
{
    if (i == s->d->n_stage) {
        buf_add(out, text, len);
        return;
    }
    const struct stage *g = &s->d->stage[i];
    switch (g->kind) {
    case BYTE_LEVEL:
        push_bytes(s, i, text, len, out);
        break;
    case BYTE_FALLBACK:
        push_fallback(s, i, text, len, out);
        break;
    case FUSE:
        run(s, i + 1, text, len, out);
        break;
    case REPLACE:
        push_replace(s, i, g, text, len, out);
        break;
    case METASPACE:
        push_metaspace(s, i, g, text, len, out);
        break;
    case STRIP:
        if (g->fused)
            strip_stream(s, i, g, text, len, out);
        else
            strip_token(s, i, g, text, len, out);
        break;
    }
}

/* --- Tokens
 * ------------------------------------------------------------------------------------------------- */

void decoder_begin(struct decoder_state *s, const struct decoder *d)
{
    *s = (struct decoder_state){.d = d};
}

void decoder_push(struct decoder_state *s, const char *token, size_t len, struct buf *out)
{
    if (s->d->joins_with_space && s->any)
        buf_add_byte(out, ' ');
    s->any = true;
    run(s, 0, token, len, out);
}

void decoder_finish(struct decoder_state *s, struct buf *out)
{
    for (size_t i = 0; i < s->d->n_stage; i++) { /* in order: what one lets go runs through those behind it */
        struct decoder_stage_state *st = &s->stage[i];
        if (s->d->stage[i].kind == BYTE_FALLBACK)
            end_byte_run(s, i, out);
        else if (s->d->stage[i].kind == BYTE_LEVEL && st->held.len > 0)
            run(s, i + 1, REPLACEMENT, 3, out);
        buf_clear(&st->held); /* of Strip: it was the end, and goes */
        st->count = 0;
        st->past_start = false;
    }
    s->any = false;
}

/* One stage over a token alone. */
static bool token_stage(const struct stage *g, struct buf *text, struct buf *out)
{
    char byte;
    const char *from = text->data ? text->data : "", *end = from + text->len, *hit;
    switch (g->kind) {
    case BYTE_LEVEL:
        if (!bytelevel_bytes(from, text->len, out))
            buf_add(out, from, text->len);
        return true;
    case BYTE_FALLBACK:
        if (fallback_byte(from, text->len, &byte))
            buf_add_byte(out, byte);
        else
            buf_add(out, from, text->len);
        return true;
    case REPLACE:
    case METASPACE:
        while (from < end && (hit = memmem(from, (size_t)(end - from), g->from, g->from_len)) != NULL) {
            buf_add(out, from, (size_t)(hit - from));
            buf_add(out, g->kind == METASPACE ? " " : g->to, g->kind == METASPACE ? 1 : g->to_len);
            from = hit + g->from_len;
        }
        buf_add(out, from, (size_t)(end - from));
        return true;
    case STRIP: /* behind Fuse it is the text's start that is stripped: decoder_strips */
        for (size_t k = 0; !g->fused && k < g->start && begins(g, from, (size_t)(end - from)); k++)
            from += g->from_len;
        buf_add(out, from,
                g->fused ? (size_t)(end - from) : without_tail(g, from, (size_t)(end - from), g->stop));
        return !g->fused || (g->start <= 1 && g->stop == 0 && g->from_len == 1 && g->from[0] == ' ');
    default: /* FUSE */
        buf_add(out, from, text->len);
        return true;
    }
}

bool decoder_token_bytes(const struct decoder *d, const char *token, size_t len, struct buf *out)
{
    struct buf text = {0}, next = {0};
    bool fine = !d->joins_with_space;
    buf_add(&text, token, len);
    for (size_t i = 0; i < d->n_stage && fine; i++) {
        buf_clear(&next);
        fine = token_stage(&d->stage[i], &text, &next);
        struct buf swap = text;
        text = next;
        next = swap;
    }
    if (fine && text.len > 0)
        buf_add(out, text.data, text.len);
    buf_free(&text);
    buf_free(&next);
    return fine;
}

uint32_t decoder_strips(const struct decoder *d)
{
    for (size_t i = 0; i < d->n_stage; i++)
        if ((d->stage[i].kind == STRIP && d->stage[i].fused && d->stage[i].start > 0) ||
            (d->stage[i].kind == METASPACE && d->stage[i].drops_first))
            return 1;
    return 0;
}

void decoder_end(struct decoder_state *s)
{
    for (size_t i = 0; i < SPEC_STEP_MAX; i++)
        buf_free(&s->stage[i].held);
}
