/* The public way to the log. */
#include "base/log.h"

#include "nybble.h"

_Static_assert((int)NYB_LOG_ERROR == (int)LOG_ERROR && (int)NYB_LOG_DEBUG == (int)LOG_DEBUG, "same order");

static struct {
    void (*take)(void *arg, enum nyb_log_level level, const char *text);
    void *arg;
} caller;

static void pass_on(void *arg, enum log_level level, const char *text)
{
    (void)arg;
    caller.take(caller.arg, (enum nyb_log_level)level, text);
}

void nyb_set_log(enum nyb_log_level most, void (*take)(void *arg, enum nyb_log_level level, const char *text),
                 void *arg)
{
    caller.take = take;
    caller.arg = arg;
    log_set_level((enum log_level)most);
    log_set_sink(take ? pass_on : NULL, NULL);
}
