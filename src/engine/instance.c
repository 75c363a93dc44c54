#include "engine/instance.h"
#include "engine/ranks.h"

#include <stdlib.h>

#include "base/clocale.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "checkpoint/checkpoint.h"
#include "kernels/kv.h"
#include "model/model.h"

_Static_assert((int)NYB_KV_F32 == (int)KV_F32 && (int)NYB_KV_BF16 == (int)KV_BF16 &&
                   (int)NYB_KV_FP8 == (int)KV_FP8,
               "same order");

#define BLOCK_COUNT_MAX (INT32_MAX / KV_BLOCK) /* a slot is an int32 */
#define MIB(bytes)      ((double)(bytes) / 1048576.0)

const char *nyb_version(void)
{
    return NYBBLE_VERSION;
}

void nyb_options_init(struct nyb_options *o)
{
    *o = (struct nyb_options){.kv_dtype = NYB_KV_AUTO,
                              .max_num_seqs = 64,
                              .max_waiting = 1024,
                              .max_logprobs = 20,
                              .prefix_cache = true,
                              .tensor_parallel_size = 1,
                              .allreduce_fusion = true,
                              .stuck_ms = 300000,
                              .seed = -1,
                              .dummy_seed = 1};
}

static enum nyb_code check_expert_options(const struct nyb_options *o, struct nyb_err *err)
{
    const struct {
        const char *name;
        int value;
    } of_experts[] = {
        {"num_redundant_experts", o->num_redundant_experts},
        {"expert_rebalance_interval", o->expert_rebalance_interval},
        {"dispatch_dtype", (int)o->dispatch_dtype},
    };
    for (size_t i = 0; i < COUNT_OF(of_experts) && !o->expert_parallel; i++)
        if (of_experts[i].value)
            return err_at(err, NYB_E_ARG, of_experts[i].name, -1,
                          "%s is for experts that ranks share out whole: expert_parallel is off",
                          of_experts[i].name);
    return NYB_OK;
}

static enum nyb_code check_options(const struct nyb_options *o, struct nyb_err *err)
{
    if (!o->model)
        return err_at(err, NYB_E_ARG, "model", -1, "no model is named");
    const struct {
        const char *name;
        int value, lo, hi;
    } range[] = {
        {"max_num_seqs", o->max_num_seqs, 1, 4096},
        {"max_num_batched_tokens", ranks_step_tokens(o, false), o->max_num_seqs, 1 << 20},
        {"max_waiting", o->max_waiting, 0, 1 << 20},
        {"max_logprobs", o->max_logprobs, 0, 1000},
        {"stuck_ms", o->stuck_ms, 1, INT32_MAX},
        {"tensor_parallel_size", o->tensor_parallel_size, 0, COMM_RANK_MAX},
        {"num_redundant_experts", o->num_redundant_experts, 0, INT16_MAX},
        {"expert_rebalance_interval", o->expert_rebalance_interval, 0, INT32_MAX},
        {"dispatch_dtype", (int)o->dispatch_dtype, NYB_DISPATCH_F32, NYB_DISPATCH_NVFP4},
        {"load_format", (int)o->load_format, NYB_LOAD_AUTO, NYB_LOAD_DUMMY},
        {"compute", (int)o->compute, NYB_COMPUTE_BF16, NYB_COMPUTE_W4A4},
        {"kv_dtype", (int)o->kv_dtype, NYB_KV_AUTO, NYB_KV_FP8},
        {"device", (int)o->device, NYB_DEVICE_CPU, NYB_DEVICE_AUTO},
        {"moe_backend", (int)o->moe_backend, NYB_BACKEND_AUTO, NYB_BACKEND_REFERENCE},
        {"gemm_backend", (int)o->gemm_backend, NYB_BACKEND_AUTO, NYB_BACKEND_REFERENCE},
    };
    struct params_context defaults;
    params_context_init(&defaults);
    if (o->defaults)
        TRY(params_context_set(&defaults, o->defaults, err));
    if (o->seed < -1)
        return err_at(err, NYB_E_RANGE, "seed", -1, "seed must be -1 (random) or at least 0, got %lld",
                      (long long)o->seed);
    for (size_t i = 0; i < COUNT_OF(range); i++)
        if (range[i].value < range[i].lo || range[i].value > range[i].hi)
            return err_at(err, NYB_E_RANGE, range[i].name, -1, "%s must be in [%d, %d], got %d",
                          range[i].name, range[i].lo, range[i].hi, range[i].value);
    return check_expert_options(o, err);
}

/* ---- text ------------------------------------------------------------------------------------------ */

