/* Between the parts of the emulator. */
#pragma once

#include <functional>

#include "kernels/cuda/emulate/simt_runtime.h"

namespace simt
{
/* Keeps a failure as the last error. */
cudaError_t result(cudaError_t e);
/* Now, or into the graph that the stream records. Failures stay as the last error. */
cudaError_t stream_do(cudaStream_t stream, std::function<cudaError_t()> work);
/* simt_shared.cc: memory that other processes can open. False: none of it. */
bool is_shared(const void *p, size_t bytes);
bool free_shared(void *p);
/* Of the last launch that failed, on this thread. */
const char *launch_error();
} // namespace simt
