/* One answer of the engine: the requests of all its choices, from submit to the last byte of the response.
 *
 *     api_*.c (worker): gen_open, fields, gen_add_choice..., gen_submit
 *     loop: gen_pump until true, gen_reply            without stream
 *           gen_read, which pumps, until over         with stream
 *           gen_close
 *
 * Pumping takes what the engine has ready, but of a long prompt's log-probabilities only so many a time that
 * nobody else waits long. With a stream it stops while OUT_MAX bytes wait for the client: then the engine's
 * ring fills up, and the engine parks the request. */
#ifndef NYB_SERVER_GEN_H
#define NYB_SERVER_GEN_H

#include "base/json.h"
#include "server/exchange.h"
#include "server/sglang.h"
#include "text/parse.h"

/* Log-probabilities that an answer may hold at once: some 150 MB. */
#define GEN_LOGPROBS_MAX (1 << 21)

enum gen_api {
    GEN_COMPLETION,
    GEN_SGLANG,
    GEN_CHAT,
    GEN_RESPONSES,
    GEN_ANTHROPIC
}; /* chats from GEN_CHAT on */

struct anthropic;
struct responses;

struct gen_call {
    struct buf arguments;
    char id[PARSE_ID_MAX + 1];
    char *name;
};

struct choice {
    struct gen *g;
    int index, prompt; /* among the answer's choices; which of the prompts */
    struct nyb_stream *stream;
    struct parser *parser; /* of chats */
    /* What has not been written yet: with a stream since the last chunk, else all. */
    struct buf text, reasoning;
    struct buf calls;       /* JSON objects, comma-separated */
    struct gen_call call;   /* the one being read */
    struct buf logprobs;    /* chat: JSON objects, comma-separated */
    size_t n_text_logprobs; /* of GEN_RESPONSES: bytes of logprobs whose tokens are certainly the text's */
    struct buf lp_text, lp_score, lp_top, lp_offset; /* completions: the four arrays, without brackets */
    struct buf ids;                                  /* token ids, comma-separated */
    size_t text_offset;                              /* characters of the text before the next token */
    struct buf prompt_list; /* of prompt_logprobs: an item a token, comma-separated */
    size_t prompt_at;       /* tokens of the prompt whose log-probabilities are written */
    struct nyb_event event; /* if held: the first, which waits for them */
    char *echo;             /* the prompt's or last message's text, shown first */
    int n_held;             /* tokens since the last chunk */
    size_t shown;           /* of GEN_SGLANG: bytes of the text in the last event */
    bool held, began, said_role, done;
    bool thinks; /* within reasoning          */
    bool hides;  /* max_tokens 0: echo alone  */
    int n_call;
    enum nyb_finish finish;
    int32_t stop_token;
    char *stop_string;
    int reasoning_tokens;
    struct nyb_usage usage;
    struct nyb_times times;
    uint64_t first_ns, last_ns;
    char version[NYB_VERSION_MAX], first_version[NYB_VERSION_MAX]; /* of the weights; empty: unknown */
};

struct gen {
    struct exchange *x;
    enum gen_api api;
    bool stream, usage_chunk, usage_always, return_ids, collect_metrics, every_token;
    bool ids_as_text;               /* logprobs show "token_id:7" in the place of the token */
    bool hides_reasoning, one_call; /* of chats: what is left out of the answer             */
    int chunk_tokens;               /* tokens that a chunk may hold                         */
    int n_logprob;                  /* NYB_UNSET: none */
    int n_prompt_logprob;           /* the same */
    int64_t n_entry;                /* log-probabilities of the answer's tokens so far */
    int n_choice, n_prompt, n_done;
    int most_tokens;             /* of the choices that are done */
    struct choice *choice;       /* (n_choice) */
    json_t *request;             /* the body, for the parsers' tools */
    struct buf settings;         /* of GEN_RESPONSES: what the answer repeats of its request, as JSON */
    struct responses *responses; /* what the answer's form has to remember, if it is this one */
    struct anthropic *anthropic;
    struct sglang sglang;
    char id[EXCHANGE_ID_MAX + 16];
    int64_t created_s;
    uint64_t arrival_us; /* wall clock */
    int max_tokens;      /* as asked, or NYB_UNSET: for the metrics */
    int n;
    char *prompt_text; /* for parse_format_opens; NULL: none */
    struct buf out;    /* SSE, out.len - out_from bytes to send */
    size_t out_from;
    bool closed; /* the last chunk is in out */
    int error_status;
    char error_param[64], error_message[768];
};

struct gen *gen_open(struct exchange *x, enum gen_api api, json_t *request);
/* Cancels and frees. NULL is fine. */
void gen_close(struct gen *g);
/* Room for so many choices. */
void gen_set_choices(struct gen *g, int n_prompt, int n);
/* Submit choice i. The request's wake fields are set here. */
enum nyb_code gen_submit(struct gen *g, int i, const struct nyb_request *r,
                         struct nyb_err *err) NYB_MUST_CHECK;

bool gen_is_chat(const struct gen *g);
/* How an answer is written that has a form of its own. Of chats that is a list of items, which follow one
 * another and are made as the parts of the one choice arrive. */
struct gen_form {
    void (*take)(struct choice *c);              /* what has come since the last time      */
    void (*take_call)(struct choice *c);         /* the call that choice.call has; of chats */
    void (*add_end)(struct gen *g);              /* the last events of a stream             */
    void (*write)(struct gen *g, struct buf *b); /* all of it                               */
    bool knows_no_abort;                         /* an answer that was aborted is an error  */
};
/* NULL: that of OpenAI's chats and completions. */
const struct gen_form *gen_form(const struct gen *g);
/* "chatcmpl-" and the like before it. */
void gen_set_id(struct gen *g, const char *id);
/* The id by which the request can be aborted: the client's own, or the exchange's. */
const char *gen_request_id(const struct gen *g);
/* An answer's id without what says which API it is; id itself where there is nothing of the kind. */
const char *gen_bare_id(const char *id);
bool gen_is_stream(const struct gen *g);
void gen_cancel(struct gen *g); /* NULL is fine */
/* True: every choice is complete. */
bool gen_pump(struct gen *g);
/* Fill the exchange's reply. */
void gen_reply(struct gen *g);
/* Up to max bytes of the stream; *over: nothing will follow. */
size_t gen_read(struct gen *g, char *to, size_t max, bool *over);

/* A comment, for a stream that has nothing to say. */
void gen_keep_alive(struct gen *g);

/* "stop", "length", "tool_calls", ... of a finished choice */
const char *gen_finish_reason(const struct choice *c);
/* The sums over all prompts and choices. */
struct gen_usage {
    int64_t prompt, completion, cached, reasoning;
};
struct gen_usage gen_usage(const struct gen *g);

#endif
