#include "engine/tally.h"

#include "base/mem.h"

static const double tokens[] = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
static const double seconds[] = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                 0.5,    1,     2.5,    5,     10,   25,    50,   100, 250};
_Static_assert(COUNT_OF(tokens) <= NYB_BUCKET_MAX && COUNT_OF(seconds) <= NYB_BUCKET_MAX,
               "a histogram has room for its bounds");

void tally_init_tokens(struct tally *t)
{
    *t = (struct tally){.bound = tokens, .n_bound = COUNT_OF(tokens)};
}

void tally_init_seconds(struct tally *t)
{
    *t = (struct tally){.bound = seconds, .n_bound = COUNT_OF(seconds)};
}

void tally_add(struct tally *t, double x)
{
    int i = 0;
    while (i < t->n_bound && x > t->bound[i])
        i++;
    atomic_fetch_add_explicit(&t->count[i], 1, memory_order_relaxed);
    /* One writer: nothing can come between. */
    double sum = atomic_load_explicit(&t->sum, memory_order_relaxed);
    atomic_store_explicit(&t->sum, sum + x, memory_order_relaxed);
}

void tally_read(const struct tally *t, struct nyb_histogram *out)
{
    *out = (struct nyb_histogram){
        .bound = t->bound, .n_bound = t->n_bound, .sum = atomic_load_explicit(&t->sum, memory_order_relaxed)};
    for (int i = 0; i <= t->n_bound; i++)
        out->count[i] = atomic_load_explicit(&t->count[i], memory_order_relaxed);
}
