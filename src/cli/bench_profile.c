#include "cli/bench_profile.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

struct bench_event {
    const char *name;
    uint64_t begin, ns;
    int layer, lane; /* lane 0: rows that go together; 1 + 2 * micro-batch + communication */
};

#define LANES 8 /* room for them in the numbers of a trace's threads */

enum nyb_code bench_profile_open_trace(struct bench_profile *p, const char *path, struct nyb_err *err)
{
    p->trace = fopen(path, "w");
    if (!p->trace)
        return err_at(err, NYB_E_IO, path, -1, "cannot be written: %s", strerror(errno));
    p->trace_zero_ns = clock_ns();
    fputs("{\"displayTimeUnit\": \"ns\", \"traceEvents\": [\n"
          "{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": 1, \"args\": {\"name\": \"nybble bench "
          "model\"}}",
          p->trace);
    return NYB_OK;
}

/* Complete events; times in microseconds. */
static void write_events(struct bench_profile *p)
{
    for (size_t i = 0; i < p->n_event; i++) {
        const struct bench_event *e = &p->event[i];
        fprintf(p->trace,
                ",\n{\"name\": \"%s\", \"ph\": \"X\", \"pid\": 1, \"tid\": %d, \"ts\": %.3f, \"dur\": %.3f, "
                "\"args\": {\"layer\": %d}}",
                e->name, p->trace_case * LANES + e->lane, (double)(e->begin - p->trace_zero_ns) * 1e-3,
                (double)e->ns * 1e-3, e->layer);
    }
    p->n_event = 0;
}

enum nyb_code bench_profile_close_trace(struct bench_profile *p, const char *path, struct nyb_err *err)
{
    if (!p->trace)
        return NYB_OK;
    write_events(p);
    fputs("\n]}\n", p->trace);
    bool bad = ferror(p->trace);
    bad |= fclose(p->trace) != 0;
    p->trace = NULL;
    free(p->event);
    p->event = NULL;
    return bad ? err_at(err, NYB_E_IO, path, -1, "was not written in full: %s", strerror(errno)) : NYB_OK;
}

void bench_profile_start(struct bench_profile *p, const char *case_name)
{
    p->n_stage = p->n_step = 0;
    p->step_ns = 0;
    if (!p->trace)
        return;
    write_events(p);
    p->trace_case++;
    fprintf(p->trace,
            ",\n{\"name\": \"thread_name\", \"ph\": \"M\", \"pid\": 1, \"tid\": %d, "
            "\"args\": {\"name\": \"%s\"}}",
            p->trace_case * LANES, case_name);
    for (int lane = 1; lane <= 4; lane++)
        fprintf(p->trace,
                ",\n{\"name\": \"thread_name\", \"ph\": \"M\", \"pid\": 1, \"tid\": %d, "
                "\"args\": {\"name\": \"%s, half %d, %s\"}}",
                p->trace_case * LANES + lane, case_name, (lane - 1) / 2,
                lane % 2 ? "compute" : "communicate");
}

static void add_event(struct bench_profile *p, const char *name, uint64_t begin, uint64_t ns, int layer,
                      int lane)
{
    if (!p->trace)
        return;
    if (p->n_event == p->event_cap) {
        p->event_cap = p->event_cap ? 2 * p->event_cap : 4096;
        p->event = mem_grow(p->event, p->event_cap, sizeof(*p->event));
    }
    p->event[p->n_event++] = (struct bench_event){name, begin, ns, layer, lane};
}

static void add_stage(struct bench_profile *p, const char *name, uint64_t ns)
{
    int i = 0;
    while (i < p->n_stage && strcmp(p->stage[i].name, name))
        i++;
    ASSERT(i < BENCH_PROFILE_MAX);
    if (i == p->n_stage) {
        p->stage[i].name = name;
        p->stage[i].ns = 0;
        p->n_stage++;
    }
    p->stage[i].ns += ns;
}

void bench_profile_stage(void *arg, int layer, const char *name, uint64_t ns)
{
    struct bench_profile *p = arg;
    add_stage(p, name, ns);
    add_event(p, name, clock_ns() - ns, ns, layer, 0);
}

void bench_profile_span(void *arg, int micro_batch, int layer, const char *name, bool communication,
                        uint64_t begin_ns, uint64_t end_ns)
{
    struct bench_profile *p = arg;
    if (!communication)
        add_stage(p, name, end_ns - begin_ns);
    int lane = micro_batch < 0 ? 0 : 1 + 2 * micro_batch + communication;
    add_event(p, name, begin_ns, end_ns - begin_ns, layer, lane);
}

void bench_profile_step(struct bench_profile *p, uint64_t begin, uint64_t ns)
{
    p->n_step++;
    p->step_ns += ns;
    add_event(p, "step", begin, ns, -1, 0);
}

static bool is_large(const char *name)
{
    static const char *const large[] = {"q, k, v", "attend", "attention output", "mlp", "experts", "head"};
    for (size_t i = 0; i < COUNT_OF(large); i++)
        if (!strcmp(name, large[i]))
            return true;
    return false;
}

double bench_profile_rest(const struct bench_profile *p)
{
    uint64_t large = 0;
    for (int i = 0; i < p->n_stage; i++)
        if (is_large(p->stage[i].name))
            large += p->stage[i].ns;
    return p->step_ns ? 1.0 - (double)large / (double)p->step_ns : 0;
}

static uint64_t between_stages(const struct bench_profile *p)
{
    uint64_t sum = 0;
    for (int i = 0; i < p->n_stage; i++)
        sum += p->stage[i].ns;
    return sum < p->step_ns ? p->step_ns - sum : 0;
}

static void print_line(const struct bench_profile *p, const char *name, uint64_t ns)
{
    printf("    %-18s %10.1f us a step  %5.1f %%\n", name, (double)ns * 1e-3 / p->n_step,
           100.0 * (double)ns / (double)p->step_ns);
}

void bench_profile_print(const struct bench_profile *p)
{
    if (!p->n_step || !p->step_ns)
        return;
    for (int i = 0; i < p->n_stage; i++)
        print_line(p, p->stage[i].name, p->stage[i].ns);
    print_line(p, "between stages", between_stages(p));
    printf("    all but products and attention: %.1f %% of a step of %.1f us\n",
           100.0 * bench_profile_rest(p), (double)p->step_ns * 1e-3 / p->n_step);
}

json_t *bench_profile_json(const struct bench_profile *p)
{
    double unit = p->n_step ? 1e-3 / p->n_step : 0;
    json_t *stages = json_object();
    for (int i = 0; i < p->n_stage; i++)
        json_object_set_new(stages, p->stage[i].name, json_real((double)p->stage[i].ns * unit));
    json_object_set_new(stages, "between stages", json_real((double)between_stages(p) * unit));
    return json_pack("{s:o, s:f, s:f}", "stage_us", stages, "step_us", (double)p->step_ns * unit, "rest",
                     bench_profile_rest(p));
}
