#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/slip.h"
#include "cli/cli.h"

static const struct command {
    const char *name, *summary;
    int (*run)(int argc, char **argv);
} commands[] = {
#define CLI_ROW(name, summary) {#name, summary, cli_##name},
#include "cli/cli.def"
#undef CLI_ROW
};
#define N_COMMAND (sizeof(commands) / sizeof(commands[0]))

static void print_help(FILE *out)
{
    fputs("nybble: run NVFP4 Mixture-of-Experts models from their Hugging Face folders\n\n"
          "usage: nybble COMMAND [OPTIONS] [MODEL]\n\n",
          out);
    for (size_t i = 0; i < N_COMMAND; i++)
        fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].summary);
    fputs("\nMODEL is a folder with config.json and *.safetensors, or a repository id in the local\n"
          "Hugging Face cache. Without one the small embedded model is used.\n\n"
          "examples:\n"
          "  nybble run -p \"Once upon a time\"\n"
          "  nybble run nvidia/Qwen3-30B-A3B-FP4\n"
          "  nybble inspect ~/models/GLM-4.5-Air-NVFP4\n"
          "  nybble COMMAND --help\n",
          out);
}

static int run(const struct command *command, int argc, char **argv)
{
    char as[32]; /* getopt's messages begin with it */
    snprintf(as, sizeof(as), "nybble %s", command->name);
    argv[0] = as;
    return command->run(argc, argv);
}

static const struct command *find(const char *name)
{
    for (size_t i = 0; i < N_COMMAND; i++)
        if (!strcmp(name, commands[i].name))
            return &commands[i];
    return NULL;
}

static int say_there_is_none(const char *name)
{
    const char *near = NULL;
    size_t limit = slip_limit(name);
    for (size_t i = 0; i < N_COMMAND; i++)
        if (slip_is_nearer(name, commands[i].name, &limit))
            near = commands[i].name;
    fprintf(stderr, "nybble: no command \"%s\"%s%s%s; nybble --help lists them\n", name,
            near ? ", but \"" : "", near ? near : "", near ? "\"" : "");
    return 2;
}

/* Whoever starts us with one of the three standard streams closed must not have what we print end up in a
 * file or connection that is opened next. What holds their places cannot be written to. */
static void hold_standard_streams(void)
{
    int fd;
    do
        fd = open("/dev/null", O_RDONLY);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        close(fd);
}

int main(int argc, char **argv)
{
    hold_standard_streams();
    if (argc < 2) {
        print_help(stderr);
        return 2;
    }
    const char *name = argv[1];
    if (!strcmp(name, "--version") || !strcmp(name, "-V") || !strcmp(name, "version")) {
        puts("nybble " NYBBLE_VERSION);
        return cli_close_stdout(NULL, 0);
    }
    if (!strcmp(name, "help") && argc == 3 && find(argv[2])) { /* help COMMAND: COMMAND --help */
        char *call[] = {argv[2], "--help", NULL};
        return cli_close_stdout(argv[2], run(find(argv[2]), 2, call));
    }
    if (!strcmp(name, "--help") || !strcmp(name, "-h") || !strcmp(name, "help")) {
        print_help(stdout);
        return cli_close_stdout(NULL, 0);
    }
    const struct command *command = find(name);
    return command ? cli_close_stdout(name, run(command, argc - 1, argv + 1)) : say_there_is_none(name);
}
