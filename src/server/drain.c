#include "server/drain.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "server/notify.h"

#define LOST_NS   2000000000u /* for the last events of streams after a rank is lost              */
#define LINGER_NS 200000000u  /* finished answers leave the socket buffers, balancers see /ready */

/* A signal handler has nowhere else to look. */
static int signal_pipe[2] = {-1, -1};
static volatile sig_atomic_t n_signal, hung_up;

/* A terminal that closes may send its SIGHUP more than once, and SIGTERM after it: SIGHUP is no wish to end
 * at once. */
static void on_signal(int number)
{
    int saved = errno;
    if (number == SIGHUP)
        hung_up = true;
    else if (++n_signal > 1)
        _exit(128 + number);
    if (write(signal_pipe[1], "", 1) < 0 && errno != EAGAIN)
        _exit(128 + number);
    errno = saved;
}

/* As nohup starts programs. */
static bool hangup_is_ignored(void)
{
    struct sigaction now;
    return sigaction(SIGHUP, NULL, &now) == 0 && now.sa_handler == SIG_IGN;
}

static void end_by_signal(int number)
{
    signal(number, SIG_DFL);
    raise(number);
    _exit(128 + number); /* that was ignored */
}

void drain_prepare(void)
{
    /* Not blocked in its own handler, or raise would wait for the handler's end. */
    struct sigaction action = {.sa_handler = end_by_signal, .sa_flags = SA_NODEFER};
    sigemptyset(&action.sa_mask);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    if (!hangup_is_ignored())
        sigaction(SIGHUP, &action, NULL);
}

const void *drain_token(void)
{
    return signal_pipe;
}

enum nyb_code drain_open(struct server *s, struct nyb_err *err)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = signal_pipe};
    if (pipe2(signal_pipe, O_CLOEXEC | O_NONBLOCK) != 0 ||
        epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, signal_pipe[0], &event) != 0)
        return err_set(err, NYB_E_IO, "cannot set up signals: %s", strerror(errno));
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    if (!hangup_is_ignored())
        sigaction(SIGHUP, &action, NULL);
    action.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &action, NULL);
    return NYB_OK;
}

void drain_close(struct server *s)
{
    (void)s;
    struct sigaction action = {.sa_handler = SIG_DFL};
    sigemptyset(&action.sa_mask);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    if (!hangup_is_ignored())
        sigaction(SIGHUP, &action, NULL);
    for (int i = 0; i < 2; i++) {
        if (signal_pipe[i] >= 0)
            close(signal_pipe[i]);
        signal_pipe[i] = -1;
    }
}

static void start(struct server *s)
{
    char byte;
    while (read(signal_pipe[0], &byte, 1) > 0)
        ;
    s->draining = true;
    s->drain_until_ns = clock_ns() + (uint64_t)(s->config->drain_s * 1e9);
    log_info("draining: %d requests have %.0f s to finish; a second SIGTERM or SIGINT ends them",
             s->n_generating, s->config->drain_s);
    notify_send("STOPPING=1");
}

/* A rank does not come back: the running streams get their errors, and the process ends with one. */
static bool rank_is_lost(struct server *s)
{
    struct nyb_health h;
    if (s->lost.code == NYB_E_RANK)
        return true;
    nyb_engine_health(s->engine, &h);
    if (h.failure.code != NYB_E_RANK)
        return false;
    s->lost = h.failure;
    s->draining = true;
    s->drain_until_ns = clock_ns() + LOST_NS;
    notify_send("STOPPING=1");
    return true;
}

bool drain_is_over(struct server *s)
{
    bool lost = rank_is_lost(s);
    if (!n_signal && !hung_up && !lost)
        return false;
    if (!s->draining)
        start(s);
    uint64_t now = clock_ns();
    if (s->n_generating > 0)
        s->idle_since_ns = 0;
    else if (!s->idle_since_ns)
        s->idle_since_ns = now;
    return now >= s->drain_until_ns || (s->idle_since_ns && now - s->idle_since_ns >= LINGER_NS);
}

void drain_cut(struct server *s)
{
    if (s->n_generating > 0)
        log_warn("the drain is over: %d requests are cut", s->n_generating);
    nyb_stop(s->engine);
}
