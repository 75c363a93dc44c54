/* What the server says about itself. All of this runs in the loop. */
#include <string.h>

#include "server/admin.h"
#include "server/error.h"
#include "server/request.h"
#include "server/route.h"

/* Why no answers can be expected of the engine. False: they can. */
static bool reply_sick(struct exchange *x)
{
    struct nyb_health h;
    nyb_engine_health(x->s->engine, &h);
    if (h.alive || h.state == NYB_ENGINE_STOPPED) /* stopped: by the end of the drain */
        return false;
    if (h.weights_inconsistent)
        error_reply(
            x, 503, NULL,
            "The weights are inconsistent: an update and its rollback have failed. Only a whole update "
            "helps.");
    else if (h.state == NYB_ENGINE_STUCK)
        error_reply(x, 503, NULL, "The engine is stuck: it has work and has finished no step for %.1f s.",
                    (double)h.no_step_ns * 1e-9);
    else
        error_reply(x, 503, NULL, "The engine is %s: %d steps in a row have failed%s%s.",
                    nyb_engine_state_name(h.state), h.failed_steps,
                    h.failure.code == NYB_OK ? "" : ", the last one with: ",
                    h.failure.code == NYB_OK ? "" : h.failure.message);
    return true;
}

/* {"status": "ok", "weights": {"state": .., "version": .., "generation": .., "updating": ..}} */
void api_health(struct exchange *x)
{
    struct nyb_weights w;
    struct admin_facts f;
    if (reply_sick(x))
        return;
    nyb_engine_weights(x->s->engine, &w);
    admin_read_facts(x->s->admin, &f);
    x->status = 200;
    buf_printf(&x->reply, "{\"status\":\"ok\",\"weights\":{\"state\":\"%s\",\"version\":",
               nyb_weights_state_name(f.state));
    json_add_string(&x->reply, w.version, strlen(w.version));
    buf_printf(&x->reply, ",\"generation\":%llu,\"updating\":%s}}", (unsigned long long)w.generation,
               w.updating ? "true" : "false");
}

void api_ready(struct exchange *x)
{
    if (x->s->draining)
        error_reply(x, 503, NULL, "The server is shutting down.");
    else if (!reply_sick(x))
        x->status = 200;
}

void api_version(struct exchange *x)
{
    x->status = 200;
    buf_printf(&x->reply, "{\"version\":\"%s\"}", nyb_version());
}

void api_load(struct exchange *x)
{
    x->status = 200;
    buf_printf(&x->reply, "{\"server_load\":%d}", x->s->n_generating);
}

void api_metrics(struct exchange *x)
{
    x->status = 200;
    x->content_type = METRICS_TYPE;
    metrics_print(x->s, &x->reply);
}

static void add_card(const struct server *s, const char *name, struct buf *b)
{
    buf_add_str(b, "{\"id\":");
    json_add_string(b, name, strlen(name));
    buf_printf(b, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"nybble\",\"root\":",
               (long long)s->created_s);
    json_add_string(b, s->info->model, strlen(s->info->model));
    struct nyb_weights w;
    nyb_engine_weights(s->engine, &w);
    buf_printf(b,
               ",\"parent\":null,\"max_model_len\":%lld,\"permission\":[],\"metadata\":{\"weight_version\":",
               (long long)s->info->max_model_len);
    json_add_string(b, w.version, strlen(w.version));
    buf_printf(b, ",\"weight_generation\":%llu}}", (unsigned long long)w.generation);
}

void api_models(struct exchange *x)
{
    x->status = 200;
    buf_add_str(&x->reply, "{\"object\":\"list\",\"data\":[");
    for (int i = 0; i < request_n_model(x->s); i++) {
        if (i)
            buf_add_byte(&x->reply, ',');
        add_card(x->s, request_model(x->s, i), &x->reply);
    }
    buf_add_str(&x->reply, "]}");
}

void api_model(struct exchange *x)
{
    const char *name = x->path + strlen("/v1/models/");
    struct nyb_err err;
    if (request_is_model(x->s, name)) {
        x->status = 200;
        add_card(x->s, name, &x->reply);
        return;
    }
    request_no_model(x->s, name, &err);
    error_reply_err(x, &err);
}
