/* Weights replaced in a model that several processes hold: all change, or none does. */
#include "golden/update_ranks_case.h"
#include "golden/upload.h"

#define UP_LAST "model.layers.1.mlp.experts.31.up_proj"

static float *fresh_answer(const char *folder, int n_rank, bool experts)
{
    struct model *m = open_group(folder, n_rank, experts);
    float *logits = golden_answer(m);
    close_group(m);
    return logits;
}

/* ---- updates ------------------------------------------------------------------------------------------- */

static enum nyb_code fail_first_commit(void *arg, enum update_point point, int64_t count)
{
    (void)arg;
    return point == UPDATE_AT_COMMIT && count == 0 ? NYB_E_IO : NYB_OK;
}

static void check_updates(int n_rank, bool experts)
{
    char *b = twin(TALES, "b", "--perturb 5"),
         *bad = twin(TALES, "bad", "--perturb 6 --nan-last " UP_LAST ".weight_scale");
    char *part = twin(TALES, "part", "--perturb 5 --only 'model.layers.[24].*'");
    char *edits = mem_printf("--take '%s' 'model.layers.[24].*'", b),
         *patched = twin(TALES, "patched", edits);
    float *old = fresh_answer(TALES, n_rank, experts), *new = fresh_answer(b, n_rank, experts),
          *mixed = fresh_answer(patched, n_rank, experts);
    const char *names[] = {"model.layers.2.*", "model.layers.4.*"};
    struct model *m = open_group(TALES, n_rank, experts);
    for (int staging = UPDATE_STAGING_ON; staging <= (int)UPDATE_STAGING_OFF; staging++) {
        enum update_staging s = (enum update_staging)staging;
        const struct update_options to_b = {.folder = b, .staging = s},
                                    to_a = {.folder = TALES, .staging = s},
                                    to_bad = {.folder = bad, .staging = s},
                                    faulty = {.folder = b, .staging = s, .fault = fail_first_commit},
                                    some = {.folder = part, .names = names, .n_names = 2, .staging = s};
        check(m, &to_b, false, UPDATE_NEW, new);
        assert_checksum(m, b);
        check(m, &to_a, false, UPDATE_NEW, old);
        check(m, &to_bad, false, UPDATE_OLD, old); /* only the last rank reads the broken row */
        check(m, &faulty, false, UPDATE_OLD, old); /* only the first rank fails               */
        check(m, &to_b, true, UPDATE_OLD, old);
        check(m, &some, false, UPDATE_NEW, mixed);
        assert_checksum(m, patched);
        check(m, &to_a, false, UPDATE_NEW, old);
        assert_checksum(m, TALES);
    }
    close_group(m);
    free(old);
    free(new);
    free(mixed);
    free(b);
    free(bad);
    free(part);
    free(patched);
    free(edits);
}

static void test_update_on_two_ranks(void **state)
{
    (void)state;
    NEED(TALES);
    check_updates(2, false);
}

static void test_update_of_shared_out_experts(void **state)
{
    (void)state;
    NEED(TALES);
    check_updates(3, true);
}

/* Prepared and closed again, before and after the second rank has heard of it. */
static void test_update_called_off_on_two_ranks(void **state)
{
    (void)state;
    struct nyb_err err;
    NEED(TALES);
    struct model *m = open_group(TALES, 2, false);
    float *old = golden_answer(m);
    for (int i = 0; i < 3; i++) {
        const struct update_options o = {.folder = TALES};
        struct update_facts facts;
        struct update *u;
        golden_must(update_prepare(&u, m, &o, &facts, &err), &err);
        if (i > 0)
            free(golden_answer(m));
        update_close(u);
        if (i > 1)
            free(golden_answer(m));
    }
    float *now = golden_answer(m);
    assert_memory_equal(now, old, golden_answer_bytes(m));
    free(old);
    free(now);
    close_group(m);
}

/* ---- uploads ------------------------------------------------------------------------------------------- */

static void check_upload(struct model *m, const char *from, const char *dir, bool polled)
{
    struct nyb_err err;
    struct update_facts facts;
    struct update *u;
    struct update_upload *up = upload_file(from, dir, SIZE_MAX);
    const struct update_options o = {.upload = up};
    golden_must(update_prepare(&u, m, &o, &facts, &err), &err);
    if (polled)
        poll_until_ready(m, u);
    golden_must(update_stage(u, &err), &err);
    if (polled)
        poll_until_ready(m, u);
    golden_must(update_commit(u, &err), &err);
    update_close(u);
    upload_close(up);
}

