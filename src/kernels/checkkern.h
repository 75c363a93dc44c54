/* checkkern: every kernel, on every CPU level, against a float64 reference; and its speed against the
 * machine's.
 *
 * A row of checkkern.def names a check and a bench. A check returns true when all its cases pass and
 * otherwise says in the report which one did not. Checks compute their truth in double from logical values,
 * poison the outputs around what may be written, and use odd shapes. A bench adds lines; the caller prints
 * them beside the roofline measured in the same run. */
#ifndef NYB_KERNELS_CHECKKERN_H
#define NYB_KERNELS_CHECKKERN_H

#include "base/arena.h"
#include "base/cpu.h"
#include "base/pool.h"

struct checkkern_env {
    enum cpu_level level; /* take the kernels of this one */
    struct pool *pool;
    struct arena *arena; /* reset after each row */
    uint64_t seed;
    int rounds; /* random cases a check, at least 1 */
};

struct checkkern_report {
    int n_case;
    double worst;     /* largest error, in units of its tolerance: above 1 fails */
    char detail[200]; /* of the first failure */
    bool failed;
};

/* Count one case; a failing one keeps the first detail. Returns ok. */
bool checkkern_case(struct checkkern_report *r, bool ok, const char *fmt, ...) NYB_PRINTF(3, 4);
/* |found - expected| <= tolerance, NaN failing; keeps the worst ratio. */
bool checkkern_near(struct checkkern_report *r, double found, double expected, double tolerance);

uint64_t checkkern_random(uint64_t *state);         /* splitmix64 */
int checkkern_int(uint64_t *state, int lo, int hi); /* inclusive */
float checkkern_float(uint64_t *state);             /* uniform in [-1, 1) */
/* A float that no kernel produces, for memory that must stay untouched. */
float checkkern_poison(void);
bool checkkern_is_poison(float f);

/* What this machine can do, measured with `n_thread` threads of the pool. */
struct checkkern_roof {
    int n_thread;
    double read_gbs;             /* streaming read of 256 MB                      */
    double f32_gflops;           /* fused multiply-adds from registers            */
    double bf16_gflops, i8_gops; /* 0: no such instruction at this level          */
    double tile_gflops;          /* of the matrix unit in bf16; 0: none           */
};
double checkkern_read_bandwidth(struct pool *pool); /* GB/s; 0: no memory to measure it with */
void checkkern_measure(const struct checkkern_env *env, struct checkkern_roof *roof);

/* Which arithmetic peak applies. */
enum checkkern_unit { CHECKKERN_F32, CHECKKERN_BF16, CHECKKERN_I8, CHECKKERN_TILE };
struct checkkern_line {
    char name[64];
    double seconds;      /* best of several */
    double bytes, flops; /* that must be read, and done */
    enum checkkern_unit unit;
};
struct checkkern_bench {
    struct checkkern_line *line;
    int n_line, cap;
};
void checkkern_add(struct checkkern_bench *b, const char *name, double seconds, double bytes, double flops,
                   enum checkkern_unit unit);
/* Fraction of max(bytes / read bandwidth, flops / peak) that a line reaches. */
double checkkern_fraction(const struct checkkern_line *line, const struct checkkern_roof *roof);

typedef bool checkkern_check_fn(const struct checkkern_env *env, struct checkkern_report *report);
typedef void checkkern_bench_fn(const struct checkkern_env *env, struct checkkern_bench *out);
struct checkkern_row {
    const char *name; /* operator.variant */
    checkkern_check_fn *check;
    checkkern_bench_fn *bench; /* NULL: nothing to time */
};

#define CHECK(name, check) checkkern_check_fn check;
#define CHECK_BENCH(name, check, bench) \
    checkkern_check_fn check;           \
    checkkern_bench_fn bench;
#include "kernels/checkkern.def"
#undef CHECK
#undef CHECK_BENCH

int checkkern_n_row(void);
const struct checkkern_row *checkkern_row(int i);

#endif
