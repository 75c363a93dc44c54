/* nybble bench update: new weights into a model that goes on decoding meanwhile. How long does it take, and
 * for how long does it stand still? */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "checkpoint/checkpoint.h"
#include "cli/bench.h"
#include "cli/bench_seqs.h"
#include "cli/cli.h"
#include "cli/common.h"
#include "model/update.h"

#define CONTEXT    256           /* tokens, over and over                              */
#define QUIET_NS   1500000000ull /* of decoding before the first update                */
#define DISK_BYTES (2ull << 30)  /* most that is read to find out how fast the disk is */
#define DISK_BLOCK (4u << 20)

static const char help[] = "nybble bench update: replace weights while decoding\n\n"
                           "usage: nybble bench update [OPTIONS] [MODEL]\n\n"
                           "  --to DIR         the new weights (default: MODEL's again)\n"
                           "  --names GLOB     only the tensors that match, as in 'model.layers.3.*'\n"
                           "  --staging WHEN   auto (default), on: read beside decoding, off: read in place\n"
                           "  --stage-threads N  that read beside decoding (default 1)\n"
                           "  --repeat N       updates (default 3)\n"
                           "  --json           one JSON object on standard output\n" COMMON_HELP "\n"
                           "With --load-format dummy the new weights are random too, and no disk is read.\n";

struct bench {
    struct common_options common;
    const char *to_name, *names;
    enum update_staging staging;
    int64_t repeat, stage_threads;
    bool json;
    char *folder, *to;
    struct model *model;
    struct bench_seqs seqs;
    float *logits;
    int past;
    double disk; /* bytes a second, 0: not measured */
};

/* What a second thread does, while the first one decodes. */
struct background {
    struct bench *bench;
    int round;
    struct update *update;
    struct update_facts facts;
    enum nyb_code code;
    struct nyb_err err;
    uint64_t close_ns;
    atomic_bool done;
};

struct steps {
    int n;
    uint64_t total_ns, longest_ns;
};

/* ---- decoding ------------------------------------------------------------------------------------ */

static enum nyb_code step(struct bench *b, struct steps *s, struct nyb_err *err)
{
    uint64_t begin = clock_ns();
    const struct batch batch = bench_seqs_batch(&b->seqs, 0, 1, b->past, 1, true);
    TRY(model_forward(b->model, &batch, b->logits, NULL, err));
    uint64_t ns = clock_ns() - begin;
    b->past = (b->past + 1) % CONTEXT;
    s->n++;
    s->total_ns += ns;
    s->longest_ns = ns > s->longest_ns ? ns : s->longest_ns;
    return NYB_OK;
}

static double rate(const struct steps *s)
{
    return s->total_ns ? (double)s->n / ((double)s->total_ns * 1e-9) : 0;
}

static enum nyb_code decode_for(struct bench *b, uint64_t ns, struct steps *s, struct nyb_err *err)
{
    *s = (struct steps){0};
    for (uint64_t begin = clock_ns(); clock_ns() - begin < ns;)
        TRY(step(b, s, err));
    return NYB_OK;
}

static void *stage_main(void *arg)
{
    struct background *g = arg;
    struct bench *b = g->bench;
    const struct update_options o = {.folder = b->to,
                                     .names = &b->names,
                                     .n_names = b->names ? 1 : 0,
                                     .staging = b->staging,
                                     .load_format = b->common.load_format,
                                     .dummy_seed = (uint64_t)g->round + 2,
                                     .n_thread = (int)b->stage_threads};
    g->code = update_prepare(&g->update, b->model, &o, &g->facts, &g->err);
    if (g->code == NYB_OK)
        g->code = update_stage(g->update, &g->err);
    atomic_store(&g->done, true);
    return NULL;
}

static void *close_main(void *arg)
{
    struct background *g = arg;
    uint64_t begin = clock_ns();
    update_close(g->update);
    g->close_ns = clock_ns() - begin;
    atomic_store(&g->done, true);
    return NULL;
}

