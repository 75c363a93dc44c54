/* nybble run: what its options say, and one answer to a prompt or a conversation. */
#ifndef NYB_CLI_RUN_H
#define NYB_CLI_RUN_H

#include <stdbool.h>

#include "base/buf.h"
#include "base/json.h"
#include "nybble.h"

#define RUN_STOP_MAX 64

struct run {
    struct nyb_options options;
    struct nyb_sampling sampling;
    const char *stop[RUN_STOP_MAX];
    const char *prompt, *system;  /* NULL: not given */
    bool raw, echo, stats, named; /* named: by --model */
    struct nyb_engine *engine;    /* NULL until it is open */
};

/* Defaults, the environment, then the command line. False: the command ends with *status, everything has been
 * said. */
bool run_options(struct run *r, int argc, char **argv, int *status);

/* ---- run_answer.c -------------------------------------------------------------------------------- */

struct run_answer {
    struct buf text; /* the caller's to free */
    enum nyb_finish finish;
    struct nyb_usage usage;
    uint64_t submitted_ns, first_ns, last_ns;
};

/* Ctrl-C from here on stops the answer that runs; a second one before it is forgotten ends the program. */
void run_catch_interrupt(void);
bool run_was_interrupted(void);
void run_forget_interrupt(void);

bool run_uses_template(const struct run *r);
/* An error that names the place and the byte, unless it is UTF-8. */
enum nyb_code run_check_text(const char *where, const char *text, size_t len, struct nyb_err *err);
void run_add_message(json_t *messages, const char *role, const char *content, size_t len);

/* Prints the answer as it comes. messages: a JSON array, or NULL for plain text. */
enum nyb_code run_answer(const struct run *r, const json_t *messages, const char *text, struct run_answer *a,
                         struct nyb_err *err);

/* ---- run_chat.c ---------------------------------------------------------------------------------- */

/* Until the end of standard input or /bye; the exit status. */
int run_chat(struct run *r);

#endif
