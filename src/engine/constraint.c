#include "engine/constraint.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "text/grammar.h"

#define KEPT 32 /* compiled constraints without a request that are kept */

_Static_assert((int)NYB_CONSTRAINT_JSON_OBJECT - 1 == (int)GRAMMAR_JSON_OBJECT &&
                   (int)NYB_CONSTRAINT_JSON_SCHEMA - 1 == (int)GRAMMAR_JSON_SCHEMA &&
                   (int)NYB_CONSTRAINT_REGEX - 1 == (int)GRAMMAR_REGEX &&
                   (int)NYB_CONSTRAINT_CHOICE - 1 == (int)GRAMMAR_CHOICE &&
                   (int)NYB_CONSTRAINT_GRAMMAR - 1 == (int)GRAMMAR_EBNF &&
                   (int)NYB_CONSTRAINT_TAGS - 1 == (int)GRAMMAR_TAGS,
               "same order");

struct kept {
    struct buf key;
    struct grammar *g;
    uint64_t used;
};

struct constraint_cache {
    const struct tokenizer *t;
    int32_t n_vocab;
    pthread_mutex_t lock;
    struct grammar_vocab *vocab; /* NULL: not needed so far */
    struct kept kept[KEPT];
    uint64_t clock;
};

struct constraint {
    struct grammar_matcher m;
    bool over;
    uint32_t mask[]; /* (grammar_vocab_words) */
};

/* ---- the cache ------------------------------------------------------------------------------------- */

struct constraint_cache *constraint_cache_open(const struct tokenizer *t, int32_t vocab)
{
    struct constraint_cache *c = mem_alloc(1, sizeof(*c));
    c->t = t;
    c->n_vocab = vocab;
    pthread_mutex_init(&c->lock, NULL);
    return c;
}

