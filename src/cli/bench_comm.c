/* nybble bench comm: what an all-reduce between the ranks of this machine costs, with the residual and the
 * norm that follow it in every half layer. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "cli/bench.h"
#include "cli/bench_comm_mpi.h"
#include "cli/cli.h"
#include "comm/comm.h"

#define ROUND_CALLS       40 /* calls timed together: one is too short for the clock */
#define MIN_BYTES         4096u
#define SIZES_MAX         20
#define COMPOSED_ONE_SHOT ((size_t)256 << 10) /* what a communicator begins with */

static const char help[] =
    "nybble bench comm: all-reduce, residual and RMSNorm between the ranks of this machine\n\n"
    "usage: nybble bench comm [OPTIONS]\n\n"
    "For each size: the fused operation; the composed one (all-reduce, then residual and norm); the "
    "all-reduce\n"
    "alone; and MPI's own all-reduce (MPI_Allreduce in place) on as many ranks, where Open MPI is installed. "
    "Times\n"
    "are microseconds a call on rank 0, the best and the median of many rounds; a round measures all in "
    "turn. Sizes\n"
    "are bytes of fp32 rows that each rank contributes.\n\n"
    "  --ranks N        processes (default: 2); under mpirun, what it started\n"
    "  --hidden N       floats a row (default: 1024)\n"
    "  --max-bytes N    largest size (default: 4M); the smallest is 4 KB, each is twice the last\n"
    "  --rounds N       of 40 calls (default: 50)\n"
    "  --threads N      of each rank (default: 1)\n"
    "  --only WHAT      fused, composed, allreduce or mpi (mpi: under mpirun); without it, all\n"
    "  --json           one JSON object on standard output\n"
    "  --help           this text\n\n"
    "examples:\n"
    "  nybble bench comm\n"
    "  nybble bench comm --ranks 4 --hidden 4096 --json\n"
    "  mpirun -np 2 --host a,b nybble bench comm\n";

enum what { FUSED, COMPOSED, REDUCE, LIBRARY, WHAT_COUNT };

static const char *const what_name[WHAT_COUNT] = {"fused", "composed", "allreduce", "mpi"};

struct bench {
    int64_t ranks, hidden, rounds, threads;
    uint64_t max_bytes;
    bool json, measured[WHAT_COUNT];
    struct comm *comm;
    struct pool *pool;
    struct arena rows; /* aligned as the model's are */
    float *x, *residual, *y, *weight;
    double *us[WHAT_COUNT]; /* (rounds) */
    struct bench_comm_time
        mpi[SIZES_MAX]; /* of the ranks that mpirun has started, where these here are not */
    int n_mpi;
};

struct timing {
    double best_us, median_us; /* 0: not measured */
};

static bool choose(struct bench *b, const char *name, const char *text)
{
    bool known = false;
    for (int w = 0; w < WHAT_COUNT; w++) {
        b->measured[w] = !strcmp(text, what_name[w]);
        known |= b->measured[w];
    }
    if (!known)
        cli_misuse(name, "--only is \"%s\": expected fused, composed, allreduce or mpi", text);
    return known;
}

