#include "kernels/checkkern_rate.h"

#include "kernels/checkkern_peak.h"

/* Of a moment, for each thread: so that its start and its end, when not all are at work, are short beside it.
 */
#define MOMENT_BYTES ((size_t)16 << 20)

void checkkern_rate_read(struct pool *pool, struct checkkern_stream *s, double seconds,
                         struct checkkern_rate *rate)
{
    const int n = (int)(MOMENT_BYTES / s->piece) * pool_size(pool);
    for (double spent = 0; spent <= 0 || spent < seconds;) {
        double took = (double)checkkern_stream_read(pool, s, n) * 1e-9;
        rate->done += (double)n * (double)s->piece;
        rate->seconds += took;
        spent += took;
    }
    pool_recall(pool);
}

bool checkkern_rate_peak(struct pool *pool, enum cpu_level level, enum checkkern_unit unit, double seconds,
                         struct checkkern_rate *rate)
{
    checkkern_peak_fn *fn = checkkern_peak_of(level, unit);
    if (!fn)
        return false;
    for (double spent = 0; spent <= 0 || spent < seconds;) {
        uint64_t ns;
        rate->done += checkkern_peak_round(pool, fn, &ns);
        rate->seconds += (double)ns * 1e-9;
        spent += (double)ns * 1e-9;
    }
    pool_recall(pool);
    return true;
}