void constraint_cache_close(struct constraint_cache *c)
{
    if (!c)
        return;
    for (int i = 0; i < KEPT; i++) {
        grammar_release(c->kept[i].g);
        buf_free(&c->kept[i].key);
    }
    grammar_vocab_close(c->vocab);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

static enum nyb_code need_vocab(struct constraint_cache *c, struct nyb_err *err)
{
    enum nyb_code code = NYB_OK;
    pthread_mutex_lock(&c->lock);
    if (!c->vocab)
        code = grammar_vocab_open(&c->vocab, c->t, c->n_vocab, err);
    pthread_mutex_unlock(&c->lock);
    return code;
}

/* All that the compiled form depends on. */
static void make_key(struct buf *key, const struct grammar_source *s)
{
    const char *const part[] = {s->text, s->whitespace, s->think_open, s->think_close};
    buf_add_byte(key, (char)('0' + (int)s->kind));
    for (size_t i = 0; i < COUNT_OF(part); i++) {
        buf_add_byte(key, part[i] ? '+' : '-');
        buf_add(key, part[i] ? part[i] : "", part[i] ? strlen(part[i]) + 1 : 0);
    }
}

static struct grammar *find(struct constraint_cache *c, const struct buf *key)
{
    struct grammar *g = NULL;
    pthread_mutex_lock(&c->lock);
    for (int i = 0; i < KEPT && !g; i++) {
        struct kept *k = &c->kept[i];
        if (!k->g || k->key.len != key->len || memcmp(k->key.data, key->data, key->len))
            continue;
        k->used = ++c->clock;
        g = grammar_retain(k->g);
    }
    pthread_mutex_unlock(&c->lock);
    return g;
}

/* In the place of the one that was asked for least recently. Takes the key. */
static void keep(struct constraint_cache *c, struct buf *key, struct grammar *g)
{
    pthread_mutex_lock(&c->lock);
    struct kept *k = &c->kept[0];
    for (int i = 1; i < KEPT; i++)
        if (c->kept[i].used < k->used)
            k = &c->kept[i];
    struct kept old = *k;
    *k = (struct kept){.key = *key, .g = grammar_retain(g), .used = ++c->clock};
    pthread_mutex_unlock(&c->lock);
    grammar_release(old.g);
    buf_free(&old.key);
    *key = (struct buf){0};
}

/* ---- one request's --------------------------------------------------------------------------------- */

static enum nyb_code check(const struct nyb_sampling *s, const struct constraint_cache *cache,
                           const struct params *p, struct nyb_err *err)
{
    if ((int)s->constraint < 0 || s->constraint > NYB_CONSTRAINT_TAGS)
        return err_at(err, NYB_E_RANGE, "constraint", -1, "constraint must be in [0, %d], got %d",
                      NYB_CONSTRAINT_TAGS, (int)s->constraint);
    if (!cache || !cache->t)
        return err_at(err, NYB_E_UNSUPPORTED, "constraint", -1,
                      "there is no tokenizer, without which answers cannot be constrained");
    if (p->n_eos + p->n_stop_token == 0)
        return err_at(err, NYB_E_UNSUPPORTED, "constraint", -1,
                      "the model names no end-of-text token, without which a constrained answer cannot end: "
                      "give a stop token");
    if (s->constraint != NYB_CONSTRAINT_JSON_OBJECT && !s->constraint_text)
        return err_at(err, NYB_E_ARG, "constraint", -1, "the constraint has no text");
    return NYB_OK;
}

static enum nyb_code compile(struct grammar **out, struct constraint_cache *cache,
                             const struct grammar_source *source, struct nyb_err *err)
{
    struct buf key = {0};
    TRY(need_vocab(cache, err));
    make_key(&key, source);
    *out = find(cache, &key);
    enum nyb_code code = NYB_OK;
    if (!*out) {
        code = grammar_open(out, source, cache->vocab, err);
        if (code == NYB_OK)
            keep(cache, &key, *out);
    }
    buf_free(&key);
    return code;
}

enum nyb_code constraint_open(struct constraint **out, struct constraint_cache *cache,
                              const struct nyb_sampling *s, const struct params *p, struct nyb_err *err)
{
    struct grammar *g;
    *out = NULL;
    if (!s || s->constraint == NYB_CONSTRAINT_NONE)
        return NYB_OK;
    TRY(check(s, cache, p, err));
    const struct grammar_source source = {.kind = (enum grammar_kind)(s->constraint - 1),
                                          .text = s->constraint_text,
                                          .whitespace = s->constraint_whitespace,
                                          .think_open = s->constraint_think_open,
                                          .think_close = s->constraint_think_close};
    enum nyb_code code = compile(&g, cache, &source, err);
    if (code != NYB_OK) {
        if (err)
            snprintf(err->where, sizeof(err->where), "constraint");
        return code;
    }
    struct constraint *c = mem_alloc(1, sizeof(*c) + grammar_vocab_words(cache->vocab) * sizeof(*c->mask));
    grammar_matcher_open(&c->m, g);
    grammar_release(g);
    *out = c;
    return NYB_OK;
}

void constraint_close(struct constraint *c)
{
    if (!c)
        return;
    grammar_matcher_close(&c->m);
    free(c);
}

/* ---- sampling -------------------------------------------------------------------------------------- */

static void set_all(uint32_t *mask, const int32_t *token, int n, int vocab, bool allowed)
{
    for (int i = 0; i < n; i++) {
        if (token[i] < 0 || token[i] >= vocab)
            continue;
        uint32_t bit = 1u << (token[i] & 31), *word = &mask[token[i] >> 5];
        *word = allowed ? *word | bit : *word & ~bit;
    }
}

void constraint_mask(struct constraint *c, const struct params *p, float *logits, int vocab)
{
    bool any = grammar_mask(&c->m, c->mask), may_end = grammar_may_end(&c->m);
    c->over = may_end && !any;
    /* Also where such a token's bytes would fit the text: it would end the answer. */
    set_all(c->mask, p->eos, p->n_eos, vocab, may_end);
    set_all(c->mask, p->stop_token, p->n_stop_token, vocab, may_end);
    for (int base = 0; base < vocab; base += 32) {
        uint32_t word = c->mask[base >> 5];
        int n = vocab - base < 32 ? vocab - base : 32;
        if (word == UINT32_MAX)
            continue;
        for (int i = 0; i < n; i++)
            logits[base + i] = word >> i & 1 ? logits[base + i] : -INFINITY;
    }
}

bool constraint_is_over(const struct constraint *c)
{
    return c->over;
}

void constraint_take(struct constraint *c, const struct params *p, int32_t token)
{
    /* The end may be a token that the text could hold as well: where it ends the answer nobody asks again. */
    if (!grammar_take(&c->m, token))
        ASSERT(params_is_eos(p, token) || params_is_stop_token(p, token) || p->think_max >= 0);
}
