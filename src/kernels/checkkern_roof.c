/* The roofline of this machine, measured with the same threads and in the same run as the kernels. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "kernels/checkkern.h"
#include "kernels/checkkern_peak.h"

#define STREAM_BYTES ((size_t)256 << 20)
#define PIECE_BYTES  ((size_t)128 << 10)
#define SLICES       16 /* timed one by one: the best of many goes undisturbed */
#define TRIES        7
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

double checkkern_read_bandwidth(struct pool *pool)
{
    int n_piece = (int)(STREAM_BYTES / PIECE_BYTES);
    void *data = mmap(NULL, STREAM_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED)
        return 0.0;
    madvise(data, STREAM_BYTES, MADV_HUGEPAGE); /* best effort, as for weights */
    memset(data, 1, STREAM_BYTES);
    struct stream s = {.fn = cpu_detect() >= CPU_AVX2 ? checkkern_read_avx2 : checkkern_read_scalar,
                       .data = data,
                       .sink = calloc((size_t)n_piece, sizeof(uint64_t))};
    double best = 0.0;
    for (int i = 0; s.sink && i < TRIES * SLICES; i++) {
        s.first = i % SLICES * (n_piece / SLICES);
        uint64_t start = clock_ns();
        pool_run(pool, n_piece / SLICES, read_piece, &s);
        double rate = (double)(STREAM_BYTES / SLICES) / (double)(clock_ns() - start);
        best = rate > best ? rate : best;
    }
    free(s.sink);
    munmap(data, STREAM_BYTES);
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

struct peak {
    checkkern_peak_fn *fn;
    long rounds;
    double done[64]; /* by item */
    float sink[64];
};

static void run_peak(void *arg, int item, int worker)
{
    (void)worker;
    struct peak *p = arg;
    float sink = 1e-9f;
    p->done[item] = p->fn(p->rounds, &sink);
    p->sink[item] = sink;
}

static double peak_gflops(struct pool *pool, checkkern_peak_fn *fn)
{
    double best = 0.0;
    int n = pool_size(pool) < 64 ? pool_size(pool) : 64;
    struct peak p = {.fn = fn, .rounds = 80000};
    for (int i = 0; i < PEAK_TRIES; i++) {
        double done = 0.0;
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
