#include "cli/common.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "cli/cli.h"
#include "comm/comm.h"

#define COMM_SLOT_BYTES ((size_t)4 << 20)

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

static bool take_overlap(struct common_options *o, const char *arg)
{
    static const char *const name[] = {
        [OVERLAP_OFF] = "off", [OVERLAP_AUTO] = "auto", [OVERLAP_ALWAYS] = "always"};
    for (int i = 0; i <= OVERLAP_ALWAYS; i++)
        if (!strcmp(arg, name[i])) {
            o->overlap = (enum overlap_mode)i;
            return true;
        }
    return false;
}

bool common_take_device(const char *command, const char *text, enum device_choice *out)
{
    if (model_parse_device(text, out))
        return true;
    cli_misuse(command, "--device takes cpu, cuda or auto, got \"%s\"", text);
    return false;
}

bool common_take_backend(const char *command, const char *option, const char *text, enum device_backend *out)
{
    if (model_parse_backend(text, out))
        return true;
    cli_misuse(command, "%s takes auto, sm90-w4a16, cublaslt-nvfp4 or reference, got \"%s\"", option, text);
    return false;
}

bool common_device_defaults(const char *command, enum device_choice *device, enum device_backend *moe,
                            enum device_backend *gemm)
{
    const char *d = getenv("NYBBLE_DEVICE"), *m = getenv("NYBBLE_MOE_BACKEND"),
               *g = getenv("NYBBLE_GEMM_BACKEND");
    return (!d || common_take_device(command, d, device)) &&
           (!m || common_take_backend(command, "NYBBLE_MOE_BACKEND", m, moe)) &&
           (!g || common_take_backend(command, "NYBBLE_GEMM_BACKEND", g, gemm));
}

void common_init(struct common_options *o)
{
    *o = (struct common_options){.model = cli_default_model(), .compute = COMPUTE_BF16};
    optind = 0; /* getopt starts anew */
    if (!common_device_defaults("environment", &o->device, &o->moe_backend, &o->gemm_backend))
        exit(2);
}

bool common_take(struct common_options *o, const char *command, int value, const char *arg)
{
    switch (value) {
    case COMMON_MODEL:
        o->model = arg;
        return o->named = true;
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
    case COMMON_HF_OVERRIDES:
        o->hf_overrides = arg;
        return true;
    case COMMON_TENSOR_PARALLEL:
        return cli_parse_int(command, "--tensor-parallel-size", arg, 1, COMM_RANK_MAX, &o->tensor_parallel);
    case COMMON_EXPERT_PARALLEL:
        return o->expert_parallel = true;
    case COMMON_REDUNDANT_EXPERTS:
        return cli_parse_int(command, "--num-redundant-experts", arg, 0, INT16_MAX, &o->redundant_experts);
    case COMMON_DISPATCH:
        if (model_parse_dispatch(arg, &o->dispatch))
            return true;
        cli_misuse(command, "--dispatch-dtype takes f32, bf16, fp8 or nvfp4, got \"%s\"", arg);
        return false;
    case COMMON_FUSION:
        o->no_fusion = !strcmp(arg, "off");
        if (o->no_fusion || !strcmp(arg, "on"))
            return true;
        cli_misuse(command, "--enable-allreduce-fusion takes on or off, got \"%s\"", arg);
        return false;
    case COMMON_DEVICE:
        return common_take_device(command, arg, &o->device);
    case COMMON_MOE_BACKEND:
        return common_take_backend(command, "--moe-backend", arg, &o->moe_backend);
    case COMMON_GEMM_BACKEND:
        return common_take_backend(command, "--gemm-backend", arg, &o->gemm_backend);
    case COMMON_OVERLAP:
        if (take_overlap(o, arg))
            return true;
        cli_misuse(command, "--two-batch-overlap takes off, auto or always, got \"%s\"", arg);
        return false;
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
    const char *before = o->named ? o->model : argv[first];
    int next = o->named ? first : first + 1;
    if (next < argc) {
        cli_misuse(command, "one model at a time: \"%s\" comes after \"%s\"", argv[next], before);
        return false;
    }
    if (first < argc)
        o->model = argv[first];
    return true;
}

static enum nyb_code open_ranks(struct comm **out, const struct common_options *o, struct nyb_err *err)
{
    const struct comm_options options = {.slot_bytes = COMM_SLOT_BYTES};
    *out = NULL;
    if (comm_mpi_started())
        return comm_open_mpi(out, &options, err);
    if (o->tensor_parallel <= 1)
        return NYB_OK;
    fflush(stdout); /* or every rank would print what is there */
    return comm_fork(out, (int)o->tensor_parallel, &options, err);
}

/* Does not return. */
static void follow(struct model *m)
{
    struct nyb_err err;
    enum nyb_code code = model_follow(m, &err);
    model_close(m);
    exit(code == NYB_OK ? 0 : 1);
}

enum nyb_code common_open_model(struct model **out, const struct common_options *o, const char *folder,
                                struct nyb_err *err)
{
    struct cli_progress bar;
    struct comm *comm;
    TRY(open_ranks(&comm, o, err));
    bool first = !comm || comm_rank(comm) == 0;
    if (!first && !o->verbose)
        log_set_level(LOG_WARN); /* rank 0 says the same */
    const struct model_options options = {
        .folder = folder,
        .load_format = o->load_format,
        .dummy_seed = 1,
        .compute = o->compute,
        .n_thread = (int)o->threads,
        .kv_type = -1,
        .max_model_len = o->max_model_len,
        .hf_overrides = o->hf_overrides,
        .device = o->device,
        .moe_backend = o->moe_backend,
        .gemm_backend = o->gemm_backend,
        .max_batched_tokens = (int)o->max_batched_tokens,
        .comm = comm,
        .expert_parallel = o->expert_parallel,
        .redundant_experts = (int)o->redundant_experts,
        .dispatch = o->dispatch,
        .overlap = {.mode = o->overlap},
        .no_fusion = o->no_fusion,
        .progress = first ? cli_progress_update : NULL,
        .progress_arg = &bar,
    };
    if (first)
        cli_progress_start(&bar, "loading");
    enum nyb_code code = model_open(out, &options, err);
    if (first)
        cli_progress_end(&bar);
    if (code != NYB_OK)
        comm_close(comm);
    if (!first && code != NYB_OK)
        exit(1); /* rank 0 tells */
    if (!first)
        follow(*out);
    return code;
}
