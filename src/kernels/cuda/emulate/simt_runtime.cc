#include "kernels/cuda/emulate/simt_runtime.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "kernels/cuda/emulate/simt_stream.h"

#define ALIGNMENT 256
#define GUARD     64 /* bytes behind a buffer that must stay as they are; sanitizers have better ones */
#define FILL      0xff
#define GUARD_IS  0xa5

#if defined(__SANITIZE_ADDRESS__)
#define HAS_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAS_ASAN 1
#endif
#endif
#ifdef HAS_ASAN
#undef GUARD
#endif

static std::mutex lock;
static std::map<const uint8_t *, size_t> device_memory;
static size_t used;
static thread_local cudaError_t last_error;
static thread_local int current_device;

cudaError_t simt::result(cudaError_t e)
{
    if (e != cudaSuccess)
        last_error = e;
    return e;
}
using simt::result;

const char *cudaGetErrorString(cudaError_t e)
{
    switch (e) {
    case cudaSuccess:
        return "no error";
    case cudaErrorInvalidValue:
        return "invalid argument";
    case cudaErrorMemoryAllocation:
        return "out of memory";
    case cudaErrorLaunchFailure:
        return simt::launch_error();
    case cudaErrorStreamCaptureInvalidated:
        return "operation failed while a graph was recorded";
    case cudaErrorStreamCaptureUnjoined:
        return "a stream that was recorded has not been joined again";
    case cudaErrorStreamCaptureIsolation:
        return "a recorded stream waits for what is not recorded";
    case cudaErrorNotReady:
        return "not ready";
    case cudaErrorPeerAccessAlreadyEnabled:
        return "peer access is already enabled";
    case cudaErrorDevicesUnavailable:
        return "the device is lost";
    }
    return "unknown error";
}

cudaError_t cudaPeekAtLastError()
{
    return last_error;
}

cudaError_t cudaGetLastError()
{
    const cudaError_t e = last_error;
    last_error = cudaSuccess;
    return e;
}

/* ---- the device ------------------------------------------------------------------------------------ */

static size_t memory_in_all()
{
    const char *mib = getenv("NYBBLE_SIMT_MEMORY");
    const unsigned long long n = mib ? strtoull(mib, nullptr, 10) : 0;
    return (size_t)(n > 0 && n < 1u << 20 ? n : 4096) << 20;
}

/* NYBBLE_SIMT_CAPABILITY, 9 without it: the major number. */
static int capability()
{
    const char *text = getenv("NYBBLE_SIMT_CAPABILITY");
    const long asked = text ? strtol(text, nullptr, 10) : 0;
    return asked > 0 && asked < 100 ? (int)asked : 9;
}

/* NYBBLE_SIMT_SMS, 4 without it: more of them give kernels other forms, larger clusters among them. */
static int multiprocessors()
{
    const char *text = getenv("NYBBLE_SIMT_SMS");
    const long asked = text ? strtol(text, nullptr, 10) : 0;
    return asked > 0 && asked <= 256 ? (int)asked : 4;
}

cudaError_t cudaGetDeviceCount(int *n)
{
    const char *text = getenv("NYBBLE_SIMT_DEVICES");
    const long asked = text ? strtol(text, nullptr, 10) : 0;
    *n = asked > 0 && asked < 64 ? (int)asked : 8;
    return cudaSuccess;
}

static bool is_there(int device)
{
    int n;
    cudaGetDeviceCount(&n);
    return device >= 0 && device < n;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = current_device;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    if (!is_there(device))
        return result(cudaErrorInvalidValue);
    if (simt_is_lost()) /* every call of the plug-in begins here */
        return cudaErrorDevicesUnavailable;
    current_device = device;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device)
{
    memset(p, 0, sizeof(*p));
    snprintf(p->name, sizeof(p->name), "emulated GPU on this CPU");
    p->major = capability();
    p->multiProcessorCount = multiprocessors();
    p->l2CacheSize = 1 << 20;
    p->totalGlobalMem = memory_in_all();
    return result(is_there(device) ? cudaSuccess : cudaErrorInvalidValue);
}

