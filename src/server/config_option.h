/* The table of options (options.def) for the files that read them. */
#ifndef NYB_SERVER_CONFIG_OPTION_H
#define NYB_SERVER_CONFIG_OPTION_H

#include "server/config.h"

enum config_kind {
    CONFIG_STRING,
    CONFIG_LIST,
    CONFIG_INT,
    CONFIG_COUNT,
    CONFIG_BYTES,
    CONFIG_SECONDS,
    CONFIG_NUMBER,
    CONFIG_BOOL,
    CONFIG_CHOICE
};

struct config_option {
    const char *name;
    enum config_kind kind;
    size_t offset;    /* in struct serve_config */
    double low, high; /* of numbers; high of a choice: whose names */
    const char *argument, *help;
};

/* The i-th of the table, NULL behind the last. */
const struct config_option *config_option(size_t i);

/* The option that somebody meant who made a slip; NULL: no idea. */
const char *config_near(const char *name);
/* An error that names it. */
enum nyb_code config_no_option(const char *name, const char *where, struct nyb_err *err) NYB_MUST_CHECK;

/* What a flag of one hyphen is the long name's, NULL: there is none. "np" of -np is "parallel". */
const char *config_short(const char *letters);

/* Whether text is a value of this switch, where it may go without one. */
bool config_switch_takes(const char *name, const char *text);

/* config_flags.c: argv[1..]; *help: --help was asked for, and nothing else matters. */
enum nyb_code config_flags_read(struct serve_config *c, int argc, char **argv, bool *help,
                                struct nyb_err *err) NYB_MUST_CHECK;
/* config_settle.c: once, when everything is read: options that stand for others, and what several mean
 * together. */
enum nyb_code config_settle(struct serve_config *c, struct nyb_err *err) NYB_MUST_CHECK;

/* Is the value one of a list such as "on,off"? */
bool config_listed(const char *list, const char *value);

#endif
