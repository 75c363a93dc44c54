#include "text/normalizer.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/nform.h"
#include "text/pattern.h"
#include "text/spec.h"
#include "text/unicode16.h"
#include "text/utf8.h"

struct step {
    enum { FORM, PREPEND, REPLACE, STRIP } kind;
    struct nform *form;
    struct pattern *pattern; /* of REPLACE                     */
    char *content;           /* of PREPEND and REPLACE          */
    size_t content_len;
    bool left, right; /* ends that STRIP works on       */
};

struct normalizer {
    struct step step[SPEC_STEP_MAX];
    size_t n_step;
};

/* --- Reading the file
 * --------------------------------------------------------------------------------------- */

static enum nyb_code add_content(struct step *s, const json_t *spec, const char *field, struct nyb_err *err)
{
    const char *text = NULL;
    TRY(spec_string(spec, field, &text, &s->content_len, err));
    s->content = mem_alloc(s->content_len + 1, 1);
    memcpy(s->content, text, s->content_len);
    return NYB_OK;
}

static enum nyb_code add_replace(struct step *s, const json_t *spec, struct nyb_err *err)
{
    const char *text = NULL;
    size_t len = 0;
    bool is_regex = false;
    TRY(add_content(s, spec, "content", err));
    TRY(spec_pattern(spec, &text, &len, &is_regex, err));
    if (is_regex)
        return pattern_open(&s->pattern, text, len, err);
    return pattern_open_literal(&s->pattern, text, len, err);
}

static enum nyb_code add(struct normalizer *n, const json_t *spec, int depth, struct nyb_err *err);

static enum nyb_code add_sequence(struct normalizer *n, const json_t *spec, int depth, struct nyb_err *err)
{
    const json_t *parts = NULL;
    TRY(spec_array(spec, "normalizers", &parts, err));
    if (depth == SPEC_DEPTH_MAX)
        return err_at(err, NYB_E_UNSUPPORTED, "tokenizer.json", -1, "normalizers nest deeper than %d",
                      SPEC_DEPTH_MAX);
    for (size_t i = 0; i < json_array_size(parts); i++)
        TRY(add(n, json_array_get(parts, i), depth + 1, err));
    return NYB_OK;
}

static enum nyb_code add(struct normalizer *n, const json_t *spec, int depth, struct nyb_err *err)
{
    static const char *const FORM_NAME[] = {"NFC", "NFD", "NFKC", "NFKD"};
    const char *type = NULL;
    TRY(spec_type(spec, "normalizer", &type, err));
    if (strcmp(type, "Sequence") == 0)
        return add_sequence(n, spec, depth, err);
    if (n->n_step == SPEC_STEP_MAX)
        return err_at(err, NYB_E_UNSUPPORTED, "tokenizer.json", -1, "more than %d normalizers",
                      SPEC_STEP_MAX);
    struct step *s = &n->step[n->n_step++];
    for (size_t i = 0; i < COUNT_OF(FORM_NAME); i++) {
        if (strcmp(type, FORM_NAME[i]) == 0) {
            s->kind = FORM;
            s->form = nform_open((enum nform_kind)i);
            return NYB_OK;
        }
    }
    if (strcmp(type, "Prepend") == 0) {
        s->kind = PREPEND;
        return add_content(s, spec, "prepend", err);
    }
    if (strcmp(type, "Replace") == 0) {
        s->kind = REPLACE;
        return add_replace(s, spec, err);
    }
    if (strcmp(type, "Strip") == 0) {
        s->kind = STRIP;
        s->left = s->right = true;
        TRY(spec_bool(spec, "strip_left", &s->left, err));
        return spec_bool(spec, "strip_right", &s->right, err);
    }
    return spec_unknown("normalizer", type, err);
}

enum nyb_code normalizer_open(struct normalizer **out, const json_t *spec, struct nyb_err *err)
{
    struct normalizer *n = mem_alloc(1, sizeof(*n));
    enum nyb_code code = !spec || json_is_null(spec) ? NYB_OK : add(n, spec, 0, err);
    *out = code == NYB_OK ? n : NULL;
    if (code != NYB_OK)
        normalizer_close(n);
    return code;
}

