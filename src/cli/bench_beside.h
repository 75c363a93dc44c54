/* What the machine does beside the runs of bench model: before the first, between them and after the last it
 * reads memory and computes from registers for some time, with the same threads. Not the weights: on a
 * virtual machine whose host moves memory about they were read at a tenth of the rate now and then, by a
 * plain loop alone. docs/BENCH.md tells what these averages mean, and what the best of moments (bench_work.h)
 * does. */
#ifndef NYB_CLI_BENCH_BESIDE_H
#define NYB_CLI_BENCH_BESIDE_H

#include "cli/bench_work.h"
#include "kernels/checkkern_rate.h"

struct bench_moment {
    struct checkkern_rate read, peak[CHECKKERN_TILE]; /* by unit, as the operations of bench_work */
};

struct bench_beside {
    struct pool *pool;
    enum cpu_level level;
    struct checkkern_stream stream; /* memory of its own */
    struct bench_moment *moment;    /* (n_run + 1) */
    int n_moment;
};

/* A run beside the moments before and after it. */
struct bench_run {
    double seconds;
    double read_gbs, peak_gflops;       /* the latter of the run's mixture of units */
    double of_read, of_peak, of_limits; /* the last is the larger of the two        */
};

/* False: no memory. */
bool bench_beside_open(struct bench_beside *b, struct model *m, int n_run);
void bench_beside_close(struct bench_beside *b);

/* Before the first run, of which nothing is known yet; then after each. */
void bench_beside_first(struct bench_beside *b);
void bench_beside_next(struct bench_beside *b, double seconds, const struct bench_work *w);

struct bench_run bench_beside_run(const struct bench_beside *b, int i, double seconds,
                                  const struct bench_work *w);

#endif