static int parse(struct bench *b, int argc, char **argv)
{
    enum { RANKS = 256, HIDDEN, MAX_BYTES, ROUNDS, THREADS, ONLY, JSON, HELP };
    static const struct option options[] = {{"ranks", required_argument, NULL, RANKS},
                                            {"hidden", required_argument, NULL, HIDDEN},
                                            {"max-bytes", required_argument, NULL, MAX_BYTES},
                                            {"rounds", required_argument, NULL, ROUNDS},
                                            {"threads", required_argument, NULL, THREADS},
                                            {"only", required_argument, NULL, ONLY},
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
        case ONLY:
            ok = choose(b, name, optarg);
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
    if (b->measured[LIBRARY] && !b->measured[FUSED] && !comm_mpi_started())
        return cli_misuse(name,
                          "--only mpi needs the ranks of mpirun: mpirun -np 2 nybble bench comm --only mpi");
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

/* One of the b->rounds; sums grow with every call, so rows begin anew each time: denormals and infinities
 * have other speeds. */
static bool measure(struct bench *b, enum what what, int m, int64_t round)
{
    size_t n = (size_t)m * (size_t)b->hidden;
    uint64_t ns = 0;
    /* fused as long as a slot holds it, so that the table shows where two shots overtake it */
    comm_set_one_shot_bytes(b->comm, what == FUSED ? SIZE_MAX : COMPOSED_ONE_SHOT);
    comm_set_fusion_rows(b->comm, what == FUSED ? INT32_MAX : 0);
    for (size_t i = 0; i < n; i++)
        b->x[i] = b->residual[i] = 1e-20f * (float)(i % 7 + 1);
    if (what == LIBRARY) {
        if (!comm_library_allreduce_ns(b->comm, b->x, n, 1))
            return false;
        ns = comm_library_allreduce_ns(b->comm, b->x, n, ROUND_CALLS);
        b->us[what][round] = (double)ns * 1e-3 / ROUND_CALLS;
        return ns > 0;
    }
    if (!comm_barrier(b->comm) || !call(b, what, m))
        return false;
    uint64_t begin = clock_ns();
    for (int i = 0; i < ROUND_CALLS; i++)
        if (!call(b, what, m))
            return false;
    b->us[what][round] = (double)(clock_ns() - begin) * 1e-3 / ROUND_CALLS;
    return true;
}

static bool measure_all(struct bench *b, int m, struct timing *t)
{
    for (int64_t round = 0; round < b->rounds; round++)
        for (int w = 0; w < WHAT_COUNT; w++)
            if (b->measured[w] && !measure(b, (enum what)w, m, round))
                return false;
    for (int w = 0; w < WHAT_COUNT; w++)
        if (b->measured[w]) {
            qsort(b->us[w], (size_t)b->rounds, sizeof(**b->us), by_size);
            t[w] = (struct timing){b->us[w][0], b->us[w][b->rounds / 2]};
        }
    for (int i = 0; i < b->n_mpi; i++)
        if (b->mpi[i].bytes == (size_t)m * (size_t)b->hidden * sizeof(float))
            t[LIBRARY] = (struct timing){b->mpi[i].best_us, b->mpi[i].median_us};
    return true;
}

static void report_json(size_t bytes, const struct timing *t, bool first)
{
    printf("%s{\"bytes\": %zu", first ? "" : ", ", bytes);
    for (int w = 0; w < WHAT_COUNT; w++)
        if (t[w].best_us > 0)
            printf(", \"%s_us\": %.3f, \"%s_median_us\": %.3f", what_name[w], t[w].best_us, what_name[w],
                   t[w].median_us);
    printf("}");
}

static void report_line(size_t bytes, const struct timing *t)
{
    printf("%10zu", bytes);
    for (int w = 0; w < WHAT_COUNT; w++)
        if (t[w].best_us > 0)
            printf("  %9.2f %9.2f", t[w].best_us, t[w].median_us);
        else
            printf("  %9s %9s", "-", "-");
    if (t[FUSED].best_us > 0 && t[COMPOSED].best_us > 0)
        printf("  %7.2f", t[COMPOSED].best_us / t[FUSED].best_us);
    printf("\n");
}

static bool run_sizes(struct bench *b)
{
    bool first = true;
    for (size_t bytes = MIN_BYTES; bytes <= b->max_bytes; bytes *= 2) {
        size_t row = (size_t)b->hidden * sizeof(float);
        int m = (int)(bytes / row);
        struct timing t[WHAT_COUNT] = {{0}};
        if (m == 0)
            continue;
        if (!measure_all(b, m, t))
            return false;
        if (comm_rank(b->comm) == 0 && b->json)
            report_json((size_t)m * row, t, first);
        else if (comm_rank(b->comm) == 0)
            report_line((size_t)m * row, t);
        fflush(stdout);
        first = false;
    }
    return true;
}

static enum nyb_code run(struct bench *b, struct nyb_err *err)
{
    size_t row = (size_t)b->hidden, most = b->max_bytes / sizeof(float) + row;
    TRY(pool_open(&b->pool, (int)b->threads, err));
    arena_init(&b->rows, 4096);
    b->x = arena_calloc(&b->rows, most, sizeof(float));
    b->residual = arena_calloc(&b->rows, most, sizeof(float));
    b->y = arena_calloc(&b->rows, most, sizeof(float));
    b->weight = arena_calloc(&b->rows, row, sizeof(float));
    for (int w = 0; w < WHAT_COUNT; w++)
        b->us[w] = mem_alloc((size_t)b->rounds, sizeof(double));
    if (comm_rank(b->comm) == 0 && b->json)
        printf("{\"ranks\": %d, \"hidden\": %lld, \"sizes\": [", comm_size(b->comm), (long long)b->hidden);
    else if (comm_rank(b->comm) == 0)
        printf(
            "%d ranks (%s), rows of %lld floats; microseconds, best and median\n"
            "     bytes                fused             composed           all-reduce       MPI all-reduce"
            "  composed / fused\n",
            comm_size(b->comm), comm_backend(b->comm), (long long)b->hidden);
    bool ok = comm_measure_ways(b->comm, kernels_cpu(), b->pool) && run_sizes(b);
    if (comm_rank(b->comm) == 0 && b->json)
        printf("]}\n");
    arena_free(&b->rows);
    for (int w = 0; w < WHAT_COUNT; w++)
        free(b->us[w]);
    pool_close(b->pool);
    return ok ? NYB_OK : comm_status(b->comm, err);
}

/* Before there are ranks here: they would be in its way. */
static void time_mpi(struct bench *b)
{
    char why[160] = "";
    const struct bench_comm_mpi m = {b->ranks, b->hidden, b->rounds, b->max_bytes};
    b->n_mpi = bench_comm_mpi(&m, b->mpi, SIZES_MAX, why, sizeof(why));
    if (!b->n_mpi)
        fprintf(stderr, "nybble bench comm: MPI's own all-reduce is not measured: %s\n", why);
}

int bench_comm(int argc, char **argv)
{
    struct bench b = {.ranks = 2,
                      .hidden = 1024,
                      .rounds = 50,
                      .threads = 1,
                      .max_bytes = 4u << 20,
                      .measured = {true, true, true, true}};
    struct nyb_err err = {0};
    int status = parse(&b, argc, argv);
    if (status >= 0)
        return status;
    if (!comm_mpi_started() && b.measured[LIBRARY])
        time_mpi(&b);
    b.measured[LIBRARY] &= comm_mpi_started();
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
