/* Ids back to text: all at once, or one by one as they are generated. */
#include <stdlib.h>

#include "base/mem.h"
#include "text/tok.h"

struct detok {
    const struct tokenizer *t;
    bool skip_special_tokens;
    struct decoder_state state;
};

static void push(const struct tokenizer *t, struct decoder_state *state, int32_t id, bool skip_special_tokens,
                 struct buf *out)
{
    size_t len;
    const char *token = tok_spelling(t, id, &len);
    if (token && !(skip_special_tokens && tok_is_special(t, id)))
        decoder_push(state, token, len, out);
}

void tok_decode(const struct tokenizer *t, const int32_t *id, size_t n, bool skip_special_tokens,
                struct buf *out)
{
    struct decoder_state state;
    decoder_begin(&state, t->decoder);
    for (size_t i = 0; i < n; i++)
        push(t, &state, id[i], skip_special_tokens, out);
    decoder_finish(&state, out);
    decoder_end(&state);
}

struct detok *detok_open(const struct tokenizer *t, bool skip_special_tokens)
{
    struct detok *d = mem_alloc(1, sizeof(*d));
    d->t = t;
    d->skip_special_tokens = skip_special_tokens;
    decoder_begin(&d->state, t->decoder);
    return d;
}

void detok_push(struct detok *d, int32_t id, struct buf *out)
{
    push(d->t, &d->state, id, d->skip_special_tokens, out);
}

void detok_finish(struct detok *d, struct buf *out)
{
    decoder_finish(&d->state, out);
}

void detok_close(struct detok *d)
{
    if (!d)
        return;
    decoder_end(&d->state);
    free(d);
}
