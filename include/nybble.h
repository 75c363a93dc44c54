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
    X(E_CONFLICT, 409, "something else is in progress")          \
    X(E_BUSY, 429, "queue is full")                              \
    X(E_CANCELLED, 499, "cancelled")                             \
    X(E_IO, 500, "input or output failed")                       \
    X(E_FORMAT, 500, "malformed file")                           \
    X(E_UNSUPPORTED, 501, "not supported")                       \
    X(E_MEMORY, 503, "not enough memory")                        \
    X(E_RANK, 503, "a rank was lost")                            \
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

/* ---- Log -----------------------------------------------------------------------------------------
 *
 * What happens beside answers and errors: a line each, to standard error. */

enum nyb_log_level { NYB_LOG_ERROR, NYB_LOG_WARN, NYB_LOG_INFO, NYB_LOG_DEBUG };

/* Up to which level (INFO), and where to: take is called from any thread, one line a call, and must not call
 * functions of an engine; NULL: standard error. Not while there is an engine. */
NYB_API void nyb_set_log(enum nyb_log_level most,
                         void (*take)(void *arg, enum nyb_log_level level, const char *text), void *arg);

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
enum nyb_device { NYB_DEVICE_CPU, NYB_DEVICE_CUDA, NYB_DEVICE_AUTO }; /* AUTO: a GPU where that can be */
enum nyb_backend {
    NYB_BACKEND_AUTO,
    NYB_BACKEND_SM90_W4A16,
    NYB_BACKEND_CUBLASLT_NVFP4,
    NYB_BACKEND_REFERENCE
};
enum nyb_dispatch { NYB_DISPATCH_F32, NYB_DISPATCH_BF16, NYB_DISPATCH_FP8, NYB_DISPATCH_NVFP4 };
enum nyb_kv_dtype { NYB_KV_AUTO = -1, NYB_KV_F32, NYB_KV_BF16, NYB_KV_FP8 };

/* Fill with nyb_options_init, then change what matters. Read by nyb_open only. */
struct nyb_sampling;

struct nyb_options {
    const char *model; /* a folder, or in the local Hugging Face cache owner/name or owner/name@revision */
    const char *chat_template; /* path that replaces the checkpoint's template; NULL: none            */
    const char *hf_overrides;  /* JSON object whose members replace config.json's; NULL: none         */
    enum nyb_load_format load_format;
    enum nyb_compute compute;
    enum nyb_device device;
    enum nyb_backend moe_backend, gemm_backend; /* kernels of a GPU: of experts, of all other products */
    enum nyb_kv_dtype kv_dtype; /* AUTO: FP8 where the checkpoint declares it (not when strict), else bf16 */
    int threads;                /* <= 0: as measured, at most one a core                               */
    uint64_t kv_cache_bytes;    /* 0: what the limits below can use, at most 80 % of the free memory  */
    int64_t max_model_len;      /* prompt + answer; <= 0: the model's, or what the KV cache can hold  */
    int max_num_seqs;           /* sequences a step                                                   */
    int max_num_batched_tokens; /* tokens a step: a long prompt is cut into chunks of this; at least
                                   max_num_seqs. <= 0: 512, on a GPU 2048, or max_num_seqs            */
    int max_waiting;            /* requests beyond max_num_seqs before nyb_submit says NYB_E_BUSY     */
    int max_logprobs;           /* the most that a request may ask for                                */
    bool prefix_cache;
    int tensor_parallel_size;      /* ranks; <= 1: one, or what mpirun has started                         */
    int rank_timeout_ms;           /* a rank that is silent for so long is lost; <= 0: 10 s                */
    bool allreduce_fusion;         /* all-reduce, residual and norm in one where it is faster              */
    int fusion_max_tokens;         /* and at most so many rows are in the step; <= 0: no such limit        */
    bool expert_parallel;          /* ranks share out experts and sequences, not features                 */
    int num_redundant_experts;     /* slots of each layer for second copies of busy experts, over all ranks */
    int expert_rebalance_interval; /* steps after which experts move to where load is less; 0: never   */
    enum nyb_dispatch dispatch_dtype; /* how rows travel to other ranks' experts; all but F32 round        */
    bool two_batch_overlap;     /* let halves of a step overlap where that has been measured to pay    */
    int tbo_prefill_min;        /* rows of a step with prompts that are worth cutting; <= 0: 64        */
    int tbo_decode_min;         /* sequences of a step without; <= 0: 16                               */
    struct nyb_ranks *ranks;    /* of nyb_ranks_open; the engine's after success                        */
    const char *weight_version; /* of the weights at the start; NULL: "default" */
    int stuck_ms;               /* work and no finished step for so long: NYB_ENGINE_STUCK */
    uint64_t dummy_seed;        /* of NYB_LOAD_DUMMY's weights */
    /* What requests leave unset: temperature, top_p, min_p, the three penalties, top_k and max_tokens of
     * these, then the checkpoint's generation_config.json, unless that does not count. NULL: none. */
    const struct nyb_sampling *defaults;
    bool no_generation_config;
    int64_t seed; /* of requests that have none of their own, in the order in which they come; -1: random */
    /* From the thread inside nyb_open, a few times a second. May be NULL. */
    void (*progress)(void *arg, uint64_t done_bytes, uint64_t total_bytes);
    void *progress_arg;
};

