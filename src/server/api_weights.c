/* New weights for a running server, and what can be asked about the served ones. The engine checks, stages
 * and commits (nybble.h, "Live weights"); here are the names and forms of SGLang and FastDeploy. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "server/admin_reply.h"
#include "server/error.h"
#include "server/route.h"

/* Parameters of an update, whatever brings the weights. */
struct wanted {
    const char *path, *version, *load_format, *in_flight, *staging;
    struct admin_strings names;
    bool abort_all, flush_cache, keep_pause, dry_run;
    double finish_s;
};

/* The fields of all updates; `more` follow. */
#define UPDATE_FIELDS(w)                                                                               \
    {"weight_version", ADMIN_STRING, &(w)->version}, {"load_format", ADMIN_STRING, &(w)->load_format}, \
        {"names", ADMIN_STRINGS, &(w)->names}, {"in_flight", ADMIN_STRING, &(w)->in_flight},           \
        {"staging", ADMIN_STRING, &(w)->staging}, {"abort_all_requests", ADMIN_BOOL, &(w)->abort_all}, \
        {"flush_cache", ADMIN_BOOL, &(w)->flush_cache}, {"keep_pause", ADMIN_BOOL, &(w)->keep_pause},  \
        {"dry_run", ADMIN_BOOL, &(w)->dry_run}, {"finish_timeout", ADMIN_SECONDS, &(w)->finish_s},     \
        {"torch_empty_cache", ADMIN_IGNORED, NULL}, {"recapture_cuda_graph", ADMIN_IGNORED, NULL},     \
        {"token_step", ADMIN_IGNORED, NULL}, {"is_async", ADMIN_REFUSED, NULL},                        \
    {                                                                                                  \
        "manifest", ADMIN_REFUSED, NULL                                                                \
    }

/* The index of text among n names, into *out; NULL leaves it alone. */
static enum nyb_code choose(const char *parameter, const char *text, const char *const *name, int n, int *out,
                            struct nyb_err *err)
{
    char all[128] = "";
    for (int i = 0; text && i < n; i++) {
        if (!strcmp(text, name[i])) {
            *out = i;
            return NYB_OK;
        }
        size_t len = strlen(all);
        snprintf(all + len, sizeof(all) - len, "%s%s", i ? ", " : "", name[i]);
    }
    return text ? err_at(err, NYB_E_RANGE, parameter, -1,
                         "%s must be one of %s, got \"%.64s\". (parameter=%s)", parameter, all, text,
                         parameter)
                : NYB_OK;
}

static enum nyb_code fill_update(const struct server *s, const struct wanted *w, struct nyb_update *u,
                                 struct nyb_err *err)
{
    static const char *const mode[] = {"finish", "retract", "continue", "abort"};
    static const char *const when[] = {"auto", "on", "off"};
    static const char *const format[] = {"auto", "safetensors"};
    int in_flight = s->config->update_in_flight, staging = s->config->update_staging, ignored;
    _Static_assert(COUNT_OF(mode) == NYB_IN_FLIGHT_COUNT && COUNT_OF(when) == NYB_STAGING_COUNT,
                   "a name for each value");
    nyb_update_init(u);
    TRY(choose("load_format", w->load_format, format, COUNT_OF(format), &ignored, err));
    TRY(choose("in_flight", w->in_flight, mode, COUNT_OF(mode), &in_flight, err));
    TRY(choose("staging", w->staging, when, COUNT_OF(when), &staging, err));
    if (w->abort_all && w->in_flight && in_flight != NYB_IN_FLIGHT_ABORT)
        return err_at(err, NYB_E_ARG, "abort_all_requests", -1,
                      "abort_all_requests and in_flight \"%.16s\" contradict each other. "
                      "(parameter=abort_all_requests)",
                      w->in_flight);
    u->in_flight = w->abort_all ? NYB_IN_FLIGHT_ABORT : (enum nyb_in_flight)in_flight;
    u->staging = (enum nyb_staging)staging;
    u->names = w->names.item;
    u->n_names = w->names.n;
    u->weight_version = w->version;
    u->finish_ms = (int)(w->finish_s * 1e3);
    u->threads = (int)s->config->update_threads;
    u->dry_run = w->dry_run;
    u->flush_cache = w->flush_cache;
    u->keep_pause = w->keep_pause;
    return NYB_OK;
}

