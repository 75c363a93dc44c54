/* The command line of nybble bench serve. */
#ifndef NYB_CLI_LOAD_OPTIONS_H
#define NYB_CLI_LOAD_OPTIONS_H

#include "cli/load_result.h"

#define LOAD_OPTIONS_COMMAND "bench serve" /* in complaints */

struct load_options {
    /* server */
    const char *base_url, *host, *backend, *endpoint, *model, *served, *api_key;
    int64_t port;
    double timeout_s;
    /* requests */
    struct load_data_options data;
    int64_t n, seed, input, output, prefix, sonnet_input, sonnet_output, sonnet_prefix, file_output;
    int64_t max_input, max_output, concurrency, warmups, top_k, logprobs;
    double temperature, top_p, min_p;
    bool ignore_eos, shuffle;
    json_t *extra;
    /* report */
    struct load_result result;
    struct load_goal goal[LOAD_GOAL_MAX];
    json_t *metadata;
    const char *golden, *save_golden, *dir, *file, *html;
    bool json, save, detailed, quiet, insecure;
};

void load_options_init(struct load_options *s);
/* -1: go on; otherwise the exit status, after help or a complaint. */
int load_options_parse(struct load_options *s, int argc, char **argv);
void load_options_free(struct load_options *s);

#endif
