/* Weights replaced in a model that stays open: each outcome is compared, bit for bit, with a model freshly
 * loaded from the same folder. */
#include "golden/golden_data.h"
#include "unit/ckpt_files.h"

#include <errno.h>
#include <malloc.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "model/checksum.h"
#include "model/update.h"
#include "model/weights.h"

#define TALES  NYBBLE_SOURCE_DIR "/models/tales-24m-moe-nvfp4"
#define GOLDEN NYBBLE_SHARED_DIR "/golden/"

/* ---- folders ------------------------------------------------------------------------------------- */

static char *workshop; /* all folders that a test makes are in it */

static int make_workshop(void **state)
{
    (void)state;
    workshop = folder_make();
    return 0;
}

static int drop_workshop(void **state)
{
    (void)state;
    folder_drop(workshop);
    return 0;
}

/* A folder made by tests/tools/twin.py from another one; caller frees the name. The edits are words of a
 * shell. */
static char *twin(const char *from, const char *name, const char *edits)
{
    char *to = path_join(workshop, name);
    char *line = mem_printf("rm -rf '%s' && python3 '%s/tests/tools/twin.py' '%s' '%s' %s", to,
                            NYBBLE_SOURCE_DIR, from, to, edits);
    int rc = system(line);
    if (rc)
        fail_msg("status %d of: %s", rc, line);
    free(line);
    return to;
}

static bool is_there(const char *folder)
{
    return file_is_dir(folder);
}

#define NEED(folder)                          \
    do {                                      \
        if (!is_there(folder))                \
            skip();                           \
        if (system("python3 -c '' >&2") != 0) \
            skip();                           \
    } while (0)

/* ---- models -------------------------------------------------------------------------------------- */

/* Logits, every byte of the slab, all scalars and the checksum. */
static void assert_same_model(struct model *a, struct model *b)
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

static void assert_is_folder(struct model *m, const char *folder)
{
    struct model *fresh = golden_model(folder, COMPUTE_BF16, 2);
    assert_same_model(m, fresh);
    model_close(fresh);
}

/* ---- updates ------------------------------------------------------------------------------------- */

struct attempt {
    struct update_facts facts;
    struct nyb_err err;
    enum update_state state;
    const char *phase; /* that failed, NULL: none */
};

/* All phases; the code of the one that failed. */
static enum nyb_code try_update(struct model *m, const struct update_options *o, struct attempt *a)
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

static void must_update(struct model *m, const char *folder, enum update_staging staging)
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

static void check_swaps(const char *a)
{
    char *b = twin(a, "b", "--perturb 5");
    for (int staging = UPDATE_STAGING_ON; staging <= (int)UPDATE_STAGING_OFF; staging++) {
        struct model *m = golden_model(a, COMPUTE_BF16, 2);
        const uint8_t *slab = model_weights(m)->slots.slab.data;
        must_update(m, a, (enum update_staging)staging);
        assert_is_folder(m, a);
        must_update(m, b, (enum update_staging)staging);
        assert_is_folder(m, b);
        must_update(m, a, (enum update_staging)staging);
        assert_is_folder(m, a);
        assert_ptr_equal(slab, model_weights(m)->slots.slab.data);
        model_close(m);
    }
    free(b);
}

static void test_update_equals_fresh_tales(void **state)
{
    (void)state;
    NEED(TALES);
    check_swaps(TALES);
}

static void test_update_equals_fresh_golden(void **state)
{
    (void)state;
    static const char *const name[] = {
        "qwen3_moe-modelopt",
        "qwen3_moe-compressed-tensors",
        "glm4_moe-compressed-tensors-sharded",
        "glm4_moe-modelopt",
        "ernie4_5_moe-modelopt",
        "llama-dense-modelopt",
        "qwen3-dense-modelopt",
        "mixtral-modelopt",
    };
    NEED(GOLDEN);
    for (size_t i = 0; i < COUNT_OF(name); i++) {
        char *folder = path_join(GOLDEN, name[i]);
        check_swaps(folder);
        free(folder);
    }
}

/* Other bytes, the same function: answers differ by rounding alone. */
static void test_update_permuted_experts(void **state)
{
    (void)state;
    NEED(TALES);
    char *b = twin(TALES, "permuted", "--permute 9");
    struct model *m = golden_model(TALES, COMPUTE_STRICT, 2);
    float *before = golden_answer(m);
    must_update(m, b, UPDATE_STAGING_AUTO);
    float *after = golden_answer(m);
    double e = golden_error(after, before, golden_answer_bytes(m) / sizeof(float));
    assert_true(e < 1e-5);
    free(before);
    free(after);
    model_close(m);
    free(b);
}

