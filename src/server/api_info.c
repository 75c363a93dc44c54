/* What the server says about itself. All of this runs in the loop. */
#include <string.h>

#include "server/error.h"
#include "server/route.h"

void api_health(struct exchange *x)
{
    x->status = 200;
}

void api_ready(struct exchange *x)
{
    if (x->s->draining)
        error_reply(x, 503, NULL, "The server is shutting down.");
    else
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
    buf_printf(b, ",\"parent\":null,\"max_model_len\":%lld,\"permission\":[]}",
               (long long)s->info->max_model_len);
}

static int n_name(const struct server *s)
{
    return s->config->served_name.n ? s->config->served_name.n : 1;
}

static const char *name_at(const struct server *s, int i)
{
    return s->config->served_name.n ? s->config->served_name.item[i] : s->model;
}

void api_models(struct exchange *x)
{
    x->status = 200;
    buf_add_str(&x->reply, "{\"object\":\"list\",\"data\":[");
    for (int i = 0; i < n_name(x->s); i++) {
        if (i)
            buf_add_byte(&x->reply, ',');
        add_card(x->s, name_at(x->s, i), &x->reply);
    }
    buf_add_str(&x->reply, "]}");
}

void api_model(struct exchange *x)
{
    const char *name = x->path + strlen("/v1/models/");
    for (int i = 0; i < n_name(x->s); i++)
        if (!strcmp(name, name_at(x->s, i))) {
            x->status = 200;
            add_card(x->s, name, &x->reply);
            return;
        }
    error_reply(x, 404, "model", "The model `%.200s` does not exist.", name);
}
