/* Prometheus metrics. Counted and printed by the loop alone. Names are vLLM's, prefixed nybble:, or with
 * --metrics-style fastdeploy FastDeploy's. */
#ifndef NYB_SERVER_METRICS_H
#define NYB_SERVER_METRICS_H

#include "base/buf.h"
#include "nybble.h"

#define METRICS_TYPE       "text/plain; version=0.0.4; charset=utf-8"
#define METRICS_BUCKET_MAX 32
#define METRICS_STATUS_MAX 600

struct server;
struct exchange;
struct choice;

struct metrics_histogram {
    uint64_t count[METRICS_BUCKET_MAX + 1]; /* not cumulative; the last is above all bounds */
    double sum;
};

struct metrics {
#define HISTOGRAM(field, buckets, vllm, fastdeploy, help) struct metrics_histogram field;
#include "server/metrics.def"
#undef HISTOGRAM
    uint64_t finished[NYB_FINISH_COUNT];
    uint64_t http[METRICS_STATUS_MAX]; /* responses by status */
    uint64_t left, reaped;             /* clients that left; connections past a deadline */
};

void metrics_count_choice(struct metrics *m, const struct choice *c);
void metrics_count_gap(struct metrics *m, uint64_t ns);
void metrics_count_http(struct metrics *m, const struct exchange *x);
void metrics_count_reaped(struct metrics *m);
/* The busiest one's share over the mean: 1 is even, n is everything to one; 0 where there is nothing. */
double metrics_imbalance(const uint64_t *count, int n);
void metrics_print(struct server *s, struct buf *b);

#endif
