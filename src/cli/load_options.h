/* The command line of nybble bench serve. */
#ifndef NYB_CLI_LOAD_OPTIONS_H
#define NYB_CLI_LOAD_OPTIONS_H

#include "cli/load_result.h"

#define LOAD_OPTIONS_COMMAND "bench serve" /* in complaints */

struct load_options {
    /* server */
    const char *base_url, *host, *backend, *endpoint, *model, *served, *api_key, *tokenizer, *id_prefix;
    int64_t port;
    double timeout_s, ready_s;
    bool chat;
    json_t *servers, *lora; /* arrays of texts: --ip-list, --lora-modules; NULL: none */
    json_t *headers;        /* object of texts, or NULL */
    /* requests */
    struct load_data_options data;
    int64_t n, seed, input, output, prefix, sonnet_input, sonnet_output, sonnet_prefix, file_output;
    int64_t max_input, max_output, concurrency, warmups, top_k, logprobs;
    int64_t custom_output;
    double temperature, top_p, min_p, frequency_penalty, presence_penalty, repetition_penalty;
    bool ignore_eos, shuffle, beam_search, debug, profile_server;
    const char *hyperparameters;
    json_t *extra;
    /* report */
    struct load_result result;
    struct load_goal goal[LOAD_GOAL_MAX];
    json_t *metadata;
    const char *golden, *save_golden, *dir, *file, *html;
    const char *label;
    double drop;
    bool json, save, detailed, append, quiet, insecure, pd;
    const char *unused; /* what has no meaning without a tokenizer here */
    bool unused_flag;
};

void load_options_init(struct load_options *s);
/* -1: go on; otherwise the exit status, after help or a complaint. */
int load_options_parse(struct load_options *s, int argc, char **argv);
extern const char load_options_help[]; /* load_help.c */
void load_options_free(struct load_options *s);

#endif
