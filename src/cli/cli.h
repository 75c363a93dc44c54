/* The command line: one file a subcommand, one row a subcommand in cli.def.
 *
 * A subcommand is int cli_NAME(int argc, char **argv); argv[0] is its name. It returns the exit status:
 * 0 success, 1 the work failed (one line "nybble NAME: what" on standard error), 2 the call was wrong. */
#ifndef NYB_CLI_CLI_H
#define NYB_CLI_CLI_H

#include "base/err.h"

struct option; /* getopt.h */

#define CLI_ROW(name, summary) int cli_##name(int argc, char **argv);
#include "cli/cli.def"
#undef CLI_ROW

/* The model that every subcommand uses when none is named. */
const char *cli_default_model(void);

/* Print "nybble NAME: where: message" and return 1. */
int cli_fail(const char *name, const struct nyb_err *err);
/* Print a usage complaint with a pointer to --help and return 2. */
int cli_misuse(const char *name, const char *fmt, ...) NYB_PRINTF(2, 3);

/* Whole-string numbers within [lo, hi]; on failure the complaint is printed and false returned. */
bool cli_parse_int(const char *name, const char *option, const char *text, int64_t lo, int64_t hi,
                   int64_t *out);
bool cli_parse_float(const char *name, const char *option, const char *text, double lo, double hi,
                     double *out);
/* "8G", "512M", "1024K" or bytes. */
bool cli_parse_bytes(const char *name, const char *option, const char *text, uint64_t *out);

/* A progress bar on standard error, drawn only when that is a terminal, at most ten times a second. */
struct cli_progress {
    const char *label;
    uint64_t started_ns, drawn_ns;
    bool terminal, open;
};
void cli_progress_start(struct cli_progress *p, const char *label);
void cli_progress_update(void *p, uint64_t done,
                         uint64_t total); /* the signature of model progress callbacks */
void cli_progress_count(struct cli_progress *p, uint64_t done, uint64_t total, const char *unit);
void cli_progress_end(struct cli_progress *p);

/* Standard output failed (a full disk, a closed pipe): the exit status must say so. name: the command, or
 * NULL. */
int cli_close_stdout(const char *name, int status);

#endif
