/* The --config file: a flat YAML mapping of option names to scalars or, for lists, sequences of scalars. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <yaml.h>

#include "base/mem.h"
#include "server/config_option.h"

struct reader {
    yaml_parser_t parser;
    yaml_event_t event;
    bool has_event;
    const char *path;
    char seen[128][64]; /* names so far */
    int n_seen;
};

static enum nyb_code fail_at(const struct reader *r, const yaml_mark_t *mark, const char *what,
                             struct nyb_err *err)
{
    return err_at(err, NYB_E_ARG, r->path, (int64_t)mark->index, "line %zu, column %zu: %s", mark->line + 1,
                  mark->column + 1, what);
}

static enum nyb_code next(struct reader *r, struct nyb_err *err)
{
    if (r->has_event)
        yaml_event_delete(&r->event);
    r->has_event = yaml_parser_parse(&r->parser, &r->event) == 1;
    if (r->has_event)
        return NYB_OK;
    return fail_at(r, &r->parser.problem_mark, r->parser.problem ? r->parser.problem : "not valid YAML", err);
}

/* Taken as text, "api-key: ~" would be a key. */
static bool is_null(const struct reader *r)
{
    static const char *const null[] = {"", "~", "null", "Null", "NULL"};
    const char *text = (const char *)r->event.data.scalar.value;
    bool found = false;
    for (size_t i = 0; i < COUNT_OF(null); i++)
        found = found || !strcmp(text, null[i]);
    return found && r->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
}

static enum nyb_code set(const struct reader *r, struct serve_config *c, const char *name,
                         struct nyb_err *err)
{
    struct nyb_err inner;
    if (is_null(r))
        return fail_at(r, &r->event.start_mark,
                       "there is no value; leave the line out, or write \"\" for an empty one", err);
    enum nyb_code code = config_set(c, name, (const char *)r->event.data.scalar.value, NULL, &inner);
    return code == NYB_OK ? NYB_OK : fail_at(r, &r->event.start_mark, inner.message, err);
}

static enum nyb_code read_sequence(struct reader *r, struct serve_config *c, const char *name,
                                   struct nyb_err *err)
{
    if (!config_is_list(name))
        return fail_at(r, &r->event.start_mark, "this option takes one value", err);
    for (;;) {
        TRY(next(r, err));
        if (r->event.type == YAML_SEQUENCE_END_EVENT)
            return NYB_OK;
        if (r->event.type != YAML_SCALAR_EVENT)
            return fail_at(r, &r->event.start_mark, "a plain value was expected", err);
        TRY(set(r, c, name, err));
    }
}

static enum nyb_code read_value(struct reader *r, struct serve_config *c, const char *name,
                                struct nyb_err *err)
{
    TRY(next(r, err));
    if (r->event.type == YAML_SCALAR_EVENT)
        return set(r, c, name, err);
    if (r->event.type == YAML_SEQUENCE_START_EVENT)
        return read_sequence(r, c, name, err);
    return fail_at(r, &r->event.start_mark, "a value or a list of values was expected", err);
}

/* Also notes it. Names are compared as they are written: max-num-seqs and max_num_seqs are two spellings of
 * one option, and the later of them counts. */
static bool is_seen(struct reader *r, const char *name)
{
    for (int i = 0; i < r->n_seen; i++)
        if (!strcmp(r->seen[i], name))
            return true;
    if (r->n_seen < (int)COUNT_OF(r->seen))
        snprintf(r->seen[r->n_seen++], sizeof(r->seen[0]), "%s", name);
    return false;
}

static enum nyb_code read_pair(struct reader *r, struct serve_config *c, struct nyb_err *err)
{
    char name[64], what[128];
    if (r->event.type != YAML_SCALAR_EVENT)
        return fail_at(r, &r->event.start_mark, "the name of an option was expected", err);
    snprintf(name, sizeof(name), "%.63s", (const char *)r->event.data.scalar.value);
    if (!strcmp(name, "config"))
        return fail_at(r, &r->event.start_mark, "a file of options cannot name another", err);
    if (!config_is_known(name)) {
        struct nyb_err inner;
        return config_no_option(name, NULL, &inner) == NYB_OK
                   ? NYB_OK
                   : fail_at(r, &r->event.start_mark, inner.message, err);
    }
    if (is_seen(r, name)) {
        snprintf(what, sizeof(what), "\"%s\" is set twice", name);
        return fail_at(r, &r->event.start_mark, what, err);
    }
    return read_value(r, c, name, err);
}

static enum nyb_code read_document(struct reader *r, struct serve_config *c, struct nyb_err *err)
{
    do
        TRY(next(r, err));
    while (r->event.type == YAML_STREAM_START_EVENT || r->event.type == YAML_DOCUMENT_START_EVENT);
    if (r->event.type == YAML_STREAM_END_EVENT) /* an empty file */
        return NYB_OK;
    if (r->event.type != YAML_MAPPING_START_EVENT)
        return fail_at(r, &r->event.start_mark, "option names with values were expected", err);
    for (;;) {
        TRY(next(r, err));
        if (r->event.type == YAML_MAPPING_END_EVENT)
            break;
        TRY(read_pair(r, c, err));
    }
    do
        TRY(next(r, err));
    while (r->event.type == YAML_DOCUMENT_END_EVENT);
    if (r->event.type != YAML_STREAM_END_EVENT)
        return fail_at(r, &r->event.start_mark, "one document was expected", err);
    return NYB_OK;
}

enum nyb_code config_yaml_read(struct serve_config *c, const char *path, struct nyb_err *err)
{
    struct reader r = {.path = path};
    FILE *f = fopen(path, "rb");
    if (!f)
        return err_at(err, NYB_E_IO, path, -1, "cannot be read: %s", strerror(errno));
    if (!yaml_parser_initialize(&r.parser)) {
        fclose(f);
        return err_at(err, NYB_E_MEMORY, path, -1, "no memory to read it");
    }
    yaml_parser_set_input_file(&r.parser, f);
    enum nyb_code code = read_document(&r, c, err);
    if (r.has_event)
        yaml_event_delete(&r.event);
    yaml_parser_delete(&r.parser);
    fclose(f);
    return code;
}
