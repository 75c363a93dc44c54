#include "text/grammar.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/grammar_build.h"
#include "text/grammar_memo.h"

/* The automata never change; the memo and the list of matchers do, under the lock. */
struct grammar {
    atomic_int owners;
    struct grammar_auto a;
    pthread_mutex_t lock;
    struct grammar_memo memo;
    uint32_t start;
    uint32_t **root; /* (n_matcher) where the matchers stand, and, last, the start */
    struct grammar_matcher **matcher;
    uint32_t n_matcher, cap;
};

/* ---- reasoning before the constrained text ----------------------------------------------------------- */

#define NEWLINES 2 /* that templates put behind reasoning */

/* Reasoning ends with its marker: an answer that ended within it would not satisfy the constraint. */
static uint32_t with_reasoning(struct grammar_ast *g, const struct grammar_source *s, uint32_t body)
{
    uint32_t rule = grammar_declare(g, "the constrained text");
    uint32_t newline = grammar_range(g, '\n', '\n');
    grammar_define(g, rule, grammar_cat(g, grammar_times(g, newline, 0, NEWLINES), body));
    uint32_t thinking = grammar_until(g, s->think_close, grammar_call(g, rule), false);
    if (!s->think_open)
        return thinking;
    return grammar_alt(g, body, grammar_cat(g, grammar_marker(g, s->think_open), thinking));
}

static enum nyb_code build(struct grammar_ast *g, const struct grammar_source *s, struct nyb_err *err)
{
    uint32_t body = 0, rule = grammar_declare(g, "root");
    const char *text = s->text ? s->text : "";
    size_t len = strlen(text);
    if (len > GRAMMAR_TEXT_MAX)
        return err_set(err, NYB_E_RANGE, "a constraint of %zu bytes is beyond the %u that are accepted", len,
                       GRAMMAR_TEXT_MAX);
    if (s->think_open && !s->think_close)
        return err_set(err, NYB_E_ARG, "reasoning that a constraint is to follow has no closing marker");
    switch (s->kind) {
    case GRAMMAR_JSON_OBJECT:
        TRY(grammar_json_object(g, s->whitespace, &body, err));
        break;
    case GRAMMAR_JSON_SCHEMA:
        TRY(grammar_schema_text(g, text, len, s->whitespace, &body, err));
        break;
    case GRAMMAR_REGEX:
        TRY(grammar_regex(g, text, len, GRAMMAR_REGEX_WHOLE, &body, err));
        break;
    case GRAMMAR_CHOICE:
        TRY(grammar_choice(g, text, len, &body, err));
        break;
    case GRAMMAR_EBNF:
        TRY(grammar_ebnf(g, text, len, &body, err));
        break;
    case GRAMMAR_TAGS:
        TRY(grammar_tags(g, text, len, s->whitespace, &body, err));
        break;
    }
    if (s->think_close) {
        uint32_t inner = grammar_declare(g, "the constrained text");
        grammar_define(g, inner, body);
        body = with_reasoning(g, s, grammar_call(g, inner));
    }
    grammar_define(g, rule, body);
    return NYB_OK;
}

/* ---- life ------------------------------------------------------------------------------------------ */

enum nyb_code grammar_open(struct grammar **out, const struct grammar_source *source,
                           const struct grammar_vocab *vocab, struct nyb_err *err)
{
    struct grammar_ast ast = {0};
    struct grammar *g = mem_alloc(1, sizeof(*g));
    *out = NULL;
    enum nyb_code code = build(&ast, source, err);
    if (code == NYB_OK)
        code = grammar_compile(&g->a, &ast, err);
    grammar_ast_free(&ast);
    if (code != NYB_OK) {
        free(g);
        return code;
    }
    atomic_init(&g->owners, 1);
    pthread_mutex_init(&g->lock, NULL);
    grammar_memo_open(&g->memo, &g->a, vocab);
    g->cap = 4;
    g->root = mem_alloc(g->cap + 1, sizeof(*g->root));
    g->matcher = mem_alloc(g->cap, sizeof(struct grammar_matcher *));
    g->start = grammar_memo_start(&g->memo);
    *out = g;
    if (g->start != GRAMMAR_DEAD)
        return NYB_OK;
    grammar_release(g);
    *out = NULL;
    return err_set(err, NYB_E_RANGE, "the constraint begins in more than %d ways at once", GRAMMAR_ITEM_MAX);
}

struct grammar *grammar_retain(struct grammar *g)
{
    atomic_fetch_add(&g->owners, 1);
    return g;
}

void grammar_release(struct grammar *g)
{
    if (!g || atomic_fetch_sub(&g->owners, 1) > 1)
        return;
    ASSERT(g->n_matcher == 0);
    grammar_memo_close(&g->memo);
    grammar_auto_free(&g->a);
    pthread_mutex_destroy(&g->lock);
    free(g->root);
    free(g->matcher);
    free(g);
}

