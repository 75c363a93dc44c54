/* nybble checkkern: are the kernels right on this machine, and how near its limits do they come? */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "cli/cli.h"
#include "kernels/checkkern.h"
#include "kernels/checkkern_cuda.h"

#define NO_GPU 77 /* as test programs say "skipped" */

struct settings {
    bool bench, json, cuda;
    const char *filter; /* part of a row's name, or NULL */
    const char *level;  /* one only, or NULL */
    int n_thread, rounds;
    uint64_t seed;
};

static void print_help(void)
{
    printf("usage: nybble checkkern [options]\n"
           "Check every kernel against a double-precision reference: on each CPU level this machine has, or "
           "on its\n"
           "GPU.\n\n"
           "  --bench          time the kernels instead, beside the measured limits of the machine\n"
           "  --filter TEXT    only kernels whose name contains TEXT\n"
           "  --device NAME    cpu (the default) or cuda: the GPU's kernels; exits with 77 where there is no "
           "GPU to use\n"
           "  --level NAME     only scalar, avx2, avx512 or amx\n"
           "  --threads N      default: all cores\n"
           "  --rounds N       random cases a kernel (default 24)\n"
           "  --seed N         of the random cases (default 20)\n"
           "  --json           one JSON object a line\n\n"
           "examples:\n"
           "  nybble checkkern\n"
           "  nybble checkkern --bench --filter nvfp4.bf16 --threads 1\n"
           "  nybble checkkern --device cuda --bench\n");
}

/* -1: go on; otherwise the exit status. */
static int parse(int argc, char **argv, struct settings *s)
{
    static const struct option option[] = {
        {"bench", no_argument, NULL, 'b'},        {"device", required_argument, NULL, 'd'},
        {"filter", required_argument, NULL, 'f'}, {"json", no_argument, NULL, 'j'},
        {"level", required_argument, NULL, 'l'},  {"threads", required_argument, NULL, 't'},
        {"rounds", required_argument, NULL, 'r'}, {"seed", required_argument, NULL, 's'},
        {"help", no_argument, NULL, 'h'},         {NULL, 0, NULL, 0}};
    int64_t n;
    optind = 1;
    for (int c; (c = getopt_long(argc, argv, "h", option, NULL)) != -1;) {
        switch (c) {
        case 'b':
            s->bench = true;
            break;
        case 'd':
            s->cuda = strcmp(optarg, "cuda") == 0;
            if (!s->cuda && strcmp(optarg, "cpu") != 0)
                return cli_misuse("checkkern", "--device %s: expected cpu or cuda", optarg);
            break;
        case 'j':
            s->json = true;
            break;
        case 'f':
            s->filter = optarg;
            break;
        case 'l':
            s->level = optarg;
            break;
        case 't':
            if (!cli_parse_int("checkkern", "--threads", optarg, 1, 1024, &n))
                return 2;
            s->n_thread = (int)n;
            break;
        case 'r':
            if (!cli_parse_int("checkkern", "--rounds", optarg, 1, 1000000, &n))
                return 2;
            s->rounds = (int)n;
            break;
        case 's':
            if (!cli_parse_int("checkkern", "--seed", optarg, 0, INT64_MAX, &n))
                return 2;
            s->seed = (uint64_t)n;
            break;
        case 'h':
            print_help();
            return 0;
        default:
            return cli_misuse("checkkern", "unknown option or missing value");
        }
    }
    if (optind < argc)
        return cli_misuse("checkkern", "unexpected argument \"%s\"", argv[optind]);
    return -1;
}

static void print_json(json_t *object)
{
    char *text = json_dumps(object, JSON_COMPACT);
    if (text)
        puts(text);
    free(text);
    json_decref(object);
}

static bool check_row(const struct settings *s, struct checkkern_env *env, const struct checkkern_row *row)
{
    struct checkkern_report report = {0};
    bool ok = row->check(env, &report);
    arena_reset(env->arena);
    const char *level = cpu_level_name(env->level);
    if (s->json)
        print_json(json_pack("{s:s, s:s, s:b, s:i, s:f, s:s}", "kernel", row->name, "level", level, "ok", ok,
                             "cases", report.n_case, "worst", report.worst, "detail", report.detail));
    else
        printf("%-7s %-20s %s  %8d cases, worst error %.2f of its tolerance%s%s\n", level, row->name,
               ok ? "ok    " : "FAILED", report.n_case, report.worst, ok ? "" : ": ", report.detail);
    return ok;
}