static void test_update_between_dresses(void **state)
{
    (void)state;
    NEED(TALES);
    struct checksum a, c;
    struct nyb_err err;
    char *dress = twin(TALES, "dress", "--compressed");
    golden_must(checksum_folder(&a, TALES, 2, &err), &err);
    golden_must(checksum_folder(&c, dress, 2, &err), &err);
    assert_memory_equal(&a.total, &c.total, sizeof(a.total)); /* the same numbers */
    checksum_free(&a);
    checksum_free(&c);
    for (int staging = UPDATE_STAGING_ON; staging <= (int)UPDATE_STAGING_OFF; staging++) {
        struct model *m = golden_model(TALES, COMPUTE_BF16, 2);
        must_update(m, dress, (enum update_staging)staging);
        assert_is_folder(m, dress);
        must_update(m, TALES, (enum update_staging)staging);
        assert_is_folder(m, TALES);
        model_close(m);
    }
    free(dress);
}

/* ---- parts --------------------------------------------------------------------------------------- */

static void check_part(struct model *m, const char *from, const char *b, const char *glob, const char *name,
                       enum update_staging staging)
{
    char *edits = mem_printf("--take '%s' '%s'", b, glob), *expected = twin(from, name, edits);
    const char *names[] = {glob};
    const struct update_options o = {.folder = b, .names = names, .n_names = 1, .staging = staging};
    struct attempt a;
    golden_must(try_update(m, &o, &a), &a.err);
    assert_true(a.facts.n_tensor > 0 && a.facts.n_tensor < model_weights(m)->slots.n);
    assert_is_folder(m, expected);
    free(edits);
    free(expected);
}

/* One after the other in the same model, the folders beside it patched alike. */
static void test_update_ten_parts(void **state)
{
    (void)state;
    NEED(TALES);
    uint64_t seed = 6;
    struct model *m = golden_model(TALES, COMPUTE_BF16, 2);
    char *before = mem_strdup(TALES);
    for (int i = 0; i < 10; i++) {
        char name[32], edits[32], glob[128];
        int layer = (int)(test_random(&seed) % 6), expert = (int)(test_random(&seed) % 32);
        snprintf(name, sizeof(name), "donor-%d", i);
        snprintf(edits, sizeof(edits), "--perturb %d", i + 20);
        char *donor = twin(TALES, name, edits);
        switch (test_random(&seed) % 6) {
        case 0:
            snprintf(glob, sizeof(glob), "model.layers.%d.*", layer);
            break;
        case 1:
            snprintf(glob, sizeof(glob), "*.experts.%d.*", expert);
            break;
        case 2:
            snprintf(glob, sizeof(glob), "*norm.weight");
            break;
        case 3:
            snprintf(glob, sizeof(glob), "model.layers.%d.mlp.experts.%d.down_proj.*", layer, expert);
            break;
        case 4:
            snprintf(glob, sizeof(glob), "*.weight_scale_2");
            break;
        default:
            snprintf(glob, sizeof(glob), "model.layers.[%d5].self_attn.?_proj.*", layer);
        }
        snprintf(name, sizeof(name), "patched-%d", i);
        check_part(m, before, donor, glob, name, i % 2 ? UPDATE_STAGING_OFF : UPDATE_STAGING_ON);
        free(before);
        before = path_join(workshop, name);
        free(donor);
    }
    free(before);
    model_close(m);
}

/* A folder with nothing but what is to change. */
static void test_update_from_a_part_alone(void **state)
{
    (void)state;
    NEED(TALES);
    char *donor = twin(TALES, "part", "--perturb 31 --only 'model.layers.2.mlp.*' --only model.norm.weight");
    char *expected = twin(TALES, "with-part", "--perturb 31");
    char *edits =
        mem_printf("--take '%s' 'model.layers.2.mlp.*' --take '%s' model.norm.weight", expected, expected);
    char *whole = twin(TALES, "whole", edits);
    const char *names[] = {"model.layers.2.mlp.*", "model.norm.weight"};
    const struct update_options o = {.folder = donor, .names = names, .n_names = 2};
    struct model *m = golden_model(TALES, COMPUTE_BF16, 2);
    struct attempt a;
    golden_must(try_update(m, &o, &a), &a.err);
    assert_is_folder(m, whole);
    model_close(m);
    free(donor);
    free(expected);
    free(edits);
    free(whole);
}

