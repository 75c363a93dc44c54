/* nybble bench model: what is asked for, and what one run of it needs. */
#ifndef NYB_CLI_BENCH_MODEL_H
#define NYB_CLI_BENCH_MODEL_H

#include "base/json.h"
#include "cli/bench_profile.h"
#include "cli/bench_scan.h"
#include "cli/bench_seqs.h"
#include "cli/bench_work.h"
#include "cli/cli.h"
#include "cli/common.h"

#define BENCH_LIST_MAX 32

struct bench_list {
    int v[BENCH_LIST_MAX], n;
};

struct bench_model {
    struct common_options common;
    struct bench_list prompt, depth, batch, threads;
    int64_t gen, repeat, chunk, seed;
    bool json, profile, scan, engine, prompt_given, batch_given;
    const char *trace, *tokenizer;
    /* while running */
    struct model *model;
    struct bench_seqs seqs;
    struct bench_profile stages;
    struct bench_work work;  /* of the run in progress */
    struct bench_scan rates; /* for --scan */
    struct tokenizer *tok;   /* for --engine; NULL: none */
    float *logits;           /* (largest batch, vocab) */
    int *active;             /* (n_layer) experts that the step visited */
    uint8_t *seen;           /* (n_expert)                              */
    json_t *results;
    struct cli_progress bar;
};

/* The largest, 0 of an empty list. */
int bench_list_max(const struct bench_list *l);

/* Defaults, then the command line. False: the command ends with *status, everything has been said. */
bool bench_model_options(struct bench_model *b, int argc, char **argv, int *status);

/* ---- bench_point.c ------------------------------------------------------------------------------- */

/* One line of the table. */
struct bench_point {
    char name[48];
    bool prefill;
    int n_tok; /* of the prompt, or to generate */
    int batch, depth;
};

struct bench_point bench_point_prefill(int n_tok);
/* Its name: tg64, with 8 sequences tg64x8, after 4096 tokens tg64@4096. */
struct bench_point bench_point_decode(int n_tok, int batch, int depth);

/* Measures it with the model's threads and reports it (bench_report.h). */
enum nyb_code bench_point_run(struct bench_model *b, const struct bench_point *p, struct nyb_err *err);

#endif
