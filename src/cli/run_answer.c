/* One answer, printed as it comes, and the Ctrl-C that stops it. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "cli/run.h"
#include "text/utf8.h"

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    if (interrupted) /* the second one means it */
        _exit(130);
    interrupted = 1;
}

void run_catch_interrupt(void)
{
    struct sigaction action = {.sa_handler = on_interrupt};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL); /* no SA_RESTART: a waiting read returns */
}

bool run_was_interrupted(void)
{
    return interrupted != 0;
}

void run_forget_interrupt(void)
{
    interrupted = 0;
}

bool run_uses_template(const struct run *r)
{
    return !r->raw && nyb_engine_info(r->engine)->has_chat_template;
}

enum nyb_code run_check_text(const char *where, const char *text, size_t len, struct nyb_err *err)
{
    size_t valid = utf8_valid_prefix(text, len);
    return valid == len ? NYB_OK : err_at(err, NYB_E_ARG, where, (int64_t)valid, "not valid UTF-8");
}

void run_add_message(json_t *messages, const char *role, const char *content, size_t len)
{
    json_array_append_new(
        messages, json_pack("{s:s, s:o}", "role", role, "content", json_stringn_nocheck(content, len)));
}

static void print_stats(const struct run_answer *a)
{
    double first = (double)(a->first_ns - a->submitted_ns) * 1e-9;
    double rest = (double)(a->last_ns - a->first_ns) * 1e-9;
    fprintf(stderr, "\n%d prompt tokens (%d cached), first token after %.3f s; %d tokens",
            a->usage.prompt_tokens, a->usage.cached_tokens, first, a->usage.completion_tokens);
    if (a->usage.completion_tokens > 1 && rest > 0)
        fprintf(stderr, ", %.1f a second", (a->usage.completion_tokens - 1) / rest);
    fputc('\n', stderr);
}

/* Random weights come without a tokenizer: their tokens are numbers. */
static void print_event(const struct run *r, const struct nyb_event *ev)
{
    fwrite(ev->text, 1, ev->text_bytes, stdout);
    if (r->options.load_format == NYB_LOAD_DUMMY && ev->token >= 0 && ev->text_bytes == 0)
        printf("%d ", ev->token);
}

/* A prompt for a model without a tokenizer: each byte is an id. */
static void bytes_to_ids(const char *text, int32_t **ids, size_t *n)
{
    *n = strlen(text);
    *ids = mem_alloc(*n, sizeof(int32_t));
    for (size_t i = 0; i < *n; i++)
        (*ids)[i] = (unsigned char)text[i];
}

/* Print the answer as it comes. Ctrl-C cancels it; the engine then still sends its last event. */
static enum nyb_code stream_answer(const struct run *r, const int32_t *ids, size_t n, struct run_answer *a,
                                   struct nyb_err *err)
{
    const struct nyb_request request = {.prompt = ids, .n_prompt = n, .sampling = &r->sampling};
    struct nyb_stream *stream;
    struct nyb_event ev = {0};
    a->submitted_ns = clock_ns();
    enum nyb_code code = nyb_submit(r->engine, &request, &stream, err);
    if (code != NYB_OK)
        return code;
    bool cancelled = false;
    while (a->finish == NYB_FINISH_NONE) {
        if (run_was_interrupted() && !cancelled) {
            nyb_cancel(stream);
            cancelled = true;
        }
        if (!nyb_next(stream, &ev, 50))
            continue;
        if (ev.token >= 0) {
            a->first_ns = a->first_ns ? a->first_ns : ev.time_ns;
            a->last_ns = ev.time_ns;
        }
        print_event(r, &ev);
        if (fflush(stdout) && !cancelled) { /* nobody reads: no use in going on */
            nyb_cancel(stream);
            cancelled = true;
        }
        buf_add(&a->text, ev.text, ev.text_bytes);
        a->finish = ev.finish;
        a->usage = ev.usage;
    }
    if (a->finish == NYB_FINISH_ERROR && ev.error) {
        code = ev.error->code;
        if (err)
            *err = *ev.error;
    }
    nyb_stream_free(stream);
    if (code == NYB_OK && r->stats)
        print_stats(a);
    return code;
}

enum nyb_code run_answer(const struct run *r, const json_t *messages, const char *text, struct run_answer *a,
                         struct nyb_err *err)
{
    int32_t *ids = NULL;
    size_t n = 0;
    enum nyb_code code;
    if (messages) {
        char *dumped = json_dumps(messages, JSON_COMPACT);
        const struct nyb_chat chat = {.messages = dumped, .add_generation_prompt = true};
        code = nyb_render_chat(r->engine, &chat, &ids, &n, NULL, err);
        free(dumped);
    } else {
        code = nyb_tokenize(r->engine, text, strlen(text), true, &ids, &n, err);
        if (code == NYB_E_UNSUPPORTED && r->options.load_format == NYB_LOAD_DUMMY) {
            bytes_to_ids(text, &ids, &n);
            code = NYB_OK;
        }
    }
    if (code == NYB_OK && n == 0)
        code = err_at(err, NYB_E_ARG, "prompt", -1, "it has no tokens, at least one is needed");
    if (code == NYB_OK)
        code = stream_answer(r, ids, n, a, err);
    nyb_free(ids);
    return code;
}
