#include "server/config.h"

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

#define EPLB_INTERVAL 1000 /* steps, of enable-eplb */

enum kind { STRING, LIST, INT, BYTES, SECONDS, BOOL, CHOICE };

static const struct option {
    const char *name;
    enum kind kind;
    size_t offset;
    double low, high;
    const char *argument, *help;
} options[] = {
#define OPTION(name_, kind_, field_, low_, high_, argument_, help_)                               \
    {(name_),     kind_,  offsetof(struct serve_config, field_), (double)(low_), (double)(high_), \
     (argument_), (help_)},
#include "server/options.def"
#undef OPTION
};

/* The names of a CHOICE, in the order of their values. */
static const char *const choices[][8] = {
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
};

static const struct alias {
    const char *name, *ours;
} aliases[] = {
#define ALIAS(name_, ours_) {(name_), (ours_)},
#define ACCEPT(name, values, why)
#include "server/compat.def"
#undef ALIAS
#undef ACCEPT
};

static const struct accepted {
    const char *name, *values, *why;
} accepted[] = {
#define ALIAS(name, ours)
#define ACCEPT(name_, values_, why_) {(name_), (values_), (why_)},
#include "server/compat.def"
#undef ALIAS
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

static const struct option *find_option(const char *name)
{
    for (size_t i = 0; i < COUNT_OF(aliases); i++)
        if (same_name(aliases[i].name, name))
            name = aliases[i].ours;
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
    const struct option *o = find_option(name);
    return o && o->kind == LIST;
}

bool config_is_switch(const char *name)
{
    const struct option *o = find_option(name);
    const struct accepted *a = find_accepted(name);
    return (o && o->kind == BOOL) || (a && a->values && !strncmp(a->values, "true", 4));
}

/* ---- values -------------------------------------------------------------------------------------- */

static bool listed(const char *list, const char *value)
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

static enum nyb_code refuse(const struct option *o, const char *text, const char *where, const char *what,
                            struct nyb_err *err)
{
    return err_at(err, NYB_E_ARG, where, -1, "%s must be %s, got \"%.200s\"", o->name, what, text);
}

static enum nyb_code set_int(const struct option *o, int64_t *out, const char *text, const char *where,
                             struct nyb_err *err)
{
    char *end, what[80];
    errno = 0;
    long long x = strtoll(text, &end, 10);
    snprintf(what, sizeof(what), "a whole number in [%.0f, %.0f]", o->low, o->high);
    if (end == text || *end || errno || (double)x < o->low || (double)x > o->high)
        return refuse(o, text, where, what, err);
    *out = x;
    return NYB_OK;
}

static enum nyb_code set_seconds(const struct option *o, double *out, const char *text, const char *where,
                                 struct nyb_err *err)
{
    char *end, what[80];
    double x = strtod(text, &end);
    snprintf(what, sizeof(what), "seconds in [%g, %g]", o->low, o->high);
    if (end == text || *end || !isfinite(x) || x < o->low || x > o->high)
        return refuse(o, text, where, what, err);
    *out = x;
    return NYB_OK;
}

/* "8G", "512M", "1024K", with iB or B after it, or bytes. */
static enum nyb_code set_bytes(const struct option *o, uint64_t *out, const char *text, const char *where,
                               struct nyb_err *err)
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

static enum nyb_code set_bool(const struct option *o, bool *out, const char *text, const char *where,
                              struct nyb_err *err)
{
    if (!listed("true,1,yes,on,false,0,no,off", text))
        return refuse(o, text, where, "true or false", err);
    *out = listed("true,1,yes,on", text);
    return NYB_OK;
}

static enum nyb_code set_choice(const struct option *o, int *out, const char *text, const char *where,
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

static enum nyb_code add_item(const struct option *o, struct config_list *list, const char *text,
                              const char *where, struct nyb_err *err)
{
    if (!*text)
        return refuse(o, text, where, "a text of one character or more", err);
    if (list->n == CONFIG_LIST_MAX)
        return err_at(err, NYB_E_ARG, where, -1, "%s may be given %d times", o->name, CONFIG_LIST_MAX);
    list->item[list->n++] = mem_strdup(text);
    return NYB_OK;
}

/* One item, or as vLLM's clients write several: a JSON list of strings. */
static enum nyb_code add_items(const struct option *o, struct config_list *list, const char *text,
                               const char *where, struct nyb_err *err)
{
    enum nyb_code code = NYB_OK;
    json_t *all = *text == '[' ? json_loads(text, 0, NULL) : NULL;
    if (*text != '[')
        return add_item(o, list, text, where, err);
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
    if (a->values && !listed(a->values, text))
        return err_at(err, NYB_E_ARG, where, -1, "%s can only be %s here, got \"%.200s\": %s", a->name,
                      *a->values ? a->values : "empty", text, a->why);
    log_info("%s=%s is accepted and changes nothing: %s", a->name, text, a->why);
    return NYB_OK;
}

enum nyb_code config_set(struct serve_config *c, const char *name, const char *text, const char *where,
                         struct nyb_err *err)
{
    const struct option *o = find_option(name);
    if (!o && find_accepted(name))
        return set_accepted(find_accepted(name), text, where, err);
    if (!o && is_group(name))
        return config_json_read(c, name, text, where, err);
    if (!o)
        return err_at(err, NYB_E_ARG, where, -1, "there is no option \"%.100s\"", name);
    void *field = (char *)c + o->offset;
    switch (o->kind) {
    case STRING:
        free(*(char **)field);
        *(char **)field = mem_strdup(text);
        return NYB_OK;
    case LIST:
        return add_items(o, field, text, where, err);
    case INT:
        return set_int(o, field, text, where, err);
    case BYTES:
        return set_bytes(o, field, text, where, err);
    case SECONDS:
        return set_seconds(o, field, text, where, err);
    case BOOL:
        return set_bool(o, field, text, where, err);
    default:
        return set_choice(o, field, text, where, err);
    }
}

/* ---- sources ------------------------------------------------------------------------------------- */

static const struct {
    const char *variable, *option;
} env_aliases[] = {
#define ENV_ALIAS(variable_, option_) {(variable_), (option_)},
#define ENV_ACCEPT(variable, values)
#include "server/env.def"
#undef ENV_ALIAS
#undef ENV_ACCEPT
};

static const struct {
    const char *variable, *values;
} env_accepted[] = {
#define ENV_ALIAS(variable, option)
#define ENV_ACCEPT(variable_, values_) {(variable_), (values_)},
#include "server/env.def"
#undef ENV_ALIAS
#undef ENV_ACCEPT
};

/* NYBBLE_MAX_NUM_SEQS for max-num-seqs */
static const char *variable_of(const struct option *o, char *name, size_t cap)
{
    snprintf(name, cap, "NYBBLE_%s", o->name);
    for (char *s = name; *s; s++)
        *s = *s == '-' ? '_' : (char)toupper((unsigned char)*s);
    return getenv(name);
}

static enum nyb_code read_environment(struct serve_config *c, struct nyb_err *err)
{
    char name[64];
    for (size_t i = 0; i < COUNT_OF(env_aliases); i++) {
        const char *value = getenv(env_aliases[i].variable);
        if (value && *value)
            TRY(config_set(c, env_aliases[i].option, value, env_aliases[i].variable, err));
    }
    for (size_t i = 0; i < COUNT_OF(env_accepted); i++) {
        const char *value = getenv(env_accepted[i].variable);
        if (value && *value && !listed(env_accepted[i].values, value))
            return err_at(err, NYB_E_ARG, env_accepted[i].variable, -1,
                          "there is no backend \"%.100s\"; the valid ones are %s", value,
                          env_accepted[i].values);
    }
    for (size_t i = 0; i < COUNT_OF(options); i++) {
        const char *value = variable_of(&options[i], name, sizeof(name));
        if (value && *value)
            TRY(config_set(c, options[i].name, value, name, err));
    }
    return NYB_OK;
}

/* --name value, --name=value, --switch, --no-switch; the model without a flag. */
static enum nyb_code read_flag(struct serve_config *c, int argc, char **argv, int *i, struct nyb_err *err)
{
    char name[64];
    const char *flag = argv[*i] + 2, *equals = strchr(flag, '=');
    size_t n = equals ? (size_t)(equals - flag) : strlen(flag);
    if (n >= sizeof(name))
        return err_set(err, NYB_E_ARG, "there is no option %.80s", argv[*i]);
    memcpy(name, flag, n);
    name[n] = 0;
    if (equals)
        return config_set(c, name, equals + 1, NULL, err);
    if (!strncmp(name, "no-", 3) && config_is_switch(name + 3))
        return config_set(c, name + 3, "false", NULL, err);
    if (config_is_switch(name)) {
        bool value = *i + 1 < argc && listed("true,false", argv[*i + 1]);
        return config_set(c, name, value ? argv[++*i] : "true", NULL, err);
    }
    if (!config_is_known(name))
        return config_set(c, name, "", NULL, err); /* its error says so */
    if (*i + 1 >= argc)
        return err_set(err, NYB_E_ARG, "--%s needs a value", name);
    return config_set(c, name, argv[++*i], NULL, err);
}

static enum nyb_code read_flags(struct serve_config *c, int argc, char **argv, bool *help,
                                struct nyb_err *err)
{
    bool named = false;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
            *help = true;
            return NYB_OK;
        }
        if (!strncmp(argv[i], "--", 2) && argv[i][2]) {
            TRY(read_flag(c, argc, argv, &i, err));
            continue;
        }
        if (named)
            return err_set(err, NYB_E_ARG, "one model at a time: \"%.100s\" comes after \"%.100s\"", argv[i],
                           c->model);
        named = true;
        TRY(config_set(c, "model", argv[i], NULL, err));
    }
    return NYB_OK;
}

