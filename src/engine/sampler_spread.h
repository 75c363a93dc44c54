/* The sampler's passes over one long row, by all threads of a pool: for steps with fewer rows than threads.
 * Results are those of sampler_ops.h, bit for bit, for any number of threads: pieces are whole blocks, whose
 * sums are added in the order of the row. */
#ifndef NYB_ENGINE_SAMPLER_SPREAD_H
#define NYB_ENGINE_SAMPLER_SPREAD_H

#include "base/pool.h"
#include "engine/sampler_ops.h"

#define SAMPLER_SAMPLE 4096 /* a power of two */

/* What is known of a row's logits once somebody has looked at all of them; n >= SAMPLER_SAMPLE. */
struct sampler_glance {
    float *sample; /* (SAMPLER_SAMPLE) some of them, evenly spaced: number i is x[i * n / SAMPLER_SAMPLE] */
    float *peak;   /* (sampler_blocks(n)) the largest of each block */
};

/* A pass over one row, cut into pieces that anybody may run, each once. */
#define SAMPLER_PIECES 64 /* of a row at most */
struct sampler_pass {
    const struct sampler_ops *ops;
    struct sampler_weights w;
    int piece; /* blocks of one */
    float low, high, *out;
    const struct sampler_glance *glance;
    struct sampler_sums to;
    float best[SAMPLER_PIECES]; /* of each piece */
    int at[SAMPLER_PIECES], held[SAMPLER_PIECES];
};

/* Cuts rows of p->w.n into pieces of `least` blocks or more; how many. */
int sampler_pass_cut(struct sampler_pass *p, int least);
/* Piece i of each pass, and what they come to. max: w.x, glance. weigh: w, to.all. band: w, low, high, out,
 * to.
 */
void sampler_pass_max(struct sampler_pass *p, int i);
float sampler_pass_max_of(const struct sampler_pass *p, int n_piece, int *at);
void sampler_pass_weigh(const struct sampler_pass *p, int i);
void sampler_pass_band(struct sampler_pass *p, int i);
int sampler_pass_band_of(const struct sampler_pass *p, int n_piece);

struct sampler_spread {
    const struct sampler_ops *ops;
    struct pool *pool; /* NULL: the caller alone, with ops */
};

/* The largest, as max; *glance, unless NULL: whoever looks at logits has them near. */
float sampler_spread_max(const struct sampler_spread *s, const float *x, int n, int *at,
                         const struct sampler_glance *glance);
/* The sum of the weights, and of those of each block into sum. */
double sampler_spread_weigh(const struct sampler_spread *s, const struct sampler_weights *w, double *sum);
/* As weigh_band. */
int sampler_spread_band(const struct sampler_spread *s, const struct sampler_weights *w, float low,
                        float high, float *out, const struct sampler_sums *to);
/* Of sums of blocks, those of n floats. */
double sampler_total(const double *sum, int n);

#endif
