#include "server/metrics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "server/admin.h"
#include "server/gen.h"

/* vLLM's bounds of times, and the 1-2-5 series. */
static const double bounds_SECONDS[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                                        1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560};
static const double bounds_TOKENS[] = {1,   2,    5,    10,   20,    50,    100,   200,
                                       500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};
_Static_assert(COUNT_OF(bounds_SECONDS) <= METRICS_BUCKET_MAX &&
                   COUNT_OF(bounds_TOKENS) <= METRICS_BUCKET_MAX,
               "a histogram has room for its bounds");

/* ---- counting ------------------------------------------------------------------------------------ */

static void observe(struct metrics_histogram *h, const double *bound, size_t n, double x)
{
    size_t i = 0;
    while (i < n && x > bound[i])
        i++;
    h->count[i < n ? i : METRICS_BUCKET_MAX]++;
    h->sum += x;
}

static void observe_time(struct metrics_histogram *h, uint64_t from_ns, uint64_t to_ns)
{
    observe(h, bounds_SECONDS, COUNT_OF(bounds_SECONDS),
            to_ns > from_ns ? (double)(to_ns - from_ns) * 1e-9 : 0);
}

static void observe_tokens(struct metrics_histogram *h, int n)
{
    observe(h, bounds_TOKENS, COUNT_OF(bounds_TOKENS), n);
}

void metrics_count_gap(struct metrics *m, uint64_t ns)
{
    observe_time(&m->gap, 0, ns);
}

void metrics_count_choice(struct metrics *m, const struct choice *c)
{
    struct gen *g = c->g;
    int n = c->usage.completion_tokens;
    g->most_tokens = n > g->most_tokens ? n : g->most_tokens;
    if (g->n_done == g->n_choice)
        observe_tokens(&m->most_tokens, g->most_tokens);
    m->finished[c->finish]++;
    observe_tokens(&m->prompt_tokens, c->usage.prompt_tokens);
    observe_tokens(&m->generation_tokens, n);
    if (c->index == 0)
        observe_tokens(&m->n, g->n);
    if (g->max_tokens != NYB_UNSET)
        observe_tokens(&m->max_tokens, g->max_tokens);
    if (!c->first_ns)
        return;
    observe_time(&m->ttft, g->x->start_ns, c->first_ns);
    observe_time(&m->e2e, g->x->start_ns, c->last_ns);
    observe_time(&m->queue, c->times.submitted_ns, c->times.scheduled_ns);
    observe_time(&m->prefill, c->times.scheduled_ns, c->first_ns);
    observe_time(&m->decode, c->first_ns, c->last_ns);
    observe_time(&m->inference, c->times.scheduled_ns, c->last_ns);
    if (n > 1)
        observe_time(&m->per_token, 0, (c->last_ns - c->first_ns) / (uint64_t)(n - 1));
}

void metrics_count_http(struct metrics *m, const struct exchange *x)
{
    if (x->state == EXCHANGE_SENT && x->status > 0 && x->status < METRICS_STATUS_MAX)
        m->http[x->status]++;
    if (x->left)
        m->left++;
}

void metrics_count_reaped(struct metrics *m)
{
    m->reaped++;
}

/* ---- printing ------------------------------------------------------------------------------------ */

struct page {
    struct buf *b;
    const char *prefix; /* "nybble:" */
    struct buf labels;  /* model_name="..",engine="0" */
};

static void add_head(const struct page *p, const char *name, const char *type, const char *help)
{
    buf_printf(p->b, "# HELP %s%s %s\n# TYPE %s%s %s\n", p->prefix, name, help, p->prefix, name, type);
}

static void add_value(const struct page *p, const char *name, const char *more, double x)
{
    buf_printf(p->b, "%s%s{%s%s%s} ", p->prefix, name, p->labels.data, more ? "," : "", more ? more : "");
    if (x == floor(x) && fabs(x) < 1e15)
        buf_printf(p->b, "%.0f\n", x);
    else
        buf_printf(p->b, "%.9g\n", x);
}

static void add_gauge(const struct page *p, const char *name, const char *help, double x)
{
    add_head(p, name, "gauge", help);
    add_value(p, name, NULL, x);
}

static void add_counter(const struct page *p, const char *name, const char *help, uint64_t x)
{
    add_head(p, name, "counter", help);
    add_value(p, name, NULL, (double)x);
}

