#include "model/budget.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/sysmem.h"

static bool read_number(const char *path, uint64_t *out)
{
    unsigned long long x;
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    bool ok = fscanf(f, "%llu", &x) == 1;
    fclose(f);
    if (ok)
        *out = x;
    return ok;
}

/* Left below a control group v1 limit. Inside a container its own group is mounted at the root. */
static uint64_t group_v1_left(void)
{
    uint64_t limit, used;
    if (!read_number("/sys/fs/cgroup/memory/memory.limit_in_bytes", &limit) ||
        !read_number("/sys/fs/cgroup/memory/memory.usage_in_bytes", &used))
        return UINT64_MAX;
    return limit > used ? limit - used : 0;
}

/* Left below `ulimit -v`. */
static uint64_t address_space_left(void)
{
    struct rlimit r;
    uint64_t pages;
    if (getrlimit(RLIMIT_AS, &r) || r.rlim_cur == RLIM_INFINITY || !read_number("/proc/self/statm", &pages))
        return UINT64_MAX;
    uint64_t used = pages * (uint64_t)sysconf(_SC_PAGESIZE);
    return r.rlim_cur > used ? r.rlim_cur - used : 0;
}

uint64_t budget_available(void)
{
    uint64_t left = sysmem_available(), group = group_v1_left(), space = address_space_left();
    left = group < left ? group : left;
    return space < left ? space : left;
}

enum nyb_code budget_check(uint64_t need, const char *what, struct nyb_err *err)
{
    uint64_t have = budget_available();
    if (need <= have)
        return NYB_OK;
    return err_at(err, NYB_E_MEMORY, what, -1, "%.2f GB of memory are needed, %.2f GB are available",
                  (double)need * 1e-9, (double)have * 1e-9);
}
