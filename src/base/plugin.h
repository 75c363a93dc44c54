#ifndef NYB_BASE_PLUGIN_H
#define NYB_BASE_PLUGIN_H

#include <stdbool.h>
#include <stddef.h>

/* Where a plug-in lies: beside the program or the library that this code is part of, or where an installation
 * of either puts it. Never the current folder or LD_LIBRARY_PATH, which others may write to. False: nowhere.
 */
bool plugin_find(const char *file, char *path, size_t size);

#endif
