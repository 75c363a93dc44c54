/* Pausing, resuming, aborting and flushing under SGLang's and FastDeploy's names, and what the server is. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "server/admin_reply.h"
#include "server/error.h"
#include "server/gen.h"
#include "server/route.h"

/* ---- pausing ------------------------------------------------------------------------------------- */

static enum nyb_code pause_mode(const char *text, enum nyb_pause_mode *mode, struct nyb_err *err)
{
    static const char *const name[] = {"abort", "retract", "in_place"};
    _Static_assert(COUNT_OF(name) == NYB_PAUSE_COUNT, "a name for each mode");
    *mode = NYB_PAUSE_ABORT;
    for (int i = 0; text && i < NYB_PAUSE_COUNT; i++)
        if (!strcmp(text, name[i])) {
            *mode = (enum nyb_pause_mode)i;
            return NYB_OK;
        }
    return text ? err_at(err, NYB_E_RANGE, "mode", -1,
                         "mode must be abort, retract or in_place, got \"%.64s\". (parameter=mode)", text)
                : NYB_OK;
}

/* Pause as the body says. False: the reply says why not. */
static bool pause_engine(struct exchange *x, int *n)
{
    const char *text = NULL;
    enum nyb_pause_mode mode;
    struct nyb_err err = {0};
    const struct admin_field field[] = {{"mode", ADMIN_STRING, &text}};
    json_t *body = admin_parameters(x, field, COUNT_OF(field));
    if (!body)
        return false;
    enum nyb_code code = pause_mode(text, &mode, &err);
    if (code == NYB_OK)
        code = nyb_pause(x->s->engine, mode, n, &err);
    if (code != NYB_OK)
        admin_reply_err(x, &err, NULL);
    json_decref(body);
    return code == NYB_OK;
}

static bool resume_engine(struct exchange *x)
{
    struct nyb_err err = {0};
    const struct admin_field field[] = {{"torch_empty_cache", ADMIN_IGNORED, NULL}};
    json_t *body = admin_parameters(x, field, COUNT_OF(field));
    if (!body)
        return false;
    json_decref(body);
    if (nyb_resume(x->s->engine, &err) == NYB_OK)
        return true;
    admin_reply_err(x, &err, NULL);
    return false;
}

void api_pause_generation(struct exchange *x)
{
    int n = 0;
    if (pause_engine(x, &n))
        admin_reply(x, 200, NULL, "Generation is paused.",
                    json_pack("{s:s,s:i}", "status", "ok", "num_paused_requests", n));
}

void api_continue_generation(struct exchange *x)
{
    if (resume_engine(x))
        admin_reply(x, 200, NULL, "Generation goes on.", json_pack("{s:s}", "status", "ok"));
}

void api_v1_pause(struct exchange *x)
{
    int n = 0;
    if (pause_engine(x, &n))
        admin_reply_control(x, json_pack("{s:i}", "num_paused_requests", n));
    else
        admin_wrap_failure(x);
}

void api_v1_resume(struct exchange *x)
{
    if (resume_engine(x))
        admin_reply_control(x, NULL);
    else
        admin_wrap_failure(x);
}

void api_v1_is_paused(struct exchange *x)
{
    admin_reply_control(x, json_pack("{s:b}", "is_paused", (int)nyb_is_paused(x->s->engine)));
}

/* ---- aborting ------------------------------------------------------------------------------------ */

/* An id is that of the request, or with the prefix that it has in its answer. */
static enum nyb_code abort_id(struct exchange *x, const char *id, int *n, struct nyb_err *err)
{
    int found;
    const char *bare = gen_bare_id(id);
    TRY(nyb_abort(x->s->engine, id, &found, err));
    if (found == 0 && bare != id)
        TRY(nyb_abort(x->s->engine, bare, &found, err));
    *n += found;
    return NYB_OK;
}

/* False: the reply says why not. */
static bool abort_requests(struct exchange *x, const char *parameter, int *n)
{
    struct admin_strings ids = {0};
    bool all = false;
    struct nyb_err err = {0};
    enum nyb_code code = NYB_OK;
    const struct admin_field field[] = {{parameter, ADMIN_STRINGS, &ids}, {"abort_all", ADMIN_BOOL, &all}};
    json_t *body = admin_parameters(x, field, COUNT_OF(field));
    if (body && !all && !ids.n)
        code = err_at(&err, NYB_E_ARG, parameter, -1, "either %s or abort_all is needed. (parameter=%s)",
                      parameter, parameter);
    if (body && all)
        code = nyb_abort(x->s->engine, NULL, n, &err);
    for (int i = 0; body && !all && code == NYB_OK && i < ids.n; i++)
        code = abort_id(x, ids.item[i], n, &err);
    if (code != NYB_OK)
        admin_reply_err(x, &err, NULL);
    free(ids.item);
    bool fine = body && code == NYB_OK;
    json_decref(body);
    return fine;
}

