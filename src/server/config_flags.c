/* The command line: --name value, --name=value, --switch, --no-switch, letters of one hyphen, and the model
 * without a flag. */
#include <stdio.h>
#include <string.h>

#include "server/config_option.h"

#define NAME_CAP 64

struct flags {
    struct serve_config *c;
    int argc, i;
    char **argv;
    char list[NAME_CAP]; /* the option of several values that came last; "": another came since */
    bool named;          /* the model */
};

static bool is_last(const struct flags *f)
{
    return f->i + 1 >= f->argc;
}

/* Of the option that argv[i] names. */
static enum nyb_code take_value(struct flags *f, const char *name, struct nyb_err *err)
{
    if (config_is_switch(name)) {
        bool value = !is_last(f) && config_switch_takes(name, f->argv[f->i + 1]);
        return config_set(f->c, name, value ? f->argv[++f->i] : "true", NULL, err);
    }
    if (!config_is_known(name))
        return config_set(f->c, name, "", NULL, err); /* its error says so */
    if (is_last(f))
        return err_set(err, NYB_E_ARG, "%s needs a value", f->argv[f->i]);
    if (config_is_list(name))
        snprintf(f->list, sizeof(f->list), "%s", name);
    return config_set(f->c, name, f->argv[++f->i], NULL, err);
}

static enum nyb_code take_long(struct flags *f, struct nyb_err *err)
{
    char name[NAME_CAP];
    const char *flag = f->argv[f->i] + 2, *equals = strchr(flag, '=');
    size_t n = equals ? (size_t)(equals - flag) : strlen(flag);
    if (n >= sizeof(name))
        return err_set(err, NYB_E_ARG, "there is no option %.80s", f->argv[f->i]);
    memcpy(name, flag, n);
    name[n] = 0;
    if (equals)
        return config_set(f->c, name, equals + 1, NULL, err);
    if (!strncmp(name, "no-", 3) && config_is_switch(name + 3))
        return config_set(f->c, name + 3, "false", NULL, err);
    return take_value(f, name, err);
}

/* The model, or as vLLM's clients write it one more value behind the first of --served-model-name. */
static enum nyb_code take_word(struct flags *f, const char *list, struct nyb_err *err)
{
    const char *word = f->argv[f->i];
    if (*list && f->c->model) {
        snprintf(f->list, sizeof(f->list), "%s", list);
        return config_set(f->c, list, word, NULL, err);
    }
    if (f->named)
        return err_set(err, NYB_E_ARG, "one model at a time: \"%.100s\" comes after \"%.100s\"", word,
                       f->c->model);
    f->named = true;
    return config_set(f->c, "model", word, NULL, err);
}

static enum nyb_code take_flag(struct flags *f, struct nyb_err *err)
{
    char list[NAME_CAP];
    const char *flag = f->argv[f->i];
    memcpy(list, f->list, sizeof(list));
    f->list[0] = 0;
    if (!strncmp(flag, "--", 2) && flag[2])
        return take_long(f, err);
    if (flag[0] != '-')
        return take_word(f, list, err);
    const char *name = config_short(flag + 1);
    return name ? take_value(f, name, err) : err_set(err, NYB_E_ARG, "there is no option %.80s", flag);
}

enum nyb_code config_flags_read(struct serve_config *c, int argc, char **argv, bool *help,
                                struct nyb_err *err)
{
    struct flags f = {.c = c, .argc = argc, .argv = argv};
    for (f.i = 1; f.i < argc; f.i++) {
        if (!strcmp(argv[f.i], "--help") || !strcmp(argv[f.i], "-h")) {
            *help = true;
            return NYB_OK;
        }
        TRY(take_flag(&f, err));
    }
    return NYB_OK;
}
