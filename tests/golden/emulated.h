/* The emulated plug-in, for tests of models on a GPU. */
#ifndef NYB_TEST_EMULATED_H
#define NYB_TEST_EMULATED_H

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "test.h"

/* From here on --device cuda is the emulator, of the compute capability that has all kernels of a Hopper GPU.
 * False: it has not been built. It lies above the tests in the build folder. */
static inline bool emulated_use(void)
{
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    assert_true(n > 0);
    self[n] = 0;
    *strrchr(self, '/') = 0;
    char *path = mem_printf("%s/../libnybble_cuda_emu.so", self);
    bool there = file_exists(path);
    setenv("NYBBLE_CUDA_PLUGIN", path, 1);
    free(path);
    /* For cublaslt-nvfp4: a library that computes on this CPU (emulated_blackwell is the GPU). */
    path = mem_printf("%s/../libnybble_fake_cublaslt.so", self);
    setenv("NYBBLE_SIMT_CAPABILITY", "9", 1);
    setenv("NYBBLE_CUBLASLT", path, 1);
    free(path);
    return there;
}

/* Models that are opened from here on find a GPU with block-scaled matrix units, or again none. */
static inline void emulated_blackwell(bool on)
{
    setenv("NYBBLE_SIMT_CAPABILITY", on ? "10" : "9", 1);
}

#endif