/* ---- uploads ------------------------------------------------------------------------------------- */

static struct update_upload *upload_file(const char *folder, size_t step)
{
    struct nyb_err err;
    struct update_upload *up;
    char *path = path_join(folder, "model.safetensors"), *data;
    size_t n;
    golden_must(file_read_all(path, 1u << 30, &data, &n, &err), &err);
    golden_must(upload_open(&up, step % 2 ? workshop : NULL, n, &err), &err);
    for (size_t at = 0; at < n; at += step)
        golden_must(upload_write(up, data + at, n - at < step ? n - at : step, &err), &err);
    assert_int_equal(upload_bytes(up), n);
    assert_int_equal(upload_write(up, "x", 1, &err), NYB_E_RANGE);
    free(data);
    free(path);
    return up;
}

static void test_update_from_upload(void **state)
{
    (void)state;
    NEED(TALES);
    char *donor = twin(TALES, "upload", "--perturb 41 --only 'model.layers.[13].*' --only '*embed*'");
    char *all = twin(TALES, "upload-all", "--perturb 41");
    char *edits = mem_printf("--take '%s' 'model.layers.[13].*' --take '%s' '*embed*'", all, all);
    char *whole = twin(TALES, "upload-whole", edits);
    struct model *m = golden_model(TALES, COMPUTE_BF16, 2);
    struct attempt a;
    for (size_t step = 65536; step <= 65537; step++) { /* in memory, in an unlinked file */
        must_update(m, TALES, UPDATE_STAGING_ON);
        struct update_upload *up = upload_file(donor, step);
        const struct update_options o = {.upload = up};
        golden_must(try_update(m, &o, &a), &a.err);
        upload_close(up);
        assert_is_folder(m, whole);
    }
    model_close(m);
    free(donor);
    free(all);
    free(edits);
    free(whole);
}

/* ---- what is refused ----------------------------------------------------------------------------- */

struct refusal {
    const char *edits, *phase, *text; /* text: in the error or in a difference */
    int n_difference;                 /* -1: more than are shown */
    enum nyb_code code;
};

static void check_refusal(struct model *m, const char *from, const struct refusal *r,
                          enum update_staging staging)
{
    char *bad = twin(from, "bad", r->edits);
    const struct update_options o = {.folder = bad, .staging = staging};
    struct attempt a;
    uint64_t generation = model_weights_generation(m);
    enum nyb_code code = try_update(m, &o, &a);
    bool found = strstr(a.err.message, r->text) || strstr(a.err.where, r->text);
    for (int i = 0; i < a.facts.n_shown; i++)
        found = found || strstr(a.facts.difference[i], r->text);
    if (code != r->code || !found || strcmp(a.phase, r->phase))
        fail_msg("%s: code %d in %s: %s: %s", r->edits, code, a.phase, a.err.where, a.err.message);
    if (r->n_difference >= 0)
        assert_int_equal(a.facts.n_difference, r->n_difference);
    else
        assert_true(a.facts.n_difference > UPDATE_SHOWN && a.facts.n_shown == UPDATE_SHOWN);
    assert_int_equal(model_weights_generation(m), generation);
    assert_false(model_weights_inconsistent(m));
    free(bad);
}

#define Q "model.layers.0.self_attn.q_proj"
#define E "model.layers.1.mlp.experts.2.up_proj"

