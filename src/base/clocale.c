#include "base/clocale.h"

#include <pthread.h>
#include <stddef.h>

static locale_t plain;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make(void)
{
    plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

locale_t clocale_enter(void)
{
    (void)pthread_once(&once, make);
    return plain ? uselocale(plain) : (locale_t)0;
}

void clocale_leave(locale_t before)
{
    if (before)
        (void)uselocale(before);
}