static void test_upload_on_ranks(void **state)
{
    (void)state;
    NEED(TALES);
    char *b = twin(TALES, "b", "--perturb 15"),
         *part = twin(TALES, "part", "--perturb 15 --only '*.experts.1*' --only '*proj*' --only 'lm_head*'");
    char *edits =
             mem_printf("--take '%s' '*.experts.1*' --take '%s' '*proj*' --take '%s' 'lm_head*'", b, b, b),
         *patched = twin(TALES, "patched", edits);
    const struct {
        int n_rank;
        bool experts;
    } how[] = {{2, false}, {3, false}, {2, true}};
    for (size_t i = 0; i < COUNT_OF(how); i++) {
        struct model *m = open_group(TALES, how[i].n_rank, how[i].experts);
        check_upload(m, part, i % 2 ? workshop : NULL, i != 1);
        assert_checksum(m, patched);
        check_upload(m, b, NULL, true);
        assert_checksum(m, b);
        close_group(m);
    }
    free(b);
    free(part);
    free(edits);
    free(patched);
}

/* Rank 0 has room for the upload and another rank has not. */
static void test_upload_without_room(void **state)
{
    (void)state;
    NEED(TALES);
    char *b = twin(TALES, "b", "--perturb 15");
    followers_disk_is_full = true;
    struct model *m = open_group(TALES, 2, false);
    followers_disk_is_full = false;
    for (int i = 0; i < 2; i++) {
        struct nyb_err err = {0};
        struct update_facts facts;
        struct update *u;
        struct update_upload *up = upload_file(b, i ? workshop : NULL, SIZE_MAX);
        const struct update_options o = {.upload = up};
        enum update_progress progress = UPDATE_NEXT;
        golden_must(update_prepare(&u, m, &o, &facts, &err), &err);
        enum nyb_code code = NYB_OK;
        while (code == NYB_OK && progress != UPDATE_READY)
            code = update_poll(u, &progress, &err);
        assert_int_equal(code, NYB_E_IO);
        assert_non_null(strstr(err.message, "cannot be kept"));
        assert_int_equal(update_state(u), UPDATE_OLD);
        update_close(u);
        upload_close(up);
        assert_checksum(m, TALES);
    }
    close_group(m);
    free(b);
}

/* ---- what other ranks refuse --------------------------------------------------------------------------- */

/* Rank 0 has neither of these experts, and says so before anything is read. */
static void test_refusals_for_all_ranks(void **state)
{
    (void)state;
    NEED(TALES);
    char *missing = twin(TALES, "missing", "--drop '*.experts.3[01].*'"),
         *shape = twin(TALES, "shape", "--shape " UP_LAST ".weight"),
         *typed = twin(TALES, "unknown", "--add model.layers.1.mlp.experts.31.surprise.weight");
    struct model *m = open_group(TALES, 2, true);
    const struct {
        const char *folder;
        int n;
    } row[] = {{missing, 6 * 2 * 3}, {shape, 1}, {typed, 1}};
    for (size_t i = 0; i < COUNT_OF(row); i++) {
        struct nyb_err err;
        struct update_facts facts;
        struct update *u;
        const struct update_options o = {.folder = row[i].folder};
        assert_int_equal(update_prepare(&u, m, &o, &facts, &err), NYB_E_ARG);
        assert_int_equal(facts.n_difference, row[i].n);
        assert_int_equal(facts.n_shown, row[i].n < UPDATE_SHOWN ? row[i].n : UPDATE_SHOWN);
    }
    const char *names[] = {"*.experts.31.*", "*.experts.0.*"};
    const struct update_options two = {.folder = TALES, .names = names, .n_names = 2, .dry_run = true};
    struct nyb_err err;
    struct update_facts facts;
    struct update *u;
    golden_must(update_prepare(&u, m, &two, &facts, &err), &err);
    assert_int_equal(facts.n_tensor, 6 * 2 * 3); /* whoever has them */
    poll_until_ready(m, u);
    assert_int_equal(facts.staged_bytes > 0, facts.staged);
    update_close(u);
    assert_checksum(m, TALES);
    close_group(m);
    free(missing);
    free(shape);
    free(typed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_update_on_two_ranks),
        cmocka_unit_test(test_update_of_shared_out_experts),
        cmocka_unit_test(test_update_called_off_on_two_ranks),
        cmocka_unit_test(test_upload_on_ranks),
        cmocka_unit_test(test_upload_without_room),
        cmocka_unit_test(test_refusals_for_all_ranks),
    };
    return cmocka_run_group_tests(tests, make_workshop, drop_workshop);
}