/* count: (n) not cumulative, and what lies above all bounds apart. */
static void add_histogram(const struct page *p, const char *name, const char *help, const double *bound,
                          size_t n, const uint64_t *count, uint64_t above, double total)
{
    char bucket[160], more[64];
    uint64_t sum = 0;
    add_head(p, name, "histogram", help);
    snprintf(bucket, sizeof(bucket), "%s_bucket", name);
    for (size_t i = 0; i < n; i++) {
        sum += count[i];
        snprintf(more, sizeof(more), "le=\"%g\"", bound[i]);
        add_value(p, bucket, more, (double)sum);
    }
    sum += above;
    add_value(p, bucket, "le=\"+Inf\"", (double)sum);
    snprintf(bucket, sizeof(bucket), "%s_count", name);
    add_value(p, bucket, NULL, (double)sum);
    snprintf(bucket, sizeof(bucket), "%s_sum", name);
    add_value(p, bucket, NULL, total);
}

static void add_engine_histogram(const struct page *p, const char *name, const char *help,
                                 const struct nyb_histogram *h)
{
    add_histogram(p, name, help, h->bound, (size_t)h->n_bound, h->count, h->count[h->n_bound], h->sum);
}

static void print_histograms(const struct page *p, const struct metrics *m, bool fastdeploy)
{
#define HISTOGRAM(field, buckets, vllm, fd, help)                                                      \
    add_histogram(p, fastdeploy ? (fd) : (vllm), (help), bounds_##buckets, COUNT_OF(bounds_##buckets), \
                  m->field.count, m->field.count[METRICS_BUCKET_MAX], m->field.sum);
#include "server/metrics.def"
#undef HISTOGRAM
}

static double ratio(double a, double b)
{
    return b > 0 ? a / b : 0;
}

static void print_vllm(const struct page *p, const struct server *s, const struct nyb_stats *st)
{
    const struct metrics *m = &s->metrics;
    add_gauge(p, "num_requests_running", "requests in the engine's steps", st->running);
    add_gauge(p, "num_requests_waiting", "requests in its queue", st->waiting);
    add_gauge(p, "num_requests_stalled", "requests whose reader is behind", st->stalled);
    add_gauge(p, "kv_cache_usage_perc", "part of the KV blocks in use, 1 is all",
              ratio(st->kv_blocks_used, st->kv_blocks));
    add_gauge(p, "kv_blocks", "KV blocks", st->kv_blocks);
    add_gauge(p, "kv_blocks_used", "KV blocks that requests hold", st->kv_blocks_used);
    add_counter(p, "prefix_cache_queries_total", "tokens looked up in the prefix cache", st->prefix_queries);
    add_counter(p, "prefix_cache_hits_total", "tokens found there", st->prefix_hits);
    add_counter(p, "num_preemptions_total", "requests set back for want of blocks", st->preemptions);
    add_counter(p, "engine_steps_total", "steps", st->steps);
    add_counter(p, "prompt_tokens_total", "tokens of prompts", st->prompt_tokens);
    add_counter(p, "generation_tokens_total", "tokens made", st->generation_tokens);
    add_head(p, "request_success_total", "counter", "finished answers by reason");
    for (int f = NYB_FINISH_NONE + 1; f < NYB_FINISH_COUNT; f++) {
        char more[64];
        snprintf(more, sizeof(more), "finished_reason=\"%s\"", nyb_finish_name((enum nyb_finish)f));
        add_value(p, "request_success_total", more, (double)m->finished[f]);
    }
}

static void print_fastdeploy(const struct page *p, const struct server *s, const struct nyb_stats *st)
{
    const struct metrics *m = &s->metrics;
    int free_blocks = st->kv_blocks - st->kv_blocks_used;
    uint64_t done = m->finished[NYB_FINISH_STOP] + m->finished[NYB_FINISH_LENGTH];
    add_gauge(p, "num_requests_running", "requests in the engine's steps", st->running);
    add_gauge(p, "num_requests_waiting", "requests in its queue", st->waiting);
    add_gauge(p, "gpu_cache_usage_perc", "part of the KV blocks in use, 1 is all",
              ratio(st->kv_blocks_used, st->kv_blocks));
    add_gauge(p, "batch_size", "sequences in a step now", st->running);
    add_gauge(p, "max_batch_size", "the most of them", s->info->max_num_seqs);
    add_gauge(p, "available_batch_size", "room in a step", s->info->max_num_seqs - st->running);
    add_gauge(p, "available_gpu_block_num", "KV blocks that no request holds", free_blocks);
    add_gauge(p, "free_gpu_block_num", "the same", free_blocks);
    add_gauge(p, "max_gpu_block_num", "KV blocks", st->kv_blocks);
    add_gauge(p, "hit_token_rate", "part of the prompts' tokens found in the prefix cache",
              ratio((double)st->prefix_hits, (double)st->prefix_queries));
    add_counter(p, "prefix_cache_token_num", "tokens found in the prefix cache", st->prefix_hits);
    add_counter(p, "prompt_tokens_total", "tokens of prompts", st->prompt_tokens);
    add_counter(p, "generation_tokens_total", "tokens made", st->generation_tokens);
    add_counter(p, "request_success_total", "answers that ended by themselves", done);
}

