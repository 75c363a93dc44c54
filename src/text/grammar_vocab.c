#include "text/grammar_vocab.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/grammar_ast.h"
#include "text/tok.h"
#include "text/utf8.h"

struct entry {
    const char *bytes;
    uint32_t len;
    int32_t token;
};

size_t grammar_vocab_words(const struct grammar_vocab *v)
{
    return v->n_word;
}

const char *grammar_vocab_bytes(const struct grammar_vocab *v, int32_t token, size_t *len)
{
    *len = 0;
    if (token < 0 || token >= v->n_vocab || v->offset[token] == v->offset[token + 1])
        return NULL;
    *len = v->offset[token + 1] - v->offset[token];
    return v->text + v->offset[token];
}

/* Characters of a plain token; 0: it is another. */
static size_t plain_chars(const char *s, size_t len)
{
    size_t n = 0;
    if (utf8_valid_prefix(s, len) != len)
        return 0;
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c < 0x20 || c == 0x7F || c == '"' || c == '\\')
            return 0;
        n += !utf8_is_tail(s[i]);
    }
    return n <= GRAMMAR_PLAIN_MAX ? n : 0;
}

static int by_bytes(const void *x, const void *y)
{
    const struct entry *a = x, *b = y;
    int order = memcmp(a->bytes, b->bytes, a->len < b->len ? a->len : b->len);
    if (order == 0)
        order = (a->len > b->len) - (a->len < b->len);
    return order ? order : (a->token > b->token) - (a->token < b->token);
}

static void add_node(struct grammar_trie *t, uint32_t *cap, struct grammar_trie_node node)
{
    if (t->n == *cap) {
        *cap = *cap ? 2 * *cap : 1024;
        t->node = mem_grow(t->node, *cap, sizeof(*t->node));
    }
    t->node[t->n++] = node;
}

/* Sorted texts to a trie: each shares the path of the one before as far as they agree. */
static void build_trie(struct grammar_trie *t, int32_t *same, const struct entry *e, size_t n)
{
    uint32_t cap = 0, path[GRAMMAR_TOKEN_MAX + 1];
    uint32_t depth = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t shared = 0;
        while (i > 0 && shared < e[i].len && shared < e[i - 1].len &&
               e[i].bytes[shared] == e[i - 1].bytes[shared])
            shared++;
        if (i > 0 && shared == e[i].len && shared == e[i - 1].len) { /* the same bytes again */
            same[e[i].token] = t->node[path[depth - 1]].token;
            t->node[path[depth - 1]].token = e[i].token;
            continue;
        }
        for (; depth > shared; depth--)
            t->node[path[depth - 1]].end = t->n;
        for (; depth < e[i].len; depth++) {
            path[depth] = t->n;
            add_node(t, &cap,
                     (struct grammar_trie_node){
                         .token = -1, .byte = (uint8_t)e[i].bytes[depth], .depth = (uint8_t)depth});
        }
        t->node[path[depth - 1]].token = e[i].token;
    }
    for (; depth > 0; depth--)
        t->node[path[depth - 1]].end = t->n;
}

static void fill_masks(struct grammar_vocab *v, const struct entry *plain, size_t n)
{
    for (int i = 0; i <= GRAMMAR_PLAIN_MAX; i++)
        v->plain_mask[i] = mem_alloc(v->n_word, sizeof(*v->plain_mask[i]));
    for (size_t k = 0; k < n; k++)
        for (size_t i = plain_chars(plain[k].bytes, plain[k].len); i <= GRAMMAR_PLAIN_MAX; i++)
            v->plain_mask[i][plain[k].token >> 5] |= 1u << (plain[k].token & 31);
}

static void build(struct grammar_vocab *v)
{
    struct entry *plain = mem_alloc((size_t)v->n_vocab, sizeof(*plain));
    struct entry *other = mem_alloc((size_t)v->n_vocab, sizeof(*other));
    size_t n_plain = 0, n_other = 0, len;
    for (int32_t t = 0; t < v->n_vocab; t++) {
        const char *bytes = grammar_vocab_bytes(v, t, &len);
        v->same[t] = -1;
        if (!bytes || len > GRAMMAR_TOKEN_MAX)
            continue;
        struct entry e = {bytes, (uint32_t)len, t};
        if (plain_chars(bytes, len) > 0)
            plain[n_plain++] = e;
        else
            other[n_other++] = e;
    }
    qsort(plain, n_plain, sizeof(*plain), by_bytes);
    qsort(other, n_other, sizeof(*other), by_bytes);
    build_trie(&v->plain, v->same, plain, n_plain);
    build_trie(&v->other, v->same, other, n_other);
    fill_masks(v, plain, n_plain);
    free(plain);
    free(other);
}

/* What the token adds to a text in the middle of it. Special tokens are marked, so that no text is one. The
 * mark is a byte that no text has, but vocabularies of all bytes have it as a token: that one would be taken
 * for the mark of whatever follows, and is left out. */
static bool add_bytes(const struct tokenizer *t, int32_t token, struct buf *out)
{
    size_t len, before = out->len;
    bool special = tok_spelling(t, token, &len) && tok_is_special(t, token);
    if (special)
        buf_add_byte(out, (char)GRAMMAR_SPECIAL);
    if (!tok_token_bytes(t, token, out))
        return false;
    if (!special && out->len > before && memchr(out->data + before, GRAMMAR_SPECIAL, out->len - before))
        out->len = before;
    return true;
}

enum nyb_code grammar_vocab_open(struct grammar_vocab **out, const struct tokenizer *t, int32_t n_vocab,
                                 struct nyb_err *err)
{
    struct grammar_vocab *v = mem_alloc(1, sizeof(*v));
    struct buf text = {0};
    bool fine = true;
    v->n_vocab = n_vocab;
    v->n_word = ((size_t)n_vocab + 31) / 32;
    v->offset = mem_alloc((size_t)n_vocab + 1, sizeof(*v->offset));
    v->same = mem_alloc((size_t)n_vocab, sizeof(*v->same));
    for (int32_t id = 0; id < n_vocab && fine; id++) {
        fine = add_bytes(t, id, &text) && text.len <= UINT32_MAX;
        v->offset[id + 1] = (uint32_t)text.len;
    }
    v->strip = decoder_strips(t->decoder);
    v->text = buf_steal(&text);
    if (!fine) {
        grammar_vocab_close(v);
        return err_set(err, NYB_E_UNSUPPORTED,
                       "this tokenizer's decoder does not give each token its own bytes: answers cannot be "
                       "constrained");
    }
    build(v);
    *out = v;
    return NYB_OK;
}

void grammar_vocab_close(struct grammar_vocab *v)
{
    if (!v)
        return;
    for (int i = 0; i <= GRAMMAR_PLAIN_MAX; i++)
        free(v->plain_mask[i]);
    free(v->plain.node);
    free(v->other.node);
    free(v->text);
    free(v->offset);
    free(v->same);
    free(v);
}
