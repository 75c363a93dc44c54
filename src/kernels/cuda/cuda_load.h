/* Finding and loading the CUDA plug-in. */
#ifndef NYB_KERNELS_CUDA_LOAD_H
#define NYB_KERNELS_CUDA_LOAD_H

#include "base/err.h"
#include "kernels/cuda/cuda_plugin.h"

#define CUDA_PLUGIN_ENV "NYBBLE_CUDA_PLUGIN" /* names another file, the emulated plug-in: for tests */

/* Beside the program, or in ../lib/nybble or ../lib. It stays loaded. NULL: err says why. */
const struct cuda_plugin *cuda_load(struct nyb_err *err);

#endif
