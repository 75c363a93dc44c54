/* nybble bench gpus: what it takes several GPUs to add up what each has, beside NCCL and beside the link
 * between them. One process, a thread for each GPU. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cli/bench.h"
#include "cli/bench_gpus.h"
#include "cli/cli.h"
#include "kernels/checkkern_cuda_group.h"
#include "kernels/cuda/cuda_load.h"

#define MIN_BYTES    4096
#define BUFFER_BYTES ((size_t)16 << 20) /* as served models have them */
#define CALLS_MAX    256
#define TIMEOUT_MS   20000

static const char help[] =
    "nybble bench gpus: sums over several GPUs, or rows to experts and back\n\n"
    "usage: nybble bench gpus [OPTIONS]\n\n"
    "Microseconds of one call, the median of rounds, each a graph of several calls. One-shot and two-shot "
    "are\n"
    "sum, residual and norm in one kernel; the others are NCCL's sum, and NCCL's sum with this program's "
    "norm\n"
    "behind it. The limit is what the link between the GPUs needs for that many bytes, as measured.\n\n"
    "With --experts: microseconds in which each GPU's rows reach the GPUs of the experts that they chose "
    "(dispatch),\n"
    "and products come back and are added up (combine); choices are random. The limit is what the link needs "
    "for\n"
    "the bytes that leave the GPU which sends most; the time is given as so many times that, and as so many "
    "times\n"
    "that and a word's way to the other GPU and back.\n\n"
    "  --ranks N        GPUs (default 2)\n"
    "  --hidden N       floats of a row (default 4096)\n"
    "  --max-bytes N    of the largest sum (default 16M); the smallest is 4096\n"
    "  --experts N      rows to so many experts, and products back, instead of sums\n"
    "  --top-k N        of them for each row (default 8)\n"
    "  --max-rows N     of each GPU (default 4096)\n"
    "  --rounds N       default 25\n"
    "  --calls N        of one graph, in a row (default 32), an even number of sums\n"
    "  --one-gpu        all ranks on the first GPU, side by side: says nothing about a link\n"
    "  --json           one JSON object\n"
    "  --help           this text\n\n"
    "NYBBLE_NCCL names NCCL's library where it is not the system's libnccl.so.2.\n";

enum what { ONE_SHOT, TWO_SHOT, AUTO, NCCL, NCCL_NORM, WHAT_COUNT };
static const char *const what_name[WHAT_COUNT] = {"one_shot", "two_shot", "auto", "nccl", "nccl_norm"};

struct memory {
    float *residual, *delta, *weight;
    uint16_t *y;
};

struct bench {
    int64_t ranks, hidden, rounds, calls, experts, top_k, max_rows;
    uint64_t max_bytes;
    bool json, one_gpu;
    struct gpu_group group;
    struct memory at[CUDA_PEERS_MAX];
    uint8_t id[CUDA_LIBRARY_ID_BYTES];
    bool nccl;
    /* of the measurement in progress */
    enum what what;
    int n_row;
    double seconds[CUDA_PEERS_MAX], rate[CUDA_PEERS_MAX], round_trip[CUDA_PEERS_MAX];
};