/* ---- the reply ----------------------------------------------------------------------------------- */

static void put_int(json_t *to, const char *name, uint64_t x)
{
    json_object_set_new(to, name, json_integer((json_int_t)x));
}

static void put_seconds(json_t *to, const char *name, uint64_t ns)
{
    json_object_set_new(to, name, json_real((double)ns * 1e-9));
}

static json_t *describe(const struct nyb_update_result *r, bool dry_run)
{
    json_t *all = json_object(), *changed = json_object(), *seconds = json_object(), *list = json_array();
    put_int(all, "num_paused_requests", (uint64_t)r->n_paused);
    json_object_set_new(all, "weight_version", json_string(r->weight_version));
    put_int(all, "weight_generation", r->generation);
    json_object_set_new(all, "weights_state", json_string(nyb_weights_state_name(r->state)));
    json_object_set_new(all, "dry_run", json_boolean(dry_run));
    put_int(changed, "tensors", (uint64_t)r->n_tensor);
    put_int(changed, "read_bytes", r->read_bytes);
    put_int(changed, "weight_bytes", r->weight_bytes);
    put_int(changed, "staged_bytes", r->staged_bytes);
    json_object_set_new(changed, "staged", json_boolean(r->staged));
    json_object_set_new(all, "changed", changed);
    put_seconds(seconds, "prepare", r->prepare_ns);
    put_seconds(seconds, "stage", r->stage_ns);
    put_seconds(seconds, "wait", r->wait_ns);
    put_seconds(seconds, "stall", r->stall_ns);
    json_object_set_new(all, "seconds", seconds);
    for (int i = 0; i < r->n_shown; i++)
        json_array_append_new(list, json_string(r->difference[i]));
    json_object_set_new(all, "differences", list);
    put_int(all, "num_differences", (uint64_t)r->n_difference);
    return all;
}

static void reply_update(struct exchange *x, enum nyb_code code, const struct nyb_update *u,
                         const struct nyb_update_result *r, const struct nyb_err *err)
{
    char message[256];
    json_t *more = describe(r, u->dry_run);
    if (code != NYB_OK) {
        admin_reply_err(x, err, more);
        return;
    }
    if (u->dry_run)
        snprintf(message, sizeof(message), "The checkpoint fits: it would replace %d tensors.", r->n_tensor);
    else
        snprintf(message, sizeof(message), "%d tensors are replaced: the weights are version %.128s.",
                 r->n_tensor, r->weight_version);
    admin_reply(x, 200, NULL, message, more);
}

/* w->names is freed. */
static void update(struct exchange *x, struct wanted *w)
{
    struct nyb_err err = {0};
    struct nyb_update u;
    struct nyb_update_result *r = mem_alloc(1, sizeof(*r));
    int status = 0;
    char *folder = NULL;
    enum nyb_code code = fill_update(x->s, w, &u, &err);
    if (code == NYB_OK && !x->upload) {
        folder = admin_folder(x->s->admin, w->path, &status, &err);
        code = folder ? NYB_OK : err.code;
    }
    u.folder = folder;
    u.upload = x->upload;
    if (code == NYB_OK) {
        code = nyb_update_weights(x->s->engine, &u, r, &err);
        if (code != NYB_E_CONFLICT && !u.dry_run)
            admin_note(x->s->admin, r);
        reply_update(x, code, &u, r, &err);
    } else if (status) {
        admin_reply(x, status, err.where, err.message, json_pack("{s:i}", "num_paused_requests", 0));
    } else {
        admin_reply_err(x, &err, json_pack("{s:i}", "num_paused_requests", 0));
    }
    free(folder);
    free(w->names.item);
    free(r);
}

