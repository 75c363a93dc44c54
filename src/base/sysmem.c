#include "base/sysmem.h"

#include <stdio.h>
#include <string.h>

/* The number after `key` in a file of "key number" lines; an empty key: the file's first number. */
static uint64_t read_number(const char *path, const char *key)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return UINT64_MAX;
    char line[256];
    unsigned long long x = 0;
    uint64_t found = UINT64_MAX;
    size_t n = strlen(key);
    while (found == UINT64_MAX && fgets(line, sizeof(line), f))
        if (!strncmp(line, key, n) && sscanf(line + n, "%llu", &x) == 1)
            found = x;
    fclose(f);
    return found;
}

/* Page cache counts as used in memory.current, but the kernel gives it back under pressure. */
static uint64_t group_left(const char *dir)
{
    char path[4400];
    snprintf(path, sizeof(path), "%s/memory.max", dir);
    uint64_t max = read_number(path, "");
    if (max == UINT64_MAX)
        return UINT64_MAX;
    snprintf(path, sizeof(path), "%s/memory.current", dir);
    uint64_t used = read_number(path, "");
    snprintf(path, sizeof(path), "%s/memory.stat", dir);
    uint64_t cache = read_number(path, "inactive_file ");
    if (used == UINT64_MAX)
        return UINT64_MAX;
    if (cache != UINT64_MAX)
        used -= cache < used ? cache : used;
    return used < max ? max - used : 0;
}

uint64_t sysmem_available(void)
{
    uint64_t kb = read_number("/proc/meminfo", "MemAvailable:");
    uint64_t left = kb == UINT64_MAX ? UINT64_MAX : kb * 1024;
    /* Our group and all above it, each with a limit of its own: "0::/a/b". */
    char dir[4300] = "/sys/fs/cgroup", line[4096] = "0::";
    FILE *f = fopen("/proc/self/cgroup", "re");
    while (f && fgets(line, sizeof(line), f))
        if (!strncmp(line, "0::/", 4)) {
            line[strcspn(line, "\n")] = 0;
            snprintf(dir, sizeof(dir), "/sys/fs/cgroup%s", line + 3);
        }
    if (f)
        fclose(f);
    const size_t root = strlen("/sys/fs/cgroup");
    for (;;) {
        uint64_t group = group_left(dir);
        left = group < left ? group : left;
        char *slash = strrchr(dir, '/');
        if (strlen(dir) <= root || !slash)
            return left;
        *slash = 0;
    }
}
