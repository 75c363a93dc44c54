/* Where the time of a step goes, by stage; and the same as a Chrome trace (chrome://tracing, Perfetto). */
#ifndef NYB_CLI_BENCH_PROFILE_H
#define NYB_CLI_BENCH_PROFILE_H

#include <stdio.h>

#include "base/json.h"

struct bench_event;

#define BENCH_PROFILE_MAX 32 /* stage names of all layer kinds together */

struct bench_profile {
    struct {
        const char *name; /* static, from the stage lists */
        uint64_t ns;
    } stage[BENCH_PROFILE_MAX];
    int n_stage, n_step;
    uint64_t step_ns; /* of all steps */
    /* The trace: NULL, or an open file. Each case is a thread of it. */
    FILE *trace;
    int trace_case;
    uint64_t trace_zero_ns;
    struct bench_event *event; /* of the case, written when it is over: writing takes time */
    size_t n_event, event_cap;
};

enum nyb_code bench_profile_open_trace(struct bench_profile *p, const char *path,
                                       struct nyb_err *err) NYB_MUST_CHECK;
/* Complains where the file could not be written in full. */
enum nyb_code bench_profile_close_trace(struct bench_profile *p, const char *path,
                                        struct nyb_err *err) NYB_MUST_CHECK;

/* Forget the stages of the case before. */
void bench_profile_start(struct bench_profile *p, const char *case_name);
/* struct model_probe's `stage`; arg is the profile. */
void bench_profile_stage(void *arg, int layer, const char *name, uint64_t ns);
/* struct model_probe's `span`. Communication hides behind the other half's arithmetic: it is in the trace
 * alone. */
void bench_profile_span(void *arg, int micro_batch, int layer, const char *name, bool communication,
                        uint64_t begin_ns, uint64_t end_ns);
/* One step took so long, from begin on. */
void bench_profile_step(struct bench_profile *p, uint64_t begin, uint64_t ns);

/* The share of everything that is neither a large product nor attention, 0 to 1. */
double bench_profile_rest(const struct bench_profile *p);
void bench_profile_print(const struct bench_profile *p);
json_t *bench_profile_json(const struct bench_profile *p);

#endif
