#include "model/checksum.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/mem.h"
#include "model/checksum_sum.h"
#include "model/model_state.h"

/* ---- tensors and the total ----------------------------------------------------------------------- */

static void add_number(struct buf *b, const void *number, size_t bytes)
{
    buf_add(b, number, bytes); /* little-endian, as every machine that this runs on */
}

static const char *type_name(int type)
{
    if (type == PART_VECTOR)
        return "vector";
    return type == PART_NUMBERS ? "f32" : weight_type_name((enum weight_type)type);
}

static void finish(struct checksum_tensor *t, const struct checksum_part *p, struct checksum_hash sum)
{
    struct buf b = {0};
    *t = (struct checksum_tensor){
        .name = mem_strdup(p->name), .type = type_name(p->type), .n = p->n_whole, .k = p->k_whole};
    buf_add(&b, t->name, strlen(t->name) + 1);
    buf_add(&b, t->type, strlen(t->type) + 1);
    add_number(&b, &t->n, sizeof(t->n));
    add_number(&b, &t->k, sizeof(t->k));
    add_number(&b, &sum.low, sizeof(sum.low));
    add_number(&b, &sum.high, sizeof(sum.high));
    add_number(&b, &p->global_scale, sizeof(p->global_scale));
    add_number(&b, &p->input_scale, sizeof(p->input_scale));
    XXH128_hash_t h = XXH3_128bits(b.data, b.len);
    t->hash = (struct checksum_hash){h.low64, h.high64};
    buf_free(&b);
}

static void finish_total(struct checksum *c)
{
    struct buf b = {0};
    for (int i = 0; i < c->n_tensor; i++) {
        buf_add(&b, c->tensor[i].name, strlen(c->tensor[i].name) + 1);
        add_number(&b, &c->tensor[i].hash.low, sizeof(uint64_t));
        add_number(&b, &c->tensor[i].hash.high, sizeof(uint64_t));
    }
    XXH128_hash_t h = XXH3_128bits(b.data, b.len);
    c->total = (struct checksum_hash){h.low64, h.high64};
    buf_free(&b);
}

/* ---- parts of several ranks ---------------------------------------------------------------------- */

/* By name, and then so that copies are neighbours; those with nothing in them come first. */
static int by_place(const void *a, const void *b)
{
    const struct checksum_part *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    const int pair[][2] = {
        {x->n && x->k, y->n && y->k}, {x->row, y->row}, {x->column, y->column}, {x->n, y->n}, {x->k, y->k}};
    for (size_t i = 0; i < COUNT_OF(pair) && !order; i++)
        order = (pair[i][0] > pair[i][1]) - (pair[i][0] < pair[i][1]);
    return order;
}

static bool same_place(const struct checksum_part *x, const struct checksum_part *y)
{
    return x->row == y->row && x->n == y->n && x->column == y->column && x->k == y->k;
}

/* Scales belong to the whole parameter, whoever has how much of it. */
static bool same_facts(const struct checksum_part *x, const struct checksum_part *y)
{
    return x->type == y->type && x->n_whole == y->n_whole && x->k_whole == y->k_whole &&
           !memcmp(&x->global_scale, &y->global_scale, sizeof(float)) &&
           !memcmp(&x->input_scale, &y->input_scale, sizeof(float));
}

/* All n parts of one parameter. */
static enum nyb_code merge_parameter(struct checksum_tensor *t, const struct checksum_part *p, int n,
                                     struct nyb_err *err)
{
    struct checksum_hash sum = {0};
    int64_t covered = 0;
    for (int i = 0; i < n; i++) {
        bool copy = i > 0 && same_place(&p[i], &p[i - 1]);
        if (!same_facts(&p[i], &p[0]) ||
            (copy && (p[i].sum.low != p[i - 1].sum.low || p[i].sum.high != p[i - 1].sum.high)))
            return err_at(
                err, NYB_E_INTERNAL, p[i].name, -1,
                "the ranks that share it do not hold the same numbers: rows from %d, columns from %d",
                p[i].row, p[i].column);
        if (copy)
            continue;
        covered += (int64_t)p[i].n * p[i].k;
        checksum_add(&sum, p[i].sum);
    }
    if (covered != (int64_t)p->n_whole * p->k_whole)
        return err_at(err, NYB_E_INTERNAL, p->name, -1,
                      "the ranks have %lld elements of it, expected the %lld of its shape",
                      (long long)covered, (long long)p->n_whole * p->k_whole);
    finish(t, p, sum);
    return NYB_OK;
}

