/* What goes out: headers, whole replies and streams. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "server/gen.h"
#include "server/http_exchange.h"

#define CORS_HEADERS_MAX 1024
#define STREAM_CHUNK     16384

/* What a browser asks to send (OpenAI's JavaScript client has a dozen headers of its own) is answered with
 * the same names, if they are names and commas. */
static const char *asked_headers(const struct exchange *x)
{
    static const char usual[] = "Authorization, Content-Type, X-Request-Id";
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_, ";
    const char *asked = http_header(x, "Access-Control-Request-Headers");
    return asked && *asked && strlen(asked) < CORS_HEADERS_MAX && !asked[strspn(asked, allowed)] ? asked
                                                                                                 : usual;
}

/* The Access-Control-Allow-Origin for this request, or NULL. */
static const char *allowed_origin(const struct exchange *x)
{
    const struct config_list *list = &x->s->config->origin;
    const char *origin = http_header(x, "Origin");
    for (int i = 0; origin && i < list->n; i++) {
        if (!strcmp(list->item[i], "*"))
            return "*";
        if (!strcmp(list->item[i], origin))
            return list->item[i];
    }
    return NULL;
}

void http_add_header(struct MHD_Response *r, const char *name, const char *value)
{
    if (value && MHD_add_response_header(r, name, value) != MHD_YES)
        log_debug("the header %s could not be added", name);
}

static void add_headers(const struct exchange *x, struct MHD_Response *r)
{
    const char *origin = allowed_origin(x);
    http_add_header(r, "X-Request-Id", x->id);
    http_add_header(r, "Allow", x->allow);
    if (x->status != 204)
        http_add_header(r, "Content-Type", x->content_type);
    if (x->status == 401)
        http_add_header(r, "WWW-Authenticate", "Bearer");
    if (x->retry_after_s) {
        char text[16];
        snprintf(text, sizeof(text), "%d", x->retry_after_s);
        http_add_header(r, "Retry-After", text);
    }
    if (x->close)
        http_add_header(r, "Connection", "close");
    if (x->s->config->origin.n > 0) /* a refused origin's answer must not be kept for another's */
        http_add_header(r, "Vary", "Origin");
    if (!origin)
        return;
    http_add_header(r, "Access-Control-Allow-Origin", origin);
    http_add_header(r, "Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
    if (x->status == 204) {
        http_add_header(r, "Access-Control-Allow-Methods", x->allow);
        http_add_header(r, "Access-Control-Allow-Headers", asked_headers(x));
        http_add_header(r, "Access-Control-Max-Age", "600");
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
    if (n) {
        x->sent_ns = clock_ns();
        return (ssize_t)n;
    }
    if (over)
        return MHD_CONTENT_READER_END_OF_STREAM;
    exchange_suspend(x);
    return 0;
}

static struct MHD_Response *stream_response(struct exchange *x)
{
    x->status = 200;
    x->sent_ns = clock_ns();
    x->content_type = "text/event-stream; charset=utf-8";
    struct MHD_Response *r =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_CHUNK, read_stream, x, NULL);
    if (r) {
        http_add_header(r, "Cache-Control", "no-cache");
        http_add_header(r, "X-Accel-Buffering", "no"); /* nginx: pass each chunk on at once */
    }
    return r;
}

enum MHD_Result http_send(struct exchange *x)
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