/* A list given by a stronger source replaces the weaker one's. */
static void replace_lists(struct serve_config *c, const struct serve_config *by)
{
    const struct config_list *const from[] = {&by->served_name, &by->api_key, &by->origin, &by->admin_api_key,
                                              &by->weights_root};
    struct config_list *const to[] = {&c->served_name, &c->api_key, &c->origin, &c->admin_api_key,
                                      &c->weights_root};
    for (size_t i = 0; i < COUNT_OF(to); i++)
        if (from[i]->n) {
            for (int k = 0; k < to[i]->n; k++)
                free(to[i]->item[k]);
            *to[i] = (struct config_list){0};
        }
}

static void set_defaults(struct serve_config *c)
{
    struct nyb_options o;
    nyb_options_init(&o);
    *c = (struct serve_config){.host = mem_strdup("127.0.0.1"),
                               .port = 8180,
                               .max_body = 16u << 20,
                               .max_upload = 1u << 30,
                               .update_threads = 1,
                               .header_s = 10,
                               .body_s = 30,
                               .keep_alive_s = 30,
                               .stream_stall_s = 30,
                               .drain_s = 30,
                               .max_connections = 4096,
                               .workers = 2,
                               .access_log = true,
                               .max_num_seqs = o.max_num_seqs,
                               .max_waiting = o.max_waiting,
                               .stuck_s = o.stuck_ms * 1e-3,
                               .max_logprobs = o.max_logprobs,
                               .prefix_cache = o.prefix_cache,
                               .tensor_parallel_size = 1,
                               .rank_timeout_s = 10,
                               .allreduce_fusion = o.allreduce_fusion};
}

