/* Processes of one machine over one shared segment.
 *
 * A rank writes its block into its own slot and raises its epoch; the others read it where it lies. Blocks of
 * 4 KB and more are written past the cache unless comm_measure_ways finds the cache faster: where cores are
 * far apart a reader takes them from memory quicker than line after line out of another core's cache (1.6 to
 * 2 times at 16 to 64 KB between two dies), where they share one it is the other way round. */
#include "comm/shm.h"

#include <emmintrin.h>
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/mem.h"

#define SPIN_LIMIT 4000    /* some 50 us                                             */
#define FIRST_NS   50000   /* of sleep: the raising of the flag may have been missed */
#define SLICE_NS   5000000 /* of later ones, between looks at failure and deadline   */
#define REAP_NS    1000000000u
#define TIMEOUT_MS 10000
#define PART_ALIGN 64u

/* ---- sleeping ------------------------------------------------------------------------------------ */

/* Not FUTEX_PRIVATE: the word is in shared memory. */
static void futex_wait(atomic_uint *word, unsigned expected, long ns)
{
    const struct timespec slice = {.tv_nsec = ns};
    syscall(SYS_futex, word, FUTEX_WAIT, expected, &slice, NULL, 0);
}

static void futex_wake(atomic_uint *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void shm_raise(struct shm_flag *flag, unsigned epoch)
{
    _mm_sfence(); /* streaming stores are not ordered by a release */
    atomic_store_explicit(&flag->epoch, epoch, memory_order_release);
    if (atomic_load(&flag->sleepers))
        futex_wake(&flag->epoch);
}

void shm_wake_all(struct shm *s)
{
    for (int c = 0; c < COMM_CHANNELS; c++)
        for (int r = 0; r < s->size; r++)
            futex_wake(&s->header->flag[c][r].epoch);
}

/* ---- failure ------------------------------------------------------------------------------------- */

bool shm_failed(const struct shm *s)
{
    return atomic_load_explicit(&s->header->failure, memory_order_acquire) == 2;
}

bool shm_fail(struct shm *s, const char *reason)
{
    unsigned none = 0;
    if (!atomic_compare_exchange_strong(&s->header->failure, &none, 1))
        return false;
    snprintf(s->header->reason, sizeof(s->header->reason), "%s", reason);
    atomic_store_explicit(&s->header->failure, 2, memory_order_release);
    shm_wake_all(s);
    return true;
}

static bool failed(struct comm *c, struct nyb_err *err)
{
    const struct shm *s = c->own;
    if (!shm_failed(s))
        return false;
    err_set(err, NYB_E_RANK, "%s", s->header->reason);
    return true;
}

static void fail(struct comm *c, const char *reason)
{
    shm_fail(c->own, reason);
}

/* ---- exchanges ----------------------------------------------------------------------------------- */

static uint8_t *slot_of(const struct shm *s, int channel, int rank, unsigned epoch)
{
    size_t i = ((size_t)channel * (size_t)s->size + (size_t)rank) * 2 + epoch % 2;
    return s->data + i * s->slot_bytes;
}

static void copy_out(const struct comm *c, uint8_t *to, const uint8_t *from, size_t bytes)
{
    size_t i = 0;
    uint32_t size_class = comm_size_class(bytes);
    if (size_class && !(c->ways.cached & size_class))
        for (; i + 64 <= bytes; i += 64) { /* a whole line, so that it leaves in one piece */
            const __m128i *source = (const __m128i *)(const void *)(from + i);
            __m128i *line = (__m128i *)(void *)(to + i);
            __m128i v0 = _mm_loadu_si128(source), v1 = _mm_loadu_si128(source + 1),
                    v2 = _mm_loadu_si128(source + 2), v3 = _mm_loadu_si128(source + 3);
            _mm_stream_si128(line, v0);
            _mm_stream_si128(line + 1, v1);
            _mm_stream_si128(line + 2, v2);
            _mm_stream_si128(line + 3, v3);
        }
    memcpy(to + i, from + i, bytes - i);
}

static void copy_parts(const struct comm *c, int channel, unsigned epoch, uint8_t *slot,
                       const struct comm_part *part)
{
    const struct shm *s = c->own;
    struct shm_part *table = s->header->part[channel][s->rank][epoch % 2];
    size_t at = 0;
    for (int r = 0; r < s->size; r++) {
        if (r == s->rank)
            continue;
        ASSERT(part[r].bytes <= s->slot_bytes - at);
        if (part[r].bytes)
            copy_out(c, slot + at, part[r].data, part[r].bytes);
        table[r] = (struct shm_part){at, part[r].bytes};
        at += (part[r].bytes + PART_ALIGN - 1) & ~(size_t)(PART_ALIGN - 1);
        at = at < s->slot_bytes ? at : s->slot_bytes;
    }
}

static void start(struct comm *c, int channel, const struct comm_part *part, bool same)
{
    struct shm *s = c->own;
    if (shm_failed(s))
        return;
    unsigned epoch = ++s->epoch[channel];
    struct shm_flag *flag = &s->header->flag[channel][s->rank];
    uint8_t *slot = slot_of(s, channel, s->rank, epoch);
    if (same) {
        ASSERT(part[0].bytes <= s->slot_bytes);
        if (part[0].bytes)
            copy_out(c, slot, part[0].data, part[0].bytes);
        flag->sent[epoch % 2].bytes = part[0].bytes;
    } else {
        copy_parts(c, channel, epoch, slot, part);
    }
    flag->sent[epoch % 2].same = same;
    shm_raise(flag, epoch);
}

static bool reached(const struct shm_flag *flag, unsigned epoch)
{
    return (int)(atomic_load_explicit(&flag->epoch, memory_order_acquire) - epoch) >= 0;
}

/* Rank r is not there yet; whether it may still come. */
static bool may_come(struct shm *s, int r, bool idle, uint64_t since_ns)
{
    char reason[128];
    if (shm_failed(s))
        return false;
    if (atomic_load(&s->header->peer[r].left))
        snprintf(reason, sizeof(reason), "rank %d has left while rank %d waited for it", r, s->rank);
    else if (!idle && clock_ns() - since_ns > (uint64_t)s->timeout_ms * 1000000)
        snprintf(reason, sizeof(reason), "rank %d has not taken part in a step for %.3g s", r,
                 s->timeout_ms * 1e-3);
    else
        return true;
    shm_fail(s, reason);
    return false;
}

static bool sleep_for(struct shm *s, struct shm_flag *flag, int r, unsigned epoch, bool idle)
{
    uint64_t since = clock_ns();
    bool there = false, hope = true;
    long slice = FIRST_NS;
    atomic_fetch_add(&flag->sleepers, 1);
    while (!there && hope) {
        unsigned now = atomic_load(&flag->epoch);
        if ((int)(now - epoch) < 0)
            futex_wait(&flag->epoch, now, slice);
        slice = slice < SLICE_NS / 2 ? slice * 2 : SLICE_NS;
        there = reached(flag, epoch);
        hope = there || may_come(s, r, idle, since);
    }
    atomic_fetch_sub(&flag->sleepers, 1);
    return there;
}

bool shm_wait_for(struct shm *s, int channel, int r, bool idle)
{
    struct shm_flag *flag = &s->header->flag[channel][r];
    unsigned epoch = s->epoch[channel];
    for (int spin = 0; spin < SPIN_LIMIT; spin++) {
        if (reached(flag, epoch))
            return true;
        _mm_pause();
    }
    return sleep_for(s, flag, r, epoch, idle);
}

static bool wait_all(struct comm *c, int channel, struct comm_part *in, bool idle)
{
    struct shm *s = c->own;
    if (shm_failed(s))
        return false;
    unsigned parity = s->epoch[channel] % 2;
    for (int r = 0; r < s->size; r++) {
        if (r == s->rank)
            continue;
        if (!shm_wait_for(s, channel, r, idle))
            return false;
        const struct shm_flag *flag = &s->header->flag[channel][r];
        const struct shm_part *part = &s->header->part[channel][r][parity][s->rank];
        const uint8_t *slot = slot_of(s, channel, r, parity);
        in[r] = flag->sent[parity].same ? (struct comm_part){slot, flag->sent[parity].bytes}
                                        : (struct comm_part){slot + part->offset, part->bytes};
    }
    return true;
}

/* ---- opening and closing ------------------------------------------------------------------------- */

static void reap(struct shm *s)
{
    /* after a failure one of them may be stopped for good, and the others need no time */
    uint64_t deadline = clock_ns() + (shm_failed(s) ? REAP_NS : (uint64_t)s->timeout_ms * 1000000);
    for (int r = 1; r < s->size; r++) {
        pid_t pid = atomic_load(&s->header->peer[r].pid);
        while (pid > 0 && waitpid(pid, NULL, WNOHANG) == 0) {
            if (clock_ns() > deadline)
                kill(pid, SIGKILL);
            usleep(2000);
        }
    }
}

static void close_shm(struct comm *c)
{
    struct shm *s = c->own;
    atomic_store(&s->header->peer[s->rank].left, true);
    shm_wake_all(s);
    shm_watch_stop(s);
    if (s->rank == 0)
        reap(s);
    munmap(s->header, s->mapped);
    free(s);
}

static enum nyb_code map_segment(struct shm *s, struct nyb_err *err)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), n_slot = (size_t)(COMM_CHANNELS * 2 * s->size), data;
    size_t header = (sizeof(struct shm_header) + page - 1) & ~(page - 1);
    size_t rows = s->size == 2 ? SHM_ROWS_SLOTS * SHM_ROWS_BYTES : 0;
    s->slot_bytes = (s->slot_bytes + page - 1) & ~(page - 1);
    if (!size_mul(n_slot, s->slot_bytes, &data) || !size_add(data, header + rows, &s->mapped))
        return err_set(err, NYB_E_MEMORY, "slots of %zu bytes for %d ranks are too large", s->slot_bytes,
                       s->size);
    int fd = memfd_create("nybble-ranks", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)s->mapped)) {
        int cause = errno;
        if (fd >= 0)
            close(fd);
        return err_set(err, NYB_E_MEMORY, "no shared memory of %.1f MB for %d ranks: %s",
                       (double)s->mapped * 1e-6, s->size, strerror(cause));
    }
    void *base = mmap(NULL, s->mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    int cause = errno;
    close(fd);
    if (base == MAP_FAILED)
        return err_set(err, NYB_E_MEMORY, "cannot map %.1f MB for %d ranks: %s", (double)s->mapped * 1e-6,
                       s->size, strerror(cause));
    s->header = base;
    s->data = (uint8_t *)base + header + rows;
    s->rows = rows ? (float *)(void *)((uint8_t *)base + header) : NULL;
    shm_rows_open(s);
    return NYB_OK;
}

