/* nybble bench: how fast is the model on this machine, how fast does it open, and how fast is a server? */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cli/bench.h"
#include "cli/cli.h"

static const char help[] =
    "nybble bench: measure speed\n\n"
    "usage: nybble bench model [OPTIONS] [MODEL]   prefill and decode on this machine, beside its limits\n"
    "       nybble bench update [OPTIONS] [MODEL]  new weights while decoding, and how long it stands still\n"
    "       nybble bench comm [OPTIONS]            all-reduce between ranks, beside MPI's\n"
    "       nybble bench gpus [OPTIONS]            sums over several GPUs, beside NCCL's and the link's "
    "limit\n"
    "       nybble bench overlap [OPTIONS] [MODEL] two-batch overlap between ranks, beside none\n"
    "       nybble bench load [OPTIONS] [MODEL]    how fast it opens, from page cache and disk\n"
    "       nybble bench serve [OPTIONS]           load any OpenAI-compatible server and measure it\n\n"
    "examples:\n"
    "  nybble bench model\n"
    "  nybble bench model --help\n"
    "  nybble bench serve --help\n";

#ifndef NYBBLE_SERVER
static int without_server(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    return cli_misuse("bench", "this program was built without server and load generator (NYBBLE_SERVER)");
}
#define bench_serve without_server
#endif

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
} table[] = {
    {"model", bench_model}, {"load", bench_load},       {"update", bench_update}, {"comm", bench_comm},
    {"gpus", bench_gpus},   {"overlap", bench_overlap}, {"serve", bench_serve},
};

int cli_bench(int argc, char **argv)
{
    if (argc < 2)
        return cli_misuse("bench",
                          "what to measure is missing: model, update, load, comm, gpus, overlap or serve");
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) {
        fputs(help, stdout);
        return 0;
    }
    for (size_t i = 0; i < COUNT_OF(table); i++) {
        char as[32]; /* getopt's messages begin with it */
        if (strcmp(argv[1], table[i].name))
            continue;
        snprintf(as, sizeof(as), "nybble bench %s", table[i].name);
        argv[1] = as;
        return table[i].run(argc - 1, argv + 1);
    }
    return cli_misuse("bench", "measures model, update, load, comm, gpus, overlap or serve, not \"%s\"",
                      argv[1]);
}
