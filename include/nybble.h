/* nybble: run NVFP4 Mixture-of-Experts checkpoints from their Hugging Face folders.
 *
 * This is the only public header. All functions are thread-safe unless their
 * comment says otherwise. Strings are UTF-8 and NUL-terminated. */
#ifndef NYBBLE_H
#define NYBBLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NYB_API __attribute__((visibility("default")))

/* One row an error kind: name, HTTP status a server answers with, meaning.
 * Functions return one of these codes; 0 is success. */
#define NYB_ERROR_TABLE(X)                                       \
    X(OK, 200, "success")                                        \
    X(E_ARG, 400, "invalid argument")                            \
    X(E_RANGE, 400, "value out of range")                        \
    X(E_TOO_LONG, 400, "prompt does not fit the context")        \
    X(E_TEMPLATE, 400, "chat template refused the conversation") \
    X(E_NOT_FOUND, 404, "not found")                             \
    X(E_BUSY, 429, "queue is full")                              \
    X(E_CANCELLED, 499, "cancelled")                             \
    X(E_IO, 500, "input or output failed")                       \
    X(E_FORMAT, 500, "malformed file")                           \
    X(E_UNSUPPORTED, 501, "not supported")                       \
    X(E_MEMORY, 503, "not enough memory")                        \
    X(E_CLOSED, 503, "shutting down")                            \
    X(E_INTERNAL, 500, "internal error")

enum nyb_code {
#define NYB_ERROR_ROW(name, http, text) NYB_##name,
    NYB_ERROR_TABLE(NYB_ERROR_ROW)
#undef NYB_ERROR_ROW
};

/* Filled by the function that failed; caller-owned, may be NULL everywhere. */
struct nyb_err {
    enum nyb_code code;
    int64_t offset;    /* byte offset in `where`, or -1                        */
    char where[256];   /* file, tensor or parameter that is at fault, or empty */
    char message[768]; /* one sentence: what was found, what was expected      */
};

/* ---- Engine --------------------------------------------------------------------------------------
 *
 *     nyb_open -> [ nyb_submit -> nyb_next ... -> nyb_stream_free ] -> nyb_close
 *
 * An engine owns a model and one thread that batches all requests. nyb_submit hands a request over and
 * returns a stream, the reader's end: a program that does one thing at a time blocks in nyb_next; a server
 * passes a `wake` callback and polls with nyb_next(stream, &event, 0). A reader that stops reading stalls its
 * own request only: no event is lost, and the others go on.
 *
 * Threads: functions of an engine may be called from any thread at any time between nyb_open and nyb_close.
 * A stream belongs to one reader thread at a time; nyb_cancel alone may come from any other.
 * Lengths are tokens unless they say bytes; times are nanoseconds of CLOCK_MONOTONIC. */

struct nyb_engine;
struct nyb_stream;

#define NYB_UNSET INT32_MIN /* an integer that the caller leaves to the default; doubles use NAN */

enum nyb_load_format { NYB_LOAD_AUTO, NYB_LOAD_DUMMY };
enum nyb_compute { NYB_COMPUTE_BF16, NYB_COMPUTE_STRICT, NYB_COMPUTE_INT8, NYB_COMPUTE_W4A4 };
enum nyb_kv_dtype { NYB_KV_AUTO = -1, NYB_KV_F32, NYB_KV_BF16, NYB_KV_FP8 };

/* Fill with nyb_options_init, then change what matters. Read by nyb_open only. */
struct nyb_options {
    const char *model;         /* a folder, or a repository id in the local Hugging Face cache        */
    const char *chat_template; /* path that replaces the checkpoint's template; NULL: none            */
    enum nyb_load_format load_format;
    enum nyb_compute compute;
    enum nyb_kv_dtype kv_dtype;
    int threads;                /* <= 0: all cores                                                    */
    uint64_t kv_cache_bytes;    /* 0: what the limits below can use, at most 80 % of the free memory  */
    int64_t max_model_len;      /* prompt + answer; <= 0: the model's, or what the KV cache can hold  */
    int max_num_seqs;           /* sequences a step                                                   */
    int max_num_batched_tokens; /* tokens a step: a long prompt is cut into chunks of this            */
    int max_waiting;            /* requests beyond max_num_seqs before nyb_submit says NYB_E_BUSY     */
    int max_logprobs;           /* the most that a request may ask for                                */
    bool prefix_cache;
    uint64_t dummy_seed; /* of NYB_LOAD_DUMMY's weights */
    /* From the thread inside nyb_open, a few times a second. May be NULL. */
    void (*progress)(void *arg, uint64_t done_bytes, uint64_t total_bytes);
    void *progress_arg;
};

