/* From replies to figures. */
#ifndef NYB_CLI_LOAD_METRICS_H
#define NYB_CLI_LOAD_METRICS_H

#include "cli/load_client.h"

enum load_metric {
#define METRIC(name, unit, label) METRIC_##name,
#include "cli/load_metrics.def"
#undef METRIC
    METRIC_COUNT
};
struct load_metric_row {
    const char *name, *unit, *label;
    bool is_ms;
};
/* Those from here on are --pd-metrics' own. */
#define LOAD_METRIC_PD METRIC_prefill_cost_time

extern const struct load_metric_row load_metric_table[METRIC_COUNT];
bool load_metric_parse(const char *name, enum load_metric *out);

#define LOAD_GOAL_MAX 8
/* A service level: a request is good when its metric is at most this. */
struct load_goal {
    enum load_metric metric; /* not itl, s_itl: they have many values a request */
    double most;             /* in the metric's unit */
};

struct load_metrics {
    int completed, failed, good; /* good: completed, and every goal met */
    int without_usage;           /* completed, but the tokens are counted from the chunks */
    int dropped;                 /* completed, but left out for --drop-ratio */
    double duration;             /* seconds */
    double busy;                 /* seconds: the sum of e2el */
    int64_t input_tokens, output_tokens, cached_tokens;
    struct load_list sample[METRIC_COUNT]; /* of completed requests, ascending */
    struct load_list tokens_by_second;
    int most_open;
    double latest;
};

/* drop: of the completed requests, this share is left out, half of it at each end by the time of their last
 * chunk; the duration is then that from the first to the last completion of the others, as FastDeploy has it.
 * 0: none. */
void load_metrics_make(struct load_metrics *m, const struct load_reply *reply, int n,
                       const struct load_run *run, const struct load_goal *goal, int n_goal, double drop);
void load_metrics_free(struct load_metrics *m);

/* One value a request; NAN where it has none. Not for itl and s_itl. */
double load_metrics_value(const struct load_reply *r, enum load_metric metric);

/* Of ascending values; 0 when there are none. Percentiles are interpolated linearly between the two nearest
 * ranks and the deviation is that of the population, both as numpy's defaults. */
double load_metrics_mean(const struct load_list *l);
double load_metrics_deviation(const struct load_list *l);
double load_metrics_percentile(const struct load_list *l, double p); /* p: 0 to 100 */

#endif
