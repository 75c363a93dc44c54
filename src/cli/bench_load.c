/* How fast a model opens, from the page cache and from the disk, beside what memory and disk allow. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/json.h"
#include "base/mem.h"
#include "checkpoint/checkpoint.h"
#include "cli/bench.h"
#include "cli/bench_load_limits.h"
#include "cli/cli.h"
#include "cli/common.h"

#define WARM_PIECE ((size_t)4 << 20)

static const char help[] =
    "nybble bench load: how fast a model opens\n\n"
    "usage: nybble bench load [OPTIONS] [MODEL]\n\n"
    "Opens the model several times, the best counts, and closes it again. Beside it stands what the same\n"
    "threads can copy: the files from the page cache to memory that was just taken from the system, as the\n"
    "weights' is, through a buffer in their caches; from memory to such memory; and to memory in use. From "
    "the\n"
    "disk: what it delivers without anything else being done.\n\n"
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

struct outcome {
    double seconds; /* the best run's */
    int n_thread;
    uint64_t peak_bytes; /* of the process, above what it had before */
    double *run;         /* (repeat) */
};

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
    uint8_t *piece = mem_alloc(WARM_PIECE, 1);
    enum nyb_code code = NYB_OK;
    for (int i = 0; code == NYB_OK && i < b->ckpt->n_file; i++) {
        const struct ckpt_file *f = &b->ckpt->file[i];
        ssize_t n = 1;
        for (uint64_t at = 0; code == NYB_OK && n > 0; at += (uint64_t)n) {
            n = pread(f->fd, piece, WARM_PIECE, (off_t)at);
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

static enum nyb_code open_once(struct load_bench *b, bool cached, struct outcome *o, double *seconds,
                               struct bench_load_limits *l, struct nyb_err *err)
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
    return bench_load_measure_copy(b->ckpt, o->n_thread, cached, l, err);
}

static void add_json(struct load_bench *b, bool cold, const struct outcome *o,
                     const struct bench_load_limits *l)
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
    else if (l->cached_gbs > 0) /* else all files are shorter than a piece */
        json_object_set_new(r, "copy_cached_gbs", json_real(l->cached_gbs));
    json_object_set_new(r, "run_seconds", runs);
    json_array_append_new(b->results, r);
}

static void print_outcome(const struct load_bench *b, bool cold, const struct outcome *o,
                          const struct bench_load_limits *l)
{
    double gbs = (double)b->ckpt->tensor_bytes / o->seconds * 1e-9;
    printf("%-10s  %d threads  %6.2f s  %6.2f GB/s  ", cold ? "disk" : "page cache", o->n_thread, o->seconds,
           gbs);
    if (cold)
        printf("%3.0f%% of the disk (%.2f GB/s), ", 100 * gbs / l->disk_gbs, l->disk_gbs);
    else if (l->cached_gbs > 0)
        printf("%3.0f%% of copying from there to fresh memory (%.1f GB/s), ", 100 * gbs / l->cached_gbs,
               l->cached_gbs);
    printf("%.0f%% of copying memory to fresh memory (%.1f), %.0f%% to memory in use (%.1f)",
           100 * gbs / l->fresh_gbs, l->fresh_gbs, 100 * gbs / l->copy_gbs, l->copy_gbs);
    printf("; peak %.2f GB\n", (double)o->peak_bytes * 1e-9);
}

static enum nyb_code run_kind(struct load_bench *b, bool cold, struct nyb_err *err)
{
    struct outcome o = {.run = mem_alloc((size_t)b->repeat, sizeof(double))};
    struct bench_load_limits l = {0};
    enum nyb_code code = NYB_OK;
    for (int i = 0; code == NYB_OK && i < b->repeat; i++) {
        if (cold) {
            drop_files(b);
            code = bench_load_measure_disk(b->ckpt, &l, err);
        } else if (i == 0) {
            code = warm_files(b, err);
        }
        if (code == NYB_OK)
            code = open_once(b, !cold, &o, &o.run[i], &l, err);
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
    TRY(ckpt_open(&b->ckpt, b->folder, CKPT_THREADS, err));
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
