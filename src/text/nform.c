#include "text/nform.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/err.h"
#include "base/mem.h"
#include "text/unicode16.h"
#include "text/utf8.h"

#define CODE_END   0x30000 /* nothing beyond takes part in normalization (Unicode 16)          */
#define DECOMPOSED 32      /* room for one character's decomposition; the longest has 18 (U+FDFA) */
#define LATIN_SAFE 0x300   /* every character below is in NFC and combines with none before it    */

struct nform {
    enum nform_kind kind;
    /* Bit set: the character may change, or may combine or trade places with the one before it. All others
     * are borders: what stands on the two sides of one is normalized apart. */
    uint64_t active[CODE_END / 64];
};

/* Added by Unicode 13 and 14 with a combining class or a decomposition; younger ones: unicode16.def. */
static const struct {
    uint32_t first, last;
} YOUNG[] = {{0x00898, 0x0089F}, {0x008CA, 0x008D2}, {0x00C3C, 0x00C3C}, {0x01715, 0x01715},
             {0x01ABF, 0x01ACE}, {0x01DFA, 0x01DFA}, {0x0A82C, 0x0A82C}, {0x10EAB, 0x10EAC},
             {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x11930, 0x11930}, {0x11938, 0x11938},
             {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x16FF0, 0x16FF1}, {0x1E2AE, 0x1E2AE}};

static bool is_young(uint32_t code)
{
    for (size_t i = 0; i < COUNT_OF(YOUNG); i++)
        if (code >= YOUNG[i].first && code <= YOUNG[i].last)
            return true;
    return unicode16_is_added(code) && code != 0x180E;
}

static void set(struct nform *f, uint32_t code)
{
    f->active[code / 64] |= 1ull << (code % 64);
}

static bool is_active(const struct nform *f, uint32_t code)
{
    return code < CODE_END && (f->active[code / 64] >> (code % 64) & 1);
}

/* Full canonical decomposition into d; its length. */
static size_t decompose(uint32_t code, bool compatible, int32_t d[DECOMPOSED])
{
    if (is_young(code)) {
        d[0] = (int32_t)code;
        return 1;
    }
    utf8proc_option_t options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE;
    if (compatible)
        options |= UTF8PROC_COMPAT;
    utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)code, d, DECOMPOSED, options, NULL);
    ASSERT(n > 0 && n <= DECOMPOSED);
    return (size_t)n;
}

