/* What a checkpoint is made of, read from its files alone: no weights are kept. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/quant.h"
#include "cli/cli.h"
#include "cli/common.h"
#include "cli/inspect_checksum.h"
#include "cli/inspect_error.h"
#include "model/config.h"

static const char help[] =
    "nybble inspect: architecture, modules, sizes and quantization error of a checkpoint\n\n"
    "usage: nybble inspect [OPTIONS] [MODEL]\n\n"
    "  --model FOLDER   the same as naming it without a flag\n"
    "  --modules        one line for every module, experts not folded together\n"
    "  --checksum       a fingerprint of the weights' values; with --modules one of each tensor too\n"
    "  --reference DIR  the same model before quantization: errors are measured against it\n"
    "  --json           one JSON object on standard output\n"
    "  --help           this text\n\n"
    "The error of a layer is the relative RMS distance of its quantized weights from the original ones. "
    "Without\n"
    "--reference it is estimated from the codes, taking the originals as evenly spread within each rounding "
    "cell.\n\n"
    "examples:\n"
    "  nybble inspect\n"
    "  nybble inspect ~/models/Qwen3-30B-A3B-FP4 --json\n"
    "  nybble inspect quantized --reference original\n";

/* Modules that differ only in their expert's number, or one module. */
struct group {
    char *name; /* "model.layers.3.mlp.experts.*.up_proj" */
    enum linear_kind kind;
    int64_t n, k;
    int layer; /* -1: outside the layers */
    int count;
    uint64_t weights, bytes;
    struct inspect_error error;
};

struct inspect {
    const char *model, *reference_path;
    bool modules, json, checksum;
    struct ckpt *ckpt, *reference;
    struct quant *quant;
    struct hfconfig hf;
    struct group *group;
    int n_group, cap_group;
    uint64_t other_weights, other_bytes; /* norms, biases: one-dimensional */
};

static const char *kind_name(enum linear_kind kind)
{
    static const char *const name[] = {"NVFP4", "FP8", "BF16", "F16", "F32"};
    return name[kind];
}

/* The index of the layer in "model.layers.7.mlp.gate", else -1. */
static int layer_of(const char *name)
{
    const char *p = strstr(name, "layers.");
    return p ? atoi(p + 7) : -1;
}

/* Caller frees. The expert's number becomes "*" unless every module gets a line. */
static char *group_name(const char *module, bool every)
{
    const char *p = every ? NULL : strstr(module, "experts.");
    if (!p || p[8] < '0' || p[8] > '9')
        return mem_strdup(module);
    const char *rest = p + 8 + strspn(p + 8, "0123456789");
    return mem_printf("%.*s*%s", (int)(p + 8 - module), module, rest);
}

static struct group *group_find(struct inspect *in, const char *module, const struct linear_source *src)
{
    char *name = group_name(module, in->modules);
    for (int i = in->modules ? -1 : in->n_group - 1; i >= 0;
         i--) /* the sorted list brings neighbours together */
        if (in->group[i].kind == src->kind && !strcmp(in->group[i].name, name)) {
            free(name);
            return &in->group[i];
        }
    if (in->n_group == in->cap_group) {
        in->cap_group = in->cap_group ? 2 * in->cap_group : 64;
        in->group = mem_grow(in->group, (size_t)in->cap_group, sizeof(*in->group));
    }
    struct group *g = &in->group[in->n_group++];
    *g = (struct group){.name = name, .kind = src->kind, .n = src->n, .k = src->k, .layer = layer_of(module)};
    return g;
}

/* ---- collecting ---------------------------------------------------------------------------------- */

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), m = strlen(tail);
    return n >= m && !strcmp(s + n - m, tail);
}

static enum nyb_code add_module(struct inspect *in, const struct ckpt_tensor *t, size_t suffix,
                                struct nyb_err *err)
{
    char *module = mem_strndup(t->name, strlen(t->name) - suffix);
    struct linear_source src;
    int64_t k = t->dtype == DTYPE_U8 ? 2 * t->dim[1] : t->dim[1];
    enum nyb_code code = quant_linear(in->quant, in->ckpt, module, t->dim[0], k, &src, err);
    if (code == NYB_OK) {
        struct group *g = group_find(in, module, &src);
        g->count++;
        g->weights += (uint64_t)src.n * (uint64_t)src.k;
        g->bytes += src.weight->bytes + (src.scale ? src.scale->bytes : 0);
        if (src.kind == LINEAR_NVFP4)
            code = inspect_error_add(&g->error, in->ckpt, in->reference, module, &src, err);
    }
    free(module);
    return code;
}

