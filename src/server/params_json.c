#include "server/params_json.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/jinja.h"

#define VALUE_SHOWN    64                 /* bytes of a value that an error repeats */
#define WHOLE_REAL_MAX 9007199254740992.0 /* 2^53: up to there a double is one integer only */

enum kind { DOUBLE, INT, LONG, BOOL };

static const struct param {
    const char *name;
    enum kind kind;
    size_t offset;
} table[] = {
#define PARAM(name_, kind_, field_) {(name_), kind_, offsetof(struct nyb_sampling, field_)},
#include "server/params.def"
#undef PARAM
};

/* ---- types --------------------------------------------------------------------------------------- */

static bool is_big_integer(const json_t *v)
{
    return json_is_string(v) && !strncmp(json_string_value(v), JINJA_BIG_INT, strlen(JINJA_BIG_INT));
}

bool params_is_string(const json_t *v)
{
    return json_is_string(v) && !is_big_integer(v);
}

static const char *type_name(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return is_big_integer(v) ? "an integer beyond 64 bits" : "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    default:
        return "null";
    }
}

/* Cut between characters. */
static void cut(char *text)
{
    size_t n = strlen(text);
    if (n <= VALUE_SHOWN)
        return;
    n = VALUE_SHOWN;
    while (n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80)
        n--;
    memcpy(text + n, "...", 4);
}

/* JSON within messages of err's size. Containers are not worth showing. */
static char *show(const json_t *v)
{
    if (json_is_array(v) || json_is_object(v))
        return mem_strdup(json_is_array(v) ? "[...]" : "{...}");
    char *dumped = is_big_integer(v) ? mem_strdup(json_string_value(v) + strlen(JINJA_BIG_INT))
                                     : json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
    char *text = mem_printf("%s    ", dumped ? dumped : "?"); /* room for the dots */
    text[strlen(text) - 4] = 0;
    free(dumped);
    cut(text);
    return text;
}

enum nyb_code params_wrong_type(struct nyb_err *err, const char *name, const char *what, const json_t *value)
{
    char *shown = show(value);
    enum nyb_code code = err_at(err, NYB_E_ARG, name, -1, "%s must be %s, got %s. (parameter=%s, value=%s)",
                                name, what, type_name(value), name, shown);
    free(shown);
    return code;
}

static bool is_given(const json_t *v)
{
    return v && !json_is_null(v);
}

enum nyb_code params_bool(const json_t *body, const char *name, bool *out, struct nyb_err *err)
{
    const json_t *v = json_object_get(body, name);
    if (!is_given(v))
        return NYB_OK;
    if (!json_is_boolean(v))
        return params_wrong_type(err, name, "a boolean", v);
    *out = json_is_true(v);
    return NYB_OK;
}

/* 8.0 is the integer 8 in JSON's data model, and what clients write whose language has one type of number. */
static bool is_whole(const json_t *v, int64_t *x)
{
    if (json_is_integer(v)) {
        *x = json_integer_value(v);
        return true;
    }
    double d = json_is_real(v) ? json_real_value(v) : 0.5;
    if (fabs(d) > WHOLE_REAL_MAX || d != floor(d))
        return false;
    *x = (int64_t)d;
    return true;
}

/* It is an integer, but one that is_whole() cannot have. */
static bool is_far(const json_t *v)
{
    return is_big_integer(v) || (json_is_real(v) && json_real_value(v) == floor(json_real_value(v)));
}

static enum nyb_code not_whole(struct nyb_err *err, const char *name, const char *range, const json_t *v)
{
    if (!is_far(v))
        return params_wrong_type(err, name, "an integer", v);
    char *shown = show(v);
    enum nyb_code code = err_at(err, NYB_E_RANGE, name, -1, "%s must be %s, got %s. (parameter=%s, value=%s)",
                                name, range, shown, name, shown);
    free(shown);
    return code;
}

static enum nyb_code to_int(const json_t *v, const char *name, int *out, struct nyb_err *err)
{
    int64_t x;
    if (!is_whole(v, &x))
        return not_whole(err, name, "within 32 bits", v);
    if (x <= INT32_MIN || x > INT32_MAX)
        return err_at(err, NYB_E_RANGE, name, -1,
                      "%s must be within 32 bits, got %lld. (parameter=%s, value=%lld)", name, (long long)x,
                      name, (long long)x);
    *out = (int)x;
    return NYB_OK;
}

