#include "checkpoint/quant_names.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "checkpoint/glob.h"

#define MAX_ENTRY   (1 << 20) /* in one list */
#define MAX_PATTERN 4096
#define MAX_BYTES   2048  /* of one pattern */
#define MATCH_LIMIT 20000 /* backtracking steps a name; a pattern that needs more does not match */

struct quant_pattern {
    char *glob;        /* or NULL for */
    pcre2_code *regex; /* this one    */
};

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static enum nyb_code add_regex(struct quant_pattern *p, const char *text, const char *path, const char *key,
                               struct nyb_err *err)
{
    int code;
    PCRE2_SIZE at;
    PCRE2_UCHAR why[128];

    p->regex = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED, PCRE2_ANCHORED, &code, &at, NULL);
    if (p->regex)
        return NYB_OK;
    pcre2_get_error_message(code, why, sizeof why);
    return err_at(err, NYB_E_FORMAT, path, -1,
                  "%s has the regular expression '%.200s', which is wrong at character %zu: %s", key, text,
                  (size_t)at, (const char *)why);
}

static enum nyb_code add_entry(struct quant_names *s, const char *text, const char *path, const char *key,
                               struct nyb_err *err)
{
    if (!strcmp(text, "Linear")) {
        s->every_linear = true;
        return NYB_OK;
    }
    bool is_regex = !strncmp(text, "re:", 3);
    if (!is_regex && !glob_is_pattern(text)) {
        s->exact[s->n_exact++] = mem_strdup(text);
        return NYB_OK;
    }
    if (s->n_pattern >= MAX_PATTERN)
        return err_at(err, NYB_E_FORMAT, path, -1, "%s has more than %d patterns", key, MAX_PATTERN);
    if (strlen(text) > MAX_BYTES)
        return err_at(err, NYB_E_FORMAT, path, -1, "%s has a pattern of %zu bytes, expected at most %d", key,
                      strlen(text), MAX_BYTES);
    struct quant_pattern *p = &s->pattern[s->n_pattern];
    if (is_regex)
        TRY(add_regex(p, text + 3, path, key, err));
    else
        p->glob = mem_strdup(text);
    s->n_pattern++;
    return NYB_OK;
}

enum nyb_code quant_names_read(struct quant_names *s, const json_t *list, const char *path, const char *key,
                               struct nyb_err *err)
{
    size_t n = json_array_size(list);
    enum nyb_code code = NYB_OK;

    *s = (struct quant_names){0};
    if (!list || json_is_null(list))
        return NYB_OK;
    if (!json_is_array(list) || n > MAX_ENTRY)
        return err_at(err, NYB_E_FORMAT, path, -1, "%s is not a list of at most %d module names", key,
                      MAX_ENTRY);

    s->exact = mem_alloc(n + 1, sizeof *s->exact);
    s->pattern = mem_alloc((n < MAX_PATTERN ? n : MAX_PATTERN) + 1, sizeof *s->pattern);
    for (size_t i = 0; i < n && code == NYB_OK; i++) {
        const json_t *item = json_array_get(list, i);
        if (!json_is_string(item) || strlen(json_string_value(item)) != json_string_length(item))
            code = err_at(err, NYB_E_FORMAT, path, -1, "entry %zu of %s is not a string", i, key);
        else
            code = add_entry(s, json_string_value(item), path, key, err);
    }
    if (code != NYB_OK) {
        quant_names_free(s);
        return code;
    }
    qsort(s->exact, (size_t)s->n_exact, sizeof *s->exact, by_text);
    return NYB_OK;
}

void quant_names_free(struct quant_names *s)
{
    for (int i = 0; i < s->n_exact; i++)
        free(s->exact[i]);
    for (int i = 0; i < s->n_pattern; i++) {
        free(s->pattern[i].glob);
        pcre2_code_free(s->pattern[i].regex);
    }
    free(s->exact);
    free(s->pattern);
    *s = (struct quant_names){0};
}

static bool regex_matches(const pcre2_code *regex, const char *text)
{
    pcre2_match_data *data = pcre2_match_data_create_from_pattern(regex, NULL);
    pcre2_match_context *context = pcre2_match_context_create(NULL);
    int found = PCRE2_ERROR_NOMEMORY;

    if (data && context) {
        pcre2_set_match_limit(context, MATCH_LIMIT);
        found = pcre2_match(regex, (PCRE2_SPTR)text, strlen(text), 0, 0, data, context);
    }
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
    return found >= 0;
}

bool quant_names_has_exact(const struct quant_names *s, const char *module)
{
    return s->n_exact && bsearch(&module, s->exact, (size_t)s->n_exact, sizeof *s->exact, by_text);
}

bool quant_names_has_pattern(const struct quant_names *s, const char *module)
{
    for (int i = 0; i < s->n_pattern; i++) {
        const struct quant_pattern *p = &s->pattern[i];
        if (p->glob ? glob_match(p->glob, module) : regex_matches(p->regex, module))
            return true;
    }
    return false;
}

bool quant_names_has(const struct quant_names *s, const char *module)
{
    return s->every_linear || quant_names_has_exact(s, module) || quant_names_has_pattern(s, module);
}

bool quant_names_has_part(const struct quant_names *s, const char *module)
{
    for (int i = 0; i < s->n_exact; i++)
        if (s->exact[i][0] && strstr(module, s->exact[i]))
            return true;
    return false;
}
