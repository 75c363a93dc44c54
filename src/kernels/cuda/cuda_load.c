#include "kernels/cuda/cuda_load.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>

#include "base/plugin.h"

static void *open_library(const char *path, struct nyb_err *err)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        err_set(err, NYB_E_UNSUPPORTED, "cannot load the CUDA plug-in: %s", dlerror());
    return library;
}

/* A file that the environment names is for tests: secure_getenv leaves it out where the program runs with
 * others' rights. */
static void *load(struct nyb_err *err)
{
    char path[PATH_MAX];
    const char *named = secure_getenv(CUDA_PLUGIN_ENV);
    if (named && *named)
        return open_library(named, err);
    if (plugin_find(CUDA_PLUGIN_FILE, path, sizeof(path)))
        return open_library(path, err);
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
