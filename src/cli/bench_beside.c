#include "cli/bench_beside.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"

/* For how long each limit is measured, beside the run: the one that binds the run for a tenth of it, the
 * other for as much less as it binds less. Short runs have more, or a moment would say nothing; the shortest
 * half of themselves, or they would take too long. */
#define OF_RUN       0.1
#define SECONDS      0.02
#define OF_SHORT_RUN 0.5

/* ---- one moment ---------------------------------------------------------------------------------- */

/* The unit whose peak stands for this one: docs/BENCH.md. */
static enum checkkern_unit stands_for(enum cpu_level level, enum checkkern_unit unit)
{
    if (level < CPU_AVX2)
        return CHECKKERN_F32;
    return unit == CHECKKERN_BF16 && level >= CPU_AMX ? CHECKKERN_TILE : unit;
}

static struct bench_moment *measure(struct bench_beside *b, double read_seconds, const double *peak_seconds)
{
    struct bench_moment *m = &b->moment[b->n_moment++];
    *m = (struct bench_moment){0};
    checkkern_rate_read(b->pool, &b->stream, read_seconds, &m->read);
    for (int unit = 0; unit < CHECKKERN_TILE; unit++)
        if (peak_seconds[unit] > 0)
            checkkern_rate_peak(b->pool, b->level, stands_for(b->level, (enum checkkern_unit)unit),
                                peak_seconds[unit], &m->peak[unit]);
    return m;
}

static void add_rate(struct checkkern_rate *to, const struct checkkern_rate *r)
{
    to->done += r->done;
    to->seconds += r->seconds;
}

static struct bench_moment sum_of(const struct bench_moment *a, const struct bench_moment *b)
{
    struct bench_moment sum = *a;
    add_rate(&sum.read, &b->read);
    for (int unit = 0; unit < CHECKKERN_TILE; unit++)
        add_rate(&sum.peak[unit], &b->peak[unit]);
    return sum;
}

/* Seconds that work takes at that rate. */
static double at_rate(double work, const struct checkkern_rate *r)
{
    return work > 0 ? work * r->seconds / r->done : 0;
}

static double at_peaks(const struct bench_work *w, const struct bench_moment *m)
{
    double seconds = 0;
    for (int unit = 0; unit < CHECKKERN_TILE; unit++)
        seconds += at_rate(w->flops[unit], &m->peak[unit]);
    return seconds;
}

/* ---- all of them --------------------------------------------------------------------------------- */

bool bench_beside_open(struct bench_beside *b, struct model *m, int n_run)
{
    *b = (struct bench_beside){.pool = model_pool(m), .level = cpu_level()};
    if (!checkkern_stream_take(&b->stream, b->pool))
        return false;
    b->moment = mem_alloc((size_t)n_run + 1, sizeof(*b->moment));
    return true;
}

void bench_beside_close(struct bench_beside *b)
{
    checkkern_stream_close(&b->stream);
    free(b->moment);
    b->moment = NULL;
}

void bench_beside_first(struct bench_beside *b)
{
    double peak[CHECKKERN_TILE];
    for (int unit = 0; unit < CHECKKERN_TILE; unit++)
        peak[unit] = SECONDS / CHECKKERN_TILE;
    measure(b, SECONDS, peak);
}

void bench_beside_next(struct bench_beside *b, double seconds, const struct bench_work *w)
{
    const struct bench_moment *first = &b->moment[0]; /* has all units */
    const double reading = at_rate(bench_work_bytes(w), &first->read), peaks = at_peaks(w, first);
    const double least = fmin(SECONDS, OF_SHORT_RUN * seconds), most = fmax(OF_RUN * seconds, least);
    const double a_second = most / fmax(reading, peaks), peak_seconds = fmax(a_second * peaks, least);
    double peak[CHECKKERN_TILE];
    for (int unit = 0; unit < CHECKKERN_TILE; unit++)
        peak[unit] = peaks > 0 ? peak_seconds * at_rate(w->flops[unit], &first->peak[unit]) / peaks : 0;
    measure(b, fmax(a_second * reading, least), peak);
}

struct bench_run bench_beside_run(const struct bench_beside *b, int i, double seconds,
                                  const struct bench_work *w)
{
    const struct bench_moment around = sum_of(&b->moment[i], &b->moment[i + 1]);
    const double reading = at_rate(bench_work_bytes(w), &around.read), peaks = at_peaks(w, &around);
    return (struct bench_run){
        .seconds = seconds,
        .read_gbs = around.read.done / around.read.seconds * 1e-9,
        .peak_gflops = peaks > 0 ? bench_work_flops(w) / peaks * 1e-9 : 0,
        .of_read = reading / seconds,
        .of_peak = peaks / seconds,
        .of_limits = fmax(reading, peaks) / seconds,
    };
}
