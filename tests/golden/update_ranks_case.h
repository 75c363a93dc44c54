/* For tests of weights replaced in a model that several processes hold. */
#ifndef NYB_TEST_UPDATE_RANKS_CASE_H
#define NYB_TEST_UPDATE_RANKS_CASE_H

#include "golden/checksums.h"
#include "golden/rank_group.h"
#include "golden/workshop.h"

#include "model/weights.h"

static inline void assert_answer(struct model *m, const float *expected)
{
    float *now = golden_answer(m);
    assert_memory_equal(now, expected, golden_answer_bytes(m));
    free(now);
}

/* With steps between the phases. */
static inline enum nyb_code try_update(struct model *m, const struct update_options *o, bool roll_back,
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

/* After each attempt the pair answers as `expected` does. */
static inline void check(struct model *m, const struct update_options *o, bool roll_back,
                         enum update_state state, const float *expected)
{
    struct nyb_err err = {0};
    enum update_state got;
    enum nyb_code code = try_update(m, o, roll_back, &got, &err);
    if (got != state || (code == NYB_OK) != (roll_back || state == UPDATE_NEW))
        fail_msg("code %d, state %s: %s: %s", code, update_state_name(got), err.where, err.message);
    assert_answer(m, expected);
}

/* As a server does it: a bit between two steps at a time. */
static inline void poll_until_ready(struct model *m, struct update *u)
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

/* One update from A to B, with whatever fault is planned. */
static inline enum nyb_code try_b(struct model *m, const char *b, enum update_staging staging,
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

#endif
