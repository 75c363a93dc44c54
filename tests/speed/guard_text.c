/* The tokenizer of the embedded model, on a text that is written here. */
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "guard.h"
#include "text/tokenizer.h"

struct text {
    struct tokenizer *t;
    struct buf in, out;
    struct tok_ids ids;
};

static void *open_text(const struct guard_env *env, const struct guard_case *c)
{
    struct text *s = arena_calloc(env->arena, 1, sizeof(*s));
    (void)c;
    guard_must(tok_open(&s->t, NYBBLE_SOURCE_DIR "/models/tales-24m-moe-nvfp4", NULL) == NYB_OK,
               "no embedded model");
    for (int i = 0; i < 40; i++)
        buf_printf(
            &s->in,
            "Once upon a time, in year %d, the fox's cub said: \"Why don't we go home?\" (na\xc3\xafve!)\n",
            1000 + 37 * i);
    guard_must(tok_encode(s->t, s->in.data, s->in.len, true, &s->ids, NULL) == NYB_OK,
               "the text is not encoded");
    return s;
}

static void call_encode(void *state)
{
    struct text *s = state;
    s->ids.n = 0;
    guard_must(tok_encode(s->t, s->in.data, s->in.len, true, &s->ids, NULL) == NYB_OK,
               "the text is not encoded");
}

static void call_decode(void *state)
{
    struct text *s = state;
    buf_clear(&s->out);
    tok_decode(s->t, s->ids.id, s->ids.n, false, &s->out);
}

static void close_text(void *state)
{
    struct text *s = state;
    tok_close(s->t);
    tok_ids_free(&s->ids);
    buf_free(&s->in);
    buf_free(&s->out);
}

struct guard_list guard_text(void)
{
    static const struct guard_case list[] = {
        {"tokenizer, encode 3.6 KB", open_text, call_encode, close_text, 0, 0, 0, 0},
        {"tokenizer, decode 3.6 KB", open_text, call_decode, close_text, 0, 0, 0, 0},
    };
    return (struct guard_list){list, sizeof(list) / sizeof(list[0])};
}
