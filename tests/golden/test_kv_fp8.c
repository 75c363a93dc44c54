/* The FP8 KV cache from the checkpoint to the answer: the scales in all their spellings, the dtype that
 * `auto` picks, and logits against a forward pass in float64 whose keys and values are rounded to e4m3. */
#include <math.h>

#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "fp4/fp4.h"
#include "golden/golden_data.h"
#include "model/weights.h"
#include "nybble.h"
#include "unit/ckpt_files.h"

#define GOLDEN NYBBLE_SHARED_DIR "/golden/qwen3_moe-modelopt" /* declares an FP8 cache, with scales */

enum { N_TOK_MAX = 24, LAYERS = 3 };

static bool have_golden(void)
{
    return file_exists(GOLDEN "/config.json");
}

/* ---- a checkpoint with other scales ------------------------------------------------------------------ */

struct raw_file {
    uint8_t *byte;
    size_t n;
};

static struct raw_file slurp(const char *path)
{
    struct raw_file r = {0};
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    r.n = (size_t)ftell(f);
    rewind(f);
    r.byte = mem_alloc(r.n + 1, 1);
    assert_int_equal(fread(r.byte, 1, r.n, f), r.n);
    fclose(f);
    return r;
}

static void copy_in(const char *folder, const char *name)
{
    char *path = path_join(GOLDEN, name);
    struct raw_file r = slurp(path);
    folder_write(folder, name, r.byte, r.n);
    free(r.byte);
    free(path);
}

/* How one variant spells the scales: %d is the layer; NULL: none. */
struct spelling {
    const char *k, *v;
    bool bf16; /* and in two bytes, as compressed-tensors stores them */
};

/* Make a bf16 of a float32 by its upper half; the lower one becomes a tensor that nobody knows. */
static void halve(json_t *tensor, json_t *header, const char *key)
{
    json_t *at = json_object_get(tensor, "data_offsets");
    json_int_t begin = json_integer_value(json_array_get(at, 0));
    char *name = mem_printf("%s.lower", key);
    json_object_set_new(tensor, "dtype", json_string("BF16"));
    json_object_set_new(header, name,
                        json_pack("{s:s, s:[], s:[i,i]}", "dtype", "BF16", "shape", "data_offsets",
                                  (int)begin, (int)begin + 2));
    json_array_set_new(at, 0, json_integer(begin + 2));
    free(name);
}

/* The header with the scales renamed, and cut to their upper halves where they become bf16. */
static char *respell(const char *header, const struct spelling *s)
{
    json_t *old = json_loads(header, 0, NULL), *new = json_object(), *tensor;
    const char *key;
    assert_non_null(old);
    json_object_foreach(old, key, tensor)
    {
        int layer = 0;
        const char *to = NULL;
        bool k = strstr(key, "k_proj.k_scale") != NULL, scale = k || strstr(key, "v_proj.v_scale");
        if (scale) {
            assert_int_equal(sscanf(key, "model.layers.%d.", &layer), 1);
            to = k ? s->k : s->v;
            to = to ? to : k ? "self_attn.forgotten_k" : "self_attn.forgotten_v";
        }
        if (scale && s->bf16)
            halve(tensor, new, key);
        char *name = scale ? mem_printf("model.layers.%d.%s", layer, to) : mem_strdup(key);
        json_object_set(new, name, tensor);
        free(name);
    }
    char *text = json_dumps(new, JSON_COMPACT);
    json_decref(old);
    json_decref(new);
    return text;
}