static int parse(struct bench *b, int argc, char **argv)
{
    enum { RANKS = 256, HIDDEN, MAX_BYTES, ROUNDS, CALLS, EXPERTS, TOP_K, MAX_ROWS, ONE_GPU, JSON };
    static const struct option options[] = {{"ranks", required_argument, NULL, RANKS},
                                            {"hidden", required_argument, NULL, HIDDEN},
                                            {"max-bytes", required_argument, NULL, MAX_BYTES},
                                            {"rounds", required_argument, NULL, ROUNDS},
                                            {"calls", required_argument, NULL, CALLS},
                                            {"experts", required_argument, NULL, EXPERTS},
                                            {"top-k", required_argument, NULL, TOP_K},
                                            {"max-rows", required_argument, NULL, MAX_ROWS},
                                            {"one-gpu", no_argument, NULL, ONE_GPU},
                                            {"json", no_argument, NULL, JSON},
                                            {"help", no_argument, NULL, 'h'},
                                            {0}};
    const char *name = "bench gpus";
    for (int opt; (opt = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
        bool ok = true;
        switch (opt) {
        case RANKS:
            ok = cli_parse_int(name, "--ranks", optarg, 2, CUDA_PEERS_MAX, &b->ranks);
            break;
        case HIDDEN:
            ok = cli_parse_int(name, "--hidden", optarg, 1, 32768, &b->hidden);
            break;
        case MAX_BYTES:
            ok = cli_parse_bytes(name, "--max-bytes", optarg, &b->max_bytes);
            break;
        case ROUNDS:
            ok = cli_parse_int(name, "--rounds", optarg, 1, 10000, &b->rounds);
            break;
        case CALLS:
            ok = cli_parse_int(name, "--calls", optarg, 2, CALLS_MAX, &b->calls);
            break;
        case EXPERTS:
            ok = cli_parse_int(name, "--experts", optarg, 1, CUDA_EXPERTS_MAX, &b->experts);
            break;
        case TOP_K:
            ok = cli_parse_int(name, "--top-k", optarg, 1, 64, &b->top_k);
            break;
        case MAX_ROWS:
            ok = cli_parse_int(name, "--max-rows", optarg, 1, 16384, &b->max_rows);
            break;
        case ONE_GPU:
            b->one_gpu = true;
            break;
        case JSON:
            b->json = true;
            break;
        case 'h':
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
    if (b->calls % 2)
        return cli_misuse(name, "--calls is %lld: expected an even number", (long long)b->calls);
    if (b->experts > 0 && b->top_k > b->experts)
        return cli_misuse(name, "--top-k is %lld of %lld experts", (long long)b->top_k,
                          (long long)b->experts);
    if (b->experts > 0 && b->hidden % 8)
        return cli_misuse(name, "--hidden is %lld: rows to experts are a multiple of 8",
                          (long long)b->hidden);
    return -1;
}

/* ---- on each rank's thread ------------------------------------------------------------------------- */

static bool prepare(void *arg, struct cuda_gpu *g, int r)
{
    struct bench *b = arg;
    const struct cuda_plugin *p = b->group.plugin;
    size_t row = (size_t)b->hidden, n = b->max_bytes / sizeof(float) + row;
    struct memory *m = &b->at[r];
    m->residual = p->alloc(g, n * sizeof(float));
    m->delta = p->alloc(g, n * sizeof(float));
    m->y = p->alloc(g, n * sizeof(uint16_t));
    m->weight = p->alloc(g, row * sizeof(float));
    return m->residual && m->delta && m->y && m->weight && p->zero(g, m->residual, n * sizeof(float)) &&
           p->zero(g, m->delta, n * sizeof(float)) && p->zero(g, m->weight, row * sizeof(float));
}

static bool join_nccl(void *arg, struct cuda_gpu *g, int r)
{
    (void)r;
    struct bench *b = arg;
    return b->group.plugin->library_open(g, b->id);
}

static bool measure_link(void *arg, struct cuda_gpu *g, int r)
{
    struct bench *b = arg;
    b->rate[r] = b->group.plugin->peers_rate(g);
    b->round_trip[r] = b->group.plugin->peers_round_trip(g);
    return b->rate[r] > 0 && b->round_trip[r] > 0;
}

static struct cuda_add_norm norm_of(const struct bench *b, int r)
{
    return (struct cuda_add_norm){.residual = b->at[r].residual,
                                  .delta = {b->at[r].delta, NULL},
                                  .weight = b->at[r].weight,
                                  .y = b->at[r].y,
                                  .n = (int)b->hidden,
                                  .eps = 1e-6f};
}

static bool time_ops(void *arg, struct cuda_gpu *g, int r)
{
    static const int way[WHAT_COUNT] = {CUDA_REDUCE_ONE_SHOT, CUDA_REDUCE_TWO_SHOT, CUDA_REDUCE_AUTO,
                                        CUDA_REDUCE_LIBRARY, CUDA_REDUCE_LIBRARY};
    struct bench *b = arg;
    struct cuda_op op[CALLS_MAX];
    int n_op = (int)b->calls;
    bool library = way[b->what] == CUDA_REDUCE_LIBRARY, pairs = b->what == NCCL_NORM;
    for (int i = 0; i < n_op; i++) {
        op[i] = (struct cuda_op){.n_row = b->n_row};
        if (pairs && i % 2) {
            op[i].kind = CUDA_OP_ADD_NORM;
            op[i].as.add_norm = norm_of(b, r);
            continue;
        }
        op[i].kind = CUDA_OP_ALL_REDUCE;
        op[i].as.all_reduce = (struct cuda_all_reduce){
            .norm = norm_of(b, r), .sum = library ? b->at[r].delta : NULL, .way = way[b->what]};
    }
    double seconds = b->group.plugin->time(g, op, n_op, (int)b->rounds);
    b->seconds[r] = pairs ? 2 * seconds : seconds;
    return seconds > 0;
}

/* ---- the table --------------------------------------------------------------------------------------- */

static double slowest(const double *v, int n)
{
    double worst = v[0];
    for (int i = 1; i < n; i++)
        worst = v[i] > worst ? v[i] : worst;
    return worst;
}

static bool measure_size(struct bench *b, double us[WHAT_COUNT])
{
    for (int w = 0; w < WHAT_COUNT; w++) {
        us[w] = 0;
        if (w >= NCCL && !b->nccl)
            continue;
        b->what = (enum what)w;
        if (!gpu_group_run(&b->group, time_ops, b))
            return false;
        us[w] = 1e6 * slowest(b->seconds, b->group.size);
    }
    return true;
}

static void print_size(const struct bench *b, size_t bytes, const double us[WHAT_COUNT], double limit_us,
                       bool first)
{
    double best = us[ONE_SHOT] < us[TWO_SHOT] ? us[ONE_SHOT] : us[TWO_SHOT];
    if (b->json) {
        printf("%s{\"bytes\": %zu, \"limit_us\": %.3f", first ? "" : ", ", bytes, limit_us);
        for (int w = 0; w < WHAT_COUNT; w++)
            if (us[w] > 0)
                printf(", \"%s_us\": %.3f", what_name[w], us[w]);
        printf("}");
        return;
    }
    printf("%10zu", bytes);
    for (int w = 0; w < WHAT_COUNT; w++)
        if (us[w] > 0)
            printf("  %9.2f", us[w]);
        else
            printf("  %9s", "-");
    printf("  %9.2f", limit_us);
    if (us[NCCL_NORM] > 0)
        printf("  %7.2f", us[NCCL_NORM] / best);
    printf("\n");
    fflush(stdout);
}

static bool run_sizes(struct bench *b)
{
    bool first = true;
    size_t row = (size_t)b->hidden * sizeof(float);
    int n = b->group.size;
    double rate = b->rate[0];
    for (int r = 1; r < n; r++)
        rate = b->rate[r] < rate ? b->rate[r] : rate;
    double round_trip = slowest(b->round_trip, n);
    if (b->json)
        printf("{\"ranks\": %d, \"hidden\": %lld, \"link_gbs\": %.3f, \"round_trip_us\": %.3f, \"sizes\": [",
               n, (long long)b->hidden, rate * 1e-9, round_trip * 1e6);
    else
        printf("%d GPUs, rows of %lld floats, link %.1f GB/s each way, a word and its answer %.2f us; "
               "microseconds\n"
               "     bytes   one-shot   two-shot       auto       NCCL  NCCL,norm      limit  NCCL,norm / "
               "best\n",
               n, (long long)b->hidden, rate * 1e-9, round_trip * 1e6);
    for (size_t bytes = MIN_BYTES; bytes <= b->max_bytes; bytes *= 2) {
        double us[WHAT_COUNT];
        b->n_row = (int)(bytes / row);
        if (b->n_row == 0)
            continue;
        if (!measure_size(b, us))
            return false;
        /* what must leave each GPU at least: all of it twice but its own share, or once with two */
        double sent = (double)b->n_row * (double)row * (n == 2 ? 1.0 : 2.0 * (n - 1) / n);
        print_size(b, (size_t)b->n_row * row, us, 1e6 * sent / rate, first);
        first = false;
    }
    if (b->json)
        printf("]}\n");
    return true;
}

static bool run(struct bench *b)
{
    struct gpu_group *g = &b->group;
    if (!gpu_group_run(g, prepare, b) || !gpu_group_run(g, measure_link, b))
        return false;
    const char *why = b->one_gpu ? "it takes a GPU for each rank" : NULL;
    if (!why && !g->plugin->library_id(g->gpu[0], b->id))
        why = g->plugin->error(g->gpu[0]);
    if (!why && !gpu_group_run(g, join_nccl, b))
        why = g->why;
    b->nccl = !why;
    if (why)
        fprintf(stderr, "nybble bench gpus: NCCL is not measured: %s\n", why);
    return run_sizes(b);
}

int bench_gpus(int argc, char **argv)
{
    struct bench b = {.ranks = 2,
                      .hidden = 4096,
                      .rounds = 25,
                      .calls = 32,
                      .top_k = 8,
                      .max_rows = 4096,
                      .max_bytes = 16u << 20};
    struct nyb_err err = {0};
    int status = parse(&b, argc, argv);
    if (status >= 0)
        return status;
    const struct cuda_plugin *plugin = cuda_load(&err);
    if (!plugin)
        return cli_fail("bench gpus", &err);
    if (b.experts > 0) {
        const struct gpus_bench rows = {(int)b.ranks,    (int)b.hidden,  (int)b.rounds,
                                        (int)b.calls,    (int)b.experts, (int)b.top_k,
                                        (int)b.max_rows, b.one_gpu,      b.json};
        return bench_gpus_experts(&rows, plugin, &err) ? 0 : cli_fail("bench gpus", &err);
    }
    const struct gpu_group_options o = {
        .size = (int)b.ranks, .apart = !b.one_gpu, .bytes = BUFFER_BYTES, .timeout_ms = TIMEOUT_MS};
    bool ok = gpu_group_open(&b.group, plugin, &o) && run(&b);
    if (!ok)
        err_set(&err, NYB_E_UNSUPPORTED, "%s", b.group.why);
    for (int r = 0; r < b.group.n_open; r++) {
        void *const all[] = {b.at[r].residual, b.at[r].delta, b.at[r].weight, b.at[r].y};
        for (size_t i = 0; i < COUNT_OF(all); i++)
            if (all[i])
                plugin->release(b.group.gpu[r], all[i]);
    }
    gpu_group_close(&b.group);
    return ok ? 0 : cli_fail("bench gpus", &err);
}
