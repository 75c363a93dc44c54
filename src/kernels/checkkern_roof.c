/* The roofline of this machine, measured with the same threads and in the same run as the kernels. It is what
 * all of them reach together: whoever sits out because of a neighbour is called for every try. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/sysmem.h"
#include "base/topology.h"
#include "kernels/checkkern.h"
#include "kernels/checkkern_peak.h"

#define STREAM_BYTES ((size_t)256 << 20) /* at least; more where the last cache is larger */
#define STREAM_MOST  ((size_t)2 << 30)
#define STREAM_CACHE 8  /* last caches, so that little of what is read next is still there */
#define STREAM_SHARE 16 /* of the memory that is free: no more is taken */
#define PIECE_BYTES  ((size_t)128 << 10)
#define SLICES       16 /* of STREAM_BYTES timed one by one: the best of many goes undisturbed */
#define TRIES        7  /* of all slices of STREAM_BYTES; three of more */
#define PEAK_TRIES   30 /* short ones: on a busy machine all threads seldom run for long */

struct stream {
    checkkern_read_fn *fn;
    const uint64_t *data;
    uint64_t *sink; /* one a piece, so that no read can be left out */
    int first;      /* piece of this slice */
};

uint64_t checkkern_read_scalar(const uint64_t *data, size_t n)
{
    uint64_t sum[8] = {0};
    for (size_t i = 0; i < n; i += 8) {
        __builtin_prefetch(data + i + 512);
        for (size_t j = 0; j < 8; j++)
            sum[j] += data[i + j];
    }
    for (int j = 1; j < 8; j++)
        sum[0] ^= sum[j];
    return sum[0];
}

static void read_piece(void *arg, int item, int worker)
{
    (void)worker;
    struct stream *s = arg;
    const size_t n = PIECE_BYTES / sizeof(*s->data);
    item += s->first;
    s->sink[item] = s->fn(s->data + (size_t)item * n, n);
}

/* Whole slices of whole pieces. */
static size_t stream_bytes(struct pool *pool)
{
    size_t bytes = STREAM_CACHE * topology_last_cache(pool_topology(pool)), unit = SLICES * PIECE_BYTES;
    uint64_t spare = sysmem_available() / STREAM_SHARE;
    bytes = bytes > STREAM_MOST ? STREAM_MOST : bytes;
    bytes = bytes > spare ? (size_t)spare : bytes;
    return bytes < STREAM_BYTES ? STREAM_BYTES : bytes / unit * unit;
}

static void touch_piece(void *arg, int item, int worker)
{
    (void)worker;
    memset((uint8_t *)arg + (size_t)item * PIECE_BYTES, 1, PIECE_BYTES);
}

double checkkern_read_bandwidth(struct pool *pool)
{
    size_t bytes = stream_bytes(pool);
    int n_piece = (int)(bytes / PIECE_BYTES), tries = bytes > STREAM_BYTES ? 3 : TRIES;
    void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED)
        return 0.0;
    madvise(data, bytes, MADV_HUGEPAGE); /* best effort, as for weights */
    pool_run(pool, n_piece, touch_piece, data);
    struct stream s = {.fn = cpu_detect() >= CPU_AVX2 ? checkkern_read_avx2 : checkkern_read_scalar,
                       .data = data,
                       .sink = calloc((size_t)n_piece, sizeof(uint64_t))};
    double best = 0.0;
    for (int i = 0; s.sink && i < tries; i++) {
        uint64_t whole = 0;
        for (int slice = 0; slice < SLICES; slice++) {
            s.first = slice * (n_piece / SLICES);
            pool_recall(pool);
            uint64_t start = clock_ns();
            pool_run(pool, n_piece / SLICES, read_piece, &s);
            uint64_t ns = clock_ns() - start;
            whole += ns;
            if (bytes == STREAM_BYTES)
                best = fmax(best, (double)(bytes / SLICES) / (double)ns);
        }
        best = fmax(best, (double)bytes / (double)whole); /* of a large cache some slices are still there */
    }
    free(s.sink);
    munmap(data, bytes);
    return best;
}

double checkkern_peak_f32_scalar(long rounds, float *sink)
{
    float sum[8] = {0}, x = *sink;
    for (long r = 0; r < rounds; r++)
        for (int i = 0; i < 8; i++)
            sum[i] = sum[i] * 0.5f + x;
    for (int i = 1; i < 8; i++)
        sum[0] += sum[i];
    *sink = sum[0];
    return (double)rounds * 16;
}

/* Several items a thread, so that one that is late, or shares its core for a moment, costs its share and not
 * half of everything. */
#define PEAK_ITEMS  8
#define PEAK_ROUNDS 10000 /* of an item */

struct peak {
    checkkern_peak_fn *fn;
    double done[PEAK_ITEMS * 64]; /* by item */
    float sink[PEAK_ITEMS * 64];
};

static void run_peak(void *arg, int item, int worker)
{
    (void)worker;
    struct peak *p = arg;
    float sink = 1e-9f;
    p->done[item] = p->fn(PEAK_ROUNDS, &sink);
    p->sink[item] = sink;
}

static double peak_gflops(struct pool *pool, checkkern_peak_fn *fn)
{
    double best = 0.0;
    int n = PEAK_ITEMS * (pool_size(pool) < 64 ? pool_size(pool) : 64);
    struct peak p = {.fn = fn};
    for (int i = 0; i < PEAK_TRIES; i++) {
        double done = 0.0;
        pool_recall(pool);
        uint64_t start = clock_ns();
        pool_run(pool, n, run_peak, &p);
        uint64_t ns = clock_ns() - start;
        for (int j = 0; j < n; j++)
            done += p.done[j];
        best = done / (double)ns > best ? done / (double)ns : best;
    }
    return best;
}

void checkkern_measure(const struct checkkern_env *env, struct checkkern_roof *roof)
{
    *roof = (struct checkkern_roof){.n_thread = pool_size(env->pool)};
    roof->read_gbs = checkkern_read_bandwidth(env->pool);
    if (env->level < CPU_AVX2) {
        roof->f32_gflops = peak_gflops(env->pool, checkkern_peak_f32_scalar);
    } else if (env->level < CPU_AVX512) {
        roof->f32_gflops = peak_gflops(env->pool, checkkern_peak_f32_avx2);
        roof->bf16_gflops = peak_gflops(env->pool, checkkern_peak_i16_avx2);
        roof->i8_gops = peak_gflops(env->pool, checkkern_peak_i8_avx2);
    } else {
        roof->f32_gflops = peak_gflops(env->pool, checkkern_peak_f32_avx512);
        roof->bf16_gflops = peak_gflops(env->pool, checkkern_peak_bf16_avx512);
        roof->i8_gops = peak_gflops(env->pool, checkkern_peak_i8_avx512);
    }
    if (env->level >= CPU_AMX)
        roof->tile_gflops = peak_gflops(env->pool, checkkern_peak_bf16_amx);
}