static void test_update_refuses(void **state)
{
    (void)state;
    static const struct refusal refusal[] = {
        {"--drop " Q ".weight", "prepare", Q ".weight: is missing", 1, NYB_E_ARG},
        {"--drop " E ".weight_scale", "prepare", E ".weight_scale: is missing", 1, NYB_E_ARG},
        {"--drop model.norm.weight", "prepare", "model.norm.weight: is missing", 1, NYB_E_ARG},
        {"--shape " E ".weight", "prepare", "expected [", 1, NYB_E_ARG},
        {"--shape " E ".weight_scale", "prepare", "expected [", 1, NYB_E_ARG},
        {"--shape model.norm.weight", "prepare", "model.norm.weight", 1, NYB_E_ARG},
        {"--add model.layers.1.mlp.surprise.weight", "prepare", "no such tensor", 1, NYB_E_ARG},
        {"--add lm_head.weight", "prepare", "lm_head.weight", 1, NYB_E_ARG},
        {"--dtype model.embed_tokens.weight", "prepare", "is f16, the served model has bf16", 1, NYB_E_ARG},
        {"--config rms_norm_eps 1e-5", "prepare", "norm_eps", 1, NYB_E_ARG},
        {"--config rope_theta 20000.0", "prepare", "rope.theta", 1, NYB_E_ARG},
        {"--config num_experts_per_tok 2", "prepare", "moe.top_k is 2", 1, NYB_E_ARG},
        {"--config eos_token_id 3", "prepare", "eos_token_id", 1, NYB_E_ARG},
        {"--config hidden_size 768", "prepare", "hidden is 768", 1, NYB_E_ARG},
        {"--config num_hidden_layers 5", "prepare", "n_layer is 5", 1, NYB_E_ARG},
        {"--config model_type '\"mixtral\"'", "prepare", "architectures", 0, NYB_E_UNSUPPORTED},
        {"--drop 'model.layers.4.*'", "prepare", "model.layers.4.input_layernorm.weight: is missing", -1,
         NYB_E_ARG},
        {"--only 'model.layers.[0-4].*'", "prepare", "config.json", 0, NYB_E_NOT_FOUND},
        {"--truncate 1", "prepare", "truncated", 0, NYB_E_FORMAT},
        {"--truncate 5000000", "prepare", "truncated", 0, NYB_E_FORMAT},
    };
    NEED(TALES);
    struct model *m = golden_model(TALES, COMPUTE_BF16, 2);
    for (size_t i = 0; i < COUNT_OF(refusal); i++)
        check_refusal(m, TALES, &refusal[i], i % 2 ? UPDATE_STAGING_ON : UPDATE_STAGING_OFF);
    assert_is_folder(m, TALES);
    model_close(m);
}

/* Not to be seen in a header: found while reading. */
static void test_update_refuses_nan_scales(void **state)
{
    (void)state;
    static const struct refusal staged = {"--perturb 51 --nan " E ".weight_scale", "stage", "is NaN", 0,
                                          NYB_E_FORMAT},
                                in_place = {"--perturb 51 --nan " E ".weight_scale", "commit", "is NaN", 0,
                                            NYB_E_FORMAT};
    NEED(TALES);
    struct model *m = golden_model(TALES, COMPUTE_BF16, 2);
    check_refusal(m, TALES, &staged, UPDATE_STAGING_ON);
    assert_is_folder(m, TALES);
    check_refusal(m, TALES, &in_place, UPDATE_STAGING_OFF);
    assert_is_folder(m, TALES);
    model_close(m);
}

static void test_update_refuses_names(void **state)
{
    (void)state;
    static const struct {
        const char *glob, *text;
    } row[] = {
        {"*.no_such_thing", "matches no tensor"},
        {Q ".weight", "go together"},
        {E ".weight_scale", "go together"},
    };
    NEED(TALES);
    struct model *m = golden_model(TALES, COMPUTE_BF16, 2);
    for (size_t i = 0; i < COUNT_OF(row); i++) {
        const struct update_options o = {.folder = TALES, .names = &row[i].glob, .n_names = 1};
        struct attempt a;
        assert_int_equal(try_update(m, &o, &a), NYB_E_ARG);
        assert_non_null(strstr(a.facts.difference[0], row[i].text));
    }
    model_close(m);
}

static void test_update_one_at_a_time(void **state)
{
    (void)state;
    NEED(TALES);
    struct model *m = golden_model(TALES, COMPUTE_BF16, 2);
    const struct update_options o = {.folder = TALES};
    struct update_facts facts, other;
    struct update *u, *v;
    struct nyb_err err;
    golden_must(update_prepare(&u, m, &o, &facts, &err), &err);
    assert_int_equal(update_prepare(&v, m, &o, &other, &err), NYB_E_BUSY);
    assert_null(v);
    update_close(u);
    golden_must(update_prepare(&v, m, &o, &other, &err), &err);
    update_close(v);
    model_close(m);
}

/* Links are followed, as for a first load: who may name which folder is the server's business. */
static void test_update_through_links(void **state)
{
    (void)state;
    NEED(TALES);
    char *b = twin(TALES, "linked", "--perturb 5"), *link = path_join(workshop, "link");
    assert_int_equal(symlink(b, link), 0);
    struct model *m = golden_model(TALES, COMPUTE_BF16, 2);
    must_update(m, link, UPDATE_STAGING_ON);
    assert_is_folder(m, b);
    char *nowhere = path_join(workshop, "nowhere");
    assert_int_equal(symlink("/nonexistent/folder", nowhere), 0);
    const struct update_options o = {.folder = nowhere};
    struct attempt a;
    assert_int_not_equal(try_update(m, &o, &a), NYB_OK);
    assert_string_equal(a.phase, "prepare");
    assert_is_folder(m, b);
    model_close(m);
    free(b);
    free(link);
    free(nowhere);
}