static size_t compose(int32_t *code, size_t n)
{
    utf8proc_ssize_t left =
        utf8proc_normalize_utf32(code, (utf8proc_ssize_t)n, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    ASSERT(left >= 0 && (size_t)left <= n);
    return (size_t)left;
}

static int combining_class(uint32_t code)
{
    return is_young(code) ? 0 : (int)utf8proc_get_property((utf8proc_int32_t)code)->combining_class;
}

/* For NFC: characters with a combining class; those that are not their own NFC; and every last character of a
 * canonical decomposition, which is what can be composed with a predecessor. */
static void fill_nfc(struct nform *f)
{
    int32_t d[DECOMPOSED];
    for (uint32_t code = LATIN_SAFE; code < CODE_END; code++) {
        if (code >= 0xD800 && code < 0xE000)
            continue;
        const utf8proc_property_t *p = utf8proc_get_property((utf8proc_int32_t)code);
        bool syllable = code >= 0xAC00 && code < 0xD7A4;
        if (p->combining_class != 0)
            set(f, code);
        if (p->decomp_seqindex == UINT16_MAX || p->decomp_type != 0 || syllable)
            continue;
        size_t n = decompose(code, false, d);
        if (n > 1)
            set(f, (uint32_t)d[n - 1]);
        n = compose(d, n);
        if (n != 1 || d[0] != (int32_t)code)
            set(f, code);
    }
    for (uint32_t code = 0x1161; code <= 0x1175; code++) /* Hangul vowels and final consonants */
        set(f, code);
    for (uint32_t code = 0x11A8; code <= 0x11C2; code++)
        set(f, code);
}

struct nform *nform_open(enum nform_kind kind)
{
    struct nform *f = mem_alloc(1, sizeof(*f));
    f->kind = kind;
    if (kind == NFORM_NFC)
        fill_nfc(f);
    else
        for (uint32_t code = 0x80; code < CODE_END; code++) /* rare forms: only ASCII counts as a border */
            set(f, code);
    for (size_t i = 0; i < COUNT_OF(YOUNG); i++)
        for (uint32_t code = YOUNG[i].first; code <= YOUNG[i].last; code++)
            f->active[code / 64] &= ~(1ull << (code % 64));
    for (uint32_t code = LATIN_SAFE; code < CODE_END; code++)
        if (is_active(f, code) && is_young(code))
            f->active[code / 64] &= ~(1ull << (code % 64));
    return f;
}

void nform_close(struct nform *f)
{
    free(f);
}

/* Offset of the first active character at or behind `at`; len: none. */
static size_t next_active(const struct nform *f, const char *text, size_t len, size_t at)
{
    unsigned char least = f->kind == NFORM_NFC ? 0xCC : 0xC2; /* first byte of U+0300, of U+0080 */
    while (at < len) {
        uint64_t word;
        if (len - at >= 8) {
            memcpy(&word, text + at, 8);
            if ((word & 0x8080808080808080ull) == 0) {
                at += 8;
                continue;
            }
        }
        if ((unsigned char)text[at] >= least && is_active(f, utf8_code(text + at)))
            return at;
        at += utf8_size(text[at]);
    }
    return len;
}

bool nform_is_done(const struct nform *f, const char *text, size_t len)
{
    return next_active(f, text, len, 0) == len;
}

/* --- One run
 * ------------------------------------------------------------------------------------------------ */

struct run {
    int32_t *code, *sorted; /* (cap) */
    size_t n, cap;
};

/* Stable sort of combining marks by class: canonical order. Counting, so that a megabyte of marks is no worse
 * than linear. */
static void sort_marks(struct run *r, size_t from, size_t to)
{
    size_t start[256] = {0}, sum = 0;
    for (size_t i = from; i < to; i++)
        start[combining_class((uint32_t)r->code[i])]++;
    for (size_t c = 0; c < 256; c++) {
        size_t n = start[c];
        start[c] = sum;
        sum += n;
    }
    for (size_t i = from; i < to; i++)
        r->sorted[start[combining_class((uint32_t)r->code[i])]++] = r->code[i];
    memcpy(r->code + from, r->sorted, (to - from) * sizeof(*r->code));
}

static void order_marks(struct run *r)
{
    size_t from = 0;
    int previous = 0;
    bool ordered = true;
    for (size_t i = 0; i <= r->n; i++) {
        int class = i < r->n ? combining_class((uint32_t)r->code[i]) : 0;
        if (class == 0) {
            if (!ordered)
                sort_marks(r, from, i);
            from = i + 1;
            ordered = true;
        } else if (class < previous) {
            ordered = false;
        }
        previous = class;
    }
}

static void normalize_run(const struct nform *f, struct run *r, const char *text, size_t len, struct buf *out)
{
    bool compatible = f->kind == NFORM_NFKC || f->kind == NFORM_NFKD;
    r->n = 0;
    for (size_t i = 0; i < len; i += utf8_size(text[i])) {
        if (r->cap - r->n < DECOMPOSED) {
            r->cap = r->cap ? r->cap * 2 : 256;
            r->code = mem_grow(r->code, r->cap, sizeof(*r->code));
            r->sorted = mem_grow(r->sorted, r->cap, sizeof(*r->sorted));
        }
        r->n += decompose(utf8_code(text + i), compatible, r->code + r->n);
    }
    order_marks(r);
    if (f->kind == NFORM_NFC || f->kind == NFORM_NFKC)
        r->n = compose(r->code, r->n);
    for (size_t i = 0; i < r->n; i++)
        buf_add_utf8(out, (uint32_t)r->code[i]);
}

static char all_marked(const char *mark, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!mark[i])
            return 0;
    return 1;
}

static size_t run_end(const struct nform *f, const char *text, size_t len, size_t at)
{
    while (at < len && is_active(f, utf8_code(text + at)))
        at += utf8_size(text[at]);
    return at;
}

void nform_apply(const struct nform *f, const char *text, size_t len, const char *mark, struct buf *out,
                 struct buf *mark_out)
{
    struct run run = {0};
    size_t done = 0;
    buf_reserve(out, len);
    while (done < len) {
        size_t from = next_active(f, text, len, done), to = run_end(f, text, len, from);
        if (from < len && from > done) /* the border before a run may combine with it */
            for (from--; utf8_is_tail(text[from]);)
                from--;
        buf_add(out, text + done, from - done);
        if (mark)
            buf_add(mark_out, mark + done, from - done);
        size_t before = out->len;
        normalize_run(f, &run, text + from, to - from, out);
        if (mark) {
            char flag = all_marked(mark + from, to - from);
            for (size_t i = before; i < out->len; i++)
                buf_add_byte(mark_out, flag);
        }
        done = to;
    }
    free(run.code);
    free(run.sorted);
}
