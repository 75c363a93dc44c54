#include "server/config_option.h"

#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/slip.h"

static const struct config_option options[] = {
#define OPTION(name_, kind_, field_, low_, high_, argument_, help_)                                       \
    {(name_),     CONFIG_##kind_, offsetof(struct serve_config, field_), (double)(low_), (double)(high_), \
     (argument_), (help_)},
#include "server/options.def"
#undef OPTION
};

/* The names of a CHOICE, in the order of their values. */
static const char *const choices[][9] = {
    {"vllm", "fastdeploy"},
    {"text", "logfmt", "json"},
    {"auto", "dummy"},
    {"bf16", "strict", "int8", "w4a4"},
    {"auto", "f32", "bf16", "fp8", "fp8_e4m3", "float32", "bfloat16"}, /* nyb_kv_dtype + 1; other spellings */
    {"auto", "on", "off"},                                             /* nyb_staging */
    {"finish", "retract", "continue", "abort"},                        /* nyb_in_flight */
    {"cpu", "cuda", "auto"},                                           /* nyb_device    */
    {"auto", "sm90-w4a16", "cublaslt-nvfp4", "reference"},             /* nyb_backend   */
    {"f32", "bf16", "fp8", "nvfp4"},                                   /* nyb_dispatch  */
    {"error", "warn", "info", "debug", "critical", "warning", "notice", "trace"}, /* log_level, twice */
    {"auto", "vllm", "model", "openai"}, /* the checkpoint's; none: twice */
};

static const struct alias {
    const char *name, *ours;
    bool opposite;
} aliases[] = {
#define ALIAS(name_, ours_)    {(name_), (ours_), false},
#define OPPOSITE(name_, ours_) {(name_), (ours_), true},
#define SHORT(letters, name)
#define ACCEPT(name, values, why)
#include "server/compat.def"
#undef ALIAS
#undef OPPOSITE
#undef SHORT
#undef ACCEPT
};

static const struct {
    const char *letters, *name;
} shorts[] = {
#define ALIAS(name, ours)
#define OPPOSITE(name, ours)
#define SHORT(letters_, name_) {(letters_), (name_)},
#define ACCEPT(name, values, why)
#include "server/compat.def"
#undef ALIAS
#undef OPPOSITE
#undef SHORT
#undef ACCEPT
};

static const struct accepted {
    const char *name, *values, *why;
} accepted[] = {
#define ALIAS(name, ours)
#define OPPOSITE(name, ours)
#define SHORT(letters, name)
#define ACCEPT(name_, values_, why_) {(name_), (values_), (why_)},
#include "server/compat.def"
#undef ALIAS
#undef OPPOSITE
#undef SHORT
#undef ACCEPT
};

/* ---- names --------------------------------------------------------------------------------------- */

/* Clients of vLLM write --max_model_len as well as --max-model-len. */
static size_t same_beginning(const char *a, const char *b)
{
    size_t n = 0;
    while (a[n] && (a[n] == '_' ? '-' : a[n]) == (b[n] == '_' ? '-' : b[n]))
        n++;
    return n;
}

static bool same_name(const char *a, const char *b)
{
    size_t n = same_beginning(a, b);
    return !a[n] && !b[n];
}

static bool is_part(const char *name, const char *group)
{
    size_t n = same_beginning(name, group);
    return name[n] == '.' && !group[n];
}

static const struct alias *find_alias(const char *name)
{
    for (size_t i = 0; i < COUNT_OF(aliases); i++)
        if (same_name(aliases[i].name, name))
            return &aliases[i];
    return NULL;
}

static const struct config_option *find_option(const char *name)
{
    const struct alias *a = find_alias(name);
    name = a ? a->ours : name;
    for (size_t i = 0; i < COUNT_OF(options); i++)
        if (same_name(options[i].name, name))
            return &options[i];
    return NULL;
}

static const struct accepted *find_accepted(const char *name)
{
    for (size_t i = 0; i < COUNT_OF(accepted); i++)
        if (same_name(accepted[i].name, name))
            return &accepted[i];
    return NULL;
}

