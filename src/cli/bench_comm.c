/* nybble bench comm: what an all-reduce between the ranks of this machine costs, with the residual and the
 * norm that follow it in every half layer. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "cli/bench.h"
#include "cli/cli.h"
#include "comm/comm.h"

#define ROUND_CALLS 40 /* calls timed together: one is too short for the clock */
#define MIN_BYTES   4096u

static const char help[] =
    "nybble bench comm: all-reduce, residual and RMSNorm between the ranks of this machine\n\n"
    "usage: nybble bench comm [OPTIONS]\n\n"
    "For each size: the fused operation; the composed one (all-reduce, then residual and norm); the "
    "all-reduce\n"
    "alone. Times are microseconds a call on rank 0, the best and the median of many rounds. Sizes are "
    "bytes\n"
    "of fp32 rows that each rank contributes.\n\n"
    "  --ranks N        processes (default: 2); under mpirun, what it started\n"
    "  --hidden N       floats a row (default: 1024)\n"
    "  --max-bytes N    largest size (default: 4M); the smallest is 4 KB, each is twice the last\n"
    "  --rounds N       of 40 calls (default: 50)\n"
    "  --threads N      of each rank (default: 1)\n"
    "  --json           one JSON object on standard output\n"
    "  --help           this text\n\n"
    "examples:\n"
    "  nybble bench comm\n"
    "  nybble bench comm --ranks 4 --hidden 4096 --json\n"
    "  mpirun -np 2 --host a,b nybble bench comm\n";

struct bench {
    int64_t ranks, hidden, rounds, threads;
    uint64_t max_bytes;
    bool json;
    struct comm *comm;
    struct pool *pool;
    float *x, *residual, *y, *weight;
    double *us; /* (rounds) */
};

enum what { FUSED, COMPOSED, REDUCE, WHAT_COUNT };

struct timing {
    double best_us, median_us;
};

