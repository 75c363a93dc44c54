/* How fast a model opens, from the page cache and from the disk, beside what memory and disk allow. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/reader.h"
#include "checkpoint/checkpoint.h"
#include "cli/bench.h"
#include "cli/cli.h"
#include "cli/common.h"

#define COPY_FROM  ((size_t)64 << 20) /* more than caches hold */
#define COPY_MAX   ((size_t)4 << 30)
#define COPY_PIECE ((size_t)512 << 10)
#define DISK_BYTES (UINT64_C(2) << 30) /* read to find the disk's speed */
#define DISK_PIECE ((size_t)4 << 20)
#define DISK_DEPTH 8

static const char help[] =
    "nybble bench load: how fast a model opens\n\n"
    "usage: nybble bench load [OPTIONS] [MODEL]\n\n"
    "Opens the model several times, the best counts, and closes it again. Beside it stands what the same\n"
    "threads copy from memory to memory, once to memory that was just taken from the system as the weights'\n"
    "is, and what the disk delivers without doing anything else.\n\n"
    "  --cold           from the disk: the files are dropped from the page cache before each run\n"
    "  --warm           from the page cache: the files are read once before (default: both)\n"
    "  --repeat N       runs of each (default: 3)\n"
    "  --json           one JSON object on standard output\n" COMMON_HELP "\nexamples:\n"
    "  nybble bench load ~/models/Qwen3-30B-A3B-FP4\n"
    "  bench/make_checkpoint.py shapes/qwen3-30b-a3b-8l /tmp/model && nybble bench load --json /tmp/model\n";

struct load_bench {
    struct common_options common;
    bool cold, warm, json;
    int64_t repeat;
    char *folder;
    struct ckpt *ckpt; /* for its list of files */
    json_t *results;
};

struct limits {
    double copy_gbs, fresh_gbs, disk_gbs; /* disk: 0 where it was not measured */
};

struct outcome {
    double seconds; /* the best run's */
    int n_thread;
    uint64_t peak_bytes; /* of the process, above what it had before */
    double *run;         /* (repeat) */
};

/* ---- limits -------------------------------------------------------------------------------------- */

struct copy {
    uint8_t *to;
    const uint8_t *from; /* COPY_FROM bytes, again and again */
};

static void copy_piece(void *arg, int item, int worker)
{
    (void)worker;
    const struct copy *c = arg;
    size_t at = (size_t)item * COPY_PIECE;
    memcpy(c->to + at, c->from + at % COPY_FROM, COPY_PIECE);
}

static uint8_t *take(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    madvise(p, bytes, MADV_HUGEPAGE);
    return p;
}

static double copy_once(struct pool *pool, struct copy *c, size_t bytes)
{
    uint64_t begin = clock_ns();
    pool_run(pool, (int)(bytes / COPY_PIECE), copy_piece, c);
    return (double)bytes / (double)(clock_ns() - begin);
}

/* Bytes copied a second: the memory moves twice as many. First to memory as the weights get it from the
 * system, as much as they take: clearing that costs as much as copying, and more in a virtual machine whose
 * host has to find it first. Then to the same memory once more. */
static enum nyb_code measure_copy(const struct load_bench *b, int n_thread, struct limits *l,
                                  struct nyb_err *err)
{
    struct pool *pool;
    size_t bytes = b->ckpt->tensor_bytes < COPY_MAX ? (size_t)b->ckpt->tensor_bytes : COPY_MAX;
    bytes = bytes < COPY_PIECE ? COPY_PIECE : bytes / COPY_PIECE * COPY_PIECE;
    TRY(pool_open(&pool, n_thread, err));
    uint8_t *from = take(COPY_FROM), *to = take(bytes);
    if (from && to) {
        memset(from, 1, COPY_FROM);
        struct copy c = {.to = to, .from = from};
        double fresh = copy_once(pool, &c, bytes), again = copy_once(pool, &c, bytes);
        l->fresh_gbs = fresh > l->fresh_gbs ? fresh : l->fresh_gbs;
        l->copy_gbs = again > l->copy_gbs ? again : l->copy_gbs;
    }
    if (from)
        munmap(from, COPY_FROM);
    if (to)
        munmap(to, bytes);
    pool_close(pool);
    return from && to ? NYB_OK : err_set(err, NYB_E_MEMORY, "no memory to measure copying with");
}

