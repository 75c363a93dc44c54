#ifndef NYB_BASE_CLOCALE_H
#define NYB_BASE_CLOCALE_H

#include <locale.h>

/* A program that has this library may have set a locale that writes 0.5 as 0,5. Between the two the calling
 * thread reads and writes numbers as JSON and templates have them. */
locale_t clocale_enter(void);
void clocale_leave(locale_t before);

#endif
