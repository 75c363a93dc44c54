#include "cli/cli.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"

#define DEFAULT_MODEL "tales-24m-moe-nvfp4"

/* NYBBLE_MODELS, then beside an installed binary (bin/../share/nybble/models), then the source tree. */
const char *cli_default_model(void)
{
    static char path[4096];
    const char *folder = getenv("NYBBLE_MODELS");
    if (folder && *folder) {
        snprintf(path, sizeof(path), "%s/%s", folder, DEFAULT_MODEL);
        return path;
    }
    char self[3072];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    if (n > 0) {
        self[n] = 0;
        char *slash = strrchr(self, '/');
        if (slash)
            *slash = 0;
        snprintf(path, sizeof(path), "%s/../share/nybble/models/%s", self, DEFAULT_MODEL);
        if (file_is_dir(path))
            return path;
    }
    snprintf(path, sizeof(path), "%s/%s", NYBBLE_SOURCE_MODELS, DEFAULT_MODEL);
    return path;
}

int cli_fail(const char *name, const struct nyb_err *err)
{
    char text[1200];
    fflush(stdout);
    fprintf(stderr, "nybble %s: %s\n", name, err_format(err, text, sizeof(text)));
    return 1;
}

int cli_misuse(const char *name, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    fprintf(stderr, "nybble %s: ", name);
    vfprintf(stderr, fmt, args);
    fprintf(stderr, "; see nybble %s --help\n", name);
    va_end(args);
    return 2;
}

bool cli_parse_int(const char *name, const char *option, const char *text, int64_t lo, int64_t hi,
                   int64_t *out)
{
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end != text && !*end && !errno && value >= lo && value <= hi) {
        *out = value;
        return true;
    }
    cli_misuse(name, "%s takes a whole number from %" PRId64 " to %" PRId64 ", got \"%s\"", option, lo, hi,
               text);
    return false;
}

bool cli_parse_float(const char *name, const char *option, const char *text, double lo, double hi,
                     double *out)
{
    char *end;
    double value = strtod(text, &end);
    if (end != text && !*end && isfinite(value) && value >= lo && value <= hi) {
        *out = value;
        return true;
    }
    cli_misuse(name, "%s takes a number from %g to %g, got \"%s\"", option, lo, hi, text);
    return false;
}

bool cli_parse_bytes(const char *name, const char *option, const char *text, uint64_t *out)
{
    static const char units[] = "KMGT";
    char *end;
    double value = strtod(text, &end);
    const char *unit = *end ? strchr(units, *end & ~0x20) : NULL;
    if (end != text && unit && *unit) {
        value *= pow(1024, (double)(unit - units + 1));
        end++;
        if (*end == 'i')
            end++;
        if (*end == 'B' || *end == 'b')
            end++;
    }
    if (end != text && !*end && isfinite(value) && value >= 0 && value < 0x1p62) {
        *out = (uint64_t)value;
        return true;
    }
    cli_misuse(name, "%s takes a size such as 8G, 512M or bytes, got \"%s\"", option, text);
    return false;
}

void cli_progress_start(struct cli_progress *p, const char *label)
{
    *p = (struct cli_progress){
        .label = label, .started_ns = clock_ns(), .terminal = isatty(STDERR_FILENO) == 1};
}

/* The bar and its percentage; false when it is not time to draw. */
static bool draw_bar(struct cli_progress *p, uint64_t done, uint64_t total)
{
    uint64_t now = clock_ns();
    if (!p->terminal || (p->open && now - p->drawn_ns < 100000000u && done < total))
        return false;
    struct winsize size;
    int width = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
    int bar = width - (int)strlen(p->label) - 36;
    bar = bar < 4 ? 4 : bar > 50 ? 50 : bar;
    double part = total ? (double)done / (double)total : 1;
    int full = (int)(part * bar);
    fprintf(stderr, "\r%s [%.*s%*s] %3.0f%%", p->label, full,
            "##################################################", bar - full, "", part * 100);
    p->open = true;
    p->drawn_ns = now;
    return true;
}

void cli_progress_update(void *arg, uint64_t done, uint64_t total)
{
    struct cli_progress *p = arg;
    if (!draw_bar(p, done, total))
        return;
    double seconds = (double)(p->drawn_ns - p->started_ns) * 1e-9;
    fprintf(stderr, " %6.2f GB %5.2f GB/s", (double)done * 1e-9,
            seconds > 0 ? (double)done * 1e-9 / seconds : 0);
    if (done >= total) /* log lines that follow must not run on from the bar */
        cli_progress_end(p);
}

void cli_progress_count(struct cli_progress *p, uint64_t done, uint64_t total, const char *unit)
{
    if (draw_bar(p, done, total))
        fprintf(stderr, " %llu of %llu %s", (unsigned long long)done, (unsigned long long)total, unit);
}

/* The bar is wiped: what follows is the answer. */
void cli_progress_end(struct cli_progress *p)
{
    if (p->open)
        fputs("\r\033[K", stderr);
    p->open = false;
}

int cli_close_stdout(const char *name, int status)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return status;
    fprintf(stderr, "nybble%s%s: cannot write to standard output: %s\n", name ? " " : "", name ? name : "",
            strerror(errno));
    return status ? status : 1;
}