/* All memory is this CPU's. */
cudaError_t cudaDeviceEnablePeerAccess(int device, unsigned)
{
    return result(is_there(device) ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr what, int device)
{
    switch (what) {
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = 227 << 10;
        break;
    case cudaDevAttrMultiProcessorCount:
        *value = 4;
        break;
    case cudaDevAttrComputeCapabilityMajor:
        *value = capability();
        break;
    case cudaDevAttrMpsEnabled:
        *value = 0;
        break;
    case cudaDevAttrCooperativeLaunch:
        *value = 1;
        break;
    }
    return result(is_there(device) ? cudaSuccess : cudaErrorInvalidValue);
}

/* ---- memory ---------------------------------------------------------------------------------------- */

#ifdef GUARD
static void fence_off(uint8_t *end)
{
    memset(end, GUARD_IS, GUARD);
}

static bool is_fenced_off(const uint8_t *end)
{
    for (size_t i = 0; i < GUARD; i++)
        if (end[i] != GUARD_IS)
            return false;
    return true;
}
#else /* a sanitizer watches */
#define GUARD 0
static void fence_off(uint8_t *)
{
}

static bool is_fenced_off(const uint8_t *)
{
    return true;
}
#endif

cudaError_t simt_malloc(void **p, size_t bytes)
{
    std::lock_guard<std::mutex> guard(lock);
    void *m = nullptr;
    *p = nullptr;
    if (bytes == 0)
        return cudaSuccess;
    if (bytes > memory_in_all() - used || posix_memalign(&m, ALIGNMENT, bytes + GUARD) != 0)
        return result(cudaErrorMemoryAllocation);
    memset(m, FILL, bytes);
    fence_off((uint8_t *)m + bytes);
    device_memory[(uint8_t *)m] = bytes;
    used += bytes;
    *p = m;
    return cudaSuccess;
}

cudaError_t cudaFree(void *p)
{
    if (!p || simt::free_shared(p))
        return cudaSuccess;
    std::lock_guard<std::mutex> guard(lock);
    const auto it = device_memory.find((uint8_t *)p);
    if (it == device_memory.end())
        return result(cudaErrorInvalidValue);
    if (!is_fenced_off(it->first + it->second)) {
        fprintf(stderr, "emulated GPU: a kernel wrote behind a buffer of %zu bytes\n", it->second);
        abort();
    }
    used -= it->second;
    device_memory.erase(it);
    free(p);
    return cudaSuccess;
}

cudaError_t simt_malloc_host(void **p, size_t bytes)
{
    *p = malloc(bytes);
    return result(*p ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaFreeHost(void *p)
{
    free(p);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    std::lock_guard<std::mutex> guard(lock);
    *total_bytes = memory_in_all();
    *free_bytes = *total_bytes - used;
    return cudaSuccess;
}

/* All of it lies in one buffer of the device. */
static bool is_device(const void *p, size_t bytes)
{
    if (simt::is_shared(p, bytes))
        return true;
    std::lock_guard<std::mutex> guard(lock);
    auto it = device_memory.upper_bound((const uint8_t *)p);
    if (it == device_memory.begin())
        return false;
    --it;
    const size_t from = (size_t)((const uint8_t *)p - it->first);
    return from <= it->second && bytes <= it->second - from;
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t stream)
{
    if (bytes && !is_device(p, bytes))
        return result(cudaErrorInvalidValue);
    return simt::stream_do(stream, [=] {
        memset(p, value, bytes);
        return cudaSuccess;
    });
}

cudaError_t cudaMemset(void *p, int value, size_t bytes)
{
    return cudaMemsetAsync(p, value, bytes, nullptr);
}

/* A word is whole and behind all that was copied before, for who looks at it meanwhile. */
static void copy(void *to, const void *from, size_t bytes)
{
    if (bytes == sizeof(uint32_t) && (uintptr_t)to % bytes == 0 && (uintptr_t)from % bytes == 0)
        __atomic_store_n((uint32_t *)to, __atomic_load_n((const uint32_t *)from, __ATOMIC_RELAXED),
                         __ATOMIC_RELEASE);
    else
        memcpy(to, from, bytes);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (bytes && (is_device(to, bytes) != to_device || is_device(from, bytes) != from_device))
        return result(cudaErrorInvalidValue);
    return simt::stream_do(stream, [=] {
        copy(to, from, bytes);
        return cudaSuccess;
    });
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
    return cudaMemcpyAsync(to, from, bytes, kind, nullptr);
}
