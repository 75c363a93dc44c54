/* MPI cannot be begun in ranks that were forked, so mpirun starts this program again on the same machine, and
 * its JSON comes back through a pipe. */
#include "cli/bench_comm_mpi.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/json.h"

#define LIMIT_S      300
#define OUTPUT_MAX   65536u
#define ARGUMENT_MAX 24

extern char **environ;

/* Open MPI's by its own name first: where several are installed, mpirun may be another's. */
static bool spawn(char **argument, int out, pid_t *pid)
{
    static char *const name[] = {"mpirun.openmpi", "mpirun"};
    posix_spawn_file_actions_t files;
    int code = ENOENT;
    if (posix_spawn_file_actions_init(&files))
        return false;
    posix_spawn_file_actions_adddup2(&files, out, STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    for (int i = 0; i < 2 && code == ENOENT; i++) {
        argument[0] = name[i];
        code = posix_spawnp(pid, name[i], &files, NULL, argument, environ);
    }
    posix_spawn_file_actions_destroy(&files);
    return code == 0;
}

/* Until it closes its end; false: too much, or too late. */
static bool read_all(int fd, struct buf *out)
{
    uint64_t end_ns = clock_ns() + (uint64_t)LIMIT_S * 1000000000u;
    while (clock_ns() < end_ns && out->len < OUTPUT_MAX) {
        char piece[4096];
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, 1000) <= 0)
            continue;
        ssize_t n = read(fd, piece, sizeof(piece));
        if (n <= 0)
            return n == 0;
        buf_add(out, piece, (size_t)n);
    }
    return false;
}

static int parse(const struct buf *text, struct bench_comm_time *time, int n_max)
{
    json_t *json, *size;
    size_t i;
    int n = 0;
    if (json_parse(&json, text->data, text->len, "the output under mpirun", NULL) != NYB_OK)
        return 0;
    json_array_foreach(json_object_get(json, "sizes"), i, size)
    {
        json_t *bytes = json_object_get(size, "bytes"), *best = json_object_get(size, "mpi_us"),
               *median = json_object_get(size, "mpi_median_us");
        if (n == n_max || !json_is_integer(bytes) || !json_is_number(best) || !json_is_number(median))
            break;
        time[n++] = (struct bench_comm_time){(size_t)json_integer_value(bytes), json_number_value(best),
                                             json_number_value(median)};
    }
    json_decref(json);
    return n;
}

/* Output of the whole run; false: why not. */
static bool run(char **argument, struct buf *out, char *why, size_t why_bytes)
{
    int end[2], status = 0;
    pid_t pid;
    if (pipe2(end, O_CLOEXEC)) {
        snprintf(why, why_bytes, "no pipe: %s", strerror(errno));
        return false;
    }
    bool started = spawn(argument, end[1], &pid), whole = false;
    close(end[1]);
    if (started) {
        whole = read_all(end[0], out);
        if (!whole)
            kill(pid, SIGTERM); /* mpirun ends its ranks */
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
            ;
    }
    close(end[0]);
    if (!started)
        snprintf(why, why_bytes, "there is no mpirun");
    else if (!whole)
        snprintf(why, why_bytes, "mpirun did not end within %d s", LIMIT_S);
    else if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        snprintf(why, why_bytes, "under mpirun it ended with status %d", WEXITSTATUS(status));
    else
        return true;
    return false;
}

int bench_comm_mpi(const struct bench_comm_mpi *b, struct bench_comm_time *time, int n_max, char *why,
                   size_t why_bytes)
{
    char self[PATH_MAX], number[4][32];
    ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
    char *argument[ARGUMENT_MAX] = {NULL}; /* the first is spawn's */
    int n_argument = 1, n = 0;
    struct buf out = {0};
    if (length <= 0) {
        snprintf(why, why_bytes, "cannot tell where this program lies");
        return 0;
    }
    self[length] = 0;
    snprintf(number[0], sizeof(number[0]), "%lld", (long long)b->ranks);
    snprintf(number[1], sizeof(number[1]), "%lld", (long long)b->hidden);
    snprintf(number[2], sizeof(number[2]), "%lld", (long long)b->rounds);
    snprintf(number[3], sizeof(number[3]), "%llu", (unsigned long long)b->max_bytes);
    char *const words[] = {"--oversubscribe", "-np",         number[0], self,       "bench",   "comm",
                           "--json",          "--only",      "mpi",     "--hidden", number[1], "--rounds",
                           number[2],         "--max-bytes", number[3]};
    if (geteuid() == 0)
        argument[n_argument++] = "--allow-run-as-root";
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        argument[n_argument++] = words[i];
    if (run(argument, &out, why, why_bytes)) {
        n = parse(&out, time, n_max);
        if (!n)
            snprintf(why, why_bytes, "under mpirun it gave no times");
    }
    buf_free(&out);
    return n;
}
