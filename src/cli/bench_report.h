/* What bench model says of a point: a line of a table, or a result of the JSON object. */
#ifndef NYB_CLI_BENCH_REPORT_H
#define NYB_CLI_BENCH_REPORT_H

#include "cli/bench_beside.h"
#include "cli/bench_model.h"

/* The names of the columns. */
void bench_report_header(void);
/* run (b->repeat): in the order in which they ran. All of them did b->work. */
void bench_report_point(struct bench_model *b, const struct bench_point *p, const struct bench_run *run,
                        const struct checkkern_roof *roof);

#endif