static enum nyb_code open_text(struct nyb_engine *e, const struct nyb_options *o, struct nyb_err *err)
{
    char *path = path_join(e->folder, "tokenizer.json");
    bool absent = o->load_format == NYB_LOAD_DUMMY && !file_exists(path);
    free(path);
    if (absent)
        return NYB_OK;
    TRY(tok_open(&e->tokenizer, e->folder, err));
    return chat_open(&e->chat, e->folder, o->chat_template, err);
}

/* ---- KV cache -------------------------------------------------------------------------------------- */

/* Blocks for what the limits can use, within the memory given; and the context that fits them. */
static enum nyb_code size_cache(const struct nyb_engine *e, const struct nyb_options *o, int *n_block,
                                int *max_len, struct nyb_err *err)
{
    size_t block_bytes = model_kv_block_bytes(e->model);
    uint64_t budget = o->kv_cache_bytes ? o->kv_cache_bytes : model_kv_room(e->model);
    int64_t len = o->max_model_len > 0 ? o->max_model_len : model_config(e->model)->max_position;
    if (len > INT32_MAX / 2)
        len = INT32_MAX / 2;
    int64_t per_seq = (len + KV_BLOCK - 1) / KV_BLOCK;
    uint64_t n = (uint64_t)per_seq * (uint64_t)o->max_num_seqs;
    if (o->kv_cache_bytes || n > budget / block_bytes)
        n = budget / block_bytes;
    if (n > BLOCK_COUNT_MAX)
        n = BLOCK_COUNT_MAX;
    if (n < (uint64_t)per_seq) {
        if (o->max_model_len > 0 || n == 0)
            return err_set(err, NYB_E_MEMORY,
                           "a context of %lld tokens needs %.1f MiB of KV cache, there are %.1f MiB: lower "
                           "max_model_len or raise the KV cache memory",
                           (long long)len, MIB((uint64_t)per_seq * block_bytes), MIB(budget));
        log_warn("the KV cache of %.1f MiB holds %llu tokens: the context is cut to that from %lld",
                 MIB(n * block_bytes), (unsigned long long)(n * KV_BLOCK), (long long)len);
        len = (int64_t)n * KV_BLOCK;
    }
    *n_block = (int)n;
    *max_len = (int)len;
    log_info("KV cache: %d blocks of %d tokens in %s, %.1f MiB%s; context %d tokens", *n_block, KV_BLOCK,
             kv_type_name(model_kv_type(e->model)), MIB(n * block_bytes),
             o->kv_cache_bytes ? " as asked" : "", *max_len);
    return NYB_OK;
}

/* ---- open and close -------------------------------------------------------------------------------- */

static void read_generation_config(struct params_context *c, const struct hfconfig_generation *g)
{
    if (g->has_temperature)
        c->temperature = g->temperature;
    if (g->has_top_p)
        c->top_p = g->top_p;
    if (g->has_top_k)
        c->top_k = g->top_k < 1 || g->top_k > INT32_MAX ? 0 : (int)g->top_k;
    if (g->has_min_p)
        c->min_p = g->min_p;
    if (g->has_repetition_penalty)
        c->repetition_penalty = g->repetition_penalty;
}

static enum nyb_code settle_defaults(struct nyb_engine *e, const struct nyb_options *o, int max_len,
                                     struct nyb_err *err)
{
    const struct hfconfig_generation *g = model_generation(e->model);
    struct params_context *c = &e->defaults;
    params_context_init(c);
    c->vocab = model_config(e->model)->vocab;
    c->max_len = max_len;
    c->max_logprobs = o->max_logprobs;
    if (!o->no_generation_config)
        read_generation_config(c, g);
    e->eos = mem_alloc((size_t)g->n_eos + 1, sizeof(*e->eos));
    for (int i = 0; i < g->n_eos; i++)
        if (g->eos[i] >= 0 && g->eos[i] < c->vocab)
            e->eos[c->n_eos++] = (int32_t)g->eos[i];
    c->eos = e->eos;
    return o->defaults ? params_context_set(c, o->defaults, err) : NYB_OK;
}

static void fill_info(struct nyb_engine *e, const struct nyb_options *o, int n_block)
{
    const struct params_context *c = &e->defaults;
    e->name = mem_strdup(o->model);
    e->model_type = mem_strdup(model_config(e->model)->model_type);
    e->quant = mem_strdup(model_quant_text(e->model));
    e->info = (struct nyb_info){.model = e->name,
                                .folder = e->folder,
                                .model_type = e->model_type,
                                .quant = e->quant,
                                .vocab_size = c->vocab,
                                .max_model_len = c->max_len,
                                .max_num_seqs = o->max_num_seqs,
                                .max_num_batched_tokens = ranks_step_tokens(o, model_device_name(e->model)),
                                .max_logprobs = o->max_logprobs,
                                .kv_blocks = n_block,
                                .kv_block_tokens = KV_BLOCK,
                                .kv_bytes = (uint64_t)n_block * model_kv_block_bytes(e->model),
                                .weight_bytes = model_weight_bytes(e->model),
                                .kv_dtype = (enum nyb_kv_dtype)model_kv_type(e->model),
                                .n_layer = model_config(e->model)->n_layer,
                                .n_expert = model_config(e->model)->moe.n_expert,
                                .experts_per_token = model_config(e->model)->moe.top_k,
                                .has_chat_template = e->chat != NULL,
                                .temperature = c->temperature,
                                .top_p = c->top_p,
                                .min_p = c->min_p,
                                .repetition_penalty = c->repetition_penalty,
                                .top_k = c->top_k,
                                .eos = c->eos,
                                .n_eos = c->n_eos};
}

