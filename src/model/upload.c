#include "model/upload.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mem.h"

struct update_upload {
    int fd;
    char *dir; /* NULL: memory */
    uint64_t bytes, max_bytes;
};

enum nyb_code upload_open(struct update_upload **out, const char *dir, uint64_t max_bytes,
                          struct nyb_err *err)
{
    *out = NULL;
    int fd =
        dir ? open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600) : memfd_create("nybble-upload", MFD_CLOEXEC);
    if (fd < 0)
        return err_at(err, NYB_E_IO, dir ? dir : "memory", -1, "cannot make a temporary file: %s",
                      strerror(errno));
    *out = mem_alloc(1, sizeof(**out));
    **out = (struct update_upload){.fd = fd, .dir = dir ? mem_strdup(dir) : NULL, .max_bytes = max_bytes};
    return NYB_OK;
}

enum nyb_code upload_write(struct update_upload *u, const void *bytes, size_t n, struct nyb_err *err)
{
    if (n > u->max_bytes - u->bytes)
        return err_at(err, NYB_E_RANGE, "upload", (int64_t)u->bytes,
                      "has more than the %llu bytes that are accepted", (unsigned long long)u->max_bytes);
    const char *at = bytes;
    while (n) {
        ssize_t wrote = write(u->fd, at, n);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote < 0)
            return err_at(err, NYB_E_IO, "upload", (int64_t)u->bytes, "cannot be kept: %s", strerror(errno));
        at += wrote;
        n -= (size_t)wrote;
        u->bytes += (uint64_t)wrote;
    }
    return NYB_OK;
}

uint64_t upload_bytes(const struct update_upload *u)
{
    return u->bytes;
}

const char *upload_dir(const struct update_upload *u)
{
    return u->dir;
}

enum nyb_code upload_read(const struct update_upload *u, uint64_t offset, void *to, size_t n,
                          struct nyb_err *err)
{
    for (size_t done = 0; done < n;) {
        ssize_t got = pread(u->fd, (uint8_t *)to + done, n - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return err_at(err, NYB_E_IO, "upload", (int64_t)(offset + done), "cannot be read back: %s",
                          got ? strerror(errno) : "it ends here");
        done += (size_t)got;
    }
    return NYB_OK;
}

enum nyb_code upload_open_ckpt(struct ckpt **out, const struct update_upload *u, struct nyb_err *err)
{
    int fd = fcntl(u->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return err_at(err, NYB_E_IO, "upload", -1, "cannot be opened: %s", strerror(errno));
    return ckpt_open_fd(out, fd, "upload", err);
}

void upload_close(struct update_upload *u)
{
    if (!u)
        return;
    close(u->fd);
    free(u->dir);
    free(u);
}