/* ---- SGLang's updates ---------------------------------------------------------------------------- */

void api_update_from_disk(struct exchange *x)
{
    struct wanted w = {0};
    const struct admin_field field[] = {{"model_path", ADMIN_STRING, &w.path}, UPDATE_FIELDS(&w)};
    json_t *body = admin_parameters(x, field, COUNT_OF(field));
    if (body && w.path)
        update(x, &w);
    else if (body)
        admin_reply(x, 400, "model_path", "model_path is missing. (parameter=model_path)", NULL);
    if (!body || !w.path)
        free(w.names.item);
    json_decref(body);
}

void api_update_from_tensor(struct exchange *x)
{
    struct wanted w = {0};
    const struct admin_field field[] = {UPDATE_FIELDS(&w)};
    json_t *body = admin_parameters(x, field, COUNT_OF(field));
    if (body)
        update(x, &w);
    else
        free(w.names.item);
    json_decref(body);
}

/* FastDeploy's: without a path the folder that is served is read again, for that is where its trainer writes.
 * A pause lasts until /v1/resume. */
void api_v1_update_weights(struct exchange *x)
{
    struct wanted w = {.keep_pause = true};
    struct nyb_weights served;
    const struct admin_field field[] = {{"model_path", ADMIN_STRING, &w.path},
                                        {"version", ADMIN_STRING, &w.version},
                                        {"rsync_config", ADMIN_REFUSED, NULL},
                                        UPDATE_FIELDS(&w)};
    json_t *body = admin_parameters(x, field, COUNT_OF(field));
    if (body) {
        nyb_engine_weights(x->s->engine, &served);
        w.path = w.path ? w.path : served.folder;
        update(x, &w);
    } else {
        free(w.names.item);
    }
    json_decref(body);
    if (x->status == 200)
        admin_reply_control(x, json_loadb(x->reply.data, x->reply.len, 0, NULL));
    else
        admin_wrap_failure(x);
}

/* ---- the served weights -------------------------------------------------------------------------- */

void api_update_weight_version(struct exchange *x)
{
    const char *version = NULL;
    bool abort_all = true;
    int n = 0;
    struct nyb_err err = {0};
    const struct admin_field field[] = {{"new_version", ADMIN_STRING, &version},
                                        {"abort_all_requests", ADMIN_BOOL, &abort_all}};
    json_t *body = admin_parameters(x, field, COUNT_OF(field));
    if (!body)
        return;
    size_t len = version ? strlen(version) : 0;
    enum nyb_code code =
        len > 0 && len < NYB_VERSION_MAX /* by the name that it has here */
            ? nyb_set_weight_version(x->s->engine, version, &err)
            : err_at(&err, NYB_E_RANGE, "new_version", -1,
                     "new_version must be given and have 1 to %d bytes, got %zu. (parameter=new_version)",
                     NYB_VERSION_MAX - 1, len);
    if (code == NYB_OK && abort_all)
        code = nyb_abort(x->s->engine, NULL, &n, &err);
    if (code == NYB_OK)
        admin_reply(x, 200, NULL, "The weights have a new version.",
                    json_pack("{s:s,s:i}", "new_version", version, "num_aborted_requests", n));
    else
        admin_reply_err(x, &err, NULL);
    json_decref(body);
}

static json_t *describe_check(const struct nyb_check_result *r, enum nyb_check what)
{
    json_t *all = json_object(), *list = json_array();
    json_object_set_new(all, "checksum", json_string(r->checksum));
    json_object_set_new(all, "per_engine_checksum", json_string(r->checksum));
    put_int(all, "num_tensors", (uint64_t)r->n_tensor);
    for (int i = 0; i < r->n_shown; i++)
        json_array_append_new(list, json_string(r->differs[i]));
    if (what == NYB_CHECK_COMPARE) {
        json_object_set_new(all, "differs", list);
        put_int(all, "num_differ", (uint64_t)r->n_differ);
    } else {
        json_decref(list);
    }
    return all;
}

