/* Weights replaced in a model that stays open: each outcome is compared, bit for bit, with a model freshly
 * loaded from the same folder. */
#include <malloc.h>

#include "golden/update_case.h"

/* ---- whole checkpoints --------------------------------------------------------------------------------- */

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

/* ---- parts --------------------------------------------------------------------------------------------- */

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
        struct update_upload *up = upload_file(donor, step % 2 ? workshop : NULL, step);
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

/* ---- the rest ------------------------------------------------------------------------------------------ */

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

static void test_update_many_times(void **state)
{
    (void)state;
    NEED(TALES);
    char *b = twin(TALES, "hundred", "--perturb 95");
    struct model *m = golden_model(TALES, COMPUTE_BF16, 2);
    long first = 0;
    int files = 0, more = test_is_long() ? 100 : 50;
    for (int i = 0; i < 16 + more; i++) {
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
    print_message("resident memory after %d more updates: %+ld kB\n", more, grown);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* they keep what is freed */
    assert_true(grown < 10 * more);
#endif
    assert_true(open_files() <= files + 1); /* parts of two folders may be served */
    model_close(m);
    free(b);
}

#define E "model.layers.1.mlp.experts.2.up_proj"

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
        cmocka_unit_test(test_update_equals_fresh_tales), cmocka_unit_test(test_update_equals_fresh_golden),
        cmocka_unit_test(test_update_permuted_experts),   cmocka_unit_test(test_update_between_dresses),
        cmocka_unit_test(test_update_through_links),      cmocka_unit_test(test_update_ten_parts),
        cmocka_unit_test(test_update_from_a_part_alone),  cmocka_unit_test(test_update_from_upload),
        cmocka_unit_test(test_update_many_times),         cmocka_unit_test(test_update_w4a4_and_dummy),
        cmocka_unit_test(test_update_commit_is_short),
    };
    return cmocka_run_group_tests(tests, make_workshop, drop_workshop);
}
