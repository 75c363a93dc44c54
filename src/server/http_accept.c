/* What came in: checks that libmicrohttpd lacks, who may ask for what, and the body. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "server/admin.h"
#include "server/auth.h"
#include "server/conn.h"
#include "server/error.h"
#include "server/http_exchange.h"
#include "server/near.h"
#include "server/route.h"

#define DISCARD_FACTOR 8  /* a body up to so many times the limit is read and dropped, to deliver the 413 */
#define BODIES_MAX     16 /* bodies of the largest size that may be in memory at once */

struct header_check {
    int n_length, n_host, n_transfer;
    size_t bytes;
    const char *fault;
};

/* A header's name is a token (RFC 9110, 5.6.2). */
static bool is_token(const char *s)
{
    static const char others[] = "!#$%&'*+-.^_`|~";
    bool fine = *s != 0;
    for (; *s && fine; s++)
        fine = isalnum((unsigned char)*s) || strchr(others, *s);
    return fine;
}

/* libmicrohttpd takes "Content-Length : 2" for another header, and appends a folded line to the name of the
 * header before it: either way the body would be read as the next request. */
static bool is_near(const char *key, const char *name)
{
    return !strncasecmp(key, name, strlen(name)) && key[strlen(name)];
}

static enum MHD_Result check_header(void *arg, enum MHD_ValueKind kind, const char *key, size_t key_size,
                                    const char *value, size_t value_size)
{
    struct header_check *check = arg;
    (void)kind;
    check->bytes += key_size + value_size + strlen(": \r\n");
    if (strlen(key) != key_size || (value && strlen(value) != value_size))
        check->fault = "a header contains a NUL byte";
    if (!is_token(key) || is_near(key, "Content-Length") || is_near(key, "Transfer-Encoding"))
        check->fault = "a header's name is malformed";
    if (!strcasecmp(key, "Transfer-Encoding") &&
        (++check->n_transfer > 1 || !value || strcasecmp(value, "chunked")))
        check->fault = "the only transfer coding is chunked";
    if (!strcasecmp(key, "Content-Length") && ++check->n_length > 1)
        check->fault = "there is more than one Content-Length header";
    if (!strcasecmp(key, "Host") && ++check->n_host > 1)
        check->fault = "there is more than one Host header";
    return MHD_YES;
}

/* What libmicrohttpd lets through and two parties could read in two ways (request smuggling). Out of reach
 * are a header without name, which it drops, and a NUL byte, at which its 0.9.75 cuts a value. */
static bool headers_are_fine(struct exchange *x, const char *version)
{
    struct header_check check = {0};
    MHD_get_connection_values_n(x->mhd, MHD_HEADER_KIND, check_header, &check);
    check.bytes += x->conn->target_bytes;
    if (check.bytes > HTTP_HEADERS) {
        error_reply(x, 431, NULL, "The target and the headers have %zu bytes, the limit is %d.", check.bytes,
                    HTTP_HEADERS);
        x->close = true;
        return false;
    }
    if (!check.fault && check.n_transfer && check.n_length)
        check.fault = "Content-Length and Transfer-Encoding contradict each other";
    if (!check.fault && check.n_host == 0 && !strcmp(version, "HTTP/1.1"))
        check.fault = "there is no Host header";
    if (!check.fault && x->conn->odd_target)
        check.fault = "its target contains a blank or a NUL byte";
    if (!check.fault)
        return true;
    error_reply(x, 400, NULL, "The request is malformed: %s.", check.fault);
    x->close = true;
    return false;
}

const char *http_header(const struct exchange *x, const char *name)
{
    return MHD_lookup_connection_value(x->mhd, MHD_HEADER_KIND, name);
}

static bool is_json(const char *type)
{
    static const char json[] = "application/json";
    if (!type)
        return true; /* curl's and many libraries' default is to say nothing */
    type += strspn(type, " \t");
    size_t n = strlen(json);
    return !strncasecmp(type, json, n) && (!type[n] || strchr("; \t", type[n]));
}

static bool is_upload(const struct exchange *x)
{
    return x->route && x->route->kind == ROUTE_UPLOAD;
}

static uint64_t body_limit(const struct exchange *x)
{
    return is_upload(x) ? x->s->config->max_upload : x->s->config->max_body;
}

uint64_t http_discard_limit(const struct exchange *x)
{
    uint64_t most = x->s->config->max_body * DISCARD_FACTOR;
    return is_upload(x) && most < body_limit(x) + HTTP_MEMORY ? body_limit(x) + HTTP_MEMORY : most;
}

