#include "server/loop.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "server/admin.h"
#include "server/conn.h"
#include "server/drain.h"
#include "server/exchange.h"
#include "server/http.h"
#include "server/renew.h"
#include "server/work.h"

#define EVENT_MAX   256
#define RING_BATCH  32
#define WAIT_MAX_MS 100 /* the reaper and the drain look around so often */

/* A stack with many writers and one reader. Only the first writer since the last look pays for a system call.
 */
void loop_ring(struct exchange *x)
{
    struct server *s = x->s;
    if (atomic_exchange(&x->queued, true))
        return;
    struct exchange *head = atomic_load(&s->rung);
    do
        x->next_rung = head;
    while (!atomic_compare_exchange_weak(&s->rung, &head, x));
    if (!head)
        loop_wake(s);
}

void loop_wake(struct server *s)
{
    const uint64_t one = 1;
    if (write(s->event_fd, &one, sizeof(one)) < 0)
        return; /* full: it wakes anyway */
}

/* Append those that rang to the list that is being answered, in the order in which they rang. */
static void take_rung(struct server *s)
{
    struct exchange *stack = atomic_exchange(&s->rung, NULL), *list = NULL;
    while (stack) {
        struct exchange *next = stack->next_rung;
        stack->next_rung = list;
        list = stack;
        stack = next;
    }
    struct exchange **end = &s->ringing;
    while (*end)
        end = &(*end)->next_rung;
    *end = list;
}

/* w may be NULL. */
static void take_worked(struct work *w)
{
    for (struct exchange *x = w ? work_take_done(w) : NULL, *next; x; x = next) {
        next = x->next_work;
        exchange_worked(x);
    }
}

/* A step of the engine rings for hundreds at once; with a part of them a turn, a new request waits no longer
 * than for that part. */
static void answer_rings(struct server *s, bool all)
{
    uint64_t count;
    if (read(s->event_fd, &count, sizeof(count)) < 0 && errno != EAGAIN)
        log_warn("the loop's event: %s", strerror(errno));
    take_worked(s->work);
    take_worked(s->admin ? admin_work(s->admin) : NULL);
    take_rung(s);
    for (int i = 0; s->ringing && (all || i < RING_BATCH); i++) {
        struct exchange *x = s->ringing;
        s->ringing = x->next_rung;
        atomic_store(&x->queued, false); /* before looking: later news rings again */
        exchange_rung(x);
    }
}

static bool watch(struct server *s, int fd, void *what)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = what};
    return epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

static int daemon_fd(struct MHD_Daemon *d)
{
    return MHD_get_daemon_info(d, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
}

enum nyb_code loop_open(struct server *s, struct nyb_err *err)
{
    s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    s->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->epoll_fd < 0 || s->event_fd < 0 || !watch(s, s->event_fd, &s->event_fd))
        return err_set(err, NYB_E_IO, "cannot set up the event loop: %s", strerror(errno));
    TRY(drain_open(s, err)); /* before anybody is told that we listen: a signal may follow at once */
    TRY(http_open(s, err));
    if (!watch(s, daemon_fd(s->daemon), s) ||
        (s->metrics_daemon && !watch(s, daemon_fd(s->metrics_daemon), s)))
        return err_set(err, NYB_E_IO, "cannot watch the listening socket: %s", strerror(errno));
    return NYB_OK;
}

/* Until libmicrohttpd wants to look at its timeouts. */
static int wait_ms(struct server *s)
{
    MHD_UNSIGNED_LONG_LONG ms, least = s->ringing || s->has_room ? 0 : WAIT_MAX_MS;
    if (MHD_get_timeout(s->daemon, &ms) == MHD_YES && ms < least)
        least = ms;
    if (s->metrics_daemon && MHD_get_timeout(s->metrics_daemon, &ms) == MHD_YES && ms < least)
        least = ms;
    return (int)least;
}

static unsigned connections(const struct server *s)
{
    return MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_CURRENT_CONNECTIONS)->num_connections;
}

/* Where connections were closed, there may be room for some that wait; libmicrohttpd looks for them at the
 * beginning of its turn only. */
static void run_daemon(struct server *s)
{
    unsigned before = connections(s);
    MHD_run(s->daemon);
    s->has_room = connections(s) < before;
}

static void turn(struct server *s)
{
    struct epoll_event event[EVENT_MAX];
    int n = epoll_wait(s->epoll_fd, event, EVENT_MAX, wait_ms(s));
    for (int i = 0; i < n; i++) {
        void *what = event[i].data.ptr;
        if (what != s && what != &s->event_fd && what != drain_token())
            conn_gone(what);
    }
    answer_rings(s, false);
    /* The peers' descriptors close in here, never before their events above were looked at. */
    run_daemon(s);
    if (s->metrics_daemon)
        MHD_run(s->metrics_daemon);
    uint64_t now_ns = clock_ns();
    conn_reap(s, now_ns);
    renew_look(s->renew, now_ns);
}

void loop_run(struct server *s)
{
    while (!drain_is_over(s))
        turn(s);
    drain_cut(s);
    uint64_t until = clock_ns() + 2000000000u; /* for the last bytes of those that were cut */
    while (s->n_generating > 0 && clock_ns() < until)
        turn(s);
}

void loop_close(struct server *s)
{
    http_stop(s);
    if (s->event_fd >= 0)
        answer_rings(s, true); /* frees those that rang last */
    drain_close(s);
    if (s->epoll_fd >= 0)
        close(s->epoll_fd);
    if (s->event_fd >= 0)
        close(s->event_fd);
}
