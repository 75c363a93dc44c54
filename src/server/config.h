/* What `nybble serve` can be told: one table (options.def) read as flags, as keys of a YAML file and as
 * environment variables. Later wins: default, file, environment, flag. */
#ifndef NYB_SERVER_CONFIG_H
#define NYB_SERVER_CONFIG_H

#include "nybble.h"

#include "base/err.h"

#define CONFIG_LIST_MAX 64

struct config_list {
    char *item[CONFIG_LIST_MAX];
    int n;
};

enum config_metrics { CONFIG_METRICS_VLLM, CONFIG_METRICS_FASTDEPLOY };
enum config_log { CONFIG_LOG_TEXT, CONFIG_LOG_LOGFMT, CONFIG_LOG_JSON };

struct serve_config {
    char *model; /* NULL: none was named */
    char *host;
    int64_t port, metrics_port; /* port 0: any free one; metrics_port 0: on the main port */
    struct config_list served_name, api_key, origin, admin_api_key, weights_root;
    char *api_key_file, *tls_cert, *tls_key, *parser, *config_file;
    uint64_t max_body;
    double header_s, body_s, keep_alive_s, stream_stall_s, stream_keepalive_s, drain_s;
    int64_t max_connections, workers;
    int metrics_style, log_format;
    char *admin_api_key_file, *weight_version, *upload_dir;
    uint64_t max_upload;
    int64_t update_threads;
    int update_staging, update_in_flight; /* enum nyb_staging, enum nyb_in_flight */
    bool access_log, verbose;
    int log_level;              /* of the choices, which are enum log_level twice */
    char *chat_template_kwargs; /* a JSON object, or NULL */
    /* engine */
    char *chat_template, *revision, *rope_scaling;
    char *hf_overrides;                    /* config_read has put rope_scaling into it */
    struct nyb_sampling defaults;          /* of requests */
    int64_t top_k, max_tokens;             /* config_read has put them into defaults */
    int64_t seed;                          /* -1: random */
    int generation_config;                 /* 1, 3: not the checkpoint's */
    int load_format, compute, kv_dtype;    /* kv_dtype: the enum's value + 1 */
    int device, moe_backend, gemm_backend; /* enum nyb_device, enum nyb_backend */
    int64_t threads, max_model_len, max_num_seqs, max_num_batched_tokens, max_waiting, max_logprobs;
    uint64_t kv_cache_bytes;
    double stuck_s;
    bool prefix_cache;
    int64_t tensor_parallel_size, fusion_max_tokens; /* 0: no limit */
    double rank_timeout_s;
    bool allreduce_fusion, expert_parallel, two_batch_overlap;
    bool eplb; /* config_read has turned it into an expert_rebalance_interval */
    int64_t redundant_experts, expert_rebalance_interval;
    int dispatch_dtype;                      /* enum nyb_dispatch */
    int64_t tbo_prefill_min, tbo_decode_min; /* 0: the defaults */
};

/* Defaults, then the file that --config or NYBBLE_CONFIG names, the environment and argv[1..]. *help: --help
 * was asked for, and nothing else matters. */
enum nyb_code config_read(struct serve_config *out, int argc, char **argv, bool *help,
                          struct nyb_err *err) NYB_MUST_CHECK;
/* Variables that look like options and are none; for when the log has its form. */
void config_log_ignored(void);
void config_free(struct serve_config *c);
void config_print_help(void);
/* What the engine is to be opened with; points into c. default_model where none was named. */
void config_engine_options(const struct serve_config *c, const char *default_model, struct nyb_options *o);

/* One setting by its flag's name, from text; `where` names the source in errors. */
enum nyb_code config_set(struct serve_config *c, const char *name, const char *text, const char *where,
                         struct nyb_err *err) NYB_MUST_CHECK;
/* Does the option take no value on the command line? False for unknown names, too. */
bool config_is_switch(const char *name);
bool config_is_list(const char *name);
bool config_is_known(const char *name);

/* config_json.c: a JSON object of NAME's parts, as in --eplb-config '{"step_interval": 500}'. */
enum nyb_code config_json_read(struct serve_config *c, const char *name, const char *text, const char *where,
                               struct nyb_err *err) NYB_MUST_CHECK;

/* config_yaml.c: a mapping of names to values, with line and column in errors. */
enum nyb_code config_yaml_read(struct serve_config *c, const char *path, struct nyb_err *err) NYB_MUST_CHECK;

#endif
