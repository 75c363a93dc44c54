/* Several sequences of random tokens over a model, without the engine: batches of any shape for a bench. */
#ifndef NYB_CLI_BENCH_SEQS_H
#define NYB_CLI_BENCH_SEQS_H

#include "model/model.h"

struct bench_seqs {
    struct model *model;
    int n_seq, max_len;   /* tokens a sequence                                   */
    int n_block;          /* blocks a sequence                                   */
    int max_row;          /* rows a step                                         */
    int32_t *block_table; /* (n_seq, n_block): interleaved, as sequences that grow together have them */
    int32_t *filled;      /* (n_seq) positions whose keys and values have been computed */
    int32_t *tok, *pos, *slot, *out_row; /* (max_row)   */
    int32_t *seq_start;                  /* (n_seq + 1) */
    uint64_t random;
};

/* Reserves the model's KV cache for all of them. */
enum nyb_code bench_seqs_open(struct bench_seqs *s, struct model *m, int n_seq, int max_len, int max_row,
                              struct nyb_err *err) NYB_MUST_CHECK;
void bench_seqs_close(struct bench_seqs *s);
/* The tokens that follow are a function of the seed. */
void bench_seqs_seed(struct bench_seqs *s, uint64_t seed);

/* n random tokens for each of n_seq sequences from `first` on, at positions n_past .. n_past + n - 1, with
 * the logits of each one's last token if wanted. n_seq * n <= max_row. Points into s until the next call. */
struct batch bench_seqs_batch(struct bench_seqs *s, int first, int n_seq, int n_past, int n, bool logits);

/* Tokens whose keys and values are missing below `depth`, in the first n_seq sequences. */
int64_t bench_seqs_missing(const struct bench_seqs *s, int n_seq, int depth);
/* Compute at most `chunk` of them. */
enum nyb_code bench_seqs_fill(struct bench_seqs *s, int n_seq, int depth, int chunk,
                              struct nyb_err *err) NYB_MUST_CHECK;

#endif
