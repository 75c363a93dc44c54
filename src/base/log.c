#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/json.h"

static atomic_int threshold = LOG_INFO;
static atomic_int line_format = LOG_PLAIN;
static struct {
    log_sink_fn *take; /* NULL: standard error */
    void *arg;
} sink;

void log_set_format(enum log_format format)
{
    atomic_store(&line_format, (int)format);
}

void log_set_level(enum log_level level)
{
    atomic_store(&threshold, (int)level);
}

enum log_level log_get_level(void)
{
    return (enum log_level)atomic_load(&threshold);
}

void log_set_sink(log_sink_fn *take, void *arg)
{
    sink.take = take;
    sink.arg = arg;
}

/* time=.. level=.. msg=".." or the same as JSON; both quote alike. */
static void write_record(const char *level, const char *text)
{
    struct buf b = {0};
    char time_text[32];
    uint64_t us = clock_unix_us();
    time_t seconds = (time_t)(us / 1000000u);
    struct tm tm;
    bool json = atomic_load(&line_format) == LOG_JSON;
    gmtime_r(&seconds, &tm);
    strftime(time_text, sizeof(time_text), "%Y-%m-%dT%H:%M:%S", &tm);
    buf_printf(&b, json ? "{\"time\":\"%s.%03uZ\",\"level\":\"%s\",\"msg\":" : "time=%s.%03uZ level=%s msg=",
               time_text, (unsigned)(us / 1000u % 1000u), level);
    json_add_string(&b, text, strlen(text));
    buf_add_str(&b, json ? "}\n" : "\n");
    ssize_t n = write(STDERR_FILENO, b.data, b.len);
    (void)n; /* nowhere left to say so */
    buf_free(&b);
}

/* One write(2) a line, so that lines of several threads never mix. */
void log_line(enum log_level level, const char *fmt, ...)
{
    static const char *const name[] = {"error", "warning", "info", "debug"};
    if ((int)level > atomic_load(&threshold))
        return;
    char line[2048];
    int n = snprintf(line, sizeof(line), "nybble: %s: ", name[level]);
    va_list args;
    va_start(args, fmt);
    int m = vsnprintf(line + n, sizeof(line) - (size_t)n - 1, fmt, args);
    va_end(args);
    if (m < 0)
        return;
    if (sink.take) {
        sink.take(sink.arg, level, line + n);
        return;
    }
    if (atomic_load(&line_format) != LOG_PLAIN) {
        write_record(name[level], line + n);
        return;
    }
    size_t len = (size_t)n + (size_t)m;
    if (len > sizeof(line) - 2)
        len = sizeof(line) - 2;
    line[len++] = '\n';
    if (write(STDERR_FILENO, line, len) < 0)
        return; /* nowhere left to say so */
}
