/* Shell patterns as Python's fnmatch reads them: * ? [abc] [!a-z]; a dot is a character like any other, and
 * so is a bracket that is never closed. There is no escape character. Works on bytes. */
#ifndef NYB_CHECKPOINT_GLOB_H
#define NYB_CHECKPOINT_GLOB_H

#include <stdbool.h>

/* The whole of text. Time is at most the product of both lengths, whatever the pattern. */
bool glob_match(const char *pattern, const char *text);
/* Whether pattern has anything but ordinary characters. */
bool glob_is_pattern(const char *pattern);

#endif