/* ---- faults -------------------------------------------------------------------------------------- */

struct fault {
    enum update_point point;
    int64_t at;        /* -1: never */
    bool rollback_too; /* the first read of a rollback fails as well */
    atomic_int count[3];
};

static enum nyb_code cause_fault(void *arg, enum update_point point, int64_t count)
{
    struct fault *f = arg;
    atomic_fetch_add(&f->count[point], 1);
    if (point == f->point && count == f->at)
        return NYB_E_IO;
    return f->rollback_too && point == UPDATE_AT_ROLLBACK ? NYB_E_IO : NYB_OK;
}

static enum nyb_code update_with_fault(struct model *m, const char *folder, enum update_staging staging,
                                       struct fault *f, struct attempt *a)
{
    const struct update_options o = {
        .folder = folder, .staging = staging, .fault = cause_fault, .fault_arg = f};
    return try_update(m, &o, a);
}

/* Fail at every read and at every step of the commit, each time from A to B. */
static void check_faults(const char *a, enum update_staging staging)
{
    char *b = twin(a, "faulty", "--perturb 61");
    struct model *m = golden_model(a, COMPUTE_BF16, 2), *fresh = golden_model(a, COMPUTE_BF16, 2);
    float *old = golden_answer(m);
    struct attempt result;
    struct fault count = {.at = -1};
    golden_must(update_with_fault(m, b, staging, &count, &result), &result.err);
    must_update(m, a, staging);
    for (int point = UPDATE_AT_READ; point <= (int)UPDATE_AT_COMMIT; point++) {
        assert_true(count.count[point] > 0);
        int stride = golden_fault_stride(count.count[point]);
        for (int at = 0; at < count.count[point]; at += stride) {
            struct fault f = {.point = (enum update_point)point, .at = at};
            uint64_t generation = model_weights_generation(m);
            assert_int_equal(update_with_fault(m, b, staging, &f, &result), NYB_E_IO);
            assert_int_equal(result.state, UPDATE_OLD);
            assert_int_equal(model_weights_generation(m), generation);
            float *now = golden_answer(m);
            assert_memory_equal(now, old, golden_answer_bytes(m));
            free(now);
        }
    }
    assert_same_model(m, fresh);
    must_update(m, b, staging); /* nothing is left behind that would hinder the next one */
    assert_is_folder(m, b);
    model_close(fresh);
    model_close(m);
    free(old);
    free(b);
}

static void test_update_survives_faults(void **state)
{
    (void)state;
    NEED(GOLDEN);
    check_faults(GOLDEN "qwen3_moe-modelopt", UPDATE_STAGING_ON);
    check_faults(GOLDEN "qwen3_moe-modelopt", UPDATE_STAGING_OFF);
}

static void test_update_rolls_back(void **state)
{
    (void)state;
    NEED(TALES);
    char *b = twin(TALES, "back", "--perturb 71");
    struct model *m = golden_model(TALES, COMPUTE_BF16, 2);
    for (int staging = UPDATE_STAGING_ON; staging <= (int)UPDATE_STAGING_OFF; staging++) {
        const struct update_options o = {.folder = b, .staging = (enum update_staging)staging};
        struct update_facts facts;
        struct update *u;
        struct nyb_err err;
        uint64_t generation = model_weights_generation(m);
        golden_must(update_prepare(&u, m, &o, &facts, &err), &err);
        golden_must(update_stage(u, &err), &err);
        golden_must(update_commit(u, &err), &err);
        assert_int_equal(update_state(u), UPDATE_NEW);
        assert_is_folder(m, b);
        golden_must(update_rollback(u, &err), &err);
        assert_int_equal(update_state(u), UPDATE_OLD);
        assert_int_equal(model_weights_generation(m), generation);
        assert_is_folder(m, TALES);
        golden_must(update_rollback(u, &err), &err); /* once is enough */
        update_close(u);
        assert_is_folder(m, TALES);
    }
    model_close(m);
    free(b);
}