void grammar_size(struct grammar *g, struct grammar_size *out)
{
    pthread_mutex_lock(&g->lock);
    *out = (struct grammar_size){.rules = g->a.n_rule,
                                 .states = g->a.n_state,
                                 .edges = g->a.n_edge + g->a.n_call,
                                 .configs = g->memo.config.n - GRAMMAR_FIRST,
                                 .frames = g->memo.frame.n,
                                 .mask_hits = g->memo.hits,
                                 .mask_misses = g->memo.misses};
    for (int i = 0; i < GRAMMAR_MASK_MAX; i++)
        out->masks += g->memo.slot[i].used > 0;
    pthread_mutex_unlock(&g->lock);
}

/* ---- matchers -------------------------------------------------------------------------------------- */

static void attach(struct grammar *g, struct grammar_matcher *m)
{
    if (g->n_matcher == g->cap) {
        g->cap *= 2;
        g->root = mem_grow(g->root, g->cap + 1, sizeof(*g->root));
        g->matcher = mem_grow(g->matcher, g->cap, sizeof(struct grammar_matcher *));
    }
    m->slot = g->n_matcher++;
    g->matcher[m->slot] = m;
    g->root[m->slot] = &m->at;
}

void grammar_matcher_open(struct grammar_matcher *m, struct grammar *g)
{
    *m = (struct grammar_matcher){.g = grammar_retain(g)};
    pthread_mutex_lock(&g->lock);
    m->at = g->start;
    m->strip = g->memo.v ? g->memo.v->strip : 0;
    attach(g, m);
    pthread_mutex_unlock(&g->lock);
}

void grammar_matcher_clone(struct grammar_matcher *m, const struct grammar_matcher *from)
{
    struct grammar *g = grammar_retain(from->g);
    pthread_mutex_lock(&g->lock);
    *m = *from;
    attach(g, m);
    pthread_mutex_unlock(&g->lock);
}

void grammar_matcher_close(struct grammar_matcher *m)
{
    struct grammar *g = m->g;
    if (!g)
        return;
    pthread_mutex_lock(&g->lock);
    struct grammar_matcher *last = g->matcher[--g->n_matcher];
    g->matcher[m->slot] = last;
    g->root[m->slot] = &last->at;
    last->slot = m->slot;
    pthread_mutex_unlock(&g->lock);
    m->g = NULL;
    grammar_release(g);
}

/* Before work that may meet many new places. */
static void tidy(struct grammar *g)
{
    g->root[g->n_matcher] = &g->start;
    grammar_memo_tidy(&g->memo, g->root, g->n_matcher + 1);
}

static bool advance(struct grammar_matcher *m, const char *bytes, size_t len)
{
    uint32_t at = m->at;
    for (size_t i = 0; i < len && at != GRAMMAR_DEAD; i++)
        at = grammar_memo_next(&m->g->memo, at, (uint8_t)bytes[i]);
    if (at == GRAMMAR_DEAD)
        return false;
    m->at = at;
    return true;
}

#define PIECE 1024 /* bytes between two clearings */

bool grammar_advance(struct grammar_matcher *m, const char *bytes, size_t len)
{
    bool fine = true;
    pthread_mutex_lock(&m->g->lock);
    struct grammar_matcher try = *m;
    attach(m->g, &try);
    for (size_t done = 0; done < len && fine; done += PIECE) {
        tidy(m->g);
        fine = advance(&try, bytes + done, len - done < PIECE ? len - done : PIECE);
    }
    if (fine)
        m->at = try.at;
    m->g->n_matcher--; /* `try` came last */
    pthread_mutex_unlock(&m->g->lock);
    return fine;
}

bool grammar_take(struct grammar_matcher *m, int32_t token)
{
    const struct grammar_vocab *v = m->g->memo.v;
    size_t len, skip = 0;
    const char *bytes = v ? grammar_vocab_bytes(v, token, &len) : NULL;
    if (!bytes || len > GRAMMAR_TOKEN_MAX)
        return false;
    if (m->strip && bytes[0] == ' ') {
        skip = 1;
        if (len == 1 || bytes[1] == ' ')
            return false;
    }
    pthread_mutex_lock(&m->g->lock);
    tidy(m->g);
    bool fine = advance(m, bytes + skip, len - skip);
    if (fine)
        m->strip = 0;
    pthread_mutex_unlock(&m->g->lock);
    return fine;
}

bool grammar_may_end(const struct grammar_matcher *m)
{
    pthread_mutex_lock(&m->g->lock);
    bool may = grammar_memo_may_end(&m->g->memo, m->at);
    pthread_mutex_unlock(&m->g->lock);
    return may;
}

bool grammar_must_end(const struct grammar_matcher *m)
{
    pthread_mutex_lock(&m->g->lock);
    bool must = grammar_memo_must_end(&m->g->memo, m->at);
    pthread_mutex_unlock(&m->g->lock);
    return must;
}

bool grammar_mask(struct grammar_matcher *m, uint32_t *mask)
{
    ASSERT(m->g->memo.v);
    pthread_mutex_lock(&m->g->lock);
    tidy(m->g);
    bool any = grammar_memo_mask(&m->g->memo, m->at, m->strip, mask);
    pthread_mutex_unlock(&m->g->lock);
    return any;
}
