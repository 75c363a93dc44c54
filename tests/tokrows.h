/* Golden rows of a tokenizer: reading them, and comparing with what we make of them. */
#ifndef NYB_TEST_TOKROWS_H
#define NYB_TEST_TOKROWS_H

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

/* A file of JSON lines, split at 0x0A only; NULL when it cannot be read. */
static inline json_t *tokrows_read(const char *path)
{
    char *text;
    size_t len;
    if (file_read_all(path, 1u << 28, &text, &len, NULL) != NYB_OK)
        return NULL;
    json_t *rows = json_array();
    for (const char *at = text, *all = text + len; at < all;) {
        const char *end = memchr(at, '\n', (size_t)(all - at));
        end = end ? end : all;
        json_t *row = NULL;
        if (end > at && json_parse(&row, at, (size_t)(end - at), path, NULL) == NYB_OK)
            json_array_append_new(rows, row);
        at = end + 1;
    }
    free(text);
    return rows;
}

static inline struct tok_ids tokrows_ids(const json_t *list)
{
    struct tok_ids ids = {0};
    ids.n = ids.cap = json_array_size(list);
    ids.id = mem_alloc(ids.n + 1, sizeof(*ids.id));
    for (size_t i = 0; i < ids.n; i++)
        ids.id[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return ids;
}

static inline bool tokrows_same_ids(const struct tok_ids *a, const struct tok_ids *b)
{
    return a->n == b->n && (a->n == 0 || memcmp(a->id, b->id, a->n * sizeof(*a->id)) == 0);
}

static inline bool tokrows_same_text(const struct buf *b, const json_t *text)
{
    return b->len == json_string_length(text) &&
           (b->len == 0 || memcmp(b->data, json_string_value(text), b->len) == 0);
}

/* Does the text encode to exactly `prefix` + `ids`? */
static inline bool tokrows_encodes(const struct tokenizer *t, const json_t *text, bool add_special,
                                   const json_t *prefix, const json_t *ids)
{
    struct tok_ids got = {0}, want = tokrows_ids(ids), all = {0};
    for (size_t i = 0; i < json_array_size(prefix) + want.n; i++) {
        size_t n = json_array_size(prefix);
        all.id = mem_grow(all.id, all.n + 1, sizeof(*all.id));
        all.id[all.n++] = i < n ? (int32_t)json_integer_value(json_array_get(prefix, i)) : want.id[i - n];
    }
    bool same =
        tok_encode(t, json_string_value(text), json_string_length(text), add_special, &got, NULL) == NYB_OK &&
        tokrows_same_ids(&got, &all);
    tok_ids_free(&got);
    tok_ids_free(&want);
    tok_ids_free(&all);
    return same;
}

/* Do the ids decode to the text, all at once and piece by piece, every piece made of whole characters? */
static inline bool tokrows_decodes(const struct tokenizer *t, const struct tok_ids *ids, bool skip_special,
                                   struct buf *text)
{
    struct buf pieces = {0};
    struct detok *d = detok_open(t, skip_special);
    bool whole = true;
    tok_decode(t, ids->id, ids->n, skip_special, text);
    for (size_t i = 0; i <= ids->n; i++) {
        size_t before = pieces.len;
        if (i < ids->n)
            detok_push(d, ids->id[i], &pieces);
        else
            detok_finish(d, &pieces);
        size_t n = pieces.len - before;
        whole = whole && (n == 0 || utf8_valid_prefix(pieces.data + before, n) == n);
    }
    bool same =
        pieces.len == text->len && (text->len == 0 || memcmp(pieces.data, text->data, text->len) == 0);
    detok_close(d);
    buf_free(&pieces);
    return whole && same;
}

#endif