/* The golden checkpoint in a folder of its own, respelled. declared: in hf_quant_config.json, or "null". */
static char *make_variant(const struct spelling *s, const char *declared)
{
    char *folder = folder_make();
    static const char *const same[] = {"config.json", "generation_config.json", "tokenizer.json",
                                       "tokenizer_config.json"};
    for (size_t i = 0; i < COUNT_OF(same); i++)
        copy_in(folder, same[i]);
    char *quant = mem_printf("{\"producer\":{\"name\":\"modelopt\",\"version\":\"0.33.0\"},\"quantization\":"
                             "{\"quant_algo\":\"NVFP4\",\"kv_cache_quant_algo\":%s,\"group_size\":16,"
                             "\"exclude_modules\":[\"lm_head\",\"model.layers.*.mlp.gate\"]}}",
                             declared);
    folder_write_text(folder, "hf_quant_config.json", quant);
    free(quant);
    struct raw_file r = slurp(GOLDEN "/model.safetensors");
    uint64_t n_header = 0;
    for (int i = 7; i >= 0; i--)
        n_header = n_header << 8 | r.byte[i];
    char *old = mem_strndup((const char *)r.byte + 8, n_header), *header = respell(old, s);
    struct buf b = {0};
    uint64_t n = strlen(header);
    for (int i = 0; i < 8; i++)
        buf_add_byte(&b, (char)(n >> (8 * i) & 255));
    buf_add(&b, header, n);
    buf_add(&b, r.byte + 8 + n_header, r.n - 8 - n_header);
    folder_write(folder, "model.safetensors", b.data, b.len);
    buf_free(&b);
    free(old);
    free(header);
    free(r.byte);
    return folder;
}

static struct model *open_kv(const char *folder, enum compute compute, int kv_type)
{
    struct nyb_err err;
    struct model *m;
    const struct model_options o = {.folder = folder, .compute = compute, .n_thread = 2, .kv_type = kv_type};
    golden_must(model_open(&m, &o, &err), &err);
    return m;
}

/* fp32 of the golden file's scales, from the bytes that make_variant copies. */
static void golden_scales(float k[LAYERS], float v[LAYERS])
{
    struct model *m = open_kv(GOLDEN, COMPUTE_BF16, MODEL_KV_DECLARED);
    for (int i = 0; i < LAYERS; i++) {
        k[i] = model_weights(m)->layer[i].k_scale;
        v[i] = model_weights(m)->layer[i].v_scale;
        assert_true(k[i] > 0 && k[i] < 0.1f && v[i] > 0 && v[i] < 0.1f && k[i] != v[i]);
    }
    model_close(m);
}

static uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof(u));
    return u;
}

static void test_kv_scales_in_every_spelling(void **state)
{
    (void)state;
    if (!have_golden())
        skip();
    static const struct spelling table[] = {
        {"self_attn.k_proj.k_scale", "self_attn.v_proj.v_scale", false}, /* ModelOpt           */
        {"self_attn.k_scale", "self_attn.v_scale", false},
        {"self_attn.k_scale", "self_attn.v_scale", true}, /* compressed-tensors */
        {"self_attn.attn.k_scale", "self_attn.attn.v_scale", false},
        {"self_attn.qkv_proj.k_scale", "self_attn.qkv_proj.v_scale", false},
        {"self_attn.kv_scale", NULL, false}, /* one for both       */
        {NULL, NULL, false},                 /* declared, not stored */
    };
    float k[LAYERS], v[LAYERS];
    golden_scales(k, v);
    for (size_t t = 0; t < COUNT_OF(table); t++) {
        char *folder = make_variant(&table[t], "\"FP8\"");
        struct model *m = open_kv(folder, COMPUTE_BF16, MODEL_KV_DECLARED);
        assert_int_equal(model_kv_type(m), KV_FP8);
        for (int i = 0; i < LAYERS; i++) {
            const struct layer_weights *l = &model_weights(m)->layer[i];
            uint32_t want_k = bits_of(table[t].k ? k[i] : 1), want_v = table[t].v ? bits_of(v[i]) : want_k;
            uint32_t kept = table[t].bf16 ? 0xffff0000u : 0xffffffffu; /* as halve() cuts them */
            assert_int_equal(bits_of(l->k_scale), want_k & kept);
            assert_int_equal(bits_of(l->v_scale), want_v & kept);
        }
        model_close(m);
        folder_drop(folder);
    }
}

