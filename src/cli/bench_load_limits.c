#include "cli/bench_load_limits.h"

#include <emmintrin.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/pool.h"
#include "base/reader.h"

#define COPY_FROM  ((size_t)512 << 20) /* more than caches hold */
#define COPY_MAX   ((size_t)4 << 30)
#define COPY_PIECE ((size_t)512 << 10)
#define HUGE_PAGE  ((size_t)2 << 20)
#define DISK_BYTES (UINT64_C(2) << 30) /* read to find the disk's speed */
#define DISK_PIECE ((size_t)4 << 20)
#define DISK_DEPTH 8

/* ---- memory ---------------------------------------------------------------------------------------- */

struct fresh {
    uint8_t *at, *map;
    size_t mapped;
};

/* As the weights' memory is taken: in 2 MB pages where the system has them. */
static bool take(struct fresh *f, size_t bytes)
{
    f->mapped = bytes + HUGE_PAGE;
    f->map =
        mmap(NULL, f->mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (f->map == MAP_FAILED)
        return false;
    f->at = f->map + (HUGE_PAGE - (uintptr_t)f->map % HUGE_PAGE) % HUGE_PAGE;
    madvise(f->at, bytes, MADV_HUGEPAGE);
    return true;
}

static void give_back(struct fresh *f)
{
    munmap(f->map, f->mapped);
}

static size_t bytes_to_copy(const struct ckpt *c)
{
    size_t bytes = c->tensor_bytes < COPY_MAX ? (size_t)c->tensor_bytes : COPY_MAX;
    return bytes < COPY_PIECE ? COPY_PIECE : bytes / COPY_PIECE * COPY_PIECE;
}

static void keep_best(double *best, size_t bytes, uint64_t begin)
{
    double gbs = (double)bytes / (double)(clock_ns() - begin);
    *best = gbs > *best ? gbs : *best;
}

/* ---- from memory ----------------------------------------------------------------------------------- */

struct copy {
    uint8_t *to;
    const uint8_t *from;
    size_t from_bytes; /* again and again */
};

static void copy_piece(void *arg, int item, int worker)
{
    (void)worker;
    const struct copy *c = arg;
    size_t at = (size_t)item * COPY_PIECE;
    memcpy(c->to + at, c->from + at % c->from_bytes, COPY_PIECE);
}

/* To fresh memory, then to the same once more. */
static bool copy_twice(struct pool *pool, size_t bytes, struct bench_load_limits *l)
{
    struct fresh from, to;
    size_t from_bytes = bytes < COPY_FROM ? bytes : COPY_FROM;
    if (!take(&from, from_bytes))
        return false;
    if (!take(&to, bytes)) {
        give_back(&from);
        return false;
    }
    memset(from.at, 1, from_bytes);
    struct copy c = {to.at, from.at, from_bytes};
    pool_recall(pool);
    uint64_t begin = clock_ns();
    pool_run(pool, (int)(bytes / COPY_PIECE), copy_piece, &c);
    keep_best(&l->fresh_gbs, bytes, begin);
    pool_recall(pool);
    begin = clock_ns();
    pool_run(pool, (int)(bytes / COPY_PIECE), copy_piece, &c);
    keep_best(&l->copy_gbs, bytes, begin);
    give_back(&from);
    give_back(&to);
    return true;
}

/* ---- from the page cache --------------------------------------------------------------------------- */

struct span {
    int file;
    uint64_t offset;
};

struct cached_copy {
    const struct ckpt *c;
    const struct span *span; /* pieces of COPY_PIECE bytes */
    uint8_t *to, *buffer;    /* buffer: (workers, COPY_PIECE) */
    atomic_flag failed;      /* somebody has: err is theirs */
    enum nyb_code code;
    struct nyb_err err;
};

/* Past the caches, as packed weights go. */
static void stream_out(uint8_t *to, const uint8_t *from)
{
    for (size_t i = 0; i < COPY_PIECE; i += sizeof(__m128i))
        _mm_stream_si128((__m128i *)(void *)(to + i),
                         _mm_load_si128((const __m128i *)(const void *)(from + i)));
    _mm_sfence();
}

static void copy_cached_piece(void *arg, int item, int worker)
{
    struct cached_copy *c = arg;
    const struct ckpt_file *f = &c->c->file[c->span[item].file];
    uint8_t *buffer = c->buffer + (size_t)worker * COPY_PIECE;
    struct nyb_err err;
    enum nyb_code code = file_read_at(f->fd, f->path, c->span[item].offset, buffer, COPY_PIECE, &err);
    if (code == NYB_OK) {
        stream_out(c->to + (size_t)item * COPY_PIECE, buffer);
    } else if (!atomic_flag_test_and_set(&c->failed)) {
        c->code = code;
        c->err = err;
    }
}

/* Whole pieces of the files one after another, up to `most` of them. */
static int cut_files(const struct ckpt *c, struct span *span, int most)
{
    int n = 0;
    for (int i = 0; i < c->n_file; i++)
        for (uint64_t at = 0; n < most && at + COPY_PIECE <= c->file[i].size; at += COPY_PIECE)
            span[n++] = (struct span){i, at};
    return n;
}

static enum nyb_code copy_cached(const struct ckpt *c, struct pool *pool, size_t bytes,
                                 struct bench_load_limits *l, struct nyb_err *err)
{
    struct fresh to;
    int most = (int)(bytes / COPY_PIECE);
    struct span *span = mem_alloc((size_t)most, sizeof(*span));
    struct cached_copy job = {.c = c, .span = span, .failed = ATOMIC_FLAG_INIT, .code = NYB_OK};
    int n = cut_files(c, span, most);
    job.buffer = mem_try_aligned((size_t)pool_size(pool) * COPY_PIECE);
    bool there = job.buffer && take(&to, bytes);
    if (there) {
        job.to = to.at;
        pool_recall(pool);
        uint64_t begin = clock_ns();
        pool_run(pool, n, copy_cached_piece, &job);
        if (n > 0)
            keep_best(&l->cached_gbs, (size_t)n * COPY_PIECE, begin);
        give_back(&to);
    }
    free(job.buffer);
    free(span);
    if (!there)
        return err_set(err, NYB_E_MEMORY, "no memory to copy the files to");
    if (job.code != NYB_OK)
        *err = job.err;
    return job.code;
}

enum nyb_code bench_load_measure_copy(const struct ckpt *c, int n_thread, bool cached,
                                      struct bench_load_limits *l, struct nyb_err *err)
{
    struct pool *pool;
    size_t bytes = bytes_to_copy(c);
    TRY(pool_open(&pool, n_thread, err));
    enum nyb_code code = NYB_OK;
    if (!copy_twice(pool, bytes, l))
        code = err_set(err, NYB_E_MEMORY, "no memory to measure copying with");
    if (code == NYB_OK && cached)
        code = copy_cached(c, pool, bytes, l, err);
    pool_close(pool);
    return code;
}

/* ---- the disk -------------------------------------------------------------------------------------- */

enum nyb_code bench_load_measure_disk(const struct ckpt *c, struct bench_load_limits *l, struct nyb_err *err)
{
    const struct reader_options o = {.way = READER_URING, .cold = true};
    const struct ckpt_file *f = &c->file[0];
    for (int i = 1; i < c->n_file; i++)
        f = c->file[i].size > f->size ? &c->file[i] : f;
    uint64_t total = f->size < DISK_BYTES ? f->size : DISK_BYTES, asked = 0;
    struct reader_set *set;
    struct reader_read read[DISK_DEPTH] = {0};
    uint8_t *memory = aligned_alloc(READER_ALIGN, DISK_DEPTH * READER_ROOM(DISK_PIECE));
    if (!memory)
        return err_set(err, NYB_E_MEMORY, "no memory to read the disk into");
    enum nyb_code code = reader_set_open(&set, 1, DISK_DEPTH, &o, err);
    uint64_t begin = clock_ns();
    int begun = 0, ended = 0;
    while (code == NYB_OK && (asked < total || ended < begun)) {
        while (asked < total && begun - ended < DISK_DEPTH) {
            struct reader_read *r = &read[begun++ % DISK_DEPTH];
            size_t len = total - asked < DISK_PIECE ? (size_t)(total - asked) : DISK_PIECE;
            *r = (struct reader_read){.fd = f->fd,
                                      .path = f->path,
                                      .offset = asked,
                                      .len = len,
                                      .buffer = memory + (size_t)(r - read) * READER_ROOM(DISK_PIECE)};
            reader_start(reader_get(set, 0), r);
            asked += len;
        }
        code = reader_finish(reader_get(set, 0), &read[ended++ % DISK_DEPTH], err);
    }
    keep_best(&l->disk_gbs, (size_t)total, begin);
    struct nyb_err unused;
    for (; ended < begun; ended++)
        if (reader_finish(reader_get(set, 0), &read[ended % DISK_DEPTH], &unused) != NYB_OK)
            continue; /* it failed already */
    if (begun)
        reader_set_close(set);
    free(memory);
    return code;
}