void api_abort_request(struct exchange *x)
{
    int n = 0;
    if (abort_requests(x, "rid", &n))
        admin_reply(x, 200, NULL, n ? "The requests end." : "No such request is here.",
                    json_pack("{s:i}", "num_aborted_requests", n));
}

void api_v1_abort_requests(struct exchange *x)
{
    int n = 0;
    if (abort_requests(x, "req_ids", &n))
        admin_reply_control(x, json_pack("{s:i}", "num_aborted_requests", n));
    else
        admin_wrap_failure(x);
}

/* Never refused: blocks that requests hold stay theirs. */
void api_flush_cache(struct exchange *x)
{
    struct nyb_err err = {0};
    const struct admin_field field[] = {{"timeout", ADMIN_IGNORED, NULL}};
    json_t *body = admin_parameters(x, field, COUNT_OF(field));
    if (!body)
        return;
    json_decref(body);
    if (nyb_flush_cache(x->s->engine, &err) == NYB_OK)
        admin_reply(x, 200, NULL, "The prefix cache is empty.", NULL);
    else
        admin_reply_err(x, &err, NULL);
}

/* ---- facts --------------------------------------------------------------------------------------- */

static json_t *describe_model(const struct exchange *x)
{
    const struct nyb_info *info = x->s->info;
    struct nyb_weights w;
    nyb_engine_weights(x->s->engine, &w);
    json_t *all = json_object();
    json_object_set_new(all, "model_path", json_string(w.folder));
    json_object_set_new(all, "tokenizer_path", json_string(info->folder));
    json_object_set_new(all, "served_model_name", json_string(x->s->model));
    json_object_set_new(all, "is_generation", json_true());
    json_object_set_new(all, "preferred_sampling_params", json_null());
    json_object_set_new(all, "model_type", json_string(info->model_type));
    json_object_set_new(all, "quantization", json_string(info->quant));
    json_object_set_new(all, "max_model_len", json_integer((json_int_t)info->max_model_len));
    json_object_set_new(all, "weight_version", json_string(w.version));
    json_object_set_new(all, "weight_generation", json_integer((json_int_t)w.generation));
    return all;
}

void api_model_info(struct exchange *x)
{
    json_t *all = describe_model(x);
    exchange_reply_json(x, 200, all);
    json_decref(all);
}

/* No keys and no paths of keys: what describes the engine. */
void api_server_info(struct exchange *x)
{
    const struct serve_config *c = x->s->config;
    const struct nyb_info *info = x->s->info;
    struct nyb_weights w;
    struct nyb_health h;
    nyb_engine_weights(x->s->engine, &w);
    nyb_engine_health(x->s->engine, &h);
    json_t *all = describe_model(x);
    json_object_set_new(all, "version", json_string(nyb_version()));
    json_object_set_new(all, "status", json_string(nyb_engine_state_name(h.state)));
    json_object_set_new(all, "is_paused", json_boolean(nyb_is_paused(x->s->engine)));
    json_object_set_new(all, "weights_updating", json_boolean(w.updating));
    json_object_set_new(all, "weight_updates", json_integer((json_int_t)w.updates));
    json_object_set_new(all, "weight_update_failures", json_integer((json_int_t)w.failures));
    json_object_set_new(all, "tp_size", json_integer((json_int_t)c->tensor_parallel_size));
    json_object_set_new(all, "max_num_seqs", json_integer(info->max_num_seqs));
    json_object_set_new(all, "max_num_batched_tokens", json_integer(info->max_num_batched_tokens));
    json_object_set_new(all, "max_total_num_tokens",
                        json_integer((json_int_t)info->kv_blocks * info->kv_block_tokens));
    json_object_set_new(all, "weight_bytes", json_integer((json_int_t)info->weight_bytes));
    json_object_set_new(all, "kv_bytes", json_integer((json_int_t)info->kv_bytes));
    exchange_reply_json(x, 200, all);
    json_decref(all);
}
