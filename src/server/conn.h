/* A connection, from accept to close: its place in the watcher and its deadline.
 *
 * The two guards that libmicrohttpd lacks live here. Its timeout counts silence only, so a client that sends
 * a byte a second lasts for ever: conn_reap shuts down whoever is past the deadline of its phase. And it does
 * not look at suspended connections, so a client that leaves while its prompt is computed stays unnoticed:
 * the socket is watched for EPOLLRDHUP in the loop's own epoll. */
#ifndef NYB_SERVER_CONN_H
#define NYB_SERVER_CONN_H

#include <stdbool.h>
#include <stdint.h>

#include "server/loop.h"

struct conn {
    struct server *s;
    struct conn *prev, *next;
    struct exchange *x;   /* being answered, or NULL */
    uint64_t deadline_ns; /* 0: none */
    size_t target_bytes;  /* of the request line */
    struct tls_pair *tls; /* the certificate it began with; NULL: plain HTTP */
    int fd;
    bool left;       /* the watcher saw the peer leave, maybe before its request was read */
    bool odd_target; /* the request's target cannot be told as a string                   */
};

/* MHD's notification of a new and of a closed connection. */
void conn_notify(void *server, struct MHD_Connection *mhd, void **socket_context,
                 enum MHD_ConnectionNotificationCode code);
struct conn *conn_of(struct MHD_Connection *mhd);
/* Seconds from now; 0 for none. */
void conn_set_deadline(struct conn *c, double seconds);
/* The watcher saw the peer leave. */
void conn_gone(struct conn *c);
/* A few times a second: shut down the late ones. */
void conn_reap(struct server *s, uint64_t now_ns);

#endif