static void print_roof(const struct settings *s, const struct checkkern_env *env,
                       const struct checkkern_roof *roof)
{
    const char *level = cpu_level_name(env->level);
    if (s->json)
        print_json(json_pack("{s:s, s:s, s:i, s:f, s:f, s:f, s:f, s:f}", "cpu", cpu_model_name(), "level",
                             level, "threads", roof->n_thread, "read_gbs", roof->read_gbs, "f32_gflops",
                             roof->f32_gflops, "bf16_gflops", roof->bf16_gflops, "i8_gops", roof->i8_gops,
                             "tile_gflops", roof->tile_gflops));
    else
        printf("%s on %s, %d threads: read %.1f GB/s, fp32 %.0f GFLOP/s, bf16 %.0f, int8 %.0f, tiles %.0f\n",
               level, cpu_model_name(), roof->n_thread, roof->read_gbs, roof->f32_gflops, roof->bf16_gflops,
               roof->i8_gops, roof->tile_gflops);
}

static void print_line(const struct settings *s, const struct checkkern_env *env,
                       const struct checkkern_line *line, const struct checkkern_roof *roof)
{
    double gbs = line->bytes / line->seconds * 1e-9, gflops = line->flops / line->seconds * 1e-9;
    double fraction = checkkern_fraction(line, roof);
    if (s->json)
        print_json(json_pack("{s:s, s:s, s:f, s:f, s:f, s:f}", "level", cpu_level_name(env->level), "kernel",
                             line->name, "seconds", line->seconds, "gbs", gbs, "gflops", gflops,
                             "of_roofline", fraction));
    else
        printf("%-7s %-44s %7.1f GB/s %8.1f GFLOP/s %4.0f %% of roofline\n", cpu_level_name(env->level),
               line->name, gbs, gflops, 100.0 * fraction);
    fflush(stdout);
}

static void bench_row(const struct settings *s, struct checkkern_env *env, const struct checkkern_row *row,
                      const struct checkkern_roof *roof)
{
    struct checkkern_bench bench = {0};
    if (!row->bench)
        return;
    row->bench(env, &bench);
    for (int i = 0; i < bench.n_line; i++)
        print_line(s, env, &bench.line[i], roof);
    free(bench.line);
    arena_reset(env->arena);
}

/* Whether a row is meant; none: a misspelt filter must not look like a pass. */
static bool is_wanted(const struct settings *s, const char *name)
{
    return !s->filter || strstr(name, s->filter);
}

static bool any_is_wanted(const struct settings *s)
{
    bool any = false;
    for (int i = 0; !s->cuda && i < checkkern_n_row(); i++)
        any |= is_wanted(s, checkkern_row(i)->name);
    for (int i = 0; s->cuda && i < checkkern_cuda_n_row(); i++)
        any |= is_wanted(s, checkkern_cuda_row(i)->name);
    return any;
}

static bool run_level(const struct settings *s, struct checkkern_env *env)
{
    bool ok = true;
    struct checkkern_roof roof;
    if (s->bench) {
        checkkern_measure(env, &roof);
        print_roof(s, env, &roof);
    }
    for (int i = 0; i < checkkern_n_row(); i++) {
        const struct checkkern_row *row = checkkern_row(i);
        if (!is_wanted(s, row->name))
            continue;
        if (s->bench)
            bench_row(s, env, row, &roof);
        else
            ok &= check_row(s, env, row);
    }
    return ok;
}

/* ---- the GPU --------------------------------------------------------------------------------------- */

static bool check_gpu(const struct settings *s, const struct checkkern_gpu *g)
{
    bool all = true;
    for (int i = 0; i < checkkern_cuda_n_row(); i++) {
        const struct checkkern_cuda_row *row = checkkern_cuda_row(i);
        struct checkkern_report report = {0};
        if (!is_wanted(s, row->name))
            continue;
        bool ok = row->check(g, &report);
        arena_reset(g->arena);
        if (s->json)
            print_json(json_pack("{s:s, s:s, s:b, s:i, s:f, s:s}", "kernel", row->name, "device",
                                 g->info.name, "ok", ok, "cases", report.n_case, "worst", report.worst,
                                 "detail", report.detail));
        else
            printf("%-20s %s  %8d cases, worst error %.2f of its tolerance%s%s\n", row->name,
                   !ok             ? "FAILED"
                   : report.n_case ? "ok    "
                                   : "none  ",
                   report.n_case, report.worst, *report.detail ? ": " : "", report.detail);
        fflush(stdout);
        all &= ok;
    }
    return all;
}

