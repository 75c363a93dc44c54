/* What a step cannot do without: the bytes it must read and the arithmetic it must do, and how long the
 * machine, at its measured best, would take. docs/BENCH.md has the formulas. */
#ifndef NYB_CLI_BENCH_WORK_H
#define NYB_CLI_BENCH_WORK_H

#include "kernels/checkkern.h"
#include "model/model.h"

struct bench_work {
    double weight_bytes;          /* weights with their scales, each matrix once a step, and the head */
    double kv_bytes;              /* keys and values of every sequence, once a step                    */
    double flops[CHECKKERN_TILE]; /* by unit: fp32, bf16, int8; a multiply-add is two                  */
    double n_step, n_expert;      /* expert visits, summed over MoE layers and steps                   */
    int n_moe_layer;
};

/* Add one step. active (n_layer): experts that got at least one token. */
void bench_work_add(struct bench_work *w, const struct model *m, enum compute compute, const struct batch *b,
                    const int *active);
double bench_work_bytes(const struct bench_work *w);
double bench_work_flops(const struct bench_work *w);

/* Seconds for the arithmetic alone, each part at its unit's peak. */
double bench_work_flop_seconds(const struct bench_work *w, const struct checkkern_roof *roof);
/* The larger of that and the bytes at the read bandwidth. */
double bench_work_bound(const struct bench_work *w, const struct checkkern_roof *roof);

/* The better of two measurements, member by member. */
void bench_work_best_roof(struct checkkern_roof *best, const struct checkkern_roof *other);

#endif