enum nyb_code checksum_merge(struct checksum *out, struct checksum_parts *parts, struct nyb_err *err)
{
    *out = (struct checksum){0};
    out->tensor = mem_alloc((size_t)parts->n, sizeof(*out->tensor));
    qsort(parts->part, (size_t)parts->n, sizeof(*parts->part), by_place);
    for (int i = 0, end; i < parts->n; i = end) {
        for (end = i + 1; end < parts->n && !strcmp(parts->part[end].name, parts->part[i].name);)
            end++;
        enum nyb_code code = merge_parameter(&out->tensor[out->n_tensor], &parts->part[i], end - i, err);
        if (code != NYB_OK) {
            checksum_free(out);
            return code;
        }
        out->n_tensor++;
    }
    finish_total(out);
    return NYB_OK;
}

/* ---- a folder ------------------------------------------------------------------------------------ */

/* What opening a model needs of a folder. */
struct folder {
    struct hfconfig hf;
    struct model_config config;
    struct quant *quant;
    struct ckpt *ckpt;
    struct weights weights;
    float *kv_scale; /* (2, n_layer) */
};

static enum nyb_code open_folder(struct folder *f, const char *path, struct nyb_err *err)
{
    TRY(hfconfig_open(&f->hf, path, err));
    TRY(model_config_parse(&f->config, &f->hf, err));
    shard_set(&f->config.shard, 0, 1, f->config.n_head, f->config.n_kv_head);
    TRY(quant_parse(&f->quant, f->hf.root, path, err));
    TRY(ckpt_open(&f->ckpt, path, 0, err));
    weights_declare(&f->weights, &f->config, weights_own_head(&f->config, f->ckpt));
    TRY(source_resolve(&f->weights.slots, f->ckpt, f->quant, NULL, err));
    int n = f->config.n_layer;
    f->kv_scale = mem_alloc(2 * (size_t)n, sizeof(float));
    for (int i = 0; i < 2 * n; i++)
        f->kv_scale[i] = 1;
    TRY(weights_read_kv_scales(f->kv_scale, f->kv_scale + n, &f->config, f->ckpt, NULL, NULL, err));
    for (int i = 0; i < n; i++) {
        f->weights.layer[i].k_scale = f->kv_scale[i];
        f->weights.layer[i].v_scale = f->kv_scale[n + i];
    }
    return NYB_OK;
}

enum nyb_code checksum_folder(struct checksum *out, const char *folder, int n_thread, struct nyb_err *err)
{
    struct folder f = {0};
    struct checksum_parts parts = {0};
    *out = (struct checksum){0};
    enum nyb_code code = open_folder(&f, folder, err);
    if (code == NYB_OK)
        code = checksum_sum(&parts, &f.weights, f.ckpt, n_thread, err);
    if (code == NYB_OK)
        code = checksum_merge(out, &parts, err);
    free(parts.part);
    free(f.kv_scale);
    weights_free(&f.weights);
    ckpt_close(f.ckpt);
    quant_free(f.quant);
    model_config_free(&f.config);
    hfconfig_close(&f.hf);
    return code;
}

/* ---- results ------------------------------------------------------------------------------------- */

void checksum_free(struct checksum *c)
{
    for (int i = 0; i < c->n_tensor; i++)
        free(c->tensor[i].name);
    free(c->tensor);
    *c = (struct checksum){0};
}

char *checksum_text(struct checksum_hash h, char text[CHECKSUM_TEXT_BYTES])
{
    snprintf(text, CHECKSUM_TEXT_BYTES, "%016llx%016llx", (unsigned long long)h.high,
             (unsigned long long)h.low);
    return text;
}

int checksum_compare(const struct checksum *a, const struct checksum *b,
                     void (*differs)(void *arg, const char *name), void *arg)
{
    int n = 0;
    for (int i = 0, j = 0; i < a->n_tensor || j < b->n_tensor;) {
        const struct checksum_tensor *x = i < a->n_tensor ? &a->tensor[i] : NULL;
        const struct checksum_tensor *y = j < b->n_tensor ? &b->tensor[j] : NULL;
        int order = !x ? 1 : !y ? -1 : strcmp(x->name, y->name);
        i += order <= 0;
        j += order >= 0;
        if (order == 0 && x->hash.low == y->hash.low && x->hash.high == y->hash.high)
            continue;
        n++;
        if (differs)
            differs(arg, order <= 0 ? x->name : y->name);
    }
    return n;
}