static enum nyb_code open_parts(struct nyb_engine *e, const struct nyb_options *o, struct nyb_err *err)
{
    TRY(ckpt_resolve(&e->folder, o->model, err));
    e->live = mem_alloc(1, sizeof(*e->live));
    TRY(live_open(e->live, e->folder, o->weight_version, err));
    TRY(open_text(e, o, err)); /* small and often at fault: before the weights */
    struct model_options mo = ranks_model_options(o, e->folder, ranks_comm(o->ranks));
    mo.progress = o->progress;
    mo.progress_arg = o->progress_arg;
    TRY(model_open(&e->model, &mo, err));
    if (o->expert_rebalance_interval > 0 && model_device_name(e->model))
        return err_at(err, NYB_E_UNSUPPORTED, "expert_rebalance_interval", -1,
                      "is %d: experts on GPUs stay where they are", o->expert_rebalance_interval);
    int n_block = 0, max_len = 0;
    TRY(size_cache(e, o, &n_block, &max_len, err));
    TRY(settle_defaults(e, o, max_len, err));
    e->seed = o->seed;
    fill_info(e, o, n_block);
    if (e->tokenizer)
        e->constraints = constraint_cache_open(e->tokenizer, e->defaults.vocab);
    struct runner runner;
    runner_from_model(&runner, e->model);
    experts_open(&e->experts, e->model, e->live, o->expert_rebalance_interval);
    if (o->expert_parallel) {
        runner.between = experts_after_step;
        runner.between_arg = &e->experts;
    }
    const struct step_options so = {.max_num_seqs = o->max_num_seqs,
                                    .max_num_batched_tokens = e->info.max_num_batched_tokens,
                                    .max_len = max_len,
                                    .max_live = o->max_num_seqs + o->max_waiting,
                                    .max_logprobs = o->max_logprobs,
                                    .n_block = n_block,
                                    .prefix_cache = o->prefix_cache,
                                    .n_rank = o->expert_parallel ? model_ranks(e->model) : 1,
                                    .weight_version = e->live->facts.version};
    return engine_open(&e->engine, &runner, &so, o->stuck_ms, err);
}

enum nyb_code nyb_open(struct nyb_engine **out, const struct nyb_options *o, struct nyb_err *err)
{
    *out = NULL;
    TRY(check_options(o, err));
    if (!o->ranks && o->tensor_parallel_size > 1)
        return err_at(err, NYB_E_ARG, "tensor_parallel_size", -1, "is %d: nyb_ranks_open comes first",
                      o->tensor_parallel_size);
    struct nyb_engine *e = mem_alloc(1, sizeof(*e));
    locale_t before = clocale_enter();
    enum nyb_code code = open_parts(e, o, err);
    clocale_leave(before);
    if (code != NYB_OK) {
        if (e->model && o->ranks) /* they are the engine's only after success */
            model_give_comm_back(e->model);
        nyb_close(e);
        return code;
    }
    *out = e;
    return NYB_OK;
}

void nyb_stop(struct nyb_engine *e)
{
    engine_stop(e->engine);
}

void nyb_close(struct nyb_engine *e)
{
    if (!e)
        return;
    engine_close(e->engine);
    if (e->live)
        live_close(e->live);
    free(e->live);
    if (e->model)
        model_close(e->model);
    if (e->chat)
        chat_close(e->chat);
    constraint_cache_close(e->constraints);
    if (e->tokenizer)
        tok_close(e->tokenizer);
    free(e->name);
    free(e->folder);
    free(e->model_type);
    free(e->quant);
    free(e->eos);
    free(e);
}

const struct nyb_info *nyb_engine_info(const struct nyb_engine *e)
{
    return &e->info;
}

void nyb_engine_stats(const struct nyb_engine *e, struct nyb_stats *s)
{
    engine_stats(e->engine, s);
}

void nyb_engine_health(const struct nyb_engine *e, struct nyb_health *h)
{
    engine_health(e->engine, h);
    h->weights_inconsistent = model_weights_inconsistent(e->model);
    h->alive = h->alive && !h->weights_inconsistent;
}
