/* jansson, with our errors: strict parsing, duplicate keys refused, line and byte in the message. */
#ifndef NYB_BASE_JSON_H
#define NYB_BASE_JSON_H

#include <jansson.h>

#include "base/buf.h"
#include "base/err.h"

#define JSON_FILE_MAX (512u << 20)

/* A file that holds an integer beyond 64 bits has all its integers read as reals. */
enum nyb_code json_read_file(json_t **out, const char *path, struct nyb_err *err) NYB_MUST_CHECK;
/* `where` names the text in errors. */
enum nyb_code json_parse(json_t **out, const char *text, size_t len, const char *where,
                         struct nyb_err *err) NYB_MUST_CHECK;
/* Append s as a JSON string with its quotes; invalid UTF-8 becomes U+FFFD. */
void json_add_string(struct buf *b, const char *s, size_t len);
/* Shortest decimal that reads back as x (as Python's repr prints it). */
void json_add_double(struct buf *b, double x);

#endif
