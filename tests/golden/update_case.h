/* For tests of weights replaced in a model that stays open: attempts, and comparisons, bit for bit, with a
 * model freshly loaded. */
#ifndef NYB_TEST_UPDATE_CASE_H
#define NYB_TEST_UPDATE_CASE_H

#include "golden/golden_data.h"
#include "golden/upload.h"
#include "golden/workshop.h"

#include "model/checksum.h"
#include "model/update.h"
#include "model/weights.h"

/* Logits, every byte of the slab, all scalars and the checksum. */
static inline void assert_same_model(struct model *a, struct model *b)
{
    struct nyb_err err;
    const struct weights *x = model_weights(a), *y = model_weights(b);
    assert_int_equal(x->slots.n, y->slots.n);
    assert_int_equal(x->slots.slab.bytes, y->slots.slab.bytes);
    for (int i = 0; i < x->slots.n; i++) {
        const struct slot *s = &x->slots.slot[i], *t = &y->slots.slot[i];
        if (memcmp(slot_address(s), slot_address(t), slot_bytes(s)))
            fail_msg("%s has other bytes", s->name);
        if (s->kind == SLOT_MATRIX &&
            (memcmp(&s->weight->global_scale, &t->weight->global_scale, sizeof(float)) ||
             memcmp(&s->weight->input_scale, &t->weight->input_scale, sizeof(float))))
            fail_msg("%s has other scales", s->name);
    }
    assert_memory_equal(&x->head.global_scale, &y->head.global_scale, sizeof(float));
    float *p = golden_answer(a), *q = golden_answer(b);
    assert_memory_equal(p, q, golden_answer_bytes(a));
    free(p);
    free(q);
    struct checksum c, d;
    golden_must(checksum_model(&c, a, 1, &err), &err);
    golden_must(checksum_model(&d, b, 2, &err), &err);
    assert_int_equal(checksum_compare(&c, &d, NULL, NULL), 0);
    assert_memory_equal(&c.total, &d.total, sizeof(c.total));
    checksum_free(&c);
    checksum_free(&d);
}

static inline void assert_is_folder(struct model *m, const char *folder)
{
    struct model *fresh = golden_model(folder, COMPUTE_BF16, 2);
    assert_same_model(m, fresh);
    model_close(fresh);
}

struct attempt {
    struct update_facts facts;
    struct nyb_err err;
    enum update_state state;
    const char *phase; /* that failed, NULL: none */
};

/* All phases; the code of the one that failed. */
static inline enum nyb_code try_update(struct model *m, const struct update_options *o, struct attempt *a)
{
    struct update *u;
    *a = (struct attempt){.phase = "prepare"};
    enum nyb_code code = update_prepare(&u, m, o, &a->facts, &a->err);
    if (code != NYB_OK) {
        assert_null(u);
        return code;
    }
    a->phase = "stage";
    code = update_stage(u, &a->err);
    if (code == NYB_OK) {
        a->phase = "commit";
        code = update_commit(u, &a->err);
    }
    a->state = update_state(u);
    a->phase = code == NYB_OK ? NULL : a->phase;
    update_close(u);
    return code;
}

static inline void must_update(struct model *m, const char *folder, enum update_staging staging)
{
    const struct update_options o = {.folder = folder, .staging = staging};
    struct attempt a;
    uint64_t generation = model_weights_generation(m);
    golden_must(try_update(m, &o, &a), &a.err);
    assert_int_equal(a.state, UPDATE_NEW);
    assert_int_equal(a.facts.staged, staging != UPDATE_STAGING_OFF);
    assert_int_equal(model_weights_generation(m), generation + 1);
    assert_int_equal(a.facts.n_tensor, model_weights(m)->slots.n);
    assert_int_equal(a.facts.weight_bytes, model_weight_bytes(m));
    assert_true(a.facts.read_bytes > 0);
}

#endif
