#include "kernels/checkkern_cuda_case.h"

#include "base/mem.h"
#include "kernels/cuda/cuda_load.h"

enum nyb_code checkkern_cuda_open(struct checkkern_gpu *g, struct nyb_err *err)
{
    char why[256] = "";
    g->plugin = cuda_load(err);
    if (!g->plugin)
        return NYB_E_UNSUPPORTED;
    g->gpu = g->plugin->open(0, why, sizeof(why));
    if (!g->gpu)
        return err_set(err, NYB_E_UNSUPPORTED, "%s", why);
    g->plugin->info(g->gpu, &g->info);
    return NYB_OK;
}

void checkkern_cuda_close(struct checkkern_gpu *g)
{
    g->plugin->close(g->gpu);
}

static const struct checkkern_cuda_row row_table[] = {
    // clang-format off
    {"cuda.scales", checkkern_cuda_scales},
    {"cuda.linear.nvfp4", checkkern_cuda_linear},
    {"cuda.linear.rows", checkkern_cuda_rows},
    {"cuda.linear.parts", checkkern_cuda_parts},
    {"cuda.moe.nvfp4", checkkern_cuda_moe},
    {"cuda.prefill.nvfp4", checkkern_cuda_moe_prefill},
    {"cuda.pack", checkkern_cuda_pack},
    {"cuda.embed", checkkern_cuda_embed},
    {"cuda.norm", checkkern_cuda_add_norm},
    {"cuda.dense", checkkern_cuda_dense},
    {"cuda.qkv", checkkern_cuda_qkv},
    {"cuda.qkv.rows", checkkern_cuda_qkv_rows},
    {"cuda.attention", checkkern_cuda_attention},
    {"cuda.joined", checkkern_cuda_joined},
    {"cuda.router", checkkern_cuda_router},
    {"cuda.chosen", checkkern_cuda_chosen},
    {"cuda.normed", checkkern_cuda_normed},
    {"cuda.moe.plain", checkkern_cuda_moe_plain},
    {"cuda.swiglu", checkkern_cuda_swiglu},
    {"cuda.argmax", checkkern_cuda_argmax},
    {"cuda.sample", checkkern_cuda_sample},
    {"cuda.tiles", checkkern_cuda_tiles},
    {"cuda.quantize", checkkern_cuda_quantize},
    {"cuda.linear.w4a4", checkkern_cuda_linear_w4a4},
    {"cuda.moe.w4a4", checkkern_cuda_moe_w4a4},
    {"cuda.allreduce", checkkern_cuda_all_reduce},
    {"cuda.sent", checkkern_cuda_sent},
    {"cuda.gather", checkkern_cuda_gather},
    {"cuda.lanes", checkkern_cuda_lanes},
    {"cuda.dispatch", checkkern_cuda_dispatch},
    {"cuda.lost_peer", checkkern_cuda_lost_peer},
    // clang-format on
};

int checkkern_cuda_n_row(void)
{
    return (int)COUNT_OF(row_table);
}

const struct checkkern_cuda_row *checkkern_cuda_row(int i)
{
    return &row_table[i];
}