/* Decode while `fn` runs in a thread of its own. */
static enum nyb_code decode_beside(struct bench *b, struct background *g, void *(*fn)(void *),
                                   struct steps *s, struct nyb_err *err)
{
    pthread_t thread;
    enum nyb_code code = NYB_OK;
    *s = (struct steps){0};
    atomic_store(&g->done, false);
    if (pthread_create(&thread, NULL, fn, g))
        return err_set(err, NYB_E_MEMORY, "cannot start a thread");
    while (code == NYB_OK && !atomic_load(&g->done))
        code = step(b, s, err);
    pthread_join(thread, NULL);
    return code;
}

/* ---- one update ---------------------------------------------------------------------------------- */

struct result {
    struct update_facts facts;
    struct steps staging, closing;
    uint64_t close_ns;
};

static enum nyb_code update_once(struct bench *b, int round, struct result *r, struct nyb_err *err)
{
    struct background g = {.bench = b, .round = round};
    TRY(decode_beside(b, &g, stage_main, &r->staging, err));
    enum nyb_code code = g.code;
    if (code == NYB_OK)
        code = update_commit(g.update, &g.err);
    if (code != NYB_OK) {
        *err = g.err;
        update_close(g.update);
        return code;
    }
    TRY(decode_beside(b, &g, close_main, &r->closing, err));
    r->facts = g.facts;
    r->close_ns = g.close_ns;
    return NYB_OK;
}

/* ---- the disk ------------------------------------------------------------------------------------ */

/* The first bytes of a file, which the kernel is asked to forget first. */
static void read_file(int fd, uint64_t size, uint8_t *block, uint64_t *bytes)
{
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    for (uint64_t at = 0; at < size && *bytes < DISK_BYTES;) {
        ssize_t n = pread(fd, block, DISK_BLOCK, (off_t)at);
        if (n <= 0)
            return;
        at += (uint64_t)n;
        *bytes += (uint64_t)n;
    }
}

static enum nyb_code measure_disk(struct bench *b, struct nyb_err *err)
{
    struct ckpt *c;
    uint64_t bytes = 0;
    TRY(ckpt_open(&c, b->to, 0, err));
    uint8_t *block = mem_alloc(DISK_BLOCK, 1);
    uint64_t begin = clock_ns();
    for (int i = 0; i < c->n_file && bytes < DISK_BYTES; i++)
        read_file(c->file[i].fd, c->file[i].size, block, &bytes);
    b->disk = (double)bytes / ((double)(clock_ns() - begin) * 1e-9);
    free(block);
    ckpt_close(c);
    return NYB_OK;
}

/* ---- output -------------------------------------------------------------------------------------- */

static double ms(uint64_t ns)
{
    return (double)ns * 1e-6;
}

static void print_result(const struct result *r, int round)
{
    const struct update_facts *f = &r->facts;
    uint64_t reading_ns = f->staged ? f->stage_ns : f->commit_ns;
    printf("%6d %10.1f %10.1f %8.2f %11.2f %9.1f %12.1f %12.2f\n", round + 1, ms(f->prepare_ns),
           ms(f->stage_ns), (double)f->read_bytes / (double)reading_ns, ms(f->commit_ns), ms(r->close_ns),
           rate(&r->staging), ms(r->staging.longest_ns));
}

static json_t *result_json(const struct result *r)
{
    const struct update_facts *f = &r->facts;
    return json_pack("{s:f, s:f, s:f, s:f, s:b, s:I, s:I, s:I, s:f, s:f}", "prepare_ms", ms(f->prepare_ns),
                     "stage_ms", ms(f->stage_ns), "commit_ms", ms(f->commit_ns), "close_ms", ms(r->close_ns),
                     "staged", f->staged, "read_bytes", (json_int_t)f->read_bytes, "weight_bytes",
                     (json_int_t)f->weight_bytes, "staged_bytes", (json_int_t)f->staged_bytes,
                     "decode_while_staging", rate(&r->staging), "longest_step_ms", ms(r->staging.longest_ns));
}

static void print_head(const struct bench *b, const struct steps *quiet)
{
    printf("%s: %.2f GB of weights, decode %.1f tok/s, longest step %.2f ms\n", b->folder,
           (double)model_weight_bytes(b->model) * 1e-9, rate(quiet), ms(quiet->longest_ns));
    if (b->disk > 0)
        printf("the new files read from start to end: %.2f GB/s\n", b->disk * 1e-9);
    printf("%6s %10s %10s %8s %11s %9s %12s %12s\n", "update", "prepare ms", "stage ms", "GB/s", "commit ms",
           "close ms", "tok/s beside", "longest step");
}

