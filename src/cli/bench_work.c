#include "cli/bench_work.h"

#include <math.h>

#include "base/cpu.h"
#include "kernels/gemm_tile.h"
#include "model/weights.h"

#define NVFP4_GROUP 16 /* elements that share a scale byte */

/* Without the padding of the layout: nobody has to read that. */
static double matrix_bytes(const struct weight *w)
{
    double row = (double)weight_row_bytes(w->type, w->k);
    if (w->type == WEIGHT_NVFP4)
        row += (double)w->k / NVFP4_GROUP;
    return row * w->n;
}

/* By the kernel that really runs: a type or mode that this level has no instructions for goes through fp32.
 */
static enum checkkern_unit unit_of(const struct weight *w, enum compute compute)
{
    switch (gemm_form_for(gemm_table_for(cpu_level()), w->type, compute)) {
    case GEMM_BF16:
    case GEMM_I16: /* its peak is what stands under bf16 at that level */
        return CHECKKERN_BF16;
    case GEMM_I8:
    case GEMM_I8B:
        return CHECKKERN_I8;
    default:
        return CHECKKERN_F32;
    }
}

/* Products of attention: in fp32 with an fp32 cache, and wherever there are none of bf16. */
static enum checkkern_unit attention_unit(enum kv_type kv)
{
    return kv == KV_F32 || cpu_level() < CPU_AVX512 ? CHECKKERN_F32 : CHECKKERN_BF16;
}

struct count {
    struct bench_work *w;
    enum compute compute;
};

/* A matrix that is read `reads` times and multiplied with `rows` rows. */
static void add_matrix(const struct count *c, const struct weight *w, double reads, double rows)
{
    c->w->weight_bytes += reads * matrix_bytes(w);
    c->w->flops[unit_of(w, c->compute)] += 2.0 * rows * w->n * w->k;
}

static void add_mlp(const struct count *c, const struct mlp *mlp, double reads, double rows)
{
    add_matrix(c, &mlp->gate.w, reads, rows);
    add_matrix(c, &mlp->up.w, reads, rows);
    add_matrix(c, &mlp->down.w, reads, rows);
}

static void add_layer(const struct count *c, const struct model_config *config, const struct layer_weights *l,
                      double n_tok, double active)
{
    const struct linear *const attention[] = {&l->q, &l->k, &l->v, &l->o};
    for (int i = 0; i < 4; i++)
        add_matrix(c, &attention[i]->w, 1, n_tok);
    if (l->mlp.gate.w.n > 0)
        add_mlp(c, &l->mlp, 1, n_tok);
    if (!l->expert)
        return;
    const struct count strict = {c->w, COMPUTE_STRICT}; /* router logits are fp32 in every mode */
    add_matrix(&strict, &l->router, 1, n_tok);
    add_mlp(c, &l->expert[0], active, n_tok * config->moe.top_k);
    c->w->n_expert += active;
}

/* Each key is multiplied with every query head's row that sees it, and so is each value. */
static void add_attention(struct bench_work *w, const struct model *m, const struct batch *b)
{
    const struct model_config *c = model_config(m);
    double keys = 0, pairs = 0;
    for (int i = 0; i < b->n_seq; i++) {
        keys += b->pos[b->seq_start[i + 1] - 1] + 1;
        for (int t = b->seq_start[i]; t < b->seq_start[i + 1]; t++)
            pairs += b->pos[t] + 1;
    }
    w->kv_bytes += keys * (double)model_kv_block_bytes(m) / KV_BLOCK;
    w->flops[attention_unit(model_kv_type(m))] += 4.0 * pairs * c->n_head * c->head_dim * c->n_layer;
}

void bench_work_add(struct bench_work *w, const struct model *m, enum compute compute, const struct batch *b,
                    const int *active)
{
    const struct weights *weights = model_weights(m);
    const struct model_config *config = model_config(m);
    const struct count c = {w, compute};
    w->n_step++;
    w->n_moe_layer = 0;
    w->weight_bytes += (double)weight_row_bytes(weights->embed.type, weights->embed.k) * b->n_tok;
    for (int i = 0; i < config->n_layer; i++) {
        add_layer(&c, config, &weights->layer[i], b->n_tok, active[i]);
        w->n_moe_layer += weights->layer[i].expert != NULL;
    }
    if (b->n_out > 0)
        add_matrix(&c, &weights->head, 1, b->n_out);
    add_attention(w, m, b);
}

double bench_work_bytes(const struct bench_work *w)
{
    return w->weight_bytes + w->kv_bytes;
}

double bench_work_flops(const struct bench_work *w)
{
    return w->flops[CHECKKERN_F32] + w->flops[CHECKKERN_BF16] + w->flops[CHECKKERN_I8];
}

double bench_work_flop_seconds(const struct bench_work *w, const struct checkkern_roof *roof)
{
    double bf16 = fmax(roof->bf16_gflops, roof->tile_gflops);
    double i8 = roof->i8_gops;
    bf16 = bf16 > 0 ? bf16 : roof->f32_gflops; /* without such instructions fp32 does it */
    i8 = i8 > 0 ? i8 : roof->f32_gflops;
    return (w->flops[CHECKKERN_F32] / roof->f32_gflops + w->flops[CHECKKERN_BF16] / bf16 +
            w->flops[CHECKKERN_I8] / i8) *
           1e-9;
}

double bench_work_bound(const struct bench_work *w, const struct checkkern_roof *roof)
{
    return fmax(bench_work_bytes(w) / (roof->read_gbs * 1e9), bench_work_flop_seconds(w, roof));
}

void bench_work_best_roof(struct checkkern_roof *best, const struct checkkern_roof *other)
{
    best->n_thread = other->n_thread;
    best->read_gbs = fmax(best->read_gbs, other->read_gbs);
    best->f32_gflops = fmax(best->f32_gflops, other->f32_gflops);
    best->bf16_gflops = fmax(best->bf16_gflops, other->bf16_gflops);
    best->i8_gops = fmax(best->i8_gops, other->i8_gops);
    best->tile_gflops = fmax(best->tile_gflops, other->tile_gflops);
}