static enum nyb_kv_dtype dtype_of(const char *folder, enum nyb_kv_dtype asked, enum nyb_compute compute,
                                  uint64_t *block_bytes)
{
    struct nyb_options o;
    struct nyb_engine *e;
    struct nyb_err err;
    nyb_options_init(&o);
    o.model = folder;
    o.kv_dtype = asked;
    o.compute = compute;
    o.threads = 1;
    o.max_num_seqs = 2;
    golden_must(nyb_open(&e, &o, &err), &err);
    const struct nyb_info *info = nyb_engine_info(e);
    enum nyb_kv_dtype got = info->kv_dtype;
    *block_bytes = info->kv_bytes / (uint64_t)info->kv_blocks;
    nyb_close(e);
    return got;
}

static void test_kv_auto_follows_the_declaration(void **state)
{
    (void)state;
    if (!have_golden())
        skip();
    static const struct spelling as_is = {"self_attn.k_proj.k_scale", "self_attn.v_proj.v_scale", false};
    uint64_t fp8, bf16, f32, other;
    char *folder = make_variant(&as_is, "\"fp8\"");
    assert_int_equal(dtype_of(folder, NYB_KV_AUTO, NYB_COMPUTE_BF16, &fp8), NYB_KV_FP8);
    assert_int_equal(dtype_of(folder, NYB_KV_AUTO, NYB_COMPUTE_INT8, &other), NYB_KV_FP8);
    assert_int_equal(dtype_of(folder, NYB_KV_AUTO, NYB_COMPUTE_STRICT, &f32), NYB_KV_F32);
    assert_int_equal(dtype_of(folder, NYB_KV_BF16, NYB_COMPUTE_BF16, &bf16), NYB_KV_BF16);
    assert_int_equal(4 * fp8, f32);
    assert_in_range(bf16, f32 / 2, f32 / 2 + f32 / 16); /* integer keys have units besides */
    folder_drop(folder);
    folder = make_variant(&as_is, "null"); /* scales alone declare nothing */
    assert_int_equal(dtype_of(folder, NYB_KV_AUTO, NYB_COMPUTE_BF16, &other), NYB_KV_BF16);
    assert_int_equal(dtype_of(folder, NYB_KV_FP8, NYB_COMPUTE_BF16, &other), NYB_KV_FP8);
    folder_drop(folder);
}

/* ---- the model in float64 ----------------------------------------------------------------------------- */

/* Of a Qwen3-MoE: what transformers computes, one token after another. */
struct reference {
    const struct model_config *c;
    const struct weights *w;
    bool fp8;      /* round keys and values to e4m3 under the scales */
    double *k, *v; /* (LAYERS, N_TOK_MAX, kv) */
};

static void product(const struct weight *w, const double *x, double *y)
{
    float *row = mem_alloc((size_t)w->k, sizeof(*row));
    for (int i = 0; i < w->n; i++) {
        weight_row_to_float(w, i, row);
        y[i] = 0;
        for (int j = 0; j < w->k; j++)
            y[i] += (double)row[j] * x[j];
    }
    free(row);
}

static void norm(const double *x, const float *weight, int n, double eps, double *y)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += x[i] * x[i];
    double r = 1 / sqrt(sum / n + eps);
    for (int i = 0; i < n; i++)
        y[i] = x[i] * r * (double)weight[i];
}

/* Norm of each head, then the rotation by halves. */
static void rotate(const struct model_config *c, double *x, int n_head, const float *weight, int pos)
{
    int d = c->head_dim, half = d / 2;
    for (int h = 0; h < n_head; h++) {
        double *head = x + (size_t)h * (size_t)d;
        norm(head, weight, d, (double)c->norm_eps, head);
        for (int i = 0; i < half; i++) {
            double angle = pos * pow(c->rope.theta, -2.0 * i / d), a = head[i], b = head[i + half];
            head[i] = a * cos(angle) - b * sin(angle);
            head[i + half] = b * cos(angle) + a * sin(angle);
        }
    }
}

static double cached(double x, float scale)
{
    return (double)fp4_e4m3_value[fp4_e4m3_from_float((float)x * (1.0f / scale))] * (double)scale;
}

