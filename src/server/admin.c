#include "server/admin.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/log.h"
#include "base/mem.h"
#include "server/admin_path.h"
#include "server/auth.h"
#include "server/error.h"
#include "server/listen.h"
#include "server/work.h"

#define THREADS 4 /* an update that waits for requests leaves some for those who pause, resume or abort */

struct admin {
    struct auth *auth; /* NULL: loopback only */
    struct admin_roots roots;
    struct work *work;
    bool uploading; /* the loop's */
    pthread_mutex_t lock;
    struct admin_facts facts; /* under lock */
};

/* An upload would be the first to find out. */
static enum nyb_code try_upload_dir(const char *dir, struct nyb_err *err)
{
    struct nyb_upload *u;
    if (!dir)
        return NYB_OK;
    TRY(nyb_upload_open(&u, dir, 1, err));
    nyb_upload_close(u);
    return NYB_OK;
}

enum nyb_code admin_open(struct server *s, struct nyb_err *err)
{
    const struct serve_config *c = s->config;
    struct admin *a = mem_alloc(1, sizeof(*a));
    pthread_mutex_init(&a->lock, NULL);
    s->admin = a; /* closed by admin_close in any case */
    TRY(auth_open(&a->auth, &c->admin_api_key, c->admin_api_key_file, "admin-api-key", err));
    TRY(try_upload_dir(c->upload_dir, err));
    return admin_roots_open(&a->roots, &c->weights_root, err);
}

enum nyb_code admin_start(struct server *s, struct nyb_err *err)
{
    admin_roots_serve(&s->admin->roots, s->info->folder);
    return work_open(&s->admin->work, s, THREADS, err);
}

void admin_stop(struct admin *a)
{
    if (!a)
        return;
    work_close(a->work);
    a->work = NULL;
}

void admin_close(struct admin *a)
{
    if (!a)
        return;
    auth_close(a->auth);
    admin_roots_close(&a->roots);
    pthread_mutex_destroy(&a->lock);
    free(a);
}

struct work *admin_work(const struct admin *a)
{
    return a->work;
}

char *admin_folder(const struct admin *a, const char *path, int *status, struct nyb_err *err)
{
    return admin_roots_find(&a->roots, path, status, err);
}

enum nyb_code admin_renew(struct server *s, struct nyb_err *err)
{
    const struct serve_config *c = s->config;
    return auth_renew(&s->admin->auth, &c->admin_api_key, c->admin_api_key_file, "admin-api-key", err);
}

/* ---- who may ------------------------------------------------------------------------------------- */

/* "localhost", "127.x.y.z" or "[::1]", with or without a port. A page of another name that resolves to this
 * machine (DNS rebinding) has that name here. */
static bool is_loopback_host(const char *host)
{
    char name[64];
    struct in_addr in;
    size_t n = host[0] == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":");
    if (n >= sizeof(name))
        return false;
    memcpy(name, host, n);
    name[n] = 0;
    if (host[n] && (host[n] != ':' || strspn(host + n + 1, "0123456789") != strlen(host + n + 1)))
        return false;
    return !strcasecmp(name, "localhost") || !strcmp(name, "[::1]") ||
           (inet_pton(AF_INET, name, &in) == 1 && ntohl(in.s_addr) >> 24 == 127);
}