/* Both ways fail: the model says so, accepts nothing but a complete update, and is whole again after it. */
static void test_update_inconsistent(void **state)
{
    (void)state;
    NEED(TALES);
    char *b = twin(TALES, "lost", "--perturb 81");
    struct model *m = golden_model(TALES, COMPUTE_BF16, 2);
    struct fault f = {.point = UPDATE_AT_READ, .at = 5, .rollback_too = true};
    struct attempt a;
    uint64_t generation = model_weights_generation(m);
    assert_int_equal(update_with_fault(m, b, UPDATE_STAGING_OFF, &f, &a), NYB_E_IO);
    assert_int_equal(a.state, UPDATE_INCONSISTENT);
    assert_true(model_weights_inconsistent(m));
    assert_true(model_weights_generation(m) > generation);
    assert_non_null(strstr(a.err.message, "could not be put back"));
    const char *names[] = {"model.layers.0.*"};
    const struct update_options part = {.folder = b, .names = names, .n_names = 1};
    assert_int_equal(try_update(m, &part, &a), NYB_E_ARG);
    struct fault again = {.point = UPDATE_AT_READ, .at = 7};
    assert_int_equal(update_with_fault(m, b, UPDATE_STAGING_ON, &again, &a), NYB_E_IO);
    assert_int_equal(a.state, UPDATE_INCONSISTENT);
    must_update(m, b, UPDATE_STAGING_OFF);
    assert_false(model_weights_inconsistent(m));
    assert_is_folder(m, b);
    model_close(m);
    free(b);
}

/* As if this process might take `room` more bytes and no more. */
static struct rlimit limit_memory(uint64_t room)
{
    struct rlimit was, limit;
    unsigned long long pages;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_int_equal(fscanf(f, "%llu", &pages), 1);
    fclose(f);
    getrlimit(RLIMIT_AS, &was);
    limit = was;
    limit.rlim_cur = pages * (uint64_t)sysconf(_SC_PAGESIZE) + room;
    assert_int_equal(setrlimit(RLIMIT_AS, &limit), 0);
    return was;
}

static void assert_no_room_for_a_copy(struct model *m)
{
    const struct update_options in_place = {.folder = TALES, .staging = UPDATE_STAGING_OFF};
    struct update_facts facts;
    struct nyb_err err;
    struct update *u;
    struct rlimit was = limit_memory(4 << 20);
    enum nyb_code code = update_prepare(&u, m, &in_place, &facts, &err);
    assert_int_equal(setrlimit(RLIMIT_AS, &was), 0);
    assert_int_equal(code, NYB_E_MEMORY);
    assert_non_null(strstr(err.message, "no room for a copy"));
}

static void commit_and_roll_back(struct model *m, const char *folder)
{
    const struct update_options in_place = {.folder = folder, .staging = UPDATE_STAGING_OFF};
    struct update_facts facts;
    struct nyb_err err;
    struct update *u;
    golden_must(update_prepare(&u, m, &in_place, &facts, &err), &err);
    golden_must(update_stage(u, &err), &err);
    golden_must(update_commit(u, &err), &err);
    golden_must(update_rollback(u, &err), &err);
    update_close(u);
}

/* What was uploaded, and what is random, is in no file: an update in place keeps a copy of it, which is as
 * good as a file. */
static void test_update_over_what_is_in_no_file(void **state)
{
    (void)state;
    NEED(TALES);
    char *donor = twin(TALES, "nowhere", "--perturb 43 --only '*.mlp.*' --only '*embed*'");
    char *all = twin(TALES, "nowhere-all", "--perturb 43");
    char *edits = mem_printf("--take '%s' '*.mlp.*' --take '%s' '*embed*'", all, all);
    char *whole = twin(TALES, "nowhere-whole", edits);
    struct model *m = golden_model(TALES, COMPUTE_BF16, 2), *fresh = golden_model(whole, COMPUTE_BF16, 2);
    struct update_upload *up = upload_file(donor, 65536);
    const struct update_options o = {.upload = up};
    struct attempt a;
    golden_must(try_update(m, &o, &a), &a.err);
    upload_close(up);
    assert_no_room_for_a_copy(m);
    for (int i = 0; i < 3; i++) { /* reading, committing, and a rollback after it */
        struct fault f = {.point = i == 1 ? UPDATE_AT_COMMIT : UPDATE_AT_READ, .at = i == 2 ? -1 : 7};
        if (i < 2)
            assert_int_equal(update_with_fault(m, TALES, UPDATE_STAGING_OFF, &f, &a), NYB_E_IO);
        else
            commit_and_roll_back(m, TALES);
        assert_same_model(m, fresh);
    }
    struct fault lost = {.point = UPDATE_AT_READ, .at = 3, .rollback_too = true};
    assert_int_equal(update_with_fault(m, TALES, UPDATE_STAGING_OFF, &lost, &a), NYB_E_IO);
    assert_int_equal(a.state, UPDATE_INCONSISTENT);
    must_update(m, TALES, UPDATE_STAGING_OFF);
    assert_is_folder(m, TALES);
    const struct update_options random = {.folder = TALES, .load_format = LOAD_DUMMY, .dummy_seed = 3};
    golden_must(try_update(m, &random, &a), &a.err);
    float *old = golden_answer(m);
    struct fault f = {.point = UPDATE_AT_READ, .at = 99};
    assert_int_equal(update_with_fault(m, TALES, UPDATE_STAGING_OFF, &f, &a), NYB_E_IO);
    float *now = golden_answer(m);
    assert_memory_equal(now, old, golden_answer_bytes(m));
    must_update(m, TALES, UPDATE_STAGING_OFF);
    assert_is_folder(m, TALES);
    free(old);
    free(now);
    model_close(m);
    model_close(fresh);
    free(donor);
    free(all);
    free(edits);
    free(whole);
}