static void attend(const struct reference *r, int layer, int pos, const double *q, double *y)
{
    const struct model_config *c = r->c;
    int d = c->head_dim, kv = c->n_kv_head * d;
    const double *all_k = r->k + (size_t)layer * N_TOK_MAX * (size_t)kv;
    const double *all_v = r->v + (size_t)layer * N_TOK_MAX * (size_t)kv;
    for (int h = 0; h < c->n_head; h++) {
        int from = h / (c->n_head / c->n_kv_head) * d;
        double p[N_TOK_MAX], max = -INFINITY, sum = 0;
        for (int t = 0; t <= pos; t++) {
            p[t] = 0;
            for (int i = 0; i < d; i++)
                p[t] += q[h * d + i] * all_k[t * kv + from + i];
            p[t] *= (double)c->attention_scale;
            max = fmax(max, p[t]);
        }
        for (int t = 0; t <= pos; t++)
            sum += p[t] = exp(p[t] - max);
        for (int i = 0; i < d; i++) {
            y[h * d + i] = 0;
            for (int t = 0; t <= pos; t++)
                y[h * d + i] += p[t] / sum * all_v[t * kv + from + i];
        }
    }
}

static void run_attention(struct reference *r, int layer, int pos, const double *x, double *y)
{
    const struct model_config *c = r->c;
    const struct layer_weights *l = &r->w->layer[layer];
    int kv = c->n_kv_head * c->head_dim;
    double q[1024], out[1024];
    double *k = r->k + ((size_t)layer * N_TOK_MAX + (size_t)pos) * (size_t)kv;
    double *v = r->v + ((size_t)layer * N_TOK_MAX + (size_t)pos) * (size_t)kv;
    assert_true(c->n_head * c->head_dim <= 1024);
    product(&l->q.w, x, q);
    product(&l->k.w, x, k);
    product(&l->v.w, x, v);
    rotate(c, q, c->n_head, l->q_norm, pos);
    rotate(c, k, c->n_kv_head, l->k_norm, pos);
    for (int i = 0; r->fp8 && i < kv; i++) {
        k[i] = cached(k[i], l->k_scale);
        v[i] = cached(v[i], l->v_scale);
    }
    attend(r, layer, pos, q, out);
    product(&l->o.w, out, y);
}

static void add_expert(const struct mlp *e, double weight, const double *x, int hidden, double *y)
{
    double gate[1024], up[1024], out[1024];
    assert_true(e->gate.w.n <= 1024 && hidden <= 1024);
    product(&e->gate.w, x, gate);
    product(&e->up.w, x, up);
    for (int i = 0; i < e->gate.w.n; i++)
        gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
    product(&e->down.w, gate, out);
    for (int i = 0; i < hidden; i++)
        y[i] += weight * out[i];
}

/* Softmax over all experts, the best top_k, their weights normalized to 1. */
static void run_experts(const struct reference *r, int layer, const double *x, double *y)
{
    const struct moe_config *m = &r->c->moe;
    const struct layer_weights *l = &r->w->layer[layer];
    double logit[64], chosen[8], sum = 0;
    int expert[8];
    assert_true(m->n_expert <= 64 && m->top_k <= 8 && m->normalize);
    product(&l->router, x, logit);
    for (int i = 0; i < m->top_k; i++) {
        int best = 0;
        for (int e = 1; e < m->n_expert; e++)
            if (logit[e] > logit[best])
                best = e;
        expert[i] = best;
        chosen[i] = exp(logit[best]);
        logit[best] = -INFINITY;
        sum += chosen[i];
    }
    memset(y, 0, (size_t)r->c->hidden * sizeof(*y));
    for (int i = 0; i < m->top_k; i++)
        add_expert(&l->expert[expert[i]], chosen[i] / sum, x, r->c->hidden, y);
}