static void print_health(const struct page *p, const struct server *s)
{
    struct nyb_health h;
    nyb_engine_health(s->engine, &h);
    add_gauge(p, "engine_alive", "1: requests can be expected to be answered; /health says the same",
              h.alive);
    add_head(p, "engine_state", "gauge", "1 for the state that holds");
    for (int i = 0; i < NYB_ENGINE_STATE_COUNT; i++) {
        char more[64];
        snprintf(more, sizeof(more), "state=\"%s\"", nyb_engine_state_name((enum nyb_engine_state)i));
        add_value(p, "engine_state", more, (int)h.state == i);
    }
    add_gauge(p, "engine_no_step_seconds", "how long there has been work and no step has ended",
              (double)h.no_step_ns * 1e-9);
    add_gauge(p, "engine_failed_steps", "steps in a row that failed, up to now", h.failed_steps);
}

/* Prometheus escapes label values nearly as JSON does. */
static void add_label_value(struct buf *b, const char *text)
{
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            buf_add_byte(b, '\\');
        if (*text == '\n')
            buf_add_str(b, "\\n");
        else
            buf_add_byte(b, *text);
    }
}

static void print_update_times(const struct page *p, const struct server *s)
{
    static const char name[] = "weight_update_seconds_total";
    struct admin_facts f;
    admin_read_facts(s->admin, &f);
    add_head(p, name, "counter", "time of updates by phase; in stall alone no step could run");
    add_value(p, name, "phase=\"prepare\"", f.prepare_s);
    add_value(p, name, "phase=\"stage\"", f.stage_s);
    add_value(p, name, "phase=\"wait\"", f.wait_s);
    add_value(p, name, "phase=\"stall\"", f.stall_s);
    add_gauge(p, "weight_update_last_stall_seconds", "stall of the last update", f.last_stall_s);
    add_gauge(p, "weight_update_longest_stall_seconds", "the longest one", f.longest_stall_s);
}

static void print_weights(const struct page *p, const struct server *s)
{
    struct nyb_weights w;
    nyb_engine_weights(s->engine, &w);
    add_gauge(p, "weight_generation", "grows with every update of the weights", (double)w.generation);
    add_counter(p, "weight_updates_total", "updates of the weights that succeeded", w.updates);
    add_counter(p, "weight_update_failures_total", "that did not; the old weights stayed", w.failures);
    print_update_times(p, s);
    add_head(p, "weight_version_info", "gauge", "1 for the version of the served weights");
    struct buf more = {0};
    buf_add_str(&more, "version=\"");
    add_label_value(&more, w.version);
    buf_add_byte(&more, '"');
    add_value(p, "weight_version_info", more.data, 1);
    buf_free(&more);
    add_gauge(p, "weights_updating", "1: an update is going on", w.updating);
    add_gauge(p, "weights_inconsistent", "1: an update and its rollback have failed", w.inconsistent);
}

double metrics_imbalance(const uint64_t *count, int n)
{
    uint64_t most = 0, sum = 0;
    for (int i = 0; i < n; i++) {
        most = count[i] > most ? count[i] : most;
        sum += count[i];
    }
    return ratio((double)most * n, (double)sum);
}

static void print_experts(const struct page *p, const struct server *s)
{
    int n = s->info->n_expert;
    if (n == 0)
        return;
    uint64_t *count = mem_alloc((size_t)n, sizeof(*count));
    char more[64];
    add_head(p, "expert_tokens_total", "counter", "tokens that a layer's router has sent to an expert");
    for (int layer = 0; layer < s->info->n_layer; layer++) {
        if (!nyb_expert_load(s->engine, layer, count))
            continue;
        for (int i = 0; i < n; i++) {
            snprintf(more, sizeof(more), "layer=\"%d\",expert=\"%d\"", layer, i);
            add_value(p, "expert_tokens_total", more, (double)count[i]);
        }
    }
    add_head(p, "router_balance", "gauge",
             "tokens of a layer's busiest expert over the mean, since the start");
    for (int layer = 0; layer < s->info->n_layer; layer++) {
        if (!nyb_expert_load(s->engine, layer, count))
            continue;
        snprintf(more, sizeof(more), "layer=\"%d\"", layer);
        add_value(p, "router_balance", more, metrics_imbalance(count, n));
    }
    free(count);
}

