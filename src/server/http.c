#include "server/http.h"

#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "server/admin.h"
#include "server/conn.h"
#include "server/http_exchange.h"
#include "server/listen.h"
#include "server/listen_file.h"
#include "server/route.h"
#include "server/work.h"

/* GnuTLS's words for TLS 1.2 and later. */
#define TLS_PRIORITIES "NORMAL:-VERS-TLS1.0:-VERS-TLS1.1"
#define SPARE_FILES    64 /* descriptors that are no connections */

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
        return http_send(x);
    if (x->conn->left && x->route->kind != ROUTE_INLINE)
        return MHD_NO; /* nobody would read what it costs */
    if (x->route->kind == ROUTE_INLINE) {
        x->route->run(x);
        return http_send(x);
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
        x->refused = !http_accept(x, version);
        x->close = x->close || (x->refused && http_header(x, "Expect")); /* before the body comes */
        return x->refused && x->close ? http_send(x) : MHD_YES;
    }
    if (*n) {
        http_take_body(x, data, *n);
        *n = 0;
        return x->body_seen > http_discard_limit(x) ? MHD_NO : MHD_YES;
    }
    if (x->state == EXCHANGE_BODY)
        return begin(x);
    if (x->gone || x->state != EXCHANGE_READY)
        return MHD_NO;
    return http_send(x);
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
    c->target_bytes = strlen(uri);
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
    http_add_header(r, "Content-Type", METRICS_TYPE);
    enum MHD_Result result = MHD_queue_response(mhd, known ? 200 : 404, r);
    MHD_destroy_response(r);
    return result;
}

/* A socket in the file system has no ports. */
static const char *metrics_host(const struct server *s)
{
    return listen_file_is_path(s->config->host) ? "127.0.0.1" : s->config->host;
}

static enum nyb_code open_metrics(struct server *s, struct nyb_err *err)
{
    const char *host = metrics_host(s);
    TRY(listen_start(s->metrics_fd, host, s->metrics_port, err));
    s->metrics_daemon = MHD_start_daemon(MHD_USE_EPOLL, 0, NULL, NULL, handle_metrics, s,
                                         MHD_OPTION_LISTEN_SOCKET, s->metrics_fd, MHD_OPTION_CONNECTION_LIMIT,
                                         16u, MHD_OPTION_CONNECTION_TIMEOUT, 10u, MHD_OPTION_END);
    if (!s->metrics_daemon)
        return err_set(err, NYB_E_IO, "cannot start the HTTP daemon for metrics");
    s->metrics_fd = -1;
    log_info("metrics: http://%s:%d/metrics", host, s->metrics_port);
    return NYB_OK;
}

enum nyb_code http_bind(struct server *s, struct nyb_err *err)
{
    const struct serve_config *c = s->config;
    s->listen_port = (int)c->port;
    s->metrics_port = (int)c->metrics_port;
    bool is_file = listen_file_is_path(c->host);
    if (!is_file && c->port &&
        c->port == c->metrics_port) /* two sockets may be bound to one port that nobody listens on */
        return err_at(err, NYB_E_ARG, "metrics-port", -1, "expected another port than --port, got %d",
                      s->metrics_port);
    TRY(is_file ? listen_file_bind(&s->listen_file, &s->listen_fd, c->host, err)
                : listen_bind(&s->listen_fd, c->host, &s->listen_port, err));
    return s->metrics_port ? listen_bind(&s->metrics_fd, metrics_host(s), &s->metrics_port, err) : NYB_OK;
}

static void say_where(const struct server *s)
{
    const char *scheme = s->tls.cert ? "https" : "http", *host = s->config->host;
    bool v6 = strchr(host, ':');
    if (listen_file_is_path(host))
        log_info("listening on %s+unix://%s, model \"%s\"", scheme, host, s->model);
    else
        log_info("listening on %s://%s%s%s:%d, model \"%s\"", scheme, v6 ? "[" : "", host, v6 ? "]" : "",
                 s->listen_port, s->model);
}

enum nyb_code http_open(struct server *s, struct nyb_err *err)
{
    const struct serve_config *c = s->config;
    int files = listen_raise_limit((int)c->max_connections + SPARE_FILES);
    int limit = files - SPARE_FILES < 1 ? 1 : files - SPARE_FILES;
    if (limit < c->max_connections)
        log_warn("open files are limited to %d: %d connections instead of %lld", files, limit,
                 (long long)c->max_connections);
    if (!s->auth && !listen_is_local(s->listen_fd))
        log_warn("there is no API key: whoever reaches this server (--host %s) may use it", c->host);
    bool is_file = listen_file_is_path(c->host);
    TRY(is_file ? listen_file_start(&s->listen_file, s->listen_fd, c->host, err)
                : listen_start(s->listen_fd, c->host, s->listen_port, err));
    unsigned stall_s = c->stream_stall_s < 1 ? 1 : (unsigned)c->stream_stall_s;
    unsigned flags =
        MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG | (s->tls.cert ? MHD_USE_TLS : 0);
    const struct MHD_OptionItem tls[] = {{MHD_OPTION_HTTPS_MEM_KEY, 0, s->tls.key},
                                         {MHD_OPTION_HTTPS_MEM_CERT, 0, s->tls.cert},
                                         {MHD_OPTION_HTTPS_PRIORITIES, 0, (void *)(uintptr_t)TLS_PRIORITIES},
                                         {MHD_OPTION_END, 0, NULL}};
    s->daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, handle, s, MHD_OPTION_EXTERNAL_LOGGER, log_message, NULL,
        MHD_OPTION_LISTEN_SOCKET, s->listen_fd, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HTTP_MEMORY,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)limit, MHD_OPTION_CONNECTION_TIMEOUT, stall_s,
        MHD_OPTION_STRICT_FOR_CLIENT, 0, MHD_OPTION_NOTIFY_CONNECTION, conn_notify, s,
        MHD_OPTION_URI_LOG_CALLBACK, request_begins, s, MHD_OPTION_NOTIFY_COMPLETED, completed, s,
        MHD_OPTION_ARRAY, s->tls.cert ? tls : tls + COUNT_OF(tls) - 1, MHD_OPTION_END);
    if (!s->daemon)
        return err_set(err, NYB_E_IO, "cannot start the HTTP daemon");
    s->listen_fd = -1;
    say_where(s);
    return s->metrics_fd >= 0 ? open_metrics(s, err) : NYB_OK;
}

/* libmicrohttpd aborts when it is stopped with suspended connections. The socket's file goes while we listen:
 * once we do not, another server may put its own in the place, even with the same inode. */
void http_stop(struct server *s)
{
    listen_file_remove(&s->listen_file, s->config->host);
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
    if (s->listen_fd >= 0)
        close(s->listen_fd);
    if (s->metrics_fd >= 0)
        close(s->metrics_fd);
    s->listen_fd = s->metrics_fd = -1;
}
