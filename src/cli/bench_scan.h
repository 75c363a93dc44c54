/* Whether tokens/s falls anywhere while the batch grows: a cliff between two kernels shows as a fall. */
#ifndef NYB_CLI_BENCH_SCAN_H
#define NYB_CLI_BENCH_SCAN_H

#include "base/json.h"

#define BENCH_SCAN_FALL 0.03 /* that is not yet a cliff */

struct bench_scan_point {
    int threads, depth, batch;
    double tok_s;
};

struct bench_scan {
    struct bench_scan_point *point;
    int n, cap;
};

void bench_scan_add(struct bench_scan *s, const struct bench_scan_point *p);
void bench_scan_free(struct bench_scan *s);
/* Neighbours of equal threads and depth, in the order they were added. */
int bench_scan_cliffs(const struct bench_scan *s);
void bench_scan_print(const struct bench_scan *s);
json_t *bench_scan_json(const struct bench_scan *s); /* array of cliffs: {threads, depth, from, to, fall} */

#endif