enum nyb_code params_int(const json_t *body, const char *name, int *out, struct nyb_err *err)
{
    const json_t *v = json_object_get(body, name);
    return is_given(v) ? to_int(v, name, out, err) : NYB_OK;
}

static enum nyb_code read_param(const struct param *p, struct nyb_sampling *s, const json_t *body,
                                const json_t *v, struct nyb_err *err)
{
    void *field = (char *)s + p->offset;
    switch (p->kind) {
    case DOUBLE:
        if (!json_is_number(v))
            return params_wrong_type(err, p->name, "a number", v);
        *(double *)field = json_number_value(v);
        return NYB_OK;
    case INT:
        return to_int(v, p->name, field, err);
    case LONG:
        return is_whole(v, field) ? NYB_OK
                                  : not_whole(err, p->name,
                                              "within 64 bits, or within 2^53 where it is written with a "
                                              "point or an exponent",
                                              v);
    default:
        return params_bool(body, p->name, field, err);
    }
}

/* ---- lists --------------------------------------------------------------------------------------- */

static enum nyb_code check_count(const json_t *v, const char *name, struct nyb_err *err)
{
    size_t n = json_is_object(v) ? json_object_size(v) : json_array_size(v);
    return n <= PARAMS_LIST_MAX
               ? NYB_OK
               : err_at(err, NYB_E_RANGE, name, -1,
                        "%s must have at most %d entries, got %zu. (parameter=%s, value=%zu entries)", name,
                        PARAMS_LIST_MAX, n, name, n);
}

static enum nyb_code take_string(const json_t *v, const char *name, const char *what, const char **out,
                                 struct nyb_err *err)
{
    if (!params_is_string(v))
        return params_wrong_type(err, name, what, v);
    *out = json_string_value(v);
    if (strlen(*out) != json_string_length(v))
        return err_at(err, NYB_E_ARG, name, -1, "%s must not contain NUL characters. (parameter=%s)", name,
                      name);
    return NYB_OK;
}

/* A string alone counts as a list of one. */
static enum nyb_code read_strings(const json_t *body, const char *name, struct arena *a,
                                  const char *const **out, int *n_out, struct nyb_err *err)
{
    static const char what[] = "a string or a list of strings";
    const json_t *v = json_object_get(body, name);
    if (!is_given(v))
        return NYB_OK;
    if (!params_is_string(v) && !json_is_array(v))
        return params_wrong_type(err, name, what, v);
    TRY(check_count(v, name, err));
    size_t n = json_is_string(v) ? 1 : json_array_size(v);
    const char **list = arena_calloc(a, n ? n : 1, sizeof(*list));
    for (size_t i = 0; i < n; i++)
        TRY(take_string(json_is_string(v) ? v : json_array_get(v, i), name, what, &list[i], err));
    *out = list;
    *n_out = (int)n;
    return NYB_OK;
}

enum nyb_code params_ids(const json_t *v, const char *name, struct arena *a, int32_t **ids, size_t *n,
                         struct nyb_err *err)
{
    *ids = NULL;
    *n = 0;
    if (!is_given(v))
        return NYB_OK;
    if (!json_is_array(v))
        return params_wrong_type(err, name, "a list of token ids", v);
    size_t count = json_array_size(v);
    *ids = arena_calloc(a, count ? count : 1, sizeof(**ids));
    for (size_t i = 0; i < count; i++)
        TRY(to_int(json_array_get(v, i), name, &(*ids)[i], err));
    *n = count;
    return NYB_OK;
}

/* A list of ids of at most PARAMS_LIST_MAX; *ids = NULL where absent. */
static enum nyb_code read_ids(const json_t *body, const char *name, struct arena *a, const int32_t **ids,
                              int *n, struct nyb_err *err)
{
    int32_t *list;
    size_t count;
    const json_t *v = json_object_get(body, name);
    if (json_is_array(v))
        TRY(check_count(v, name, err));
    TRY(params_ids(v, name, a, &list, &count, err));
    *ids = list;
    *n = (int)count;
    return NYB_OK;
}

