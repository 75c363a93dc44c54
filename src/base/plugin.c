#include "base/plugin.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"

/* self: a file with an absolute path; where: folders from its own on. */
static bool look(const char *self, const char *const *where, size_t n, const char *file, char *path,
                 size_t size)
{
    const char *slash = strrchr(self, '/');
    for (size_t i = 0; slash && i < n; i++) {
        int len = snprintf(path, size, "%.*s%s%s", (int)(slash + 1 - self), self, where[i], file);
        if (len > 0 && (size_t)len < size && access(path, R_OK) == 0)
            return true;
    }
    return false;
}

static bool beside_program(const char *file, char *path, size_t size)
{
    static const char *const where[] = {"", "../lib/nybble/", "../lib/"};
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    if (n <= 0)
        return false;
    self[n] = 0;
    return look(self, where, COUNT_OF(where), file, path, size);
}

/* The loader's own list has no name for the program, whose argv[0] is anybody's. */
static bool beside_library(const char *file, char *path, size_t size)
{
    static const char *const where[] = {"", "nybble/", "../nybble/"};
    char self[PATH_MAX];
    struct link_map *map = NULL;
    Dl_info info;
    if (!dladdr1((const void *)(uintptr_t)plugin_find, &info, (void **)&map, RTLD_DL_LINKMAP) || !map ||
        map->l_name[0] != '/' || !realpath(map->l_name, self))
        return false;
    return look(self, where, COUNT_OF(where), file, path, size);
}

bool plugin_find(const char *file, char *path, size_t size)
{
    return beside_program(file, path, size) || beside_library(file, path, size);
}
