#include "model/device.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "kernels/cuda/cuda_load.h"
#include "model/device_ep.h"

enum nyb_code device_failed(const struct device *d, const char *doing, struct nyb_err *err)
{
    const char *why = d->plugin->error(d->gpu);
    bool memory = strstr(why, "out of memory") != NULL;
    return err_at(err, memory ? NYB_E_MEMORY : NYB_E_INTERNAL, d->info.name, -1, "%s failed: %s", doing, why);
}

enum nyb_code device_alloc(struct device *d, void **out, size_t bytes, const char *what, struct nyb_err *err)
{
    struct cuda_gpu_info now;
    *out = d->plugin->alloc(d->gpu, bytes ? bytes : 1);
    if (*out)
        return NYB_OK;
    d->plugin->info(d->gpu, &now);
    return err_at(err, NYB_E_MEMORY, d->info.name, -1, "%s: %.3f GB are needed, %.3f GB are free (%s)", what,
                  (double)bytes * 1e-9, (double)now.free_bytes * 1e-9, d->plugin->error(d->gpu));
}

/* What the names ask for that this GPU cannot do. */
static enum nyb_code check_backends(const struct device *d, struct nyb_err *err)
{
    const bool gemm = d->option.gemm_backend == DEVICE_BACKEND_CUBLASLT_NVFP4,
               moe = d->option.moe_backend == DEVICE_BACKEND_CUBLASLT_NVFP4;
    if ((gemm || moe) && !d->plugin->use_cublaslt(d->gpu))
        return err_at(err, NYB_E_UNSUPPORTED, gemm ? "gemm-backend" : "moe-backend", -1, "%s",
                      d->plugin->error(d->gpu));
    return NYB_OK;
}

enum nyb_code device_open(struct device **out, const struct device_options *o, struct nyb_err *err)
{
    char why[320];
    const struct cuda_plugin *plugin = cuda_load(err);
    *out = NULL;
    if (!plugin)
        return NYB_E_UNSUPPORTED;
    struct cuda_gpu *gpu = plugin->open(o->index, why, sizeof(why));
    if (!gpu)
        return err_at(err, NYB_E_UNSUPPORTED, "cuda", -1, "%s", why);
    struct device *d = mem_alloc(1, sizeof(*d));
    d->plugin = plugin;
    d->gpu = gpu;
    d->option = *o;
    pthread_mutex_init(&d->load_lock, NULL);
    plugin->info(gpu, &d->info);
    enum nyb_code code = check_backends(d, err);
    if (code != NYB_OK) {
        device_close(d);
        return code;
    }
    *out = d;
    return NYB_OK;
}

void device_close(struct device *d)
{
    if (!d)
        return;
    const struct cuda_plugin *p = d->plugin;
    if (d->n_step > 0)
        log_debug("%llu of %llu steps were replayed graphs", (unsigned long long)d->n_replayed,
                  (unsigned long long)d->n_step);
    device_forget_graphs(d);
    device_leave(d);
    device_ep_close(d);
    void *const all[] = {d->slab, d->scales, d->kv_slab, d->cos, d->sin, d->room.slab, d->input, d->load};
    for (size_t i = 0; i < COUNT_OF(all); i++)
        if (all[i])
            p->release(d->gpu, all[i]);
    void *const host[] = {d->staging, d->best};
    for (size_t i = 0; i < COUNT_OF(host); i++)
        if (host[i])
            p->release_host(d->gpu, host[i]);
    p->close(d->gpu);
    pthread_mutex_destroy(&d->load_lock);
    free(d->place);
    free(d->scale_of);
    free(d->layer);
    free(d->kv);
    free(d->plan.op);
    free(d->plan.layer);
    free(d->plan.half);
    free(d);
}

void *device_host_alloc(struct device *d, size_t bytes)
{
    return d->plugin->alloc_host(d->gpu, bytes);
}

void device_host_free(struct device *d, void *host)
{
    if (host)
        d->plugin->release_host(d->gpu, host);
}

const char *device_name(const struct device *d)
{
    return d->info.name;
}

enum nyb_code device_read_rate(struct device *d, double *rate, struct nyb_err *err)
{
    *rate = d->plugin->read_rate(d->gpu, d->slab, d->slab_bytes);
    return *rate > 0 ? NYB_OK : device_failed(d, "measuring the rate of reading", err);
}