static enum nyb_code collect(struct inspect *in, struct nyb_err *err)
{
    for (int i = 0; i < in->ckpt->n_tensor; i++) {
        const struct ckpt_tensor *t = &in->ckpt->tensor[i];
        bool packed = ends_with(t->name, ".weight_packed");
        if (t->n_dim == 2 && (packed || ends_with(t->name, ".weight"))) {
            TRY(add_module(in, t, packed ? strlen(".weight_packed") : strlen(".weight"), err));
        } else if (t->n_dim == 1 && t->dtype != DTYPE_U8 && t->dim[0] > 1) {
            in->other_weights += (uint64_t)t->dim[0];
            in->other_bytes += t->bytes;
        }
    }
    return NYB_OK;
}

/* ---- printing ------------------------------------------------------------------------------------ */

struct totals {
    uint64_t weights, bytes, quantized;
};

static struct totals sum_up(const struct inspect *in)
{
    struct totals t = {in->other_weights, in->other_bytes, 0};
    for (int i = 0; i < in->n_group; i++) {
        t.weights += in->group[i].weights;
        t.bytes += in->group[i].bytes;
        t.quantized += in->group[i].kind == LINEAR_NVFP4 ? in->group[i].weights : 0;
    }
    return t;
}

/* Relative RMS error over all quantized weights of a layer; false when it has none. */
static bool layer_error(const struct inspect *in, int layer, double *out)
{
    double e = 0, v = 0;
    for (int i = 0; i < in->n_group; i++)
        if (in->group[i].layer == layer) {
            e += in->group[i].error.error2;
            v += in->group[i].error.value2;
        }
    *out = v > 0 ? sqrt(e / v) : 0;
    return v > 0;
}

static int layer_count(const struct inspect *in)
{
    int n = 0;
    for (int i = 0; i < in->n_group; i++)
        if (in->group[i].layer >= n)
            n = in->group[i].layer + 1;
    return n;
}

static void print_text(const struct inspect *in, const struct model_config *c)
{
    struct totals t = sum_up(in);
    printf("%s\n", in->ckpt->folder);
    printf("architecture  %s: %d layers, hidden %d, %d heads (%d for k and v) of %d, vocabulary %d, context "
           "%" PRId64 "\n",
           c->model_type, c->n_layer, c->hidden, c->n_head, c->n_kv_head, c->head_dim, c->vocab,
           c->max_position);
    if (c->moe.n_expert)
        printf("experts       %d of intermediate size %d, top %d, %d shared\n", c->moe.n_expert,
               c->moe.intermediate, c->moe.top_k, c->moe.n_shared);
    printf("quantization  %s\n", quant_describe(in->quant));
    printf("files         %d, %.1f MB of tensors\n", in->ckpt->n_file, (double)in->ckpt->tensor_bytes * 1e-6);
    printf("weights       %.1f M, %.3f bits each, %.1f %% of them NVFP4\n\n", (double)t.weights * 1e-6,
           t.weights ? 8.0 * (double)t.bytes / (double)t.weights : 0,
           t.weights ? 100.0 * (double)t.quantized / (double)t.weights : 0);
    printf("%-56s %-6s %6s %14s %10s %8s\n", "module", "type", "count", "shape", "MB", "error");
    for (int i = 0; i < in->n_group; i++) {
        const struct group *g = &in->group[i];
        char shape[48], error[16] = "";
        snprintf(shape, sizeof(shape), "%" PRId64 "x%" PRId64, g->n, g->k);
        if (g->error.value2 > 0)
            snprintf(error, sizeof(error), "%.2f %%", 100 * sqrt(g->error.error2 / g->error.value2));
        printf("%-56s %-6s %6d %14s %10.3f %8s\n", g->name, kind_name(g->kind), g->count, shape,
               (double)g->bytes * 1e-6, error);
    }
    printf("\n%s, by layer:\n", in->reference ? "error against the reference" : "estimated rounding error");
    for (int layer = -1; layer < layer_count(in); layer++) {
        double e;
        if (!layer_error(in, layer, &e))
            continue;
        if (layer < 0)
            printf("  outside    %.2f %%\n", 100 * e);
        else
            printf("  layer %-4d %.2f %%\n", layer, 100 * e);
    }
}

