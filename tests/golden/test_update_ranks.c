/* Weights replaced in a model that two processes hold: both change, or none does. */
#include "golden/golden_data.h"
#include "unit/ckpt_files.h"

#include "comm/comm.h"
#include "model/update.h"
#include "model/weights.h"

#define PROMPT 24 /* ids */
#define TALES  NYBBLE_SOURCE_DIR "/models/tales-24m-moe-nvfp4"
#define UP     "model.layers.1.mlp.experts.2.up_proj"

static char *twin(const char *workshop, const char *name, const char *edits)
{
    char *to = path_join(workshop, name);
    char *line =
        mem_printf("python3 '%s/tests/tools/twin.py' '%s' '%s' %s", NYBBLE_SOURCE_DIR, TALES, to, edits);
    if (system(line))
        fail_msg("%s", line);
    free(line);
    return to;
}

static float *answer(struct model *m)
{
    int32_t id[PROMPT];
    const struct golden_ids ids = {id, PROMPT};
    for (int i = 0; i < PROMPT; i++)
        id[i] = (7 + 13 * i) % model_config(m)->vocab;
    return golden_logits(m, &ids, NULL);
}

static size_t answer_bytes(const struct model *m)
{
    return PROMPT * (size_t)model_config(m)->vocab * sizeof(float);
}

/* A model over two processes. The second one lives in here, as long as the first one's model does. */
static struct model *open_pair(const char *folder)
{
    const struct comm_options ranks = {.slot_bytes = 256 << 10, .timeout_ms = 20000};
    struct nyb_err err;
    struct comm *comm;
    struct model *m;
    golden_must(comm_fork(&comm, 2, &ranks, &err), &err);
    const struct model_options o = {
        .folder = folder, .compute = COMPUTE_BF16, .n_thread = 1, .kv_type = -1, .comm = comm};
    int rank = comm_rank(comm);
    enum nyb_code code = model_open(&m, &o, &err); /* m owns comm now */
    if (rank > 0) {
        if (code == NYB_OK)
            code = model_follow(m, &err);
        model_close(m);
        _exit(code != NYB_OK);
    }
    golden_must(code, &err);
    return m;
}

static float *fresh_answer(const char *folder)
{
    struct model *m = open_pair(folder);
    float *logits = answer(m);
    model_close(m);
    return logits;
}

/* With steps between the phases. */
static enum nyb_code try_update(struct model *m, const struct update_options *o, bool roll_back,
                                enum update_state *state, struct nyb_err *err)
{
    struct update_facts facts;
    struct update *u;
    golden_must(update_prepare(&u, m, o, &facts, err), err);
    free(answer(m));
    enum nyb_code code = update_stage(u, err);
    free(answer(m));
    if (code == NYB_OK)
        code = update_commit(u, err);
    if (code == NYB_OK && roll_back)
        code = update_rollback(u, err);
    *state = update_state(u);
    update_close(u);
    return code;
}

static enum nyb_code fail_first_commit(void *arg, enum update_point point, int64_t count)
{
    (void)arg;
    return point == UPDATE_AT_COMMIT && count == 0 ? NYB_E_IO : NYB_OK;
}

/* After each attempt the pair answers as `expected` does. */
static void check(struct model *m, const struct update_options *o, bool roll_back, enum update_state state,
                  const float *expected)
{
    struct nyb_err err = {0};
    enum update_state got;
    enum nyb_code code = try_update(m, o, roll_back, &got, &err);
    if (got != state || (code == NYB_OK) != (roll_back || state == UPDATE_NEW))
        fail_msg("code %d, state %s: %s: %s", code, update_state_name(got), err.where, err.message);
    float *logits = answer(m);
    assert_memory_equal(logits, expected, answer_bytes(m));
    free(logits);
}

static void test_update_on_two_ranks(void **test_state)
{
    (void)test_state;
    if (system("python3 -c ''") != 0)
        skip();
    char *workshop = folder_make();
    char *b = twin(workshop, "b", "--perturb 5"),
         *bad = twin(workshop, "bad", "--perturb 6 --nan-last " UP ".weight_scale");
    char *part = twin(workshop, "part", "--perturb 5 --only 'model.layers.[24].*'");
    char *edits = mem_printf("--take '%s' 'model.layers.[24].*'", b),
         *patched = twin(workshop, "patched", edits);
    float *old = fresh_answer(TALES), *new = fresh_answer(b), *mixed = fresh_answer(patched);
    const char *names[] = {"model.layers.2.*", "model.layers.4.*"};
    struct model *m = open_pair(TALES);
    for (int staging = UPDATE_STAGING_ON; staging <= (int)UPDATE_STAGING_OFF; staging++) {
        enum update_staging s = (enum update_staging)staging;
        const struct update_options to_b = {.folder = b, .staging = s},
                                    to_a = {.folder = TALES, .staging = s},
                                    to_bad = {.folder = bad, .staging = s},
                                    faulty = {.folder = b, .staging = s, .fault = fail_first_commit},
                                    some = {.folder = part, .names = names, .n_names = 2, .staging = s};
        check(m, &to_b, false, UPDATE_NEW, new);
        check(m, &to_a, false, UPDATE_NEW, old);
        check(m, &to_bad, false, UPDATE_OLD, old); /* only the second rank reads the broken row */
        check(m, &faulty, false, UPDATE_OLD, old); /* only the first rank fails                 */
        check(m, &to_b, true, UPDATE_OLD, old);
        check(m, &some, false, UPDATE_NEW, mixed);
        check(m, &to_a, false, UPDATE_NEW, old);
    }
    model_close(m);
    free(old);
    free(new);
    free(mixed);
    free(b);
    free(bad);
    free(part);
    free(patched);
    free(edits);
    folder_drop(workshop);
}

/* Prepared and closed again, before and after the second rank has heard of it. */
static void test_update_called_off_on_two_ranks(void **test_state)
{
    (void)test_state;
    struct nyb_err err;
    struct model *m = open_pair(TALES);
    float *old = answer(m);
    for (int i = 0; i < 3; i++) {
        const struct update_options o = {.folder = TALES};
        struct update_facts facts;
        struct update *u;
        golden_must(update_prepare(&u, m, &o, &facts, &err), &err);
        if (i > 0)
            free(answer(m));
        update_close(u);
        if (i > 1)
            free(answer(m));
    }
    float *now = answer(m);
    assert_memory_equal(now, old, answer_bytes(m));
    free(old);
    free(now);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_update_on_two_ranks),
        cmocka_unit_test(test_update_called_off_on_two_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
