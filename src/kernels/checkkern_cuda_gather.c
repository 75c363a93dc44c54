/* Columns of all ranks side by side on rank 0. */
#include <string.h>

#include "kernels/checkkern_cuda_peers.h"

/* 4 columns beyond what a rank of PEERS_N floats could hold never come up: rows are few. */
static bool gather_case(struct peers_case *c, struct checkkern_report *report)
{
    int size = c->group.size, n_row = checkkern_int(&c->seed, 1, PEERS_ROWS), first[CUDA_PEERS_MAX + 1] = {0};
    c->count = checkkern_int(&c->seed, 1, n_row);
    peers_randomize(c);
    for (int r = 0; r < size; r++) {
        int columns = checkkern_int(&c->seed, 0, PEERS_N / size);
        first[r + 1] = first[r] + (checkkern_int(&c->seed, 0, 1) ? columns / 16 * 16 : columns);
    }
    if (first[size] == 0)
        first[size] = 1;
    for (int r = 0; r < size; r++) {
        struct cuda_op *op = &c->op[r][0];
        *op = (struct cuda_op){.kind = CUDA_OP_GATHER, .n_row = n_row, .count = c->at[r].count};
        op->as.gather = (struct cuda_gather){.x = c->at[r].delta[0], .out = r ? NULL : c->at[r].sum};
        memcpy(op->as.gather.first, first, sizeof(first));
    }
    c->n_op = 1;
    if (!peers_run(c, report))
        return false;
    bool ok = true;
    for (int t = 0; t < c->count && ok; t++)
        for (int r = 0; r < size && ok; r++)
            for (int j = first[r]; j < first[r + 1] && ok; j++) {
                float found = c->sum[0][(size_t)t * (size_t)first[size] + (size_t)j];
                float expected =
                    c->delta[r][0][(size_t)t * (size_t)(first[r + 1] - first[r]) + (size_t)(j - first[r])];
                ok = checkkern_case(report, found == expected,
                                    "row %d, column %d of %d, rank %d's: %g, expected %g", t, j, first[size],
                                    r, (double)found, (double)expected);
            }
    for (size_t i = (size_t)c->count * (size_t)first[size]; i < PEERS_FLOATS && ok; i++)
        ok = checkkern_case(report, c->sum[0][i] == 0.0f, "element %zu was written, behind", i);
    return ok;
}

/* With sums in between: all kinds of launches take turns at the same buffers. */
static bool check_group(const struct checkkern_gpu *g, int size, bool apart, struct checkkern_report *report)
{
    struct peers_case *c = peers_case_open(g, size, apart, g->seed + 100 + (uint64_t)size, report);
    bool ok = c;
    for (int i = 0; i < g->rounds && ok; i++)
        ok = gather_case(c, report) && gather_case(c, report) && (i % 3 || peers_check_sum(c, false, report));
    peers_case_close(c, g->arena);
    return ok;
}

bool checkkern_cuda_gather(const struct checkkern_gpu *g, struct checkkern_report *report)
{
    return gpu_group_each(g, 3, check_group, report);
}