static bool bench_gpu(const struct settings *s, const struct checkkern_gpu *g, struct nyb_err *err)
{
    struct checkkern_bench bench = {0};
    struct checkkern_roof roof = {0};
    bool ok = checkkern_cuda_bench(g, s->filter, &bench, &roof, err);
    if (s->json)
        print_json(json_pack("{s:s, s:f}", "device", g->info.name, "read_gbs", roof.read_gbs));
    else
        printf("%s: read %.0f GB/s\n", g->info.name, roof.read_gbs);
    for (int i = 0; i < bench.n_line; i++) {
        const struct checkkern_line *l = &bench.line[i];
        double gbs = l->bytes / l->seconds * 1e-9, gflops = l->flops / l->seconds * 1e-9;
        if (l->seconds < 0)
            continue;
        if (s->json)
            print_json(json_pack("{s:s, s:s, s:f, s:f, s:f, s:f}", "device", g->info.name, "kernel", l->name,
                                 "seconds", l->seconds, "gbs", gbs, "gflops", gflops, "of_read",
                                 gbs / roof.read_gbs));
        else
            printf("%-48s %8.1f us %7.1f MB %7.0f GB/s %4.0f %% of reading %6.1f TFLOP/s\n", l->name,
                   l->seconds * 1e6, l->bytes * 1e-6, gbs, 100.0 * gbs / roof.read_gbs, gflops * 1e-3);
    }
    free(bench.line);
    return ok;
}

static int checkkern_gpu(const struct settings *s)
{
    struct nyb_err err;
    struct arena arena;
    struct checkkern_gpu g = {.arena = &arena, .seed = s->seed, .rounds = s->rounds};
    if (s->level || s->n_thread)
        return cli_misuse("checkkern",
                          "--level and --threads are of the CPU's kernels: not with --device cuda");
    if (checkkern_cuda_open(&g, &err)) {
        cli_fail("checkkern", &err);
        return NO_GPU;
    }
    arena_init(&arena, 1 << 20);
    bool ok = s->bench ? bench_gpu(s, &g, &err) : check_gpu(s, &g);
    if (!ok && s->bench)
        cli_fail("checkkern", &err);
    arena_free(&arena);
    checkkern_cuda_close(&g);
    return ok ? 0 : 1;
}

int cli_checkkern(int argc, char **argv)
{
    struct settings s = {.rounds = 24, .seed = 20};
    int status = parse(argc, argv, &s);
    if (status >= 0)
        return status;
    if (!any_is_wanted(&s) && !(s.cuda && s.bench)) /* timed lines of the GPU have names of their own */
        return cli_misuse("checkkern", "--filter %s: no kernel's name contains it", s.filter);
    if (s.cuda)
        return checkkern_gpu(&s);
    enum cpu_level only = CPU_SCALAR;
    if (s.level && !cpu_level_parse(s.level, &only))
        return cli_misuse("checkkern", "--level %s: expected scalar, avx2, avx512 or amx", s.level);
    if (only > cpu_level())
        return cli_misuse("checkkern", "--level %s: this machine has %s at most", s.level,
                          cpu_level_name(cpu_level()));
    struct nyb_err err;
    struct arena arena;
    struct checkkern_env env = {.arena = &arena, .seed = s.seed, .rounds = s.rounds};
    if (pool_open(&env.pool, s.n_thread, &err))
        return cli_fail("checkkern", &err);
    arena_init(&arena, 1 << 20);
    bool ok = true;
    for (int level = 0; level <= (int)cpu_level(); level++) {
        env.level = (enum cpu_level)level;
        if (!s.level || env.level == only)
            ok &= run_level(&s, &env);
    }
    arena_free(&arena);
    pool_close(env.pool);
    return ok ? 0 : 1;
}