/* Of several ranks that share experts out. */
static void print_ranks(const struct page *p, const struct server *s)
{
    struct nyb_experts x;
    char more[64];
    nyb_engine_experts(s->engine, &x);
    if (x.ranks == 1)
        return;
    uint64_t *all = mem_alloc((size_t)x.ranks, sizeof(*all)),
             *recent = mem_alloc((size_t)x.ranks, sizeof(*all));
    add_head(p, "rank_expert_tokens_total", "counter", "(token, choice) pairs that a rank has computed");
    for (int layer = 0; layer < s->info->n_layer; layer++) {
        if (!nyb_rank_load(s->engine, layer, all, recent))
            continue;
        for (int i = 0; i < x.ranks; i++) {
            snprintf(more, sizeof(more), "layer=\"%d\",rank=\"%d\"", layer, i);
            add_value(p, "rank_expert_tokens_total", more, (double)all[i]);
        }
    }
    add_head(p, "rank_imbalance", "gauge",
             "pairs of a layer's busiest rank over the mean, since experts moved last");
    for (int layer = 0; layer < s->info->n_layer; layer++) {
        if (!nyb_rank_load(s->engine, layer, all, recent))
            continue;
        snprintf(more, sizeof(more), "layer=\"%d\"", layer);
        add_value(p, "rank_imbalance", more, metrics_imbalance(recent, x.ranks));
    }
    add_counter(p, "expert_rebalances_total", "times that experts were shared out anew", x.rebalances);
    add_counter(p, "expert_moves_total", "experts that were moved or copied", x.moves);
    add_counter(p, "expert_moved_bytes_total", "bytes of them that went from rank to rank", x.moved_bytes);
    add_head(p, "expert_move_seconds_total", "counter", "time between steps spent on that");
    add_value(p, "expert_move_seconds_total", NULL, (double)x.stall_ns * 1e-9);
    free(all);
    free(recent);
}

/* What has the same name in both styles. */
static void print_engine(const struct page *p, const struct server *s, const struct nyb_stats *st)
{
    add_engine_histogram(p, "iteration_tokens_total", "tokens of a step", &st->step_tokens);
    add_engine_histogram(p, "step_duration_seconds", "time of a step, from planning it to its tokens",
                         &st->step_seconds);
    print_health(p, s);
    print_weights(p, s);
    print_experts(p, s);
    print_ranks(p, s);
}

static void print_http(const struct page *p, const struct server *s)
{
    const struct metrics *m = &s->metrics;
    add_head(p, "http_requests_total", "counter", "responses by status");
    for (int i = 0; i < METRICS_STATUS_MAX; i++)
        if (m->http[i]) {
            char more[32];
            snprintf(more, sizeof(more), "status_code=\"%d\"", i);
            add_value(p, "http_requests_total", more, (double)m->http[i]);
        }
    add_counter(p, "http_clients_left_total", "clients that left before their answer was complete", m->left);
    add_counter(p, "http_deadlines_total",
                "connections closed because headers, body or the next request took too long", m->reaped);
    add_gauge(p, "http_connections", "open connections", s->n_conn);
}

void metrics_print(struct server *s, struct buf *b)
{
    bool fastdeploy = s->config->metrics_style == CONFIG_METRICS_FASTDEPLOY;
    struct page p = {.b = b, .prefix = fastdeploy ? "fastdeploy:" : "nybble:"};
    struct nyb_stats st;
    nyb_engine_stats(s->engine, &st);
    buf_add_str(&p.labels, "model_name=\"");
    add_label_value(&p.labels, s->model);
    buf_add_str(&p.labels, "\",engine=\"0\"");
    if (fastdeploy)
        print_fastdeploy(&p, s, &st);
    else
        print_vllm(&p, s, &st);
    print_histograms(&p, &s->metrics, fastdeploy);
    print_engine(&p, s, &st);
    if (fastdeploy)
        p.prefix = ""; /* FastDeploy's HTTP metrics have none */
    print_http(&p, s);
    buf_free(&p.labels);
}
