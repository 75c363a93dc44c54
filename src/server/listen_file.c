#include "server/listen_file.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "server/listen.h"

bool listen_file_is_path(const char *host)
{
    return host[0] == '/';
}

static enum nyb_code refuse(const char *path, const char *why, struct nyb_err *err)
{
    return err_set(err, NYB_E_IO, "cannot listen on %s: %s", path, why);
}

static int new_socket(void)
{
    return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

static bool is_abandoned(const struct sockaddr_un *a)
{
    struct stat st;
    if (lstat(a->sun_path, &st) != 0 || !S_ISSOCK(st.st_mode))
        return false;
    int fd = new_socket();
    bool refused =
        fd >= 0 && connect(fd, (const struct sockaddr *)a, sizeof(*a)) != 0 && errno == ECONNREFUSED;
    if (fd >= 0)
        close(fd);
    return refused;
}

static bool bind_to(int fd, const struct sockaddr_un *a)
{
    return bind(fd, (const struct sockaddr *)a, sizeof(*a)) == 0;
}

static bool find(struct listen_file *f, const char *path)
{
    struct stat st;
    if (lstat(path, &st) != 0)
        return false;
    *f = (struct listen_file){st.st_dev, st.st_ino};
    return true;
}

enum nyb_code listen_file_bind(struct listen_file *f, int *fd, const char *path, struct nyb_err *err)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof(a.sun_path))
        return err_at(err, NYB_E_ARG, "host", -1, "the path of a socket has at most %zu bytes, %s has %zu",
                      sizeof(a.sun_path) - 1, path, strlen(path));
    memcpy(a.sun_path, path, strlen(path));
    *fd = new_socket();
    if (*fd < 0)
        return refuse(path, strerror(errno), err);
    bool bound = bind_to(*fd, &a);
    if (!bound) {
        int why = errno;
        bound = why == EADDRINUSE && is_abandoned(&a) && unlink(path) == 0 && bind_to(*fd, &a);
        errno = why;
    }
    return bound && find(f, path) ? NYB_OK : refuse(path, strerror(errno), err);
}

static bool is_ours(const struct listen_file *f, const char *path)
{
    struct listen_file now;
    return f->inode && find(&now, path) && now.device == f->device && now.inode == f->inode;
}

enum nyb_code listen_file_start(const struct listen_file *f, int fd, const char *path, struct nyb_err *err)
{
    if (!is_ours(f, path))
        return refuse(path, "another program has put its own in this place", err);
    return listen(fd, LISTEN_BACKLOG) == 0 ? NYB_OK : refuse(path, strerror(errno), err);
}

void listen_file_remove(struct listen_file *f, const char *path)
{
    if (is_ours(f, path))
        (void)unlink(path);
    *f = (struct listen_file){0};
}