NYB_API void nyb_options_init(struct nyb_options *o);

/* Several ranks: processes that compute one model together.
 *
 *     nyb_ranks_open -> rank 0:  nyb_open with options.ranks -> ... -> nyb_close
 *                       others:  nyb_ranks_follow, until rank 0 has closed its engine or a rank is lost
 *
 * nyb_ranks_open returns in every process: in those that mpirun has started, or in the caller and in the
 * options.tensor_parallel_size - 1 that it forks. Call it before there are threads. *out is NULL where one
 * rank is enough; then nyb_open goes on as if nothing had been asked for. */
struct nyb_ranks;
NYB_API enum nyb_code nyb_ranks_open(struct nyb_ranks **out, const struct nyb_options *o,
                                     struct nyb_err *err);
NYB_API int nyb_ranks_rank(const struct nyb_ranks *r); /* NULL: 0 */
/* Frees r. NYB_E_RANK: a rank was lost, and this process should end with an error. */
NYB_API enum nyb_code nyb_ranks_follow(struct nyb_ranks *r, const struct nyb_options *o, struct nyb_err *err);
/* After nyb_ranks_open where no engine took it over. NULL is fine. */
NYB_API void nyb_ranks_close(struct nyb_ranks *r);

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

/* Ids that follow one another. */
struct nyb_run {
    const int32_t *token; /* (n) */
    int n;                /* at least 1 */
};

enum nyb_constraint {
    NYB_CONSTRAINT_NONE,
    NYB_CONSTRAINT_JSON_OBJECT, /* any; no text                                       */
    NYB_CONSTRAINT_JSON_SCHEMA,
    NYB_CONSTRAINT_REGEX,   /* of the whole answer                                    */
    NYB_CONSTRAINT_CHOICE,  /* a JSON array of strings                                */
    NYB_CONSTRAINT_GRAMMAR, /* EBNF as llama.cpp's GBNF                               */
    NYB_CONSTRAINT_TAGS,    /* free text with constrained parts, such as tool calls   */
};

