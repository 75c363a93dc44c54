#include "model/threads.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/cpu.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/quota.h"
#include "base/topology.h"
#include "kernels/checkkern_peak.h"

#define CACHE_MAX   (64u << 10) /* bytes of the file: some hundred machines */
#define STEPS       8           /* numbers of threads that are tried        */
#define TRIES       4           /* the best of them counts                  */
#define READ_BYTES  ((size_t)16 << 20)
#define PIECE_BYTES ((size_t)64 << 10)
#define ROUNDS      2000 /* of the arithmetic, an item: some 10 us */
#define CLEARLY     1.1  /* fewer threads must be faster by this   */
#define LARGE_BYTES ((size_t)256 << 20)

/* ---- measuring ----------------------------------------------------------------------------------- */

struct trial {
    checkkern_read_fn *read;
    checkkern_peak_fn *compute;
    const uint64_t *data;
    uint64_t *sink; /* (items) so that nothing can be left out */
};

static void read_item(void *arg, int item, int worker)
{
    (void)worker;
    struct trial *t = arg;
    const size_t n = PIECE_BYTES / sizeof(*t->data);
    t->sink[item] = t->read(t->data + (size_t)item * n, n);
}

static void compute_item(void *arg, int item, int worker)
{
    (void)worker;
    struct trial *t = arg;
    float sink = 1e-9f;
    t->compute(ROUNDS, &sink);
    t->sink[item] = sink != 0;
}

/* Runs a second. */
static double best_rate(struct pool *pool, int n_item, pool_fn *fn, struct trial *t)
{
    double best = 0;
    for (int i = 0; i < TRIES; i++) {
        uint64_t begin = clock_ns();
        pool_run(pool, n_item, fn, t);
        double rate = 1e9 / (double)(clock_ns() - begin + 1);
        best = rate > best ? rate : best;
    }
    return best;
}

static checkkern_peak_fn *compute_loop(void)
{
    enum cpu_level level = cpu_level();
    return level >= CPU_AVX512 ? checkkern_peak_f32_avx512
           : level >= CPU_AVX2 ? checkkern_peak_f32_avx2
                               : checkkern_peak_f32_scalar;
}

/* At most STEPS numbers up to all, evenly spread. */
static int measure(struct pool *pool, const uint8_t *data, size_t bytes, struct threads_speed *s)
{
    int all = pool_size(pool), n = 0;
    size_t piece = (bytes < READ_BYTES ? bytes : READ_BYTES) / PIECE_BYTES;
    int n_compute = 4 * all, n_read = (int)piece;
    struct trial t = {.read = cpu_detect() >= CPU_AVX2 ? checkkern_read_avx2 : checkkern_read_scalar,
                      .compute = compute_loop(),
                      .data = (const uint64_t *)(const void *)data,
                      .sink = mem_alloc((size_t)(n_read > n_compute ? n_read : n_compute), sizeof(*t.sink))};
    for (int i = 1; i <= STEPS; i++) {
        int threads = all * i / STEPS;
        if (threads < 1 || (n > 0 && s[n - 1].n_thread == threads))
            continue;
        pool_use(pool, threads);
        s[n++] = (struct threads_speed){.n_thread = threads,
                                        .read = n_read ? best_rate(pool, n_read, read_item, &t) : 1,
                                        .compute = best_rate(pool, n_compute, compute_item, &t)};
    }
    pool_use(pool, all);
    free(t.sink);
    return n;
}

int threads_best(const struct threads_speed *s, int n)
{
    const struct threads_speed *all = &s[n - 1];
    double best = CLEARLY;
    int threads = all->n_thread;
    for (int i = 0; i < n - 1; i++) {
        double gain = (s[i].read / all->read + s[i].compute / all->compute) / 2;
        if (gain > best) {
            best = gain;
            threads = s[i].n_thread;
        }
    }
    return threads;
}

/* ---- remembering --------------------------------------------------------------------------------- */

static char *cache_path(void)
{
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (xdg && xdg[0] == '/')
        return mem_printf("%s/nybble/threads", xdg);
    return home && home[0] == '/' ? mem_printf("%s/.cache/nybble/threads", home) : NULL;
}