/* FastDeploy's list of ids; a list within it is a run of ids. */
static enum nyb_code read_bad_runs(struct nyb_sampling *s, const json_t *body, struct arena *a,
                                   struct nyb_err *err)
{
    static const char name[] = "bad_words_token_ids";
    static const char what[] = "a list of token ids, or of lists of them";
    const json_t *v = json_object_get(body, name);
    if (!is_given(v))
        return NYB_OK;
    if (!json_is_array(v))
        return params_wrong_type(err, name, what, v);
    TRY(check_count(v, name, err));
    size_t n = json_array_size(v);
    struct nyb_run *run = arena_calloc(a, n ? n : 1, sizeof(*run));
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(v, i);
        int32_t *ids = arena_calloc(a, 1, sizeof(*ids));
        size_t count = 1;
        if (json_is_array(item))
            TRY(params_ids(item, name, a, &ids, &count, err));
        else
            TRY(to_int(item, name, ids, err));
        run[i] = (struct nyb_run){ids, count > INT32_MAX ? INT32_MAX : (int)count};
    }
    s->bad_run = run;
    s->n_bad_run = (int)n;
    return NYB_OK;
}

/* {"token id": bias}, the ids as strings */
static enum nyb_code read_logit_bias(struct nyb_sampling *s, json_t *v, struct arena *a, struct nyb_err *err)
{
    static const char name[] = "logit_bias";
    const char *key;
    json_t *value;
    if (!is_given(v))
        return NYB_OK;
    if (!json_is_object(v))
        return params_wrong_type(err, name, "an object from token ids to numbers", v);
    TRY(check_count(v, name, err));
    size_t n = json_object_size(v);
    struct nyb_logit_bias *list = arena_calloc(a, n ? n : 1, sizeof(*list));
    json_object_foreach(v, key, value)
    {
        char *end;
        errno = 0;
        long id = strtol(key, &end, 10);
        if (end == key || *end || errno || id < INT32_MIN || id > INT32_MAX)
            return err_at(err, NYB_E_ARG, name, -1,
                          "The keys of logit_bias must be token ids, got \"%.40s\". (parameter=logit_bias)",
                          key);
        if (!json_is_number(value))
            return params_wrong_type(err, name, "an object from token ids to numbers", value);
        list[s->n_logit_bias++] = (struct nyb_logit_bias){(int32_t)id, json_number_value(value)};
    }
    s->logit_bias = list;
    return NYB_OK;
}

enum nyb_code params_read(struct nyb_sampling *s, const json_t *body, struct arena *a, struct nyb_err *err)
{
    bool skip_special = true;
    nyb_sampling_init(s);
    for (size_t i = 0; i < COUNT_OF(table); i++) {
        const json_t *v = json_object_get(body, table[i].name);
        if (is_given(v))
            TRY(read_param(&table[i], s, body, v, err));
    }
    if (is_given(json_object_get(body, "max_completion_tokens")) &&
        s->max_tokens < 1) /* by the name that was given */
        return err_at(
            err, NYB_E_RANGE, "max_completion_tokens", -1,
            "max_completion_tokens must be at least 1, got %d. (parameter=max_completion_tokens, value=%d)",
            s->max_tokens, s->max_tokens);
    TRY(params_bool(body, "skip_special_tokens", &skip_special, err));
    s->keep_special_tokens = !skip_special;
    TRY(read_strings(body, "stop", a, &s->stop, &s->n_stop, err));
    TRY(read_strings(body, "bad_words", a, &s->bad_words, &s->n_bad_words, err));
    TRY(read_ids(body, "stop_token_ids", a, &s->stop_token, &s->n_stop_token, err));
    TRY(read_ids(body, "allowed_token_ids", a, &s->allowed_token, &s->n_allowed_token, err));
    TRY(read_bad_runs(s, body, a, err));
    return read_logit_bias(s, json_object_get(body, "logit_bias"), a, err);
}

/* OpenAI's metadata are strings for the caller's own use. */
static void merge(json_t *body, const json_t *metadata, const char *name)
{
    json_t *v = json_object_get(metadata, name);
    if (is_given(v) && !json_is_string(v) && !is_given(json_object_get(body, name)))
        json_object_set(body, name, v);
}

void params_merge_metadata(json_t *body)
{
    static const char *const more[] = {"max_streaming_response_tokens", "reasoning_max_tokens",
                                       "bad_words_token_ids", "enable_thinking", "chat_template_kwargs"};
    const json_t *metadata = json_object_get(body, "metadata");
    for (size_t i = 0; i < COUNT_OF(table); i++)
        merge(body, metadata, table[i].name);
    for (size_t i = 0; i < COUNT_OF(more); i++)
        merge(body, metadata, more[i]);
}