/* Fill with nyb_sampling_init: everything unset. What is unset comes from nyb_options.defaults, the
 * checkpoint's generation_config.json, then from the value in brackets. Out of range is NYB_E_RANGE, with the
 * parameter in err->where. Copied by nyb_submit. */
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
    const char *const *stop;  /* (n_stop) at most 64, not empty                                  */
    int n_stop;
    const int32_t *stop_token; /* (n_stop_token) */
    int n_stop_token;
    const struct nyb_logit_bias *logit_bias; /* (n_logit_bias) */
    int n_logit_bias;
    const char *const *bad_words; /* (n_bad_words) at most 128 texts that must not appear */
    int n_bad_words;
    const struct nyb_run *bad_run; /* (n_bad_run) at most 1024 runs of ids that must not appear */
    int n_bad_run;
    const int32_t *allowed_token; /* (n_allowed_token) nothing but these; NULL: everything */
    int n_allowed_token;
    /* Reasoning longer than think_max tokens is ended: think_close follows them. An answer reasons from its
     * start where n_think_open is 0, else from think_open on. */
    int think_max; /* >= 1; unset: no limit */
    const int32_t *think_open, *think_close;
    int n_think_open, n_think_close;
    /* What the answer must be (docs/CONSTRAINTS.md); it ends when that is complete, ignore_eos or not.
     * Reasoning is free: it is framed by think_open, which may begin the answer, and think_close; without
     * think_open the answer begins within it, and without both there is none. */
    enum nyb_constraint constraint;
    const char *constraint_text; /* a schema, an expression, ...                                       */
    const char *constraint_whitespace; /* regular expression, between the tokens of JSON; NULL: a space, or a
                                          newline and an indentation; "": none */
    const char *constraint_think_open, *constraint_think_close;
};

NYB_API void nyb_sampling_init(struct nyb_sampling *s);

