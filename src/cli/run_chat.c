/* A conversation on standard input and output. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/run.h"

static const char help[] = "Ctrl-C stops an answer, /clear forgets, /bye leaves.";

/* One message: a line, or the lines between two lines of """. False at the end of input. */
static bool read_message(struct buf *out, bool terminal)
{
    char *line = NULL;
    size_t cap = 0;
    bool block = false, got = false;
    buf_clear(out);
    for (;;) {
        if (terminal)
            fputs(block ? "... " : ">>> ", stderr);
        ssize_t n = getline(&line, &cap, stdin);
        if (n < 0 && errno == EINTR &&
            run_was_interrupted()) { /* Ctrl-C at the prompt drops what was typed */
            run_forget_interrupt();
            clearerr(stdin);
            buf_clear(out);
            block = false;
            fputc('\n', stderr);
            continue;
        }
        if (n < 0)
            break;
        got = true;
        if (n > 0 && line[n - 1] == '\n')
            line[--n] = 0;
        if (!strcmp(line, "\"\"\"")) {
            if (block)
                break;
            block = true;
            continue;
        }
        if (block && out->len)
            buf_add_byte(out, '\n');
        buf_add(out, line, (size_t)n);
        if (!block)
            break;
    }
    free(line);
    return got;
}

static json_t *new_conversation(const struct run *r)
{
    json_t *messages = json_array();
    if (r->system)
        run_add_message(messages, "system", r->system, strlen(r->system));
    return messages;
}

/* A message that cannot be answered (too long, refused by the template) is dropped from the history, and the
 * chat goes on. */
static bool chat_turn(const struct run *r, json_t *messages, const struct buf *message)
{
    struct run_answer a = {0};
    struct nyb_err err;
    bool templated = run_uses_template(r);
    if (run_check_text("the message", message->data, message->len, &err) != NYB_OK) {
        cli_fail("run", &err);
        return false;
    }
    if (templated)
        run_add_message(messages, "user", message->data, message->len);
    enum nyb_code code = run_answer(r, templated ? messages : NULL, message->data, &a, &err);
    fputs("\n", stdout);
    if (code != NYB_OK)
        cli_fail("run", &err);
    if (code == NYB_E_TOO_LONG && json_array_size(messages) > (r->system ? 2 : 1))
        fputs("The conversation fills the context: /clear forgets it and begins a new one.\n", stderr);
    if (templated && code == NYB_OK)
        run_add_message(messages, "assistant", a.text.data ? a.text.data : "", a.text.len);
    else if (templated)
        json_array_remove(messages, json_array_size(messages) - 1);
    buf_free(&a.text);
    return code == NYB_OK;
}

/* A slash and a word: who types that means a command, even where there is none. A path has more of them. */
static bool is_command(const char *message)
{
    return message[0] == '/' && message[1] && !message[1 + strcspn(message + 1, " \t\n/.")];
}

static bool is_end(const char *message)
{
    return !strcmp(message, "/bye") || !strcmp(message, "/exit") || !strcmp(message, "/quit");
}

int run_chat(struct run *r)
{
    bool terminal = isatty(STDIN_FILENO) == 1, fine = true;
    struct buf message = {0};
    json_t *messages = new_conversation(r);
    if (terminal)
        fprintf(stderr, "%s. %s\n", nyb_engine_info(r->engine)->model, help);
    run_forget_interrupt();
    while (!ferror(stdout) && read_message(&message, terminal)) {
        if (message.len == 0)
            continue;
        if (is_end(message.data))
            break;
        if (!strcmp(message.data, "/clear")) {
            json_decref(messages);
            messages = new_conversation(r);
            continue;
        }
        if (terminal && is_command(message.data)) {
            fprintf(stderr, "%s\n", help);
            continue;
        }
        run_forget_interrupt();
        fine = chat_turn(r, messages, &message) && fine;
        run_forget_interrupt();
    }
    if (terminal)
        fputc('\n', stderr);
    json_decref(messages);
    buf_free(&message);
    if (ferror(stdin)) {
        struct nyb_err err;
        (void)err_at(&err, NYB_E_IO, "standard input", -1, "cannot be read");
        return cli_fail("run", &err);
    }
    return fine || terminal ? 0 : 1;
}
