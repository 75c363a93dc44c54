/* Options that every command which opens a model shares. */
#ifndef NYB_CLI_COMMON_H
#define NYB_CLI_COMMON_H

#include <getopt.h>

#include "model/model.h"

struct common_options {
    const char *model; /* as named by the user */
    bool named;        /* by --model           */
    enum compute compute;
    enum load_format load_format;
    enum device_choice device;
    enum device_backend moe_backend, gemm_backend;
    int64_t max_batched_tokens; /* commands that know set it; 0: a default */
    int64_t threads, max_model_len;
    const char *hf_overrides; /* members in place of config.json's, or NULL */
    int64_t tensor_parallel;  /* ranks */
    bool expert_parallel, no_fusion;
    int64_t redundant_experts;
    enum dispatch_type dispatch;
    enum overlap_mode overlap;
    bool verbose;
};

enum {
    COMMON_MODEL = 256,
    COMMON_COMPUTE,
    COMMON_THREADS,
    COMMON_LOAD_FORMAT,
    COMMON_MAX_MODEL_LEN,
    COMMON_HF_OVERRIDES,
    COMMON_TENSOR_PARALLEL,
    COMMON_OVERLAP,
    COMMON_EXPERT_PARALLEL,
    COMMON_DISPATCH,
    COMMON_REDUNDANT_EXPERTS,
    COMMON_FUSION,
    COMMON_DEVICE,
    COMMON_MOE_BACKEND,
    COMMON_GEMM_BACKEND,
    COMMON_OPTION_END
};

#define COMMON_OPTIONS                                                                                       \
    {"model", required_argument, NULL, COMMON_MODEL}, {"compute", required_argument, NULL, COMMON_COMPUTE},  \
        {"threads", required_argument, NULL, COMMON_THREADS},                                                \
        {"load-format", required_argument, NULL, COMMON_LOAD_FORMAT},                                        \
        {"max-model-len", required_argument, NULL, COMMON_MAX_MODEL_LEN},                                    \
        {"hf-overrides", required_argument, NULL, COMMON_HF_OVERRIDES},                                      \
        {"tensor-parallel-size", required_argument, NULL, COMMON_TENSOR_PARALLEL},                           \
        {"enable-expert-parallel", no_argument, NULL, COMMON_EXPERT_PARALLEL},                               \
        {"enable-allreduce-fusion", required_argument, NULL, COMMON_FUSION},                                 \
        {"device", required_argument, NULL, COMMON_DEVICE},                                                  \
        {"moe-backend", required_argument, NULL, COMMON_MOE_BACKEND},                                        \
        {"gemm-backend", required_argument, NULL, COMMON_GEMM_BACKEND},                                      \
        {"num-redundant-experts", required_argument, NULL, COMMON_REDUNDANT_EXPERTS},                        \
        {"dispatch-dtype", required_argument, NULL, COMMON_DISPATCH},                                        \
        {"two-batch-overlap", required_argument, NULL, COMMON_OVERLAP}, {"verbose", no_argument, NULL, 'v'}, \
    {                                                                                                        \
        "help", no_argument, NULL, 'h'                                                                       \
    }

/* Of options for several ranks. */
#define COMMON_HELP_RANKS                                                                                   \
    "  --tensor-parallel-size N  processes that share the model out (default: 1, or what mpirun started)\n" \
    "  --enable-expert-parallel  share out experts and sequences, not features\n"                           \
    "  --num-redundant-experts N  slots of each layer for second copies of experts (default: 0)\n"          \
    "  --dispatch-dtype T  rows on their way to experts: f32 (default), bf16, fp8 or nvfp4\n"               \
    "  --two-batch-overlap M  off (default), auto or always: docs/OVERLAP.md\n"                             \
    "  --enable-allreduce-fusion B  on (default): sum, residual and norm in one pass; off: apart\n"

#define COMMON_HELP                                                                                       \
    "  --model FOLDER   the same as naming it without a flag\n"                                           \
    "  --compute MODE   bf16 (default), strict, int8 or w4a4: docs/NUMERICS.md\n"                         \
    "  --threads N      default: as measured, at most one a core\n"                                       \
    "  --load-format F  auto (default), or dummy: random weights from config.json alone\n"                \
    "  --max-model-len N  longest context (default: the model's)\n"                                       \
    "  --hf-overrides JSON  an object whose members replace those of config.json\n" COMMON_HELP_RANKS     \
    "  --device D       cpu (default), cuda, or auto: docs/BACKENDS.md\n"                                 \
    "  --moe-backend B, --gemm-backend B  a GPU's kernels: auto, sm90-w4a16, cublaslt-nvfp4, reference\n" \
    "  --verbose        say more\n"                                                                       \
    "  --help           this text\n"

void common_init(struct common_options *o);
/* One getopt value; false after a complaint (an unknown option included). */
bool common_take(struct common_options *o, const char *command, int value, const char *arg);
/* The positional argument, if any; more than one is a complaint, and so is one beside --model. */
bool common_take_model(struct common_options *o, const char *command, int argc, char **argv, int first);

/* Open with a progress bar. folder: resolved. With several ranks only rank 0 returns from here with a model:
 * the others follow it, and end their process when it is done. */
enum nyb_code common_open_model(struct model **out, const struct common_options *o, const char *folder,
                                struct nyb_err *err) NYB_MUST_CHECK;

/* Of the three options, whose defaults are NYBBLE_DEVICE, NYBBLE_MOE_BACKEND and NYBBLE_GEMM_BACKEND. */
bool common_take_device(const char *command, const char *text, enum device_choice *out);
bool common_take_backend(const char *command, const char *option, const char *text, enum device_backend *out);
bool common_device_defaults(const char *command, enum device_choice *device, enum device_backend *moe,
                            enum device_backend *gemm);

bool common_parse_compute(const char *text, enum compute *out);

#endif