/* The longest file from its beginning, several large reads under way and nobody looking at them. */
static enum nyb_code measure_disk(const struct load_bench *b, struct limits *l, struct nyb_err *err)
{
    const struct reader_options o = {.way = READER_URING, .cold = true};
    const struct ckpt_file *f = &b->ckpt->file[0];
    for (int i = 1; i < b->ckpt->n_file; i++)
        f = b->ckpt->file[i].size > f->size ? &b->ckpt->file[i] : f;
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
    l->disk_gbs = (double)total / (double)(clock_ns() - begin);
    struct nyb_err unused;
    for (; ended < begun; ended++)
        if (reader_finish(reader_get(set, 0), &read[ended % DISK_DEPTH], &unused) != NYB_OK)
            continue; /* it failed already */
    if (begun)
        reader_set_close(set);
    free(memory);
    return code;
}

/* ---- the page cache ------------------------------------------------------------------------------ */

/* Pages that are being written stay: sync first. */
static void drop_files(const struct load_bench *b)
{
    for (int i = 0; i < b->ckpt->n_file; i++) {
        fdatasync(b->ckpt->file[i].fd);
        posix_fadvise(b->ckpt->file[i].fd, 0, 0, POSIX_FADV_DONTNEED);
    }
}

static enum nyb_code warm_files(const struct load_bench *b, struct nyb_err *err)
{
    uint8_t *piece = mem_alloc(DISK_PIECE, 1);
    enum nyb_code code = NYB_OK;
    for (int i = 0; code == NYB_OK && i < b->ckpt->n_file; i++) {
        const struct ckpt_file *f = &b->ckpt->file[i];
        ssize_t n = 1;
        for (uint64_t at = 0; code == NYB_OK && n > 0; at += (uint64_t)n) {
            n = pread(f->fd, piece, DISK_PIECE, (off_t)at);
            if (n < 0)
                code = err_at(err, NYB_E_IO, f->path, (int64_t)at, "cannot read");
        }
    }
    free(piece);
    return code;
}

/* ---- runs ---------------------------------------------------------------------------------------- */

/* "VmHWM" (the peak) or "VmRSS" of this process; 0: unknown. */
static uint64_t memory_of_process(const char *key)
{
    char line[256];
    unsigned long long kb = 0;
    FILE *f = fopen("/proc/self/status", "re");
    while (f && fgets(line, sizeof(line), f))
        if (!strncmp(line, key, strlen(key)) && sscanf(line + strlen(key), ": %llu", &kb) == 1)
            break;
    if (f)
        fclose(f);
    return kb * 1024;
}

static void reset_peak(void)
{
    FILE *f = fopen("/proc/self/clear_refs", "we");
    if (f) {
        fputs("5", f);
        fclose(f);
    }
}

static enum nyb_code open_once(struct load_bench *b, struct outcome *o, double *seconds, struct limits *l,
                               struct nyb_err *err)
{
    struct model *m;
    reset_peak();
    uint64_t before = memory_of_process("VmRSS"), begin = clock_ns();
    TRY(common_open_model(&m, &b->common, b->folder, err));
    *seconds = (double)(clock_ns() - begin) * 1e-9;
    uint64_t peak = memory_of_process("VmHWM");
    o->peak_bytes = peak > before ? peak - before : 0;
    o->n_thread = pool_size(model_pool(m));
    model_close(m);
    return measure_copy(b, o->n_thread, l, err);
}

static void add_json(struct load_bench *b, bool cold, const struct outcome *o, const struct limits *l)
{
    double bytes = (double)b->ckpt->tensor_bytes;
    json_t *runs = json_array();
    for (int i = 0; i < b->repeat; i++)
        json_array_append_new(runs, json_real(o->run[i]));
    json_t *r = json_pack("{s:s, s:i, s:f, s:f, s:f, s:f, s:f, s:f}", "from", cold ? "disk" : "page cache",
                          "threads", o->n_thread, "tensor_bytes", bytes, "seconds", o->seconds, "gbs",
                          bytes / o->seconds * 1e-9, "copy_gbs", l->copy_gbs, "copy_fresh_gbs", l->fresh_gbs,
                          "peak_bytes", (double)o->peak_bytes);
    if (cold)
        json_object_set_new(r, "disk_gbs", json_real(l->disk_gbs));
    json_object_set_new(r, "run_seconds", runs);
    json_array_append_new(b->results, r);
}

