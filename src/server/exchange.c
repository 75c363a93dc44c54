#include "server/exchange.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/mem.h"
#include "server/access_log.h"
#include "server/admin.h"
#include "server/conn.h"
#include "server/error.h"
#include "server/gen.h"

#define LEFT_S      1.0 /* until the connection of a client that left is shut down */
#define REAL_DIGITS 9   /* tell every fp32 number apart; more of a time would be noise */

/* The client's X-Request-Id where it is harmless, else 128 random bits. */
static void choose_id(struct exchange *x)
{
    const char *given = MHD_lookup_connection_value(x->mhd, MHD_HEADER_KIND, "X-Request-Id");
    size_t n = given ? strlen(given) : 0;
    bool fine = n > 0 && n <= EXCHANGE_ID_MAX;
    for (size_t i = 0; fine && i < n; i++)
        fine = isalnum((unsigned char)given[i]) || strchr("-_.:", given[i]);
    uint64_t random[2] = {0};
    if (fine) {
        memcpy(x->id, given, n + 1);
        return;
    }
    if (getrandom(random, sizeof(random), GRND_NONBLOCK) != (ssize_t)sizeof(random))
        random[0] = clock_ns();
    snprintf(x->id, sizeof(x->id), "%016" PRIx64 "%016" PRIx64, random[0], random[1]);
}

struct exchange *exchange_open(struct server *s, struct MHD_Connection *mhd, const char *method,
                               const char *path)
{
    struct exchange *x = mem_alloc(1, sizeof(*x));
    x->s = s;
    x->mhd = mhd;
    snprintf(x->method, sizeof(x->method), "%s", method);
    x->path = mem_strdup(path);
    x->conn = conn_of(mhd);
    x->conn->x = x;
    x->content_type = "application/json";
    x->start_ns = clock_ns();
    choose_id(x);
    return x;
}

static void exchange_free(struct exchange *x)
{
    buf_free(&x->reply);
    free(x->path);
    free(x);
}

void exchange_drop_body(struct exchange *x)
{
    x->s->body_bytes -= x->body_held;
    x->body_held = 0;
    buf_free(&x->body);
    if (x->upload)
        admin_upload_close(x);
}

void exchange_close(struct exchange *x)
{
    exchange_drop_body(x);
    gen_close(x->gen); /* no ring after this */
    x->gen = NULL;
    if (x->counted)
        x->s->n_generating--;
    access_log_write(x);
    metrics_count_http(&x->s->metrics, x);
    x->conn->x = NULL;
    if (atomic_load(&x->queued))
        x->dead = true;
    else
        exchange_free(x);
}

void exchange_reply_json(struct exchange *x, int status, const json_t *body)
{
    x->status = status;
    char *text = json_dumps(body, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(REAL_DIGITS));
    buf_clear(&x->reply);
    buf_add_str(&x->reply, text ? text : "null");
    free(text);
}

void exchange_suspend(struct exchange *x)
{
    x->suspended = true;
    MHD_suspend_connection(x->mhd);
}

void exchange_resume(struct exchange *x)
{
    if (!x->suspended)
        return;
    x->suspended = false;
    MHD_resume_connection(x->mhd);
}

/* The worker is done: the reply is there, or the engine makes an answer. */
void exchange_worked(struct exchange *x)
{
    exchange_drop_body(x);
    x->state = x->gen && !gen_is_stream(x->gen) ? EXCHANGE_WAITING : EXCHANGE_READY;
    if (x->gone) {
        gen_cancel(x->gen);
        x->state = EXCHANGE_READY;
    }
    if (x->state == EXCHANGE_READY)
        exchange_resume(x);
    else
        exchange_rung(x); /* the engine may have been faster */
}

/* The engine has news. */
void exchange_rung(struct exchange *x)
{
    if (x->dead) {
        exchange_free(x);
        return;
    }
    if (x->state == EXCHANGE_WAITING && gen_pump(x->gen)) {
        gen_reply(x->gen);
        x->state = EXCHANGE_READY;
        exchange_resume(x);
    } else if (x->state == EXCHANGE_SENT && x->suspended) {
        exchange_resume(x); /* the content reader pumps */
    }
}

void exchange_keep_alive(struct exchange *x, uint64_t now_ns)
{
    uint64_t after = (uint64_t)(x->s->config->stream_keepalive_s * 1e9);
    if (!after || x->state != EXCHANGE_SENT || !x->suspended || x->gone || now_ns - x->sent_ns < after)
        return;
    gen_keep_alive(x->gen);
    exchange_resume(x);
}

/* Others may upload now, whenever libmicrohttpd gets to the end of what was sent. */
static void leave_upload(struct exchange *x)
{
    admin_upload_close(x);
    error_reply(x, 400, NULL, "The client has left within its upload.");
    x->refused = true;
    conn_set_deadline(x->conn, LEFT_S);
}

/* What the engine computes for it is lost: stop that, and let libmicrohttpd close the socket. */
void exchange_gone(struct exchange *x)
{
    x->gone = true;
    if (x->state == EXCHANGE_WORKING)
        return; /* exchange_worked follows */
    if (x->state == EXCHANGE_BODY && x->upload)
        leave_upload(x);
    gen_cancel(x->gen);
    x->state = x->state == EXCHANGE_WAITING ? EXCHANGE_READY : x->state;
    exchange_resume(x);
}
