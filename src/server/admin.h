/* Administration: who may, from where weights may come, what the last update did, and the threads that do it.
 *
 * A request of ROUTE_ADMIN is allowed
 *   - where admin keys are configured: with one of them as a bearer token, whoever the peer is;
 *   - else only to a peer of this machine that speaks to us itself: the connection comes from a loopback
 * address, Host is a loopback name, and no header says that a proxy or a browser is in between. Where API
 * keys are configured, one of these is needed, too. Headers can only take the right away; none gives it. */
#ifndef NYB_SERVER_ADMIN_H
#define NYB_SERVER_ADMIN_H

#include "server/exchange.h"

/* Keys and weights roots, which need no engine. */
enum nyb_code admin_open(struct server *s, struct nyb_err *err) NYB_MUST_CHECK;
/* The threads, once s->info is there. */
enum nyb_code admin_start(struct server *s, struct nyb_err *err) NYB_MUST_CHECK;
/* End the threads: waits for an update that has begun. NULL is fine. */
void admin_stop(struct admin *a);
void admin_close(struct admin *a);
/* Its threads; NULL after admin_stop. */
struct work *admin_work(const struct admin *a);

/* ---- in the loop */

/* Read the admin keys' file again. After an error the old ones stay. */
enum nyb_code admin_renew(struct server *s, struct nyb_err *err) NYB_MUST_CHECK;
/* False: the reply says why not. */
bool admin_may(struct exchange *x);
/* The parameters of a query become the body where there is none, for an admin endpoint takes either. */
void admin_take_query(struct exchange *x);
/* One upload at a time. False: the reply says why not. */
bool admin_upload_open(struct exchange *x, const char *content_type);
bool admin_upload_write(struct exchange *x, const void *bytes, size_t n);
void admin_upload_close(struct exchange *x);

/* ---- by the admin threads */

/* Where a model path leads, if it is below a weights root or the served folder; caller frees. NULL: *status
 * and err say why not. */
char *admin_folder(const struct admin *a, const char *path, int *status, struct nyb_err *err);

/* ---- by both */

/* What the updates so far have done, for /health and /metrics. */
struct admin_facts {
    enum nyb_weights_state state; /* after the last one: its own weights, those before, or neither */
    double prepare_s, stage_s, wait_s, stall_s; /* sums */
    double last_stall_s, longest_stall_s;
};
void admin_note(struct admin *a, const struct nyb_update_result *r);
void admin_read_facts(const struct admin *a, struct admin_facts *f);

/* ---- admin_body.c: parameters */

enum admin_kind {
    ADMIN_STRING,  /* const char **, which lives as long as the body */
    ADMIN_BOOL,    /* bool *   */
    ADMIN_INT,     /* int *    */
    ADMIN_SECONDS, /* double * */
    ADMIN_STRINGS, /* struct admin_strings *: one or several */
    ADMIN_IGNORED, /* concerns what other servers have and this one does not need */
    ADMIN_REFUSED, /* would change what is done, and is not there: null, false, 0 and nothing else */
};
#define ADMIN_STRINGS_MAX 4096
struct admin_strings {
    const char **item; /* (n) caller frees */
    int n;
};
struct admin_field {
    const char *name;
    enum admin_kind kind;
    void *to; /* stays as it is where the parameter is absent or null */
};
/* Other parameters than these n are refused: a switch with a typing error must not be taken for absent. */
enum nyb_code admin_read(const json_t *body, const struct admin_field *field, int n,
                         struct nyb_err *err) NYB_MUST_CHECK;

#endif