static void overwrite(const char *folder, long offset)
{
    char *path = path_join(folder, "model.safetensors");
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, offset, SEEK_END), 0);
    assert_int_equal(fputc(0x55, f), 0x55);
    assert_int_equal(fclose(f), 0);
    free(path);
}

/* The old folder may go; an old file that is written to is no way back. */
static void test_update_old_files(void **state)
{
    (void)state;
    NEED(TALES);
    char *a = twin(TALES, "gone", "--perturb 91"), *copy = twin(TALES, "kept", "--perturb 91");
    struct model *m = golden_model(a, COMPUTE_BF16, 2);
    folder_drop(a);
    struct fault f = {.point = UPDATE_AT_READ, .at = 9};
    struct attempt result;
    assert_int_equal(update_with_fault(m, TALES, UPDATE_STAGING_OFF, &f, &result), NYB_E_IO);
    assert_int_equal(result.state, UPDATE_OLD);
    assert_is_folder(m, copy); /* the open files were enough */
    must_update(m, copy, UPDATE_STAGING_ON);
    overwrite(copy, -77);
    const struct update_options o = {.folder = TALES, .staging = UPDATE_STAGING_OFF};
    assert_int_equal(try_update(m, &o, &result), NYB_E_IO);
    assert_non_null(strstr(result.err.message, "rewritten"));
    must_update(m, TALES, UPDATE_STAGING_ON);
    assert_is_folder(m, TALES);
    model_close(m);
    free(copy);
}

/* A file that shrinks after its headers have been checked. */
static void test_update_file_that_ends_early(void **state)
{
    (void)state;
    NEED(TALES);
    struct model *m = golden_model(TALES, COMPUTE_BF16, 2);
    for (int staging = UPDATE_STAGING_ON; staging <= (int)UPDATE_STAGING_OFF; staging++) {
        char *b = twin(TALES, "shrinks", "--perturb 97"), *path = path_join(b, "model.safetensors");
        const struct update_options o = {.folder = b, .staging = (enum update_staging)staging};
        struct update_facts facts;
        struct update *u;
        struct nyb_err err;
        golden_must(update_prepare(&u, m, &o, &facts, &err), &err);
        assert_int_equal(truncate(path, 9 << 20), 0);
        enum nyb_code code = update_stage(u, &err);
        assert_int_equal(code != NYB_OK, staging == UPDATE_STAGING_ON);
        if (code == NYB_OK)
            code = update_commit(u, &err);
        assert_int_not_equal(code, NYB_OK);
        assert_non_null(strstr(err.where, "shrinks/model.safetensors"));
        assert_int_equal(update_state(u), UPDATE_OLD);
        update_close(u);
        assert_is_folder(m, TALES);
        free(path);
        free(b);
    }
    model_close(m);
}

/* ---- the rest ------------------------------------------------------------------------------------ */

static int open_files(void)
{
    int n = 0;
    for (int fd = 0; fd < 1024; fd++)
        n += fcntl(fd, F_GETFD) != -1;
    return n;
}

/* In memory that is in use: what the allocator keeps for later is given back first. */
static long settled_kb(void)
{
    malloc_trim(0);
    return test_resident_kib();
}

