#include "kernels/checkkern_peak.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "base/clock.h"

/* ---- arithmetic ---------------------------------------------------------------------------------- */

/* Several items a thread, so that one that is late, or shares its core for a moment, costs its share and not
 * half of everything. */
#define PEAK_ITEMS   8
#define PEAK_THREADS 64    /* of more, each has fewer items */
#define PEAK_ROUNDS  10000 /* of an item */

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

checkkern_peak_fn *checkkern_peak_of(enum cpu_level level, enum checkkern_unit unit)
{
    static checkkern_peak_fn *const scalar[CHECKKERN_TILE + 1] = {
        [CHECKKERN_F32] = checkkern_peak_f32_scalar,
    };
    static checkkern_peak_fn *const avx2[CHECKKERN_TILE + 1] = {
        [CHECKKERN_F32] = checkkern_peak_f32_avx2,
        [CHECKKERN_BF16] = checkkern_peak_i16_avx2,
        [CHECKKERN_I8] = checkkern_peak_i8_avx2,
    };
    static checkkern_peak_fn *const avx512[CHECKKERN_TILE + 1] = {
        [CHECKKERN_F32] = checkkern_peak_f32_avx512,
        [CHECKKERN_BF16] = checkkern_peak_bf16_avx512,
        [CHECKKERN_I8] = checkkern_peak_i8_avx512,
        [CHECKKERN_TILE] = checkkern_peak_bf16_amx,
    };
    if (unit == CHECKKERN_TILE && level < CPU_AMX)
        return NULL;
    return (level < CPU_AVX2 ? scalar : level < CPU_AVX512 ? avx2 : avx512)[unit];
}

struct peak {
    checkkern_peak_fn *fn;
    double done[PEAK_ITEMS * PEAK_THREADS]; /* by item */
    float sink[PEAK_ITEMS * PEAK_THREADS];
};

static void run_peak(void *arg, int item, int worker)
{
    (void)worker;
    struct peak *p = arg;
    float sink = 1e-9f;
    p->done[item] = p->fn(PEAK_ROUNDS, &sink);
    p->sink[item] = sink;
}

double checkkern_peak_round(struct pool *pool, checkkern_peak_fn *fn, uint64_t *ns)
{
    int n = PEAK_ITEMS * (pool_size(pool) < PEAK_THREADS ? pool_size(pool) : PEAK_THREADS);
    struct peak p = {.fn = fn};
    double done = 0.0;
    pool_recall(pool);
    uint64_t start = clock_ns();
    pool_run(pool, n, run_peak, &p);
    *ns = clock_ns() - start;
    for (int i = 0; i < n; i++)
        done += p.done[i];
    return done;
}

/* ---- reading ------------------------------------------------------------------------------------- */

/* So many pieces of a stream each thread should find, eight of them in a sixteenth; and pieces so long that
 * where one thread ends and goes on elsewhere costs little. */
#define PIECES_A_THREAD 128
#define PIECE_BYTES     ((size_t)128 << 10)
#define PIECE_MOST      ((size_t)1 << 20)
#define PIECE_LEAST     ((size_t)256) /* what checkkern_read_fn takes at least */

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

static size_t piece_bytes(size_t bytes, int n_thread)
{
    size_t piece = bytes / (PIECES_A_THREAD * (size_t)n_thread) / PIECE_BYTES * PIECE_BYTES;
    if (bytes < PIECE_BYTES)
        return bytes / PIECE_LEAST * PIECE_LEAST;
    return piece < PIECE_BYTES ? PIECE_BYTES : piece < PIECE_MOST ? piece : PIECE_MOST;
}

bool checkkern_stream_open(struct checkkern_stream *s, const void *data, size_t bytes, int n_thread)
{
    size_t piece = piece_bytes(bytes, n_thread);
    *s = (struct checkkern_stream){.read =
                                       cpu_detect() >= CPU_AVX2 ? checkkern_read_avx2 : checkkern_read_scalar,
                                   .data = data,
                                   .piece = piece};
    if (piece == 0)
        return false;
    s->n_piece = (int)(bytes / piece);
    s->sink = calloc((size_t)n_thread, sizeof(*s->sink));
    return s->sink != NULL;
}

void checkkern_stream_close(struct checkkern_stream *s)
{
    free(s->sink);
    s->sink = NULL;
    if (s->own)
        munmap(s->own, s->own_bytes);
    s->own = NULL;
}

static void read_piece(void *arg, int item, int worker)
{
    struct checkkern_stream *s = arg;
    size_t at = (size_t)((s->next + item) % s->n_piece) * s->piece;
    s->sink[worker] += s->read((const uint64_t *)(const void *)(s->data + at), s->piece / sizeof(uint64_t));
}

uint64_t checkkern_stream_read(struct pool *pool, struct checkkern_stream *s, int n)
{
    pool_recall(pool);
    uint64_t start = clock_ns();
    pool_run(pool, n, read_piece, s);
    uint64_t ns = clock_ns() - start;
    s->next = (s->next + n % s->n_piece) % s->n_piece;
    return ns;
}
