/* Rows that announce themselves, between two ranks.
 *
 * A flag behind a block costs a wait of the sender until its stores past the cache have reached memory, and
 * then the flag's own way to the other core: a third of the time of 16 KB. Here the rows themselves tell.
 * Their memory is full of MARK before they are written, so that a row without a MARK has come; the only
 * reader puts MARK back when it has used the row. The flag is raised all the same, by a store that nobody
 * waits for: it is what a reader falls back on, and what the next but one exchange counts on.
 *
 * MARK is one of the many bit patterns of a NaN, and a sender that has it sends another one. */
#include <emmintrin.h>
#include <string.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "comm/shm.h"
#include "kernels/cpu/unroll.h"

#define MARK  0xffffffffu
#define LINE  16   /* floats                                                               */
#define LOOKS 1000 /* for a row; then the flag                                                  */

/* GCC splits it where registers are narrower. */
typedef int lanes __attribute__((vector_size(32), aligned(4), may_alias));
#define LANES 8

static float *rows_of(const struct shm *s, int channel, int rank)
{
    size_t i = ((size_t)channel * 2 + (size_t)rank) * 2 + s->epoch[channel] % 2;
    return s->rows + i * (SHM_ROWS_BYTES / sizeof(float));
}

/* ---- writing ------------------------------------------------------------------------------------- */

static inline __attribute__((always_inline)) void put_marks(float *x, size_t n)
{
    const lanes mark = {-1, -1, -1, -1, -1, -1, -1, -1};
    size_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES) {
        UNROLL(4)
        for (size_t u = 0; u < 4; u++)
            *(lanes *)(void *)(x + i + u * LANES) = mark;
    }
    memset(x + i, 0xff, (n - i) * sizeof(float));
}

static __m128i without_mark(const float *x)
{
    __m128i v = _mm_loadu_si128((const __m128i *)(const void *)x);
    return _mm_add_epi32(v, _mm_cmpeq_epi32(v, _mm_set1_epi32(-1))); /* MARK - 1 for MARK */
}

static void write_rows(float *to, const float *from, size_t n)
{
    size_t i = 0;
    for (; i + LINE <= n; i += LINE) { /* a whole line, so that it leaves in one piece */
        __m128i *line = (__m128i *)(void *)(to + i);
        __m128i a = without_mark(from + i), b = without_mark(from + i + 4), c = without_mark(from + i + 8),
                d = without_mark(from + i + 12);
        _mm_stream_si128(line, a);
        _mm_stream_si128(line + 1, b);
        _mm_stream_si128(line + 2, c);
        _mm_stream_si128(line + 3, d);
    }
    for (; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, from + i, sizeof(bits));
        bits -= bits == MARK;
        memcpy(to + i, &bits, sizeof(bits));
    }
}

static void rows_start(struct comm *c, int channel, const float *x, size_t n)
{
    struct shm *s = c->own;
    ASSERT(s->rows && n > 0 && n <= SHM_ROWS_BYTES / sizeof(float));
    if (shm_failed(s))
        return;
    _mm_sfence(); /* marks that were put back are seen before the rows of this exchange */
    struct shm_flag *flag = &s->header->flag[channel][s->rank];
    unsigned epoch = ++s->epoch[channel];
    write_rows(rows_of(s, channel, s->rank), x, n);
    shm_raise(flag, epoch);
}

/* ---- reading ------------------------------------------------------------------------------------- */

/* Whether any of n is MARK. */
static inline __attribute__((always_inline)) bool any_mark(const float *x, size_t n)
{
    const lanes mark = {-1, -1, -1, -1, -1, -1, -1, -1};
    lanes found[4] = {{0}};
    __m128i half[2];
    size_t i = 0;
    bool left = false;
    for (; i + 4 * LANES <= n; i += 4 * LANES) {
        UNROLL(4)
        for (size_t u = 0; u < 4; u++)
            found[u] |= *(const lanes *)(const void *)(x + i + u * LANES) == mark;
    }
    for (; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof(bits));
        left |= bits == MARK;
    }
    found[0] = (found[0] | found[1]) | (found[2] | found[3]);
    memcpy(half, &found[0], sizeof(half));
    return left || _mm_movemask_epi8(_mm_or_si128(half[0], half[1]));
}

/* Both for registers of 32 bytes, where there are any, and for those of 16. */
__attribute__((target("avx2"))) static bool any_mark_avx2(const float *x, size_t n)
{
    return any_mark(x, n);
}

__attribute__((target("avx2"))) static void put_marks_avx2(float *x, size_t n)
{
    put_marks(x, n);
}

static bool any_mark_plain(const float *x, size_t n)
{
    return any_mark(x, n);
}

static void put_marks_plain(float *x, size_t n)
{
    put_marks(x, n);
}

static bool rows_come(struct comm *c, int channel, size_t at, size_t n)
{
    struct shm *s = c->own;
    if (shm_failed(s))
        return false; /* nothing was started, so that no epoch would tell */
    bool (*missing)(const float *, size_t) = s->avx2 ? any_mark_avx2 : any_mark_plain;
    const float *x = rows_of(s, channel, 1 - s->rank) + at;
    bool there = false;
    for (int look = 0; look < LOOKS && !there; look++) {
        if (look)
            _mm_pause();
        atomic_signal_fence(memory_order_seq_cst); /* another process writes what is read next */
        there = !missing(x, n);
    }
    atomic_thread_fence(memory_order_acquire);
    return there || shm_wait_for(s, channel, 1 - s->rank, false);
}

static void rows_used(struct comm *c, int channel, size_t at, size_t n)
{
    const struct shm *s = c->own;
    (s->avx2 ? put_marks_avx2 : put_marks_plain)(rows_of(s, channel, 1 - s->rank) + at, n);
}

static const float *rows_data(const struct comm *c, int channel)
{
    const struct shm *s = c->own;
    return rows_of(s, channel, 1 - s->rank);
}

const struct comm_backend_rows shm_rows = {SHM_ROWS_BYTES, rows_start, rows_data, rows_come, rows_used};

void shm_rows_open(struct shm *s)
{
    s->avx2 = cpu_level() >= CPU_AVX2;
    if (s->rows)
        put_marks_plain(s->rows, SHM_ROWS_SLOTS * (SHM_ROWS_BYTES / sizeof(float)));
}
