/* Rows of every rank to the ranks whose experts they chose. A row goes once to each of them, as the bf16 that
 * the experts' kernels read; its choice goes to all ranks, so that everybody knows what comes: a rank waits
 * for nothing but numbers, which say by themselves that they are there (peers.h). In a buffer a rank's rows
 * follow each other; in the area for all together are, of each rank, a sign that it is here, and choices.
 *
 * A warp moves a part of a row. Some of the blocks send and wait for nothing but, at the end, signs, and all
 * run at once, on every rank. What a launch has to know is asked for all at once, before anything is looked
 * at: few rows take the time of what follows one another, not of what is moved. */
#include "kernels/cuda/plugin/dispatch_receive.cuh"
#include "kernels/cuda/plugin/dispatch_send.cuh"

/* Clerks made few rows slower: other code, which has to be fetched first, too. */
static constexpr spread_form FORM = {50, 0};

static __global__ void __launch_bounds__(SPREAD_THREADS, 1)
    dispatch_kernel(const __grid_constant__ cuda_dispatch a, const __grid_constant__ peer_memory p,
                    const spread_launch l)
{
    /* counts and places are there before the launch in front of this one begins */
    const peer_now now = peer_look(p);
    const row_layout row = layout_of(a);
    const spread_role role = spread_role_of(l, FORM.clerks);
    if (spread_is_empty(a.rows, l, p.size)) {
        gpu_wait_before();
        if (l.first == 0 && a.expert)
            clear_rest(a, p.size);
    } else if (role.sends) {
        send_all(a, p, l, row, role, now);
    } else {
        receive_all(a, p, l, row, role, now);
    }
}

const char *dispatch_start(const struct cuda_op *op, const struct op_place *at)
{
    const struct cuda_dispatch *a = &op->as.dispatch;
    const char *why = peers_check(at);
    if (!why)
        why = spread_check(op, &a->rows, a->expert ? a->first : nullptr, at->peers->memory.size);
    if (why)
        return why;
    if (a->n < 8 || a->n % 8 || a->n > (1 << 20) || (a->expert && (a->n_used < 1 || a->n_used > 1024)))
        return "dispatch: rows of a multiple of 8, and 1 to 1024 experts for each";
    const struct peer_memory *p = &at->peers->memory;
    const row_layout row = layout_of(*a);
    const int rows = (int)(p->slot / (uint32_t)row.x_fours),
              choices = row.id_fours ? (int)((p->slot - 1) / (uint32_t)row.id_fours) : rows,
              in_slot = min(rows, choices);
    if (in_slot == 0)
        return "dispatch: a row does not fit a peer's buffer";
    for (int first = 0; first < op->n_row && !why; first += in_slot) {
        spread_launch l = {first, min(in_slot, op->n_row - first), 0};
        const size_t units = (size_t)l.n_row * (size_t)row.n_part;
        const spread_grid grid = spread_grid_for(FORM, units, units * (size_t)max(p->size - 1, 1), at, &l);
        why = gpu_why(
            gpu_launch_resident(dispatch_kernel, grid.blocks, grid.threads, 0, at->stream, *a, *p, l));
    }
    return why;
}

cudaError_t dispatch_load(void)
{
    return gpu_load_kernel(dispatch_kernel);
}