static int parse(struct bench *b, int argc, char **argv)
{
    enum { RANKS = 256, HIDDEN, MAX_BYTES, ROUNDS, THREADS, JSON, HELP };
    static const struct option options[] = {{"ranks", required_argument, NULL, RANKS},
                                            {"hidden", required_argument, NULL, HIDDEN},
                                            {"max-bytes", required_argument, NULL, MAX_BYTES},
                                            {"rounds", required_argument, NULL, ROUNDS},
                                            {"threads", required_argument, NULL, THREADS},
                                            {"json", no_argument, NULL, JSON},
                                            {"help", no_argument, NULL, HELP},
                                            {0}};
    const char *name = "bench comm";
    for (int opt; (opt = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
        bool ok = true;
        switch (opt) {
        case RANKS:
            ok = cli_parse_int(name, "--ranks", optarg, 1, COMM_RANK_MAX, &b->ranks);
            break;
        case HIDDEN:
            ok = cli_parse_int(name, "--hidden", optarg, 1, 1 << 20, &b->hidden);
            break;
        case MAX_BYTES:
            ok = cli_parse_bytes(name, "--max-bytes", optarg, &b->max_bytes);
            break;
        case ROUNDS:
            ok = cli_parse_int(name, "--rounds", optarg, 1, 100000, &b->rounds);
            break;
        case THREADS:
            ok = cli_parse_int(name, "--threads", optarg, 1, 256, &b->threads);
            break;
        case JSON:
            b->json = true;
            break;
        case 'h':
        case HELP:
            fputs(help, stdout);
            return 0;
        default:
            return cli_misuse(name, "see the line above");
        }
        if (!ok)
            return 2;
    }
    if (optind < argc)
        return cli_misuse(name, "takes no argument, got \"%s\"", argv[optind]);
    if (b->max_bytes < MIN_BYTES || b->max_bytes > 1u << 30)
        return cli_misuse(name, "--max-bytes is %llu: expected 4096 to 1G", (unsigned long long)b->max_bytes);
    return -1;
}

static bool call(struct bench *b, enum what what, int m)
{
    struct comm_reduce r = {b->x, (size_t)m * (size_t)b->hidden, b->pool};
    struct comm_add_norm a = {.kernels = kernels_cpu(),
                              .pool = b->pool,
                              .x = b->x,
                              .residual = b->residual,
                              .weight = b->weight,
                              .y = b->y,
                              .m = m,
                              .n = (int)b->hidden,
                              .eps = 1e-6f};
    if (what == REDUCE) {
        comm_allreduce_start(b->comm, 0, &r);
        return comm_allreduce_wait(b->comm, 0, &r);
    }
    comm_add_norm_start(b->comm, 0, &a);
    return comm_add_norm_wait(b->comm, 0, &a);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sums grow with every composed call, so rows begin anew each round: denormals and infinities have other
 * speeds. */
static bool measure(struct bench *b, enum what what, int m, struct timing *t)
{
    size_t n = (size_t)m * (size_t)b->hidden;
    comm_set_fusion_rows(b->comm, what == FUSED ? INT32_MAX : 0);
    for (int64_t round = 0; round < b->rounds; round++) {
        for (size_t i = 0; i < n; i++)
            b->x[i] = b->residual[i] = 1e-20f * (float)(i % 7 + 1);
        if (!comm_barrier(b->comm) || !call(b, what, m))
            return false;
        uint64_t begin = clock_ns();
        for (int i = 0; i < ROUND_CALLS; i++)
            if (!call(b, what, m))
                return false;
        b->us[round] = (double)(clock_ns() - begin) * 1e-3 / ROUND_CALLS;
    }
    qsort(b->us, (size_t)b->rounds, sizeof(*b->us), by_size);
    *t = (struct timing){b->us[0], b->us[b->rounds / 2]};
    return true;
}

static void report(const struct bench *b, size_t bytes, const struct timing *t, bool first)
{
    if (comm_rank(b->comm) != 0)
        return;
    if (b->json)
        printf("%s{\"bytes\": %zu, \"fused_us\": %.3f, \"fused_median_us\": %.3f, \"composed_us\": %.3f, "
               "\"composed_median_us\": %.3f, \"allreduce_us\": %.3f, \"allreduce_median_us\": %.3f}",
               first ? "" : ", ", bytes, t[FUSED].best_us, t[FUSED].median_us, t[COMPOSED].best_us,
               t[COMPOSED].median_us, t[REDUCE].best_us, t[REDUCE].median_us);
    else
        printf("%10zu  %9.2f %9.2f  %9.2f %9.2f  %9.2f %9.2f  %7.2f\n", bytes, t[FUSED].best_us,
               t[FUSED].median_us, t[COMPOSED].best_us, t[COMPOSED].median_us, t[REDUCE].best_us,
               t[REDUCE].median_us, t[COMPOSED].best_us / t[FUSED].best_us);
    fflush(stdout);
}

static bool run_sizes(struct bench *b)
{
    bool first = true;
    for (size_t bytes = MIN_BYTES; bytes <= b->max_bytes; bytes *= 2) {
        size_t row = (size_t)b->hidden * sizeof(float);
        int m = (int)(bytes / row);
        struct timing t[WHAT_COUNT];
        if (m == 0)
            continue;
        /* fused as long as a slot holds it, so that the table shows where two shots overtake it */
        comm_set_one_shot_bytes(b->comm, SIZE_MAX);
        if (!measure(b, FUSED, m, &t[FUSED]))
            return false;
        comm_set_one_shot_bytes(b->comm, 256u << 10);
        if (!measure(b, COMPOSED, m, &t[COMPOSED]) || !measure(b, REDUCE, m, &t[REDUCE]))
            return false;
        report(b, (size_t)m * row, t, first);
        first = false;
    }
    return true;
}

static enum nyb_code run(struct bench *b, struct nyb_err *err)
{
    size_t row = (size_t)b->hidden, most = b->max_bytes / sizeof(float) + row;
    TRY(pool_open(&b->pool, (int)b->threads, err));
    b->x = mem_alloc(most, sizeof(float));
    b->residual = mem_alloc(most, sizeof(float));
    b->y = mem_alloc(most, sizeof(float));
    b->weight = mem_alloc(row, sizeof(float));
    b->us = mem_alloc((size_t)b->rounds, sizeof(*b->us));
    if (comm_rank(b->comm) == 0 && b->json)
        printf("{\"ranks\": %d, \"hidden\": %lld, \"sizes\": [", comm_size(b->comm), (long long)b->hidden);
    else if (comm_rank(b->comm) == 0)
        printf("%d ranks (%s), rows of %lld floats; microseconds, best and median\n"
               "     bytes            fused           composed           all-reduce  composed / fused\n",
               comm_size(b->comm), comm_backend(b->comm), (long long)b->hidden);
    bool ok = run_sizes(b);
    if (comm_rank(b->comm) == 0 && b->json)
        printf("]}\n");
    free(b->x), free(b->residual), free(b->y), free(b->weight), free(b->us);
    pool_close(b->pool);
    return ok ? NYB_OK : comm_status(b->comm, err);
}

int bench_comm(int argc, char **argv)
{
    struct bench b = {.ranks = 2, .hidden = 1024, .rounds = 50, .threads = 1, .max_bytes = 4u << 20};
    struct nyb_err err = {0};
    int status = parse(&b, argc, argv);
    if (status >= 0)
        return status;
    const struct comm_options o = {.slot_bytes = b.max_bytes + 65536};
    fflush(stdout); /* or the ranks would print it again */
    enum nyb_code code =
        comm_mpi_started() ? comm_open_mpi(&b.comm, &o, &err) : comm_fork(&b.comm, (int)b.ranks, &o, &err);
    if (code != NYB_OK)
        return cli_fail("bench comm", &err);
    code = run(&b, &err);
    int rank = comm_rank(b.comm);
    comm_close(b.comm);
    if (rank != 0)
        exit(code != NYB_OK);
    return code == NYB_OK ? 0 : cli_fail("bench comm", &err);
}