/* A first pass over environment and flags finds the file, and which lists they give. */
static enum nyb_code find_file(struct serve_config *probe, int argc, char **argv, bool *help,
                               struct nyb_err *err)
{
    enum log_level level = log_get_level();
    *probe = (struct serve_config){0};
    log_set_level(LOG_ERROR); /* what is said is said in the second pass */
    enum nyb_code code = read_environment(probe, err);
    if (code == NYB_OK)
        code = read_flags(probe, argc, argv, help, err);
    log_set_level(level);
    return code;
}

enum nyb_code config_read(struct serve_config *c, int argc, char **argv, bool *help, struct nyb_err *err)
{
    struct serve_config probe;
    *help = false;
    set_defaults(c);
    enum nyb_code code = find_file(&probe, argc, argv, help, err);
    if (code == NYB_OK && !*help && probe.config_file)
        code = config_yaml_read(c, probe.config_file, err);
    if (code == NYB_OK && !*help) {
        replace_lists(c, &probe);
        code = read_environment(c, err);
    }
    if (code == NYB_OK && !*help)
        code = read_flags(c, argc, argv, help, err);
    if (c->eplb && !c->expert_rebalance_interval)
        c->expert_rebalance_interval = EPLB_INTERVAL;
    config_free(&probe);
    return code;
}

