/* The command line of nybble bench model. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cli/bench_model.h"

static const char help[] =
    "nybble bench model: prefill and decode speed, beside the limits of this machine\n\n"
    "usage: nybble bench model [OPTIONS] [MODEL]\n\n"
    "Measures tokens/s as the best of several runs, what that is in GB/s and GFLOP/s over the bytes and the\n"
    "arithmetic that a step cannot do without, and two shares of what the same threads can do. \"roofline\": "
    "of\n"
    "the best run, of the limits in the machine's best moment. \"beside\": the median of all runs, each of "
    "what\n"
    "the machine did on average right before and after it, reading memory and computing from\n"
    "registers. Tokens are random; sampling is not part of it. Lists are separated by commas.\n\n"
    "  --prompt LIST    tokens of a prefill (default: 512; 0: none)\n"
    "  --gen N          tokens to decode for each sequence (default: 64; 0: none)\n"
    "  --depth LIST     tokens in the cache before decode begins (default: 0)\n"
    "  --batch LIST     sequences decoding together (default: 1)\n"
    "  --threads LIST   default: all cores\n"
    "  --repeat N       runs of each (default: 5)\n"
    "  --chunk N        most prompt tokens in a step (default: 2048)\n"
    "  --seed N         of the tokens (default: 1)\n"
    "  --scan           decode with 1 to 64 sequences: does tokens/s fall anywhere? (--prompt 0 and a list "
    "for\n"
    "                   --batch, where none is given)\n"
    "  --engine         besides, whole steps of the engine: schedule, forward, sample, deliver, detokenize\n"
    "  --tokenizer PATH for --engine, where the model has none: a folder, or a tokenizer.json\n"
    "  --profile        where the time of a step goes, by stage (one more run of each)\n"
    "  --trace FILE     that run as a Chrome trace\n"
    "  --json           one JSON object on standard output\n"
    "  --model FOLDER   the same as naming it without a flag\n"
    "  --compute MODE   bf16 (default), strict, int8 or w4a4: docs/NUMERICS.md\n"
    "  --load-format F  auto (default), or dummy: random weights from config.json alone\n"
    "  --max-model-len N  longest context (default: the model's)\n"
    "  --hf-overrides JSON  an object whose members replace those of config.json\n" COMMON_HELP_RANKS
    "  --device D       cpu (default), cuda, or auto: docs/BACKENDS.md; with --profile every kernel is "
    "timed\n"
    "  --moe-backend B, --gemm-backend B  a GPU's kernels: auto, sm90-w4a16, cublaslt-nvfp4, reference\n"
    "  --verbose        say more\n"
    "  --help           this text\n\n"
    "examples:\n"
    "  nybble bench model\n"
    "  nybble bench model --threads 1,2 --depth 0,4096 ~/models/Qwen3-30B-A3B-FP4\n"
    "  nybble bench model --prompt 0 --batch 1,4,8,16,32,64 --load-format dummy shapes/qwen3-30b-a3b\n"
    "  nybble bench model --profile --trace step.json --json > speed.json\n";

static bool parse_list(const char *option, const char *text, int64_t lo, int64_t hi, struct bench_list *out)
{
    char *copy = mem_strdup(text), *save = NULL;
    bool fine = true;
    out->n = 0;
    for (char *part = strtok_r(copy, ",", &save); fine && part; part = strtok_r(NULL, ",", &save)) {
        int64_t value;
        fine = cli_parse_int("bench model", option, part, lo, hi, &value);
        if (fine && out->n == BENCH_LIST_MAX) {
            cli_misuse("bench model", "%s takes at most %d numbers", option, BENCH_LIST_MAX);
            fine = false;
        }
        if (fine)
            out->v[out->n++] = (int)value;
    }
    if (fine && out->n == 0) {
        cli_misuse("bench model", "%s takes numbers separated by commas, got \"%s\"", option, text);
        fine = false;
    }
    free(copy);
    return fine;
}

int bench_list_max(const struct bench_list *l)
{
    int max = 0;
    for (int i = 0; i < l->n; i++)
        max = l->v[i] > max ? l->v[i] : max;
    return max;
}

enum {
    PROMPT = COMMON_OPTION_END,
    GEN,
    DEPTH,
    BATCH,
    REPEAT,
    CHUNK,
    SEED,
    PROFILE,
    TRACE,
    JSON,
    SCAN,
    ENGINE,
    TOKENIZER
};

static bool take(struct bench_model *b, int option, const char *arg)
{
    switch (option) {
    case PROMPT:
        b->prompt_given = true;
        return parse_list("--prompt", arg, 0, 1 << 24, &b->prompt);
    case DEPTH:
        return parse_list("--depth", arg, 0, 1 << 24, &b->depth);
    case BATCH:
        b->batch_given = true;
        return parse_list("--batch", arg, 1, 1 << 16, &b->batch);
    case COMMON_THREADS:
        return parse_list("--threads", arg, 1, 4096, &b->threads);
    case GEN:
        return cli_parse_int("bench model", "--gen", arg, 0, 1 << 20, &b->gen);
    case REPEAT:
        return cli_parse_int("bench model", "--repeat", arg, 1, 1000, &b->repeat);
    case CHUNK:
        return cli_parse_int("bench model", "--chunk", arg, 1, 1 << 20, &b->chunk);
    case SEED:
        return cli_parse_int("bench model", "--seed", arg, 0, INT64_MAX, &b->seed);
    case PROFILE:
        b->profile = true;
        return true;
    case TRACE:
        b->trace = arg;
        b->profile = true;
        return true;
    case SCAN:
        b->scan = true;
        return true;
    case ENGINE:
        b->engine = true;
        return true;
    case TOKENIZER:
        b->tokenizer = arg;
        return true;
    case JSON:
        b->json = true;
        return true;
    default:
        return common_take(&b->common, "bench model", option, arg);
    }
}

/* Around the borders of the tiles: 8 rows, two of them, four. */
static const struct bench_list scan_batches = {{1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64}, 16};

