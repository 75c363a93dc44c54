#include "server/listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

static int try_address(const struct addrinfo *a)
{
    int one = 1;
    int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol);
    if (fd < 0)
        return -1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (bind(fd, a->ai_addr, a->ai_addrlen) == 0)
        return fd;
    int saved = errno;
    close(fd);
    errno = saved;
    return -1;
}

static int port_of(int fd)
{
    struct sockaddr_storage address = {0};
    socklen_t len = sizeof(address);
    if (getsockname(fd, (struct sockaddr *)&address, &len) != 0)
        return 0;
    return ntohs(address.ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)&address)->sin6_port
                                               : ((const struct sockaddr_in *)&address)->sin_port);
}

static enum nyb_code refuse(const char *host, int port, struct nyb_err *err)
{
    return err_set(err, NYB_E_IO, "cannot listen on %s port %d: %s", host, port, strerror(errno));
}

/* Other forms of addresses, for which it has to be known what the right one is. */
static const char *hint_of(const char *host)
{
    size_t n = strlen(host);
    if (host[0] == '@')
        return "; a socket without a file has no permissions, so it takes the path of one";
    if (strncmp(host, "http", 4) && (strchr(host, '/') || (n > 5 && !strcmp(host + n - 5, ".sock"))))
        return "; the path of a Unix socket begins with a slash";
    if (host[0] == '[' || strchr(host, ':'))
        return "; it takes the address alone, without scheme, brackets or port (--port)";
    return "";
}

enum nyb_code listen_bind(int *fd, const char *host, int *port, struct nyb_err *err)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *list = NULL;
    char service[16];
    snprintf(service, sizeof(service), "%d", *port);
    int failed = getaddrinfo(host, service, &hints, &list);
    if (failed)
        return err_at(err, NYB_E_ARG, "host", -1, "cannot listen on \"%s\": %s%s", host, gai_strerror(failed),
                      hint_of(host));
    *fd = -1;
    for (const struct addrinfo *a = list; a && *fd < 0; a = a->ai_next)
        *fd = try_address(a);
    freeaddrinfo(list);
    if (*fd < 0)
        return refuse(host, *port, err);
    *port = port_of(*fd);
    return NYB_OK;
}

enum nyb_code listen_start(int fd, const char *host, int port, struct nyb_err *err)
{
    return listen(fd, LISTEN_BACKLOG) == 0 ? NYB_OK : refuse(host, port, err);
}

bool listen_is_loopback(const struct sockaddr *address)
{
    if (address && address->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const void *)address;
        return ntohl(in->sin_addr.s_addr) >> 24 == 127;
    }
    if (!address || address->sa_family != AF_INET6)
        return false;
    const struct in6_addr *in6 = &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(in6) || (IN6_IS_ADDR_V4MAPPED(in6) && in6->s6_addr[12] == 127);
}

bool listen_is_local(int fd)
{
    struct sockaddr_storage address = {0};
    socklen_t len = sizeof(address);
    return getsockname(fd, (struct sockaddr *)&address, &len) == 0 &&
           (address.ss_family == AF_UNIX || listen_is_loopback((const struct sockaddr *)&address));
}

int listen_raise_limit(int n)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return n;
    if (limit.rlim_cur < (rlim_t)n) {
        limit.rlim_cur =
            limit.rlim_max == RLIM_INFINITY || limit.rlim_max > (rlim_t)n ? (rlim_t)n : limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
        (void)getrlimit(RLIMIT_NOFILE, &limit);
    }
    return limit.rlim_cur < (rlim_t)n ? (int)limit.rlim_cur : n;
}