/* Why a request without admin keys does not count as one from this machine; NULL: it does. */
static const char *why_not_local(const struct exchange *x)
{
    static const char *const between[] = {
        "Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-IP", "Via",
        "Origin",    "Sec-Fetch-Site",  "Referer"};
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(x->mhd, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    if (info && info->client_addr && info->client_addr->sa_family == AF_UNIX)
        return "behind a Unix socket there may be a proxy";
    if (!info || !listen_is_loopback(info->client_addr))
        return "this request comes from another machine";
    for (size_t i = 0; i < COUNT_OF(between); i++)
        if (MHD_lookup_connection_value(x->mhd, MHD_HEADER_KIND, between[i]))
            return "this request comes through a proxy or from a browser";
    const char *host = MHD_lookup_connection_value(x->mhd, MHD_HEADER_KIND, "Host");
    return host && !is_loopback_host(host) ? "this request's Host is not a loopback name" : NULL;
}

bool admin_may(struct exchange *x)
{
    const struct server *s = x->s;
    const struct auth *auth = s->admin->auth ? s->admin->auth : s->auth;
    const char *why = s->admin->auth ? NULL : why_not_local(x);
    if (why) {
        error_reply(
            x, 403, NULL,
            "%s is for administrators: without --admin-api-key only clients on this machine may use it, "
            "and %s.",
            x->path, why);
        return false;
    }
    if (auth_allows(auth, MHD_lookup_connection_value(x->mhd, MHD_HEADER_KIND, "Authorization"), NULL))
        return true;
    error_reply(x, 401, NULL, "Unauthorized: %s needs %s key, as \"Authorization: Bearer KEY\".", x->path,
                s->admin->auth ? "an admin" : "an API");
    return false;
}

/* ---- parameters of a query ----------------------------------------------------------------------- */

static enum MHD_Result add_parameter(void *arg, enum MHD_ValueKind kind, const char *key, const char *value)
{
    json_t *to = arg, *before = json_object_get(to, key);
    (void)kind;
    json_t *v = json_string(value ? value : "true");
    if (!v) /* not UTF-8 */
        v = json_null();
    if (!before) {
        json_object_set_new(to, key, v);
    } else if (json_is_array(before)) {
        json_array_append_new(before, v);
    } else {
        json_t *both = json_array();
        json_array_append(both, before);
        json_array_append_new(both, v);
        json_object_set_new(to, key, both);
    }
    return MHD_YES;
}

void admin_take_query(struct exchange *x)
{
    if (x->body.len)
        return;
    json_t *parameters = json_object();
    MHD_get_connection_values(x->mhd, MHD_GET_ARGUMENT_KIND, add_parameter, parameters);
    char *text = json_dumps(parameters, JSON_COMPACT);
    buf_add_str(&x->body, text ? text : "{}");
    free(text);
    json_decref(parameters);
}

/* ---- uploads ------------------------------------------------------------------------------------- */

bool admin_upload_open(struct exchange *x, const char *content_type)
{
    static const char type[] = "application/octet-stream";
    struct admin *a = x->s->admin;
    struct nyb_err err;
    if (!content_type || strncasecmp(content_type, type, strlen(type))) {
        error_reply(x, 415, NULL,
                    "Unsupported Media Type: the body is a safetensors file as application/octet-stream, its "
                    "parameters are those of the URL.");
        return false;
    }
    if (a->uploading) {
        error_reply(x, 409, NULL, "Another upload of weights is in progress.");
        return false;
    }
    if (nyb_upload_open(&x->upload, x->s->config->upload_dir, x->s->config->max_upload, &err) != NYB_OK) {
        error_reply_err(x, &err);
        return false;
    }
    a->uploading = true;
    return true;
}

bool admin_upload_write(struct exchange *x, const void *bytes, size_t n)
{
    struct nyb_err err;
    enum nyb_code code = nyb_upload_write(x->upload, bytes, n, &err);
    if (code == NYB_OK)
        return true;
    if (code == NYB_E_RANGE)
        error_reply(x, 413, NULL, "The upload is longer than the limit of %llu bytes.",
                    (unsigned long long)x->s->config->max_upload);
    else
        error_reply_err(x, &err);
    admin_upload_close(x);
    return false;
}

void admin_upload_close(struct exchange *x)
{
    nyb_upload_close(x->upload);
    x->upload = NULL;
    x->s->admin->uploading = false;
}

/* ---- what was done ------------------------------------------------------------------------------- */

void admin_note(struct admin *a, const struct nyb_update_result *r)
{
    struct admin_facts *f = &a->facts;
    pthread_mutex_lock(&a->lock);
    f->state = r->state;
    f->prepare_s += (double)r->prepare_ns * 1e-9;
    f->stage_s += (double)r->stage_ns * 1e-9;
    f->wait_s += (double)r->wait_ns * 1e-9;
    f->stall_s += (double)r->stall_ns * 1e-9;
    f->last_stall_s = (double)r->stall_ns * 1e-9;
    if (f->last_stall_s > f->longest_stall_s)
        f->longest_stall_s = f->last_stall_s;
    pthread_mutex_unlock(&a->lock);
}

void admin_read_facts(const struct admin *a, struct admin_facts *f)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)(uintptr_t)&a->lock;
    pthread_mutex_lock(lock);
    *f = a->facts;
    pthread_mutex_unlock(lock);
}