/* Whether others are parts of it: NAME.PART. */
static bool is_group(const char *name)
{
    bool found = false;
    for (size_t i = 0; i < COUNT_OF(aliases); i++)
        found = found || is_part(aliases[i].name, name);
    for (size_t i = 0; i < COUNT_OF(accepted); i++)
        found = found || is_part(accepted[i].name, name);
    return found;
}

bool config_is_known(const char *name)
{
    return find_option(name) || find_accepted(name) || is_group(name);
}

bool config_is_list(const char *name)
{
    const struct config_option *o = find_option(name);
    return o && o->kind == CONFIG_LIST;
}

bool config_is_switch(const char *name)
{
    const struct config_option *o = find_option(name);
    const struct accepted *a = find_accepted(name);
    bool fixed = a && a->values && (config_listed(a->values, "true") || config_listed(a->values, "false"));
    return (o && o->kind == CONFIG_BOOL) || fixed;
}

bool config_switch_takes(const char *name, const char *text)
{
    const struct accepted *a = find_accepted(name);
    return config_listed("true,false,on,off,yes,no", text) ||
           (a && a->values && config_listed(a->values, text));
}

const char *config_short(const char *letters)
{
    for (size_t i = 0; i < COUNT_OF(shorts); i++)
        if (!strcmp(shorts[i].letters, letters))
            return shorts[i].name;
    return NULL;
}

/* ---- values -------------------------------------------------------------------------------------- */

bool config_listed(const char *list, const char *value)
{
    size_t len = strlen(value);
    for (const char *s = list; *s;) {
        size_t n = strcspn(s, ",");
        if (n == len && !strncmp(s, value, n))
            return true;
        s += n + (s[n] == ',');
    }
    return false;
}

static enum nyb_code refuse(const struct config_option *o, const char *text, const char *where,
                            const char *what, struct nyb_err *err)
{
    return err_at(err, NYB_E_ARG, where, -1, "%s must be %s, got \"%.200s\"", o->name, what, text);
}

/* The number that vLLM's clients mean by "32k" (thousands), "25.6k", "32K" (1024s) and "2M". -1: none. */
static double counted(const char *text)
{
    static const char small[] = "kmg", large[] = "KMG";
    char *end;
    double x = strtod(text, &end), unit = 1;
    const char *s = *end ? strchr(small, *end) : NULL, *l = *end ? strchr(large, *end) : NULL;
    for (const char *u = small; s && u <= s; u++)
        unit *= 1000;
    for (const char *u = large; l && u <= l; u++)
        unit *= 1024;
    bool whole = strspn(text, "0123456789") + (s || l) == strlen(text);
    bool parts = s && strspn(text, "0123456789.") + 1 == strlen(text);
    x = rint(x * unit * 1e6) / 1e6; /* 25.6 thousands are a whole number, in binary almost */
    return end != text && !end[s || l] && (whole || parts) && x == rint(x) && x <= 0x1p53 ? x : -1;
}

static enum nyb_code set_int(const struct config_option *o, int64_t *out, const char *text, const char *where,
                             struct nyb_err *err)
{
    bool is_count = o->kind == CONFIG_COUNT, minus = o->low < 0 && !strcmp(text, "-1");
    char what[96];
    snprintf(what, sizeof(what), "a whole number in [%.0f, %.0f]%s", o->low, o->high,
             is_count ? ", or auto" : "");
    if (is_count && config_listed("auto,-1", text)) { /* vLLM's and llama.cpp's words for it */
        *out = 0;
        return NYB_OK;
    }
    double x = minus ? -1 : counted(text);
    if (x < o->low || x > o->high || (x < 0 && !minus))
        return refuse(o, text, where, what, err);
    *out = (int64_t)x;
    return NYB_OK;
}

static enum nyb_code set_number(const struct config_option *o, double *out, const char *text,
                                const char *where, struct nyb_err *err)
{
    char *end, what[80];
    double x = strtod(text, &end);
    snprintf(what, sizeof(what), "%s in [%g, %g]", o->kind == CONFIG_SECONDS ? "seconds" : "a number", o->low,
             o->high);
    if (end == text || *end || !isfinite(x) || x < o->low || x > o->high)
        return refuse(o, text, where, what, err);
    *out = x;
    return NYB_OK;
}

