/* Where the settings come from, in the order of their strength, and what of them the engine is told. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "server/config_option.h"

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
static void name_variable(const char *option, char *name, size_t cap)
{
    snprintf(name, cap, "NYBBLE_%s", option);
    for (char *s = name; *s; s++)
        *s = *s == '-' ? '_' : (char)toupper((unsigned char)*s);
}

static const char *variable_of(const struct config_option *o, char *name, size_t cap)
{
    name_variable(o->name, name, cap);
    return getenv(name);
}

/* Kubernetes gives every container NYBBLE_PORT=tcp://10.0.0.1:8180 where there is a service of the name
 * nybble (and NYBBLE_METRICS_PORT for nybble-metrics): nobody has set an option. */
static bool is_service_link(const char *name, const char *value)
{
    static const char *const begin[] = {"tcp://", "udp://", "sctp://"};
    size_t n = strlen(name);
    bool port = n >= 5 && !strcmp(name + n - 5, "_PORT"), link = false;
    for (size_t i = 0; i < COUNT_OF(begin) && port; i++)
        link = link || !strncmp(value, begin[i], strlen(begin[i]));
    return link;
}

/* Variables of the program that are no options. */
static bool is_other_variable(const char *name)
{
    static const char *const other[] = {"NYBBLE_MODELS", "NYBBLE_CPU", "NYBBLE_CUDA_PLUGIN"};
    bool found = false;
    for (size_t i = 0; i < COUNT_OF(other); i++)
        found = found || !strcmp(name, other[i]);
    return found;
}

/* NYBBLE_MAX_NUM_SEQ is silently nothing otherwise. */
static void warn_of_slips(void)
{
    static const char prefix[] = "NYBBLE_";
    for (char **e = environ; *e; e++) {
        char name[64], ours[64];
        size_t n = strcspn(*e, "=");
        if (strncmp(*e, prefix, strlen(prefix)) || n >= sizeof(name))
            continue;
        memcpy(name, *e, n);
        name[n] = 0;
        const char *near = is_other_variable(name) ? NULL : config_near(name + strlen(prefix));
        name_variable(near ? near : "", ours, sizeof(ours));
        if (near && strcmp(name, ours))
            log_warn("%s is no option; there is %s", name, ours);
    }
}

void config_log_ignored(void)
{
    warn_of_slips();
    char name[64];
    const struct config_option *o;
    for (size_t i = 0; (o = config_option(i)); i++) {
        const char *value = variable_of(o, name, sizeof(name));
        if (value && is_service_link(name, value))
            log_info("%s=%.100s is Kubernetes' link to a service, not an option", name, value);
    }
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
        if (value && *value && !config_listed(env_accepted[i].values, value))
            return err_at(err, NYB_E_ARG, env_accepted[i].variable, -1,
                          "there is no backend \"%.100s\"; the valid ones are %s", value,
                          env_accepted[i].values);
    }
    const struct config_option *o;
    for (size_t i = 0; (o = config_option(i)); i++) {
        const char *value = variable_of(o, name, sizeof(name));
        if (value && *value && !is_service_link(name, value))
            TRY(config_set(c, o->name, value, name, err));
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
                               .stream_keepalive_s = 15,
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
                               .allreduce_fusion = o.allreduce_fusion,
                               .log_level = LOG_INFO,
                               .seed = o.seed,
                               .top_k = NYB_UNSET};
    nyb_sampling_init(&c->defaults);
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
        code = config_flags_read(probe, argc, argv, help, err);
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
        code = config_flags_read(c, argc, argv, help, err);
    if (code == NYB_OK && !*help)
        code = config_settle(c, err);
    config_free(&probe);
    return code;
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
    o->hf_overrides = c->hf_overrides;
    o->defaults = &c->defaults;
    o->no_generation_config = c->generation_config & 1;
    o->seed = c->seed;
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
    o->max_num_batched_tokens = (int)c->max_num_batched_tokens;
}