static void reply_check(struct exchange *x, const char *action)
{
    static const char *const name[] = {"checksum", "snapshot", "compare"};
    static const char *const done[] = {"The checksum of the weights.", "The snapshot is taken.",
                                       "The weights are those of the snapshot."};
    _Static_assert(COUNT_OF(name) == NYB_CHECK_COUNT, "a name for each check");
    struct nyb_check_result r;
    struct nyb_err err = {0};
    int what = NYB_CHECK_CHECKSUM;
    enum nyb_code code = choose("action", action, name, COUNT_OF(name), &what, &err);
    if (code == NYB_OK)
        code = nyb_weights_check(x->s->engine, (enum nyb_check)what, (int)x->s->config->update_threads, &r,
                                 &err);
    if (code != NYB_OK) {
        admin_reply_err(x, &err, NULL);
        return;
    }
    json_t *more = describe_check(&r, (enum nyb_check)what);
    if (r.n_differ)
        admin_reply(x, 400, NULL, "The weights differ from the snapshot.", more);
    else
        admin_reply(x, 200, NULL, done[what], more);
}

void api_weights_checker(struct exchange *x)
{
    const char *action = NULL;
    const struct admin_field field[] = {{"action", ADMIN_STRING, &action},
                                        {"allow_quant_error", ADMIN_REFUSED, NULL}};
    json_t *body = admin_parameters(x, field, COUNT_OF(field));
    if (body)
        reply_check(x, action);
    json_decref(body);
}

/* ---- values -------------------------------------------------------------------------------------- */

#define VALUES_MAX (1 << 20)

/* Flat for a vector, else a list for each row. */
static json_t *list_values(const struct nyb_values *v)
{
    json_t *all = json_array(), *to = all;
    for (size_t i = 0; i < v->n; i++) {
        if (v->columns && i % (size_t)v->columns == 0) {
            to = json_array();
            json_array_append_new(all, to);
        }
        json_array_append_new(to, json_real((double)v->value[i]));
    }
    return all;
}

static void reply_values(struct exchange *x, const char *name, int max)
{
    struct nyb_values v;
    struct nyb_err err = {0};
    enum nyb_code code = NYB_OK;
    if (!name)
        code = err_at(&err, NYB_E_ARG, "name", -1, "name is missing. (parameter=name)");
    else if (max < 1 || max > VALUES_MAX)
        code = err_at(&err, NYB_E_RANGE, "truncate_size", -1,
                      "truncate_size must be in [1, %d], got %d. (parameter=truncate_size)", VALUES_MAX, max);
    if (code == NYB_OK)
        code = nyb_read_weights(x->s->engine, name, (size_t)max, &v, &err);
    if (code != NYB_OK) {
        admin_reply_err(x, &err, NULL);
        return;
    }
    json_t *more = json_pack("{s:s,s:s,s:o}", "name", name, "dtype", v.type, "weights", list_values(&v));
    json_object_set_new(more, "shape",
                        v.columns ? json_pack("[i,i]", v.rows, v.columns) : json_pack("[i]", v.rows));
    nyb_free(v.value);
    admin_reply(x, 200, NULL, "The first values, dequantized.", more);
}

void api_get_weights_by_name(struct exchange *x)
{
    const char *name = NULL;
    int max = 100;
    const struct admin_field field[] = {{"name", ADMIN_STRING, &name}, {"truncate_size", ADMIN_INT, &max}};
    json_t *body = admin_parameters(x, field, COUNT_OF(field));
    if (body)
        reply_values(x, name, max);
    json_decref(body);
}
