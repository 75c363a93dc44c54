/* What the operators' sources need of CUDA, for nvcc and for the emulator (emulate/simt.h) alike. */
#pragma once

#include "kernels/cuda/plugin/gpu_launch.h"
#include "kernels/cuda/plugin/gpu_memory.h"
#include "kernels/cuda/plugin/gpu_number.h"
#include "kernels/cuda/plugin/gpu_warp.h"
