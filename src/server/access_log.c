#include "server/access_log.h"

#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"

#define PATH_SHOWN  400 /* bytes of it, each of which may take six: the line stays below PIPE_BUF */
#define LEFT_STATUS 499 /* nginx's number for a client that left before there was an answer */

static void client_address(const struct exchange *x, char *text, size_t cap)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(x->mhd, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    const struct sockaddr *a = info ? info->client_addr : NULL;
    socklen_t len = a && a->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    if (a && a->sa_family == AF_UNIX)
        snprintf(text, cap, "unix");
    else if (!a || getnameinfo(a, len, text, (socklen_t)cap, NULL, 0, NI_NUMERICHOST) != 0)
        snprintf(text, cap, "-");
}

static void now(char *text, size_t cap)
{
    uint64_t us = clock_unix_us();
    time_t seconds = (time_t)(us / 1000000u);
    struct tm tm;
    gmtime_r(&seconds, &tm);
    size_t n = strftime(text, cap, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(text + n, cap - n, ".%03uZ", (unsigned)(us / 1000u % 1000u));
}

struct line {
    struct buf b;
    bool json;
};

static void add_key(struct line *l, const char *key)
{
    if (l->json) {
        buf_add_byte(&l->b, l->b.len ? ',' : '{');
        json_add_string(&l->b, key, strlen(key));
        buf_add_byte(&l->b, ':');
    } else {
        buf_printf(&l->b, "%s%s=", l->b.len ? " " : "", key);
    }
}

/* A logfmt value needs quotes unless it is plain; the quoting is JSON's. */
static void add_text(struct line *l, const char *key, const char *value)
{
    add_key(l, key);
    bool plain = *value && !value[strcspn(value, " \"=\\")];
    for (const char *s = value; *s && plain; s++)
        plain = (unsigned char)*s > 0x20 && *s != 0x7f;
    if (plain && !l->json)
        buf_add_str(&l->b, value);
    else
        json_add_string(&l->b, value, strlen(value));
}

static void add_number(struct line *l, const char *key, uint64_t value)
{
    add_key(l, key);
    buf_printf(&l->b, "%llu", (unsigned long long)value);
}

/* A reader of the log that stalls or is gone is no reason to stop serving: a line that would have to wait is
 * lost. A pipe that takes anything takes a line of up to PIPE_BUF bytes whole. */
static void write_line(uint64_t *lost, const struct buf *line)
{
    struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};
    if (poll(&out, 1, 0) != 1 || !(out.revents & POLLOUT) ||
        write(STDOUT_FILENO, line->data, line->len) < 0) {
        if ((*lost)++ == 0)
            log_warn("the access log cannot be written: lines are lost");
        return;
    }
    if (*lost)
        log_warn("the access log is written again: %llu lines were lost", (unsigned long long)*lost);
    *lost = 0;
}

void access_log_write(const struct exchange *x)
{
    if (!x->s->config->access_log)
        return;
    struct line l = {.json = x->s->config->log_format == CONFIG_LOG_JSON};
    char address[NI_MAXHOST], time_text[64], path[PATH_SHOWN];
    client_address(x, address, sizeof(address));
    now(time_text, sizeof(time_text));
    add_text(&l, "time", time_text);
    add_text(&l, "level", "info");
    add_text(&l, "msg", "request");
    add_text(&l, "id", x->id);
    add_text(&l, "client", address);
    add_text(&l, "method", x->method);
    snprintf(path, sizeof(path), "%s", x->path);
    add_text(&l, "path", path);
    add_number(&l, "status",
               (uint64_t)(x->status && !(x->gone && x->state != EXCHANGE_SENT) ? x->status : LEFT_STATUS));
    add_key(&l, "ms");
    buf_printf(&l.b, "%.3f", (double)(clock_ns() - x->start_ns) * 1e-6);
    add_number(&l, "bytes", x->sent_bytes);
    if (x->completion_tokens || x->prompt_tokens) {
        add_number(&l, "prompt_tokens", (uint64_t)x->prompt_tokens);
        add_number(&l, "completion_tokens", (uint64_t)x->completion_tokens);
    }
    if (x->left)
        add_text(&l, "end", "incomplete");
    buf_add_str(&l.b, l.json ? "}\n" : "\n");
    write_line(&x->s->log_lost, &l.b);
    buf_free(&l.b);
}
