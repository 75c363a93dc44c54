/* MLPs and layers of experts on their way to places on a GPU: which kernels will take them, and how they lie
 * for those. */
#include "kernels/cuda/cuda_layout.h"
#include "model/device_placing.h"
#include "model/ep.h"

#define PACKED_WIDE 8192 /* longest rows that the kernels for packed experts keep in shared memory */

static bool can_pack_mlp(const struct placing *p, const struct mlp *m, bool experts)
{
    const struct device_options *o = &p->d->option;
    enum device_backend backend = experts ? o->moe_backend : o->gemm_backend;
    int inner = m->gate.w.n, hidden = m->gate.w.k;
    return (backend == DEVICE_BACKEND_AUTO || backend == DEVICE_BACKEND_SM90_W4A16) &&
           m->gate.w.type == WEIGHT_NVFP4 && m->up.w.type == WEIGHT_NVFP4 && m->down.w.type == WEIGHT_NVFP4 &&
           !placing_slot(p, &m->gate.bias) && hidden % CUDA_UNIT_K == 0 && inner % CUDA_UNIT_K == 0 &&
           hidden <= PACKED_WIDE && inner <= PACKED_WIDE;
}

/* In how many parts of the experts' size the shared experts' MLP can follow them, as more experts that every
 * row takes; 0: it is none, or does not come in such parts. Its neurons may be cut anywhere, as what they add
 * is a sum; and where they are shared out to ranks, a rank cuts its own. */
static int shared_parts(const struct placing *p, const struct layer_weights *l)
{
    const struct model_config *c = p->d->config;
    const struct mlp *m = &l->mlp;
    int inner = l->expert->gate.w.n;
    if (!c->moe.shared_intermediate || c->shard.ep_size > 1 || inner < 1 || m->gate.w.n < inner ||
        m->gate.w.n % inner || m->gate.w.k != l->expert->gate.w.k || !can_pack_mlp(p, l->expert, true) ||
        !can_pack_mlp(p, m, false))
        return 0;
    int n = m->gate.w.n / inner;
    /* One row has a kernel of its own, a lane for each place of it. */
    return n <= CUDA_EXPERTS_MAX - c->moe.n_expert && n <= 32 - c->moe.top_k ? n : 0;
}

/* n scales, and behind them so many times that of `more`. */
static float *place_scales_and(struct placing *p, const struct weight *first, size_t stride, int n,
                               const struct weight *more, int times)
{
    float *at = placing_scale_at(p, placing_scales(p, first, stride, n));
    if (times > 0)
        placing_scales(p, more, 0, times);
    return at;
}

/* n of them, and n_shared parts of `shared`. Rows of its gate and up lie in parts as they are. */
static void place_packed_mlp(struct placing *p, const struct mlp *m, int n, const struct mlp *shared,
                             int n_shared, struct device_mlp *out)
{
    size_t inner = (size_t)m->gate.w.n, hidden = (size_t)m->gate.w.k, all = (size_t)(n + n_shared);
    size_t pair = cuda_layout_bytes(2 * inner, hidden), down = cuda_layout_bytes(hidden, inner);
    out->n_expert = n + n_shared;
    out->n_shared = n_shared;
    out->gate_up = placing_take(p, all * pair, PLACING_ALIGN);
    out->packed_down = placing_take(p, all * down, PLACING_ALIGN);
    out->gate.scale = place_scales_and(p, &m->gate.w, sizeof(*m), n, &shared->gate.w, n_shared);
    out->up.scale = place_scales_and(p, &m->up.w, sizeof(*m), n, &shared->up.w, n_shared);
    out->down.scale = place_scales_and(p, &m->down.w, sizeof(*m), n, &shared->down.w, n_shared);
    if (n_shared > 0) {
        placing_put(p, &shared->gate.w, PLACE_GATE, out->gate_up + (size_t)n * pair, NULL, 1);
        placing_put(p, &shared->up.w, PLACE_UP, out->gate_up + (size_t)n * pair, NULL, 1);
        placing_put(p, &shared->down.w, PLACE_PACKED, out->packed_down + (size_t)n * down, NULL, n_shared);
    }
    for (int i = 0; i < n; i++) {
        placing_put(p, &m[i].gate.w, PLACE_GATE, out->gate_up + (size_t)i * pair, NULL, 1);
        placing_put(p, &m[i].up.w, PLACE_UP, out->gate_up + (size_t)i * pair, NULL, 1);
        placing_put(p, &m[i].down.w, PLACE_PACKED, out->packed_down + (size_t)i * down, NULL, 1);
    }
}

