/* What this processor can do. The environment variable NYBBLE_CPU (scalar, avx2,
 * avx512, amx) makes it pretend to be an older one, so that tests can walk every path. */
#ifndef NYB_BASE_CPU_H
#define NYB_BASE_CPU_H

#include <stdbool.h>

enum cpu_level {
    CPU_SCALAR, /* any x86-64                                                     */
    CPU_AVX2,   /* AVX2, FMA, F16C                                                */
    CPU_AVX512, /* F, BW, DQ, VL, VBMI, VNNI, BF16: Zen 4, Cooper Lake and later */
    CPU_AMX,    /* the above with FP16 and AMX tiles, BF16 and INT8: Sapphire Rapids */
    CPU_LEVEL_COUNT
};

enum cpu_level cpu_detect(void); /* what the hardware and kernel allow   */
enum cpu_level cpu_level(void);  /* that, capped by NYBBLE_CPU           */
const char *cpu_level_name(enum cpu_level level);
bool cpu_level_parse(const char *name, enum cpu_level *out);
const char *cpu_model_name(void); /* "AMD EPYC ..." or "unknown"          */
int cpu_count(void);              /* cores this process may run on (cgroup and affinity) */

#endif
