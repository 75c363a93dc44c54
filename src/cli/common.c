#include "cli/common.h"

#include <string.h>

#include "base/log.h"
#include "cli/cli.h"

void common_init(struct common_options *o)
{
    *o = (struct common_options){.model = cli_default_model(), .compute = COMPUTE_BF16};
    optind = 0; /* getopt starts anew */
}

bool common_parse_compute(const char *text, enum compute *out)
{
    for (int i = 0; i < COMPUTE_COUNT; i++)
        if (!strcmp(text, compute_name((enum compute)i))) {
            *out = (enum compute)i;
            return true;
        }
    return false;
}

static bool take_load_format(struct common_options *o, const char *command, const char *arg)
{
    if (strcmp(arg, "auto") && strcmp(arg, "dummy")) {
        cli_misuse(command, "--load-format takes auto or dummy, got \"%s\"", arg);
        return false;
    }
    o->load_format = strcmp(arg, "auto") ? LOAD_DUMMY : LOAD_AUTO;
    return true;
}

bool common_take(struct common_options *o, const char *command, int value, const char *arg)
{
    switch (value) {
    case COMMON_COMPUTE:
        if (common_parse_compute(arg, &o->compute))
            return true;
        cli_misuse(command, "--compute takes bf16, strict, int8 or w4a4, got \"%s\"", arg);
        return false;
    case COMMON_THREADS:
        return cli_parse_int(command, "--threads", arg, 1, 4096, &o->threads);
    case COMMON_LOAD_FORMAT:
        return take_load_format(o, command, arg);
    case COMMON_MAX_MODEL_LEN:
        return cli_parse_int(command, "--max-model-len", arg, 1, INT32_MAX, &o->max_model_len);
    case 'v':
        o->verbose = true;
        log_set_level(LOG_DEBUG);
        return true;
    default: /* getopt has named the option */
        cli_misuse(command, "the call is wrong");
        return false;
    }
}

bool common_take_model(struct common_options *o, const char *command, int argc, char **argv, int first)
{
    if (argc - first > 1) {
        cli_misuse(command, "one model at a time: \"%s\" comes after \"%s\"", argv[first + 1], argv[first]);
        return false;
    }
    if (first < argc)
        o->model = argv[first];
    return true;
}

enum nyb_code common_open_model(struct model **out, const struct common_options *o, const char *folder,
                                struct nyb_err *err)
{
    struct cli_progress bar;
    const struct model_options options = {
        .folder = folder,
        .load_format = o->load_format,
        .dummy_seed = 1,
        .compute = o->compute,
        .n_thread = (int)o->threads,
        .kv_type = -1,
        .max_model_len = o->max_model_len,
        .progress = cli_progress_update,
        .progress_arg = &bar,
    };
    cli_progress_start(&bar, "loading");
    enum nyb_code code = model_open(out, &options, err);
    cli_progress_end(&bar);
    return code;
}
