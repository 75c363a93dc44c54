#include "text/pretok.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/pattern.h"
#include "text/spec.h"
#include "text/unicode16.h"

/* What ByteLevel splits with when use_regex holds: the pattern of GPT-2. */
static const char GPT2_SPLIT[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

enum behavior { ISOLATED, REMOVED, MERGED_WITH_PREVIOUS, MERGED_WITH_NEXT, CONTIGUOUS };
static const char *const BEHAVIOR_NAME[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext",
                                            "Contiguous"};

struct step {
    enum {
        SPLIT,     /* at matches of a pattern                          */
        PREFIX,    /* a space before each piece that has none          */
        METASPACE, /* spaces become marks, one is put before the piece */
    } kind;
    struct pattern *pattern;
    enum behavior behavior;
    bool invert;                        /* what does not match is the match */
    char *mark;                         /* of METASPACE                     */
    enum { ALWAYS, FIRST, NEVER } when; /* to put it before                 */
};

struct pretok {
    struct step step[SPEC_STEP_MAX];
    size_t n_step;
    bool byte_level;
};

/* --- Reading the file
 * --------------------------------------------------------------------------------------- */

static enum nyb_code new_step(struct pretok *p, int kind, struct step **out, struct nyb_err *err)
{
    if (p->n_step == SPEC_STEP_MAX)
        return err_at(err, NYB_E_UNSUPPORTED, "tokenizer.json", -1, "more than %d pre-tokenizers",
                      SPEC_STEP_MAX);
    *out = &p->step[p->n_step++];
    (*out)->kind = kind == METASPACE ? METASPACE : kind == PREFIX ? PREFIX : SPLIT;
    return NYB_OK;
}

static enum nyb_code add_regex(struct pretok *p, const char *regex, enum behavior behavior,
                               struct nyb_err *err)
{
    struct step *s = NULL;
    TRY(new_step(p, SPLIT, &s, err));
    s->behavior = behavior;
    return pattern_open(&s->pattern, regex, strlen(regex), err);
}

static enum nyb_code add_split(struct pretok *p, const json_t *spec, struct nyb_err *err)
{
    const char *text = NULL, *behavior = NULL;
    size_t len = 0, behavior_len = 0, i = 0;
    bool is_regex = false;
    struct step *s = NULL;
    TRY(new_step(p, SPLIT, &s, err));
    TRY(spec_bool(spec, "invert", &s->invert, err));
    TRY(spec_string(spec, "behavior", &behavior, &behavior_len, err));
    while (i < COUNT_OF(BEHAVIOR_NAME) && strcmp(behavior, BEHAVIOR_NAME[i]) != 0)
        i++;
    if (i == COUNT_OF(BEHAVIOR_NAME))
        return spec_unknown("Split behavior", behavior, err);
    s->behavior = (enum behavior)i;
    TRY(spec_pattern(spec, &text, &len, &is_regex, err));
    if (is_regex)
        return pattern_open(&s->pattern, text, len, err);
    return pattern_open_literal(&s->pattern, text, len, err);
}

static enum nyb_code add_byte_level(struct pretok *p, const json_t *spec, struct nyb_err *err)
{
    bool prefix = true, regex = true;
    struct step *s = NULL;
    TRY(spec_bool(spec, "add_prefix_space", &prefix, err));
    TRY(spec_bool(spec, "use_regex", &regex, err));
    if (prefix)
        TRY(new_step(p, PREFIX, &s, err));
    if (regex)
        TRY(add_regex(p, GPT2_SPLIT, ISOLATED, err));
    p->byte_level = true;
    return NYB_OK;
}

static enum nyb_code add_metaspace(struct pretok *p, const json_t *spec, struct nyb_err *err)
{
    const char *mark = NULL, *scheme = NULL;
    size_t mark_len = 0, scheme_len = 0;
    bool legacy_prefix = true, split = true;
    struct step *s = NULL;
    TRY(new_step(p, METASPACE, &s, err));
    TRY(spec_string(spec, "replacement", &mark, &mark_len, err));
    if (mark_len == 0 || strlen(mark) != mark_len)
        return err_at(err, NYB_E_FORMAT, "tokenizer.json", -1,
                      "Metaspace: \"replacement\" is not a character");
    s->mark = mem_strdup(mark);
    TRY(spec_bool(spec, "add_prefix_space", &legacy_prefix, err));
    s->when = legacy_prefix ? ALWAYS : NEVER;
    if (json_object_get(spec, "prepend_scheme")) {
        TRY(spec_string(spec, "prepend_scheme", &scheme, &scheme_len, err));
        if (strcmp(scheme, "always") != 0 && strcmp(scheme, "first") != 0 && strcmp(scheme, "never") != 0)
            return spec_unknown("Metaspace prepend_scheme", scheme, err);
        s->when = scheme[0] == 'a' ? ALWAYS : scheme[0] == 'f' ? FIRST : NEVER;
    }
    TRY(spec_bool(spec, "split", &split, err));
    if (!split)
        return NYB_OK;
    TRY(new_step(p, SPLIT, &s, err));
    s->behavior = MERGED_WITH_NEXT;
    return pattern_open_literal(&s->pattern, mark, mark_len, err);
}

static enum nyb_code add(struct pretok *p, const json_t *spec, int depth, struct nyb_err *err)
{
    const char *type = NULL;
    const json_t *parts = NULL;
    bool individual = false;
    TRY(spec_type(spec, "pre-tokenizer", &type, err));
    if (p->byte_level)
        return err_at(err, NYB_E_UNSUPPORTED, "tokenizer.json", -1,
                      "the pre-tokenizer \"%.100s\" behind ByteLevel is not supported", type);
    if (strcmp(type, "Sequence") == 0) {
        TRY(spec_array(spec, "pretokenizers", &parts, err));
        if (depth == SPEC_DEPTH_MAX)
            return err_at(err, NYB_E_UNSUPPORTED, "tokenizer.json", -1, "pre-tokenizers nest deeper than %d",
                          SPEC_DEPTH_MAX);
        for (size_t i = 0; i < json_array_size(parts); i++)
            TRY(add(p, json_array_get(parts, i), depth + 1, err));
        return NYB_OK;
    }
    if (strcmp(type, "Split") == 0)
        return add_split(p, spec, err);
    if (strcmp(type, "ByteLevel") == 0)
        return add_byte_level(p, spec, err);
    if (strcmp(type, "Metaspace") == 0)
        return add_metaspace(p, spec, err);
    if (strcmp(type, "Digits") == 0) {
        TRY(spec_bool(spec, "individual_digits", &individual, err));
        return add_regex(p, "\\p{N}", individual ? ISOLATED : CONTIGUOUS, err);
    }
    if (strcmp(type, "WhitespaceSplit") == 0)
        return add_regex(p, "\\s", REMOVED, err);
    return spec_unknown("pre-tokenizer", type, err);
}

enum nyb_code pretok_open(struct pretok **out, const json_t *spec, struct nyb_err *err)
{
    struct pretok *p = mem_alloc(1, sizeof(*p));
    enum nyb_code code = !spec || json_is_null(spec) ? NYB_OK : add(p, spec, 0, err);
    *out = code == NYB_OK ? p : NULL;
    if (code != NYB_OK)
        pretok_close(p);
    return code;
}

void pretok_close(struct pretok *p)
{
    if (!p)
        return;
    for (size_t i = 0; i < p->n_step; i++) {
        pattern_close(p->step[i].pattern);
        free(p->step[i].mark);
    }
    free(p);
}

bool pretok_is_byte_level(const struct pretok *p)
{
    return p->byte_level;
}

/* --- Work space
 * --------------------------------------------------------------------------------------------- */

void pretok_work_open(struct pretok_work *w, const struct pretok *p)
{
    *w = (struct pretok_work){.p = p};
    w->scan = mem_alloc(2 * SPEC_STEP_MAX, sizeof(*w->scan));
}

void pretok_work_close(struct pretok_work *w)
{
    for (size_t i = 0; w->scan && i < 2 * SPEC_STEP_MAX; i++)
        pattern_scan_close(w->scan[i]);
    free(w->scan);
    free(w->piece);
    free(w->spare);
    buf_free(&w->buf[0]);
    buf_free(&w->buf[1]);
    *w = (struct pretok_work){0};
}

static inline void push(struct pretok_work *w, size_t start, size_t end)
{
    if (w->n_piece == w->cap) {
        w->cap = w->cap ? w->cap * 2 : 256;
        w->piece = mem_grow(w->piece, w->cap, sizeof(*w->piece));
    }
    w->piece[w->n_piece++] = (struct pretok_piece){(uint32_t)start, (uint32_t)(end - start)};
}

/* The pieces so far become the input of the next step, which pushes anew. */
static const struct pretok_piece *take_pieces(struct pretok_work *w, size_t *n)
{
    struct pretok_piece *input = w->piece;
    size_t cap = w->cap;
    *n = w->n_piece;
    w->piece = w->spare;
    w->cap = w->spare_cap;
    w->spare = input;
    w->spare_cap = cap;
    w->n_piece = 0;
    return input;
}

/* --- Splitting
 * ---------------------------------------------------------------------------------------------- */

struct splitter {
    struct pretok_work *w;
    enum behavior behavior;
    bool have, previous_match; /* within the present piece */
};

/* Next stretch of a piece, a match or what lies between matches. */
static inline void stretch(struct splitter *s, size_t start, size_t end, bool match)
{
    bool extend = false, previous = s->previous_match;
    switch (s->behavior) {
    case ISOLATED:
        break;
    case REMOVED:
        if (match)
            return;
        break;
    case MERGED_WITH_PREVIOUS:
        extend = match && !previous;
        break;
    case MERGED_WITH_NEXT:
        extend = !match && previous;
        break;
    case CONTIGUOUS:
        extend = match == previous;
        break;
    }
    if (extend && s->have) {
        struct pretok_piece *last = &s->w->piece[s->w->n_piece - 1];
        last->len = (uint32_t)(end - last->start);
    } else {
        push(s->w, start, end);
    }
    s->have = true;
    s->previous_match = match;
}

static enum nyb_code split_piece(struct pretok_work *w, const struct step *step, struct pattern_scan *scan,
                                 struct pretok_piece piece, struct nyb_err *err)
{
    struct splitter s = {.w = w, .behavior = step->behavior};
    size_t base = piece.start, done = 0, from = 0, to = 0;
    bool found = false;
    pattern_scan_text(scan, w->text + base, piece.len);
    for (;;) {
        TRY(pattern_next(scan, &from, &to, &found, err));
        if (!found)
            break;
        if (from > done)
            stretch(&s, base + done, base + from, step->invert);
        stretch(&s, base + from, base + to, !step->invert);
        done = to;
    }
    if (done < piece.len)
        stretch(&s, base + done, base + piece.len, step->invert);
    return NYB_OK;
}

static enum nyb_code run_split(struct pretok_work *w, size_t i_step, bool unicode16, struct nyb_err *err)
{
    const struct step *step = &w->p->step[i_step];
    struct pattern_scan **scan = &w->scan[2 * i_step + unicode16];
    size_t n;
    const struct pretok_piece *input = take_pieces(w, &n);
    if (!*scan)
        *scan = pattern_scan_open(step->pattern, unicode16);
    for (size_t i = 0; i < n; i++)
        TRY(split_piece(w, step, *scan, input[i], err));
    return NYB_OK;
}

/* --- Rewriting
 * ---------------------------------------------------------------------------------------------- */

static bool starts_with(const char *s, size_t len, const char *what)
{
    size_t n = strlen(what);
    return len >= n && memcmp(s, what, n) == 0;
}

static void add_with_marks(struct buf *out, const char *s, size_t len, const char *mark)
{
    size_t mark_len = strlen(mark);
    while (len > 0) {
        const char *space = memchr(s, ' ', len);
        size_t n = space ? (size_t)(space - s) : len;
        buf_add(out, s, n);
        if (space)
            buf_add(out, mark, mark_len);
        s += n + (space != NULL);
        len -= n + (space != NULL);
    }
}

/* Both rewriting steps build a fresh text; every piece keeps its place in the order. */
static enum nyb_code run_rewrite(struct pretok_work *w, const struct step *step, bool at_start,
                                 struct nyb_err *err)
{
    struct buf *out = w->text == w->buf[0].data ? &w->buf[1] : &w->buf[0];
    size_t n;
    const struct pretok_piece *input = take_pieces(w, &n);
    buf_clear(out);
    buf_reserve(out, w->len + 16);
    for (size_t i = 0; i < n; i++) {
        const char *s = w->text + input[i].start;
        size_t len = input[i].len, start = out->len;
        if (len == 0)
            continue;
        if (step->kind == PREFIX) {
            if (*s != ' ')
                buf_add_byte(out, ' ');
            buf_add(out, s, len);
        } else {
            bool wanted = step->when == ALWAYS || (step->when == FIRST && at_start && input[i].start == 0);
            if (wanted && *s != ' ' && !starts_with(s, len, step->mark))
                buf_add_str(out, step->mark);
            add_with_marks(out, s, len, step->mark);
        }
        push(w, start, out->len);
        if (out->len > UINT32_MAX)
            return err_set(err, NYB_E_TOO_LONG, "the text grows beyond 4 GB when pre-tokenized");
    }
    w->text = out->data;
    w->len = out->len;
    return NYB_OK;
}

enum nyb_code pretok_split(struct pretok_work *w, const char *text, size_t len, bool at_start,
                           struct nyb_err *err)
{
    bool unicode16 = w->p->n_step > 0 && unicode16_differs(text, len);
    w->text = text;
    w->len = len;
    w->n_piece = 0;
    push(w, 0, len);
    for (size_t i = 0; i < w->p->n_step; i++) {
        if (w->p->step[i].kind == SPLIT)
            TRY(run_split(w, i, unicode16, err));
        else
            TRY(run_rewrite(w, &w->p->step[i], at_start, err));
    }
    return NYB_OK;
}