/* Experts whose products go through cuBLASLt. */
static bool is_w4a4(const struct placing *p, const struct mlp *m)
{
    return p->d->option.moe_backend == DEVICE_BACKEND_CUBLASLT_NVFP4 && m->gate.w.type == WEIGHT_NVFP4 &&
           m->up.w.type == WEIGHT_NVFP4 && m->down.w.type == WEIGHT_NVFP4;
}

static void place_w4a4_mlp(struct placing *p, const struct mlp *m, int n, struct device_mlp *out)
{
    if (placing_slot(p, &m->gate.bias) || placing_slot(p, &m->up.bias) || placing_slot(p, &m->down.bias))
        placing_refuse(p, &m->gate.w, "experts with biases do not go through cuBLASLt");
    out->way = MLP_W4A4;
    out->gate = placing_tiled(p, &m->gate.w, sizeof(*m), n);
    out->up = placing_tiled(p, &m->up.w, sizeof(*m), n);
    out->down = placing_tiled(p, &m->down.w, sizeof(*m), n);
    p->d->option.no_graphs = true; /* the host waits for the choice of experts within a step */
}

/* (n, width) floats: of each expert its bias. */
static float *place_biases(struct placing *p, float *const *first, int n)
{
    const struct slot *s = placing_slot(p, first);
    if (!s)
        return NULL;
    size_t bytes = (size_t)s->n * sizeof(float);
    uint8_t *data = placing_take(p, (size_t)n * bytes, PLACING_ALIGN);
    for (int i = 0; i < n; i++)
        placing_put(p, (const uint8_t *)first + (size_t)i * sizeof(struct mlp), PLACE_VECTOR,
                    data + (size_t)i * bytes, NULL, 1);
    return (float *)(void *)data;
}

/* Of experts: also n_shared parts of `shared`, which shared_parts allows. */
static void place_mlp(struct placing *p, const struct mlp *m, int n, bool experts, const struct mlp *shared,
                      int n_shared, struct device_mlp *out)
{
    *out = (struct device_mlp){.n_expert = n, .inner = m->gate.w.n};
    if (!placing_same_kind(p, &m->gate.w, sizeof(*m), n) || !placing_same_kind(p, &m->up.w, sizeof(*m), n) ||
        !placing_same_kind(p, &m->down.w, sizeof(*m), n))
        return;
    if (can_pack_mlp(p, m, experts)) {
        out->way = MLP_PACKED;
        place_packed_mlp(p, m, n, shared, n_shared, out);
        return;
    }
    if (experts && is_w4a4(p, m)) {
        place_w4a4_mlp(p, m, n, out);
        return;
    }
    if (experts) {
        if (m->up.w.type != m->gate.w.type || m->down.w.type != m->gate.w.type)
            placing_refuse(p, &m->up.w, "gate, up and down of an expert must have one type");
        out->way = MLP_PLAIN;
        out->gate = placing_plain(p, &m->gate.w, sizeof(*m), n);
        out->up = placing_plain(p, &m->up.w, sizeof(*m), n);
        out->down = placing_plain(p, &m->down.w, sizeof(*m), n);
    } else {
        out->way = MLP_LINEAR;
        out->gate = placing_matrix(p, &m->gate.w);
        out->up = placing_matrix(p, &m->up.w);
        out->down = placing_matrix(p, &m->down.w);
    }
    out->gate_bias = place_biases(p, &m->gate.bias, n);
    out->up_bias = place_biases(p, &m->up.bias, n);
    out->down_bias = place_biases(p, &m->down.bias, n);
    out->adds_bias = m->down.adds_bias;
}

void placing_dense(struct placing *p, const struct mlp *m, struct device_mlp *out)
{
    place_mlp(p, m, 1, false, m, 0, out);
}

/* The only part of the shared experts' MLP, among the experts, as that MLP. */
static struct device_mlp shared_among(const struct device_mlp *m, int hidden)
{
    size_t at = (size_t)(m->n_expert - 1), inner = (size_t)m->inner, width = (size_t)hidden;
    struct device_mlp one = *m;
    one.n_expert = 1;
    one.n_shared = 0;
    one.gate_up += at * cuda_layout_bytes(2 * inner, width);
    one.packed_down += at * cuda_layout_bytes(width, inner);
    one.gate.scale += at;
    one.up.scale += at;
    one.down.scale += at;
    return one;
}

void placing_experts(struct placing *p, const struct layer_weights *l, struct device_layer *out)
{
    const struct model_config *c = p->d->config;
    int n_shared = shared_parts(p, l);
    place_mlp(p, l->expert, ep_own_slots(&c->shard, c->moe.n_expert).count, true, &l->mlp, n_shared,
              &out->experts);
    if (c->moe.shared_intermediate && n_shared == 0)
        placing_dense(p, &l->mlp, &out->mlp);
    if (out->experts.n_shared == 1)
        out->mlp = shared_among(&out->experts, c->hidden);
}