void normalizer_close(struct normalizer *n)
{
    if (!n)
        return;
    for (size_t i = 0; i < n->n_step; i++) {
        nform_close(n->step[i].form);
        pattern_close(n->step[i].pattern);
        free(n->step[i].content);
    }
    free(n);
}

/* --- Applying
 * ----------------------------------------------------------------------------------------------- */

struct sink {
    struct buf *text, *mark; /* mark NULL: no flags */
};

static void add_old(const struct sink *o, const struct normalizer_text *t, size_t from, size_t to)
{
    buf_add(o->text, t->text + from, to - from);
    if (o->mark)
        buf_add(o->mark, t->mark + from, to - from);
}

static void add_new(const struct sink *o, const char *s, size_t len, char flag)
{
    buf_add(o->text, s, len);
    for (size_t i = 0; o->mark && i < len; i++)
        buf_add_byte(o->mark, flag);
}

/* What replaces several bytes may be special only where all of them might. */
static char flag_of(const struct normalizer_text *t, size_t from, size_t to)
{
    for (size_t i = from; t->mark && i < to; i++)
        if (!t->mark[i])
            return 0;
    return 1;
}

static enum nyb_code replace(const struct step *s, const struct normalizer_text *t, const struct sink *o,
                             struct nyb_err *err)
{
    struct pattern_scan *scan = pattern_scan_open(s->pattern, unicode16_differs(t->text, t->len));
    size_t done = 0, from = 0, to = 0;
    bool found = true;
    enum nyb_code code = NYB_OK;
    pattern_scan_text(scan, t->text, t->len);
    while (code == NYB_OK && found) {
        code = pattern_next(scan, &from, &to, &found, err);
        if (code != NYB_OK || !found)
            break;
        add_old(o, t, done, from);
        add_new(o, s->content, s->content_len, flag_of(t, from, to));
        done = to;
    }
    add_old(o, t, done, t->len);
    pattern_scan_close(scan);
    return code;
}

static void strip(const struct step *s, struct normalizer_text *t)
{
    size_t from = 0, to = t->len;
    while (s->left && from < to && unicode16_is_space(utf8_code(t->text + from)))
        from += utf8_size(t->text[from]);
    while (s->right && to > from) {
        size_t at = to - 1;
        while (utf8_is_tail(t->text[at]))
            at--;
        if (!unicode16_is_space(utf8_code(t->text + at)))
            break;
        to = at;
    }
    t->text += from;
    t->len = to - from;
    if (t->mark)
        t->mark += from;
}

/* True when the step leaves this text as it is, so that nothing is copied. */
static bool is_idle(const struct step *s, const struct normalizer_text *t)
{
    return (s->kind == FORM && nform_is_done(s->form, t->text, t->len)) ||
           (s->kind == PREPEND && t->len == 0);
}

enum nyb_code normalizer_apply(const struct normalizer *n, struct normalizer_work *w,
                               struct normalizer_text *t, struct nyb_err *err)
{
    int turn = 0;
    for (size_t i = 0; i < n->n_step; i++) {
        const struct step *s = &n->step[i];
        struct sink o = {&w->text[turn], t->mark ? &w->mark[turn] : NULL};
        if (s->kind == STRIP) {
            strip(s, t);
            continue;
        }
        if (is_idle(s, t))
            continue;
        buf_clear(o.text);
        buf_reserve(o.text, t->len);
        if (o.mark) {
            buf_clear(o.mark);
            buf_reserve(o.mark, t->len);
        }
        if (s->kind == FORM) {
            nform_apply(s->form, t->text, t->len, t->mark, o.text, o.mark);
        } else if (s->kind == REPLACE) {
            TRY(replace(s, t, &o, err));
        } else {
            add_new(&o, s->content, s->content_len, 0);
            add_old(&o, t, 0, t->len);
        }
        *t = (struct normalizer_text){o.text->data, o.text->len, o.mark ? o.mark->data : NULL};
        turn = !turn;
    }
    return NYB_OK;
}

void normalizer_work_free(struct normalizer_work *w)
{
    for (int i = 0; i < 2; i++) {
        buf_free(&w->text[i]);
        buf_free(&w->mark[i]);
    }
}