static enum nyb_code fork_ranks(struct shm *s, struct nyb_err *err)
{
    atomic_store(&s->header->peer[0].pid, getpid());
    for (int r = 1; r < s->size; r++) {
        pid_t pid = fork();
        if (pid < 0) {
            int cause = errno;
            for (int i = 1; i < r; i++)
                kill(atomic_load(&s->header->peer[i].pid), SIGKILL);
            return err_set(err, NYB_E_MEMORY, "cannot start rank %d of %d: %s", r, s->size, strerror(cause));
        }
        if (pid == 0) {
            s->rank = r;
            atomic_store(&s->header->peer[r].pid, getpid());
            return NYB_OK;
        }
        atomic_store(&s->header->peer[r].pid, pid);
    }
    return NYB_OK;
}

enum nyb_code comm_fork(struct comm **out, int size, const struct comm_options *o, struct nyb_err *err)
{
    static const struct comm_backend backend = {"shm", start,     wait_all,  failed,
                                                fail,  close_shm, &shm_rows, NULL};
    if (size < 1 || size > COMM_RANK_MAX)
        return err_set(err, NYB_E_RANGE, "%d ranks: expected 1 to %d", size, COMM_RANK_MAX);
    struct shm *s = mem_alloc(1, sizeof(*s));
    *s = (struct shm){.size = size,
                      .slot_bytes = o->slot_bytes,
                      .timeout_ms = o->timeout_ms > 0 ? o->timeout_ms : TIMEOUT_MS};
    struct cores cores = {0};
    enum nyb_code code = map_segment(s, err);
    if (code == NYB_OK)
        code = fork_ranks(s, err);
    if (code == NYB_OK)
        code = shm_watch_start(s, err); /* it may beat on any core */
    if (code == NYB_OK)
        cores_take(&cores, s->rank, size);
    if (code != NYB_OK) {
        if (s->header)
            munmap(s->header, s->mapped);
        free(s);
        return code;
    }
    *out = comm_new(&backend, s, s->rank, size, s->slot_bytes);
    (*out)->cores = cores;
    return NYB_OK;
}
