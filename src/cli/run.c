/* One prompt or a chat, streamed to standard output. Reaches the engine through nybble.h alone. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/run.h"

static enum nyb_code read_stdin(struct buf *out, struct nyb_err *err)
{
    char piece[65536];
    for (size_t n; (n = fread(piece, 1, sizeof(piece), stdin)) > 0;) {
        if (out->len + n > 256u << 20)
            return err_at(err, NYB_E_TOO_LONG, "standard input", -1, "more than 256 MB");
        buf_add(out, piece, n);
    }
    if (ferror(stdin))
        return err_at(err, NYB_E_IO, "standard input", -1, "cannot read: %s", strerror(errno));
    buf_add(out, "", 0);
    if (strlen(out->data) != out->len)
        return err_at(err, NYB_E_ARG, "standard input", (int64_t)strlen(out->data), "a NUL byte is not text");
    return run_check_text("standard input", out->data, out->len, err);
}

static enum nyb_code run_prompt(struct run *r, struct nyb_err *err)
{
    struct buf input = {0};
    struct run_answer a = {0};
    enum nyb_code code = NYB_OK;
    const char *text = r->prompt;
    if (!strcmp(text, "-")) {
        code = read_stdin(&input, err);
        text = input.data;
    }
    json_t *messages = code == NYB_OK && run_uses_template(r) ? json_array() : NULL;
    if (messages) {
        if (r->system)
            run_add_message(messages, "system", r->system, strlen(r->system));
        run_add_message(messages, "user", text, strlen(text));
    } else if (code == NYB_OK && r->system) {
        code = err_at(err, NYB_E_ARG, "--system", -1,
                      "this model has no chat template to put a system message in");
    }
    if (code == NYB_OK && r->echo)
        fputs(text, stdout);
    if (code == NYB_OK)
        code = run_answer(r, messages, text, &a, err);
    if (code == NYB_OK)
        putchar('\n');
    json_decref(messages);
    buf_free(&a.text);
    buf_free(&input);
    return code;
}

int cli_run(int argc, char **argv)
{
    struct run r;
    struct nyb_err err;
    struct cli_progress bar;
    int status;
    if (!run_options(&r, argc, argv, &status))
        return status;
    if ((r.system && run_check_text("--system", r.system, strlen(r.system), &err)) ||
        (r.prompt && run_check_text("--prompt", r.prompt, strlen(r.prompt), &err)))
        return cli_fail("run", &err);
    r.options.progress = cli_progress_update;
    r.options.progress_arg = &bar;
    cli_progress_start(&bar, "loading");
    enum nyb_code code = nyb_open(&r.engine, &r.options, &err);
    cli_progress_end(&bar);
    if (code == NYB_E_NOT_FOUND && !r.prompt && strchr(r.options.model, ' '))
        fputs("nybble run: a prompt goes after -p\n", stderr);
    if (code != NYB_OK)
        return cli_fail("run", &err);
    run_catch_interrupt();
    status = 0;
    if (!r.prompt)
        status = run_chat(&r);
    else if (run_prompt(&r, &err) != NYB_OK)
        status = cli_fail("run", &err);
    else if (run_was_interrupted())
        status = 130;
    nyb_close(r.engine);
    return status;
}
