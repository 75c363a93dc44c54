#include "server/admin_reply.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/error.h"
#include "server/request.h"

json_t *admin_parameters(struct exchange *x, const struct admin_field *field, int n)
{
    struct nyb_err err = {0};
    json_t *body = request_parse(x);
    if (body && admin_read(body, field, n, &err) == NYB_OK)
        return body;
    if (body)
        admin_reply_err(x, &err, NULL);
    json_decref(body);
    return NULL;
}

/* The members of SGLang's reply before those of an error. */
static void put_success(json_t *to, bool success, const char *message)
{
    json_object_set_new(to, "success", json_boolean(success));
    json_object_set_new(to, "message", json_string(message));
}

static void reply_failure(struct exchange *x, json_t *more)
{
    json_t *error = json_loadb(x->reply.data, x->reply.len, 0, NULL), *all = json_object();
    const char *message = json_string_value(json_object_get(json_object_get(error, "error"), "message"));
    put_success(all, false, message ? message : "");
    json_object_update(all, more);
    json_object_update(all, error);
    exchange_reply_json(x, x->status, all);
    json_decref(error);
    json_decref(all);
    json_decref(more);
}

void admin_reply(struct exchange *x, int status, const char *param, const char *message, json_t *more)
{
    if (status >= 400) {
        error_reply(x, status, param, "%s", message);
        reply_failure(x, more);
        return;
    }
    json_t *all = json_object();
    put_success(all, true, message);
    json_object_update(all, more);
    exchange_reply_json(x, status, all);
    json_decref(all);
    json_decref(more);
}

/* Which file of a checkpoint is at fault is for administrators to see; their messages begin with it. */
void admin_reply_err(struct exchange *x, const struct nyb_err *err, json_t *more)
{
    struct nyb_err named = *err;
    if (strchr(err->where, '/'))
        err_format(err, named.message, sizeof(named.message));
    error_reply_err(x, &named);
    reply_failure(x, more);
}

static json_t *control(const struct exchange *x, const char *status)
{
    char id[EXCHANGE_ID_MAX + 16];
    json_t *all = json_object();
    snprintf(id, sizeof(id), "control-%s", x->id);
    json_object_set_new(all, "request_id", json_string(id));
    json_object_set_new(all, "status", json_string(status));
    return all;
}

void admin_reply_control(struct exchange *x, json_t *result)
{
    json_t *all = control(x, "success");
    json_object_set_new(all, "error_message", json_null());
    json_object_set_new(all, "result", result ? result : json_null());
    exchange_reply_json(x, 200, all);
    json_decref(all);
}

void admin_wrap_failure(struct exchange *x)
{
    json_t *all = control(x, "error"), *reply = json_loadb(x->reply.data, x->reply.len, 0, NULL);
    json_t *error = json_object_get(reply, "error");
    json_object_set(all, "error_message", json_object_get(error, "message"));
    json_object_set(all, "error", error);
    json_object_set(all, "result", reply);
    json_object_del(reply, "error");
    exchange_reply_json(x, x->status, all);
    json_decref(reply);
    json_decref(all);
}
