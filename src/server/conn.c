#include "server/conn.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/mem.h"
#include "server/exchange.h"

#define REAP_EVERY_NS   250000000u
#define NOTSENT_BYTES   16384 /* unsent bytes the kernel may hold: what a stalled reader can swallow */
#define USER_TIMEOUT_MS 20000 /* unacknowledged for so long: the peer is dead */

struct conn *conn_of(struct MHD_Connection *mhd)
{
    return MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
}

void conn_set_deadline(struct conn *c, double seconds)
{
    c->deadline_ns = seconds > 0 ? clock_ns() + (uint64_t)(seconds * 1e9) : 0;
}

/* Failing here costs only the guard it sets, so the results do not matter. */
static void set_socket_options(int fd)
{
    int one = 1, lowat = NOTSENT_BYTES, user_timeout = USER_TIMEOUT_MS;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &lowat, sizeof(lowat));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user_timeout, sizeof(user_timeout));
}

static struct conn *conn_open(struct server *s, struct MHD_Connection *mhd)
{
    struct conn *c = mem_alloc(1, sizeof(*c));
    c->s = s;
    c->fd = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    c->next = s->conns;
    if (c->next)
        c->next->prev = c;
    s->conns = c;
    s->n_conn++;
    set_socket_options(c->fd);
    const union MHD_ConnectionInfo *tls = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_GNUTLS_SESSION);
    if (s->tls.pair && tls)
        c->tls = tls_use(&s->tls, tls->tls_session);
    struct epoll_event event = {.events = EPOLLRDHUP | EPOLLONESHOT, .data.ptr = c};
    (void)epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, c->fd, &event);
    conn_set_deadline(c, s->config->header_s);
    return c;
}

static void conn_close(struct conn *c)
{
    (void)epoll_ctl(c->s->epoll_fd, EPOLL_CTL_DEL, c->fd, NULL);
    if (c->prev)
        c->prev->next = c->next;
    else
        c->s->conns = c->next;
    if (c->next)
        c->next->prev = c->prev;
    c->s->n_conn--;
    tls_release(c->tls);
    free(c);
}

void conn_notify(void *server, struct MHD_Connection *mhd, void **socket_context,
                 enum MHD_ConnectionNotificationCode code)
{
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        *socket_context = conn_open(server, mhd);
    } else if (*socket_context) {
        conn_close(*socket_context);
        *socket_context = NULL;
    }
}

void conn_gone(struct conn *c)
{
    c->left = true;
    if (c->x)
        exchange_gone(c->x);
}

void conn_reap(struct server *s, uint64_t now_ns)
{
    if (now_ns - s->reaped_ns < REAP_EVERY_NS)
        return;
    s->reaped_ns = now_ns;
    for (struct conn *c = s->conns; c; c = c->next) {
        if (c->x)
            exchange_keep_alive(c->x, now_ns);
        if (c->deadline_ns && now_ns > c->deadline_ns) {
            c->deadline_ns = 0;
            metrics_count_reaped(&s->metrics);
            (void)shutdown(c->fd, SHUT_RDWR);
        }
    }
}