/* "8G", "512M", "1024K", with iB or B after it, or bytes. */
static enum nyb_code set_bytes(const struct config_option *o, uint64_t *out, const char *text,
                               const char *where, struct nyb_err *err)
{
    static const char units[] = "KMGT";
    char *end, what[96];
    double x = strtod(text, &end);
    const char *unit = *end ? strchr(units, toupper((unsigned char)*end)) : NULL;
    if (end != text && unit) {
        x = ldexp(x, 10 * (int)(unit - units + 1));
        end += 1 + (end[1] == 'i');
        end += *end == 'B' || *end == 'b';
    }
    snprintf(what, sizeof(what), "a size such as 8G or 512M in [%.0f, %.0f] bytes", o->low, o->high);
    if (end == text || *end || !isfinite(x) || x < o->low || x > o->high)
        return refuse(o, text, where, what, err);
    *out = (uint64_t)x;
    return NYB_OK;
}

static enum nyb_code set_bool(const struct config_option *o, bool opposite, bool *out, const char *text,
                              const char *where, struct nyb_err *err)
{
    if (!config_listed("true,1,yes,on,false,0,no,off", text))
        return refuse(o, text, where, "true or false", err);
    *out = config_listed("true,1,yes,on", text) != opposite;
    return NYB_OK;
}

static enum nyb_code set_choice(const struct config_option *o, int *out, const char *text, const char *where,
                                struct nyb_err *err)
{
    char what[128] = "one of";
    const char *const *name = choices[(int)o->high];
    for (int i = 0; name[i]; i++) {
        if (!strcmp(name[i], text)) {
            *out = i;
            return NYB_OK;
        }
        size_t n = strlen(what);
        snprintf(what + n, sizeof(what) - n, "%s %s", i ? "," : "", name[i]);
    }
    return refuse(o, text, where, what, err);
}

static enum nyb_code add_item(const struct config_option *o, struct config_list *list, const char *text,
                              const char *where, struct nyb_err *err)
{
    if (!*text)
        return refuse(o, text, where, "a text of one character or more", err);
    if (list->n == CONFIG_LIST_MAX)
        return err_at(err, NYB_E_ARG, where, -1, "%s may be given %d times", o->name, CONFIG_LIST_MAX);
    list->item[list->n++] = mem_strdup(text);
    return NYB_OK;
}

static enum nyb_code add_separated(const struct config_option *o, struct config_list *list, const char *text,
                                   const char *where, struct nyb_err *err)
{
    enum nyb_code code = NYB_OK;
    for (const char *s = text; s && code == NYB_OK;) {
        size_t n = strcspn(s, ",");
        char *item = mem_strndup(s, n);
        code = add_item(o, list, item, where, err);
        free(item);
        s = s[n] ? s + n + 1 : NULL;
    }
    return code;
}

/* One item, or as vLLM's clients write several: a JSON list of strings; names also as llama.cpp's, with
 * commas. */
static enum nyb_code add_items(const struct config_option *o, struct config_list *list, const char *text,
                               const char *where, struct nyb_err *err)
{
    enum nyb_code code = NYB_OK;
    json_t *all = *text == '[' ? json_loads(text, 0, NULL) : NULL;
    if (*text != '[')
        return o->low > 0 ? add_separated(o, list, text, where, err) : add_item(o, list, text, where, err);
    if (!json_is_array(all))
        code = refuse(o, text, where, "a JSON list where it begins with \"[\"", err);
    for (size_t i = 0; i < json_array_size(all) && code == NYB_OK; i++) {
        const char *item = json_string_value(json_array_get(all, i));
        code = item ? add_item(o, list, item, where, err)
                    : refuse(o, text, where, "a list of strings where it begins with \"[\"", err);
    }
    json_decref(all);
    return code;
}