/* All that the answer depends on, in one line. */
static char *cache_key(const struct pool *pool, size_t bytes)
{
    const struct topology *t = pool_topology(pool);
    struct buf b = {0};
    buf_printf(&b, "%s|%s|%d cores of %d nodes", cpu_model_name(), cpu_level_name(cpu_level()), t->n_core,
               t->n_node);
    for (int cpu = 0; cpu < t->n_cpu; cpu++) { /* 0-7,16 */
        bool here = t->core_of_cpu[cpu] >= 0, before = cpu > 0 && t->core_of_cpu[cpu - 1] >= 0;
        bool after = cpu + 1 < t->n_cpu && t->core_of_cpu[cpu + 1] >= 0;
        if (here && !(before && after))
            buf_printf(&b, "%s%d", before ? "-" : ",", cpu);
    }
    buf_printf(&b, "|quota %d|%s", quota_cores(), bytes < LARGE_BYTES ? "small" : "large");
    char *key = mem_strdup(b.data);
    buf_free(&b);
    return key;
}

/* Lines of "number key". */
static const char *find_line(const char *text, const char *key, int *n_thread)
{
    size_t n = strlen(key);
    for (const char *line = text; *line;) {
        char *end;
        long value = strtol(line, &end, 10);
        if (*end == ' ' && !strncmp(end + 1, key, n) && (end[1 + n] == '\n' || end[1 + n] == 0)) {
            *n_thread = value >= 1 && value <= 4096 ? (int)value : 0;
            return line;
        }
        line += strcspn(line, "\n");
        line += *line == '\n';
    }
    return NULL;
}

int threads_recall(const char *path, const char *key)
{
    char *text;
    size_t len;
    struct nyb_err unused;
    int n_thread = 0;
    if (file_read_all(path, CACHE_MAX, &text, &len, &unused) != NYB_OK)
        return 0;
    find_line(text, key, &n_thread);
    free(text);
    return n_thread;
}

static void make_parents(const char *path)
{
    char *copy = mem_strdup(path);
    for (char *at = copy + 1; (at = strchr(at, '/')); at++) {
        *at = 0;
        mkdir(copy, 0700); /* mostly there already; a failure shows when the file is opened */
        *at = '/';
    }
    free(copy);
}

/* Another file in its place, so that a reader sees the old or the new one whole. */
void threads_remember(const char *path, const char *key, int n_thread)
{
    char *old = NULL, *fresh = mem_printf("%s.%ld", path, (long)getpid());
    size_t len;
    struct nyb_err unused;
    int ignored;
    make_parents(path);
    FILE *f = fopen(fresh, "we");
    if (f) {
        if (file_read_all(path, CACHE_MAX, &old, &len, &unused) != NYB_OK || len + 4096 > CACHE_MAX)
            len = 0;
        const char *line = len ? find_line(old, key, &ignored) : NULL;
        size_t before = line ? (size_t)(line - old) : len, after = line ? before + strcspn(line, "\n") : len;
        after += after < len;
        bool fine = fwrite(old ? old : "", 1, before, f) == before;
        fine = fwrite(old ? old + after : "", 1, len - after, f) == len - after && fine;
        bool open_end = before + len - after > 0 && old[after < len ? len - 1 : before - 1] != '\n';
        fine = fprintf(f, "%s%d %s\n", open_end ? "\n" : "", n_thread, key) > 0 && fine;
        fine = fclose(f) == 0 && fine;
        if (!fine || rename(fresh, path))
            unlink(fresh);
    }
    free(old);
    free(fresh);
}

/* ---- choosing ------------------------------------------------------------------------------------ */

/* Fewer than all are believed only when found twice, with no other process in the way. */
static int measure_twice(struct pool *pool, const uint8_t *data, size_t bytes, bool *quiet)
{
    struct threads_speed s[STEPS];
    struct pool_stats before, after;
    int all = pool_size(pool), best = all;
    pool_stats(pool, &before);
    for (int i = 0; i < 2; i++) {
        int found = threads_best(s, measure(pool, data, bytes, s));
        best = i == 0 || found > best ? found : best;
        if (best == all)
            break;
    }
    pool_stats(pool, &after);
    *quiet = after.sent_out == before.sent_out;
    return *quiet ? best : all;
}

int threads_choose(struct pool *pool, const uint8_t *data, size_t bytes)
{
    int all = pool_size(pool);
    if (all == 1)
        return 1;
    char *path = cache_path(), *key = cache_key(pool, bytes);
    int n_thread = path ? threads_recall(path, key) : 0;
    if (n_thread >= 1 && n_thread <= all) {
        log_info("%d threads on %d cores, as measured before", n_thread, all);
    } else {
        bool quiet;
        uint64_t begin = clock_ns();
        n_thread = measure_twice(pool, data, bytes, &quiet);
        log_info("%d threads on %d cores, %s %.1f ms", n_thread, all,
                 quiet ? "as measured in" : "since others were busy while it was measured for",
                 (double)(clock_ns() - begin) * 1e-6);
        if (quiet && path)
            threads_remember(path, key, n_thread);
    }
    free(path);
    free(key);
    return n_thread;
}