static void print_json(const struct inspect *in, const struct model_config *c)
{
    struct totals t = sum_up(in);
    json_t *modules = json_array(), *layers = json_array();
    for (int i = 0; i < in->n_group; i++) {
        const struct group *g = &in->group[i];
        json_t *m =
            json_pack("{s:s, s:s, s:i, s:I, s:I, s:I, s:I}", "name", g->name, "type", kind_name(g->kind),
                      "count", g->count, "n", (json_int_t)g->n, "k", (json_int_t)g->k, "weights",
                      (json_int_t)g->weights, "bytes", (json_int_t)g->bytes);
        if (g->error.value2 > 0)
            json_object_set_new(m, "error", json_real(sqrt(g->error.error2 / g->error.value2)));
        json_array_append_new(modules, m);
    }
    for (int layer = 0; layer < layer_count(in); layer++) {
        double e;
        json_array_append_new(layers, layer_error(in, layer, &e) ? json_real(e) : json_null());
    }
    json_t *root = json_pack(
        "{s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:I, s:i, s:i, s:i, s:i, s:i, s:I, s:I, s:f, s:I, "
        "s:b, s:o, s:o}",
        "folder", in->ckpt->folder, "model_type", c->model_type, "quantization", quant_describe(in->quant),
        "layers", c->n_layer, "hidden_size", c->hidden, "heads", c->n_head, "kv_heads", c->n_kv_head,
        "head_dim", c->head_dim, "vocab_size", c->vocab, "max_position", (json_int_t)c->max_position,
        "experts", c->moe.n_expert, "top_k", c->moe.top_k, "moe_intermediate_size", c->moe.intermediate,
        "shared_experts", c->moe.n_shared, "files", in->ckpt->n_file, "weights", (json_int_t)t.weights,
        "bytes", (json_int_t)t.bytes, "bits_per_weight",
        t.weights ? 8.0 * (double)t.bytes / (double)t.weights : 0.0, "nvfp4_weights", (json_int_t)t.quantized,
        "measured_against_reference", in->reference != NULL, "modules", modules, "layer_error", layers);
    json_dumpf(root, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
    putchar('\n');
    json_decref(root);
}

static enum nyb_code run(struct inspect *in, struct nyb_err *err)
{
    char *folder = NULL, *other = NULL;
    struct model_config config = {0};
    enum nyb_code code = ckpt_resolve(&folder, in->model, err);
    if (code == NYB_OK)
        code = hfconfig_open(&in->hf, folder, err);
    if (code == NYB_OK)
        code = model_config_parse(&config, &in->hf, err);
    if (code == NYB_OK)
        code = quant_parse(&in->quant, in->hf.root, folder, err);
    if (code == NYB_OK)
        code = ckpt_open(&in->ckpt, folder, CKPT_THREADS, err);
    if (code == NYB_OK && in->reference_path)
        code = ckpt_resolve(&other, in->reference_path, err);
    if (code == NYB_OK && other)
        code = ckpt_open(&in->reference, other, CKPT_THREADS, err);
    if (code == NYB_OK)
        code = collect(in, err);
    if (code == NYB_OK && in->json)
        print_json(in, &config);
    else if (code == NYB_OK)
        print_text(in, &config);
    for (int i = 0; i < in->n_group; i++)
        free(in->group[i].name);
    free(in->group);
    ckpt_close(in->reference);
    ckpt_close(in->ckpt);
    quant_free(in->quant);
    model_config_free(&config);
    hfconfig_close(&in->hf);
    free(other);
    free(folder);
    return code;
}

int cli_inspect(int argc, char **argv)
{
    enum { MODULES = COMMON_OPTION_END, REFERENCE, JSON, CHECKSUM };
    static const struct option options[] = {
        {"model", required_argument, NULL, COMMON_MODEL},
        {"modules", no_argument, NULL, MODULES},
        {"reference", required_argument, NULL, REFERENCE},
        {"json", no_argument, NULL, JSON},
        {"checksum", no_argument, NULL, CHECKSUM},
        {"verbose", no_argument, NULL, 'v'},
        {"help", no_argument, NULL, 'h'},
        {0},
    };
    struct common_options common;
    struct inspect in = {0};
    common_init(&common);
    for (int c; (c = getopt_long(argc, argv, "hv", options, NULL)) != -1;)
        switch (c) {
        case MODULES:
            in.modules = true;
            break;
        case REFERENCE:
            in.reference_path = optarg;
            break;
        case JSON:
            in.json = true;
            break;
        case CHECKSUM:
            in.checksum = true;
            break;
        case 'h':
            fputs(help, stdout);
            return 0;
        default:
            if (!common_take(&common, "inspect", c, optarg))
                return 2;
        }
    if (!common_take_model(&common, "inspect", argc, argv, optind))
        return 2;
    in.model = common.model;
    if (in.checksum && in.reference_path)
        return cli_misuse("inspect", "--checksum needs no --reference");
    struct nyb_err err;
    enum nyb_code code = in.checksum ? inspect_checksum(in.model, in.modules, in.json, &err) : run(&in, &err);
    return code == NYB_OK ? 0 : cli_fail("inspect", &err);
}