static enum nyb_code run_updates(struct bench *b, struct nyb_err *err)
{
    struct steps quiet;
    TRY(decode_for(b, QUIET_NS, &quiet, err));
    if (!b->json)
        print_head(b, &quiet);
    json_t *list = json_array();
    enum nyb_code code = NYB_OK;
    for (int i = 0; i < b->repeat && code == NYB_OK; i++) {
        struct result r = {0};
        code = update_once(b, i, &r, err);
        if (code == NYB_OK && b->json)
            json_array_append_new(list, result_json(&r));
        else if (code == NYB_OK)
            print_result(&r, i);
    }
    if (code == NYB_OK && b->json) {
        json_t *root = json_pack("{s:s, s:s, s:f, s:f, s:f, s:O}", "model", b->folder, "to", b->to,
                                 "disk_bytes_per_s", b->disk, "decode", rate(&quiet), "longest_step_ms",
                                 ms(quiet.longest_ns), "updates", list);
        json_dumpf(root, stdout, JSON_INDENT(1));
        putchar('\n');
        json_decref(root);
    }
    json_decref(list);
    return code;
}

/* ---- the command --------------------------------------------------------------------------------- */

static enum nyb_code run(struct bench *b, struct nyb_err *err)
{
    TRY(ckpt_resolve(&b->folder, b->common.model, err));
    TRY(ckpt_resolve(&b->to, b->to_name ? b->to_name : b->folder, err));
    if (b->common.load_format == LOAD_AUTO)
        TRY(measure_disk(b, err));
    TRY(common_open_model(&b->model, &b->common, b->folder, err));
    TRY(bench_seqs_open(&b->seqs, b->model, 1, CONTEXT, 1, err));
    bench_seqs_seed(&b->seqs, 1);
    b->logits = mem_alloc((size_t)model_config(b->model)->vocab, sizeof(float));
    return run_updates(b, err);
}

static bool parse_staging(struct bench *b, const char *text)
{
    static const char *const name[] = {"auto", "on", "off"};
    for (size_t i = 0; i < COUNT_OF(name); i++)
        if (!strcmp(text, name[i])) {
            b->staging = (enum update_staging)i;
            return true;
        }
    cli_misuse("bench update", "--staging takes auto, on or off, got \"%s\"", text);
    return false;
}

enum { TO = COMMON_OPTION_END, NAMES, STAGING, STAGE_THREADS, REPEAT, JSON };

static bool take(struct bench *b, int option, const char *arg)
{
    switch (option) {
    case TO:
        b->to_name = arg;
        return true;
    case NAMES:
        b->names = arg;
        return true;
    case STAGING:
        return parse_staging(b, arg);
    case STAGE_THREADS:
        return cli_parse_int("bench update", "--stage-threads", arg, 1, 4096, &b->stage_threads);
    case REPEAT:
        return cli_parse_int("bench update", "--repeat", arg, 1, 100000, &b->repeat);
    case JSON:
        b->json = true;
        return true;
    default:
        return common_take(&b->common, "bench update", option, arg);
    }
}

int bench_update(int argc, char **argv)
{
    static const struct option options[] = {
        {"to", required_argument, NULL, TO},
        {"names", required_argument, NULL, NAMES},
        {"staging", required_argument, NULL, STAGING},
        {"stage-threads", required_argument, NULL, STAGE_THREADS},
        {"repeat", required_argument, NULL, REPEAT},
        {"json", no_argument, NULL, JSON},
        COMMON_OPTIONS,
        {0},
    };
    struct bench b = {.repeat = 3, .stage_threads = 1};
    common_init(&b.common);
    for (int c; (c = getopt_long(argc, argv, "hv", options, NULL)) != -1;) {
        if (c == 'h') {
            fputs(help, stdout);
            return 0;
        }
        if (!take(&b, c, optarg))
            return 2;
    }
    if (!common_take_model(&b.common, "bench update", argc, argv, optind))
        return 2;
    struct nyb_err err;
    enum nyb_code code = run(&b, &err);
    bench_seqs_close(&b.seqs);
    model_close(b.model);
    free(b.logits);
    free(b.to);
    free(b.folder);
    return code == NYB_OK ? 0 : cli_fail("bench update", &err);
}
