/* Weights replaced in a model that several processes hold: all change, or none does. */
#include "golden/emulated.h"
#include "golden/rank_group.h"
#include "unit/ckpt_files.h"

#include "base/clock.h"
#include "model/checksum.h"
#include "model/model_state.h"
#include "model/readback.h"
#include "model/weights.h"

#define TALES   NYBBLE_SOURCE_DIR "/models/tales-24m-moe-nvfp4"
#define GOLDEN  NYBBLE_SHARED_DIR "/golden/"
#define UP      "model.layers.1.mlp.experts.2.up_proj"
#define UP_LAST "model.layers.1.mlp.experts.31.up_proj"

#define NEED(folder)                          \
    do {                                      \
        if (!file_is_dir(folder))             \
            skip();                           \
        if (system("python3 -c '' >&2") != 0) \
            skip();                           \
    } while (0)

static char *twin_of(const char *from, const char *workshop, const char *name, const char *edits)
{
    char *to = path_join(workshop, name);
    char *line =
        mem_printf("python3 '%s/tests/tools/twin.py' '%s' '%s' %s", NYBBLE_SOURCE_DIR, from, to, edits);
    if (system(line))
        fail_msg("%s", line);
    free(line);
    return to;
}

static char *twin(const char *workshop, const char *name, const char *edits)
{
    return twin_of(TALES, workshop, name, edits);
}

static float *fresh_answer(const char *folder, int n_rank, bool experts)
{
    struct model *m = open_group(folder, n_rank, experts);
    float *logits = golden_answer(m);
    close_group(m);
    return logits;
}

static void assert_checksum(struct model *m, const char *folder)
{
    struct checksum a, b;
    struct nyb_err err;
    golden_must(checksum_model(&a, m, 1, &err), &err);
    golden_must(checksum_folder(&b, folder, 1, &err), &err);
    assert_int_equal(checksum_compare(&a, &b, NULL, NULL), 0);
    assert_memory_equal(&a.total, &b.total, sizeof(a.total));
    checksum_free(&a);
    checksum_free(&b);
}

static void assert_answer(struct model *m, const float *expected)
{
    float *now = golden_answer(m);
    assert_memory_equal(now, expected, golden_answer_bytes(m));
    free(now);
}

/* ---- updates ------------------------------------------------------------------------------------- */

/* With steps between the phases. */
static enum nyb_code try_update(struct model *m, const struct update_options *o, bool roll_back,
                                enum update_state *state, struct nyb_err *err)
{
    struct update_facts facts;
    struct update *u;
    golden_must(update_prepare(&u, m, o, &facts, err), err);
    free(golden_answer(m));
    enum nyb_code code = update_stage(u, err);
    free(golden_answer(m));
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
    assert_answer(m, expected);
}

