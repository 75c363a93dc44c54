#ifndef NYB_BASE_FILE_H
#define NYB_BASE_FILE_H

#include "base/err.h"

/* The whole file into fresh memory, NUL-terminated; caller frees. max bounds it. A pointer that Git LFS left
 * in the file's place is an error. */
enum nyb_code file_read_all(const char *path, size_t max, char **data, size_t *len,
                            struct nyb_err *err) NYB_MUST_CHECK;
/* The same of a text that is read as a C string: a NUL byte, which would end it early, is an error that says
 * where. */
enum nyb_code file_read_text(const char *path, size_t max, char **text, size_t *len,
                             struct nyb_err *err) NYB_MUST_CHECK;
/* Exactly len bytes at offset; a short file is an error that names both sizes. Retries EINTR. */
enum nyb_code file_read_at(int fd, const char *path, uint64_t offset, void *dst, size_t len,
                           struct nyb_err *err) NYB_MUST_CHECK;
/* Do these first bytes say that Git LFS left a pointer in the file's place? A clone without it has such
 * files. */
bool file_is_lfs_pointer(const void *start, size_t n);
/* What to say of such a file. */
#define FILE_IS_LFS_POINTER "is a pointer of Git LFS and not the file itself, which `git lfs pull` fetches"
bool file_exists(const char *path);
bool file_is_dir(const char *path);
char *path_join(const char *dir, const char *name); /* caller frees */

#endif