static bool body_is_fine(struct exchange *x)
{
    const char *length = http_header(x, "Content-Length");
    uint64_t max = body_limit(x);
    uint64_t n = length ? strtoull(length, NULL, 10) : 0;
    if (n > max) {
        error_reply(x, 413, NULL, "The body has %llu bytes, the limit is %llu.", (unsigned long long)n,
                    (unsigned long long)max);
        x->close = n > http_discard_limit(x);
        return false;
    }
    const char *coding = http_header(x, "Content-Encoding");
    if (coding && strcasecmp(coding, "identity")) {
        error_reply(x, 415, NULL, "Unsupported Media Type: a body cannot be encoded as %.40s.", coding);
        return false;
    }
    if (is_upload(x))
        return admin_upload_open(x, http_header(x, "Content-Type"));
    if (!strcmp(x->route->method, "POST") && x->route->kind != ROUTE_INLINE &&
        !is_json(http_header(x, "Content-Type"))) {
        error_reply(x, 415, NULL, "Unsupported Media Type: Only 'application/json' is allowed.");
        return false;
    }
    return true;
}

static void say_not_here(struct exchange *x)
{
    const char *near = near_path(x->path), *why = near ? NULL : near_reason(x->path);
    bool elsewhere = near && x->s->metrics_daemon && !strcmp(near, "/metrics");
    if (why)
        error_reply(x, 404, NULL, "There is no %.200s here: %s.", x->path, why);
    else if (elsewhere)
        error_reply(x, 404, NULL, "There is no %.200s here: metrics have a port of their own, %d.", x->path,
                    x->s->metrics_port);
    else if (near)
        error_reply(x, 404, NULL, "There is no %.200s here; there is %s.", x->path, near);
    else
        error_reply(x, 404, NULL, "There is no %.200s here.", x->path);
}

bool http_accept(struct exchange *x, const char *version)
{
    struct server *s = x->s;
    const char *allow;
    if (!headers_are_fine(x, version))
        return false;
    x->route = route_find(x->method, x->path, &allow);
    bool options = !strcmp(x->method, "OPTIONS");
    bool guarded = x->route ? x->route->auth == ROUTE_KEY : !strncmp(x->path, "/v1", 3);
    if (guarded && !options &&
        !auth_allows(s->auth, http_header(x, "Authorization"), http_header(x, "X-Api-Key"))) {
        error_reply(x, 401, NULL,
                    "Unauthorized: a valid API key is needed, as \"Authorization: Bearer KEY\" or "
                    "\"X-Api-Key: KEY\".");
        return false;
    }
    if (x->route && x->route->auth == ROUTE_ADMIN && !admin_may(x)) {
        x->close = is_upload(x);
        return false;
    }
    if (options && allow) { /* a browser asks before it calls */
        x->status = 204;
        x->allow = allow;
        return false;
    }
    if (!x->route && allow) {
        error_reply(x, 405, NULL, "%s takes %s, not %s.", x->path, allow, x->method);
        x->allow = allow;
        return false;
    }
    if (!x->route || (s->metrics_daemon && x->route->run == api_metrics)) {
        say_not_here(x);
        return false;
    }
    if (s->draining && route_is_refused_by_drain(x->route->kind)) {
        error_reply(x, 503, NULL, "The server is shutting down and takes no new requests.");
        return false;
    }
    return body_is_fine(x);
}

void http_take_body(struct exchange *x, const char *data, size_t n)
{
    x->body_seen += n;
    if (x->refused)
        return;
    if (x->upload) {
        conn_set_deadline(x->conn, x->s->config->body_s); /* as long as it goes on */
        x->refused = !admin_upload_write(x, data, n);
        return;
    }
    if (x->s->body_bytes + n > x->s->config->max_body * BODIES_MAX) {
        error_reply(x, 503, NULL, "Too many large requests arrive at once.");
        exchange_drop_body(x);
        x->refused = true;
        return;
    }
    if (x->body_seen <= x->s->config->max_body) {
        buf_add(&x->body, data, n);
        x->body_held += n;
        x->s->body_bytes += n;
        return;
    }
    exchange_drop_body(x); /* chunked, so that its length was not known before */
    error_reply(x, 413, NULL, "The body is longer than the limit of %llu bytes.",
                (unsigned long long)x->s->config->max_body);
    x->refused = true;
}
