#include "cli/bench_scan.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"

void bench_scan_add(struct bench_scan *s, const struct bench_scan_point *p)
{
    if (s->n == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 32;
        s->point = mem_grow(s->point, (size_t)s->cap, sizeof(*s->point));
    }
    s->point[s->n++] = *p;
}

void bench_scan_free(struct bench_scan *s)
{
    free(s->point);
    *s = (struct bench_scan){0};
}

/* The share by which point i lies under the one before it; 0 where they are no neighbours, or it does not. */
static double fall_at(const struct bench_scan *s, int i)
{
    if (i == 0)
        return 0;
    const struct bench_scan_point *a = &s->point[i - 1], *b = &s->point[i];
    if (a->threads != b->threads || a->depth != b->depth || b->batch < a->batch)
        return 0;
    double fall = 1 - b->tok_s / a->tok_s;
    return fall > 0 ? fall : 0;
}

int bench_scan_cliffs(const struct bench_scan *s)
{
    int n = 0;
    for (int i = 0; i < s->n; i++)
        n += fall_at(s, i) > BENCH_SCAN_FALL;
    return n;
}

void bench_scan_print(const struct bench_scan *s)
{
    double worst = 0;
    for (int i = 0; i < s->n; i++) {
        double fall = fall_at(s, i);
        worst = fall > worst ? fall : worst;
        if (fall > BENCH_SCAN_FALL)
            printf("cliff: %d threads, depth %d: from %d to %d sequences tokens/s fall by %.1f %%\n",
                   s->point[i].threads, s->point[i].depth, s->point[i - 1].batch, s->point[i].batch,
                   100 * fall);
    }
    if (bench_scan_cliffs(s) == 0)
        printf("no cliff: from one batch to the next tokens/s fall by %.1f %% at most (allowed: %.0f %%)\n",
               100 * worst, 100 * BENCH_SCAN_FALL);
}

json_t *bench_scan_json(const struct bench_scan *s)
{
    json_t *list = json_array();
    for (int i = 0; i < s->n; i++)
        if (fall_at(s, i) > BENCH_SCAN_FALL)
            json_array_append_new(list, json_pack("{s:i, s:i, s:i, s:i, s:f}", "threads", s->point[i].threads,
                                                  "depth", s->point[i].depth, "from", s->point[i - 1].batch,
                                                  "to", s->point[i].batch, "fall", fall_at(s, i)));
    return list;
}
