/* Memory of an emulated GPU that several processes have: files without a name, which others open through the
 * process that made them. */
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>

#include "kernels/cuda/emulate/simt_runtime.h"
#include "kernels/cuda/emulate/simt_stream.h"

struct shared_memory {
    size_t bytes;
    int fd; /* -1: another process's */
};

/* What a handle holds. */
struct shared_name {
    int32_t pid, fd;
    uint64_t bytes;
};
static_assert(sizeof(shared_name) <= sizeof(cudaIpcMemHandle_t), "a handle has room for a name");

static std::mutex lock;
static std::map<const uint8_t *, shared_memory> all;

static void *map_file(int fd, size_t bytes)
{
    void *m = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return m == MAP_FAILED ? nullptr : m;
}

static cudaError_t keep(void **p, size_t bytes, int fd, bool own)
{
    std::lock_guard<std::mutex> guard(lock);
    void *m = map_file(fd, bytes);
    if (!own || !m)
        close(fd);
    if (!m)
        return cudaErrorMemoryAllocation;
    all[(uint8_t *)m] = {bytes, own ? fd : -1};
    *p = m;
    return cudaSuccess;
}

/* `closing`: only another process's memory. */
static bool drop(void *p, bool closing)
{
    std::lock_guard<std::mutex> guard(lock);
    const auto it = all.find((uint8_t *)p);
    if (it == all.end() || (it->second.fd < 0) != closing)
        return false;
    munmap(p, it->second.bytes);
    if (it->second.fd >= 0)
        close(it->second.fd);
    all.erase(it);
    return true;
}

namespace simt
{

bool is_shared(const void *p, size_t bytes)
{
    std::lock_guard<std::mutex> guard(lock);
    auto it = all.upper_bound((const uint8_t *)p);
    if (it == all.begin())
        return false;
    --it;
    const size_t from = (size_t)((const uint8_t *)p - it->first);
    return from <= it->second.bytes && bytes <= it->second.bytes - from;
}

bool free_shared(void *p)
{
    return drop(p, false);
}

} // namespace simt

cudaError_t simt_malloc_shared(void **p, size_t bytes)
{
    *p = nullptr;
    const int fd = memfd_create("emulated-gpu", MFD_CLOEXEC);
    if (fd < 0)
        return cudaErrorMemoryAllocation;
    if (ftruncate(fd, (off_t)bytes) != 0) {
        close(fd);
        return cudaErrorMemoryAllocation;
    }
    return keep(p, bytes, fd, true);
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *p)
{
    std::lock_guard<std::mutex> guard(lock);
    const auto it = all.find((uint8_t *)p);
    if (it == all.end() || it->second.fd < 0)
        return cudaErrorInvalidValue;
    const shared_name name = {(int32_t)getpid(), (int32_t)it->second.fd, it->second.bytes};
    memset(handle, 0, sizeof(*handle));
    memcpy(handle, &name, sizeof(name));
    return cudaSuccess;
}

cudaError_t cudaIpcOpenMemHandle(void **p, cudaIpcMemHandle_t handle, unsigned)
{
    shared_name name;
    char path[64];
    memcpy(&name, &handle, sizeof(name));
    if (name.pid == (int32_t)getpid()) /* as the real one, which opens only others' */
        return cudaErrorInvalidValue;
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)name.pid, (int)name.fd);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    return fd < 0 ? cudaErrorInvalidValue : keep(p, name.bytes, fd, false);
}

cudaError_t cudaIpcCloseMemHandle(void *p)
{
    return drop(p, true) ? cudaSuccess : cudaErrorInvalidValue;
}
