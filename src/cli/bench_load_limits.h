/* What memory, page cache and disk allow, for nybble bench load: each GB/s is the best of all measurements so
 * far, 0 where there was none. Private to it. */
#ifndef NYB_CLI_BENCH_LOAD_LIMITS_H
#define NYB_CLI_BENCH_LOAD_LIMITS_H

#include "checkpoint/checkpoint.h"

struct bench_load_limits {
    double copy_gbs;   /* memory to memory in use                                              */
    double fresh_gbs;  /* memory to memory that was just taken from the system                 */
    double cached_gbs; /* the files from the page cache to memory that was just taken           */
    double disk_gbs;   /* the longest file from the disk, to memory that nobody looks at       */
};

/* Bytes copied a second by n_thread threads: the memory moves twice as many, and more of the page cache,
 * whose data a read() first copies to a buffer that the second cache holds. Fresh memory is cleared by the
 * system, which costs as much as copying, and more in a virtual machine whose host has to find it first.
 * `cached`: of the files, too, which should then be in the page cache. */
enum nyb_code bench_load_measure_copy(const struct ckpt *c, int n_thread, bool cached,
                                      struct bench_load_limits *l, struct nyb_err *err) NYB_MUST_CHECK;

/* The longest file from its beginning, several large reads under way. */
enum nyb_code bench_load_measure_disk(const struct ckpt *c, struct bench_load_limits *l,
                                      struct nyb_err *err) NYB_MUST_CHECK;

#endif
