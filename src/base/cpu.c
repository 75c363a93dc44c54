#include "base/cpu.h"

#include <cpuid.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log.h"
#include "base/quota.h"

static const char *const level_name[CPU_LEVEL_COUNT] = {"scalar", "avx2", "avx512", "amx"};

/* The register state that the operating system saves (XCR0). */
static uint64_t xcr0(void)
{
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

/* Linux hands the 8 KB of tile state out on request only. */
static bool tiles_permitted(void)
{
    const long arch_req_xcomp_perm = 0x1023, xtiledata = 18;
    return syscall(SYS_arch_prctl, arch_req_xcomp_perm, xtiledata) == 0;
}

enum cpu_level cpu_detect(void)
{
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE) || !(c & bit_FMA) || !(c & bit_F16C))
        return CPU_SCALAR;
    uint64_t state = xcr0();
    uint32_t a7, b7, c7, d7;
    if ((state & 6) != 6 || !__get_cpuid_count(7, 0, &a7, &b7, &c7, &d7) || !(b7 & bit_AVX2) ||
        !(b7 & bit_BMI2))
        return CPU_SCALAR;
    const uint32_t need_b = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    const uint32_t need_c = bit_AVX512VBMI | bit_AVX512VNNI;
    uint32_t a71 = 0, unused;
    if (a7 >= 1)
        __get_cpuid_count(7, 1, &a71, &unused, &unused, &unused);
    if ((state & 0xe6) != 0xe6 || (b7 & need_b) != need_b || (c7 & need_c) != need_c ||
        !(a71 & bit_AVX512BF16))
        return CPU_AVX2;
    const uint32_t amx_bf16 = 1u << 22, avx512_fp16 = 1u << 23, amx_tile = 1u << 24, amx_int8 = 1u << 25;
    const uint32_t amx = amx_bf16 | avx512_fp16 | amx_tile | amx_int8;
    if ((d7 & amx) != amx || (state & 0x60000) != 0x60000 || !tiles_permitted())
        return CPU_AVX512;
    return CPU_AMX;
}

enum cpu_level cpu_level(void)
{
    static atomic_int cached = -1;
    int level = atomic_load_explicit(&cached, memory_order_relaxed);
    if (level >= 0)
        return (enum cpu_level)level;
    enum cpu_level found = cpu_detect(), cap;
    const char *mask = getenv("NYBBLE_CPU");
    if (mask && *mask) {
        if (!cpu_level_parse(mask, &cap))
            log_warn("NYBBLE_CPU=%s is not one of scalar, avx2, avx512, amx: ignored", mask);
        else if (cap < found)
            found = cap;
    }
    atomic_store(&cached, (int)found);
    return found;
}

const char *cpu_level_name(enum cpu_level level)
{
    return level_name[level];
}

bool cpu_level_parse(const char *name, enum cpu_level *out)
{
    for (int i = 0; i < CPU_LEVEL_COUNT; i++)
        if (!strcmp(name, level_name[i])) {
            *out = (enum cpu_level)i;
            return true;
        }
    return false;
}

const char *cpu_model_name(void)
{
    static char name[64];
    if (name[0])
        return name;
    uint32_t r[12];
    for (uint32_t i = 0; i < 3; i++)
        if (!__get_cpuid(0x80000002u + i, &r[4 * i], &r[4 * i + 1], &r[4 * i + 2], &r[4 * i + 3]))
            return "unknown";
    memcpy(name, r, 48);
    for (size_t n = strlen(name); n > 0 && name[n - 1] == ' '; n--)
        name[n - 1] = 0;
    return name[0] ? name : "unknown";
}

int cpu_count(void)
{
    cpu_set_t set;
    int n = 1;
    if (sched_getaffinity(0, sizeof(set), &set) == 0)
        n = CPU_COUNT(&set);
    int limit = quota_cores();
    if (limit > 0 && limit < n)
        n = limit;
    return n > 0 ? n : 1;
}
