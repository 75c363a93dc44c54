/* The roofline of this machine, measured with the same threads and in the same run as the kernels: what it
 * does at its best. It is what all threads reach together: whoever sits out because of a neighbour is called
 * for every try. */
#include <math.h>
#include <string.h>
#include <sys/mman.h>

#include "base/sysmem.h"
#include "base/topology.h"
#include "kernels/checkkern_peak.h"

#define STREAM_BYTES ((size_t)256 << 20) /* at least; more where the last cache is larger */
#define STREAM_MOST  ((size_t)2 << 30)
#define STREAM_CACHE 8  /* last caches, so that little of what is read next is still there */
#define STREAM_SHARE 16 /* of the memory that is free: no more is taken */
#define STREAM_UNIT  ((size_t)2 << 20)
#define SLICES       16 /* of STREAM_BYTES timed one by one: the best of many goes undisturbed */
#define FORM_TRIES   8  /* of a slice, for each of two forms of reading */
#define TRIES        7  /* of all slices of STREAM_BYTES; three of more */
#define PEAK_TRIES   30 /* short ones: on a busy machine all threads seldom run for long */

static size_t stream_bytes(struct pool *pool)
{
    size_t bytes = STREAM_CACHE * topology_last_cache(pool_topology(pool));
    uint64_t spare = sysmem_available() / STREAM_SHARE;
    bytes = bytes > STREAM_MOST ? STREAM_MOST : bytes;
    bytes = bytes > spare ? (size_t)spare : bytes;
    return bytes < STREAM_BYTES ? STREAM_BYTES : bytes / STREAM_UNIT * STREAM_UNIT;
}

static void touch_unit(void *arg, int item, int worker)
{
    (void)worker;
    memset((uint8_t *)arg + (size_t)item * STREAM_UNIT, 1, STREAM_UNIT);
}

/* GB/s of the best slice, or of the best pass: of a large cache some slices are still there. */
static double best_of_passes(struct pool *pool, struct checkkern_stream *s, bool large)
{
    const int n = s->n_piece / SLICES;
    const double slice = (double)n * (double)s->piece;
    double best = 0.0;
    for (int i = 0; i < (large ? 3 : TRIES); i++) {
        double whole = 0;
        for (int j = 0; j < SLICES; j++) {
            double ns = (double)checkkern_stream_read(pool, s, n);
            whole += ns;
            if (!large)
                best = fmax(best, slice / ns);
        }
        best = fmax(best, SLICES * slice / whole);
    }
    return best;
}

/* Which form reads faster depends on the processor, and with two threads on where they are: both in turns. */
static void choose_form(struct checkkern_stream *s, struct pool *pool)
{
    checkkern_read_fn *const form[] = {checkkern_read_avx2, checkkern_read_avx2_alone};
    const int n = s->n_piece / SLICES;
    uint64_t ns[2] = {0, 0};
    for (int i = 0; i < 2 * FORM_TRIES; i++) {
        s->read = form[i % 2];
        ns[i % 2] += checkkern_stream_read(pool, s, n);
    }
    s->read = form[ns[1] < ns[0]];
}

bool checkkern_stream_take(struct checkkern_stream *s, struct pool *pool)
{
    size_t bytes = stream_bytes(pool);
    *s = (struct checkkern_stream){0};
    void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED)
        return false;
    madvise(data, bytes, MADV_HUGEPAGE); /* best effort, as for weights */
    pool_run(pool, (int)(bytes / STREAM_UNIT), touch_unit, data);
    bool opened = checkkern_stream_open(s, data, bytes, pool_size(pool));
    s->own = data;
    s->own_bytes = bytes;
    if (!opened)
        checkkern_stream_close(s);
    else if (cpu_detect() >= CPU_AVX2)
        choose_form(s, pool);
    return opened;
}

double checkkern_read_bandwidth(struct pool *pool)
{
    struct checkkern_stream s;
    if (!checkkern_stream_take(&s, pool))
        return 0.0;
    double best = best_of_passes(pool, &s, s.own_bytes > STREAM_BYTES);
    checkkern_stream_close(&s);
    return best;
}

/* GFLOP/s; 0: no such instructions. */
static double best_peak(const struct checkkern_env *env, enum checkkern_unit unit)
{
    checkkern_peak_fn *fn = checkkern_peak_of(env->level, unit);
    double best = 0.0;
    for (int i = 0; fn && i < PEAK_TRIES; i++) {
        uint64_t ns;
        double done = checkkern_peak_round(env->pool, fn, &ns);
        best = fmax(best, done / (double)ns);
    }
    return best;
}

void checkkern_measure(const struct checkkern_env *env, struct checkkern_roof *roof)
{
    *roof = (struct checkkern_roof){.n_thread = pool_size(env->pool),
                                    .read_gbs = checkkern_read_bandwidth(env->pool),
                                    .f32_gflops = best_peak(env, CHECKKERN_F32),
                                    .bf16_gflops = best_peak(env, CHECKKERN_BF16),
                                    .i8_gops = best_peak(env, CHECKKERN_I8),
                                    .tile_gflops = best_peak(env, CHECKKERN_TILE)};
}