static void check_updates(int n_rank, bool experts)
{
    char *workshop = folder_make();
    char *b = twin(workshop, "b", "--perturb 5"),
         *bad = twin(workshop, "bad", "--perturb 6 --nan-last " UP_LAST ".weight_scale");
    char *part = twin(workshop, "part", "--perturb 5 --only 'model.layers.[24].*'");
    char *edits = mem_printf("--take '%s' 'model.layers.[24].*'", b),
         *patched = twin(workshop, "patched", edits);
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
    folder_drop(workshop);
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

/* ---- uploads ------------------------------------------------------------------------------------- */

static struct update_upload *upload_file(const char *folder, const char *dir)
{
    struct nyb_err err;
    struct update_upload *up;
    char *path = path_join(folder, "model.safetensors"), *data;
    size_t n;
    golden_must(file_read_all(path, 1u << 30, &data, &n, &err), &err);
    golden_must(upload_open(&up, dir, n, &err), &err);
    golden_must(upload_write(up, data, n, &err), &err);
    free(data);
    free(path);
    return up;
}

/* As a server does it: a bit between two steps at a time. */
static void poll_until_ready(struct model *m, struct update *u)
{
    struct nyb_err err;
    enum update_progress progress;
    for (int i = 0;; i++) {
        golden_must(update_poll(u, &progress, &err), &err);
        if (progress == UPDATE_READY)
            return;
        if (i < 3)
            free(golden_answer(m));
        usleep(progress == UPDATE_WAIT ? 500 : 0);
    }
}

static void check_upload(struct model *m, const char *from, const char *dir, bool polled)
{
    struct nyb_err err;
    struct update_facts facts;
    struct update *u;
    struct update_upload *up = upload_file(from, dir);
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
    char *workshop = folder_make();
    char *b = twin(workshop, "b", "--perturb 15"),
         *part =
             twin(workshop, "part", "--perturb 15 --only '*.experts.1*' --only '*proj*' --only 'lm_head*'");
    char *edits =
             mem_printf("--take '%s' '*.experts.1*' --take '%s' '*proj*' --take '%s' 'lm_head*'", b, b, b),
         *patched = twin(workshop, "patched", edits);
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
    folder_drop(workshop);
}

/* Rank 0 has room for the upload and another rank has not. */
static void test_upload_without_room(void **state)
{
    (void)state;
    NEED(TALES);
    char *workshop = folder_make(), *b = twin(workshop, "b", "--perturb 15");
    followers_disk_is_full = true;
    struct model *m = open_group(TALES, 2, false);
    followers_disk_is_full = false;
    for (int i = 0; i < 2; i++) {
        struct nyb_err err = {0};
        struct update_facts facts;
        struct update *u;
        struct update_upload *up = upload_file(b, i ? workshop : NULL);
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
    folder_drop(workshop);
}

/* ---- what other ranks refuse --------------------------------------------------------------------- */

/* Rank 0 has neither of these experts, and says so before anything is read. */
static void test_refusals_for_all_ranks(void **state)
{
    (void)state;
    NEED(TALES);
    char *workshop = folder_make();
    char *missing = twin(workshop, "missing", "--drop '*.experts.3[01].*'"),
         *shape = twin(workshop, "shape", "--shape " UP_LAST ".weight"),
         *typed = twin(workshop, "unknown", "--add model.layers.1.mlp.experts.31.surprise.weight");
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
    folder_drop(workshop);
}

/* ---- checksums and values ------------------------------------------------------------------------ */

static void test_checksums_on_any_ranks(void **state)
{
    (void)state;
    static const char *const folder[] = {TALES, GOLDEN "glm4_moe-modelopt", GOLDEN "llama-dense-modelopt"};
    NEED(GOLDEN);
    for (size_t i = 0; i < COUNT_OF(folder); i++)
        for (int n_rank = 2; n_rank <= 4; n_rank++)
            for (int experts = 0; experts < (n_rank < 4 ? 2 : 1); experts++) {
                struct model *m = open_group(folder[i], n_rank, experts);
                assert_checksum(m, folder[i]);
                close_group(m);
            }
}

/* Adding up fails, twice: whoever asked may still say that it is over, and the ranks go on. */
static void test_ranks_that_differ(void **state)
{
    (void)state;
    followers_differ = true;
    struct model *m = open_group(TALES, 2, false);
    followers_differ = false;
    for (int i = 0; i < 2; i++) {
        struct checksum sum;
        struct nyb_err err;
        bool done = false;
        checksum_start(m, 1);
        while (!done)
            golden_must(checksum_poll(m, &done, &err), &err);
        assert_int_equal(checksum_finish(&sum, m, &err), NYB_E_INTERNAL);
        assert_non_null(strstr(err.message, "do not hold the same numbers"));
        assert_non_null(strstr(err.where, "norm"));
        checksum_drop(m);
        free(golden_answer(m));
    }
    close_group(m);
}

static void assert_values(struct model *m, struct model *one, const char *name, size_t max)
{
    struct readback a, b;
    struct nyb_err err;
    golden_must(readback_values(&a, one, name, max, &err), &err);
    golden_must(readback_values(&b, m, name, max, &err), &err);
    assert_int_equal(a.n, b.n);
    assert_int_equal(a.rows, b.rows);
    assert_int_equal(a.columns, b.columns);
    assert_string_equal(a.type, b.type);
    assert_memory_equal(a.value, b.value, a.n * sizeof(*a.value));
    free(a.value);
    free(b.value);
}

static void test_values_on_any_ranks(void **state)
{
    (void)state;
    static const char folder[] = GOLDEN "glm4_moe-modelopt";
    struct nyb_err err;
    NEED(GOLDEN);
    struct model *one = golden_model(folder, COMPUTE_BF16, 1);
    for (int n_rank = 2; n_rank <= 4; n_rank++) {
        struct model *m = open_group(folder, n_rank, n_rank == 3);
        const struct slots *s = &model_weights(one)->slots;
        for (int k = 0; k < s->n; k++) {
            assert_values(m, one, s->slot[k].name, 1234);
            assert_values(m, one, s->slot[k].name, SIZE_MAX);
        }
        struct readback r;
        assert_int_equal(readback_values(&r, m, "nobody", 9, &err), NYB_E_NOT_FOUND);
        close_group(m);
    }
    model_close(one);
}

/* ---- faults -------------------------------------------------------------------------------------- */

/* One update from A to B, with whatever fault is planned. */
static enum nyb_code try_b(struct model *m, const char *b, enum update_staging staging,
                           enum update_state *state, struct nyb_err *err)
{
    const struct update_options o = {
        .folder = b, .staging = staging, .fault = rank_fault, .fault_arg = fault_plan};
    struct update_facts facts;
    struct update *u;
    memset(fault_plan->count, 0, sizeof(fault_plan->count));
    golden_must(update_prepare(&u, m, &o, &facts, err), err);
    enum nyb_code code = update_stage(u, err);
    if (code == NYB_OK)
        code = update_commit(u, err);
    *state = update_state(u);
    update_close(u);
    return code;
}

/* At every read and every step of the commit of each rank. */
static void check_faults(const char *folder, int n_rank, bool experts, enum update_staging staging)
{
    char *workshop = folder_make(), *b = twin_of(folder, workshop, "b", "--perturb 61");
    struct model *m = open_group(folder, n_rank, experts);
    float *old = golden_answer(m);
    struct nyb_err err;
    enum update_state state;
    const struct update_options back = {.folder = folder, .staging = staging};
    golden_must(try_b(m, b, staging, &state, &err), &err);
    int count[COMM_RANK_MAX][3];
    for (int r = 0; r < n_rank; r++)
        for (int p = 0; p < 3; p++)
            count[r][p] = atomic_load(&fault_plan->count[r][p]);
    check(m, &back, false, UPDATE_NEW, old);
    for (int r = 0; r < n_rank; r++)
        for (int point = UPDATE_AT_READ; point <= (int)UPDATE_AT_COMMIT; point++) {
            assert_true(count[r][point] > 0);
            int stride = golden_fault_stride(count[r][point]);
            if (group_has_gpus && stride > 1) /* the emulator is slow: two places, or three, and one answer */
                stride = count[r][point] / 2;
            for (int at = r % stride; at < count[r][point]; at += stride) {
                plan_fault(r, (enum update_point)point, at);
                assert_int_equal(try_b(m, b, staging, &state, &err), NYB_E_IO);
                assert_int_equal(state, UPDATE_OLD);
                if (!group_has_gpus || at + stride >= count[r][point])
                    assert_answer(m, old);
            }
        }
    assert_checksum(m, folder); /* of every rank */
    plan_fault(-1, UPDATE_AT_READ, 0);
    golden_must(try_b(m, b, staging, &state, &err), &err); /* nothing hinders the next one */
    assert_checksum(m, b);
    close_group(m);
    free(old);
    free(b);
    folder_drop(workshop);
}

static void test_faults_on_any_rank(void **state)
{
    (void)state;
    NEED(GOLDEN);
    check_faults(GOLDEN "qwen3_moe-modelopt", 2, false, UPDATE_STAGING_ON);
    check_faults(GOLDEN "qwen3_moe-modelopt", 2, false, UPDATE_STAGING_OFF);
    check_faults(GOLDEN "qwen3_moe-modelopt", 3, true, UPDATE_STAGING_ON);
}

/* Ranks with a GPU each read in place, and go back by reading again: there as here. */
static void test_faults_on_any_gpu(void **state)
{
    (void)state;
    NEED(GOLDEN);
    if (!emulated_use())
        skip();
    group_has_gpus = true;
    check_faults(GOLDEN "qwen3_moe-modelopt", 2, false, UPDATE_STAGING_OFF);
    group_has_gpus = false;
}

/* A rank dies while it reads beside the steps, while it reads in place, and at both ends of the commit: rank
 * 0 keeps the old weights, and knows soon. */
static void test_a_rank_dies(void **state)
{
    (void)state;
    static const struct {
        enum update_staging staging;
        enum update_point point;
        int at;
    } row[] = {
        {UPDATE_STAGING_ON, UPDATE_AT_READ, 5},    {UPDATE_STAGING_OFF, UPDATE_AT_READ, 5},
        {UPDATE_STAGING_ON, UPDATE_AT_COMMIT, 0},  {UPDATE_STAGING_ON, UPDATE_AT_COMMIT, 7},
        {UPDATE_STAGING_OFF, UPDATE_AT_COMMIT, 3},
    };
    NEED(TALES);
    char *workshop = folder_make(), *b = twin(workshop, "b", "--perturb 61");
    for (size_t i = 0; i < COUNT_OF(row); i++) {
        struct nyb_err err = {0};
        enum update_state after;
        struct model *m = open_group(TALES, 2, i % 2);
        free(golden_answer(m));
        atomic_store(&fault_plan->kill, true);
        plan_fault(1, row[i].point, row[i].at);
        uint64_t begin = clock_ns();
        enum nyb_code code = try_b(m, b, row[i].staging, &after, &err);
        if (code != NYB_E_RANK || after != UPDATE_OLD || !strstr(err.message, "rank 1"))
            fail_msg("row %zu: code %d, state %s: %s", i, code, update_state_name(after), err.message);
        assert_true(clock_ns() - begin < 10000000000u); /* half of the ranks' time limit */
        close_group(m);
    }
    free(b);
    folder_drop(workshop);
}

/* ---- experts that move --------------------------------------------------------------------------- */

#define LAYER 1 /* whose experts do */

/* As if so many rows had chosen each: of two ranks with 16 experts each, the plan exchanges 2 for 20 and
 * leaves all others where they are. It gives out the busiest first, to the rank with least so far or, where
 * both have the same, to whoever had it; so these five leave both ranks with the same, and after that come
 * pairs of one of each. */
static void plan_exchange(struct model *m)
{
    static const struct {
        int expert, count;
    } busy[] = {{0, 100000}, {2, 99000}, {16, 3000}, {20, 2500}, {17, 500}};
    int n_expert = m->config.moe.n_expert, pair[2] = {0};
    assert_int_equal(n_expert, 32);
    for (int i = 0; i < m->config.n_layer * n_expert; i++)
        atomic_store(&m->expert_load[i], 0);
    for (int e = 0; e < n_expert; e++) {
        int count = 0;
        for (size_t i = 0; i < COUNT_OF(busy); i++)
            count = busy[i].expert == e ? busy[i].count : count;
        atomic_store(&m->expert_load[LAYER * n_expert + e], (unsigned)(count ? count : 100 - pair[e / 16]++));
    }
    assert_true(model_rebalance_begin(m));
}

static int slot_of_expert(const struct model *m, int expert)
{
    int slot[64], at = 0;
    assert_true(model_expert_slots(m, LAYER, slot));
    while (slot[at] != expert)
        at++;
    return at;
}

/* Until it is done, with steps in between. */
static void exchange_experts(struct model *m)
{
    struct model_rebalance done;
    struct nyb_err err;
    bool more = true;
    while (more) {
        golden_must(model_rebalance_step(m, 1, &more, &done, &err), &err);
        free(golden_answer(m));
        usleep(more ? 1000 : 0);
    }
    assert_int_equal(done.n_move, 1);
    assert_int_equal(slot_of_expert(m, 2), 20);
    assert_int_equal(slot_of_expert(m, 20), 2);
}

/* The second rank is held in the middle of a read while the first closes the update: nothing moves, steps go
 * on, and so does the beginning of the next update, however long that takes. */
static void test_nothing_moves_while_a_rank_closes_an_update(void **state)
{
    (void)state;
    NEED(TALES);
    char *workshop = folder_make(), *b = twin(workshop, "b", "--perturb 5");
    struct model *m = open_group(TALES, 2, true);
    float *old = golden_answer(m);
    const struct update_options o = {.folder = b, .staging = UPDATE_STAGING_ON};
    struct model_rebalance done;
    struct update_facts facts;
    struct update *u;
    struct nyb_err err;
    bool more;
    atomic_store(&fault_plan->hold, true);
    plan_fault(1, UPDATE_AT_READ, 0);
    golden_must(update_prepare(&u, m, &o, &facts, &err), &err);
    poll_until_ready(m, u); /* and the second rank stages */
    while (!atomic_load(&fault_plan->count[1][UPDATE_AT_READ]))
        usleep(500);
    update_close(u);
    plan_exchange(m);
    for (int i = 0; i < 3; i++) {
        golden_must(model_rebalance_step(m, UINT64_MAX, &more, &done, &err), &err);
        assert_true(more);
        assert_int_equal(done.n_move, 0);
        assert_answer(m, old);
    }
    golden_must(update_prepare(&u, m, &o, &facts, &err), &err);
    assert_answer(m, old); /* which tells the others of it */
    atomic_store(&fault_plan->rank, -1);
    atomic_store(&fault_plan->hold, false);
    poll_until_ready(m, u);
    update_close(u);
    exchange_experts(m);
    assert_answer(m, old);
    assert_checksum(m, TALES);
    close_group(m);
    free(old);
    free(b);
    folder_drop(workshop);
}

/* An update in place that fails, and goes back to where the moved experts are from; then one that does not.
 */
static void check_way_back(struct model *m, const char *to)
{
    struct nyb_err err;
    enum update_state state;
    float *old = golden_answer(m);
    plan_fault(0, UPDATE_AT_READ, 5);
    assert_int_equal(try_b(m, to, UPDATE_STAGING_OFF, &state, &err), NYB_E_IO);
    assert_int_equal(state, UPDATE_OLD);
    assert_answer(m, old);
    plan_fault(-1, UPDATE_AT_READ, 0);
    golden_must(try_b(m, to, UPDATE_STAGING_OFF, &state, &err), &err);
    assert_checksum(m, to);
    free(old);
}

static void update_some(struct model *m, const char *folder, const char *const *names, int n)
{
    struct nyb_err err = {0};
    enum update_state state;
    const struct update_options some = {
        .folder = folder, .names = names, .n_names = n, .staging = UPDATE_STAGING_ON};
    golden_must(try_update(m, &some, false, &state, &err), &err);
}

/* Both ranks have both checkpoints open, one parameter each of the second. When those change places, a rank
 * gives up the one that it had before the other comes. */
static void test_moved_experts_are_read_again(void **state)
{
    (void)state;
    static const char *const names[] = {"model.layers.1.mlp.experts.2.down_proj.*",
                                        "model.layers.1.mlp.experts.20.gate_proj.*"};
    NEED(TALES);
    char *workshop = folder_make(), *b = twin(workshop, "b", "--perturb 5 --compressed"),
         *c = twin(workshop, "c", "--perturb 6");
    struct model *m = open_group(TALES, 2, true);
    update_some(m, b, names, 2);
    plan_exchange(m);
    exchange_experts(m);
    check_way_back(m, c);
    close_group(m);
    free(b);
    free(c);
    folder_drop(workshop);
}

/* Another checkpoint lies where the served one was read from, and one expert comes from it. The rank to which
 * that expert moves has only the first one open, so that an update in place keeps a copy of it. */
static void test_an_expert_of_a_folder_that_was_replaced(void **state)
{
    (void)state;
    static const char *const names[] = {"model.layers.1.mlp.experts.2.*"};
    NEED(TALES);
    char *workshop = folder_make(), *a = twin(workshop, "served", "--perturb 5"),
         *c = twin(workshop, "c", "--perturb 7"), *aside = path_join(workshop, "aside");
    struct model *m = open_group(a, 2, true);
    assert_int_equal(rename(a, aside), 0);
    free(twin(workshop, "served", "--perturb 6"));
    update_some(m, a, names, 1);
    plan_exchange(m);
    exchange_experts(m);
    check_way_back(m, c);
    close_group(m);
    free(a);
    free(c);
    free(aside);
    folder_drop(workshop);
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
        cmocka_unit_test(test_checksums_on_any_ranks),
        cmocka_unit_test(test_ranks_that_differ),
        cmocka_unit_test(test_values_on_any_ranks),
        cmocka_unit_test(test_faults_on_any_rank),
        cmocka_unit_test(test_faults_on_any_gpu),
        cmocka_unit_test(test_a_rank_dies),
        cmocka_unit_test(test_nothing_moves_while_a_rank_closes_an_update),
        cmocka_unit_test(test_moved_experts_are_read_again),
        cmocka_unit_test(test_an_expert_of_a_folder_that_was_replaced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