bool bench_model_options(struct bench_model *b, int argc, char **argv, int *status)
{
    static const struct option options[] = {
        {"prompt", required_argument, NULL, PROMPT},
        {"gen", required_argument, NULL, GEN},
        {"depth", required_argument, NULL, DEPTH},
        {"batch", required_argument, NULL, BATCH},
        {"repeat", required_argument, NULL, REPEAT},
        {"chunk", required_argument, NULL, CHUNK},
        {"seed", required_argument, NULL, SEED},
        {"profile", no_argument, NULL, PROFILE},
        {"trace", required_argument, NULL, TRACE},
        {"scan", no_argument, NULL, SCAN},
        {"engine", no_argument, NULL, ENGINE},
        {"tokenizer", required_argument, NULL, TOKENIZER},
        {"json", no_argument, NULL, JSON},
        COMMON_OPTIONS,
        {0},
    };
    *b = (struct bench_model){.prompt = {{512}, 1},
                              .depth = {{0}, 1},
                              .batch = {{1}, 1},
                              .threads = {{cpu_count()}, 1},
                              .gen = 64,
                              .repeat = 5,
                              .chunk = 2048,
                              .seed = 1};
    *status = 2;
    common_init(&b->common);
    for (int c; (c = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
        if (c == 'h') {
            fputs(help, stdout);
            *status = 0;
            return false;
        }
        if (!take(b, c, optarg))
            return false;
    }
    if (!common_take_model(&b->common, "bench model", argc, argv, optind))
        return false;
    if (b->scan && !b->prompt_given)
        b->prompt.v[0] = 0;
    if (b->scan && !b->batch_given)
        b->batch = scan_batches;
    if (bench_list_max(&b->prompt) == 0 && b->gen == 0) {
        cli_misuse("bench model", "--prompt 0 and --gen 0 leave nothing to measure");
        return false;
    }
    return true;
}
