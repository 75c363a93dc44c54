/* The table of options (options.def) for the files that read them. */
#ifndef NYB_SERVER_CONFIG_OPTION_H
#define NYB_SERVER_CONFIG_OPTION_H

#include "server/config.h"

enum config_kind {
    CONFIG_STRING,
    CONFIG_LIST,
    CONFIG_INT,
    CONFIG_BYTES,
    CONFIG_SECONDS,
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

/* Is the value one of a list such as "on,off"? */
bool config_listed(const char *list, const char *value);

#endif