NYB_API void nyb_options_init(struct nyb_options *o);
NYB_API enum nyb_code nyb_open(struct nyb_engine **out, const struct nyb_options *o, struct nyb_err *err);

/* Refuse new requests and end the running ones with NYB_FINISH_ABORT. Streams stay readable. */
NYB_API void nyb_stop(struct nyb_engine *e);
/* nyb_stop, then free. Every stream must have been freed. NULL is fine. */
NYB_API void nyb_close(struct nyb_engine *e);

/* ---- Requests ------------------------------------------------------------------------------------ */

struct nyb_logit_bias {
    int32_t token;
    double bias; /* clamped to [-100, 100] */
};

/* Fill with nyb_sampling_init: everything unset. What is unset comes from the checkpoint's
 * generation_config.json, then from the value in brackets. Out of range is NYB_E_RANGE, with the parameter in
 * err->where. Copied by nyb_submit. */
struct nyb_sampling {
    double temperature;        /* [0, 2]; below 1e-5 greedy, else at least 0.01 (1)               */
    double top_p;              /* (0, 1] (1)                                                      */
    double min_p;              /* [0, 1] (0)                                                      */
    double repetition_penalty; /* > 0 (1)                                                         */
    double presence_penalty;   /* [-2, 2] (0)                                                     */
    double frequency_penalty;  /* [-2, 2] (0)                                                     */
    int top_k;                 /* -1 and 0: off (0)                                               */
    int max_tokens;            /* >= 1; cut to what the context leaves (all of it)                */
    int min_tokens;            /* [0, max_tokens] (0)                                             */
    int logprobs;              /* [0, max_logprobs]: besides the chosen one; unset: none          */
    int prompt_logprobs;       /* the same for the tokens of the prompt                           */
    int64_t seed;              /* -1: a random one                                                */
    bool ignore_eos;
    bool keep_special_tokens; /* show special tokens in the text                                 */
    bool include_stop;        /* keep the stop string, or the stop token, in the text            */
    const char *const *stop;  /* (n_stop) at most 4, not empty                                   */
    int n_stop;
    const int32_t *stop_token; /* (n_stop_token) */
    int n_stop_token;
    const struct nyb_logit_bias *logit_bias; /* (n_logit_bias) */
    int n_logit_bias;
    const char *const *bad_words; /* (n_bad_words) at most 128 texts that must not appear */
    int n_bad_words;
};

NYB_API void nyb_sampling_init(struct nyb_sampling *s);

struct nyb_request {
    const int32_t *prompt; /* (n_prompt) ids, or NULL                                              */
    size_t n_prompt;
    const char *text;                    /* the prompt as text where prompt is NULL                */
    const struct nyb_sampling *sampling; /* NULL: all unset                                        */
    int priority; /* lower goes first, as if it had come 10 s earlier a level; [-1000, 1000]; 0    */
    /* Called from the engine's thread after each event; must not block, nor call nyb_stream_free. NULL: none.
     * Never called after nyb_stream_free has returned. */
    void (*wake)(void *arg);
    void *wake_arg;
};

/* On success *out must be freed by nyb_stream_free. Everything in r is copied. */
NYB_API enum nyb_code nyb_submit(struct nyb_engine *e, const struct nyb_request *r, struct nyb_stream **out,
                                 struct nyb_err *err);

enum nyb_finish {
    NYB_FINISH_NONE,   /* more to come                                              */
    NYB_FINISH_STOP,   /* an end-of-text token, a stop token or a stop string       */
    NYB_FINISH_LENGTH, /* max_tokens, or the context is full                        */
    NYB_FINISH_ABORT,  /* nyb_cancel or nyb_stop                                    */
    NYB_FINISH_ERROR,  /* the engine failed: event.error                            */
    NYB_FINISH_COUNT
};
NYB_API const char *nyb_finish_name(enum nyb_finish f); /* "stop", "length", ...; NULL for NONE */

struct nyb_logprob {
    int32_t token;
    float logprob; /* natural, of the model's own distribution, before any sampling parameter */
    int32_t rank;  /* 1: the most likely                                                       */
};

struct nyb_usage {
    int prompt_tokens, completion_tokens;
    int cached_tokens; /* of the prompt, found in the prefix cache */
};

/* One token, or the end. Pointers live until the next nyb_next on the stream. */
struct nyb_event {
    int32_t token;     /* -1: none (an abort, an error)                                            */
    const char *text;  /* what became certain to be shown: whole characters, and no part of a stop */
    size_t text_bytes; /* string; NUL-terminated besides                                           */
    const struct nyb_logprob *logprob; /* (n_logprob) the chosen token, then the most likely ones  */
    int n_logprob;
    enum nyb_finish finish;
    int32_t stop_token;      /* of a stop_token that ended it, or -1           */
    const char *stop_string; /* that ended it, or NULL                         */
    struct nyb_usage usage;  /* so far                                         */
    uint64_t time_ns;        /* when the engine made the token                 */
    const struct nyb_err *error;
};

