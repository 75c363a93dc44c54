/* One request and its response. Belongs to the loop, except between work_add and work_take_done: then a
 * worker has it alone and the loop touches nothing but `gone`. */
#ifndef NYB_SERVER_EXCHANGE_H
#define NYB_SERVER_EXCHANGE_H

#include <stdatomic.h>

#include "base/json.h"
#include "server/loop.h"

#define EXCHANGE_ID_MAX 64

enum exchange_state {
    EXCHANGE_BODY,    /* the body comes in                                    */
    EXCHANGE_WORKING, /* suspended; a worker has it                           */
    EXCHANGE_WAITING, /* suspended; the engine makes an answer without stream */
    EXCHANGE_READY,   /* the reply is there, or a stream may begin            */
    EXCHANGE_SENT,    /* given to libmicrohttpd                               */
};

struct exchange {
    struct server *s;
    struct conn *conn;
    struct MHD_Connection *mhd;
    const struct route *route; /* NULL: none matches */
    char *path;
    char method[16];
    enum exchange_state state;
    struct buf body;
    uint64_t body_seen;        /* bytes, those dropped included */
    uint64_t body_held;        /* of s->body_bytes */
    struct nyb_upload *upload; /* takes the body of a ROUTE_UPLOAD; else NULL */
    bool refused;              /* the reply is there before the body: it is read and dropped */
    bool suspended, close;
    bool left;    /* the response was not taken to its end */
    bool counted; /* in s->n_generating */
    bool gone;    /* the client has left; the loop's alone */
    char id[EXCHANGE_ID_MAX + 1];

    int status;
    struct buf reply; /* the body of a response without stream */
    const char *content_type;
    int retry_after_s; /* 0: no such header */
    const char *allow; /* of a 405 */
    struct gen *gen;   /* an answer of the engine, or NULL */

    uint64_t start_ns;
    uint64_t sent_bytes;
    uint64_t sent_ns;                     /* of a stream's last bytes */
    int prompt_tokens, completion_tokens; /* for the log */

    atomic_bool queued; /* on the stack of those that rang */
    bool dead;          /* freed by whoever takes it from there */
    struct exchange *next_rung, *next_work;
};

/* Fill the reply. */
void exchange_reply_json(struct exchange *x, int status, const json_t *body);

/* Called by the loop. */
void exchange_worked(struct exchange *x);
void exchange_rung(struct exchange *x);
void exchange_gone(struct exchange *x);
/* A stream that has been silent for long says that it is there: proxies and clients give up on those that do
 * not. */
void exchange_keep_alive(struct exchange *x, uint64_t now_ns);
void exchange_suspend(struct exchange *x);
void exchange_resume(struct exchange *x);
struct exchange *exchange_open(struct server *s, struct MHD_Connection *mhd, const char *method,
                               const char *path);
void exchange_close(struct exchange *x);
void exchange_drop_body(struct exchange *x);

#endif