void config_free(struct serve_config *c)
{
    for (size_t i = 0; i < COUNT_OF(options); i++) {
        void *field = (char *)c + options[i].offset;
        if (options[i].kind == STRING)
            free(*(char **)field);
        for (int k = 0; options[i].kind == LIST && k < ((struct config_list *)field)->n; k++)
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
          "FastDeploy\n"
          "and SGLang that are understood.\n\n"
          "examples:\n"
          "  nybble serve\n"
          "  nybble serve --port 8180 --max-num-seqs 128 nvidia/Qwen3-30B-A3B-FP4\n"
          "  nybble serve --host 0.0.0.0 --api-key-file keys.txt --tls-cert cert.pem --tls-key key.pem "
          "FOLDER\n",
          stdout);
}

void config_engine_options(const struct serve_config *c, const char *default_model, struct nyb_options *o)
{
    nyb_options_init(o);
    o->model = c->model ? c->model : default_model;
    o->chat_template = c->chat_template;
    o->load_format = (enum nyb_load_format)c->load_format;
    o->compute = (enum nyb_compute)c->compute;
    o->device = (enum nyb_device)c->device;
    o->moe_backend = (enum nyb_backend)c->moe_backend;
    o->gemm_backend = (enum nyb_backend)c->gemm_backend;
    o->weight_version = c->weight_version;
    static const enum nyb_kv_dtype kv_dtype[] = {NYB_KV_AUTO, NYB_KV_F32, NYB_KV_BF16, NYB_KV_FP8,
                                                 NYB_KV_FP8,  NYB_KV_F32, NYB_KV_BF16};
    o->kv_dtype = kv_dtype[c->kv_dtype];
    o->threads = (int)c->threads;
    o->kv_cache_bytes = c->kv_cache_bytes;
    o->max_model_len = c->max_model_len;
    o->max_num_seqs = (int)c->max_num_seqs;
    o->max_waiting = (int)c->max_waiting;
    o->stuck_ms = (int)(c->stuck_s * 1e3);
    o->max_logprobs = (int)c->max_logprobs;
    o->prefix_cache = c->prefix_cache;
    o->tensor_parallel_size = (int)c->tensor_parallel_size;
    o->rank_timeout_ms = (int)(c->rank_timeout_s * 1e3);
    o->allreduce_fusion = c->allreduce_fusion;
    o->fusion_max_tokens = (int)c->fusion_max_tokens;
    o->expert_parallel = c->expert_parallel;
    o->num_redundant_experts = (int)c->redundant_experts;
    o->expert_rebalance_interval = (int)c->expert_rebalance_interval;
    o->dispatch_dtype = (enum nyb_dispatch)c->dispatch_dtype;
    o->two_batch_overlap = c->two_batch_overlap;
    o->tbo_prefill_min = (int)c->tbo_prefill_min;
    o->tbo_decode_min = (int)c->tbo_decode_min;
    if (c->max_num_batched_tokens)
        o->max_num_batched_tokens = (int)c->max_num_batched_tokens;
    else if (o->max_num_batched_tokens < o->max_num_seqs)
        o->max_num_batched_tokens = o->max_num_seqs;
}