/* Wait up to timeout_ms (0: do not wait; < 0: forever). True: *ev is filled; after one whose finish is not
 * NONE there is nothing more to come, and nyb_next returns false at once. */
NYB_API bool nyb_next(struct nyb_stream *s, struct nyb_event *ev, int timeout_ms);

/* Ask the engine to end this request. An event with a finish still follows (ABORT, or what came first). */
NYB_API void nyb_cancel(struct nyb_stream *s);
/* Cancels what still runs. NULL is fine. */
NYB_API void nyb_stream_free(struct nyb_stream *s);

/* The prompt's ids, as tokenized. Lives as long as the stream. */
NYB_API const int32_t *nyb_stream_prompt(const struct nyb_stream *s, size_t *n);
/* Of prompt token `i` given those before it: the token, then the most likely; NULL for i = 0, where none
 * were asked for, and before the first event. *n entries. */
NYB_API const struct nyb_logprob *nyb_stream_prompt_logprobs(const struct nyb_stream *s, size_t i, int *n);

struct nyb_times {
    uint64_t submitted_ns, scheduled_ns; /* scheduled: first time in a step; 0 before */
};
NYB_API void nyb_stream_times(const struct nyb_stream *s, struct nyb_times *t);

/* ---- Text ---------------------------------------------------------------------------------------- */

/* *ids and *text: the caller frees with nyb_free. */
NYB_API enum nyb_code nyb_tokenize(const struct nyb_engine *e, const char *text, size_t text_bytes,
                                   bool add_special_tokens, int32_t **ids, size_t *n, struct nyb_err *err);
NYB_API enum nyb_code nyb_detokenize(const struct nyb_engine *e, const int32_t *ids, size_t n,
                                     bool keep_special_tokens, char **text, size_t *text_bytes,
                                     struct nyb_err *err);
/* The bytes of one token as the vocabulary spells it; NULL: no such id. Lives as long as the engine. */
NYB_API const char *nyb_token_text(const struct nyb_engine *e, int32_t id);

/* JSON texts as OpenAI's clients send them. */
struct nyb_chat {
    const char *messages; /* array                                       */
    const char *tools;    /* array, or NULL                              */
    const char *kwargs;   /* object of more template variables, or NULL  */
    bool add_generation_prompt;
    int64_t now; /* Unix seconds for the template's clock; 0: the clock's */
};
/* The conversation through the checkpoint's template: its ids and, where text is not NULL, its text. Content
 * of messages never becomes special tokens. NYB_E_TEMPLATE where there is no template or it refuses. */
NYB_API enum nyb_code nyb_render_chat(const struct nyb_engine *e, const struct nyb_chat *chat, int32_t **ids,
                                      size_t *n, char **text, struct nyb_err *err);
NYB_API void nyb_free(void *p);

/* ---- Facts --------------------------------------------------------------------------------------- */

struct nyb_info {
    const char *model;      /* as named in the options        */
    const char *folder;     /* resolved                       */
    const char *model_type; /* "qwen3_moe"                    */
    const char *quant;      /* "NVFP4 (modelopt), group 16"   */
    int vocab_size;
    int64_t max_model_len;
    int max_num_seqs, max_num_batched_tokens, max_logprobs;
    int kv_blocks, kv_block_tokens;
    uint64_t kv_bytes, weight_bytes;
    bool has_chat_template;
    /* Defaults of this checkpoint for what a request leaves unset. */
    double temperature, top_p, min_p, repetition_penalty;
    int top_k;
    const int32_t *eos; /* (n_eos) ids that end an answer */
    int n_eos;
};
/* Lives as long as the engine and never changes. */
NYB_API const struct nyb_info *nyb_engine_info(const struct nyb_engine *e);

/* A snapshot; counters never fall. */
struct nyb_stats {
    int running, waiting, stalled; /* requests now                                        */
    int kv_blocks, kv_blocks_used; /* used: referenced by requests                        */
    uint64_t steps, preemptions;
    uint64_t prompt_tokens, generation_tokens;
    uint64_t prefix_queries, prefix_hits; /* tokens                               */
    /* As the engine ended them: one that a stop string ends counts as an abort here. */
    uint64_t finished[NYB_FINISH_COUNT];
};
NYB_API void nyb_engine_stats(const struct nyb_engine *e, struct nyb_stats *s);

NYB_API const char *nyb_version(void); /* "0.1.0" */

#ifdef __cplusplus
}
#endif
#endif