static void print_outcome(const struct load_bench *b, bool cold, const struct outcome *o,
                          const struct limits *l)
{
    double gbs = (double)b->ckpt->tensor_bytes / o->seconds * 1e-9;
    printf("%-10s  %d threads  %6.2f s  %6.2f GB/s  %3.0f%% of copying (%.1f GB/s), %3.0f%% to fresh memory "
           "(%.1f)",
           cold ? "disk" : "page cache", o->n_thread, o->seconds, gbs, 100 * gbs / l->copy_gbs, l->copy_gbs,
           100 * gbs / l->fresh_gbs, l->fresh_gbs);
    if (cold)
        printf(", %3.0f%% of the disk (%.2f)", 100 * gbs / l->disk_gbs, l->disk_gbs);
    printf("; peak %.2f GB\n", (double)o->peak_bytes * 1e-9);
}

static enum nyb_code run_kind(struct load_bench *b, bool cold, struct nyb_err *err)
{
    struct outcome o = {.run = mem_alloc((size_t)b->repeat, sizeof(double))};
    struct limits l = {0};
    enum nyb_code code = NYB_OK;
    for (int i = 0; code == NYB_OK && i < b->repeat; i++) {
        struct limits disk = {0};
        if (cold) {
            drop_files(b);
            code = measure_disk(b, &disk, err);
            l.disk_gbs = disk.disk_gbs > l.disk_gbs ? disk.disk_gbs : l.disk_gbs;
        } else if (i == 0) {
            code = warm_files(b, err);
        }
        if (code == NYB_OK)
            code = open_once(b, &o, &o.run[i], &l, err);
        o.seconds = i == 0 || o.run[i] < o.seconds ? o.run[i] : o.seconds;
    }
    if (code == NYB_OK && b->json)
        add_json(b, cold, &o, &l);
    else if (code == NYB_OK)
        print_outcome(b, cold, &o, &l);
    free(o.run);
    return code;
}

static void print_json(const struct load_bench *b)
{
    json_t *o = json_pack("{s:s, s:s, s:s, s:i, s:O}", "version", NYBBLE_VERSION, "cpu", cpu_model_name(),
                          "model", b->common.model, "repeat", (int)b->repeat, "results", b->results);
    char *text = o ? json_dumps(o, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) : NULL;
    if (text)
        puts(text);
    free(text);
    json_decref(o);
}

static enum nyb_code run(struct load_bench *b, struct nyb_err *err)
{
    TRY(ckpt_resolve(&b->folder, b->common.model, err));
    TRY(ckpt_open(&b->ckpt, b->folder, err));
    if (b->warm)
        TRY(run_kind(b, false, err));
    if (b->cold)
        TRY(run_kind(b, true, err));
    if (b->json)
        print_json(b);
    return NYB_OK;
}

enum { COLD = COMMON_OPTION_END, WARM, REPEAT, JSON };

static bool take_option(struct load_bench *b, int option, const char *arg)
{
    switch (option) {
    case COLD:
        b->cold = true;
        return true;
    case WARM:
        b->warm = true;
        return true;
    case JSON:
        b->json = true;
        return true;
    case REPEAT:
        return cli_parse_int("bench load", "--repeat", arg, 1, 1000, &b->repeat);
    default:
        return common_take(&b->common, "bench load", option, arg);
    }
}

int bench_load(int argc, char **argv)
{
    static const struct option options[] = {
        {"cold", no_argument, NULL, COLD},
        {"warm", no_argument, NULL, WARM},
        {"repeat", required_argument, NULL, REPEAT},
        {"json", no_argument, NULL, JSON},
        COMMON_OPTIONS,
        {0},
    };
    struct load_bench b = {.repeat = 3};
    common_init(&b.common);
    for (int c; (c = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
        if (c == 'h') {
            fputs(help, stdout);
            return 0;
        }
        if (!take_option(&b, c, optarg))
            return 2;
    }
    if (!common_take_model(&b.common, "bench load", argc, argv, optind))
        return 2;
    if (b.common.load_format == LOAD_DUMMY)
        return cli_misuse("bench load", "--load-format dummy reads nothing that could be measured");
    if (!b.cold && !b.warm)
        b.cold = b.warm = true;
    struct nyb_err err;
    b.results = json_array();
    enum nyb_code code = run(&b, &err);
    json_decref(b.results);
    ckpt_close(b.ckpt);
    free(b.folder);
    return code == NYB_OK ? 0 : cli_fail("bench load", &err);
}
