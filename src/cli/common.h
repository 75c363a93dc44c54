/* Options that every command which opens a model shares. */
#ifndef NYB_CLI_COMMON_H
#define NYB_CLI_COMMON_H

#include <getopt.h>

#include "model/model.h"

struct common_options {
    const char *model; /* as named by the user */
    enum compute compute;
    enum load_format load_format;
    int64_t threads, max_model_len;
    bool verbose;
};

enum { COMMON_COMPUTE = 256, COMMON_THREADS, COMMON_LOAD_FORMAT, COMMON_MAX_MODEL_LEN, COMMON_OPTION_END };

#define COMMON_OPTIONS                                                    \
    {"compute", required_argument, NULL, COMMON_COMPUTE},                 \
        {"threads", required_argument, NULL, COMMON_THREADS},             \
        {"load-format", required_argument, NULL, COMMON_LOAD_FORMAT},     \
        {"max-model-len", required_argument, NULL, COMMON_MAX_MODEL_LEN}, \
        {"verbose", no_argument, NULL, 'v'},                              \
    {                                                                     \
        "help", no_argument, NULL, 'h'                                    \
    }

#define COMMON_HELP                                                                        \
    "  --compute MODE   bf16 (default), strict, int8 or w4a4: docs/NUMERICS.md\n"          \
    "  --threads N      default: all cores\n"                                              \
    "  --load-format F  auto (default), or dummy: random weights from config.json alone\n" \
    "  --max-model-len N  longest context (default: the model's)\n"                        \
    "  --verbose        say more\n"                                                        \
    "  --help           this text\n"

void common_init(struct common_options *o);
/* One getopt value; false after a complaint (an unknown option included). */
bool common_take(struct common_options *o, const char *command, int value, const char *arg);
/* The positional argument, if any; more than one is a complaint. */
bool common_take_model(struct common_options *o, const char *command, int argc, char **argv, int first);

/* Open with a progress bar. folder: resolved. */
enum nyb_code common_open_model(struct model **out, const struct common_options *o, const char *folder,
                                struct nyb_err *err) NYB_MUST_CHECK;

bool common_parse_compute(const char *text, enum compute *out);

#endif