static void test_update_hundred_times(void **state)
{
    (void)state;
    NEED(TALES);
    char *b = twin(TALES, "hundred", "--perturb 95");
    struct model *m = golden_model(TALES, COMPUTE_BF16, 2);
    long first = 0;
    int files = 0;
    for (int i = 0; i < 116; i++) {
        const char *names[] = {i % 3 ? "*" : "model.layers.3.*"};
        const struct update_options o = {.folder = i % 2 ? TALES : b,
                                         .names = names,
                                         .n_names = i % 3 ? 0 : 1,
                                         .staging = i % 5 ? UPDATE_STAGING_ON : UPDATE_STAGING_OFF};
        struct attempt a;
        golden_must(try_update(m, &o, &a), &a.err);
        if (i == 15) { /* every kind of update has been here */
            first = settled_kb();
            files = open_files();
        }
    }
    long grown = settled_kb() - first;
    print_message("resident memory after 100 more updates: %+ld kB\n", grown);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* they keep what is freed */
    assert_true(grown < 1024);
#endif
    assert_true(open_files() <= files + 1); /* parts of two folders may be served */
    model_close(m);
    free(b);
}

/* W4A4 needs every input scale. */
static void test_update_w4a4_and_dummy(void **state)
{
    (void)state;
    NEED(TALES);
    struct model *m = golden_model(TALES, COMPUTE_W4A4, 2), *fresh;
    char *bad = twin(TALES, "no-input", "--drop " E ".input_scale");
    struct update_options o = {.folder = bad};
    struct attempt a;
    struct nyb_err err;
    assert_int_equal(try_update(m, &o, &a), NYB_E_ARG);
    assert_non_null(strstr(a.facts.difference[0], "w4a4"));
    model_close(m);
    m = golden_model(TALES, COMPUTE_BF16, 2);
    o = (struct update_options){.folder = TALES, .load_format = LOAD_DUMMY, .dummy_seed = 3};
    golden_must(try_update(m, &o, &a), &a.err);
    const struct model_options random = {.folder = TALES,
                                         .load_format = LOAD_DUMMY,
                                         .dummy_seed = 3,
                                         .compute = COMPUTE_BF16,
                                         .n_thread = 2,
                                         .kv_type = -1};
    golden_must(model_open(&fresh, &random, &err), &err);
    assert_same_model(m, fresh);
    model_close(fresh);
    must_update(m, TALES, UPDATE_STAGING_ON);
    assert_is_folder(m, TALES);
    model_close(m);
    free(bad);
}

static void print_times(const char *what, const struct update_facts *f)
{
    print_message("%s: prepare %.2f ms, stage %.2f ms, commit %.3f ms for %.1f MB\n", what,
                  (double)f->prepare_ns * 1e-6, (double)f->stage_ns * 1e-6, (double)f->commit_ns * 1e-6,
                  (double)f->weight_bytes * 1e-6);
}

/* Decoding stands still for the commit alone. */
static void test_update_commit_is_short(void **state)
{
    (void)state;
    NEED(TALES);
    struct model *m = golden_model(TALES, COMPUTE_BF16, 2);
    uint64_t best = UINT64_MAX;
    struct attempt a;
    for (int i = 0; i < 5; i++) {
        const struct update_options o = {.folder = TALES, .staging = UPDATE_STAGING_ON};
        golden_must(try_update(m, &o, &a), &a.err);
        best = a.facts.commit_ns < best ? a.facts.commit_ns : best;
    }
    print_times("staged", &a.facts);
    assert_true(best < 50000000);
    const struct update_options o = {.folder = TALES, .staging = UPDATE_STAGING_OFF};
    golden_must(try_update(m, &o, &a), &a.err);
    print_times("in place", &a.facts);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_update_equals_fresh_tales),
        cmocka_unit_test(test_update_equals_fresh_golden),
        cmocka_unit_test(test_update_permuted_experts),
        cmocka_unit_test(test_update_between_dresses),
        cmocka_unit_test(test_update_ten_parts),
        cmocka_unit_test(test_update_from_a_part_alone),
        cmocka_unit_test(test_update_from_upload),
        cmocka_unit_test(test_update_refuses),
        cmocka_unit_test(test_update_refuses_nan_scales),
        cmocka_unit_test(test_update_refuses_names),
        cmocka_unit_test(test_update_one_at_a_time),
        cmocka_unit_test(test_update_through_links),
        cmocka_unit_test(test_update_survives_faults),
        cmocka_unit_test(test_update_rolls_back),
        cmocka_unit_test(test_update_inconsistent),
        cmocka_unit_test(test_update_old_files),
        cmocka_unit_test(test_update_over_what_is_in_no_file),
        cmocka_unit_test(test_update_hundred_times),
        cmocka_unit_test(test_update_w4a4_and_dummy),
        cmocka_unit_test(test_update_commit_is_short),
        cmocka_unit_test(test_update_file_that_ends_early),
    };
    return cmocka_run_group_tests(tests, make_workshop, drop_workshop);
}
