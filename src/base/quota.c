#include "base/quota.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIR_BYTES 4500

static int cores_of(long quota, long period)
{
    if (quota <= 0 || period <= 0)
        return INT_MAX;
    long cores = quota / period + (quota % period != 0);
    return cores < INT_MAX ? (int)cores : INT_MAX;
}

/* "max 100000" or "200000 100000": microseconds of CPU a period. */
static int group_v2(const char *dir)
{
    char path[DIR_BYTES + 32];
    long quota = 0, period = 0;
    snprintf(path, sizeof(path), "%s/cpu.max", dir);
    FILE *f = fopen(path, "re");
    if (!f)
        return INT_MAX;
    int n = fscanf(f, "%ld %ld", &quota, &period);
    fclose(f);
    return n == 2 ? cores_of(quota, period) : INT_MAX;
}

static long read_long(const char *dir, const char *name)
{
    char path[DIR_BYTES + 32];
    long x = 0;
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    FILE *f = fopen(path, "re");
    if (!f)
        return 0;
    if (fscanf(f, "%ld", &x) != 1)
        x = 0;
    fclose(f);
    return x;
}

static int group_v1(const char *dir)
{
    return cores_of(read_long(dir, "cpu.cfs_quota_us"), read_long(dir, "cpu.cfs_period_us"));
}

/* Our group and all above it. Inside a container the path may name a place that is not mounted: its root is
 * asked in any case. */
static int lowest(const char *mount, const char *group, int (*limit)(const char *dir))
{
    char dir[DIR_BYTES];
    size_t root = strlen(mount);
    int cores = INT_MAX;
    snprintf(dir, sizeof(dir), "%s%s", mount, group);
    for (;;) {
        int here = limit(dir);
        cores = here < cores ? here : cores;
        char *slash = strrchr(dir, '/');
        if (strlen(dir) <= root || !slash)
            return cores;
        *slash = 0;
    }
}

/* True where a v1 line's list of controllers, "cpu,cpuacct", has cpu. */
static bool names_cpu(const char *list)
{
    for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (!strncmp(at, "cpu", 3) && (at[3] == ',' || at[3] == 0))
            return true;
    return false;
}

int quota_cores_in(const char *mount, const char *self)
{
    char line[4096], v1[DIR_BYTES];
    int cores = lowest(mount, "", group_v2);
    FILE *f = fopen(self, "re");
    snprintf(v1, sizeof(v1), "%s/cpu", mount);
    int here = lowest(v1, "", group_v1);
    cores = here < cores ? here : cores;
    while (f && fgets(line, sizeof(line), f)) { /* "id:controllers:/path" */
        line[strcspn(line, "\n")] = 0;
        char *list = strchr(line, ':'), *group = list ? strchr(list + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = 0;
        here = INT_MAX;
        if (list[1] == 0)
            here = lowest(mount, group, group_v2);
        else if (names_cpu(list + 1))
            here = lowest(v1, group, group_v1);
        cores = here < cores ? here : cores;
    }
    if (f)
        fclose(f);
    return cores < INT_MAX ? cores : 0;
}

int quota_cores(void)
{
    return quota_cores_in("/sys/fs/cgroup", "/proc/self/cgroup");
}