/* logits: (n, vocab) */
static void run_reference(const struct model *m, bool fp8, const int32_t *tok, int n, float *logits)
{
    struct reference r = {.c = model_config(m), .w = model_weights(m), .fp8 = fp8};
    int hidden = r.c->hidden;
    size_t cache = (size_t)LAYERS * N_TOK_MAX * (size_t)(r.c->n_kv_head * r.c->head_dim);
    assert_int_equal(r.c->n_layer, LAYERS);
    r.k = mem_alloc(cache, sizeof(double));
    r.v = mem_alloc(cache, sizeof(double));
    double *x = mem_alloc((size_t)hidden, sizeof(double)), *y = mem_alloc((size_t)hidden, sizeof(double));
    double *h = mem_alloc((size_t)hidden, sizeof(double)),
           *out = mem_alloc((size_t)r.c->vocab, sizeof(double));
    float *row = mem_alloc((size_t)hidden, sizeof(float));
    double eps = (double)r.c->norm_eps;
    for (int pos = 0; pos < n; pos++) {
        weight_row_to_float(&r.w->embed, tok[pos], row);
        for (int i = 0; i < hidden; i++)
            x[i] = (double)row[i];
        for (int layer = 0; layer < LAYERS; layer++) {
            norm(x, r.w->layer[layer].attention_norm, hidden, eps, h);
            run_attention(&r, layer, pos, h, y);
            for (int i = 0; i < hidden; i++)
                x[i] += y[i];
            norm(x, r.w->layer[layer].mlp_norm, hidden, eps, h);
            run_experts(&r, layer, h, y);
            for (int i = 0; i < hidden; i++)
                x[i] += y[i];
        }
        norm(x, r.w->final_norm, hidden, eps, h);
        product(&r.w->head, h, out);
        for (int i = 0; i < r.c->vocab; i++)
            logits[(size_t)pos * (size_t)r.c->vocab + (size_t)i] = (float)out[i];
    }
    free(r.k);
    free(r.v);
    free(x);
    free(y);
    free(h);
    free(out);
    free(row);
}

/* Three sets of logits: ours over an FP8 cache, float64 with e4m3 keys and values, float64 without rounding.
 *
 * The first two should differ by what fp32 does to a sum (1e-6) and by what the attention kernels do to
 * queries and probabilities, which they take in bf16 beside an FP8 cache: 2^-9, against 2^-4 of e4m3. So the
 * error is measured in units of the effect of the rounding itself, which is the distance of the last two:
 * about an eighth of that comes from bf16. Both may tip the choice of an expert, which changes all logits of
 * that token: hence the median over positions. A scale that is off by a binade, a value read as its
 * neighbour, or a missing rounding make the error as large as the effect or larger. */
static void test_kv_fp8_logits_are_those_of_e4m3_keys_and_values(void **state)
{
    (void)state;
    if (!have_golden())
        skip();
    struct golden_data g;
    golden_open(&g, GOLDEN);
    struct golden_ids ids = {.id = g.prompt.id, .n = g.prompt.n < N_TOK_MAX ? g.prompt.n : N_TOK_MAX};
    struct model *m = open_kv(GOLDEN, COMPUTE_STRICT, KV_FP8);
    size_t n = (size_t)ids.n * (size_t)g.vocab;
    float *ours = golden_logits(m, &ids, NULL);
    float *rounded = mem_alloc(n, sizeof(float)), *exact = mem_alloc(n, sizeof(float));
    run_reference(m, true, ids.id, ids.n, rounded);
    run_reference(m, false, ids.id, ids.n, exact);
    assert_true(golden_error(exact, g.logits, n) < 1e-3); /* the reference itself is transformers' */
    double effect = golden_median(rounded, exact, ids.n, g.vocab);
    double error = golden_median(ours, rounded, ids.n, g.vocab);
    print_message("%d tokens: e4m3 changes the logits by %.2e, ours differ from that by %.2e\n", ids.n,
                  effect, error);
    assert_true(effect > 1e-3);
    assert_true(error < effect / 3);
    /* The first token attends to itself alone, whatever the query: only its value is rounded. */
    assert_true(golden_error(ours, rounded, (size_t)g.vocab) < 1e-5);
    assert_true(golden_error(rounded, exact, (size_t)g.vocab) > 1e-2);
    model_close(m);
    free(ours);
    free(rounded);
    free(exact);
    golden_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kv_scales_in_every_spelling),
        cmocka_unit_test(test_kv_auto_follows_the_declaration),
        cmocka_unit_test(test_kv_fp8_logits_are_those_of_e4m3_keys_and_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
