/* The log: one line an event, to standard error or a sink. Thread-safe. */
#ifndef NYB_BASE_LOG_H
#define NYB_BASE_LOG_H

#include <stdbool.h>

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

enum log_format { LOG_PLAIN, LOG_LOGFMT, LOG_JSON }; /* "nybble: info: text", or with time, level and msg */

void log_set_format(enum log_format format);
void log_set_level(enum log_level level);
enum log_level log_get_level(void);
/* Lines go there instead, without the level's name; NULL: to standard error again. Not while there are
 * threads that log. */
typedef void log_sink_fn(void *arg, enum log_level level, const char *text);
void log_set_sink(log_sink_fn *sink, void *arg);
void log_line(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...) log_line(LOG_ERROR, __VA_ARGS__)
#define log_warn(...)  log_line(LOG_WARN, __VA_ARGS__)
#define log_info(...)  log_line(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_DEBUG, __VA_ARGS__)

#endif
