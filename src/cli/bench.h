/* What nybble bench measures: one function each, with argv[0] "model", "load" or "serve"; they return exit
 * statuses.
 */
#ifndef NYB_CLI_BENCH_H
#define NYB_CLI_BENCH_H

int bench_model(int argc, char **argv);
int bench_update(int argc, char **argv);
int bench_comm(int argc, char **argv);
int bench_gpus(int argc, char **argv);
int bench_overlap(int argc, char **argv);
int bench_load(int argc, char **argv);
int bench_serve(int argc, char **argv);

#endif
