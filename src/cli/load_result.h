/* What a run is reported as: a table, JSON under the names that vLLM and FastDeploy use, or an HTML page. */
#ifndef NYB_CLI_LOAD_RESULT_H
#define NYB_CLI_LOAD_RESULT_H

#include "cli/load_metrics.h"

#define LOAD_PERCENTILE_MAX 16

struct load_result {
    const char *backend, *url, *model, *tokenizer, *label, *data_set; /* the last but one may be NULL */
    const json_t *servers;                                            /* array of texts, or NULL: url alone */
    double request_rate, burstiness;                                  /* rate infinity: all at once */
    int max_concurrency;                                              /* 0: no limit */
    const json_t *metadata;                                           /* object of strings, or NULL */
    bool selected[METRIC_COUNT];
    double percentile[LOAD_PERCENTILE_MAX];
    int n_percentile, n_goal;
    bool pd;     /* with --pd-metrics */
    double drop; /* --drop-ratio      */
    enum load_ramp ramp;
    double ramp_start, ramp_end;
    bool golden;      /* answers were checked */
    int golden_wrong; /* and so many were others */
    char date[32];    /* YYYYmmdd-HHMMSS */
    const struct load_metrics *metrics;
    const struct load_data *data;
    const struct load_reply *reply; /* (data->n) */
};

void load_result_print(const struct load_result *r);
/* detailed: with every request's figures and texts. */
json_t *load_result_json(const struct load_result *r, bool detailed);

/* load_html.c: one file without references to others. */
enum nyb_code load_html_write(const char *path, const struct load_result *r,
                              struct nyb_err *err) NYB_MUST_CHECK;

#endif
