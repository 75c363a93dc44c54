#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

enum nyb_code file_read_at(int fd, const char *path, uint64_t offset, void *dst, size_t len,
                           struct nyb_err *err)
{
    size_t done = 0;
    while (done < len) {
        size_t piece = len - done < (1u << 30) ? len - done : 1u << 30;
        ssize_t n = pread(fd, (char *)dst + done, piece, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_at(err, NYB_E_IO, path, (int64_t)(offset + done), "cannot read: %s", strerror(errno));
        if (n == 0)
            return err_at(err, NYB_E_FORMAT, path, (int64_t)(offset + done),
                          "the file ends here, %zu bytes early", len - done);
        done += (size_t)n;
    }
    return NYB_OK;
}

enum nyb_code file_read_all(const char *path, size_t max, char **data, size_t *len, struct nyb_err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe must not hang us */
    if (fd < 0)
        return err_at(err, errno == ENOENT ? NYB_E_NOT_FOUND : NYB_E_IO, path, -1, "cannot open: %s",
                      strerror(errno));
    struct stat st;
    enum nyb_code code = NYB_OK;
    char *text = NULL;
    if (fstat(fd, &st) || !S_ISREG(st.st_mode))
        code = err_at(err, NYB_E_IO, path, -1, "not a regular file");
    else if ((uint64_t)st.st_size > max)
        code = err_at(err, NYB_E_FORMAT, path, -1, "%lld bytes; at most %zu are accepted",
                      (long long)st.st_size, max);
    else if (!(text = mem_try_alloc((size_t)st.st_size + 1, 1)))
        code = err_at(err, NYB_E_MEMORY, path, -1, "no memory for its %lld bytes", (long long)st.st_size);
    else
        code = file_read_at(fd, path, 0, text, (size_t)st.st_size, err);
    if (code == NYB_OK && file_is_lfs_pointer(text, (size_t)st.st_size))
        code = err_at(err, NYB_E_FORMAT, path, -1, FILE_IS_LFS_POINTER);
    close(fd);
    if (code != NYB_OK) {
        free(text);
        return code;
    }
    *data = text;
    *len = (size_t)st.st_size;
    return NYB_OK;
}

enum nyb_code file_read_text(const char *path, size_t max, char **text, size_t *len, struct nyb_err *err)
{
    TRY(file_read_all(path, max, text, len, err));
    size_t n = strlen(*text);
    if (n == *len)
        return NYB_OK;
    explicit_bzero(*text, *len); /* it may hold keys */
    free(*text);
    return err_at(err, NYB_E_FORMAT, path, (int64_t)n, "a NUL byte, and it should be a text (not in UTF-16)");
}

bool file_is_lfs_pointer(const void *start, size_t n)
{
    static const char first[] = "version https://git-lfs";
    return n >= strlen(first) && !memcmp(start, first, strlen(first));
}

/* A link to nothing exists: to whoever asks, a broken file is not the same as none. */
bool file_exists(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

bool file_is_dir(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

char *path_join(const char *dir, const char *name)
{
    size_t n = strlen(dir);
    return mem_printf("%s%s%s", dir, n && dir[n - 1] == '/' ? "" : "/", name);
}
