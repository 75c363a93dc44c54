#include "server/http.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "server/admin.h"
#include "server/auth.h"
#include "server/conn.h"
#include "server/error.h"
#include "server/exchange.h"
#include "server/gen.h"
#include "server/listen.h"
#include "server/route.h"
#include "server/work.h"

#define CORS_HEADERS_MAX 1024
/* GnuTLS's words for TLS 1.2 and later. */
#define TLS_PRIORITIES "NORMAL:-VERS-TLS1.0:-VERS-TLS1.1"
#define CONN_MEMORY    32768 /* headers of a request, then a chunk of a response */
#define STREAM_CHUNK   16384
#define DISCARD_FACTOR 8  /* a body up to so many times the limit is read and dropped, to deliver the 413 */
#define BODIES_MAX     16 /* bodies of the largest size that may be in memory at once */
#define SPARE_FILES    64 /* descriptors that are no connections */

/* ---- what came in -------------------------------------------------------------------------------- */

struct header_check {
    int n_length, n_host, n_transfer;
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

static const char *header(const struct exchange *x, const char *name)
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

/* Of what comes nevertheless. */
static uint64_t discard_limit(const struct exchange *x)
{
    uint64_t most = x->s->config->max_body * DISCARD_FACTOR;
    return is_upload(x) && most < body_limit(x) + CONN_MEMORY ? body_limit(x) + CONN_MEMORY : most;
}

static bool body_is_fine(struct exchange *x)
{
    const char *length = header(x, "Content-Length");
    uint64_t max = body_limit(x);
    uint64_t n = length ? strtoull(length, NULL, 10) : 0;
    if (n > max) {
        error_reply(x, 413, NULL, "The body has %llu bytes, the limit is %llu.", (unsigned long long)n,
                    (unsigned long long)max);
        x->close = n > discard_limit(x);
        return false;
    }
    const char *coding = header(x, "Content-Encoding");
    if (coding && strcasecmp(coding, "identity")) {
        error_reply(x, 415, NULL, "Unsupported Media Type: a body cannot be encoded as %.40s.", coding);
        return false;
    }
    if (is_upload(x))
        return admin_upload_open(x, header(x, "Content-Type"));
    if (!strcmp(x->route->method, "POST") && x->route->kind != ROUTE_INLINE &&
        !is_json(header(x, "Content-Type"))) {
        error_reply(x, 415, NULL, "Unsupported Media Type: Only 'application/json' is allowed.");
        return false;
    }
    return true;
}

/* Everything that can be refused before the body is there. */
static bool accept_request(struct exchange *x, const char *version)
{
    struct server *s = x->s;
    const char *allow;
    if (!headers_are_fine(x, version))
        return false;
    x->route = route_find(x->method, x->path, &allow);
    bool options = !strcmp(x->method, "OPTIONS");
    bool guarded = x->route ? x->route->auth == ROUTE_KEY : !strncmp(x->path, "/v1", 3);
    if (guarded && !options && !auth_allows(s->auth, header(x, "Authorization"))) {
        error_reply(x, 401, NULL,
                    "Unauthorized: a valid API key is needed, as \"Authorization: Bearer KEY\".");
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
        error_reply(x, 404, NULL, "There is no %.200s here.", x->path);
        return false;
    }
    if (s->draining && route_is_refused_by_drain(x->route->kind)) {
        error_reply(x, 503, NULL, "The server is shutting down and takes no new requests.");
        return false;
    }
    return body_is_fine(x);
}

static void take_body(struct exchange *x, const char *data, size_t n)
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

/* ---- what goes out ------------------------------------------------------------------------------- */

/* What a browser asks to send (OpenAI's JavaScript client has a dozen headers of its own) is answered with
 * the same names, if they are names and commas. */
static const char *asked_headers(const struct exchange *x)
{
    static const char usual[] = "Authorization, Content-Type, X-Request-Id";
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_, ";
    const char *asked = header(x, "Access-Control-Request-Headers");
    return asked && *asked && strlen(asked) < CORS_HEADERS_MAX && !asked[strspn(asked, allowed)] ? asked
                                                                                                 : usual;
}

/* The Access-Control-Allow-Origin for this request, or NULL. */
static const char *allowed_origin(const struct exchange *x)
{
    const struct config_list *list = &x->s->config->origin;
    const char *origin = header(x, "Origin");
    for (int i = 0; origin && i < list->n; i++) {
        if (!strcmp(list->item[i], "*"))
            return "*";
        if (!strcmp(list->item[i], origin))
            return list->item[i];
    }
    return NULL;
}

static void add_header(struct MHD_Response *r, const char *name, const char *value)
{
    if (value && MHD_add_response_header(r, name, value) != MHD_YES)
        log_debug("the header %s could not be added", name);
}

static void add_headers(const struct exchange *x, struct MHD_Response *r)
{
    const char *origin = allowed_origin(x);
    add_header(r, "X-Request-Id", x->id);
    add_header(r, "Allow", x->allow);
    if (x->status != 204)
        add_header(r, "Content-Type", x->content_type);
    if (x->status == 401)
        add_header(r, "WWW-Authenticate", "Bearer");
    if (x->retry_after_s) {
        char text[16];
        snprintf(text, sizeof(text), "%d", x->retry_after_s);
        add_header(r, "Retry-After", text);
    }
    if (x->close)
        add_header(r, "Connection", "close");
    if (x->s->config->origin.n > 0) /* a refused origin's answer must not be kept for another's */
        add_header(r, "Vary", "Origin");
    if (!origin)
        return;
    add_header(r, "Access-Control-Allow-Origin", origin);
    add_header(r, "Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
    if (x->status == 204) {
        add_header(r, "Access-Control-Allow-Methods", x->allow);
        add_header(r, "Access-Control-Allow-Headers", asked_headers(x));
        add_header(r, "Access-Control-Max-Age", "600");
    }
}

/* libmicrohttpd asks for the next bytes of a stream. 0: nothing now, the connection sleeps until there is. */
static ssize_t read_stream(void *arg, uint64_t position, char *to, size_t max)
{
    struct exchange *x = arg;
    (void)position;
    if (x->gone)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    bool over;
    size_t n = gen_read(x->gen, to, max, &over);
    x->sent_bytes += n;
    if (n)
        return (ssize_t)n;
    if (over)
        return MHD_CONTENT_READER_END_OF_STREAM;
    exchange_suspend(x);
    return 0;
}

static struct MHD_Response *stream_response(struct exchange *x)
{
    x->status = 200;
    x->content_type = "text/event-stream; charset=utf-8";
    struct MHD_Response *r =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_CHUNK, read_stream, x, NULL);
    if (r) {
        add_header(r, "Cache-Control", "no-cache");
        add_header(r, "X-Accel-Buffering", "no"); /* nginx: pass each chunk on at once */
    }
    return r;
}

static enum MHD_Result send_response(struct exchange *x)
{
    struct MHD_Response *r;
    if (x->gen && gen_is_stream(x->gen)) {
        r = stream_response(x);
    } else {
        size_t n = x->reply.len;
        x->sent_bytes = n;
        r = MHD_create_response_from_buffer(n, buf_steal(&x->reply), MHD_RESPMEM_MUST_FREE);
    }
    if (!r)
        return MHD_NO;
    add_headers(x, r);
    x->state = EXCHANGE_SENT;
    enum MHD_Result result = MHD_queue_response(x->mhd, (unsigned)x->status, r);
    MHD_destroy_response(r);
    return result;
}

/* ---- callbacks of libmicrohttpd ------------------------------------------------------------------ */

static void count_generating(struct exchange *x)
{
    x->counted = true;
    x->s->n_generating++;
}

/* The request is complete. */
static enum MHD_Result begin(struct exchange *x)
{
    conn_set_deadline(x->conn, 0);
    if (x->refused)
        return send_response(x);
    if (x->conn->left && x->route->kind != ROUTE_INLINE)
        return MHD_NO; /* nobody would read what it costs */
    if (x->route->kind == ROUTE_INLINE) {
        x->route->run(x);
        return send_response(x);
    }
    x->state = EXCHANGE_WORKING;
    count_generating(x);
    exchange_suspend(x);
    bool admin = x->route->kind >= ROUTE_CONTROL;
    if (admin)
        admin_take_query(x);
    work_add(admin ? admin_work(x->s->admin) : x->s->work, x);
    return MHD_YES;
}

/* Without the scheme and host that a client of a proxy sends. */
static const char *path_of(const char *url)
{
    size_t n = !strncasecmp(url, "http://", 7) ? 7 : !strncasecmp(url, "https://", 8) ? 8 : 0;
    const char *slash = n ? strchr(url + n, '/') : url;
    return slash ? slash : "/";
}

static enum MHD_Result handle(void *arg, struct MHD_Connection *mhd, const char *url, const char *method,
                              const char *version, const char *data, size_t *n, void **exchange)
{
    struct exchange *x = *exchange;
    if (!x) { /* the headers are there */
        x = exchange_open(arg, mhd, method, path_of(url));
        *exchange = x;
        conn_set_deadline(x->conn, x->s->config->body_s);
        x->refused = !accept_request(x, version);
        x->close = x->close || (x->refused && header(x, "Expect")); /* before the body comes */
        return x->refused && x->close ? send_response(x) : MHD_YES;
    }
    if (*n) {
        take_body(x, data, *n);
        *n = 0;
        return x->body_seen > discard_limit(x) ? MHD_NO : MHD_YES;
    }
    if (x->state == EXCHANGE_BODY)
        return begin(x);
    if (x->gone || x->state != EXCHANGE_READY)
        return MHD_NO;
    return send_response(x);
}

static void completed(void *arg, struct MHD_Connection *mhd, void **exchange,
                      enum MHD_RequestTerminationCode code)
{
    struct exchange *x = *exchange;
    (void)arg;
    struct conn *c = conn_of(mhd);
    if (c)
        conn_set_deadline(c, c->s->config->keep_alive_s);
    if (x) {
        x->left = code != MHD_REQUEST_TERMINATED_COMPLETED_OK;
        exchange_close(x);
    }
    *exchange = NULL;
}

/* The request line is there. */
static void *request_begins(void *arg, const char *uri, struct MHD_Connection *mhd)
{
    const struct server *s = arg;
    struct conn *c = conn_of(mhd);
    c->odd_target = strstr(uri, "%00") || uri[strcspn(uri, " \t")];
    conn_set_deadline(c, s->config->header_s);
    return NULL;
}

static void log_message(void *arg, const char *fmt, va_list args)
{
    char line[512];
    (void)arg;
    int n = vsnprintf(line, sizeof(line), fmt, args);
    while (n > 0 && (size_t)n < sizeof(line) && line[n - 1] == '\n')
        line[--n] = 0;
    log_debug("libmicrohttpd: %s", line); /* what clients do wrong, in its words */
}

/* ---- daemons ------------------------------------------------------------------------------------- */

static enum MHD_Result handle_metrics(void *arg, struct MHD_Connection *mhd, const char *url,
                                      const char *method, const char *version, const char *data, size_t *n,
                                      void **exchange)
{
    struct server *s = arg;
    (void)version;
    (void)data;
    (void)exchange;
    *n = 0;
    struct buf text = {0};
    bool known = !strcmp(url, "/metrics") && (!strcmp(method, "GET") || !strcmp(method, "HEAD"));
    if (known)
        metrics_print(s, &text);
    size_t len = text.len;
    struct MHD_Response *r = MHD_create_response_from_buffer(len, buf_steal(&text), MHD_RESPMEM_MUST_FREE);
    if (!r)
        return MHD_NO;
    add_header(r, "Content-Type", METRICS_TYPE);
    enum MHD_Result result = MHD_queue_response(mhd, known ? 200 : 404, r);
    MHD_destroy_response(r);
    return result;
}

static enum nyb_code open_metrics(struct server *s, struct nyb_err *err)
{
    int fd, port = (int)s->config->metrics_port;
    TRY(listen_open(&fd, s->config->host, &port, err));
    s->metrics_daemon = MHD_start_daemon(MHD_USE_EPOLL, 0, NULL, NULL, handle_metrics, s,
                                         MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT, 16u,
                                         MHD_OPTION_CONNECTION_TIMEOUT, 10u, MHD_OPTION_END);
    if (s->metrics_daemon) {
        log_info("metrics: http://%s:%d/metrics", s->config->host, port);
        return NYB_OK;
    }
    close(fd);
    return err_set(err, NYB_E_IO, "cannot start the HTTP daemon for metrics");
}

enum nyb_code http_open(struct server *s, struct nyb_err *err)
{
    const struct serve_config *c = s->config;
    int fd, port = (int)c->port, files = listen_raise_limit((int)c->max_connections + SPARE_FILES);
    int limit = files - SPARE_FILES < 1 ? 1 : files - SPARE_FILES;
    if (limit < c->max_connections)
        log_warn("open files are limited to %d: %d connections instead of %lld", files, limit,
                 (long long)c->max_connections);
    TRY(listen_open(&fd, c->host, &port, err));
    unsigned stall_s = c->stream_stall_s < 1 ? 1 : (unsigned)c->stream_stall_s;
    unsigned flags =
        MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG | (s->tls_cert ? MHD_USE_TLS : 0);
    const struct MHD_OptionItem tls[] = {{MHD_OPTION_HTTPS_MEM_KEY, 0, s->tls_key},
                                         {MHD_OPTION_HTTPS_MEM_CERT, 0, s->tls_cert},
                                         {MHD_OPTION_HTTPS_PRIORITIES, 0, (void *)(uintptr_t)TLS_PRIORITIES},
                                         {MHD_OPTION_END, 0, NULL}};
    s->daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, handle, s, MHD_OPTION_EXTERNAL_LOGGER, log_message, NULL,
        MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONN_MEMORY,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)limit, MHD_OPTION_CONNECTION_TIMEOUT, stall_s,
        MHD_OPTION_STRICT_FOR_CLIENT, 0, MHD_OPTION_NOTIFY_CONNECTION, conn_notify, s,
        MHD_OPTION_URI_LOG_CALLBACK, request_begins, s, MHD_OPTION_NOTIFY_COMPLETED, completed, s,
        MHD_OPTION_ARRAY, s->tls_cert ? tls : tls + COUNT_OF(tls) - 1, MHD_OPTION_END);
    if (!s->daemon) {
        close(fd);
        return err_set(err, NYB_E_IO, "cannot start the HTTP daemon%s",
                       s->tls_cert ? ": do the certificate and the key belong together?" : "");
    }
    bool v6 = strchr(c->host, ':');
    log_info("listening on %s://%s%s%s:%d, model \"%s\"", s->tls_cert ? "https" : "http", v6 ? "[" : "",
             c->host, v6 ? "]" : "", port, s->model);
    return s->config->metrics_port ? open_metrics(s, err) : NYB_OK;
}

/* libmicrohttpd aborts when it is stopped with suspended connections. */
void http_stop(struct server *s)
{
    for (struct conn *c = s->conns; c; c = c->next)
        if (c->x) {
            c->x->gone = true;
            exchange_resume(c->x);
        }
    if (s->daemon) {
        MHD_run(s->daemon);
        MHD_stop_daemon(s->daemon);
    }
    if (s->metrics_daemon)
        MHD_stop_daemon(s->metrics_daemon);
    s->daemon = s->metrics_daemon = NULL;
}
