#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "comm/shm.h"

#define BEAT_MS 50
/* A gap like this in our own beat means that everybody was stopped (a suspended machine): start counting
 * anew. */
#define GAP_MS 1000

struct view {
    unsigned heartbeat;
    uint64_t seen_ns; /* when it last changed */
    int fd;           /* pidfd: readable when the process ends; -1: not open yet; -2: no more of use */
};

static void look_at(struct shm *s, struct view *v, int r, uint64_t now, bool ended)
{
    struct shm_peer *peer = &s->header->peer[r];
    char reason[160];
    pid_t pid = atomic_load(&peer->pid);
    if (atomic_load(&peer->left) || shm_failed(s))
        return;
    unsigned beat = atomic_load(&peer->heartbeat);
    if (beat != v->heartbeat || !v->seen_ns) {
        v->heartbeat = beat;
        v->seen_ns = now;
    }
    if (ended)
        snprintf(reason, sizeof(reason), "rank %d (process %d) has ended", r, (int)pid);
    else if (now - v->seen_ns > (uint64_t)s->timeout_ms * 1000000)
        snprintf(reason, sizeof(reason), "rank %d (process %d) has been silent for %.3g s", r, (int)pid,
                 s->timeout_ms * 1e-3);
    else
        return;
    shm_fail(s, reason);
}

/* One round of at most BEAT_MS; false when the watcher is to stop. */
static bool watch_round(struct shm *s, struct view *view)
{
    struct pollfd fd[COMM_RANK_MAX + 1];
    for (int r = 0; r < s->size; r++) {
        pid_t pid = atomic_load(&s->header->peer[r].pid);
        if (view[r].fd == -1 && pid > 0 && r != s->rank)
            view[r].fd = (int)syscall(SYS_pidfd_open, pid, 0);
        fd[r] = (struct pollfd){.fd = r == s->rank ? -1 : view[r].fd, .events = POLLIN};
    }
    fd[s->size] = (struct pollfd){.fd = s->wake_watcher, .events = POLLIN};
    poll(fd, (nfds_t)s->size + 1, BEAT_MS);
    if (fd[s->size].revents)
        return false;
    atomic_fetch_add(&s->header->peer[s->rank].heartbeat, 1);
    uint64_t now = clock_ns();
    for (int r = 0; r < s->size; r++) {
        if (r == s->rank)
            continue;
        look_at(s, &view[r], r, now, fd[r].revents != 0);
        if (fd[r].revents) { /* said what there was to say */
            close(view[r].fd);
            view[r].fd = -2;
        }
    }
    return true;
}

static void say_once(const struct shm *s, bool *said)
{
    if (*said || !shm_failed(s))
        return;
    log_error("rank %d of %d stops: %s", s->rank, s->size, s->header->reason);
    *said = true;
}

static void *watch(void *arg)
{
    struct shm *s = arg;
    struct view view[COMM_RANK_MAX];
    for (int r = 0; r < s->size; r++)
        view[r] = (struct view){.fd = -1};
    bool said = false;
    uint64_t last = clock_ns();
    while (watch_round(s, view)) {
        uint64_t now = clock_ns();
        if (now - last > (uint64_t)GAP_MS * 1000000)
            for (int r = 0; r < s->size; r++)
                view[r].seen_ns = 0;
        last = now;
        say_once(s, &said);
    }
    say_once(s, &said);
    for (int r = 0; r < s->size; r++)
        if (view[r].fd >= 0)
            close(view[r].fd);
    return NULL;
}

enum nyb_code shm_watch_start(struct shm *s, struct nyb_err *err)
{
    s->wake_watcher = eventfd(0, EFD_CLOEXEC);
    if (s->wake_watcher < 0)
        return err_set(err, NYB_E_IO, "cannot watch the other ranks: %s", strerror(errno));
    sigset_t all, old; /* signals are for the threads that expect them */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int code = pthread_create(&s->watcher, NULL, watch, s);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (code == 0)
        return NYB_OK;
    close(s->wake_watcher);
    return err_set(err, NYB_E_MEMORY, "cannot watch the other ranks: %s", strerror(code));
}

void shm_watch_stop(struct shm *s)
{
    const uint64_t one = 1;
    if (write(s->wake_watcher, &one, sizeof(one)) == sizeof(one))
        pthread_join(s->watcher, NULL);
    close(s->wake_watcher);
}
