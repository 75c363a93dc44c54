#include "kernels/cuda/cuda_load.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"

static void *open_library(const char *path, struct nyb_err *err)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        err_set(err, NYB_E_UNSUPPORTED, "cannot load the CUDA plug-in: %s", dlerror());
    return library;
}

/* Never from the current folder or LD_LIBRARY_PATH, which others may write to. A file that the environment
 * names is for tests: secure_getenv leaves it out where the program runs with others' rights. */
static void *load(struct nyb_err *err)
{
    const char *named = secure_getenv(CUDA_PLUGIN_ENV);
    if (named && *named)
        return open_library(named, err);
    static const char *const where[] = {"", "../lib/nybble/", "../lib/"};
    char self[PATH_MAX], path[PATH_MAX + 64];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    if (n <= 0) {
        err_set(err, NYB_E_IO, "cannot tell where this program lies, to find " CUDA_PLUGIN_FILE " beside it");
        return NULL;
    }
    self[n] = 0;
    char *slash = strrchr(self, '/');
    slash[1] = 0;
    for (size_t i = 0; i < COUNT_OF(where); i++) {
        snprintf(path, sizeof(path), "%s%s%s", self, where[i], CUDA_PLUGIN_FILE);
        if (access(path, R_OK) != 0)
            continue;
        return open_library(path, err);
    }
    err_at(err, NYB_E_UNSUPPORTED, CUDA_PLUGIN_FILE, -1,
           "not found beside the program or in ../lib/nybble: this build has no CUDA");
    return NULL;
}

const struct cuda_plugin *cuda_load(struct nyb_err *err)
{
    void *library = load(err);
    if (!library)
        return NULL;
    const struct cuda_plugin *p = dlsym(library, CUDA_PLUGIN_SYMBOL);
    if (p && p->abi == CUDA_PLUGIN_ABI)
        return p;
    err_at(err, NYB_E_UNSUPPORTED, CUDA_PLUGIN_FILE, -1, "is of another version of nybble");
    return NULL;
}
