/* Updates of weights that fail underway: the old weights are there afterwards, or the model says that they
 * are not. */
#include <stdatomic.h>
#include <sys/resource.h>

#include "golden/update_case.h"

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

/* ---- without files to go back to ----------------------------------------------------------------------- */

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
    struct update_upload *up = upload_file(donor, NULL, 65536);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_update_survives_faults), cmocka_unit_test(test_update_rolls_back),
        cmocka_unit_test(test_update_inconsistent),    cmocka_unit_test(test_update_over_what_is_in_no_file),
        cmocka_unit_test(test_update_old_files),       cmocka_unit_test(test_update_file_that_ends_early),
    };
    return cmocka_run_group_tests(tests, make_workshop, drop_workshop);
}