static enum nyb_code set_accepted(const struct accepted *a, const char *text, const char *where,
                                  struct nyb_err *err)
{
    bool fine = !a->values || (*a->values ? config_listed(a->values, text) : !*text);
    if (!fine)
        return err_at(err, NYB_E_ARG, where, -1, "%s can only be %s here, got \"%.200s\": %s", a->name,
                      *a->values ? a->values : "empty", text, a->why);
    log_info("%s=%s is accepted and changes nothing: %s", a->name, text, a->why);
    return NYB_OK;
}

const char *config_near(const char *name)
{
    const char *found = NULL;
    size_t limit = slip_limit(name);
    for (size_t i = 0; i < COUNT_OF(options); i++)
        if (slip_is_nearer(name, options[i].name, &limit))
            found = options[i].name;
    return found;
}

enum nyb_code config_no_option(const char *name, const char *where, struct nyb_err *err)
{
    const char *near = config_near(name);
    return err_at(err, NYB_E_ARG, where, -1, "there is no option \"%.100s\"%s%s%s", name,
                  near ? "; there is \"" : "", near ? near : "", near ? "\"" : "");
}

enum nyb_code config_set(struct serve_config *c, const char *name, const char *text, const char *where,
                         struct nyb_err *err)
{
    const struct config_option *o = find_option(name);
    if (!o && find_accepted(name))
        return set_accepted(find_accepted(name), text, where, err);
    if (!o && is_group(name))
        return config_json_read(c, name, text, where, err);
    if (!o)
        return config_no_option(name, where, err);
    void *field = (char *)c + o->offset;
    switch (o->kind) {
    case CONFIG_STRING:
        free(*(char **)field);
        *(char **)field = mem_strdup(text);
        return NYB_OK;
    case CONFIG_LIST:
        return add_items(o, field, text, where, err);
    case CONFIG_INT:
    case CONFIG_COUNT:
        return set_int(o, field, text, where, err);
    case CONFIG_BYTES:
        return set_bytes(o, field, text, where, err);
    case CONFIG_SECONDS:
    case CONFIG_NUMBER:
        return set_number(o, field, text, where, err);
    case CONFIG_BOOL:
        return set_bool(o, find_alias(name) && find_alias(name)->opposite, field, text, where, err);
    default:
        return set_choice(o, field, text, where, err);
    }
}

/* ---- the table ------------------------------------------------------------------------------------- */

const struct config_option *config_option(size_t i)
{
    return i < COUNT_OF(options) ? &options[i] : NULL;
}

void config_free(struct serve_config *c)
{
    for (size_t i = 0; i < COUNT_OF(options); i++) {
        void *field = (char *)c + options[i].offset;
        if (options[i].kind == CONFIG_STRING)
            free(*(char **)field);
        for (int k = 0; options[i].kind == CONFIG_LIST && k < ((struct config_list *)field)->n; k++)
            free(((struct config_list *)field)->item[k]);
    }
    *c = (struct serve_config){0};
}

void config_print_help(void)
{
    fputs("nybble serve: an OpenAI-compatible server\n\n"
          "usage: nybble serve [OPTIONS] [MODEL]\n\n",
          stdout);
    for (size_t i = 0; i < COUNT_OF(options); i++) {
        char flag[64];
        snprintf(flag, sizeof(flag), "--%s %s", options[i].name, options[i].argument);
        printf("  %-30s %s\n", flag, options[i].help);
    }
    fputs("  --help                         this text\n\n"
          "Every option is also a key of the --config file and a variable such as NYBBLE_MAX_NUM_SEQS. "
          "--no-NAME\n"
          "turns a switch off. docs/SERVING.md has the rest, docs/MIGRATING.md the names of vLLM, "
          "FastDeploy,\n"
          "SGLang and llama.cpp that are understood.\n\n"
          "examples:\n"
          "  nybble serve\n"
          "  nybble serve --port 8180 --max-num-seqs 128 nvidia/Qwen3-30B-A3B-FP4\n"
          "  nybble serve --host 0.0.0.0 --api-key-file keys.txt --tls-cert cert.pem --tls-key key.pem "
          "FOLDER\n",
          stdout);
}
