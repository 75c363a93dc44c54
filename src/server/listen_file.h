/* A listening socket with a place in the file system (AF_UNIX), where --host is a path. */
#ifndef NYB_SERVER_LISTEN_FILE_H
#define NYB_SERVER_LISTEN_FILE_H

#include "base/err.h"

/* Which file is ours: another process may put its own in the place. */
struct listen_file {
    uint64_t device, inode; /* inode 0: none */
};

bool listen_file_is_path(const char *host);
/* As listen_bind. A socket's file that nobody listens behind is replaced: what a kill leaves, or a server
 * that is still loading, which notices in listen_file_start. */
enum nyb_code listen_file_bind(struct listen_file *f, int *fd, const char *path,
                               struct nyb_err *err) NYB_MUST_CHECK;
enum nyb_code listen_file_start(const struct listen_file *f, int fd, const char *path,
                                struct nyb_err *err) NYB_MUST_CHECK;
/* Take the file away if it is still ours. */
void listen_file_remove(struct listen_file *f, const char *path);

#endif
