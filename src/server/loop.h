/* The loop: one thread, one epoll, everything that has to do with connections.
 *
 * libmicrohttpd is driven by hand (MHD_run) between waits, so its callbacks, all exchanges, all connections
 * and all metrics belong to this one thread and need no locks. What other threads may do is ring:
 * loop_ring(exchange) from the engine's thread (a token is there) or from a worker (its job is done). */
#ifndef NYB_SERVER_LOOP_H
#define NYB_SERVER_LOOP_H

#include <microhttpd.h>
#include <stdatomic.h>

#include "base/buf.h"
#include "server/listen_file.h"
#include "server/metrics.h"
#include "server/server.h"
#include "server/tls.h"

struct exchange;
struct conn;
struct work;
struct parse_format;
struct auth;
struct admin;
struct renew;

struct server {
    const struct serve_config *config;
    struct nyb_engine *engine;
    const struct nyb_info *info;
    const struct parse_format *format; /* of the model's answers */
    bool format_special;               /* its markers are special tokens: decode with them */
    bool has_tokenizer;
    const char *model;   /* the name in answers */
    struct auth *auth;   /* NULL: everybody may */
    struct admin *admin; /* what admin.h needs */
    struct tls tls;
    struct renew *renew; /* NULL: no files of keys or certificates */
    int64_t created_s;   /* of the model card */

    int listen_fd, listen_port; /* the daemons have them once they run; then -1 */
    struct listen_file listen_file;
    int metrics_fd, metrics_port;               /* -1: no port of their own */
    struct MHD_Daemon *daemon, *metrics_daemon; /* the second may be NULL */
    int epoll_fd, event_fd;
    _Atomic(struct exchange *) rung; /* a stack of those that rang              */
    struct exchange *ringing;        /* taken from there, not answered yet */
    bool has_room;                   /* connections were closed in the last turn */
    struct work *work;

    struct conn *conns; /* all connections, doubly linked */
    uint64_t reaped_ns;
    int n_conn, n_generating; /* exchanges that hold requests of the engine or wait for a worker */
    uint64_t body_bytes;      /* of requests that are not parsed yet */
    bool draining;
    uint64_t drain_until_ns, idle_since_ns;
    struct nyb_err lost; /* a rank: why the server ends by itself */
    uint64_t log_lost;   /* lines of the access log since the last one that was written */
    struct metrics metrics;
};

/* From any thread, never block: look at this exchange; look around. */
void loop_ring(struct exchange *x);
void loop_wake(struct server *s);
enum nyb_code loop_open(struct server *s, struct nyb_err *err) NYB_MUST_CHECK;
/* Until a drain is complete. */
void loop_run(struct server *s);
void loop_close(struct server *s);

#endif