struct nyb_request {
    const int32_t *prompt; /* (n_prompt) ids, or NULL                                              */
    size_t n_prompt;
    const char *text;                    /* the prompt as text where prompt is NULL                */
    const struct nyb_sampling *sampling; /* NULL: all unset                                        */
    const char *id; /* for nyb_abort; NULL: none                                                   */
    int priority;   /* lower goes first, as if it had come 10 s earlier a level; [-1000, 1000]; 0    */
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
    /* Of the weights that made this token, and of those that computed the first token of the prompt: one
     * answer has more than one version where weights were replaced under it. NULL: nothing was computed. */
    const char *weight_version, *first_weight_version;
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

/* ---- Pausing --------------------------------------------------------------------------------------
 *
 * Between two steps: each of these waits for the one in progress, and for nothing else. NYB_E_CLOSED after
 * nyb_stop. */

enum nyb_pause_mode {
    NYB_PAUSE_ABORT,    /* end all requests with NYB_FINISH_ABORT                        */
    NYB_PAUSE_RETRACT,  /* drop their KV; after nyb_resume it is computed anew           */
    NYB_PAUSE_IN_PLACE, /* keep it                                                       */
    NYB_PAUSE_COUNT
};
/* No more steps until nyb_resume. New requests wait. *n (may be NULL): requests that were there. Pausing
 * again with another mode does what that mode does besides. */
NYB_API enum nyb_code nyb_pause(struct nyb_engine *e, enum nyb_pause_mode mode, int *n, struct nyb_err *err);
NYB_API enum nyb_code nyb_resume(struct nyb_engine *e, struct nyb_err *err);
NYB_API bool nyb_is_paused(const struct nyb_engine *e);
/* End the requests whose id this is, or all of them when it is NULL, with NYB_FINISH_ABORT. *n: how many. */
NYB_API enum nyb_code nyb_abort(struct nyb_engine *e, const char *id, int *n, struct nyb_err *err);
/* Forget what the prefix cache has. What requests hold stays theirs. */
NYB_API enum nyb_code nyb_flush_cache(struct nyb_engine *e, struct nyb_err *err);

/* ---- Live weights --------------------------------------------------------------------------------- */

#define NYB_VERSION_MAX     128 /* bytes of a weight version, with its NUL */
#define NYB_DIFFERENCES_MAX 10  /* that are described */

/* What becomes of the requests that have begun on the old weights. */
enum nyb_in_flight {
    NYB_IN_FLIGHT_FINISH,   /* they finish on them first, while new ones wait. Not of a paused engine: there
                               it is CONTINUE                                                             */
    NYB_IN_FLIGHT_RETRACT,  /* their KV is dropped and computed anew by the new ones; tokens made stay     */
    NYB_IN_FLIGHT_CONTINUE, /* they go on over their old KV. Where FP8 scales of the cache change: RETRACT */
    NYB_IN_FLIGHT_ABORT,    /* they end with NYB_FINISH_ABORT                                              */
    NYB_IN_FLIGHT_COUNT
};
/* A second slab beside the served weights, or reading into them between two steps. AUTO: by memory. */
enum nyb_staging { NYB_STAGING_AUTO, NYB_STAGING_ON, NYB_STAGING_OFF, NYB_STAGING_COUNT };

struct nyb_upload; /* safetensors bytes that somebody sends */

/* Fill with nyb_update_init. */
struct nyb_update {
    const char *folder;        /* or a repository id; NULL with an upload                                  */
    struct nyb_upload *upload; /* stays the caller's                                                       */
    /* (n_names) globs over the names of tensors; 0: all of them. */
    const char *const *names;
    int n_names;
    const char *weight_version; /* NULL: the generation's number                                           */
    enum nyb_in_flight in_flight;
    int finish_ms; /* of FINISH: who has not ended after so long is retracted; <= 0: no limit              */
    enum nyb_staging staging;
    int threads;      /* that read; <= 0: one, so that decoding keeps its cores                            */
    bool dry_run;     /* check everything, change nothing                                                  */
    bool flush_cache; /* not needed: old KV never matches                                                  */
    bool keep_pause;  /* a paused engine stays so; else it resumes                                         */
    void (*progress)(void *arg, uint64_t done_bytes, uint64_t total_bytes); /* may be NULL */
    void *progress_arg;
};
NYB_API void nyb_update_init(struct nyb_update *u);

enum nyb_weights_state {
    NYB_WEIGHTS_OLD,          /* what was served before                                */
    NYB_WEIGHTS_NEW,          /* the new ones                                          */
    NYB_WEIGHTS_INCONSISTENT, /* neither: the engine is paused until a whole update succeeds */
};
NYB_API const char *nyb_weights_state_name(enum nyb_weights_state s);

struct nyb_update_result {
    enum nyb_weights_state state;
    char weight_version[NYB_VERSION_MAX]; /* served from now on               */
    uint64_t generation;                  /* grows with every update          */
    int n_tensor;                         /* replaced, or to be replaced      */
    uint64_t read_bytes, weight_bytes, staged_bytes;
    bool staged;
    int n_paused; /* requests in flight at the commit                                        */
    uint64_t prepare_ns, stage_ns;
    uint64_t wait_ns;     /* for requests to finish, steps going on, or for the step in progress */
    uint64_t stall_ns;    /* no step could run: the commit and what is done about requests       */
    int64_t n_difference; /* from the served checkpoint in names, shapes, types, config        */
    int n_shown;
    char difference[NYB_DIFFERENCES_MAX][320]; /* one sentence each */
};
/* Replace the weights while serving. All of the new checkpoint is checked from its headers before anything
 * changes; a failure later ends with the old weights in place. NYB_E_ARG: it differs, see the result.
 * NYB_E_CONFLICT: another update is going on. NYB_E_CLOSED after nyb_stop. The result is filled also on
 * failure. Blocks until done; other threads go on. */
NYB_API enum nyb_code nyb_update_weights(struct nyb_engine *e, const struct nyb_update *u,
                                         struct nyb_update_result *result, struct nyb_err *err);

/* dir NULL: keep the bytes in memory. More than max_bytes are refused with NYB_E_RANGE. */
NYB_API enum nyb_code nyb_upload_open(struct nyb_upload **out, const char *dir, uint64_t max_bytes,
                                      struct nyb_err *err);
NYB_API enum nyb_code nyb_upload_write(struct nyb_upload *u, const void *bytes, size_t n,
                                       struct nyb_err *err);
NYB_API void nyb_upload_close(struct nyb_upload *u);

struct nyb_weights {
    char version[NYB_VERSION_MAX];
    char folder[512]; /* that the last whole update, or nyb_open, read */
    uint64_t generation, updates, failures;
    bool updating, inconsistent;
};
NYB_API void nyb_engine_weights(const struct nyb_engine *e, struct nyb_weights *w);
/* Another name for the served weights. NYB_E_RANGE: empty or too long. */
NYB_API enum nyb_code nyb_set_weight_version(struct nyb_engine *e, const char *version, struct nyb_err *err);

enum nyb_check { NYB_CHECK_CHECKSUM, NYB_CHECK_SNAPSHOT, NYB_CHECK_COMPARE, NYB_CHECK_COUNT };
struct nyb_check_result {
    char checksum[33]; /* 32 hexadecimal digits: of all logical values, whatever the layout */
    int n_tensor, n_differ, n_shown;
    char differs[NYB_DIFFERENCES_MAX][256]; /* names of tensors */
};
/* Fingerprint of the served weights; SNAPSHOT keeps it, COMPARE compares with the one kept (NYB_E_NOT_FOUND:
 * there is none). NYB_E_CONFLICT during an update. */
NYB_API enum nyb_code nyb_weights_check(struct nyb_engine *e, enum nyb_check what, int threads,
                                        struct nyb_check_result *result, struct nyb_err *err);

struct nyb_values {
    float *value; /* (n) row after row, dequantized; nyb_free */
    size_t n;
    int rows, columns; /* of the whole parameter; columns 0: a vector of `rows` */
    const char *type;  /* as served: "NVFP4", ...; lives for ever */
};
/* The first max values, of at most 1048576, of a served parameter, by its name in the checkpoint; of ranks
 * that share it, together. NYB_E_NOT_FOUND: there is none. NYB_E_CONFLICT during an update. */
NYB_API enum nyb_code nyb_read_weights(struct nyb_engine *e, const char *name, size_t max,
                                       struct nyb_values *out, struct nyb_err *err);

/* ---- Text ---------------------------------------------------------------------------------------- */

/* *ids and *text: the caller frees with nyb_free. */
NYB_API enum nyb_code nyb_tokenize(const struct nyb_engine *e, const char *text, size_t text_bytes,
                                   bool add_special_tokens, int32_t **ids, size_t *n, struct nyb_err *err);
NYB_API enum nyb_code nyb_detokenize(const struct nyb_engine *e, const int32_t *ids, size_t n,
                                     bool keep_special_tokens, char **text, size_t *text_bytes,
                                     struct nyb_err *err);
/* The bytes of one token as the vocabulary spells it; NULL: no such id. Lives as long as the engine. */
NYB_API const char *nyb_token_text(const struct nyb_engine *e, int32_t id);

/* The bytes that one token adds to a text in the middle of it, where nyb_detokenize shows parts of characters
 * as U+FFFD. The caller frees with nyb_free. NYB_E_NOT_FOUND: no such id; NYB_E_UNSUPPORTED: they depend on
 * other tokens. */
NYB_API enum nyb_code nyb_token_bytes(const struct nyb_engine *e, int32_t id, char **bytes, size_t *n,
                                      struct nyb_err *err);

/* JSON texts as OpenAI's clients send them. */
struct nyb_chat {
    const char *messages; /* array                                       */
    const char *tools;    /* array, or NULL                              */
    const char *kwargs;   /* object of more template variables, or NULL  */
    bool add_generation_prompt;
    bool continue_final_message; /* the prompt ends within the last message, for the answer to go on */
    int64_t now;                 /* Unix seconds for the template's clock; 0: the clock's */
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
    enum nyb_kv_dtype kv_dtype;               /* never AUTO */
    int n_layer, n_expert, experts_per_token; /* n_expert of each layer that has any */
    bool has_chat_template;
    /* Defaults of this checkpoint for what a request leaves unset. */
    double temperature, top_p, min_p, repetition_penalty;
    int top_k;
    const int32_t *eos; /* (n_eos) ids that end an answer */
    int n_eos;
};
/* Lives as long as the engine and never changes. */
NYB_API const struct nyb_info *nyb_engine_info(const struct nyb_engine *e);

/* How often a quantity fell into (bound[i - 1], bound[i]]; the last count is of what lies above all bounds.
 */
#define NYB_BUCKET_MAX 32
struct nyb_histogram {
    const double *bound; /* (n_bound) rising; constant */
    int n_bound;
    uint64_t count[NYB_BUCKET_MAX + 1]; /* (n_bound + 1) */
    double sum;
};

/* A snapshot; counters never fall. */
struct nyb_stats {
    int running, waiting, stalled; /* requests now                                        */
    int kv_blocks, kv_blocks_used; /* used: referenced by requests                        */
    uint64_t steps, preemptions;
    uint64_t prompt_tokens, generation_tokens;
    uint64_t prefix_queries, prefix_hits; /* tokens                               */
    /* As the engine ended them: one that a stop string ends counts as an abort here. */
    uint64_t finished[NYB_FINISH_COUNT];
    struct nyb_histogram step_tokens;  /* of each step: rows of its batch         */
    struct nyb_histogram step_seconds; /* from planning it to handing its tokens over */
};
NYB_API void nyb_engine_stats(const struct nyb_engine *e, struct nyb_stats *s);

/* How many (token, choice) pairs the router of a layer has sent to each expert so far. count: (n_expert) of
 * nyb_info. False for a layer without experts, or no such layer. Counters never fall. */
NYB_API bool nyb_expert_load(const struct nyb_engine *e, int layer, uint64_t *count);

/* Experts of several ranks (options.expert_parallel). A layer has as many slots as experts and copies; rank r
 * has those from slots * r / ranks on. Counters never fall. */
struct nyb_experts {
    int ranks, slots; /* 1 and n_expert without expert parallelism */
    uint64_t rebalances, moves, moved_bytes;
    uint64_t stall_ns; /* between steps, spent on moving */
};
NYB_API void nyb_engine_experts(const struct nyb_engine *e, struct nyb_experts *x);
/* Which expert each slot of a layer holds now; expert: (slots). False as above. */
NYB_API bool nyb_expert_slots(const struct nyb_engine *e, int layer, int *expert);
/* (token, choice) pairs that each rank has computed in a layer: in all, and since the last rebalancing; both
 * (ranks). False as above, and without expert parallelism. */
NYB_API bool nyb_rank_load(const struct nyb_engine *e, int layer, uint64_t *all, uint64_t *recent);

struct nyb_rebalance {
    int layers; /* in which experts have moved */
    uint64_t moves, bytes, ns;
    double before, after; /* the busiest rank's load over the mean, on average: as it was, as planned */
};
/* Move experts and their copies to where they level the load best, between steps: requests go on, with the
 * same tokens. Returns when it is done. NYB_E_UNSUPPORTED without expert parallelism, NYB_E_CONFLICT during
 * an update or a check of the weights. */
NYB_API enum nyb_code nyb_rebalance_experts(struct nyb_engine *e, struct nyb_rebalance *result,
                                            struct nyb_err *err);

enum nyb_engine_state {
    NYB_ENGINE_IDLE,    /* nothing to do                                                             */
    NYB_ENGINE_RUNNING, /* stepping                                                                  */
    NYB_ENGINE_PAUSED,  /* nyb_pause                                                                 */
    NYB_ENGINE_STUCK,   /* there is work, and no step has ended for stuck_ms of the options          */
    NYB_ENGINE_FAILED,  /* NYB_FAILED_STEPS steps in a row failed, or a rank was lost                */
    NYB_ENGINE_STOPPED, /* nyb_stop                                                                  */
    NYB_ENGINE_STATE_COUNT
};
#define NYB_FAILED_STEPS 3
NYB_API const char *nyb_engine_state_name(enum nyb_engine_state s); /* "idle", "running", ... */

struct nyb_health {
    enum nyb_engine_state state;
    bool alive;                /* requests can be expected to be answered: idle, running or paused      */
    bool pending;              /* requests are there that no reader holds up                            */
    uint64_t last_step_ns;     /* when the last finished step ended; 0: none yet                        */
    uint64_t no_step_ns;       /* how long there has been work and no step has ended; 0: no work        */
    int failed_steps;          /* in a row, up to now                                                   */
    bool weights_inconsistent; /* an update and its rollback have failed: paused until a whole one succeeds */
    struct nyb_err failure;    /* of the last step that failed; code NYB_OK: none has                   */
};
/* Never waits for the engine's thread. */
NYB_API void nyb_engine_health(const struct nyb_engine *e, struct nyb_health *h);

NYB_API const char *nyb_version(void); /* "0.1.0" */

#ifdef __cplusplus
}
#endif
#endif
