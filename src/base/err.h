/* Errors of the world and of the client. Our own bugs are ASSERTs.
 *
 * A function that can fail returns enum nyb_code and takes a last
 * `struct nyb_err *err`, which may be NULL. It fills err at the place that
 * knows most and callers pass the code on unchanged (TRY). */
#ifndef NYB_BASE_ERR_H
#define NYB_BASE_ERR_H

#include "nybble.h"

#define NYB_MUST_CHECK   __attribute__((warn_unused_result))
#define NYB_PRINTF(f, a) __attribute__((format(printf, f, a)))

/* Fill err and return code, so that failing is one statement:
 *     return err_set(err, NYB_E_IO, "cannot open: %s", strerror(errno)); */
enum nyb_code err_set(struct nyb_err *err, enum nyb_code code, const char *fmt, ...) NYB_PRINTF(3, 4);

/* The same with the file, tensor or parameter at fault, and the byte offset in it (-1: none). */
enum nyb_code err_at(struct nyb_err *err, enum nyb_code code, const char *where, int64_t offset,
                     const char *fmt, ...) NYB_PRINTF(5, 6);

const char *err_name(enum nyb_code code); /* "E_FORMAT"                */
const char *err_text(enum nyb_code code); /* "malformed file"          */
int err_http_status(enum nyb_code code);  /* 400, 404, ...             */

/* "where: message (at byte N)" into dst, always terminated; returns dst. */
char *err_format(const struct nyb_err *err, char *dst, size_t cap);

#define TRY(expr)                         \
    do {                                  \
        enum nyb_code try_code_ = (expr); \
        if (try_code_ != NYB_OK)          \
            return try_code_;             \
    } while (0)

/* A broken invariant of ours: print and abort, in release builds too. */
#define ASSERT(cond)                                \
    do {                                            \
        if (__builtin_expect(!(cond), 0))           \
            assert_fail(#cond, __FILE__, __LINE__); \
    } while (0)
_Noreturn void assert_fail(const char *cond, const char *file, int line);

#endif
