/* What the server does for each token of a stream, after the engine: the answer's parser and the event. */
#include "guard.h"

#ifdef NYBBLE_SERVER
#include "base/json.h"
#include "server/choice.h"
#include "server/loop.h"
#include "server/sse.h"

#define TOKENS 64

struct sent {
    struct server server;
    struct exchange exchange;
    struct gen gen;
    struct choice choice;
};

/* a: enum gen_api. */
static void *open_stream(const struct guard_env *env, const struct guard_case *c)
{
    struct sent *s = arena_calloc(env->arena, 1, sizeof(*s));
    s->server.model = "nvidia/Qwen3-30B-A3B-FP4";
    s->server.format = parse_format_find("qwen3");
    s->exchange.s = &s->server;
    s->gen = (struct gen){.x = &s->exchange,
                          .api = (enum gen_api)c->a,
                          .stream = true,
                          .id = "chatcmpl-0123456789abcdef",
                          .created_s = 1700000000,
                          .n_logprob = NYB_UNSET,
                          .n_prompt_logprob = NYB_UNSET,
                          .n_choice = 1,
                          .choice = &s->choice,
                          .request = json_object()};
    s->choice =
        (struct choice){.g = &s->gen, .stop_token = -1, .times = {1000000, 2000000}, .last_ns = 3000000};
    if (c->a == GEN_CHAT)
        choice_open_parser(&s->choice);
    return s;
}

/* Words of a few letters and one that JSON must quote, each its own event. */
static void call_stream(void *state)
{
    static const char *const word[] = {" the", " quick", "\n", " \"fox\"", " ran", "."};
    struct sent *s = state;
    buf_clear(&s->gen.out);
    for (int i = 0; i < TOKENS; i++) {
        const char *text = word[i % 6];
        size_t n = __builtin_strlen(text);
        if (s->choice.parser)
            parse_push(s->choice.parser, text, n);
        else
            buf_add(&s->choice.text, text, n);
        s->choice.last_ns += 1000000;
        sse_add_event(&s->choice, true);
    }
    guard_must(s->gen.out.len > 10000, "the stream is empty");
}

static void close_stream(void *state)
{
    struct sent *s = state;
    choice_close(&s->choice);
    buf_free(&s->gen.out);
    json_decref(s->gen.request);
}

struct guard_list guard_server(void)
{
    static const struct guard_case list[] = {
        {"server, 64 events of a completion", open_stream, call_stream, close_stream, GEN_COMPLETION, 0, 0,
         0},
        {"server, 64 events of a chat", open_stream, call_stream, close_stream, GEN_CHAT, 0, 0, 0},
    };
    return (struct guard_list){list, sizeof(list) / sizeof(list[0])};
}
#else
struct guard_list guard_server(void)
{
    return (struct guard_list){NULL, 0};
}
#endif
